"""Drop needless masks: a value that is 0 outside a mask is not multiplied by that mask again.

    s2 = where(m, s, -infinity)         s2 = where(m, s, -infinity)
    e = exp(s2 - c)                     e = exp(s2 - c)
    p = mul(m, e)                       o += contract[t](e, v)
    o += contract[t](p, v)

A softmax with a mask becomes such a program.
"""

from collections.abc import Container
from dataclasses import replace

from superopt.codegen.lowering.outside_masks import outside_masks
from superopt.codegen.statements import Compute, KernelProgram, LoopStatement, Move, Statement, Store
from superopt.ir import Graph, Step, value_axes

__all__ = ["drop_needless_masks"]


def drop_needless_masks(program: KernelProgram) -> KernelProgram:
    """Return the program without products of a mask and a value that is 0 outside it anyway."""
    graph = program.graph
    instead = _needless(graph, {one.value for one in program.loads})
    if not instead:
        return program

    def read(step: Step) -> Step:
        return step.reading(instead.get(i, i) for i in step.inputs)

    def kept(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for one in statements:
            if isinstance(one, LoopStatement):
                found.append(replace(one, body=kept(one.body)))
            elif isinstance(one, Compute) and one.value in instead:
                continue
            elif isinstance(one, (Compute, Move)):
                found.append(replace(one, step=read(one.step)))
            elif isinstance(one, Store):
                found.append(replace(one, value=instead.get(one.value, one.value)))
            else:
                found.append(one)
        return tuple(found)

    graph = replace(graph, steps=tuple(map(read, graph.steps)))
    return replace(program, graph=graph, statements=kept(program.statements))


def _needless(graph: Graph, loaded: Container[int]) -> dict[int, int]:
    """Return each product of a mask and a value that is 0 outside it, with the value equal to the product.

    A product that another kernel made is read as it is.
    """
    first, axes = len(graph.inputs), value_axes(graph)
    outside = outside_masks(graph, list(enumerate(graph.steps, first)))
    zero = {value: one.zero for value, one in outside.items()}
    found: dict[int, int] = {}
    for value, step in enumerate(graph.steps, first):
        if step.op == "mul" and value not in loaded:
            for mask, other in (step.inputs, step.inputs[::-1]):
                if mask != other and mask in zero.get(other, ()) and axes[other] == axes[value]:
                    found[value] = found.get(other, other)
    return found
