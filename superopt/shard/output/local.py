"""Local: whether a module computes from parts of its tensors what it computes from whole ones.

`parallelize_module` changes linear modules only: all else is the module's own code, which each device runs on
its parts. A number in it that comes from a size that is split, as in `x / len(x)`, differs there. So
the module is traced on whole tensors and on parts, and both must have the same elementwise operators and
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from superopt.errors import InputError, TraceError
from superopt.ir import STRUCTURAL, Region
from superopt.shard.output.dtensor import Linear, Style
from superopt.shard.sharded import Sharded
from superopt.trace import trace

__all__ = ["TracedModule", "check_parts"]

_VARYING = {
    *STRUCTURAL,
    "mul",
}  # along an axis with one place left there is no sum, and a contraction is a product


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module as it was traced: what it was called with, and its linear modules by name."""

    module: nn.Module
    inputs: tuple[Any, ...]
    names: Mapping[int, str]  # of the tensors among the inputs, by id()
    linears: Mapping[str, Linear]


def check_parts(traced: TracedModule, styles: Mapping[str, Style], sharded: Sharded, dim: int) -> None:
    """Raise InputError unless a module takes the same steps on parts of its tensors along a level."""
    parts = sharded.layout.mesh.sizes[dim]
    ports = {port.name: port for port in sharded.layout.entering}

    def part(tensor: Tensor) -> Tensor:
        name = traced.names[id(tensor)]
        tag = sharded.placement_of(name)[dim]
        shape = list(tensor.shape)
        if tag is not None:
            shape[next(at for at, axes in enumerate(ports[name].dims) if tag in axes)] //= parts
        return tensor.new_empty(shape)

    try:
        own = _steps(traced.module, tree_map_only(Tensor, part, traced.inputs), styles, parts)
    except TraceError as error:
        raise InputError(
            f"parallelize_module: on parts of its tensors, {error}; take sizes from tensors, or use the"
            " written module"
        ) from error
    if own != _steps(traced.module, traced.inputs, styles, 1):
        raise InputError(
            "parallelize_module: the module computes something else on parts of its tensors, since a number"
            " in it comes from a size that is split; use the written module"
        )


def _steps(
    module: nn.Module, inputs: tuple[Any, ...], styles: Mapping[str, Style], parts: int
) -> list[tuple[str, Fraction | None]]:
    """Return the operators and numbers of a module whose linear modules only make tensors of their shapes."""
    with ExitStack() as stack:
        for name, style in styles.items():
            linear = module.get_submodule(name)
            linear.forward = _shaped(linear, style, parts)
            stack.callback(delattr, linear, "forward")
        program = trace(module, *inputs).program
    found: list[tuple[str, Fraction | None]] = []
    for node in program.nodes:
        if isinstance(node, Region):
            found += [
                (step.op, step.value)
                for step in node.graph.steps
                if step.value is not None or step.op not in _VARYING
            ]
        else:
            found.append((node.target, None))
    return found


def _shaped(linear: Any, style: Style, parts: int) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        shape = list(x.shape)
        if style.input is not None:
            shape[style.input] *= parts
        shape[-1] = linear.out_features
        if style.output is not None:
            shape[style.output] //= parts
        return x.sum().expand(shape).contiguous()

    return forward
