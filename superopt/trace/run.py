"""Run: evaluates a Graph with torch on broadcast named axes, in any float dtype.

Masks are 0/1 numbers. A product with a mask selects: where the mask is 0 the product is 0 even if
the other factor is infinite or NaN, so `mul(m, exp(x))` means what `exp(where(m, x, -inf))` meant.
Any other product of zero and infinity is NaN, as in every float arithmetic.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod

import torch
from torch import Tensor

from superopt.dtypes import torch_dtypes
from superopt.errors import GraphError
from superopt.ir import Graph, Port, Step
from superopt.ops import OPS

__all__ = [
    "TORCH_DTYPES",
    "Evaluation",
    "TorchScalars",
    "Value",
    "blank_inputs",
    "dtype_name",
    "in_own_memory",
    "run_graph",
]

TORCH_DTYPES = torch_dtypes()
"""The torch dtype of each dtype name of the IR."""

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

# One rounding instead of two, and no overflow of an intermediate 1/b.
_DIRECT: dict[str, Callable[..., Tensor]] = {
    "div": torch.div,
    "sub": torch.sub,
    "minimum": torch.minimum,
    "tanh": torch.tanh,
    "expm1": torch.expm1,
    # Defined by their opposites in the algebra, which hold where a number is NaN.
    "le": torch.le,
    "ge": torch.ge,
    "ne": torch.ne,
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
        if name == "guard":
            return torch.where(args[0] != 0, args[1], torch.zeros_like(args[1]))
        found: Tensor = getattr(torch, name)(*args)
        return found


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor whose dimensions are axes, in this order; a mask holds only zeros and ones."""

    tensor: Tensor
    axes: tuple[str, ...]
    mask: bool = False


def blank_inputs(graph: Graph) -> tuple[Tensor, ...]:
    """Return tensors of the shapes and dtypes of a graph's inputs, without numbers."""
    return tuple(
        torch.empty(graph.shape(port), dtype=TORCH_DTYPES[port.dtype], device="meta") for port in graph.inputs
    )


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
    return Evaluation(graph, dtype, device, finite=finite).outputs(tensors)


