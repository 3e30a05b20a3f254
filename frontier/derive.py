"""From the universe back to graphs: the cheapest different ways to derive the goal.

Every tensor of the universe has several derivations (arcs); a graph chooses one for each tensor
it needs. Working up from the leaves, each tensor keeps the few cheapest partial graphs that
differ in their reductions (graphs that only reorder elementwise work are one: the cheapest
stands for all). Shared tensors are counted once, and a graph never gives a tensor two derivations.
A partial graph holds the derivation of each of its tensors, so a union of two that agree wherever
they meet is free of cycles, like both of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import product

__all__ = ["Arc", "Derivation", "DeriveLimits", "derive"]


@dataclass(frozen=True, slots=True)
class Arc:
    """One way to make a tensor: an operator on other tensors, and what it costs."""

    op: str
    attr: int  # leaf, function, axis bits of a reduction, access
    args: tuple[int, ...]
    us: float
    reduced: int = 0  # bit set of axis groups this arc reduces

    @property
    def is_reduction(self) -> bool:
        """Whether graphs that differ in this arc are different graphs, not reorderings."""
        return self.reduced != 0


@dataclass(frozen=True, slots=True)
class Derivation:
    """One graph: the arc chosen for every tensor it needs."""

    us: float
    arcs: tuple[tuple[int, Arc], ...]  # (tensor, arc), no order


@dataclass(frozen=True, slots=True)
class DeriveLimits:
    """How many partial graphs each tensor keeps, how many pairs are tried, and rounds at most."""

    kept: int = 24
    tried: int = 400
    rounds: int = 6


@dataclass(frozen=True, slots=True)
class _Partial:
    """A partial graph of one tensor: bit sets of its tensors and of its arcs."""

    us: float  # operators only
    tensors: int
    arcs: int
    passes: tuple[tuple[int, int], ...]  # (axis group, times walked before the tensor is known)


def derive(
    arcs_of: Sequence[Sequence[Arc]],
    roots: Sequence[int],
    *,
    count: int,
    pass_us: float,
    limits: DeriveLimits | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[tuple[Derivation, ...], bool]:
    """Return up to `count` derivations of the roots, cheapest first, and whether any were dropped."""
    limits = limits or DeriveLimits()
    search = _Search(arcs_of, pass_us, limits)
    dropped = search.run(stop)
    wholes = search.combine_roots(tuple(roots), count)
    flat = search.flat
    found = []
    for whole in wholes[:count]:
        chosen = tuple(flat[i] for i in _bits(whole.arcs))
        found.append(Derivation(search.total(whole), chosen))
    return tuple(found), dropped or len(wholes) > count


class _Search:
    """The tables of one enumeration."""

    def __init__(self, arcs_of: Sequence[Sequence[Arc]], pass_us: float, limits: DeriveLimits) -> None:
        self.limits = limits
        self.pass_us = pass_us
        self.flat: list[tuple[int, Arc]] = []
        self.choices: list[list[int]] = []
        for tensor, arcs in enumerate(arcs_of):
            self.choices.append(list(range(len(self.flat), len(self.flat) + len(arcs))))
            self.flat += [(tensor, arc) for arc in arcs]
        self.reductions = sum(1 << i for i, (_, arc) in enumerate(self.flat) if arc.is_reduction)
        self.kept: list[list[_Partial]] = [[] for _ in arcs_of]

    def run(self, stop: Callable[[], bool] | None) -> bool:
        """Fill `kept` to a fixpoint; return whether a limit dropped anything."""
        dropped = False
        order = self._order()
        changed = set(order)
        for _ in range(self.limits.rounds):
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

    def total(self, partial: _Partial) -> float:
        """Return what a partial graph costs, passes included."""
        return partial.us + self.pass_us * sum(times for _, times in partial.passes)

    def combine_roots(self, roots: tuple[int, ...], count: int) -> list[_Partial]:
        """Return the cheapest consistent unions of partial graphs of all roots."""
        wholes = [_Partial(0.0, 0, 0, ())]
        for root in dict.fromkeys(roots):
            unions = [
                union
                for whole, partial in product(wholes, self.kept[root])
                if (union := self._union(whole, partial)) is not None
            ]
            wholes = self._distinct(unions, max(count, self.limits.kept) + 1)
        return wholes

    def _order(self) -> list[int]:
        """Return the tensors, those with the cheapest derivation first (Knuth's generalisation)."""
        best: dict[int, float] = {}
        pending = set(range(len(self.choices)))
        users: dict[int, set[int]] = {}
        for tensor, arc in self.flat:
            for arg in arc.args:
                users.setdefault(arg, set()).add(tensor)
        ready = [t for t in pending if any(not self.flat[i][1].args for i in self.choices[t])]
        heap: list[tuple[float, int]] = [(0.0, t) for t in ready]
        heapify(heap)
        while heap:
            us, tensor = heappop(heap)
            if tensor in best:
                continue
            best[tensor] = us
            for user in users.get(tensor, ()):
                if user in best:
                    continue
                for i in self.choices[user]:
                    arc = self.flat[i][1]
                    if tensor in arc.args and all(arg in best for arg in arc.args):
                        heappush(heap, (arc.us + sum(best[arg] for arg in set(arc.args)), user))
        return list(best)

    def _improve(self, tensor: int) -> tuple[list[_Partial], bool]:
        """Return the best partial graphs of a tensor from those of its operands."""
        found: dict[int, _Partial] = {}
        bounds = []
        for i in self.choices[tensor]:
            arc = self.flat[i][1]
            if all(self.kept[arg] for arg in arc.args):
                least = arc.us + max((self.total(self.kept[arg][0]) for arg in arc.args), default=0.0)
                bounds.append((least, i))
        bounds.sort()
        worst = float("inf")
        lost = False
        for least, i in bounds:
            if least > worst:
                lost = True
                break
            arc = self.flat[i][1]
            for partial in self._apply(tensor, i, arc):
                skeleton = partial.arcs & self.reductions
                known = found.get(skeleton)
                if known is None or self._key(partial) < self._key(known):
                    found[skeleton] = partial
            if len(found) > self.limits.kept:
                lost = True
                best = nsmallest(self.limits.kept, found.values(), key=self._key)
                found = {partial.arcs & self.reductions: partial for partial in best}
                worst = self.total(best[-1])
        return sorted(found.values(), key=self._key), lost

    def _apply(self, tensor: int, number: int, arc: Arc) -> Iterable[_Partial]:
        """Yield the partial graphs that one arc makes from those kept for its operands."""
        bit = 1 << tensor
        lists = [self.kept[arg] for arg in dict.fromkeys(arc.args)]
        pairs = product(*(range(len(kept)) for kept in lists))
        if len(lists) > 1:
            pairs = iter(
                nsmallest(self.limits.tried, pairs, key=lambda ranks: (sum(ranks), ranks))
            )  # best with best first
        for ranks in pairs:
            union: _Partial | None = _Partial(0.0, 0, 0, ())
            for kept, rank in zip(lists, ranks, strict=True):
                union = self._union(union, kept[rank])
                if union is None:
                    break
            if union is None or union.tensors & bit:
                continue
            passes = union.passes
            if arc.reduced:
                counts = dict(passes)
                for axis in _bits(arc.reduced):
                    counts[axis] = counts.get(axis, 0) + 1
                passes = tuple(sorted(counts.items()))
            yield _Partial(union.us + arc.us, union.tensors | bit, union.arcs | 1 << number, passes)

    def _union(self, a: _Partial, b: _Partial) -> _Partial | None:
        """Return two partial graphs as one, or None where they derive a tensor differently."""
        if not a.arcs:
            return b
        shared = a.tensors & b.tensors
        tensors, arcs = a.tensors | b.tensors, a.arcs | b.arcs
        if tensors.bit_count() != arcs.bit_count():
            return None
        us = a.us + b.us
        if shared:
            us -= sum(self.flat[i][1].us for i in _bits(a.arcs & b.arcs))
        passes = a.passes
        if passes != b.passes:
            counts = dict(passes)
            for axis, times in b.passes:
                counts[axis] = max(times, counts.get(axis, 0))
            passes = tuple(sorted(counts.items()))
        return _Partial(us, tensors, arcs, passes)

    def _distinct(self, partials: Iterable[_Partial], count: int) -> list[_Partial]:
        best: dict[int, _Partial] = {}
        for partial in sorted(partials, key=self._key):
            best.setdefault(partial.arcs & self.reductions, partial)
        return list(best.values())[:count]

    def _key(self, partial: _Partial) -> tuple[float, int]:
        """Order by cost; equal costs by their arcs, so that results do not depend on chance."""
        return (round(self.total(partial), 9), partial.arcs)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
