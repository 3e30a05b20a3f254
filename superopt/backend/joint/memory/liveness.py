"""Liveness: about the most bytes that a step holds at once, told from its graphs without running it.

Inductor computes an operator together with those that read its result where it can, so that this never lies
in memory; what such operators read is held until the last of them is computed. All else is held from where
it is made to its last reader, and what the backward pass reads from where the forward pass makes it.
"""

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, fx

from superopt.backend.joint.memory.kept import Passes
from superopt.backend.joint.memory.values import is_view
from superopt.backend.joint.scaled import leaves_scaled
from superopt.backend.joint.step import results_of
from superopt.backend.region_plan import REGION
from superopt.rivals.aten import (
    heavy,
    is_attention,
    is_matmul,
    is_window,
    operator_name,
    tensor_bytes,
    tensors_in,
    value_of,
)

__all__ = [
    "Around",
    "Liveness",
    "PeakBytes",
    "StepPeak",
    "around_calls",
    "most_of_pass",
    "room_beside",
]

_MADE_ANYWHERE = frozenset({"_to_copy", "full", "scalar_tensor", "arange", "clone"})
"""Operators that Inductor computes where their results are read, as it does pointwise ones."""

_PICKS = frozenset({"gather", "index", "index_select", "embedding"})
"""Operators that look elements up, which Inductor computes where their results are read, too."""

_MOST_READ = 4  # an operator of more tensors is computed once for all of its readers
_COSTLY = frozenset({"exp", "sigmoid"})  # on a CPU, these are computed once for all readers, too
_NEAR = 64  # operators of one loop lie at most this many operators apart

_NAMES = """
index_put scatter scatter_add scatter_reduce slice_scatter select_scatter _unsafe_index_put
_unsafe_masked_index_put_accumulate
"""
_WRITES_INTO = frozenset(_NAMES.split())
"""Operators whose result is their first operand, some of it written over."""


@dataclass(frozen=True, slots=True)
class PeakBytes:
    """The most bytes held at once: at any time, and while chunks run, without those of the chunks."""

    bytes: int = 0
    in_chunks: int = 0

    def over(self, other: "PeakBytes", before: int) -> "PeakBytes":
        """Return the larger of this, on top of so many bytes from before, and another."""
        in_chunks = before + self.in_chunks if self.in_chunks else 0
        return PeakBytes(max(before + self.bytes, other.bytes), max(in_chunks, other.in_chunks))

    def with_chunks(self, chunks_bytes: int) -> int:
        """Return the most bytes held at once if chunks take so many."""
        return max(self.bytes, self.in_chunks + chunks_bytes)


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most that a step holds beside its inputs, with and without the gradients that it leaves."""

    with_gradients: PeakBytes
    without_gradients: PeakBytes


class _Memory(NamedTuple):
    """One result of an operator, made by a pass or given to it."""

    made_by: fx.Node
    number: int = 0
    is_given: bool = False


class _Operators:
    """What is known of the operators of a graph, whatever is done with them."""

    def __init__(self, graph: fx.Graph) -> None:
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        self.looking = {node for node in nodes if _looks_at(node)}
        self.each = {node for node in nodes if _is_each(node)}
        self.fusing = self.each | {
            node for node in nodes if _is_reduction(node) or operator_name(node) in _PICKS
        }
        self.over = self.each | {node for node in nodes if operator_name(node) in _WRITES_INTO}
        self.results = {node: _bytes_of_results(node) for node in nodes}
        self.lengths = {node: _lengths_of_results(node) for node in nodes}

    def bytes_of(self, memory: _Memory) -> int:
        """Return the bytes of some memory."""
        return self.results[memory.made_by][memory.number]


class Liveness:
    """What a step of a joint graph is expected to hold, whatever is kept between its passes."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.known = passes, _Operators(passes.graph)

    def peak(self, kept: Collection[fx.Node], remade: Collection[fx.Node]) -> StepPeak:
        """Return about the most bytes that a step holds where some values are kept and others made again."""
        first = _Pass(self.known, self.passes.first(kept), {*self.passes.leaving, *kept})
        found = {node: first.memory_of(node) for node in kept}
        handed = {node: memory for node, memory in found.items() if memory is not None}
        leaving = {memory for node in self.passes.leaving if (memory := first.memory_of(node)) is not None}
        given = {node: one._replace(is_given=True) for node, one in handed.items()}
        last = _Pass(self.known, self.passes.last(remade), {*self.passes.gradients}, given)
        left = {memory for node in self.passes.gradients if (memory := last.memory_of(node)) is not None}
        dropped = {one._replace(is_given=True) for one in {*handed.values()} - leaving}
        early = {one for one in last.with_earlier(left, left, dropped) if one.is_given}
        staying = leaving | left | {one._replace(is_given=False) for one in early}
        lasting = leaving | {*handed.values()}
        peaks = []
        for uncounted in (set[_Memory](), staying):
            before = sum(self.known.bytes_of(one) for one in lasting - uncounted)
            forward = first.most(lasting, (), uncounted)
            peaks.append(last.most(left, dropped, uncounted).over(forward, before))
        return StepPeak(*peaks)