class Evaluation:
    """One evaluation: the values that are still needed, by position."""

    def __init__(self, graph: Graph, dtype: torch.dtype, device: torch.device, *, finite: bool) -> None:
        self.graph = graph
        self.finite = finite
        self.dtype = dtype
        self.device = device
        self.sizes = graph.sizes
        self.scalars = TorchScalars(dtype, device)
        self.values: dict[int, Value] = {}
        self.uses = Counter(i for step in graph.steps for i in step.inputs)
        self.uses.update(output.value for output in graph.outputs)

    def enter(self, port: Port, tensor: Tensor) -> Value:
        """Return an input as a value."""
        shape = [self.sizes[axis] for axis in port.axes]
        return Value(tensor.to(self.dtype).reshape(shape), port.axes, port.dtype == "bool")

    def outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        for position, port in enumerate(self.graph.inputs):
            self.values[position] = self.enter(port, tensors[port.name])
        fused = self.products()
        for position, step in self.graph.numbered:
            if position in fused:
                continue
            self.values[position] = self.step(step, fused)
            for i in step.inputs:
                self.drop(i, fused)
        return {
            output.port.name: self.leave(output.port, self.values[output.value])
            for output in self.graph.outputs
        }

    def products(self) -> dict[int, Step]:
        """Return the products that only one sum reads: they run inside it, never materialised."""
        first = len(self.graph.inputs)
        products = {}
        for step in self.graph.steps:
            made = self.graph.step_of(step.inputs[0]) if step.op == "sum" else None
            if made is not None and made.op == "mul" and self.uses[step.inputs[0]] == 1:
                assert step.inputs[0] >= first
                products[step.inputs[0]] = made
        return products

    def drop(self, position: int, fused: Mapping[int, Step]) -> None:
        """Forget a value where no further step reads it."""
        self.uses[position] -= 1
        if position in fused:
            for i in fused[position].inputs:
                self.drop(i, fused)
        elif self.uses[position] == 0:
            del self.values[position]

    def step(self, step: Step, fused: Mapping[int, Step]) -> Value:
        """Return the value of one step; products in `fused` are made by the sum that reads them."""
        if step.op == "sum" and step.inputs[0] in fused:
            a, b = (self.values[i] for i in fused[step.inputs[0]].inputs)
            return self.contract(a, b, step.axes)
        inputs = [self.values[i] for i in step.inputs]
        match step.op:
            case "const":
                assert step.value is not None
                return Value(self.scalars.const(step.value), (), mask=step.value in (0, 1))
            case "infinity":
                return Value(self.scalars.infinity(), ())
            case "size":
                return Value(self.scalars.const(Fraction(self.sizes[step.axes[0]])), ())
            case "index":
                size = self.sizes[step.axes[0]]
                return Value(torch.arange(size, dtype=self.dtype, device=self.device), step.axes)
            case "sum" | "max":
                return self._reduce(step, inputs[0])
            case "contract":
                return self.contract(inputs[0], inputs[1], step.axes)
            case "rename":
                mapping = dict(step.mapping)
                axes = tuple(str(mapping.get(axis, axis)) for axis in inputs[0].axes)
                return Value(inputs[0].tensor, axes, inputs[0].mask)
            case "select":
                return self.select(step, inputs[0])
            case "window":
                return self.window(step, inputs[0])
        return self.elementwise(step.op, inputs)

    def elementwise(self, op: str, inputs: list[Value]) -> Value:
        """Return a scalar operator on values, each spread over the axes of all."""
        axes = tuple(dict.fromkeys(axis for value in inputs for axis in value.axes))
        tensors = [self.spread(value, axes) for value in inputs]
        mask = OPS[op].makes_mask(value.mask for value in inputs)
        if op == "mul" and inputs[0].mask != inputs[1].mask:
            chosen, other = tensors if inputs[0].mask else tensors[::-1]
            return Value(torch.where(chosen != 0, other, self.scalars.const(Fraction(0))), axes)
        if op in _DIRECT:
            return Value(_DIRECT[op](*tensors).to(self.dtype), axes, mask)
        return Value(OPS[op].scalar(self.scalars, *tensors), axes, mask)

    def _reduce(self, step: Step, value: Value) -> Value:
        kept = tuple(axis for axis in value.axes if axis not in step.axes)
        dims = [value.axes.index(axis) for axis in step.axes]
        if step.op == "sum":
            return Value(value.tensor.sum(dims), kept)
        if 0 in (self.sizes[axis] for axis in step.axes):  # the maximum of nothing
            shape = [self.sizes[axis] for axis in kept]
            return Value(torch.full(shape, -inf, dtype=self.dtype, device=self.device), kept)
        return Value(value.tensor.amax(dims), kept, value.mask)

    def contract(self, a: Value, b: Value, axes: tuple[str, ...]) -> Value:
        """Return the product of two values, summed over axes."""
        for mask, other in ((a, b), (b, a)):
            if self.finite or not mask.mask or other.mask:
                continue
            if not bool(torch.isfinite(other.tensor).all()):
                selected = self.elementwise("mul", [mask, other])
                return self._reduce(Step("sum", (0,), axes), selected)
        union = tuple(dict.fromkeys((*a.axes, *b.axes)))
        letter = {axis: i for i, axis in enumerate(union)}
        kept = tuple(axis for axis in union if axis not in axes)
        sublists = [[letter[axis] for axis in names] for names in (a.axes, b.axes, kept)]
        if 0 in (self.sizes[axis] for axis in union):
            shape = [self.sizes[axis] for axis in kept]
            return Value(torch.zeros(shape, dtype=self.dtype, device=self.device), kept)
        product = torch.einsum(a.tensor, sublists[0], b.tensor, sublists[1], sublists[2])
        return Value(product, kept)

    def select(self, step: Step, value: Value) -> Value:
        """Return a value at positions of some of its axes."""
        tensor, axes = value.tensor, list(value.axes)
        for axis, at in step.mapping:
            tensor = tensor.select(axes.index(axis), int(at))
            axes.remove(axis)
        return Value(tensor, tuple(axes), value.mask)

    def window(self, step: Step, value: Value) -> Value:
        """Return a value as its windows see it, 0 outside."""
        tensor, axes = value.tensor, list(value.axes)
        for place in step.places:
            size = prod(self.sizes[axis] for axis in place.axes)
            beside = [axis for axis, _ in place.terms if axis in axes]  # the value has these axes as well
            fresh = [axis for axis, _ in place.terms if axis not in axes]
            shape = [self.sizes[axis] for axis in (*beside, *fresh)]
            at = torch.full(shape, place.offset, device=self.device)
            for axis, factor in place.terms:
                index, dim = torch.arange(self.sizes[axis], device=self.device), (*beside, *fresh).index(axis)
                at = at + (factor * index).reshape([-1 if i == dim else 1 for i in range(len(shape))])
            order = [i for i, axis in enumerate(axes) if axis not in (*place.axes, *beside)]
            order += [axes.index(axis) for axis in beside]
            line = tensor.permute(*order, *(axes.index(axis) for axis in place.axes))
            axes = [axes[i] for i in order]
            line = line.reshape(*(self.sizes[axis] for axis in axes), size)
            if not size:
                line, size = line.new_zeros((*line.shape[:-1], 1)), 1  # then each place lies outside
                at = torch.full_like(at, -1)
            if beside:
                flat = at.flatten(len(beside)) if fresh else at[..., None]
                flat = flat.expand(*line.shape[:-1], flat.shape[-1])
                found = line.gather(-1, flat.clamp(0, size - 1))
            else:
                flat = at.flatten()
                found = line.index_select(-1, flat.clamp(0, size - 1))
            found = torch.where((flat >= 0) & (flat < size), found, self.scalars.const(Fraction(0)))
            axes += fresh
            tensor = found.reshape(*found.shape[:-1], *shape[len(beside) :])
        return Value(tensor, tuple(axes), value.mask)

    def spread(self, value: Value, axes: tuple[str, ...]) -> Tensor:
        """Return the tensor with its dimensions in this order, and 1 for each axis it lacks."""
        order = [value.axes.index(axis) for axis in axes if axis in value.axes]
        shape = [self.sizes[axis] if axis in value.axes else 1 for axis in axes]
        return value.tensor.permute(order).reshape(shape)

    def leave(self, port: Port, value: Value) -> Tensor:
        """Return a value as the tensor at a port."""
        whole = [self.sizes[axis] for axis in port.axes]
        return self.spread(value, port.axes).expand(whole).reshape(self.graph.shape(port))


def in_own_memory(made: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return results contiguous, none of which shares memory with another or with what is known."""
    held = {one.untyped_storage().data_ptr() for one in known.values()}
    found = {}
    for name, tensor in made.items():
        whole = tensor.contiguous()
        if whole.untyped_storage().data_ptr() in held:
            whole = whole.clone()
        held.add(whole.untyped_storage().data_ptr())
        found[name] = whole
    return found
