"""Launcher: the function of an exported module that allocates, calls the kernels in order, and returns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from superopt.codegen.convolutions import library_call
from superopt.codegen.statements import Tensor
from superopt.dtypes import FP8
from superopt.errors import InputError
from superopt.export.choice import Choice
from superopt.export.expressions import Expression, einsum_text
from superopt.export.names import Names, tuple_text
from superopt.export.reference import entered, left_text, needed, shape_texts, size_lines, torch_dtype
from superopt.ir import Graph, Step, value_axes, value_names
from superopt.ir.extents import whole_dims
from superopt.ir.mugraph import Call, Convolution, Kernel, convolution_of, walk

__all__ = ["Held", "Launcher"]


@dataclass(slots=True)
class Held:
    """A tensor of the launcher: its variable, its dtype, and the stride of each of its axes, as code."""

    variable: str
    dtype: str
    axes: tuple[str, ...]
    strides: dict[str, str] = field(default_factory=dict)


class Launcher:
    """The lines of one launcher, printed kernel by kernel; what a kernel call looks like is the target's."""

    device = '"cpu"'
    around = ""  # the `with` statement around the kernels; it is formatted with the first tensor

    def __init__(
        self, choice: Choice, *, taken: tuple[str, ...] = (), multiples: Mapping[str, int] | None = None
    ) -> None:
        self.name = choice.name
        self.mugraph = mugraph = choice.mugraph
        self.graph: Graph = mugraph.graph
        self.axes = value_axes(self.graph)
        self.labels = value_names(self.graph)
        self.names = Names((self.name, *taken))
        self.ports = {port.name: self.names.take(port.name) for port in self.graph.inputs}
        self.sized, self.sizes = size_lines(self.graph, self.ports, self.names, mugraph.splits, multiples)
        if self.ports:
            self.device = f"{next(iter(self.ports.values()))}.device"
        self.lines: list[str] = []
        self.checks: list[str] = []
        self.is_narrow = False  # whether a kernel counts elements in 32 bits
        self.results: dict[str, str] = {}
        self.held: dict[int, Held] = {}
        for value, port in enumerate(self.graph.inputs):
            variable = self.ports[port.name]
            strides: dict[str, str] = {}
            for at, dim in enumerate(port.dims):
                text = f"{variable}.stride({at})"
                for axis in reversed(dim):
                    strides[axis] = text
                    text = f"{text} * {self.sizes[axis]}"
            self.held[value] = Held(variable, port.dtype, port.axes, strides)
            shape = self._shape(port.dims)
            arguments = ", ".join([f'"{variable}"', variable, torch_dtype(port.dtype), *shape])
            self.checks.append(f"_expect({arguments})")
        dims = (dim for port in self.graph.inputs for dim in whole_dims(port, mugraph.splits))
        read = {axis for dim in dims for axis in dim}
        self.checks += choice.limits.lines(self.graph, read, self.sizes, self.sized)

    def _shape(self, dims: tuple[tuple[str, ...], ...]) -> list[str]:
        whole = {(split.outer, split.inner): split.axis for split in self.mugraph.splits}
        plain = [(whole[dim],) if dim in whole else dim for dim in dims]
        return [" * ".join(self.sizes[axis] for axis in dim) or "1" for dim in plain]

    def text(self) -> list[str]:
        """Return the whole function."""
        for output in self.graph.outputs:
            if output.port.name not in self.results:  # an input that is also an output, unchanged
                held = self.held[output.value]
                entering = entered(self.graph.inputs[output.value], held.variable, self.sizes)
                text = left_text(entering, held.axes, output.port, self.sizes)
                self.results[output.port.name] = f"{text}.to({torch_dtype(output.port.dtype)}, copy=True)"
        results = ", ".join(self.results[output.port.name] for output in self.graph.outputs)
        lines = self.lines
        if self.around and self.ports and lines:
            lines = [self.around.format(next(iter(self.ports.values()))), *(f"    {line}" for line in lines)]
        body = [*self.checks, *lines, f"return {results}"]
        made = ", ".join(
            f"{output.port.name}[{', '.join(shape_texts(output.port, {axis: axis for axis in self.sizes}))}]"
            for output in self.graph.outputs
        )
        kernels = len(self.mugraph.kernels)
        return [
            f"def {self.name}({', '.join(self.ports.values())}):",
            f'    """Return {made}, computed by {kernels} kernel{"s" if kernels > 1 else ""}."""',
            *(f"    {line}" for line in [*needed(self.sized, "\n".join(body)), *body]),
        ]

    def allocate(self, tensor: Tensor, axes: tuple[str, ...]) -> Held:
        """Add a new tensor with one dimension for each of these axes."""
        variable = self.names.take(tensor.name)
        shape = tuple_text([self.sizes[axis] for axis in axes]) if axes else "()"
        self.lines.append(
            f"{variable} = torch.empty({shape}, dtype={torch_dtype(tensor.dtype)}, device={self.device})"
        )
        strides = {axis: f"{variable}.stride({at})" for at, axis in enumerate(axes)}
        return Held(variable, tensor.dtype, axes, strides)

    def keep(self, tensor: Tensor, held: Held) -> None:
        """Note what a kernel has written: a value between kernels, or a result."""
        if tensor.crosses:
            self.held[tensor.value] = held
        if tensor.port is not None:
            self.results[tensor.name] = left_text(held.variable, held.axes, tensor.port, self.sizes)

    def call(self, kernel: Call, *, ordered: bool) -> None:
        """Add the steps of a library call; with `ordered`, what kernels read of it lies contiguous."""
        self.lines.append(f"# {', '.join(self._shown(kernel))}")
        slid = set()
        for tile, _ in walk(kernel):
            step = self.graph.step_at(tile.value)
            found = convolution_of(self.graph, tile.value)
            if step.op == "window":
                slid.add(tile.value)
            elif found is not None and found.window in slid:
                self.held[tile.value] = self._convolved(tile.value, found)
            else:
                self.held[tile.value] = self._called(tile.value, step)
        for value in self.mugraph.stores(kernel):
            held = self.held[value]
            for output in self.graph.outputs:
                if output.value == value:
                    text = left_text(held.variable, held.axes, output.port, self.sizes)
                    self.results[output.port.name] = f"{text}.to({torch_dtype(output.port.dtype)})"
            if self._read_later(value, kernel):
                dtype = dict(self.mugraph.rounded).get(value, "f32")
                cast = "" if held.dtype == dtype else f".to({torch_dtype(dtype)})"
                ending = cast + (".contiguous()" if ordered else "")
                if ending:
                    self.lines.append(f"{held.variable} = {held.variable}{ending}")
                held.dtype = dtype

    def _shown(self, kernel: Kernel) -> list[str]:
        shown = []
        for tile, _ in walk(kernel):
            step = self.graph.step_at(tile.value)
            inputs = ", ".join(self.labels[i] for i in step.inputs)
            axes = f" over {', '.join(step.axes)}" if step.axes else ""
            shown.append(f"{self.labels[tile.value]} = {step.op} of {inputs}{axes}")
        return shown

    def _read_later(self, value: int, kernel: Kernel) -> bool:
        return any(value in self.mugraph.loads(one) for one in self.mugraph.kernels if one is not kernel)

    def _called(self, value: int, step: Step) -> Held:
        if step.op != "contract":
            raise InputError(f"{self.graph.name}: a library call of {step.op}; known: contract")
        a, b = (self.held[i] for i in step.inputs)
        variable = self.names.take(self.labels[value])
        dtype = a.dtype if a.dtype == b.dtype and a.dtype not in FP8 else "f32"
        kept = tuple(axis.name for axis in self.graph.axes if axis.name in self.axes[value])
        if set(kept) != (set(a.axes) | set(b.axes)) - set(step.axes):
            raise InputError(f"{self.graph.name}: {self.labels[value]} has other axes than its operands")
        left, right = (self._operand(i, dtype) for i in step.inputs)
        self.lines.append(f"{variable} = {einsum_text(left, right, kept)}")
        strides = {axis: f"{variable}.stride({at})" for at, axis in enumerate(kept)}
        return Held(variable, dtype, kept, strides)

    def _convolved(self, value: int, one: Convolution) -> Held:
        """Add a convolution of an image with a kernel, by a library."""
        image, kernel = (self.held[i] for i in (one.image, one.kernel))
        dtype = image.dtype if image.dtype == kernel.dtype and image.dtype not in FP8 else "f32"
        x, y = (self._operand(i, dtype) for i in (one.image, one.kernel))
        call = library_call(one, x.axes, y.axes, self.graph.sizes)
        counts = [self.count(axes) for axes in (one.batch, (*one.groups, *one.channels), one.channels)]
        batch, depth, channels = counts
        shape = tuple_text([batch, depth, *map(str, call.image_shape[2:])])  # windows never change
        seen = f"{x.text}.permute{call.image_order}.reshape({shape})"
        if call.around:
            seen = f"torch.nn.functional.pad({seen}, {call.around})"
        shape = tuple_text(["-1", channels, *map(str, call.kernel_shape[2:])])
        taps = f"{y.text}.permute{call.kernel_order}.reshape({shape})"
        taps += f".flip({call.flipped})" if call.flipped else ""
        zeros = (0,) * len(call.strides)
        variable = self.names.take(self.labels[value])
        lines = [
            f"{variable} = torch.convolution(",
            f"    {seen},",
            f"    {taps},",
            f"    None, {call.strides}, {call.paddings}, {call.dilations}, False, {zeros},"
            f" {self.count(one.groups)},",
            f"){f'.permute{call.turned}' if call.turned else ''}"
            f".reshape({tuple_text([self.sizes[axis] for axis in one.order])})",
        ]
        self.lines += lines
        strides = {axis: f"{variable}.stride({at})" for at, axis in enumerate(one.order)}
        return Held(variable, dtype, one.order, strides)

    def count(self, axes: Iterable[str]) -> str:
        """Return how many positions some axes have together."""
        return " * ".join(self.sizes[axis] for axis in axes) or "1"

    def _operand(self, value: int, dtype: str) -> Expression:
        held = self.held[value]
        text = held.variable
        if value < len(self.graph.inputs):
            text = entered(self.graph.inputs[value], text, self.sizes)
        if held.dtype != dtype:
            text += f".to({torch_dtype(dtype)})"
        return Expression(text, held.axes)
