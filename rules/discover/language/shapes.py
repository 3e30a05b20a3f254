"""Shapes of tensors as words of symbols, and the most general shapes that a rule allows.

A dimension is a word: a sequence of symbols, each of which stands for any size. A concatenation joins two
words, and a split cuts a word in two. While graphs are enumerated every symbol is one unit, so a dimension
is as long as its word. Equal dimensions are equal symbol by symbol, so unification is a union-find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["SCALAR", "Shape", "Symbols", "Word", "halves", "simplified"]

Word = tuple[str, ...]
"""A dimension: the sum of these symbols."""

Shape = tuple[Word, ...]
"""Rows and columns of a matrix, or nothing for a scalar."""

SCALAR: Shape = ()

_LETTERS = "mknpqrtuvwxyz"


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
        while (parent := self.parents.get(symbol, symbol)) != symbol:
            symbol = parent
        return symbol

    def same(self, left: Word, right: Word) -> bool:
        """Make two words equal; return whether that is possible."""
        if len(left) != len(right):
            return False
        for one, other in zip(left, right, strict=True):
            roots = sorted((self.find(one), self.find(other)))
            self.parents[roots[1]] = roots[0]
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
    for symbol in (symbol for word in words for symbol in word):
        if symbol not in names:
            names[symbol] = _LETTERS[len(names)] if len(names) < len(_LETTERS) else f"d{len(names)}"
    return [tuple(names[symbol] for symbol in word) for word in words]


def _inseparable(words: Sequence[Word]) -> tuple[str, str] | None:
    """Return two symbols that never occur but one after the other."""
    total = Counter(symbol for word in words for symbol in word)
    pairs = Counter(pair for word in words for pair in pairwise(word))
    return next(
        (
            (one, two)
            for (one, two), count in pairs.items()
            if one != two and count == total[one] == total[two]
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
