"""DTensor: a sharded program in PyTorch's words: placements of tensors, and a plan for `parallelize_module`.

A linear module whose weight is split along a dimension of the mesh takes a style. Its input is moved to what
the style needs, and its result to what the rest of the module reads. All else in the module runs on local
parts as it is, so a program that moves data anywhere else has no such plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from superopt.errors import InputError
from superopt.ir import Port, value_axes, value_names
from superopt.shard.output.written import tightened
from superopt.shard.sharded import SUM, Instruction, Layout, Placement, Sharded, is_partial

__all__ = ["Linear", "Style", "dtensor_placements", "linear_modules", "parallel_styles", "watched"]

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

    They are those of the parts that a written module takes and returns.
    """
    layout = tightened(sharded).layout
    ports = (*layout.entering, *(output.port for output in layout.leaving))
    return {port.name: _placements(layout, port, sharded.placement_of(port.name)) for port in ports}


def _placements(layout: Layout, port: Port, placement: Placement) -> tuple[str, ...]:
    """Return how each dimension of the mesh splits what the dimensions before it have left of a tensor.

    A device's part may be a piece of each of several runs of places, one after the other. DTensor knows such
    parts by the number of runs, as the factor of a strided split.
    """
    found: list[str] = []
    taken: set[str] = set()  # chunks that dimensions before this one have split
    for at, axis in enumerate(placement):
        if axis is None:
            found.append("Replicate()")
            continue
        dim, axes = next((dim, axes) for dim, axes in enumerate(port.dims) if axis in axes)
        pieces = [piece for own in axes for piece in layout.pieces(own)]
        chunk = layout.chunk(axis, at)
        outer = pieces[: [piece.name for piece in pieces].index(chunk)]
        runs = prod(piece.size for piece in outer if piece.name not in taken)
        found.append(f"Shard({dim})" if runs == 1 else f"_StridedShard({dim}, split_factor={runs})")
        taken.add(chunk)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear module of a traced module: its tensors among those that enter, and the shape of each input."""

    weight: str
    bias: str | None
    shapes: tuple[tuple[int, ...], ...]  # of the input of each call; empty where it is a named argument


@contextmanager
def watched(function: Any) -> Iterator[dict[str, list[tuple[int, ...]]]]:
    """Note the shape of each input of each linear module while a module is traced."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    with ExitStack() as stack:
        for name, one in _linears(function):

            def note(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                shapes.setdefault(name, []).append(tuple(inputs[0].shape) if inputs else ())

            stack.callback(one.register_forward_pre_hook(note).remove)
        yield shapes


def linear_modules(
    function: Any, shapes: Mapping[str, Sequence[tuple[int, ...]]], constants: Mapping[str, Tensor]
) -> dict[str, Linear]:
    """Return the linear modules that were called, by their names in a module."""
    ports = {id(tensor): port for port, tensor in constants.items()}
    return {
        name: Linear(ports[id(one.weight)], ports.get(id(one.bias)), tuple(shapes[name]))
        for name, one in _linears(function)
        if name in shapes and id(one.weight) in ports
    }


def _linears(function: Any) -> Iterator[tuple[str, nn.Linear]]:
    """Yield linear modules as PyTorch has them: what else one does with its weight is not known."""
    if isinstance(function, nn.Module):
        for name, one in function.named_modules():
            if type(one) is nn.Linear and "forward" not in vars(one):
                yield name, one


def parallel_styles(sharded: Sharded, dim: int, linears: Mapping[str, Linear]) -> dict[str, Style]:
    """Return the style of each linear module whose weight a dimension of the mesh splits.

    InputError says what stands in the way.
    """
    return _Styles(sharded, dim, linears).found()


class _Styles:
    def __init__(self, sharded: Sharded, dim: int, linears: Mapping[str, Linear]) -> None:
        self.sharded, self.dim = sharded, dim
        self.graph = sharded.layout.graph
        self.axes = value_axes(self.graph)
        self.names = value_names(self.graph)
        self.inputs = {port.name: at for at, port in enumerate(self.graph.inputs)}
        self.entered = {one.value: one for one in sharded.instructions if one.kind == "enter"}
        self.split = {name: one for name, one in linears.items() if self._is_split(one.weight)}
        # of each product of a split module: the module, and the value in which it ends
        self.products = {value: name for name in self.split for value in self._products(name)}
        self.ends = {value: self._end(value) for value in self.products}
        self.home = self._homes()

    def found(self) -> dict[str, Style]:
        """Return the styles by the names of modules."""
        self._check_other_levels()
        self._check_constants()
        self._check_positions()
        for one in self._outside():
            for i in one.inputs:
                self._check_home(self.sharded.instructions[i])
        for at in self.sharded.outputs:
            self._check_home(self.sharded.instructions[at])
        styles: dict[str, Style] = {}
        for value, name in self.products.items():
            style = self._style(value, name)
            if styles.setdefault(name, style) != style:
                raise InputError(
                    f"parallelize_module: {name} is called on tensors that lie in several ways; use the"
                    " written module"
                )
        return styles

    def _products(self, name: str) -> list[int]:
        """Return the products of a linear module, one for each call of it."""
        one = self.split[name]
        if () in one.shapes:
            raise InputError(
                f"parallelize_module: {name} is called with a named argument, for which PyTorch has no style;"
                " call it without the name, or use the written module"
            )
        weight = self.inputs[one.weight]
        found = [at for at, step in self.graph.numbered if weight in step.inputs]
        if len(found) != len(one.shapes) or any(self.graph.step_at(at).op != "contract" for at in found):
            raise InputError(
                f"parallelize_module: the weight of {name} is split and also used elsewhere; pin it whole,"
                " or use the written module"
            )
        return found

    def _end(self, value: int) -> int:
        """Return the value after a product's bias, or the product."""
        bias = self.split[self.products[value]].bias
        if bias is None:
            return value
        return next(
            at
            for at, step in self.graph.numbered
            if step.op == "add" and value in step.inputs and self.inputs[bias] in step.inputs
        )

    def _tag(self, one: Instruction) -> str | None:
        return one.placement[self.dim]

    def _is_split(self, name: str) -> bool:
        """Return whether a tensor that enters is split; one that nothing reads never enters."""
        value = self.inputs[name]
        return value in self.entered and self._tag(self.entered[value]) is not None

    def _outside(self) -> Iterator[Instruction]:
        """Yield the steps and calls that are no part of a split module."""
        inside = {*self.products, *self.ends.values()}
        for one in self.sharded.instructions:
            if one.kind in ("step", "call") and one.value not in inside:
                yield one

    def _homes(self) -> dict[int, str | None]:
        """Return how each value lies for all who read it: as it is first made.

        The result of a split module lies as all other steps read it, since the module moves it there.
        """
        home: dict[int, str | None] = {}
        read: dict[int, set[str | None]] = {end: set() for end in self.ends.values()}
        for one in self.sharded.instructions:
            if one.value not in read or not is_partial(self._tag(one)):
                home.setdefault(one.value, self._tag(one))
        readings = [*(i for one in self._outside() for i in one.inputs), *self.sharded.outputs]
        for operand in (self.sharded.instructions[i] for i in readings):
            if operand.value in read:
                read[operand.value].add(self._tag(operand))
        return home | {
            value: next(iter(tags))
            for value, tags in read.items()
            if len(tags) == 1 and not any(map(is_partial, tags))
        }

    def _check_home(self, one: Instruction) -> None:
        if one.value not in self.home or self._tag(one) != self.home[one.value]:
            raise self._elsewhere(one.value)

    def _elsewhere(self, value: int) -> InputError:
        return InputError(
            f"parallelize_module: {self.names[value]} is moved outside linear modules; use the written module"
        )

    def _check_other_levels(self) -> None:
        """Raise InputError where other levels do more than to run the same program on other data."""
        mesh = self.sharded.layout.mesh
        for dim, name in enumerate(mesh.names):
            if dim == self.dim:
                continue
            split = [
                self.graph.inputs[value].name
                for value, one in self.entered.items()
                if one.placement[dim] is not None and self.graph.inputs[value].constant
            ]
            if split or any(dim in one.dims for one in self.sharded.instructions):
                what = f"{split[0]} is split" if split else "data move"
                raise InputError(
                    f"parallelize_module: {what} along {name}, too; shard along {mesh.names[self.dim]}"
                    " alone, or use the written module"
                )

    def _check_constants(self) -> None:
        own = {one.weight for one in self.split.values()} | {one.bias for one in self.split.values()}
        for port in self.graph.inputs:
            if port.constant and port.name not in own and self._is_split(port.name):
                raise InputError(
                    f"parallelize_module: {port.name} is split and belongs to no linear module; pin it"
                    " whole, or use the written module"
                )

    def _check_positions(self) -> None:
        """Raise InputError where positions along an axis are split: each device counts its own from 0."""
        for one in self._outside():
            step = self.graph.step_of(one.value)
            if step is not None and step.op == "index" and self._tag(one) is not None:
                raise InputError(
                    f"parallelize_module: positions along {self._tag(one)} are split, and each device would"
                    " count its own from 0; use the written module"
                )

    def _style(self, value: int, name: str) -> Style:
        weight = self.inputs[self.split[name].weight]
        reads = next(i for i in self.graph.step_at(value).inputs if i != weight)
        made, features = self.graph.inputs[weight].dims
        rows = self._tag(self.entered[weight]) in self.axes[reads]
        return Style(
            _ROWS if rows else _COLUMNS,
            self._dimension(name, reads, features),
            self._dimension(name, self.ends[value], made),
        )

    def _dimension(self, name: str, value: int, features: tuple[str, ...]) -> int | None:
        """Return which dimension of a module's input or result is split: its features come last."""
        if is_partial(tag := self.home.get(value, SUM)):
            raise self._elsewhere(value)
        if tag is None:
            return None
        if tag in features[:1]:
            return -1
        (shape, *others) = {shape[:-1] for shape in self.split[name].shapes}
        size = self.graph.sizes[tag]
        # As many long dimensions as axes: each dimension is one axis.
        alone = sum(length > 1 for length in shape) == len(self.axes[value].difference(features))
        if tag in features or others or not alone or shape.count(size) != 1:
            raise InputError(
                f"parallelize_module: it is not clear which dimension of {self.names[value]} the split of"
                f" {tag} is; use the written module"
            )
        return shape.index(size)
