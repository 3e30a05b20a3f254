"""Order: the axes of a kernel, from those of outer loops to those along which memory runs."""

from math import prod

from superopt.codegen.statements import KernelProgram
from superopt.ir import value_axes

__all__ = ["axes_in_order"]


def axes_in_order(program: KernelProgram) -> tuple[str, ...]:
    """Return all axes; the axes along which the most memory lies contiguous, or nearly so, come last.

    In the result of a contraction the axes of its columns come after those of its rows, so that they are
    one long axis where they are one in memory; the contraction with the most work has the last word.
    """
    sizes = program.graph.sizes
    innermost, inner = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0)
    for tensor in (*program.loads, *program.stores):
        volume = 1
        for axis in tensor.axes:
            volume *= max(1, sizes[axis])
        long = [axis for axis in tensor.axes if sizes[axis] != 1]
        for place, axis in enumerate(long, 1):
            inner[axis] += volume * place // len(long)
        if long:
            innermost[long[-1]] += volume
    order = sorted(sizes, key=lambda axis: (innermost[axis], inner[axis]))
    axes = value_axes(program.graph)
    contractions = [tuple(axes[i] for i in step.inputs) for step in program.steps() if step.op == "contract"]
    for a, b in sorted(
        contractions, key=lambda pair: prod(max(1, sizes[axis]) for axis in pair[0] | pair[1])
    ):
        order = _columns_last(order, a, b)
    return tuple(order)


def _columns_last(order: list[str], a: frozenset[str], b: frozenset[str]) -> list[str]:
    """Return axes with the row axes of a contraction of a and b before its column axes."""
    apart = [axis for axis in order if (axis in a) != (axis in b)]
    if not apart:
        return order
    columns = a if apart[-1] in a else b
    first = next(i for i, axis in enumerate(order) if axis in apart and axis in columns)
    late = [axis for axis in order[first:] if axis in apart and axis not in columns]
    return [*order[:first], *late, *(axis for axis in order[first:] if axis not in late)]
