"""Machine: devices in levels, such as GPUs in nodes, with the links of each level, read from a short text.

    node=2 @ 10 GB/s 5 us, gpu=4 @ 200 GB/s 2 us own, device 80 GB 300 TFLOP/s 2 TB/s

The outermost level comes first. `node=2 @ 10 GB/s` says that there are two nodes and that each node reaches
the others over a link of 10 GB/s in each direction, which all devices in the node share; with `own` every
device in it has such a link to itself. The last part says what a device holds and computes; a time in it,
such as `20 us`, is what passes until a collective begins.
"""

import re
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError

__all__ = ["Device", "Level", "Machine", "parse_machine"]

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NAME = r"[A-Za-z_]\w*"
_NUMBER = r"\d+(?:\.\d+)?(?:[eE]\d+)?"
_LEVEL = re.compile(rf"(?P<name>{_NAME})\s*=\s*(?P<count>\d+)\s*(?:@\s*(?P<links>.+))?")
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[A-Za-z/]+)")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_MOST_DEVICES = 1 << 16
_EXAMPLE = "write for example 'node=2 @ 10 GB/s, gpu=4 @ 200 GB/s'"


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a machine: how many parts each part of the level above has, and the link of each part."""

    name: str
    count: int
    bytes_per_s: float = 100e9  # in each direction
    latency_s: float = 5e-6
    shared: bool = True  # whether all devices of a part share its link

    def __str__(self) -> str:
        own = "" if self.shared else " own"
        return f"{self.name}={self.count} @ {self.bytes_per_s / 1e9:g} GB/s {self.latency_s * 1e6:g} us{own}"


@dataclass(frozen=True, slots=True)
class Device:
    """What one device holds and computes."""

    bytes: float = 80e9
    flops_per_s: float = 100e12
    bytes_per_s: float = 2e12
    begin_s: float = 0.0  # until a collective begins

    def __str__(self) -> str:
        speeds = f"{self.flops_per_s / 1e12:g} TFLOP/s {self.bytes_per_s / 1e9:g} GB/s"
        begin = f" {self.begin_s * 1e6:g} us" if self.begin_s else ""
        return f"device {self.bytes / 1e9:g} GB {speeds}{begin}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Levels, outermost first, and the device; devices are numbered with the last level running fastest."""

    levels: tuple[Level, ...]
    device: Device = Device()

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.levels, self.device)))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many parts each level has."""
        return tuple(level.count for level in self.levels)

    @property
    def devices(self) -> int:
        """The number of all devices."""
        return prod(self.counts)

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each device at each level: int[devices, levels]."""
        found = np.unravel_index(np.arange(self.devices), self.counts)
        return np.stack(found, axis=1).astype(np.int64)

    def level_named(self, name: str) -> int:
        """Return the position of a level, or raise InputError."""
        for at, level in enumerate(self.levels):
            if level.name == name:
                return at
        known = ", ".join(level.name for level in self.levels)
        raise InputError(f"the machine has no level {name!r}; its levels are {known}")


def parse_machine(text: str) -> Machine:
    """Return the machine that a text describes, or raise InputError at the first mistake."""
    levels: list[Level] = []
    device = Device()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.split()[0] == "device":
            device = _parse_device(part)
            continue
        match = _LEVEL.fullmatch(part)
        if match is None:
            raise InputError(f"machine: cannot read {part!r}; {_EXAMPLE}")
        if match["name"] in {level.name for level in levels}:
            raise InputError(f"machine: two levels are called {match['name']!r}; give each its own name")
        if int(match["count"]) < 1:
            raise InputError(f"machine: {part!r} has no parts; give a count of at least 1")
        levels.append(_parse_links(match["name"], int(match["count"]), match["links"] or "", part))
    if not levels:
        raise InputError(f"machine: there is no level; {_EXAMPLE}")
    machine = Machine(tuple(levels), device)
    if machine.devices > _MOST_DEVICES:
        raise InputError(f"machine: {machine.devices:,} devices; give at most {_MOST_DEVICES:,}")
    return machine


def _parse_links(name: str, count: int, links: str, part: str) -> Level:
    shared = True
    words = links.split()
    if words and words[-1] in ("shared", "own"):
        shared = words.pop() == "shared"
    level = Level(name, count, shared=shared)
    speed, latency = level.bytes_per_s, level.latency_s
    for number, unit in _quantities(" ".join(words), part):
        if unit in _SECONDS:
            latency = number * _SECONDS[unit]
        elif unit.endswith("B/s") and unit[:-3] in _UNITS:
            speed = number * _UNITS[unit[:-3]]
        else:
            raise InputError(f"machine: {unit!r} in {part!r} is no speed or time; {_EXAMPLE}")
    if not speed > 0:
        raise InputError(f"machine: the links of {part!r} carry nothing; give a speed above 0")
    return Level(name, count, speed, latency, shared)


def _parse_device(part: str) -> Device:
    usual = Device()
    values = {"B": usual.bytes, "FLOP/s": usual.flops_per_s, "B/s": usual.bytes_per_s}
    begin = usual.begin_s
    for number, unit in _quantities(part.removeprefix("device"), part):
        if unit in _SECONDS:
            begin = number * _SECONDS[unit]
            continue
        kind = next((kind for kind in ("FLOP/s", "B/s", "B") if unit.endswith(kind)), None)
        if kind is None or unit.removesuffix(kind) not in _UNITS or not number > 0:
            raise InputError(f"machine: cannot read {part!r}; write 'device 80 GB 300 TFLOP/s 2 TB/s'")
        values[kind] = number * _UNITS[unit.removesuffix(kind)]
    return Device(values["B"], values["FLOP/s"], values["B/s"], begin)


def _quantities(text: str, part: str) -> list[tuple[float, str]]:
    rest = _QUANTITY.sub("", text).strip()
    if rest:
        raise InputError(f"machine: cannot read {rest!r} in {part!r}; {_EXAMPLE}")
    return [(float(match["number"]), match["unit"]) for match in _QUANTITY.finditer(text)]
