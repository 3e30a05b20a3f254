"""Keys: everything a result depends on, by name, and the hash of it all.

A key is total: each kind has a fixed list of parts, and one that is missing, empty or unknown is an
error. What depends on less than the whole program gives one program the result of another.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from superopt._version import __version__
from superopt.errors import InputError

if TYPE_CHECKING:
    from superopt.ir import Graph, MuGraph

__all__ = [
    "KINDS",
    "PARTS",
    "Key",
    "Kind",
    "canonical_json",
    "key_of",
    "program_text",
    "version_of",
    "versions",
]

Kind = Literal["search", "plan", "measurement", "result", "pending"]
KINDS: tuple[Kind, ...] = get_args(Kind)

RECORDS = 1
"""The version of what the records hold; a new number makes every older record a miss."""

_DECIDING = (
    *("codegen", "dtypes", "frontier", "ir", "ops", "precision"),
    *("rules", "schedule", "trace", "verify"),
)

PARTS: Mapping[Kind, tuple[str, ...]] = {
    "search": ("program", "device", "options", "superopt", "torch"),
    "plan": ("program", "device", "options", "superopt", "torch", "compiler"),
    "result": ("program", "device", "options", "superopt", "torch", "compiler"),
    "measurement": (
        "program",
        "kernel",
        "configuration",
        "device",
        "options",
        "superopt",
        "torch",
        "compiler",
    ),
    "pending": ("program", "device", "options", "superopt", "torch", "compiler"),
}
"""What each kind of result depends on.

program        its whole canonical text (`program_text`): axes, sizes, layouts, dtypes, steps
kernel         the muGraph's text, or the name of a baseline ("torch.compile max-autotune")
configuration  tile sizes, warps, stages and so on
device         the device's name, as its driver gives it, or the target a plan was made for; of a search: any
options        every option that changes the result; for a measurement, how it was measured
superopt, torch, compiler   versions (`versions`), "none" where there is none; the first has a hash of
                            the code that decides which kernels are made
"""


@dataclass(frozen=True, slots=True)
class Key:
    """The name of one result: its kind, the hash of all its parts, and the parts as JSON. See `key_of`."""

    kind: Kind
    digest: str
    text: str

    @property
    def parts(self) -> dict[str, Any]:
        """The parts by name."""
        return cast(dict[str, Any], json.loads(self.text))


def key_of(kind: Kind, /, **parts: Any) -> Key:
    """Return the key of a result, from every part that its kind has (see `PARTS`).

    A part is text, a number, a dataclass, or lists and mappings of these; a Key stands for its digest.
    """
    if kind not in PARTS:
        raise InputError(f"no kind of record is named {kind!r}; there are {', '.join(KINDS)}")
    wanted = PARTS[kind]
    if missing := [name for name in wanted if name not in parts]:
        raise InputError(f"the key of a {kind} needs {', '.join(missing)}: it depends on {', '.join(wanted)}")
    if unknown := [name for name in parts if name not in wanted]:
        raise InputError(f"the key of a {kind} has no part {', '.join(unknown)}; it has {', '.join(wanted)}")
    plain = {name: _plain(parts[name], name) for name in wanted}
    if empty := [name for name, value in plain.items() if value is None or value == ""]:
        raise InputError(f"the key of a {kind} has nothing in {', '.join(empty)}; write 'none' for none")
    text = canonical_json(plain)
    return Key(kind, hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest(), text)


def program_text(graph: "Graph | MuGraph", *, open_axes: Iterable[str] = ()) -> str:
    """Return the canonical text of a graph or muGraph: all but its name, and the sizes of open axes as `*`.

    An open axis is one whose size does not matter; say in the options which range of sizes is meant.
    A Program has no such text, since opaque operators hide their arguments: key its regions.
    """
    head, axes, *rest = str(graph).splitlines()
    if not (head.startswith("graph ") and axes.startswith("axes")):
        raise InputError(f"{type(graph).__name__} has no canonical text; give a Graph or a MuGraph")
    sizes = dict(item.split("=", 1) for item in axes.split()[1:])
    for axis in open_axes:
        if axis not in sizes:
            raise InputError(f"open axis {axis!r}: the program has only {', '.join(sizes) or 'none'}")
        sizes[axis] = "*"
    axes = " ".join(["axes", *(f"{name}={size}" for name, size in sizes.items())])
    return "\n".join([axes, *rest]) + "\n"


def versions() -> dict[str, str]:
    """Return the parts `superopt`, `torch` and `compiler` of this installation; imports neither.

    A search has no part `compiler`: `key_of("search", ..., superopt=..., torch=...)`.
    """
    compiler = f"triton {version_of('triton')}"
    fusion = os.environ.get("TRITON_DEFAULT_FP_FUSION")
    if fusion is not None:  # it changes what the compiler makes of the same source
        compiler += f" fp_fusion={fusion}"
    return {
        "superopt": f"{__version__} records {RECORDS} kernels {_kernels()}",
        "torch": version_of("torch"),
        "compiler": compiler,
    }


def canonical_json(value: Any) -> str:
    """Return the one JSON text of plain data: sorted, without spaces, in ASCII, finite."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@functools.cache
def _kernels() -> str:
    """Return the version of the code that finds, proves and writes kernels."""
    found = hashlib.sha256()
    for room in _DECIDING:
        spec = find_spec(f"superopt.{room}")  # which imports nothing of it
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin)
        inside = root.name == "__init__.py"
        paths = sorted((*root.parent.rglob("*.py"), *root.parent.rglob("*.hpp"))) if inside else [root]
        for path in paths:
            name = path.relative_to(root.parent).as_posix()
            found.update(f"{room}/{name}".encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


@functools.cache
def version_of(package: str) -> str:
    """Return the version of an installed package, which is not imported; "none" where there is none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _plain(value: Any, where: str) -> Any:
    """Return a part as JSON has it, or refuse what could print alike for different values."""
    if isinstance(value, Key):
        return value.digest
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        if bad := [name for name in value if not isinstance(name, str)]:
            raise InputError(f"the name {bad[0]!r} in {where} is not text")
        return {name: _plain(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, float) and value - value != 0:
        raise InputError(f"{where} is {value!r}; a key takes finite numbers")
    if type(value) in (str, int, float, bool, type(None)):
        return value
    raise InputError(f"{where} is a {type(value).__name__}; a key takes text, numbers, lists and mappings")
