"""Convert exp to exp2: a scaling that is there anyway takes the factor log2(e).

The hardware has only 2^x; exp(x) is 2^(x * log2(e)), one multiplication for each element of the scores.
Where x is a number times something, the number takes the factor instead, once for each element of q:

    t3 = mul(q, 0.125)              t3 = mul(q, 0.180336...)
    s = contract[d](t3, k)          s = contract[d](t3, k)
    e = exp(s - max[t](s))          e = exp2(s - max[t](s))

Not where that costs a rounding: a power of two times a tensor of half precision is exact, and goes into a
matrix product as it is. Everything between the number and the exponentials is then longer by that factor,
maxima that one kernel leaves for the next included: all kernels of a graph see the same values so, for it
follows from the graph.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import e, frexp, log2

from superopt.codegen.statements import Compute, KernelProgram, LoopStatement, Move, Statement
from superopt.dtypes import HALVES
from superopt.ir import Graph, Step, closed_values

__all__ = ["convert_exp_to_exp2"]

_FACTOR = log2(e)
_ANY_SHIFT = Fraction(-(2**100))  # the floor of maxima: no less a floor when it is not scaled


def convert_exp_to_exp2(program: KernelProgram) -> KernelProgram:
    """Return the program with powers of two where they cost less than exponentials."""
    steps, scaled = _rewritten(program.graph)
    if not scaled:
        return program
    first = len(program.graph.inputs)

    def taken(statement: Statement) -> Statement:
        if isinstance(statement, LoopStatement):
            return replace(statement, body=tuple(map(taken, statement.body)))
        if isinstance(statement, Compute):
            return replace(statement, step=steps[statement.value - first])
        if isinstance(statement, Move):
            return replace(statement, step=steps[statement.value - first], base_two=statement.value in scaled)
        return statement

    graph = replace(program.graph, steps=steps)
    return replace(program, graph=graph, statements=tuple(map(taken, program.statements)))


@cache
def _rewritten(graph: Graph) -> tuple[tuple[Step, ...], frozenset[int]]:
    """Return the steps with scaled numbers and powers of two, and the values that are scaled."""
    first = len(graph.inputs)
    steps = list(graph.steps)
    every: set[int] = set()
    for number, step in enumerate(graph.steps, first):
        scaled = _scaled_by(graph, number) if step.op == "const" and step.value else None
        if scaled is None or scaled & every:
            continue
        every |= scaled
        assert step.value is not None
        steps[number - first] = replace(step, value=Fraction(float(step.value) * _FACTOR))
        for value, other in enumerate(graph.steps, first):
            if other.op == "exp" and other.inputs[0] in scaled:
                steps[value - first] = replace(other, op="exp2")
    return tuple(steps), frozenset(every)


def _scaled_by(graph: Graph, number: int) -> frozenset[int] | None:
    """Return what becomes longer with a number, if it all ends in exponentials; None where it does not."""
    first = len(graph.inputs)
    closed = closed_values(graph)
    scaled: set[int] = set()
    exponentials = 0
    for value, step in enumerate(graph.steps, first):
        if number in step.inputs:
            others = [i for i in step.inputs if i != number]
            if step.op != "mul" or len(others) != 1 or closed[others[0]] or others[0] in scaled:
                return None
            if _is_exact(graph, number, others[0]):
                return None
            scaled.add(value)
        elif scaled.intersection(step.inputs):
            if step.op == "exp":
                exponentials += 1
            elif _stays_scaled(graph, step, scaled):
                scaled.add(value)
            else:
                return None
    left = any(output.value in scaled for output in graph.outputs)
    return frozenset(scaled) if exponentials and not left else None


def _is_exact(graph: Graph, number: int, tensor: int) -> bool:
    """Return whether a number times a tensor is of half precision, as the tensor is."""
    value = _number(graph, number)
    half = tensor < len(graph.inputs) and graph.inputs[tensor].dtype in HALVES
    return half and value is not None and abs(frexp(value)[0]) == 0.5


def _stays_scaled(graph: Graph, step: Step, scaled: Iterable[int]) -> bool:
    """Return whether a step makes something longer by the factor from what is, and the rest."""
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
            return all(known or _number(graph, i) in (0, _ANY_SHIFT) for i, known in pairs)
        case op:
            return op in ("sum", "max", "neg", "rename", "select")


def _number(graph: Graph, value: int) -> Fraction | None:
    step = graph.step_of(value)
    return step.value if step is not None and step.op == "const" else None


def _is_endless(graph: Graph, value: int) -> bool:
    """Return whether a value is an infinity, or zero."""
    step = graph.step_of(value)
    if step is not None and step.op == "neg":
        step = graph.step_of(step.inputs[0])
    return step is not None and (step.op == "infinity" or (step.op == "const" and step.value == 0))
