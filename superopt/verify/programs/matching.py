"""Matching: which inner tensors and opaque calls of two programs are the same, as a guess to prove.

Both programs are evaluated over the field side by side, a stretch at a time. Where both have the same
tensor and nothing but that tensor leads on, it is a place to cut: from there on both are evaluated on a
fresh random tensor in its stead, so that each stretch is judged by itself, however deep the program
is. The results of an opaque call are random tensors that its arguments determine, so equal calls make
equal results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from superopt.errors import SuperoptError
from superopt.ir import Axis, Graph, Output, Port, Step
from superopt.ops import OPS
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.levels import levels_of
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import Residues
from superopt.verify.programs.pieces import Ordered, Target, cut_port

__all__ = ["CallPair", "CutPair", "Matching", "match", "nothing_matched"]

_TRIALS = 3
_LEVELS = 3  # levels of the tower: one stretch rarely nests exponentials deeper
_CHEAP = 24  # steps that are rather done again in every piece than cut off
_MOST_AXES = 30  # axes of one stretch: an array has at most 64 dimensions
_MOST_STEPS = 1 << 20  # steps of all stretches of one program; stretches that are evaluated again count again


@dataclass(frozen=True, slots=True)
class CutPair:
    """Two inner values that agree where everything before them does."""

    left: int
    right: int
    name: str
    stamp: int


@dataclass(frozen=True, slots=True)
class CallPair:
    """Two calls, each by its side and its number, that agree in their arguments over the field."""

    one: tuple[int, int]
    other: tuple[int, int]
    stamp: int


@dataclass(frozen=True, slots=True)
class Matching:
    """Pairs in an order in which each can be proven from the pairs before it; and where cuts end."""

    pairs: tuple[CutPair | CallPair, ...]
    inner: dict[int, int]  # all values of the first program that the second seems to have, with their twins
    results: frozenset[tuple[int, int]]  # values of both that agree as results
    # The first place to cut behind the last pair, where the other side has no such tensor.
    next_left: int | None
    next_right: int | None


def match(
    left: Ordered, right: Ordered, links: tuple[tuple[str, str], ...], seed: int, *, cuts: bool
) -> Matching:
    """Return what two programs on common axes seem to have in common."""
    graphs = (left.graph, right.graph)
    tiny = tiny_sizes(*graphs, links=links, narrow=True)
    field = tiny.field(seed, trials=_TRIALS, levels=levels_of(*graphs, limit=_LEVELS), lenient=True)
    streams = [_Stream(side, field, tiny.sizes, cuts=cuts) for side in (left, right)]
    waiting: tuple[dict[bytes, _Candidate], ...] = ({}, {})
    pairs: list[CutPair | CallPair] = []
    clock = 0
    while not all(stream.done for stream in streams):
        for number, stream in enumerate(streams):
            clock += 1
            found = stream.advance(clock)
            if found is None:
                continue
            twin = waiting[1 - number].get(found.key)
            if twin is None:
                waiting[number].setdefault(found.key, found)
                continue
            name = f"cut {len(pairs)}"
            stream.cut(found, name)
            streams[1 - number].cut(twin, name)
            one, other = (found, twin) if number == 0 else (twin, found)
            pairs.append(CutPair(one.value, other.value, name, clock))
            for known in waiting:
                known.clear()
            break
    pairs += _call_pairs(streams)
    ends = [min(known.values(), key=lambda one: one.at).value if known else None for known in waiting]
    twins = {content: value for value, content in reversed(streams[1].contents.items())}
    inner = {value: twins[content] for value, content in streams[0].contents.items() if content in twins}
    results = frozenset(
        (one.value, other.value)
        for one, other in zip(left.results, right.results, strict=True)
        if streams[0].content(one) == streams[1].content(other)
    )
    # Calls that were met on the way to a cut come before it.
    in_order = tuple(sorted(pairs, key=lambda pair: (pair.stamp, isinstance(pair, CutPair))))
    return Matching(in_order, inner, results, ends[0], ends[1])


def nothing_matched(left: Ordered, right: Ordered) -> Matching:
    """Return the matching of two programs that were not looked at."""
    pairs = zip(left.results, right.results, strict=True)
    return Matching((), {}, frozenset((one.value, other.value) for one, other in pairs), None, None)


def _call_pairs(streams: list["_Stream"]) -> list[CallPair]:
    """Return each call with the first one that does the same."""
    first: dict[str, tuple[int, int]] = {}
    stamps: dict[tuple[int, int], int] = {}
    found = []
    for side, stream in enumerate(streams):
        for number, digest in stream.digests.items():
            call = side, number
            stamps[call] = stream.stamps[number]
            known = first.setdefault(digest, call)
            if known != call:
                found.append(CallPair(known, call, max(stamps[known], stamps[call])))
    return found


@dataclass(frozen=True, slots=True)
class _Candidate:
    value: int
    at: int  # how many events of the order come before what follows from it
    key: bytes


class _Stream:
    """The values of one program, computed from its inputs and from the tensors that were cut."""

    def __init__(self, side: Ordered, field: Field, sizes: Mapping[str, int], *, cuts: bool) -> None:
        self.side = side
        self.field = field
        self.sizes = sizes
        self.waists = _waists(side) if cuts else {}
        self.at = 0
        self.work = 0
        self.known: dict[int, Residues] = {}  # dimensions are the value's axes in alphabetical order
        self.contents: dict[int, bytes] = {}  # digests of the values of steps
        self.digests: dict[int, str] = {}
        self.stamps: dict[int, int] = {}
        self.made: dict[int, int] = {}  # value -> position in the order
        for value, port in enumerate(side.graph.inputs):
            if value not in side.made_by:
                self._enter(value, port, port.name)

    @property
    def done(self) -> bool:
        """Whether everything is evaluated."""
        return self.at >= len(self.side.order)

    def advance(self, clock: int) -> _Candidate | None:
        """Evaluate up to the next place to cut, and return the tensor there; None at the end."""
        order = self.side.order
        while not self.done:
            stretch: list[int] = []
            axes: frozenset[str] = frozenset()
            while self.at < len(order) and order[self.at] >= 0:
                axes |= self.side.axes_at(order[self.at])
                if stretch and len(axes) > _MOST_AXES:
                    break
                stretch.append(order[self.at])
                self.made[order[self.at]] = self.at
                self.at += 1
                if self.at in self.waists:
                    break
            if stretch:
                self._evaluate(stretch)
            elif not self.done:
                self._call(-1 - order[self.at], clock)
                self.at += 1
            value = self.waists.get(self.at)
            if value is not None and value in self.contents:
                return _Candidate(value, self.at, self.contents[value])
        return None

    def cut(self, candidate: _Candidate, name: str) -> None:
        """Go on behind a tensor, with a fresh one in its stead."""
        for value, position in list(self.made.items()):
            if position >= candidate.at:
                self.known.pop(value, None)
                self.contents.pop(value, None)
                del self.made[value]
        self.at = candidate.at
        self._enter(candidate.value, cut_port(self.side, candidate.value, name), name)

    def _enter(self, value: int, port: Port, name: str) -> None:
        shape = tuple(self.sizes[axis] for axis in port.axes)
        ranked = sorted(range(len(port.axes)), key=lambda i: port.axes[i])
        leaf = self.field.leaf(name, shape, port.dtype)
        self.known[value] = leaf.transpose(0, 1, *(2 + i for i in ranked))

    def _call(self, number: int, clock: int) -> None:
        """Make the results of an opaque call from what it reads."""
        call = self.side.calls[number]
        digest = blake2b(call.signature.encode(), digest_size=16)
        for target in self.side.arguments(number):
            digest.update(self._content(target.value, target.port))
        self.digests[number] = digest.hexdigest()
        self.stamps[number] = clock
        places = {port.name: value for value, port in enumerate(self.side.graph.inputs)}
        for i, name in enumerate(call.results):
            value = places[name]
            self._enter(value, self.side.graph.inputs[value], f"{digest.hexdigest()} {i}")
            self.made[value] = self.at

    def content(self, target: Target) -> bytes:
        """Return a digest of a tensor that the program returns."""
        return self._content(target.value, target.port)

    def _content(self, value: int, port: Port) -> bytes:
        """Return a digest of level 0 of a tensor, its dimensions in the order of the port."""
        own = sorted(self.side.axes[value])
        axes = [axis for axis in port.axes if self.side.sizes[axis] != 1]
        grid = self.known[value][0]
        for axis in own:
            if self.side.sizes[axis] == 1:
                grid = grid.take(0, axis=1 + own.index(axis))
                own = [other for other in own if other != axis]
        dims = [axis for axis in axes if axis in own]
        grid = grid.transpose(0, *(1 + own.index(axis) for axis in dims))
        shape = [self.sizes[axis] if axis in own else 1 for axis in axes]
        whole = [self.sizes[axis] for axis in axes]
        grid = np.broadcast_to(grid.reshape(len(grid), *shape), (len(grid), *whole))
        names = " ".join(axes) if port.name == "" else ""  # inner tensors are known by their axes
        return blake2b(np.ascontiguousarray(grid).tobytes() + f"{names} {whole}".encode()).digest()

    def _evaluate(self, stretch: list[int]) -> None:
        """Evaluate some steps whose operands are known or among them."""
        self.work += len(stretch)
        if self.work > _MOST_STEPS:
            raise SuperoptError("the programs have too little in common to be compared in pieces")
        side = self.side
        steps = [side.graph.step_at(value) for value in stretch]
        inner = set(stretch)
        reads = list(dict.fromkeys(i for step in steps for i in step.inputs if i not in inner))
        place = {value: i for i, value in enumerate((*reads, *stretch))}
        ports = [cut_port(side, value, f"v{value}") for value in reads]
        axes = dict.fromkeys(axis for value in place for axis in sorted(side.axes[value]))
        for step in steps:
            axes.update(dict.fromkeys(step.axes))
            axes.update(dict.fromkeys(n for pair in step.mapping for n in pair if isinstance(n, str)))
        graph = Graph(
            "stretch",
            tuple(Axis(axis, side.sizes[axis]) for axis in axes),
            tuple(ports),
            tuple(_moved(step, place) for step in steps),
            tuple(Output(cut_port(side, value, f"v{value}"), place[value]) for value in stretch),
        )
        leaves = {port.name: self.known[value] for port, value in zip(ports, reads, strict=True)}
        made = interpret(graph, self.field, self.sizes, leaves=leaves)
        names = list(axes)
        for value in stretch:
            own = sorted(side.axes[value])
            grid = made[place[value]]
            dims = [2 + names.index(axis) for axis in own]
            rest = [dim for dim in range(2, grid.ndim) if dim not in dims]
            moved = grid.transpose(0, 1, *dims, *rest)
            moved = moved.reshape(moved.shape[: 2 + len(dims)])
            whole = (self.field.levels, self.field.trials, *(self.sizes[axis] for axis in own))
            self.known[value] = np.broadcast_to(moved, whole)
            self.contents[value] = self._content(value, cut_port(side, value, ""))


def _moved(step: Step, place: Mapping[int, int]) -> Step:
    return step.reading(place[i] for i in step.inputs)


# Where to cut.


def _waists(side: Ordered) -> dict[int, int]:
    """Return the positions of the order where all that leads on is one tensor, with its value.

    What few steps make from the inputs does not count: every piece makes it again.
    """
    heavy = _heavy(side)
    tainted = _infinite(side)
    last: dict[int, int] = {}
    for position, event in enumerate(side.order):
        for value in side.reads(event):
            last[value] = position
    results: dict[int, list[int]] = {}
    for value, call in side.made_by.items():
        results.setdefault(call, []).append(value)
    live: set[int] = set()
    dying: dict[int, list[int]] = {}
    found: dict[int, int] = {}
    taken: set[int] = set()
    for position, event in enumerate(side.order):
        for value in (event,) if event >= 0 else results.get(-1 - event, ()):
            if value in heavy and last.get(value, -1) > position:
                live.add(value)
                dying.setdefault(last[value], []).append(value)
        live.difference_update(dying.get(position, ()))
        if len(live) != 1:
            continue
        value = next(iter(live))
        if value < side.first or value in taken or value in tainted or side.is_mask(value):
            continue
        taken.add(value)
        found[position + 1] = value
    return found


def _heavy(side: Ordered) -> frozenset[int]:
    """Return the values that the caller's inputs and more than a few steps make."""
    varies = [port.name not in side.constants for port in side.graph.inputs]
    weight = [_CHEAP + 1 if value in side.made_by else 0 for value in range(side.first)]
    for step in side.graph.steps:
        varies.append(any(varies[i] for i in step.inputs))
        weight.append(min(1 + sum(weight[i] for i in set(step.inputs)), _CHEAP + 1))
    return frozenset(
        i for i, (many, own) in enumerate(zip(weight, varies, strict=True)) if own and many > _CHEAP
    )


