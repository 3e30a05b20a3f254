"""Library: what a matmul or a convolution of PyTorch takes on a processor, with the copies around it."""

from math import prod

from superopt.cost.cpu.rates import core_of
from superopt.cost.device import Device
from superopt.cost.work import tensor_bytes
from superopt.ir import Call, MuGraph, value_axes
from superopt.ir.mugraph import shown_to
from superopt.precision import library_dtype

__all__ = ["library_us"]

_CALL_US = 8.0  # microseconds of a call through PyTorch, with the views that it needs
_SHARE = 0.75  # the share of the peak that a library reaches with many rows
_BATCHED = 0.4  # the share of that rate which many small products reach
_WEIGHTS = 4.0  # the time of a byte of weights, over that of a byte that is read in order
_HALF_ROWS = 12.0  # the number of rows at which it reaches half of its best rate


def library_us(mugraph: MuGraph, number: int, device: Device) -> float:
    """Return the time of one kernel that is a call of a library."""
    graph, call = mugraph.graph, mugraph.kernels[number]
    assert isinstance(call, Call)
    axes, sizes = value_axes(graph), graph.sizes
    dtypes = dict(mugraph.rounded) | {i: port.dtype for i, port in enumerate(graph.inputs)}
    seconds = 0.0
    batched = False
    for value in (tile.value for tile in call.body):
        step = graph.step_of(value)
        if step is None or step.op != "contract":
            continue
        a, b = (axes[i] for i in step.inputs)
        rows = min(prod(sizes[axis] for axis in one) for one in (a - b, b - a))
        batched |= bool(a & b - set(step.axes))
        half = library_dtype({dtypes.get(shown_to(graph, call, i), "f32") for i in step.inputs}) == "bf16"
        work = 2 * prod(sizes[axis] for axis in a | b)
        rate = device.matrix_flops["bf16"] if half else device.vector_flops
        seconds += work / (rate * _SHARE * rows / (rows + _HALF_ROWS))
    read = sum(tensor_bytes(axes[i], dtypes.get(i, "f32"), sizes) for i in mugraph.loads(call))
    made = sum(tensor_bytes(axes[i], dtypes.get(i, "f32"), sizes) for i in mugraph.stores(call))
    leaves = sum(
        tensor_bytes(one.port.axes, one.port.dtype, sizes)
        for one in graph.outputs
        if one.value in mugraph.stores(call)
    )
    memory_s = _WEIGHTS * read * core_of(device).memory_s / device.cores
    copied_s = (made + 2 * leaves) / (device.l2_gbs * 1e9)
    seconds /= _BATCHED if batched else 1.0
    return _CALL_US + (max(seconds, memory_s) + 0.3 * min(seconds, memory_s) + copied_s) * 1e6
