"""Triton: kernels as source, and the launcher that calls them."""

from collections.abc import Mapping
from dataclasses import replace

from superopt.codegen.statements import KernelProgram
from superopt.codegen.triton import Argument, TritonConfig, TritonMuGraph, TritonSource, emit
from superopt.codegen.triton.config import Role
from superopt.codegen.triton.plan import make_plan
from superopt.errors import InputError
from superopt.export.choice import Choice
from superopt.export.launcher import Held, Launcher
from superopt.export.names import tuple_text, wrapped
from superopt.ir.mugraph import Call

__all__ = ["IMPORTS", "triton_parts"]

IMPORTS = (
    "import functools", "import json", "import math", "import os", "from pathlib import Path", "",
    "import torch", "import triton", "import triton.language as tl", "from torch.nn import functional as F",
    "from triton.tools.tensor_descriptor import TensorDescriptor",
)  # fmt: skip

_DESCRIPTORS = '''\
@functools.cache
def _copies_tiles(device):
    """Return whether a device copies tiles by tensor descriptors; Triton's interpreter does."""
    if device.type == "cpu":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
'''

_DESCRIPTOR = '''\
def _descriptor(tensor, shape, strides, block):
    """Return a descriptor of a tensor, or None: not every device, layout and tile has one."""
    width = tensor.element_size()
    *outer, last = (
        step if size > 1 else 16 // width for size, step in zip(shape, strides, strict=True)
    )
    if shape[-1] == 1:
        last = 1
    fits = (
        _copies_tiles(tensor.device)
        and tensor.data_ptr() % 16 == 0
        and last == 1
        and all(0 < step * width < 2**40 and step * width % 16 == 0 for step in outer)
        and max(block) <= 512
        and max(shape) < 2**31
    )
    return TensorDescriptor(tensor, list(shape), [*outer, last], list(block)) if fits else None
'''


_TOGETHER = '''\
def _expect_together(*tensors):
    """Refuse tensors that are on several devices."""
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise ValueError(f"the tensors are on {' and '.join(devices)}; move them to one device")
'''

_PROCESSORS = '''\
@functools.cache
def _processors(device):
    """Return how many programs a device runs at a time, at least; few in Triton's interpreter."""
    if device.type == "cpu":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
'''


def triton_parts(choice: Choice) -> tuple[list[str], Launcher]:
    """Return the sources of the kernels, and the launcher, still open for its name."""
    mugraph = choice.mugraph
    choice.target.sources(mugraph, choice.configs)  # refuses what the target cannot run
    compiled = TritonMuGraph(mugraph, choice.configs)
    sizes = compiled.extents(mugraph.graph.sizes)
    names = [program.name for program in compiled.programs if program]
    taken = (*names, *map(_plain, names))
    launcher = _TritonLauncher(choice, sizes, taken=taken, multiples=compiled.multiples(sizes))
    texts = dict.fromkeys([_TOGETHER] if len(launcher.ports) > 1 else [])
    for at, kernel in enumerate(mugraph.kernels):
        if isinstance(kernel, Call):
            launcher.call(kernel, ordered=False)
            continue
        program = compiled.programs[at]
        assert program is not None
        source = compiled.source(at, sizes, waits=True)
        if not _follows_sizes(program, source):
            source = emit(program, replace(source.config, descriptors=False))
        plain = None
        if source.descriptors:
            texts |= dict.fromkeys([_DESCRIPTORS, _DESCRIPTOR])
            plain = emit(
                replace(program, name=_plain(program.name)), replace(source.config, descriptors=False)
            )
        if source.config.persistent:
            texts[_PROCESSORS] = None
        for one in (source, *([plain] if plain else [])):
            _, *functions = one.text.strip("\n").split("\n\n\n")  # the first holds the imports
            texts |= dict.fromkeys(functions)
        launcher.launch(program, source, plain)
    return list(texts), launcher


def _follows_sizes(program: KernelProgram, source: TritonSource) -> bool:
    """Return whether tiles of descriptors lie along the kernel's own axes, whose blocks follow sizes."""
    roles = make_plan(program, source.config).roles
    return all(side == 1 or axis in roles for one in source.descriptors for axis, side in one.seen)


def _plain(name: str) -> str:
    """Return the name of a kernel's version without tensor descriptors."""
    return f"{name}_plain"