def _infinite(side: Ordered) -> frozenset[int]:
    """Return the values that may be infinite by a mask: a random tensor cannot stand for them."""
    signs: list[_Signs] = [frozenset()] * side.first
    scalars = _Infinities()
    for step in side.graph.steps:
        args = [signs[i] for i in step.inputs]
        if step.op in OPS:
            signs.append(OPS[step.op].scalar(scalars, *args))
        elif step.op == "infinity":
            signs.append(frozenset("+"))
        elif step.op == "contract":
            signs.append(scalars.mul(*args))
        elif step.op == "max":
            signs.append(args[0] - {"-"})  # a row that is masked throughout has no maximum at all
        else:
            signs.append(args[0] if args else frozenset())
    return frozenset(value for value, found in enumerate(signs) if found)


_Signs = frozenset[str]


class _Infinities:
    """Scalars whose values are the signs of the infinities that a masked tensor may hold."""

    def const(self, *args: object) -> _Signs:
        return frozenset()

    inv = less = equal = const

    def infinity(self) -> _Signs:
        return frozenset("+")

    def add(self, a: _Signs, b: _Signs) -> _Signs:
        return a | b

    def where(self, mask: _Signs, a: _Signs, b: _Signs) -> _Signs:
        return a | b

    def mul(self, a: _Signs, b: _Signs) -> _Signs:
        return frozenset("+-") if a | b else frozenset()

    def neg(self, a: _Signs) -> _Signs:
        return frozenset("-" if sign == "+" else "+" for sign in a)

    def exp(self, a: _Signs) -> _Signs:
        return a - {"-"}

    def sqrt(self, a: _Signs) -> _Signs:
        return a

    def maximum(self, a: _Signs, b: _Signs) -> _Signs:
        return (a | b) & {"+"} | a & b

    def function(self, name: str, *args: _Signs) -> _Signs:
        return frozenset("+-") if any(args) else frozenset()
