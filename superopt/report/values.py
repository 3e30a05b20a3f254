"""Values: what a drawing says of each value of a graph."""

from math import prod

from superopt.dtypes import DTYPES, FLOATS
from superopt.ir import (
    REDUCTIONS,
    Graph,
    Step,
    format_constant,
    print_step,
    tensorless_values,
    value_axes,
    value_names,
)
from superopt.ops import OPS
from superopt.report.svg import bytes_text

__all__ = ["Values", "short"]

_LONGEST = 34  # characters of a label
_LAYOUT = ("rename", "select", "window")


def short(text: str) -> str:
    """Return a text cut to the length of a label."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Values:
    """What a drawing says of each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.axes = value_axes(graph)
        self.names = value_names(graph)
        self.tensorless = tensorless_values(graph)
        self.floating = next((port.dtype for port in graph.inputs if port.dtype in FLOATS), "f32")
        self._order = {axis.name: at for at, axis in enumerate(graph.axes)}

    def ordered(self, value: int) -> tuple[str, ...]:
        """Return the axes of a value in the order of the graph."""
        if value < len(self.graph.inputs):
            return self.graph.inputs[value].axes
        return tuple(sorted(self.axes[value], key=self._order.__getitem__))

    def elements(self, value: int) -> int:
        """Return how many elements a value has."""
        sizes = self.graph.sizes
        return prod(sizes[axis] for axis in self.axes[value])

    def stored_bytes(self, value: int, between: str | None = None) -> int:
        """Return the bytes of a value in memory, in the dtype of its port or in one for values between."""
        dtype = between or self.floating
        step = self.graph.step_of(value)
        if step is None:
            dtype = self.graph.inputs[value].dtype
        else:
            ports = (output.port.dtype for output in self.graph.outputs if output.value == value)
            dtype = next(ports, "bool" if step.op in OPS and OPS[step.op].mask else dtype)
        return self.elements(value) * DTYPES[dtype].bytes

    def tip(self, value: int) -> str:
        """Return what hovering shows: the step, the axes with their sizes, the dtype, the bytes."""
        sizes = self.graph.sizes
        step = self.graph.step_of(value)
        dtype = self.graph.inputs[value].dtype if step is None else "fp32 on chip"
        head = self.names[value] if step is None else f"{self.names[value]} = {print_step(step, self.names)}"
        shape = " × ".join(f"{axis}={sizes[axis]}" for axis in self.ordered(value)) or "one number"
        return f"{head}\n{shape}\n{dtype}, {bytes_text(self.stored_bytes(value))} when stored"

    def open_inputs(self, step: Step) -> list[int]:
        """Return the operands that read tensors, each once."""
        return list(dict.fromkeys(i for i in step.inputs if not self.tensorless[i]))

    def label(self, value: int, sign: str = "=") -> str:
        """Return a step in short, with what reads no tensor written out."""
        step = self.graph.step_at(value)
        inputs = [self._tensorless_text(i) if self.tensorless[i] else self.names[i] for i in step.inputs]
        head = step.op
        if step.axes:
            head += f"[{', '.join(step.axes)}]"
        elif step.mapping:
            arrow = "=" if step.op == "select" else "→"
            head += f"[{', '.join(f'{old}{arrow}{new}' for old, new in step.mapping)}]"
        return short(f"{self.names[value]} {sign} {head}({', '.join(inputs)})")

    def _tensorless_text(self, value: int) -> str:
        step = self.graph.step_at(value)
        if step.value is not None:
            text = format_constant(step.value)
            return text if len(text) < 9 else f"{float(step.value):.4g}"
        if step.op == "infinity":
            return "∞"
        if step.op == "neg":
            return f"-{self._tensorless_text(step.inputs[0])}"
        if step.op == "size":
            return f"|{step.axes[0]}|"
        if step.op == "index":
            return step.axes[0]
        signs = {"ge": "≥", "le": "≤", "lt": "<", "gt": ">", "eq": "=", "ne": "≠"}
        inputs = [self._tensorless_text(i) for i in step.inputs]
        if step.op in signs:
            return f" {signs[step.op]} ".join(inputs)
        return f"{step.op}({', '.join(inputs)})"

    def kind(self, value: int) -> str:
        """Return the class of a node."""
        step = self.graph.step_of(value)
        if step is None:
            return "input"
        return "reduction" if step.op in REDUCTIONS else "layout" if step.op in _LAYOUT else "scalar"
