"""Convert exp to exp2: the multiplication by log2(e) joins another multiplication within the exponent.

The hardware has only 2^x; exp(x) is 2^(x * log2(e)), one multiplication for each element of the scores.
Where x is a number times a value, the number is applied only in the exponent, together with log2(e):

    t3 = mul(q, 0.125)
    s = contract[d](t3, k)          s = contract[d](q, k)
    m = max[t](s)                   m = 0.180336... * max[t](s)
    e = exp(s - m)                  e = exp2(0.180336... * s - m)

The multiplication and the difference are one instruction, and q goes into the product as it lies in memory.
Values before the differences are then divided by the number. That is not done to a value that passes from one
kernel to another in half precision, whose range was chosen for the value, nor for a number so small or large
that values might leave the range of fp32. Values after the differences are multiplied by log2(e), also maxima
that pass from one kernel to the next: the muGraph decides this, so all kernels see the same values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import e, log2

from superopt.codegen.statements import Compute, Factors, KernelProgram, LoopStatement, Move, Statement
from superopt.dtypes import HALVES
from superopt.ir import Graph, Step, tensorless_values
from superopt.ir.stabilize import LOWEST

__all__ = ["convert_exp_to_exp2"]

_FACTOR = log2(e)
_FAR = 2**24  # a value divided by a number between 1 / _FAR and _FAR stays within fp32
# Operators that multiply a divided operand by the number again.
_DIFFERENCES = frozenset({"add", "sub", "maximum", "exp"})


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A number that is applied only in the exponents, and the values on the way there."""

    number: int
    positive: bool
    products: frozenset[int]  # the products of the number with something else
    divided: frozenset[int]  # values that are divided by its size, before any difference
    longer: frozenset[int]  # differences and values made of them, all multiplied by log2(e)
    factor: Fraction  # the factor of the values that differences read


def convert_exp_to_exp2(program: KernelProgram) -> KernelProgram:
    """Return the program with powers of two where they cost less than exponentials."""
    waiting = _waiting(program.graph, program.crossing)
    if not waiting:
        return program
    first = len(program.graph.inputs)
    steps = _rewritten(program.graph, waiting)
    gone = frozenset().union(*(one.products for one in waiting if one.positive))
    divided = {value: one.factor for one in waiting for value in one.divided}
    longer = frozenset().union(*(one.longer for one in waiting))

    def factors(value: int) -> Factors:
        step, before = steps[value - first], program.graph.step_at(value)
        if before.op not in _DIFFERENCES:
            return ()
        pairs = zip(before.inputs, step.inputs, strict=True)
        return tuple(dict.fromkeys((i, divided[was]) for was, i in pairs if was in divided))

    def taken(statement: Statement) -> Statement | None:
        if isinstance(statement, LoopStatement):
            return replace(statement, body=_kept(map(taken, statement.body)))
        if isinstance(statement, Compute):
            value = statement.value
            rewritten = replace(statement, step=steps[value - first], factors=factors(value))
            return None if value in gone else rewritten
        if isinstance(statement, Move):
            value, factor = statement.value, divided.get(statement.value, Fraction(1))
            return replace(
                statement,
                step=steps[value - first],
                factors=factors(value),
                base_two=value in longer or value in divided,
                rescales=tuple((i, degree * factor) for i, degree in statement.rescales),
            )
        return statement

    graph = replace(program.graph, steps=steps)
    return replace(program, graph=graph, statements=_kept(map(taken, program.statements)))


def _kept(statements: Iterable[Statement | None]) -> tuple[Statement, ...]:
    return tuple(one for one in statements if one is not None)


