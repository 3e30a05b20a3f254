"""Triton: kernels as source, and the launcher that calls them."""

from collections.abc import Mapping

from superopt.codegen.statements import KernelProgram
from superopt.codegen.triton import TritonConfig, TritonMuGraph, TritonSource
from superopt.codegen.triton.config import Role
from superopt.codegen.triton.plan import make_plan
from superopt.errors import InputError
from superopt.export.choice import Choice
from superopt.export.launcher import Held, Launcher
from superopt.export.names import wrapped
from superopt.ir.mugraph import Call, Kernel, MuGraph

__all__ = ["IMPORTS", "triton_parts"]

IMPORTS = (
    "import math", "import os", "",
    "import torch", "import triton", "import triton.language as tl", "from torch.nn import functional as F",
)  # fmt: skip


def triton_parts(choice: Choice) -> tuple[list[str], Launcher]:
    """Return the sources of the kernels, and the launcher, still open for its name."""
    mugraph = choice.mugraph
    sizes = mugraph.graph.sizes
    compiled = TritonMuGraph(mugraph, choice.configs)
    launcher = _TritonLauncher(
        choice.name, mugraph, taken=tuple(program.name for program in compiled.programs if program)
    )
    texts: dict[str, None] = {}
    for at, kernel in enumerate(mugraph.kernels):
        if isinstance(kernel, Call):
            launcher.call(kernel, ordered=False)
            continue
        program = compiled.programs[at]
        assert program is not None
        source = compiled.source(at, sizes)
        _, *functions = source.text.strip("\n").split("\n\n\n")  # the first holds the imports
        texts |= dict.fromkeys(functions)
        launcher.launch(program, source, kernel)
    return list(texts), launcher


class _TritonLauncher(Launcher):
    """A launcher of Triton kernels: a grid, and strides and extents as arguments."""

    around = "with torch.cuda.device_of({}):"

    def __init__(self, name: str, mugraph: MuGraph, *, taken: tuple[str, ...] = ()) -> None:
        super().__init__(name, mugraph, taken=taken)
        self.counts: dict[str, None] = {}  # of elements that offsets of 32 bits must reach

    def text(self) -> list[str]:
        """Return the whole function."""
        if self.counts:
            largest = next(iter(self.counts)) if len(self.counts) == 1 else f"max({', '.join(self.counts)})"
            message = "these kernels count elements in 32 bits"
            self.checks += [f"if {largest} >= 2**31:", f'    raise ValueError("{message}")']
        return super().text()

    def launch(self, program: KernelProgram, source: TritonSource, kernel: Kernel) -> None:
        """Add the lines that allocate what a kernel writes and run it."""
        config, roles = source.config, make_plan(program, source.config).roles
        sizes = self.graph.sizes
        for axis in sorted(config.exact):
            tile, whole = config.tile(axis), roles.get(axis) == "whole"
            if tile > 1 and axis in roles:
                size = self.sizes[axis]
                condition = f"{size} == {sizes[axis]}" if whole else f"{size} % {tile} == 0"
                self._require(size, condition)
        self.is_narrow |= not source.config.wide
        written: dict[str, Held] = {}
        for tensor in program.stores:
            axes = tuple(axis for axis in tensor.axes if axis in self.axes[tensor.value])
            written[tensor.name] = self.allocate(tensor, axes)
            if not config.wide and axes:
                self.counts[" * ".join(self.sizes[axis] for axis in axes)] = None
        held = {tensor.name: self.held[tensor.value] for tensor in program.loads} | written
        groups: dict[str, list[str]] = {}
        for one in source.arguments:
            name, axis = one.tensor or "", one.axis or ""
            if one.kind == "tensor":
                groups.setdefault("tensors", []).append(held[name].variable)
            elif one.kind == "stride":
                groups.setdefault(f"strides of {name}", []).append(held[name].strides[axis])
            elif one.kind == "extent":
                groups.setdefault("extents", []).append(self.sizes[axis])
            elif one.kind == "block":
                groups.setdefault("blocks", []).append(f"{one.name}={self._block(axis, roles, config)}")
            else:
                raise InputError(
                    f"{program.name}: argument {one.name!r} is of a kind that export does not know"
                )
        groups.setdefault("blocks", [])
        groups["blocks"] += [f"num_warps={config.num_warps}", f"num_stages={config.num_stages}"]
        programs = [
            self.sizes[axis] if tile == 1 else f"triton.cdiv({self.sizes[axis]}, {tile})"
            for axis, tile in source.grid
        ]
        self.lines.append(f"{program.name}[({' * '.join(programs) or '1'},)](")
        self.lines += [line for group in groups.values() for line in wrapped(group, "    ")]
        self.lines.append(")")
        for tensor in program.stores:
            self.keep(tensor, written[tensor.name])

    def _require(self, size: str, condition: str) -> None:
        line = f"if not {condition}:"
        if line not in self.checks:
            message = f'f"{size} is {{{size}}}; these kernels need {condition}"'
            self.checks += [line, f"    raise ValueError({message})"]

    def _block(self, axis: str, roles: Mapping[str, Role], config: TritonConfig) -> str:
        tile = config.tile(axis)
        if roles.get(axis) == "whole" and axis not in config.exact:
            return f"max({tile}, triton.next_power_of_2({self.sizes[axis]}))"
        return str(tile)
