"""Classes: which values of two graphs are the same numbers, as far as a few trials show.

Only an accident of (degree / p)^trials makes different values of arithmetic and roots agree; the bound
relies on it for no others, to see that exponentials and denominators are the same.
"""

from collections.abc import Mapping, Sequence

from superopt.ir import Graph, value_axes
from superopt.verify.evaluation.draws import Roots
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.field.arithmetic import Field

__all__ = ["TRIALS", "draws_for", "value_classes"]

TRIALS = 6
_DRAWS = 512


def draws_for(roots: Roots) -> int:
    """Return how many trials to draw so that in enough of them all roots are of squares."""
    return _DRAWS if roots.stages else TRIALS


def value_classes(
    graphs: Sequence[Graph], drawn: Field, roots: Roots, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a number for each value of both graphs, the same where they agree; None if no trial is good."""
    good = roots.good(drawn)[:TRIALS]
    if good.size < TRIALS:
        return None
    field = drawn.take(good)
    known: dict[object, int] = {}
    numbers = []
    for graph in graphs:
        order = [axis.name for axis in graph.axes]
        own = []
        for value, axes in zip(interpret(graph, field, sizes), value_axes(graph), strict=True):
            named = tuple(sorted(axes))
            dims = [2 + order.index(axis) for axis in named]
            rest = [dim for dim in range(2, value.ndim) if dim not in dims]
            content = value.transpose(0, 1, *dims, *rest).tobytes()
            own.append(known.setdefault((named, content), len(known)))
        numbers.append(tuple(own))
    return numbers[0], numbers[1]
