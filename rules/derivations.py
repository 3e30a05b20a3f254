"""Derivations: rules of the windows of one goal, which take a window apart into others along new axes.

    dilated    window[h = i + 2*r - 2](x) = window[(p q) = i](window[k = p + r - 1](window[h = 2*k + q](x)))
    taps apart  sum[r](t)                   =  sum[n](sum[m](window[r = 3*n + m](t)))
    widened     window[h = i + r - 1](x)    =  window[j = i](window[h = j + r - 1](x)), where j is longer

With the axioms of windows the first turns a dilated convolution into a dense one over several images; the
second one of 5 taps into shifted ones of 3, and one with a stride into one without, of more channels.

Each rule is an instance of a law that the numbers of its places must obey, and is kept only where the tables
of what both sides read, worked out in full, are the same at every position. Whatever is proposed here may
be wrong: it is left out then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from superopt.ir import Axis, Graph
from superopt.ir.split import fresh_name
from superopt.ir.windows.place import Place
from superopt.ir.windows.tables import reads_the_same
from superopt.rules.terms import WindowRule

__all__ = ["Refinement", "holds", "refinements"]

_WIDE = 8  # positions that an axis is made longer to a multiple of
_PARTS = (2, 3)  # taps that stay together where a kernel is taken apart
_FEWEST = 5  # taps of a kernel that is taken apart without need


@dataclass(frozen=True, slots=True)
class Refinement:
    """New axes of a graph, and what holds of windows along them."""

    name: str
    window: str  # the axis that the window reads, which is taken apart
    axes: tuple[Axis, ...]
    rules: tuple[WindowRule, ...]

    def of(self, graph: Graph) -> Graph:
        """Return the graph with the new axes, which nothing uses yet."""
        return replace(graph, axes=(*graph.axes, *self.axes))


def refinements(graph: Graph) -> Iterator[Refinement]:
    """Yield what may be tried for each window of a graph; all rules hold."""
    summed = {axis for step in graph.steps for axis in step.axes if step.op in ("sum", "contract")}
    places = dict.fromkeys(place for step in graph.steps for place in step.places)
    for place in places:
        for one in _proposed(graph, place, summed):
            sizes = one.of(graph).sizes
            if all(holds(rule, sizes) for rule in one.rules):
                yield one


def holds(rule: WindowRule, sizes: Mapping[str, int]) -> bool:
    """Return whether both sides of a rule read the same everywhere, or wherever its factor is not 0."""
    if rule.summed:
        return _is_one_to_one(rule.right[0], sizes)
    read = [axis for chain in (rule.left, rule.right) for place in chain for axis in place.axes]
    chains = (rule.left, rule.right)
    axes = dict.fromkeys(axis for chain in chains for place in chain for axis, _ in place.terms)
    axes |= dict.fromkeys(axis for axis, _ in rule.beside.terms) if rule.beside else {}
    own = tuple(axis for axis in axes if axis not in read)
    ends = {chain[-1].axes for chain in chains}
    return len(ends) == 1 and reads_the_same(chains, own, sizes, where=rule.beside)


def _is_one_to_one(place: Place, sizes: Mapping[str, int]) -> bool:
    """Return whether a window reads each position once, and else only the outside."""
    from superopt.ir.windows.tables import reads_of

    found = reads_of(place, [axis for axis, _ in place.terms], sizes)
    inside = [] if found is None else sorted(one for one in found.flatten().tolist() if one >= 0)
    return found is not None and inside == list(range(prod(sizes[axis] for axis in place.axes)))


def _proposed(graph: Graph, place: Place, summed: set[str]) -> Iterator[Refinement]:
    """Yield what may hold of one window, which has an axis that stays and taps that are summed."""
    kept = [term for term in place.terms if term[0] not in summed]
    taps = [term for term in place.terms if term[0] in summed]
    if len(place.axes) != 1 or len(kept) != 1 or len(taps) != 1:
        return
    [(axis, stride)], [(tap, dilation)] = kept, taps
    names = set(graph.sizes)
    if stride == 1 and dilation > 1:
        yield _dilated(graph, place, axis, tap, dilation, names)
    count = graph.sizes[tap]
    together = [dilation * part for part in ([stride] if stride > 1 else [])]
    together += list(_PARTS) if stride == 1 and count >= _FEWEST else []
    for part in together:
        if 1 < part < count:
            yield _apart(graph, place, axis, stride, tap, dilation, part, names)
    if stride == 1 and graph.sizes[axis] % _WIDE == _WIDE - 1:
        yield _widened(graph, place, axis, names)


def _dilated(graph: Graph, place: Place, axis: str, tap: str, by: int, names: set[str]) -> Refinement:
    """Return a dilated window as a dense one of each of several parts of the axis."""
    [read] = place.axes
    outer, inner, dense = (
        fresh_name(f"{one}_{what}", names) for one, what in ((axis, "part"), (axis, "phase"), (read, "part"))
    )
    phase = place.offset % by
    before = (place.offset - phase) // by
    # What is read begins one part earlier where a part begins within the padding.
    early = 1 if phase else 0
    size = -(-(graph.sizes[read] - phase + by * early) // by)
    axes = (Axis(outer, -(-graph.sizes[axis] // by)), Axis(inner, by), Axis(dense, size))
    back = Place((outer, inner), ((axis, 1),))
    slid = Place((dense,), ((outer, 1), (tap, 1)), before + early)
    parts = Place((read,), ((dense, by), (inner, 1)), phase - by * early)
    return Refinement("dilated", read, axes, (WindowRule("dilated-is-dense", (place,), (back, slid, parts)),))


def _apart(
    graph: Graph, place: Place, axis: str, stride: int, tap: str, dilation: int, part: int, names: set[str]
) -> Refinement:
    """Return a window whose taps are taken apart: which part of the kernel, and which tap of the part."""
    [read] = place.axes
    which, within, moved = (
        fresh_name(f"{one}_{what}", names) for one, what in ((tap, "part"), (tap, "phase"), (read, "moved"))
    )
    step = gcd(stride, dilation * part)
    count = -(-graph.sizes[tap] // part)
    kernel = Place((tap,), ((which, part), (within, 1)))
    slid = Place((moved,), ((axis, stride // step), (which, dilation * part // step)))
    parts = Place((read,), ((moved, step), (within, dilation)), place.offset)
    last = stride // step * (graph.sizes[axis] - 1) + dilation * part // step * (count - 1)
    axes = (Axis(which, count), Axis(within, part), Axis(moved, last + 1))
    rules = (
        WindowRule("sum-in-parts", (), (kernel,), summed=tap),
        WindowRule("taps-apart", (kernel, place), (slid, parts), beside=kernel),
    )
    return Refinement(f"taps by {part}", read, axes, rules)


def _widened(graph: Graph, place: Place, axis: str, names: set[str]) -> Refinement:
    """Return a window of which more is computed than is kept, so that its length divides well."""
    wide = fresh_name(f"{axis}_wide", names)
    size = -(-graph.sizes[axis] // _WIDE) * _WIDE
    terms = tuple((wide if one == axis else one, factor) for one, factor in place.terms)
    rule = WindowRule("domain-widened", (place,), (Place((wide,), ((axis, 1),)), replace(place, terms=terms)))
    return Refinement("widened", place.axes[0], (Axis(wide, size),), (rule,))
