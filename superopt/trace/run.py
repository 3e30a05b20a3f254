"""run_graph: evaluates a Graph with torch on broadcast named axes, in any float dtype.

Masks are 0/1 numbers. A product with a mask selects: where the mask is 0 the product is 0 even if
the other factor is infinite or NaN, so `mul(m, exp(x))` means what `exp(where(m, x, -inf))` meant.
Any other product of zero and infinity is NaN, as in every float arithmetic.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import torch
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import Graph, Port, Step
from superopt.ops import OPS

__all__ = ["TORCH_DTYPES", "TorchScalars", "dtype_name", "run_graph"]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
"""The torch dtype of each dtype name of the IR."""

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "pow": torch.pow,
    "guard": lambda mask, x: torch.where(mask != 0, x, torch.zeros_like(x)),
}

# One rounding instead of two, and no overflow of an intermediate 1/b.
_DIRECT: dict[str, Callable[..., Tensor]] = {
    "div": torch.div,
    "sub": torch.sub,
    "minimum": torch.minimum,
    "tanh": torch.tanh,
}


def dtype_name(dtype: torch.dtype) -> str | None:
    """Return the IR's name of a torch dtype, or None where it has none."""
    return _NAMES.get(dtype)


class TorchScalars:
    """The arithmetic of the scalar operators on torch tensors of one float dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def const(self, value: Fraction) -> Tensor:
        """Return an exact rational, rounded once to the dtype."""
        return torch.full((), float(value), dtype=self.dtype, device=self.device)

    def infinity(self) -> Tensor:
        """Return plus infinity."""
        return torch.full((), inf, dtype=self.dtype, device=self.device)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b."""
        return a + b

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a * b."""
        return a * b

    def neg(self, a: Tensor) -> Tensor:
        """Return -a."""
        return -a

    def inv(self, a: Tensor) -> Tensor:
        """Return 1 / a."""
        return torch.reciprocal(a)

    def exp(self, a: Tensor) -> Tensor:
        """Return e to the a."""
        return torch.exp(a)

    def sqrt(self, a: Tensor) -> Tensor:
        """Return the square root of a."""
        return torch.sqrt(a)

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the larger of a and b."""
        return torch.maximum(a, b)

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        """Return 1 where a < b, else 0."""
        return (a < b).to(self.dtype)

    def equal(self, a: Tensor, b: Tensor) -> Tensor:
        """Return 1 where a = b, else 0."""
        return (a == b).to(self.dtype)

    def where(self, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return a where mask is 1 and b where it is 0."""
        return torch.where(mask != 0, a, b)

    def function(self, name: str, *args: Tensor) -> Tensor:
        """Return one of torch's functions."""
        return _FUNCTIONS[name](*args)


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor whose dimensions are axes, in this order; a mask holds only zeros and ones."""

    tensor: Tensor
    axes: tuple[str, ...]
    mask: bool = False


def run_graph(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype = torch.float64,
    *,
    finite: bool = False,
) -> dict[str, Tensor]:
    """Return the outputs by name, computed from the inputs by name in one float dtype.

    `finite` states that no mask hides an infinity in a contraction, which would otherwise be looked for.
    """
    for port in graph.inputs:
        if port.name not in tensors:
            raise GraphError(f"graph {graph.name!r}: no tensor for input {port.name!r}")
        if tuple(tensors[port.name].shape) != graph.shape(port):
            raise GraphError(
                f"graph {graph.name!r}: input {port.name!r} has shape {tuple(tensors[port.name].shape)},"
                f" expected {graph.shape(port)}"
            )
    device = tensors[graph.inputs[0].name].device if graph.inputs else torch.device("cpu")
    return _Run(graph, dtype, device, finite=finite).outputs(tensors)


class _Run:
    """One evaluation: the values that are still needed, by position."""

    def __init__(self, graph: Graph, dtype: torch.dtype, device: torch.device, *, finite: bool) -> None:
        self.graph = graph
        self.finite = finite
        self.dtype = dtype
        self.device = device
        self.sizes = graph.sizes
        self.scalars = TorchScalars(dtype, device)
        self.values: dict[int, _Value] = {}
        self.uses = Counter(i for step in graph.steps for i in step.inputs)
        self.uses.update(output.value for output in graph.outputs)

    def outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for position, port in enumerate(self.graph.inputs):
            tensor = tensors[port.name].to(self.dtype)
            shape = [self.sizes[axis] for axis in port.axes]
            self.values[position] = _Value(tensor.reshape(shape), port.axes, port.dtype == "bool")
        fused = self._products()
        for position, step in enumerate(self.graph.steps, len(self.graph.inputs)):
            if position in fused:
                continue
            self.values[position] = self._step(step, fused)
            for i in step.inputs:
                self._drop(i, fused)
        return {
            output.port.name: self._leave(output.port, self.values[output.value])
            for output in self.graph.outputs
        }

    def _products(self) -> dict[int, Step]:
        """Return the products that only one sum reads: they run inside it, never materialised."""
        first = len(self.graph.inputs)
        products = {}
        for step in self.graph.steps:
            made = self.graph.step_of(step.inputs[0]) if step.op == "sum" else None
            if made is not None and made.op == "mul" and self.uses[step.inputs[0]] == 1:
                assert step.inputs[0] >= first
                products[step.inputs[0]] = made
        return products

    def _drop(self, position: int, fused: Mapping[int, Step]) -> None:
        self.uses[position] -= 1
        if position in fused:
            for i in fused[position].inputs:
                self._drop(i, fused)
        elif self.uses[position] == 0:
            del self.values[position]

    def _step(self, step: Step, fused: Mapping[int, Step]) -> _Value:
        if step.op == "sum" and step.inputs[0] in fused:
            a, b = (self.values[i] for i in fused[step.inputs[0]].inputs)
            return self._contract(a, b, step.axes)
        inputs = [self.values[i] for i in step.inputs]
        match step.op:
            case "const":
                assert step.value is not None
                return _Value(self.scalars.const(step.value), (), mask=step.value in (0, 1))
            case "infinity":
                return _Value(self.scalars.infinity(), ())
            case "size":
                return _Value(self.scalars.const(Fraction(self.sizes[step.axes[0]])), ())
            case "index":
                size = self.sizes[step.axes[0]]
                return _Value(torch.arange(size, dtype=self.dtype, device=self.device), step.axes)
            case "sum" | "max":
                return self._reduce(step, inputs[0])
            case "contract":
                return self._contract(inputs[0], inputs[1], step.axes)
            case "rename":
                mapping = dict(step.mapping)
                axes = tuple(str(mapping.get(axis, axis)) for axis in inputs[0].axes)
                return _Value(inputs[0].tensor, axes, inputs[0].mask)
            case "select":
                return self._select(step, inputs[0])
        return self._elementwise(step.op, inputs)

    def _elementwise(self, op: str, inputs: list[_Value]) -> _Value:
        axes = tuple(dict.fromkeys(axis for value in inputs for axis in value.axes))
        tensors = [self._spread(value, axes) for value in inputs]
        mask = OPS[op].mask or (op == "mul" and all(value.mask for value in inputs))
        if op == "mul" and inputs[0].mask != inputs[1].mask:
            chosen, other = tensors if inputs[0].mask else tensors[::-1]
            return _Value(torch.where(chosen != 0, other, self.scalars.const(Fraction(0))), axes)
        if op in _DIRECT:
            return _Value(_DIRECT[op](*tensors), axes)
        return _Value(OPS[op].scalar(self.scalars, *tensors), axes, mask)

    def _reduce(self, step: Step, value: _Value) -> _Value:
        kept = tuple(axis for axis in value.axes if axis not in step.axes)
        dims = [value.axes.index(axis) for axis in step.axes]
        if step.op == "sum":
            return _Value(value.tensor.sum(dims), kept)
        if 0 in (self.sizes[axis] for axis in step.axes):  # the maximum of nothing
            shape = [self.sizes[axis] for axis in kept]
            return _Value(torch.full(shape, -inf, dtype=self.dtype, device=self.device), kept)
        return _Value(value.tensor.amax(dims), kept, value.mask)

    def _contract(self, a: _Value, b: _Value, axes: tuple[str, ...]) -> _Value:
        for mask, other in ((a, b), (b, a)):
            if self.finite or not mask.mask or other.mask:
                continue
            if not bool(torch.isfinite(other.tensor).all()):
                selected = self._elementwise("mul", [mask, other])
                return self._reduce(Step("sum", (0,), axes), selected)
        union = tuple(dict.fromkeys((*a.axes, *b.axes)))
        letter = {axis: i for i, axis in enumerate(union)}
        kept = tuple(axis for axis in union if axis not in axes)
        sublists = [[letter[axis] for axis in names] for names in (a.axes, b.axes, kept)]
        if 0 in (self.sizes[axis] for axis in union):
            shape = [self.sizes[axis] for axis in kept]
            return _Value(torch.zeros(shape, dtype=self.dtype, device=self.device), kept)
        product = torch.einsum(a.tensor, sublists[0], b.tensor, sublists[1], sublists[2])
        return _Value(product, kept)

    def _select(self, step: Step, value: _Value) -> _Value:
        tensor, axes = value.tensor, list(value.axes)
        for axis, at in step.mapping:
            tensor = tensor.select(axes.index(axis), int(at))
            axes.remove(axis)
        return _Value(tensor, tuple(axes), value.mask)

    def _spread(self, value: _Value, axes: tuple[str, ...]) -> Tensor:
        """Return the tensor with its dimensions in this order, and 1 for each axis it lacks."""
        order = [value.axes.index(axis) for axis in axes if axis in value.axes]
        shape = [self.sizes[axis] if axis in value.axes else 1 for axis in axes]
        return value.tensor.permute(order).reshape(shape)

    def _leave(self, port: Port, value: _Value) -> Tensor:
        whole = [self.sizes[axis] for axis in port.axes]
        return self._spread(value, port.axes).expand(whole).reshape(self.graph.shape(port))
