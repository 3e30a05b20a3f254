"""Factored: a graph without the gradient of a loss, which enters it and only multiplies some results."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from superopt.ir import Graph, Step, check_graph, only_used

__all__ = ["factored"]

_LINEAR = frozenset({"neg", "sum", "rename", "select", "window"})


def factored(graph: Graph, name: str) -> tuple[Graph, frozenset[str]] | None:
    """Return a graph with 1 in place of a number that enters, and the results that it is then to multiply.

    None where a result is no multiple of it, as each step from the number on shows.
    """
    [place] = [at for at, port in enumerate(graph.inputs) if port.name == name]
    if graph.inputs[place].dims:
        return None
    scaled = [at == place for at in range(len(graph.inputs))]
    for step in graph.steps:
        found = _scaled(step, [scaled[one] for one in step.inputs])
        if found is None:
            return None
        scaled.append(found)
    names = frozenset(one.port.name for one in graph.outputs if scaled[one.value])
    return check_graph(only_used(_with_one(graph, place))), names


def _scaled(step: Step, operands: Sequence[bool]) -> bool | None:
    """Return whether a step's value is multiplied where operands are, or None where it is no multiple."""
    if not any(operands):
        return False
    match step.op:
        case "mul" | "contract":
            return None if all(operands) else True
        case "add" | "sub":
            return True if all(operands) else None
        case "div":
            return True if operands[0] and not operands[1] else None
        case "guard":
            return True if operands[1] and not operands[0] else None
        case op if op in _LINEAR:
            return True
    return None


def _with_one(graph: Graph, place: int) -> Graph:
    """Return a graph that computes with 1 instead of an input."""
    first = len(graph.inputs)

    def moved(value: int) -> int:
        return first if value == place else value + 1 if value >= first else value

    steps = (Step("const", value=Fraction(1)), *(one.reading(map(moved, one.inputs)) for one in graph.steps))
    return replace(
        graph, steps=steps, outputs=tuple(replace(one, value=moved(one.value)) for one in graph.outputs)
    )
