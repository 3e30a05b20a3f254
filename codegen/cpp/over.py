"""Over: whether kernels may write a result where an input lies, since they read that nowhere afterwards.

for n: t2 = max(t2, x[n])
for n: y[n] = exp(x[n] - t2)      y may lie over x: each number is read before another one lies there
for n: t5 += x[n] * w[n]          with this loop it may not
"""

from collections.abc import Collection, Iterator, Sequence

from superopt.codegen.cpp.config import CppConfig
from superopt.codegen.cpp.plan import VIEWS, Contraction, Fill, Item, Nest, Shift, Walk
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.lowering import lower_for_cpp
from superopt.codegen.statements import Compute, KernelProgram, Move, Store, Tensor
from superopt.ir import value_axes

__all__ = ["is_read_before"]


def is_read_before(kernels: Sequence[tuple[KernelProgram, CppConfig]], read: str, written: str) -> bool:
    """Whether kernels in order read all of a tensor before they write another one number by number there."""
    storing = [at for at, (program, _) in enumerate(kernels) if written in _names(program.stores)]
    if len(storing) != 1:
        return False
    [at] = storing
    if any(read in _names(program.loads) for program, _ in kernels[at + 1 :]):
        return False
    program, config = kernels[at]
    return read not in _names(program.loads) or _reads_in_time(
        lower_for_cpp(program, config.whole), config, read, written
    )


def _names(tensors: Collection[Tensor]) -> set[str]:
    return {one.name for one in tensors}


def _reads_in_time(program: KernelProgram, config: CppConfig, read: str, written: str) -> bool:
    """Whether a kernel reads each number of a tensor last as it makes the one that lies there then."""
    [old] = [one for one in program.loads if one.name == read]
    [new] = [one for one in program.stores if one.name == written]
    lie_alike = old.port is not None and new.port is not None and old.port.dims == new.port.dims
    axes = value_axes(program.graph)[new.value]
    if not lie_alike or old.dtype != new.dtype or axes != set(new.axes) or not axes.issuperset(program.grid):
        return False
    steps = [
        one for one, _ in program.flat() if isinstance(one, (Compute, Move)) and old.value in one.step.inputs
    ]
    # Those read numbers at other places than their own.
    if any(isinstance(one, Move) or one.step.op in VIEWS for one in steps):
        return False
    items = list(_in_order(Tiles(program, config).plan.body, ()))
    stores = [at for at, (item, _) in enumerate(items) if new.value in _stored(item)]
    if len(stores) != 1 or any(old.value in _read(item) for item, _ in items[stores[0] + 1 :]):
        return False
    nest, walked = items[stores[0]]
    in_registers = isinstance(nest, Nest) and (nest.slides_over_windows or nest.sums_in_registers)
    return isinstance(nest, Nest) and not in_registers and nest.axes == axes and axes.issuperset(walked)


def _in_order(items: Sequence[Item], walked: tuple[str, ...]) -> Iterator[tuple[Item, tuple[str, ...]]]:
    """Yield all items but walks in the order in which they run, with the axes of the walks around them."""
    for item in items:
        if isinstance(item, Walk):
            yield from _in_order(item.body, (*walked, item.axis))
        else:
            yield item, walked


def _stored(item: Item) -> set[int]:
    """Return the values that an item writes to memory."""
    statements = (*item.statements, *item.rest) if isinstance(item, Nest) else ()
    return {one.value for one in statements if isinstance(one, Store)}


def _read(item: Item) -> set[int]:
    """Return the values that an item reads."""
    if isinstance(item, Nest):
        computed = [one for one in (*item.statements, *item.rest) if isinstance(one, Compute)]
        return {value for one in computed for value in one.step.inputs} | _stored(item)
    if isinstance(item, Contraction):
        return {item.a, item.b, *item.compute.step.inputs}
    if isinstance(item, Shift):
        return set(item.move.step.inputs)
    assert isinstance(item, Fill)
    return set()
