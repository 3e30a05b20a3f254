"""Shapes of tensors as words of symbols, and the most general shapes that a rule allows.

A dimension is a word: a sequence of symbols, each of which stands for any size. A concatenation joins two
words, and a split cuts a word in two. While graphs are enumerated every symbol is one unit, so a dimension
is as long as its word. Equal dimensions are equal symbol by symbol, so unification is a union-find.

A symbol of digits is a size itself. A symbol may also be computed from others: `out(h, r)` is what a window
of size r leaves of h, `half(h)` is every second place of h, and `wide(r)` is r with one more at either end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = [
    "SCALAR",
    "Shape",
    "Symbols",
    "Word",
    "atoms",
    "computed",
    "halves",
    "replaced",
    "simplified",
    "size_of",
]

Word = tuple[str, ...]
"""A dimension: the sum of these symbols."""

Shape = tuple[Word, ...]
"""The dimensions of a tensor, or nothing for a scalar."""

SCALAR: Shape = ()

_LETTERS = "mknpqrtuvwxyz"
_SIZES: Mapping[str, Callable[..., int]] = {
    "out": lambda size, window: size - window + 1,
    "half": lambda size: (size + 1) // 2,
    "wide": lambda size: size + 2,
}
_ATOM = re.compile(r"\w+(?!\w*\()")


def computed(function: str, *symbols: str) -> str:
    """Return the symbol of a size that is computed from others."""
    if all(symbol.isdigit() for symbol in symbols):
        return str(_SIZES[function](*map(int, symbols)))
    return f"{function}({','.join(symbols)})"


def _taken_apart(symbol: str) -> tuple[str, list[str]] | None:
    """Return the function and the arguments of a computed symbol, None for any other."""
    function, bracket, inside = symbol.partition("(")
    if not bracket:
        return None
    arguments, depth, start = [], 0, 0
    inside = inside[:-1]
    for at, sign in enumerate(inside):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            arguments.append(inside[start:at])
            start = at + 1
    return function, [*arguments, inside[start:]]


def replaced(symbol: str, name: Callable[[str], str]) -> str:
    """Return a symbol with the symbols that it is computed from replaced."""
    parts = _taken_apart(symbol)
    if parts is None:
        return symbol if symbol.isdigit() else name(symbol)
    return computed(parts[0], *(replaced(part, name) for part in parts[1]))


def atoms(symbol: str) -> list[str]:
    """Return the symbols that a symbol is computed from: itself, where it stands for any size."""
    return [name for name in _ATOM.findall(symbol) if not name.isdigit()]


def size_of(symbol: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a symbol; it may be less than 1 where a window is larger than what it moves over."""
    parts = _taken_apart(symbol)
    if parts is None:
        return int(symbol) if symbol.isdigit() else sizes[symbol]
    return _SIZES[parts[0]](*(size_of(part, sizes) for part in parts[1]))


@dataclass(slots=True)
class Symbols:
    """Symbols that must be equal, found as graphs are typed."""

    parents: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def fresh(self, length: int) -> Word:
        """Return a word of symbols that nothing has asked to be equal yet."""
        self.made += length
        return tuple(f"_{number:03d}" for number in range(self.made - length, self.made))

    def find(self, symbol: str) -> str:
        """Return the symbol that stands for all symbols equal to this one."""
        if "(" in symbol:
            return replaced(symbol, self.find)
        while (parent := self.parents.get(symbol, symbol)) != symbol:
            if "(" in parent:
                return replaced(parent, self.find)
            symbol = parent
        return symbol

    def same(self, left: Word, right: Word) -> bool:
        """Make two words equal; return whether that is possible."""
        return len(left) == len(right) and all(map(self._joined, left, right))

    def _joined(self, left: str, right: str) -> bool:
        one, other = sorted((self.find(left), self.find(right)), key=lambda name: ("(" not in name, name))
        if one == other:
            return True
        if "(" in other:
            (function, parts), (another, others) = (
                _taken_apart(one) or ("", []),
                _taken_apart(other) or ("", []),
            )
            return function == another and all(map(self._joined, parts, others))
        if other.isdigit() or (other in atoms(one) and "(" in one):
            return False
        self.parents[other] = one
        return True

    def resolved(self, shape: Shape) -> Shape:
        """Return a shape with each symbol replaced by the one that stands for it."""
        return tuple(tuple(self.find(symbol) for symbol in word) for word in shape)


def halves(word: Word) -> tuple[Word, Word] | None:
    """Return the two halves of a word of units, None where it has no middle."""
    half = len(word) // 2
    return (word[:half], word[half:]) if word and not len(word) % 2 else None


def simplified(words: Sequence[Word]) -> list[Word]:
    """Return words with the fewest symbols, named by letters in the order in which they are met.

    Where `x y` occurs only as a whole its size is one number, so it becomes one symbol.
    """
    words = list(words)
    while (pair := _inseparable(words)) is not None:
        words = [_merged(word, pair) for word in words]
    names: dict[str, str] = {}
    for atom in (atom for word in words for symbol in word for atom in atoms(symbol)):
        if atom not in names:
            names[atom] = _LETTERS[len(names)] if len(names) < len(_LETTERS) else f"d{len(names)}"
    return [tuple(replaced(symbol, names.__getitem__) for symbol in word) for word in words]


def _inseparable(words: Sequence[Word]) -> tuple[str, str] | None:
    """Return two symbols that never occur but one after the other."""
    total = Counter(atom for word in words for symbol in word for atom in atoms(symbol))
    pairs = Counter(pair for word in words for pair in pairwise(word))
    return next(
        (
            (one, two)
            for (one, two), count in pairs.items()
            if one != two and count == total.get(one) == total.get(two)
        ),
        None,
    )


def _merged(word: Word, pair: tuple[str, str]) -> Word:
    found: list[str] = []
    for symbol in word:
        if found and (found[-1], symbol) == pair:
            found[-1] = f"{pair[0]}{pair[1]}"
        else:
            found.append(symbol)
    return tuple(found)
