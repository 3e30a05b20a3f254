"""The cheapest different ways to derive the goal, from the universe of tensors.

Every tensor of the universe has several derivations (arcs); a graph chooses one for each tensor
it needs. Working up from the leaves, each tensor keeps the few cheapest partial graphs that
differ in their reductions (graphs that only reorder elementwise work are one: the cheapest
stands for all). Shared tensors are counted once, and a graph never gives a tensor two derivations.
A partial graph holds the derivation of each of its tensors, so a union of two partial graphs that agree
wherever they meet is free of cycles, like both of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush, nsmallest
from itertools import product
from typing import NamedTuple

__all__ = ["EACH_US", "Arc", "Derivation", "derive"]

EACH_US = 1e-6
"""What each operator costs more than its work: of graphs of equal cost, the one with fewer of them wins."""

_ARCS = 500  # arcs that take part
_KEPT = 12  # partial graphs that each tensor keeps
_TRIED = 24  # unions tried for each arc and round
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Arc:
    """One way to make a tensor: an operator on other tensors, and its cost."""

    op: str
    attr: int  # the number of a leaf, function, axis group or access
    args: tuple[int, ...]
    us: float
    reduced: int = 0  # bit set of the axis groups that this arc reduces
    walked: int = 0  # bit set of the reduced groups that an operand has

    @property
    def is_reduction(self) -> bool:
        """Whether graphs that differ in this arc are different graphs, not reorderings."""
        return self.walked != 0


@dataclass(frozen=True, slots=True)
class Derivation:
    """One graph: the arc chosen for every tensor it needs."""

    us: float
    arcs: tuple[tuple[int, Arc], ...]  # (tensor, arc), in no order


class _Partial(NamedTuple):
    """A partial graph of one tensor: bit sets of its tensors and of its arcs; compares by cost."""

    total: float  # microseconds of operators and passes
    arcs: int
    tensors: int
    us: float  # microseconds of operators alone
    passes: tuple[tuple[int, int], ...]  # (axis group, times walked before the tensor is known)


def derive(
    arcs_of: Sequence[Sequence[Arc]],
    roots: Sequence[int],
    *,
    count: int,
    pass_us: float,
    stop: Callable[[], bool] | None = None,
) -> tuple[tuple[Derivation, ...], bool]:
    """Return up to `count` derivations of the roots, cheapest first, and whether any were dropped.

    Where `stop` ends this before a first one is found, the one of the cheapest arcs is returned.
    """
    search = _Search(arcs_of, pass_us)
    dropped = search.run(roots, count, stop)
    wholes = search.combine_roots(tuple(roots), count)
    if not wholes and stop is not None and stop():
        wholes = search.cheapest_arcs(roots)
    flat = search.flat
    found = []
    for whole in wholes[:count]:
        chosen = tuple(flat[i] for i in _bits(whole.arcs))
        found.append(Derivation(whole.total, chosen))
    return tuple(found), dropped or len(wholes) > count


class _Search:
    """The tables of one enumeration."""

    def __init__(self, arcs_of: Sequence[Sequence[Arc]], pass_us: float) -> None:
        self.pass_us = pass_us
        self.flat: list[tuple[int, Arc]] = []
        self.choices: list[list[int]] = []
        for tensor, arcs in enumerate(arcs_of):
            self.choices.append(list(range(len(self.flat), len(self.flat) + len(arcs))))
            self.flat += [(tensor, arc) for arc in arcs]
        self.reductions = sum(1 << i for i, (_, arc) in enumerate(self.flat) if arc.is_reduction)
        self.kept: list[list[_Partial]] = [[] for _ in arcs_of]
        self._inside: dict[int, tuple[float, int]] = {}  # tensor -> microseconds of operators, passes
        self._cheapest: dict[int, int] = {}  # tensor -> its arc of the cheapest derivation
        self.root_places: dict[int, int] = {}

    def run(self, roots: Sequence[int], count: int, stop: Callable[[], bool] | None) -> bool:
        """Fill `kept` to a fixpoint; return whether a limit dropped anything."""
        order = self._order()
        if stop is not None and stop():
            return True
        self.root_places = dict.fromkeys(roots, max(count, _KEPT))
        self._promising(roots)
        order = [tensor for tensor in order if self.choices[tensor]]
        dropped = sum(map(len, self.choices)) < len(self.flat)
        changed = set(order)
        for _ in range(_ROUNDS):
            again: set[int] = set()
            for tensor in order:
                choices = self.choices[tensor]
                if tensor not in changed and not any(
                    arg in changed or arg in again for i in choices for arg in self.flat[i][1].args
                ):
                    continue
                if stop is not None and stop():
                    return True
                kept, lost = self._improve(tensor)
                dropped |= lost
                if kept != self.kept[tensor]:
                    self.kept[tensor] = kept
                    again.add(tensor)
            changed = again
            if not changed:
                return dropped
        return True

    def combine_roots(self, roots: tuple[int, ...], count: int) -> list[_Partial]:
        """Return the cheapest consistent unions of partial graphs of all roots."""
        first, *others = dict.fromkeys(roots)
        wholes = self.kept[first]
        for root in others:
            unions = [
                union
                for whole, partial in product(wholes, self.kept[root])
                if (union := self._union(whole, partial)) is not None
            ]
            wholes = self._distinct(unions, max(count, _KEPT) + 1)
        return wholes

    def cheapest_arcs(self, roots: Sequence[int]) -> list[_Partial]:
        """Return the graph that takes the cheapest arc of each tensor, none where a root has no derivation.

        What a tensor shares with others counts once for each use in this choice of arcs.
        """
        if not self._cheapest.keys() >= set(roots):
            return []
        pending, needed = list(roots), dict[int, int]()
        while pending:
            tensor = pending.pop()
            if tensor not in needed:
                needed[tensor] = self._cheapest[tensor]
                pending += self.flat[needed[tensor]][1].args
        us = sum(self.flat[i][1].us for i in needed.values())
        arcs, tensors = (sum(1 << i for i in numbers) for numbers in (needed.values(), needed))
        return [_Partial(us, arcs, tensors, us, ())]

    def _order(self) -> list[int]:
        """Return the tensors in order of their cheapest derivations (Knuth's form of Dijkstra's search)."""
        best = self._inside
        users: dict[int, list[int]] = {}
        missing: dict[int, int] = {}
        heap: list[tuple[float, int, float, int, int]] = []  # cost, tensor, us of operators, passes, arc
        for tensor, choices in enumerate(self.choices):
            for i in choices:
                args = set(self.flat[i][1].args)
                missing[i] = len(args)
                for arg in args:
                    users.setdefault(arg, []).append(i)
                if not args:
                    heap.append((0.0, tensor, 0.0, 0, i))
        heapify(heap)
        while heap:
            _, tensor, us, walks, arc_number = heappop(heap)
            if tensor in best:
                continue
            best[tensor], self._cheapest[tensor] = (us, walks), arc_number
            for i in users.get(tensor, ()):
                missing[i] -= 1
                user, arc = self.flat[i]
                if not missing[i] and user not in best:
                    us, walks = self._tree(arc)
                    heappush(heap, (us + self.pass_us * walks, user, us, walks, i))
        return list(best)

    def _tree(self, arc: Arc) -> tuple[float, int]:
        """Return the cost of an arc on its cheapest operands; a shared operand counts once for each use."""
        args = set(arc.args)
        walks = max((self._inside[arg][1] for arg in args), default=0)
        return arc.us + sum(self._inside[arg][0] for arg in args), walks + (arc.walked != 0)

    def _promising(self, roots: Iterable[int]) -> None:
        """Keep only the arcs of the cheapest derivations, by the cost below each arc and the cost above it.

        Both costs count a shared tensor once for each use, so they rank arcs without bounding them.
        """
        outside: set[int] = set()
        heap = [(0.0, root, 0.0, 0) for root in roots]
        scores: list[tuple[float, int]] = []
        while heap:
            _, tensor, us, walks = heappop(heap)
            if tensor in outside:
                continue
            outside.add(tensor)
            for i in self.choices[tensor]:
                arc = self.flat[i][1]
                args = set(arc.args)
                if not all(arg in self._inside for arg in args):
                    continue
                inner_us, inner_walks = self._tree(arc)
                scores.append((us + inner_us + self.pass_us * (walks + inner_walks), i))
                after = walks + (arc.walked != 0)
                for arg in args:
                    rest = us + inner_us - self._inside[arg][0]
                    heappush(heap, (rest + self.pass_us * after, arg, rest, after))
        chosen = {i for _, i in nsmallest(_ARCS, scores)}
        # Knuth's order needs every tensor that it visits to keep its cheapest arc, and it does: that arc
        # has the least score of all arcs of its tensor.
        self.choices = [[i for i in choices if i in chosen] for choices in self.choices]

    def _improve(self, tensor: int) -> tuple[list[_Partial], bool]:
        """Return the best partial graphs of a tensor from the best partial graphs of its operands."""
        found: dict[int, _Partial] = {}
        bounds = []
        for i in self.choices[tensor]:
            arc = self.flat[i][1]
            if all(self.kept[arg] for arg in arc.args):
                bounds.append((arc.us + max((self.kept[arg][0].total for arg in arc.args), default=0.0), i))
        bounds.sort()
        places = self.root_places.get(tensor, _KEPT)
        worst = float("inf")
        lost = False
        for least, i in bounds:
            if least > worst:
                lost = True
                break
            for partial in self._apply(tensor, i, self.flat[i][1], worst):
                skeleton = partial.arcs & self.reductions
                known = found.get(skeleton)
                if known is None or partial < known:
                    found[skeleton] = partial
            if len(found) > places:
                lost = True
                best = nsmallest(places, found.values())
                found = {partial.arcs & self.reductions: partial for partial in best}
                worst = best[-1].total
        return sorted(found.values()), lost

    def _apply(self, tensor: int, number: int, arc: Arc, worst: float) -> Iterable[_Partial]:
        """Yield the partial graphs that one arc makes from the partial graphs kept for its operands."""
        if not arc.args:
            yield _Partial(arc.us, 1 << number, 1 << tensor, arc.us, ())
            return
        first, *others = [self.kept[arg] for arg in dict.fromkeys(arc.args)]
        for ranks in _ranks((len(first), *map(len, others)), _TRIED):
            union: _Partial | None = first[ranks[0]]
            for kept, rank in zip(others, ranks[1:], strict=True):
                if union is not None:
                    union = self._union(union, kept[rank])
            if union is None or union.tensors >> tensor & 1:
                continue
            passes = union.passes
            total = union.total + arc.us
            if arc.walked:
                counts = dict(passes)
                for axis in _bits(arc.walked):
                    counts[axis] = counts.get(axis, 0) + 1
                    total += self.pass_us
                passes = tuple(sorted(counts.items()))
            if total <= worst:
                arcs, tensors = union.arcs | 1 << number, union.tensors | 1 << tensor
                yield _Partial(round(total, 9), arcs, tensors, union.us + arc.us, passes)

    def _union(self, a: _Partial, b: _Partial) -> _Partial | None:
        """Return two partial graphs as one, or None where they derive a tensor differently."""
        tensors, arcs = a.tensors | b.tensors, a.arcs | b.arcs
        if tensors.bit_count() != arcs.bit_count():
            return None
        us = a.us + b.us
        for i in _bits(a.arcs & b.arcs):
            us -= self.flat[i][1].us
        passes = a.passes
        if passes != b.passes:
            counts = dict(passes)
            for axis, times in b.passes:
                if times > counts.get(axis, 0):
                    counts[axis] = times
            passes = tuple(sorted(counts.items()))
        total = us
        for _, times in passes:
            total += self.pass_us * times
        return _Partial(round(total, 9), arcs, tensors, us, passes)

    def _distinct(self, partials: Iterable[_Partial], count: int) -> list[_Partial]:
        best: dict[int, _Partial] = {}
        for partial in sorted(partials):
            best.setdefault(partial.arcs & self.reductions, partial)
        return list(best.values())[:count]


@cache
def _ranks(lengths: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Return which entries of several ranked lists to try together, the best entries first."""
    return tuple(nsmallest(count, product(*map(range, lengths)), key=lambda ranks: (sum(ranks), ranks)))


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
