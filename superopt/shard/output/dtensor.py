"""DTensor: a sharded program in PyTorch's words: placements of tensors, and a plan for `parallelize_module`.

A linear module whose weight is split along a dimension of the mesh takes a style. Its input is moved to what
the style needs, and its result to what the rest of the module reads. All else in the module runs on local
parts as it is, so a program that moves data anywhere else has no such plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.ir import Port, value_axes, value_names
from superopt.shard.sharded import Instruction, Sharded, is_partial

__all__ = ["Style", "dtensor_placements", "parallel_styles"]

_COLUMNS, _ROWS = "ColwiseParallel", "RowwiseParallel"


@dataclass(frozen=True, slots=True)
class Style:
    """A parallel style of a linear module: the dimensions of its input and result that are split, if any."""

    name: str
    input: int | None
    output: int | None

    def __str__(self) -> str:
        return f"{self.name}(input_layouts={_layout(self.input)}, output_layouts={_layout(self.output)})"

    def made(self) -> Any:
        """Return it as an object for `parallelize_module`."""
        from torch.distributed.tensor import Replicate, Shard, parallel

        ends = {
            f"{end}_layouts": Replicate() if dim is None else Shard(dim)
            for end, dim in (("input", self.input), ("output", self.output))
        }
        return getattr(parallel, self.name)(**ends)


def _layout(dim: int | None) -> str:
    return "Replicate()" if dim is None else f"Shard({dim})"


def dtensor_placements(sharded: Sharded) -> dict[str, tuple[str, ...]]:
    """Return the placements of DTensor for each tensor that enters or leaves, one for each dimension.

    An axis that is not the outermost one of its dimension of the tensor has no placement of DTensor: it is
    written as `StridedShard(dimension, axis)`.
    """
    layout = sharded.layout
    ports = (*layout.entering, *(output.port for output in layout.leaving))
    return {
        port.name: tuple(_dtensor(port, tag) for tag in sharded.placement_of(port.name)) for port in ports
    }


def _dtensor(port: Port, axis: str | None) -> str:
    if axis is None:
        return "Replicate()"
    dim = next(at for at, axes in enumerate(port.dims) if axis in axes)
    return f"Shard({dim})" if port.dims[dim][0] == axis else f"StridedShard({dim}, {axis!r})"


def parallel_styles(sharded: Sharded, dim: int, parameters: Iterable[str]) -> dict[str, Style]:
    """Return the style of each linear module whose weight a dimension of the mesh splits.

    `parameters` are the full names of all parameters of the module that was traced. InputError says what
    stands in the way.
    """
    named = {name.replace(".", "_"): name for name in parameters}
    # The trace writes x before names that begin with a digit, as those in Sequential do.
    return _Styles(
        sharded, dim, {f"x{key}" if key[0].isdigit() else key: name for key, name in named.items()}
    ).found()


class _Styles:
    def __init__(self, sharded: Sharded, dim: int, parameters: dict[str, str]) -> None:
        self.sharded, self.dim, self.parameters = sharded, dim, parameters
        self.graph = sharded.layout.graph
        self.axes = value_axes(self.graph)
        self.names = value_names(self.graph)
        self.ports = dict(enumerate(self.graph.inputs))
        # of each product of a linear module: its weight, and the value in which the module ends
        self.weights = self._linear_modules()
        self.ends = {value: self._end(value) for value in self.weights}

    def found(self) -> dict[str, Style]:
        """Return the styles by the names of modules."""
        styles: dict[str, Style] = {}
        home = self._homes()
        for one in self.sharded.instructions:
            if one.kind not in ("step", "call"):
                continue
            weight = self.weights.get(one.value)
            split = weight is not None and self._tag(self._entered(weight)) is not None
            for i in one.inputs:
                operand = self.sharded.instructions[i]
                own = operand.value in self.ports and self._is_parameter(operand.value)
                inside = one.value in self.ends.values() and operand.value in self.weights
                if self._tag(operand) != home.get(operand.value) and not (own or inside or split):
                    raise self._elsewhere(operand)
            if split:
                assert weight is not None
                styles[self._module(weight)] = self._style(one, weight, home)
        for at in self.sharded.outputs:
            if self._tag(self.sharded.instructions[at]) != home[self.sharded.instructions[at].value]:
                raise self._elsewhere(self.sharded.instructions[at])
        self._check_parameters(set(styles))
        return styles

    def _linear_modules(self) -> dict[int, int]:
        found = {}
        for at, step in self.graph.numbered:
            for i in step.inputs if step.op == "contract" else ():
                if self._is_parameter(i) and self.ports[i].name.endswith("weight"):
                    found[at] = i
        return found

    def _is_parameter(self, value: int) -> bool:
        return value in self.ports and self.ports[value].name in self.parameters

    def _module(self, value: int) -> str:
        return self.parameters[self.ports[value].name].rpartition(".")[0]

    def _end(self, value: int) -> int:
        """Return the value after a product's bias, or the product."""
        module = self._module(self.weights[value])
        for at, step in self.graph.numbered:
            if step.op == "add" and value in step.inputs:
                for i in step.inputs:
                    if self._is_parameter(i) and self.parameters[self.ports[i].name] == f"{module}.bias":
                        return at
        return value

    def _tag(self, one: Instruction) -> str | None:
        return one.placement[self.dim]

    def _entered(self, value: int) -> Instruction:
        return next(one for one in self.sharded.instructions if one.kind == "enter" and one.value == value)

    def _homes(self) -> dict[int, str | None]:
        """Return how each value lies for all who read it: as it is first made, and not in partial sums."""
        home: dict[int, str | None] = {}
        ends = set(self.ends.values())
        for one in self.sharded.instructions:
            if one.value in home or (one.value in ends and is_partial(self._tag(one))):
                continue
            home[one.value] = self._tag(one)
        return home

    def _style(self, one: Instruction, weight: int, home: dict[int, str | None]) -> Style:
        port = self.ports[weight]
        reads = next(i for i in self.graph.step_at(one.value).inputs if i != weight)
        rows = self._tag(self._entered(weight)) in self.axes[reads]
        features = frozenset(axis for axis in port.axes if axis in self.axes[reads])
        made = frozenset(axis for axis in port.axes if axis not in features)
        return Style(
            _ROWS if rows else _COLUMNS,
            self._dimension(reads, home[reads], features),
            self._dimension(self.ends[one.value], home[self.ends[one.value]], made),
        )

    def _dimension(self, value: int, tag: str | None, features: frozenset[str]) -> int | None:
        """Return which dimension of a module's input or result is split: its features come last."""
        if tag is None:
            return None
        if tag in features:
            return -1
        rest = self.axes[value] - features
        if len(rest) != 1:
            raise InputError(
                f"parallelize_module: {self.names[value]} is split along {tag}, one of several dimensions"
                " before its features; use the written module"
            )
        return 0

    def _check_parameters(self, styled: set[str]) -> None:
        for value in filter(self._is_parameter, self.ports):
            if self._module(value) not in styled and self._tag(self._entered(value)) is not None:
                raise InputError(
                    f"parallelize_module: {self.parameters[self.ports[value].name]} is split and belongs"
                    " to no linear module; pin it whole, or use the written module"
                )

    def _elsewhere(self, one: Instruction) -> InputError:
        return InputError(
            f"parallelize_module: {self.names[one.value]} is moved outside linear modules;"
            " use the written module"
        )
