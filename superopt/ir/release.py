"""Release: take away the shifts that a program chose for its exponentials where any would do.

m = max[n](s);  e = exp(s - m)      e = exp(s)
z = sum[n](e)                       z = sum[n](e)
o = div(e, z)                       o = div(e, z)
"""

from dataclasses import replace
from fractions import Fraction

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.graph import Graph, Step, live_graph, value_axes
from superopt.ir.shift import Shift, free_shifts

__all__ = ["release_shifts"]


def release_shifts(graph: Graph) -> Graph:
    """Return the graph without shifts that its author chose where any would do: exp(x - m) is exp(x).

    The search then sees the freedom, and `stabilize` chooses again.
    """
    while True:
        released = _release(graph)
        if released is None:
            return graph
        graph = released


def _release(graph: Graph) -> Graph | None:
    """Return the graph with the shifts of one group of exponentials taken away, or None."""
    axes = value_axes(graph)
    for shift in free_shifts(graph):
        taken = [_difference(graph, exp) for exp in shift.exps]
        amounts = {pair[1] if pair else None for pair in taken}
        amount = next(iter(amounts))
        if amount is None or len(amounts) > 1 or shift.units or axes[amount] & shift.reduced:
            continue
        # The maximum that `stabilize` chooses has the axes of all that the exponentials are taken of.
        own = [axes[pair[0]] for pair in taken if pair and pair[0] is not None]
        if all(frozenset[str]().union(*own) - shift.reduced <= axes[exp] for exp in shift.exps):
            released = _checked(live_graph(_without(graph, shift, amount)))
            if released is not None:
                return released
    return None


def _checked(graph: Graph) -> Graph | None:
    """Return a graph if it keeps the rules: a value may lack axes of its shift now, which others sum over."""
    try:
        return check_graph(graph)
    except GraphError:
        return None


def _difference(graph: Graph, exp: int) -> tuple[int | None, int] | None:
    """Return x and m where an exponential is of x - m; x is None where it is of -m."""
    step = graph.step_of(exp)
    inner = graph.step_of(step.inputs[0]) if step else None
    if inner is not None and inner.op == "neg":
        return None, inner.inputs[0]
    if inner is None or inner.op not in ("sub", "add"):
        return None
    x, m = inner.inputs
    if inner.op == "sub":
        return x, m
    negated = graph.step_of(m)
    return (x, negated.inputs[0]) if negated is not None and negated.op == "neg" else None


def _without(graph: Graph, shift: Shift, amount: int) -> Graph:
    """Return the graph with exp(x) for exp(x - amount), and logarithms put right."""
    first = len(graph.inputs)
    at = list(range(first))
    steps: list[Step] = []

    def emit(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    def lowered(value: int) -> int | None:
        """Return v where a new value is v - amount."""
        made = steps[value - first] if value >= first and amount < len(at) else None
        return made.inputs[0] if made and made.op == "sub" and made.inputs[1] == at[amount] else None

    for value, step in enumerate(graph.steps, first):
        inputs = tuple(at[i] for i in step.inputs)
        if value in shift.exps:
            pair = _difference(graph, value)
            assert pair is not None
            x = pair[0]
            at.append(emit(Step("const", value=Fraction(1)) if x is None else Step("exp", (at[x],))))
            continue
        bare = [lowered(i) for i in inputs]
        if step.op == "add" and amount in step.inputs and any(one is not None for one in bare):
            kept = next(one for one in bare if one is not None)
            at.append(kept)
            continue
        if step.op == "sub" and bare[0] is not None and bare[1] is not None:
            inputs = (bare[0], bare[1])
        made = emit(step.reading(inputs))
        degree = shift.degrees.get(step.inputs[0]) if step.op == "log" else None
        if degree:
            added = at[amount]
            if degree != 1:
                added = emit(Step("mul", (added, emit(Step("const", value=degree)))))
            made = emit(Step("sub", (made, added)))
        at.append(made)
    outputs = tuple(replace(one, value=at[one.value]) for one in graph.outputs)
    return replace(graph, steps=tuple(steps), outputs=outputs)
