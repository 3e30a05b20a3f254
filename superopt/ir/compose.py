"""Compose: recognise in a graph of primitives the operators that people write.

    reciprocal(add(1, exp(neg(x))))   becomes   sigmoid(x)

Nothing is listed here: the pattern of each operator is its own definition in `OPS`, carried out
on pattern variables.

Of numbers `x >= y` and `not x < y` are the same, 1 - (x < y). Where x is NaN only the second one holds, so
the program decides which of them is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from superopt.ir.cut import tensorless_values
from superopt.ir.graph import COMMUTATIVE, Graph, Step, live_graph
from superopt.ops import OPS

__all__ = ["compose", "contract_products"]

_NEGATED = ("<=", ">=")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A term of graph operators; a variable has no operator, only its number in `index`."""

    op: str
    args: tuple["_Pattern", ...] = ()
    value: Fraction | None = None
    index: int = -1

    @property
    def weight(self) -> int:
        return 1 + sum(arg.weight for arg in self.args) if self.op else 0


class _Patterns:
    """The arithmetic of patterns: primitives as the graph operators that stand for them."""

    def const(self, value: Fraction) -> _Pattern:
        return _Pattern("const", value=value)

    def infinity(self) -> _Pattern:
        return _Pattern("infinity")

    def add(self, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("add", (a, b))

    def mul(self, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("mul", (a, b))

    def neg(self, a: _Pattern) -> _Pattern:
        return _Pattern("neg", (a,))

    def inv(self, a: _Pattern) -> _Pattern:
        return _Pattern("reciprocal", (a,))

    def exp(self, a: _Pattern) -> _Pattern:
        return _Pattern("exp", (a,))

    def sqrt(self, a: _Pattern) -> _Pattern:
        return _Pattern("sqrt", (a,))

    def maximum(self, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("maximum", (a, b))

    def less(self, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("lt", (a, b))

    def equal(self, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("eq", (a, b))

    def where(self, mask: _Pattern, a: _Pattern, b: _Pattern) -> _Pattern:
        return _Pattern("where", (mask, a, b))

    def function(self, name: str, *args: _Pattern) -> _Pattern:
        return _Pattern(name, args)


@cache
def _rules() -> tuple[tuple[str, int, _Pattern], ...]:
    """Return (operator, arity, pattern) of every composite operator, the largest patterns first."""
    rules = []
    for op in OPS.values():
        pattern = op.scalar(_Patterns(), *(_Pattern("", index=i) for i in range(op.arity)))
        arithmetic_mask = op.mask and op.name in ("and", "or", "not")  # 1 - x is not always a mask
        if pattern.op != op.name and pattern.weight > 1 and not arithmetic_mask:
            rules.append((op.name, op.arity, pattern))
    return tuple(sorted(rules, key=lambda rule: -rule[2].weight))


def compose(graph: Graph, like: Graph | None = None) -> Graph:
    """Return the graph with every recognised group of primitives as one step.

    `like` is the program that the graph was made of.
    """
    negates = like is not None and _negates(like)
    for name, arity, pattern in _rules():
        while True:
            steps = list(graph.steps)
            changed = False
            for position, step in enumerate(steps):
                if step.op != pattern.op or (step.op == name and pattern.weight == 1):
                    continue
                value = len(graph.inputs) + position
                bound = next(_match(graph, pattern, value, {}), None)
                if bound is not None and len(bound) == arity:
                    less = _negated(graph, step) if negates and OPS[name].sign in _NEGATED else None
                    found = Step(name, tuple(bound[i] for i in range(arity)))
                    steps[position] = found if less is None else Step("not", (less,))
                    changed = True
            if not changed:
                break
            graph = live_graph(replace(graph, steps=tuple(steps)))
    return graph


def _negates(graph: Graph) -> bool:
    """Return whether a program negates orders of numbers that it reads, and has none of the opposite kind."""
    tensorless, made = tensorless_values(graph), set[str]()
    for value, step in graph.numbered:
        inner = graph.step_of(step.inputs[0]) if step.op == "not" else None
        if not tensorless[value]:
            made.add("not" if inner is not None and inner.op in ("lt", "gt") else step.op)
    return "not" in made and not made & {"le", "ge"}


def _negated(graph: Graph, step: Step) -> int | None:
    """Return x < y of a step 1 - (x < y), where it reads a tensor."""
    [less] = [
        inner.inputs[0] for i in step.inputs if (inner := graph.step_of(i)) is not None and inner.op == "neg"
    ]
    return None if tensorless_values(graph)[less] else less


def contract_products(graph: Graph) -> Graph:
    """Return the graph with sums of products that nothing else uses as contractions.

    sum[k](mul(a, b))   becomes   contract[k](a, b)
    """
    uses: dict[int, int] = {}
    for step in graph.steps:
        for i in step.inputs:
            uses[i] = uses.get(i, 0) + 1
    for output in graph.outputs:
        uses[output.value] = uses.get(output.value, 0) + 1
    steps = list(graph.steps)
    for position, step in enumerate(steps):
        if step.op != "sum":
            continue
        body = graph.step_of(step.inputs[0])
        if body is not None and body.op in ("mul", "square") and uses[step.inputs[0]] == 1:
            factors = body.inputs if body.op == "mul" else body.inputs * 2
            steps[position] = Step("contract", factors, axes=step.axes)
    return live_graph(replace(graph, steps=tuple(steps)))


def _match(graph: Graph, pattern: _Pattern, value: int, bound: dict[int, int]) -> Iterator[dict[int, int]]:
    """Yield every binding of the pattern's variables under which it is the value."""
    if not pattern.op:
        if bound.get(pattern.index, value) == value:
            yield {**bound, pattern.index: value}
        return
    step = graph.step_of(value)
    if step is None or step.op != pattern.op or step.value != pattern.value:
        return
    orders = [step.inputs]
    if step.op in COMMUTATIVE and step.inputs[0] != step.inputs[1]:
        orders.append(step.inputs[::-1])
    for inputs in orders:
        yield from _match_all(graph, pattern.args, inputs, bound)


def _match_all(
    graph: Graph, patterns: tuple[_Pattern, ...], values: tuple[int, ...], bound: dict[int, int]
) -> Iterator[dict[int, int]]:
    if not patterns:
        yield bound
        return
    for found in _match(graph, patterns[0], values[0], bound):
        yield from _match_all(graph, patterns[1:], values[1:], found)
