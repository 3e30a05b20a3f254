"""Convert sqrt to rsqrt: what is divided by a root is multiplied by the root's reciprocal.

    r = sqrt(v)                     r = rsqrt(v)
    y = div(x, r)                   y = mul(x, r)

A division takes some ten instructions for each element of x. A GPU has an instruction for the reciprocal of a
root; on a processor it takes a division for each element of r, so r must have fewer axes. The reciprocal of a
root is a normal number or infinite, as roots of fp32 lie between 2^-75 and 2^64 or are 0, so the product is
what the quotient is. The reciprocal of another divisor may be lost where the quotient is not. A mask is not
multiplied but selects, so a quotient of one stays: 0 / 0 is no number.
"""

from dataclasses import replace
from functools import cache

from superopt.codegen.statements import Compute, KernelProgram, LoopStatement, Move, Statement
from superopt.ir import Graph, Step, mask_values, value_axes

__all__ = ["convert_sqrt_to_rsqrt"]


def convert_sqrt_to_rsqrt(program: KernelProgram, *, shared: bool = False) -> KernelProgram:
    """Return the program with products in place of divisions by roots, or only by those with fewer axes.

    The muGraph decides which, so that all kernels see the same values.
    """
    crossing = frozenset(value for value, _ in program.crossing)
    steps = _rewritten(program.graph, crossing, shared)
    if steps == program.graph.steps:
        return program
    first = len(program.graph.inputs)

    def converted(statement: Statement) -> Statement:
        if isinstance(statement, LoopStatement):
            return replace(statement, body=tuple(map(converted, statement.body)))
        if isinstance(statement, (Compute, Move)):
            return replace(statement, step=steps[statement.value - first])
        return statement

    graph = replace(program.graph, steps=steps)
    return replace(program, graph=graph, statements=tuple(map(converted, program.statements)))


@cache
def _rewritten(graph: Graph, crossing: frozenset[int], shared: bool) -> tuple[Step, ...]:
    """Return the steps, those roots inverted that steps of one kernel divide by and do nothing else with."""
    first, axes, masks = len(graph.inputs), value_axes(graph), mask_values(graph)
    kept = crossing.union(output.value for output in graph.outputs)
    steps = list(graph.steps)
    for root, step in graph.numbered:
        users = [(value, user) for value, user in graph.numbered if root in user.inputs]
        divides = all(
            user.op == "div" and user.inputs[0] != root and not masks[user.inputs[0]] for _, user in users
        )
        spreads = any(axes[value] > axes[root] for value, _ in users)
        if step.op == "sqrt" and root not in kept and users and divides and (spreads or not shared):
            steps[root - first] = replace(step, op="rsqrt")
            for value, _ in users:
                steps[value - first] = replace(steps[value - first], op="mul")
    return tuple(steps)
