"""Text: unique names, and lines that stay short enough to read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["WIDTH", "Lines", "Mentions", "Names", "Table", "index_of"]

WIDTH = 110
_RESERVED = frozenset(
    {
        "tl",
        "triton",
        "pid",
        "range",
        "float",
        "expm1",
        "fp16_scale",
        "larger",
        "log1p",
        "long_sum",
        "power",
        "tanh",
        "print",
        "min",
        "max",
        "sum",
    }
)


@dataclass(slots=True)
class Names:
    """The names that are taken."""

    taken: set[str] = field(default_factory=lambda: set(_RESERVED))

    def take(self, *wanted: str) -> str:
        """Return the first wanted name that is free, or the last one with underscores behind it."""
        clean = [re.sub(r"\W", "_", name) for name in wanted]
        name = next((one for one in clean if one not in self.taken), clean[-1])
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


_K = TypeVar("_K")


@dataclass(slots=True)
class Mentions:
    """The names that what is being printed mentions, so that only these are defined."""

    found: set[str] = field(default_factory=set)

    def table(self, names: Mapping[_K, str]) -> "Table[_K]":
        """Return a table of names that notes which of them are asked for."""
        return Table(names, self)


class Table(dict[_K, str]):
    """Names that count as mentioned once they are asked for by `[...]`; `get` and `items` only look."""

    def __init__(self, names: Mapping[_K, str], mentions: Mentions) -> None:
        super().__init__(names)
        self._mentions = mentions

    def __getitem__(self, key: _K) -> str:
        name = super().__getitem__(key)
        self._mentions.found.add(name)
        return name


@dataclass(slots=True)
class Lines:
    """The lines of one block, without its indentation."""

    found: list[str] = field(default_factory=list)

    def add(self, line: str, comment: str | None = None) -> None:
        """Add a line, its comment behind it or, where that is too long, above it."""
        if comment is None:
            self.found.append(line)
        elif len(line) + len(comment) + 4 <= WIDTH - 8:
            self.found.append(f"{line}  # {comment}")
        else:
            self.found += [f"# {comment}", line]

    def assign(self, name: str, text: str, comment: str) -> None:
        """Add an assignment."""
        self.add(f"{name} = {text}", comment)

    def call(
        self,
        before: str,
        function: str,
        arguments: Sequence[str],
        after: str = "",
        comment: str | None = None,
    ) -> None:
        """Add a call, one argument a line where it is too long for one line."""
        line = f"{before}{function}({', '.join(arguments)}){after}"
        if len(line) <= WIDTH - 8:
            self.add(line, comment)
            return
        self.found += [f"# {comment}"] if comment else []
        self.found += [f"{before}{function}(", *(f"    {one}," for one in arguments), f"){after}"]


def index_of(axes: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the index that spreads a tile over more axes: `:, None`."""
    return ", ".join(":" if axis in axes else "None" for axis in wanted)
