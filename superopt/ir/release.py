"""Release: take away the shifts that a program chose for its exponentials where any would do.

m = max[n](s);  e = exp(s - m)      e = exp(s)
z = sum[n](e)                       z = sum[n](e)
o = div(e, z)                       o = div(e, z)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.graph import REDUCTIONS, Graph, Step, live_graph, made_from, value_axes
from superopt.ir.masks import selects
from superopt.ir.shift import Shift, free_shifts

__all__ = ["release_shifts"]

Signs = Callable[[Graph], Sequence[bool]]
"""Says for each value of a graph whether it is surely not negative."""

_OF_POSITIVES = frozenset({"sqrt", "rsqrt", "log", "log2", "log1p", "pow"})
_HIDING = frozenset({"where", "guard", "select", "window"})  # they may read none of the numbers of an operand


def release_shifts(graph: Graph, nonnegative: Signs | None = None) -> Graph:
    """Return the graph without shifts that its author chose where any would do: exp(x - m) is exp(x).

    The search then sees the freedom, and `stabilize` chooses again. For a proof, `nonnegative` is given: then
    a shift stays that may be no number where the rest is one, as the logarithm of a negative number is none.
    """
    while True:
        released = _release(graph, nonnegative)
        if released is None:
            return graph
        graph = released


def _release(graph: Graph, nonnegative: Signs | None) -> Graph | None:
    """Return the graph with the shifts of one group of exponentials taken away, or None."""
    axes = value_axes(graph)
    for shift in free_shifts(graph):
        taken = [_difference(graph, exp) for exp in shift.exps]
        amounts = {pair[1] if pair else None for pair in taken}
        amount = next(iter(amounts))
        if amount is None or len(amounts) > 1 or shift.units or axes[amount] & shift.reduced:
            continue
        if nonnegative is not None and not _is_number(graph, shift, amount, nonnegative(graph)):
            continue
        # The maximum that `stabilize` chooses has the axes of all that the exponentials are taken of.
        own = [axes[pair[0]] for pair in taken if pair and pair[0] is not None]
        if all(frozenset[str]().union(*own) - shift.reduced <= axes[exp] for exp in shift.exps):
            released = _checked(live_graph(_without(graph, shift, amount)))
            if released is not None:
                return released
    return None


def _is_number(graph: Graph, shift: Shift, amount: int, nonnegative: Sequence[bool]) -> bool:
    """Whether a shift is a number wherever what is left without it is one, but for accidents such as 0 / 0.

    So are the maxima of what the exponentials are taken of, unless a mask hides some of the exponentials.
    """
    pairs = [_difference(graph, exp) for exp in shift.exps]
    taken = {pair[0] for pair in pairs if pair and pair[0] is not None}
    steps = _steps_to(graph, amount, () if _are_hidden(graph, shift) else taken)
    if any(step.op in REDUCTIONS and not shift.reduced.issuperset(step.axes) for step in steps):
        steps = _steps_to(graph, amount, ())
    return not any(
        step.op == "infinity" or (step.op in _OF_POSITIVES and not nonnegative[step.inputs[0]])
        for step in steps
    )


def _are_hidden(graph: Graph, shift: Shift) -> bool:
    """Whether what reads some exponentials may leave out numbers of them."""
    readers = [step for step in graph.steps if set(shift.exps) & {*step.inputs}]
    return any(step.op in _HIDING or selects(graph, step) for step in readers)


def _steps_to(graph: Graph, value: int, known: Iterable[int]) -> list[Step]:
    """Return the steps that make a value, but for known ones, and minus infinity, the least number of all."""
    known = {*known}

    def operands(one: int) -> tuple[int, ...]:
        step = None if one in known else graph.step_of(one)
        if step is None or (step.op == "neg" and graph.step_of(step.inputs[0]) == Step("infinity")):
            return ()
        return step.inputs

    made = [graph.step_of(one) for one in made_from([value], operands) if one not in known]
    return [step for step in made if step is not None]


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
