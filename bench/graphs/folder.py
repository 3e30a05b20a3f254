"""Folder: which graphs a folder holds, and a sample of them that takes families in turn."""

import ast
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from superopt.errors import InputError

__all__ = ["MODEL", "TensorMeta", "drawn", "family_of", "graphs_of", "read_tensors"]

MODEL = "model.py"
"""The file of a graph that has its code: a module named GraphModule."""

_TENSORS = ("input_meta.py", "weight_meta.py")
_BYTES = {"64": 8, "32": 4, "16": 2}


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a file says of one input of a graph: its shape and dtype, and what its numbers are like."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None = None
    std: float | None = None
    min_val: float | None = None
    max_val: float | None = None
    data: tuple[float, ...] | None = None

    @property
    def bytes(self) -> int:
        """How many bytes the tensor takes."""
        return prod(self.shape) * next((size for bits, size in _BYTES.items() if bits in self.dtype), 1)


def graphs_of(folder: Path) -> list[str]:
    """Return the names of all graphs: the paths below the folder that have a model's file."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}")
    found = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob(MODEL))
    if not found:
        raise InputError(f"{str(folder)!r} has no graphs: no folder in it has a {MODEL}")
    return found


def family_of(name: str) -> str:
    """Return the family of a graph: the first part of its path."""
    return name.partition("/")[0]


def drawn(names: Iterable[str], seed: int) -> list[str]:
    """Return all names, shuffled by a seed, families in turn: each beginning of the list is a sample."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    draw = random.Random(seed)
    for several in families.values():
        draw.shuffle(several)
    most = max(map(len, families.values()), default=0)
    return [several[at] for at in range(most) for several in families.values() if at < len(several)]


def read_tensors(graph: Path) -> list[TensorMeta]:
    """Return what the files of a graph say of its inputs. They are read as data; nothing in them is run."""
    found: list[TensorMeta] = []
    for file in _TENSORS:
        path = graph / file
        if not path.exists():
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [_meta(node) for node in tree.body if isinstance(node, ast.ClassDef)]
        except (OSError, SyntaxError, TypeError, ValueError) as error:
            raise InputError(f"cannot read {file}: {error}") from error
    return found


def _meta(node: ast.ClassDef) -> TensorMeta:
    known = {field.name for field in fields(TensorMeta)}
    said: dict[str, Any] = {}
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            if name in known:
                said[name] = _value(line.value)
    return TensorMeta(**_frozen(said))


def _frozen(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}


def _value(node: ast.expr) -> Any:
    """Return what an expression says: a literal, or a float by its name as in `float('nan')`."""
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
        return float(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)