class _TritonLauncher(Launcher):
    """A launcher of Triton kernels: a grid, and strides and extents as arguments."""

    around = "with torch.cuda.device_of({}):"

    def __init__(
        self, choice: Choice, made: Mapping[str, int], *, taken: tuple[str, ...], multiples: Mapping[str, int]
    ) -> None:
        super().__init__(choice, taken=taken, multiples=multiples)
        self.made = made  # the extents that the kernels are printed for
        # Element counts of tensors, which offsets of 32 bits must be able to address.
        self.counts: dict[str, None] = {}
        if len(self.ports) > 1:
            self.checks.append(f"_expect_together({', '.join(self.ports.values())})")

    def text(self) -> list[str]:
        """Return the whole function."""
        if self.counts:
            largest = next(iter(self.counts)) if len(self.counts) == 1 else f"max({', '.join(self.counts)})"
            message = "these kernels count elements in 32 bits"
            self.checks += [f"if {largest} >= 2**31:", f'    raise ValueError("{message}")']
        return super().text()

    def launch(self, program: KernelProgram, source: TritonSource, plain: TritonSource | None) -> None:
        """Add the lines that allocate what a kernel writes and run it; the plain one without descriptors."""
        config, roles = source.config, make_plan(program, source.config).roles
        parts = {split.inner for split in program.splits}  # they hold whole tiles
        for axis in sorted(config.exact):
            tile, whole = config.tile(axis), roles.get(axis) == "whole"
            if tile > 1 and axis in roles and (whole or axis not in parts):
                size = self.sizes[axis]
                condition = f"{size} == {self.made[axis]}" if whole else f"{size} % {tile} == 0"
                self._require(size, condition)
        for split in program.splits:
            if split.inner in config.exact:
                outer, inner, size = (self.sizes[axis] for axis in (split.outer, split.inner, split.axis))
                self._require(size, f"{size} == {outer} * {inner}")
        self.is_narrow |= not source.config.wide
        written: dict[str, Held] = {}
        for tensor in program.stores:
            axes = tuple(axis for axis in tensor.axes if axis in self.axes[tensor.value])
            written[tensor.name] = self.allocate(tensor, axes)
        loads = {tensor.name: self.held[tensor.value] for tensor in program.loads}
        held = loads | written
        made = [self.held[one.value] for one in program.loads if one.value >= len(self.graph.inputs)]
        for axes in (one.axes for one in (*made, *written.values()) if one.axes and not config.wide):
            self.counts[self.count(axes)] = None
        if plain is None:
            self.lines += self._call(program.name, source, roles, held, {})
        else:
            seen = {one.name: self.names.take(one.name) for one in source.descriptors}
            for one in source.descriptors:
                self.lines += self._described(seen[one.name], one, held[one.tensor or ""], roles, config)
            self.lines.append(f"if {' and '.join(seen.values())}:")
            self.lines += [f"    {line}" for line in self._call(program.name, source, roles, held, seen)]
            self.lines.append("else:")
            self.lines += [f"    {line}" for line in self._call(plain.name, plain, roles, held, {})]
        for tensor in program.stores:
            self.keep(tensor, written[tensor.name])

    def _call(
        self,
        name: str,
        source: TritonSource,
        roles: Mapping[str, Role],
        held: Mapping[str, Held],
        descriptors: Mapping[str, str],
    ) -> list[str]:
        """Return the lines that run a kernel."""
        config = source.config
        groups: dict[str, list[str]] = {}
        for one in source.arguments:
            tensor, axis = one.tensor or "", one.axis or ""
            if one.kind == "tensor":
                groups.setdefault("tensors", []).append(held[tensor].variable)
            elif one.kind == "descriptor":
                groups.setdefault("descriptors", []).append(descriptors[one.name])
            elif one.kind == "stride":
                groups.setdefault(f"strides of {tensor}", []).append(held[tensor].strides[axis])
            elif one.kind == "extent":
                groups.setdefault("extents", []).append(self.sizes[axis])
            elif one.kind == "block":
                groups.setdefault("blocks", []).append(f"{one.name}={self._block(axis, roles, config)}")
            else:
                raise InputError(f"{name}: argument {one.name!r} is of a kind that export does not know")
        groups.setdefault("blocks", [])
        groups["blocks"] += [f"{name}={value}" for name, value in config.options.items()]
        programs = [
            self.sizes[axis] if tile == 1 else f"triton.cdiv({self.sizes[axis]}, {tile})"
            for axis, tile in source.grid
        ]
        count = " * ".join(programs) or "1"
        if config.persistent:
            count = f"min({count}, {config.persistent} * _processors({self.device}))"
        return [
            f"{name}[({count},)](",
            *(line for group in groups.values() for line in wrapped(group)),
            ")",
        ]

    def _described(
        self, name: str, one: Argument, held: Held, roles: Mapping[str, Role], config: TritonConfig
    ) -> list[str]:
        """Return the lines that make a tensor descriptor."""
        sides = [
            self._block(axis, roles, config) if side > 1 and roles.get(axis) == "whole" else str(side)
            for axis, side in one.seen
        ]
        return [
            f"{name} = _descriptor(",
            f"    {held.variable},",
            f"    {tuple_text([self.sizes[axis] for axis, _ in one.seen])},",
            f"    {tuple_text([held.strides[axis] for axis, _ in one.seen])},",
            f"    {tuple_text(sides)},",
            ")",
        ]

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