def _rewritten(graph: Graph, waiting: Iterable[_Waiting]) -> tuple[Step, ...]:
    """Return the steps with powers of two, and without the numbers that wait, or only with their signs."""
    first = len(graph.inputs)
    steps = list(graph.steps)
    for one in waiting:
        if one.positive:
            factors = {i: _factor_of(graph, i, one.number) for i in one.products}
            steps = [step.reading(factors.get(i, i) for i in step.inputs) for step in steps]
        else:
            steps[one.number - first] = replace(steps[one.number - first], value=Fraction(-1))
        for value, step in enumerate(steps, first):
            if step.op == "exp" and graph.step_at(value).inputs[0] in one.divided | one.longer:
                steps[value - first] = replace(step, op="exp2")
    return tuple(steps)


def _factor_of(graph: Graph, product: int, number: int) -> int:
    """Return what a number multiplies in a product."""
    step = graph.step_at(product)
    return next(i for i in step.inputs if i != number)


@cache
def _waiting(graph: Graph, crossing: frozenset[tuple[int, str]]) -> tuple[_Waiting, ...]:
    """Return the numbers that can wait until exponents; no two of them share a value."""
    shared = dict(crossing)
    halves = {value for value, dtype in crossing if dtype in HALVES}
    found: list[_Waiting] = []
    every: set[int] = set()
    for number, step in graph.numbered:
        one = _scaled_by(graph, number) if step.op == "const" and step.value else None
        if one is None or every & (one.divided | one.longer):
            continue
        if one.divided & halves or one.products & shared.keys():
            continue
        every |= one.divided | one.longer
        found.append(one)
    return tuple(found)


def _scaled_by(graph: Graph, number: int) -> _Waiting | None:
    """Return how a number waits, if all values that it scales end in exponentials; None otherwise."""
    first = len(graph.inputs)
    tensorless = tensorless_values(graph)
    products: set[int] = set()
    divided: set[int] = set()
    longer: set[int] = set()
    exponentials = 0
    for value, step in enumerate(graph.steps, first):
        scaled = divided | longer
        if number in step.inputs:
            others = [i for i in step.inputs if i != number]
            if step.op != "mul" or len(others) != 1 or tensorless[others[0]] or others[0] in scaled:
                return None
            products.add(value)
            divided.add(value)
        elif scaled.intersection(step.inputs):
            if step.op == "exp":
                exponentials += 1
            elif not _stays_scaled(graph, step, scaled):
                return None
            elif step.op in _DIFFERENCES or longer.intersection(step.inputs):
                longer.add(value)
            else:
                divided.add(value)
            if step.op not in _DIFFERENCES and len({i in longer for i in step.inputs if i in scaled}) > 1:
                return None  # its branches would be scaled differently
    left = any(output.value in divided | longer for output in graph.outputs)
    size = graph.constant(number)
    if left or not exponentials or size is None or not 1 / _FAR <= abs(size) <= _FAR:
        return None
    factor = Fraction(abs(float(size)) * _FACTOR)
    return _Waiting(number, size > 0, frozenset(products), frozenset(divided), frozenset(longer), factor)


def _stays_scaled(graph: Graph, step: Step, scaled: Iterable[int]) -> bool:
    """Return whether a step of scaled operands, and of others, makes a value scaled by the same factor."""
    inside = [i in scaled for i in step.inputs]
    match step.op:
        case "add" | "sub":
            return all(inside)
        case "mul" | "contract":
            return sum(inside) == 1
        case "where":
            branches = zip(step.inputs[1:], inside[1:], strict=True)
            return not inside[0] and all(known or _is_endless(graph, i) for i, known in branches)
        case "maximum":
            pairs = zip(step.inputs, inside, strict=True)
            # The floor of maxima is low enough without being scaled.
            return all(known or graph.constant(i) in (0, LOWEST) for i, known in pairs)
        case op:
            return op in ("sum", "max", "neg", "rename", "select")


def _is_endless(graph: Graph, value: int) -> bool:
    """Return whether a value is an infinity, or zero."""
    step = graph.step_of(value)
    if step is not None and step.op == "neg":
        step = graph.step_of(step.inputs[0])
    return step is not None and (step.op == "infinity" or step.value == 0)