def most_of_pass(graph: fx.Graph, given: Collection[fx.Node], within: Mapping[fx.Node, int]) -> int:
    """Return about the most bytes that one pass holds at once, of its own graph.

    What it is given is dropped after its last reader; calls of plans take more bytes `within`.
    """
    known, one_pass, left, dropped = _own_pass(graph, given)
    before = sum(map(known.bytes_of, dropped))
    return before + one_pass.most(left, dropped - left, (), within).bytes


def room_beside(graph: fx.Graph, given: Collection[fx.Node], *, gradients: bool) -> dict[fx.Node, int]:
    """Return the bytes that may be taken while each operator of a pass runs, until most is held then.

    Where the results of the pass are `gradients`, most is held neither with them nor without.
    """
    _, one_pass, left, dropped = _own_pass(graph, given)
    found: dict[fx.Node, int] = {}
    for uncounted in ((), left) if gradients else ((),):
        levels = [(node, held) for _, node, held in one_pass.levels(left, dropped - left, uncounted)]
        most = max((held for _, held in levels), default=0)
        for node, held in levels:
            found[node] = min(most - held, found.get(node, most))
    return found


@dataclass(frozen=True, slots=True)
class Around:
    """What lies in memory while a call runs: the bytes of all else, and which inputs of it end there."""

    bytes: int
    ending: tuple[int, ...]


def around_calls(graph: fx.Graph, given: Collection[fx.Node]) -> dict[fx.Node, Around]:
    """Return what lies in memory around each call of a plan in a pass, as `most_of_pass` counts it."""
    known, one_pass, left, dropped = _own_pass(graph, given)
    before = sum(map(known.bytes_of, dropped))
    found = {}
    for at, node, held in one_pass.levels(left, dropped - left, ()):
        if node.target is REGION:
            ending = one_pass.ending(at, node.args[1], left)  # type: ignore[arg-type]
            own = sum(known.results[node].values()) + sum(ending.values())
            found[node] = Around(before + held - own, tuple(ending))
    return found


def _own_pass(
    graph: fx.Graph, given: Collection[fx.Node]
) -> "tuple[_Operators, _Pass, set[_Memory], set[_Memory]]":
    """Return what is known of a pass: its operators, the pass, where its results lie, and what is given."""
    known = _Operators(graph)
    known.results |= {node: _bytes_of_results(node) for node in given}
    results = {one for one in results_of(graph) if isinstance(one, fx.Node)}
    dropped = {node: _Memory(node, is_given=True) for node in given}
    order = [node for node in graph.nodes if node.op == "call_function"]
    one_pass = _Pass(known, order, results, dropped)
    left = {memory for node in results if (memory := one_pass.memory_of(node)) is not None}
    return known, one_pass, left, {*dropped.values()}


