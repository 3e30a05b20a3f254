"""Liveness: about the most bytes that a step holds at once, told from its two graphs without running them.

Inductor computes an operator together with those that read its result where it can, so that this never lies
in memory; what such operators read is held until the last of them is computed. All else is held from where
it is made to its last reader, and what the backward pass reads from where the forward pass makes it.
"""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from superopt.backend.joint.scaled import SCALED
from superopt.backend.joint.step import Split, results_of
from superopt.backend.region_plan import REGION
from superopt.rivals.aten import (
    VIEWS,
    heavy,
    is_attention,
    is_matmul,
    is_window,
    operator_name,
    tensor_bytes,
    tensors_in,
    value_of,
)

__all__ = ["expected_peak"]

_MADE_ANYWHERE = frozenset({"_to_copy", "full", "scalar_tensor", "arange", "clone"})
"""Operators that Inductor computes where their results are read, beside those of single elements."""


_NAMES = """
index_put scatter scatter_add scatter_reduce slice_scatter select_scatter _unsafe_index_put
_unsafe_masked_index_put_accumulate
"""
_WRITES_INTO = frozenset(_NAMES.split())
"""Operators whose result is their first operand, some of it written over."""


def expected_peak(step: Split, forward_outputs: int, turns_bytes: int = 0) -> int:
    """Return about the most bytes that a step holds beside its inputs; gradients that it leaves count.

    A part that is computed in turns takes so many bytes while it runs.
    """
    forward, backward = (_Pass(module.graph) for module in step)
    results = results_of(forward.graph)
    made = [forward.memory_of(one) if isinstance(one, fx.Node) else None for one in results]
    leaving, handed = (
        {one for one in part if one} for part in (made[:forward_outputs], made[forward_outputs:])
    )
    names = {str(one): memory for one, memory in zip(results, made, strict=True)}
    backward.memory.update(
        {node: names.get(node.name) for node in backward.graph.find_nodes(op="placeholder")}
    )
    left = {backward.memory_of(one) for one in results_of(backward.graph) if isinstance(one, fx.Node)}
    before = sum(map(_bytes_made, leaving | handed))
    dropped = {one: _bytes_made(one) for one in handed - leaving}
    return max(
        forward.most(turns_bytes, lasting=leaving | handed),
        before + backward.most(turns_bytes, lasting={*leaving, *left}, given=dropped),
    )


@dataclass(slots=True)
class _Pass:
    """One graph: the node that made the memory in which a value lies, by node; None for what was given."""

    graph: fx.Graph
    memory: dict[fx.Node, fx.Node | None] = field(default_factory=dict)

    def memory_of(self, node: fx.Node) -> fx.Node | None:
        """Return the node that made the memory in which a value lies."""
        found = node
        while found not in self.memory and _looks_at(found):
            found = found.all_input_nodes[0]
        if found not in self.memory:
            self.memory[found] = found if found.op == "call_function" else None
        made = self.memory[node] = self.memory[found]
        return made

    def most(
        self,
        turns_bytes: int,
        lasting: Collection[fx.Node | None],
        given: Mapping[fx.Node, int] | None = None,
    ) -> int:
        """Return the most bytes at once beside what was there before, from which what is given is dropped.

        What is lasting is there to the end.
        """
        order = [node for node in self.graph.nodes if node.op == "call_function" and not _looks_at(node)]
        written = [node for node in order if not _is_inlined(node)]
        last = dict[fx.Node, int]()
        for at, node in enumerate(written):
            for one in self._read(node):
                last[one] = at
        sizes = {**(given or {}), **{node: _bytes_made(node) for node in written}}
        ends: dict[int, list[fx.Node]] = {}
        for node, at in last.items():
            if node in sizes and node not in lasting:
                ends.setdefault(at, []).append(node)
        unread = [one for one in given or () if one not in last and one not in lasting]
        now = most = -sum(sizes[one] for one in unread)
        for at, node in enumerate(written):
            freed = ends.get(at, [])
            size = sizes[node]
            # Inductor's code writes over what is read for the last time, where that is of the same size.
            over = next((one for one in freed if sizes[one] == size and _writes_over(node)), None)
            now += size if over is None else 0
            most = max(most, now + (turns_bytes if node.target is REGION else 0))
            now -= sum(sizes[one] for one in freed if one is not over)
            if node not in last and node not in lasting:
                now -= size
        return most

    def _read(self, node: fx.Node) -> set[fx.Node]:
        """Return the memory that a node reads, also through what is computed together with it."""
        found, seen, left = set[fx.Node](), set[fx.Node](), [*node.all_input_nodes]
        while left:
            one = left.pop()
            if one in seen:
                continue
            seen.add(one)
            memory = self.memory_of(one)
            if memory is None:
                continue
            if memory.graph is self.graph and memory.op == "call_function" and _is_inlined(memory):
                left += memory.all_input_nodes
            else:
                found.add(memory)
        return found


def _bytes_made(node: fx.Node) -> int:
    """Return the bytes that a node makes."""
    return sum(map(tensor_bytes, tensors_in(value_of(node))))


def _looks_at(node: fx.Node) -> bool:
    """Whether a node is the memory of another one, seen otherwise or written over."""
    same = node.target in (operator.getitem, SCALED)
    return node.op == "call_function" and (same or operator_name(node) in VIEWS)


def _writes_over(node: fx.Node) -> bool:
    """Whether Inductor's code of a node may write where it has read."""
    return operator_name(node) is not None and (_is_each(node) or operator_name(node) in _WRITES_INTO)


def _is_each(node: fx.Node) -> bool:
    """Whether each element of a result is made by itself."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or operator_name(node) in _MADE_ANYWHERE


def _is_inlined(node: fx.Node) -> bool:
    """Whether a value is computed where it is read, and never lies in memory."""
    if not _is_each(node):
        return False
    left, found = list(node.users), False
    while left:
        user = left.pop()
        if _looks_at(user):
            left += user.users
        elif user.op == "output" or not (_is_each(user) or _is_reduction(user)):
            return False
        found = True
    return found


def _is_reduction(node: fx.Node) -> bool:
    """Whether Inductor's own code sums up what it reads, or takes the largest of it."""
    return bool(heavy(node)) and not (is_matmul(node) or is_attention(node) or is_window(node))
