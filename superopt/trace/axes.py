"""Axes: which index ranges are one and the same, and how they split into factors.

A dimension is a tuple of axes, outermost first; () has extent 1. Two operations make everything
agree, both global: `split` turns an axis into factors wherever it occurs, `merge` makes two axes
one. Two axes that occur together in some value are never merged: that would take a diagonal.
"""

from collections.abc import Iterable
from math import prod

__all__ = ["Axes", "Dim"]

Dim = tuple[int, ...]


class Axes:
    """All axes of one trace, by number: sizes, merges, splits, and who occurs with whom."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parent: list[int] = []
        self._factors: dict[int, Dim] = {}
        self._together: list[int] = []  # a bit for every axis it occurs with
        self._twins: dict[int, set[int]] = {}  # axes of one rename: they split alike
        self.version = 0  # grows whenever an axis merges or splits

    def fresh(self, size: int) -> int:
        """Return a new axis."""
        self.sizes.append(size)
        self._parent.append(len(self._parent))
        self._together.append(0)
        return len(self._parent) - 1

    def dim(self, size: int) -> Dim:
        """Return a dimension of this extent on a new axis; extent 1 needs none."""
        return () if size == 1 else (self.fresh(size),)

    def extent(self, dim: Iterable[int]) -> int:
        """Return the number of indices of a dimension."""
        return prod(self.sizes[axis] for axis in dim)

    def root(self, axis: int) -> int:
        """Return the axis that this one was merged into."""
        while self._parent[axis] != axis:
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def leaves(self, dim: Iterable[int]) -> Dim:
        """Return the dimension as axes that are neither merged nor split any further."""
        found: list[int] = []
        for axis in dim:
            axis = self.root(axis)
            factors = self._factors.get(axis)
            found.extend((axis,) if factors is None else self.leaves(factors))
        return tuple(found)

    def meet(self, dim: Iterable[int]) -> None:
        """Note that these axes occur together in one value."""
        leaves = self.leaves(dim)
        bits = 0
        for axis in leaves:
            bits |= 1 << axis
        for axis in leaves:
            self._together[axis] |= bits & ~(1 << axis)

    def met(self, a: int, b: int) -> bool:
        """Return whether two leaf axes occur together in some value."""
        return bool(self._together[a] >> b & 1)

    def merge(self, a: int, b: int) -> None:
        """Make leaf b the same axis as leaf a; they have equal sizes and never met."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        assert self.sizes[a] == self.sizes[b]
        assert not self.met(a, b)
        self._parent[b] = a
        self._together[a] |= self._together[b]
        for axis, bits in enumerate(self._together):
            if bits >> b & 1:
                self._together[axis] = bits & ~(1 << b) | 1 << a
        for twin in self._twins.pop(b, set()):
            self._twins[twin].discard(b)
            if twin != a:
                self.pair(a, twin)
        self.version += 1

    def pair(self, a: int, b: int) -> None:
        """Note that a rename maps leaf a to leaf b, so that they must split alike."""
        if a != b:
            self._twins.setdefault(a, set()).add(b)
            self._twins.setdefault(b, set()).add(a)

    def twin(self, axis: int) -> int:
        """Return a new axis that splits like this leaf."""
        made = self.fresh(self.sizes[axis])
        self.pair(axis, made)
        return made

    def split(self, axis: int, sizes: tuple[int, ...]) -> None:
        """Turn a leaf, and all that must split alike, into factors of these sizes."""
        group = {axis}
        stack = [axis]
        while stack:
            for twin in self._twins.get(stack.pop(), ()):
                if twin not in group:
                    group.add(twin)
                    stack.append(twin)
        for member in group:
            self._split_one(member, sizes)
        for member in group:
            for twin in self._twins.pop(member, set()):
                for a, b in zip(self._factors[member], self._factors[twin], strict=True):
                    self.pair(a, b)
        self.version += 1

    def _split_one(self, axis: int, sizes: tuple[int, ...]) -> None:
        assert prod(sizes) == self.sizes[axis]
        assert 1 not in sizes
        factors = tuple(self.fresh(size) for size in sizes)
        self._factors[axis] = factors
        all_bits = sum(1 << factor for factor in factors)
        for other, bits in enumerate(self._together):
            if bits >> axis & 1:
                self._together[other] = bits & ~(1 << axis) | all_bits
        for factor in factors:
            self._together[factor] |= self._together[axis] | all_bits & ~(1 << factor)

    def cut(self, dim: Dim, sizes: tuple[int, ...]) -> tuple[Dim, ...] | None:
        """Return a dimension cut into consecutive ones of these extents, or None where axes don't factor.

        Splits what it must. The extents are positive and multiply to the dimension's.
        """
        leaves = list(self.leaves(dim))
        parts: list[Dim] = []
        for size in sizes:
            part: list[int] = []
            while size > 1:
                axis = leaves.pop(0)
                own = self.sizes[axis]
                if own > size:
                    if own % size:
                        return None
                    self.split(axis, (size, own // size))
                    axis, rest = self._factors[axis]
                    leaves = [factor for leaf in (rest, *leaves) for factor in self.leaves((leaf,))]
                    own = size
                elif size % own:
                    return None
                part.append(axis)
                size //= own
            parts.append(tuple(part))
        return tuple(self.leaves(part) for part in parts)

    def match(self, a: Dim, b: Dim) -> bool:
        """Split axes until two dimensions of equal extent have equal factors; False where none fit."""
        while True:
            left, right = self.leaves(a), self.leaves(b)
            for p, q in zip(left, right, strict=False):
                small, large = sorted((p, q), key=lambda axis: self.sizes[axis])
                if self.sizes[small] == self.sizes[large]:
                    continue
                if self.sizes[small] == 0 or self.sizes[large] % self.sizes[small]:
                    return False
                size = self.sizes[small]
                self.split(large, (size, self.sizes[large] // size))
                break
            else:
                return len(left) == len(right)

    def grid(self, dim: Dim) -> tuple[tuple[int, Dim], ...]:
        """Return each leaf of a dimension with the leaves inside it, whose extents make its stride."""
        leaves = self.leaves(dim)
        return tuple((axis, leaves[i + 1 :]) for i, axis in enumerate(leaves))

    def position(self, dim: Dim, index: int) -> dict[int, int]:
        """Return the position on every leaf of a dimension that a flat index stands for."""
        found = {}
        for axis in reversed(self.leaves(dim)):
            index, found[axis] = divmod(index, self.sizes[axis])
        return found

    def twins(self, axis: int) -> frozenset[int]:
        """Return the leaves that this leaf is renamed to or from."""
        return frozenset(self.root(twin) for twin in self._twins.get(axis, ()))