class _Pass:
    """The operators of a pass in order, its results, and where in memory lies what it is given."""

    def __init__(
        self,
        known: _Operators,
        order: Sequence[fx.Node],
        results: Collection[fx.Node],
        given: Mapping[fx.Node, _Memory] | None = None,
    ) -> None:
        self.known, self.results, self.members = known, results, set(order)
        self.memory: dict[fx.Node, _Memory | None] = dict(given or {})
        self.read: dict[fx.Node, set[_Memory]] = {}
        self.inlined = set[fx.Node]()
        for node in order:
            if node not in known.looking:
                self.read[node] = self._read(node)
                if self._is_inlined(node):
                    self.inlined.add(node)
        self.written = [node for node in self.read if node not in self.inlined]
        self.readers: dict[_Memory, list[fx.Node]] = {}
        for node in self.written:
            for one in self.read[node]:
                self.readers.setdefault(one, []).append(node)
        self._share_loops()
        self._keep_in_loops()
        place = {node: at for at, node in enumerate(self.written)}
        for several in self.readers.values():
            several.sort(key=place.__getitem__)
        self.last_read = {one: place[several[-1]] for one, several in self.readers.items()}
        # The last of them comes first.
        self.writing = [
            (place[node], node) for node in reversed(self.written) if operator_name(node) in _WRITES_INTO
        ]

    def memory_of(self, node: fx.Node) -> _Memory | None:
        """Return the memory in which a value lies, None for an input of the step."""
        found, looking = node, self.known.looking
        while found not in self.memory and found in looking:
            source = found.all_input_nodes[0]
            if found.target is operator.getitem and source not in looking:
                number = int(found.args[1])  # type: ignore[arg-type]
                self.memory[found] = _Memory(source, number) if source in self.members else None
            else:
                found = source
        if found not in self.memory:
            self.memory[found] = _Memory(found) if found in self.members else None
        made = self.memory[node] = self.memory[found]
        return made

    def most(
        self,
        lasting: Collection[_Memory],
        given: Collection[_Memory],
        uncounted: Collection[_Memory],
        within: Mapping[fx.Node, int] | None = None,
    ) -> PeakBytes:
        """Return the most bytes held at once, beyond those from before.

        What is `given` from before is dropped after its last read; what is `lasting` stays to the end.
        """
        most, in_chunks = -self._unread(lasting, given, uncounted), 0
        for _, node, held in self.levels(lasting, given, uncounted):
            most = max(most, held + (within or {}).get(node, 0))
            in_chunks = max(in_chunks, held) if node.target is REGION else in_chunks
        return PeakBytes(most, in_chunks)

    def levels(
        self, lasting: Collection[_Memory], given: Collection[_Memory], uncounted: Collection[_Memory]
    ) -> Iterator[tuple[int, fx.Node, int]]:
        """Yield the operators in order, each with its number and the bytes held while it runs."""
        last = self.last_read
        made = {node: [_Memory(node, at) for at in self.known.results[node]] for node in self.written}
        all_made = {one for several in made.values() for one in several}
        not_counted = self.with_earlier(uncounted, lasting, given)
        sizes = {one: 0 if one in not_counted else self.known.bytes_of(one) for one in all_made.union(given)}
        ends: dict[int, list[_Memory]] = {}
        for memory, at in last.items():
            if memory in sizes and memory not in lasting:
                ends.setdefault(at, []).append(memory)
        now = -self._unread(lasting, given, uncounted)
        for at, node in enumerate(self.written):
            freed = ends.get(at, [])
            size = sum(sizes[one] for one in made[node])
            # Inductor's code writes over what is read for the last time, where that is of the same size.
            over = next((one for one in freed if sizes[one] == size and self._is_written_over(one)), None)
            now += size if over is None else 0
            yield at, node, now
            now -= sum(sizes[one] for one in freed if one is not over)
            now -= sum(sizes[one] for one in made[node] if one not in last and one not in lasting)

    def with_earlier(
        self, several: Collection[_Memory], lasting: Collection[_Memory], given: Collection[_Memory]
    ) -> set[_Memory]:
        """Return some memory with what lies there before: a gradient is 0 first, and then added to."""
        found, donated = {*several}, torch._functorch.config.donated_buffer
        for at, node in self.writing:
            if _Memory(node) not in found:
                continue
            before = self.memory_of(node.all_input_nodes[0])
            if before is None or before in lasting or self.last_read.get(before) != at:
                continue
            if self._is_written_over(before) and (not before.is_given or (donated and before in given)):
                found.add(before)
        return found

    def _unread(
        self, lasting: Collection[_Memory], given: Collection[_Memory], uncounted: Collection[_Memory]
    ) -> int:
        """Return the bytes of what is given from before though nothing reads it."""
        unread = (one for one in given if one not in self.last_read and one not in lasting)
        return sum(self.known.bytes_of(one) for one in unread if one not in uncounted)

    def ending(self, at: int, inputs: Sequence[fx.Node], lasting: Collection[_Memory]) -> dict[int, int]:
        """Return the places of inputs that an operator of some number is the last to read, with their bytes.

        Only those count that are all of the memory in which they lie.
        """
        found, seen = dict[int, int](), set[_Memory]()
        for place, node in enumerate(inputs):
            memory = self.memory_of(node)
            if memory is None or memory in lasting or memory in seen or self.last_read.get(memory) != at:
                continue
            seen.add(memory)
            if sum(_bytes_of_results(node).values()) == (size := self.known.bytes_of(memory)):
                found[place] = size
        return found

    def _share_loops(self) -> None:
        """Move operators of single elements to later ones that read the same memory.

        Inductor computes both in one loop, so that what the first makes waits for what the second reads.
        """
        for several in self.readers.values():
            each = [node for node in several if node in self.known.each]
            for first, second in reversed([*pairwise(each)]):
                if self._is_as_large(first, second):
                    self._move(first, second)

    def _keep_in_loops(self) -> None:
        """Write nothing to memory that only the rest of one loop reads, once operators share loops."""
        leaving = {self.memory_of(node) for node in self.results}
        for node in [one for one in self.written if one in self.known.each]:
            memory = _Memory(node)
            readers = self.readers.get(memory, [])
            if memory in leaving or not readers:
                continue
            end = max(map(self.written.index, readers)) + 1
            loop = self.written[self.written.index(node) : end]
            if all(one in self.known.each and self._is_as_large(one, node) for one in loop):
                self._put_into(readers, node)

    def _put_into(self, readers: Sequence[fx.Node], node: fx.Node) -> None:
        """Let what reads an operator of its loop read what that reads, in place of what it makes."""
        memory = _Memory(node)
        self.written.remove(node)
        del self.readers[memory]
        for one in readers:
            self.read[one] = self.read[one] - {memory} | self.read[node]
        for other in self.read[node]:
            others = [one for one in self.readers[other] if one is not node]
            self.readers[other] = [*others, *(one for one in readers if one not in others)]

    def _is_as_large(self, node: fx.Node, other: fx.Node) -> bool:
        """Whether one loop makes both, in whatever dtypes."""
        return self.known.lengths[node] == self.known.lengths[other]

    def _move(self, first: fx.Node, second: fx.Node) -> None:
        """Move one operator to another, and what reads it behind that, unless the other needs it."""
        start, end = self.written.index(first), self.written.index(second)
        if not 0 < end - start <= _NEAR:
            return
        moved, stays = [first], list[fx.Node]()
        for node in self.written[start + 1 : end + 1]:
            needs = any(one.made_by in moved for one in self.read[node] if not one.is_given)
            (moved if needs else stays).append(node)
        if stays and stays[-1] is second:
            self.written[start : end + 1] = [*stays[:-1], first, second, *moved[1:]]

    def _is_written_over(self, memory: _Memory) -> bool:
        """Whether the last reader of some memory may write there: no loop that others share does."""
        *others, last = self.readers[memory]
        shared = any(one in self.known.each and self._is_as_large(one, last) for one in others)
        return last in self.known.over and not shared

    def _read(self, node: fx.Node) -> set[_Memory]:
        """Return the memory that a node reads, also through what is computed together with it."""
        found = set[_Memory]()
        for memory in map(self.memory_of, node.all_input_nodes):
            if memory is not None and not memory.is_given and memory.made_by in self.inlined:
                found |= self.read[memory.made_by]
            elif memory is not None:
                found.add(memory)
        return found

    def _is_inlined(self, node: fx.Node) -> bool:
        """Whether a value is computed where it is read, and never lies in memory."""
        if node not in self.known.each:
            return False
        left, readers = [node], 0
        while left:
            one = left.pop()
            if one in self.results:
                return False
            for user in one.users:
                if user not in self.members:
                    continue
                if user in self.known.looking:
                    left.append(user)
                    continue
                readers += 1
                if user not in self.known.fusing:
                    return False
        costly = len(self.read[node]) > _MOST_READ or operator_name(node) in _COSTLY
        return readers == 1 or (readers > 1 and not costly)


def _bytes_of_results(node: fx.Node) -> dict[int, int]:
    value = value_of(node)
    several = value if isinstance(value, tuple | list) else (value,)
    return {at: tensor_bytes(one) for at, one in enumerate(several) if isinstance(one, Tensor)}


def _lengths_of_results(node: fx.Node) -> list[int]:
    return [tensor_bytes(one) // one.element_size() for one in tensors_in(value_of(node))]


def _looks_at(node: fx.Node) -> bool:
    """Whether a node is the memory of another one, seen otherwise or written over."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem or is_view(node):
        return True
    return operator_name(node) == "mul" and leaves_scaled(node.all_input_nodes[0])


def _is_each(node: fx.Node) -> bool:
    """Whether each element of a result is made by itself."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or operator_name(node) in _MADE_ANYWHERE


def _is_reduction(node: fx.Node) -> bool:
    """Whether Inductor's own code sums up what it reads, or takes the largest of it."""
    return bool(heavy(node)) and not (is_matmul(node) or is_attention(node) or is_window(node))
