"""Rounding: where a program computes what a cast rounds away, as x - x.bfloat16().float() does.

A cast to a float is the identity of the algebra, in which that difference would be 0, and a comparison of
the two sides would be known. So each tensor is followed by the casts that it went through to a shorter float,
or from integers to a float that does not hold them all.
Where one value meets itself, and went through other casts on one side than on the other, those casts are no
algebra: they stay calls of PyTorch's. So do those whose results, or views of them, go where the least
change makes a jump: into a comparison, a rounding to whole numbers, the choice of an element, a view of bits.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import isfinite, log2

import torch

from superopt.ir import COMPARISONS
from superopt.trace.builder import Builder, Sym
from superopt.trace.capture.tape import Call, operator_of, refs
from superopt.trace.integers import is_held

__all__ = ["JUMPING", "Roundings"]

JUMPING = frozenset(
    {
        "sort", "argsort", "topk", "argmax", "argmin", "max", "min", "sign", "round", "floor", "ceil",
        "trunc", "frac", "fmod", "remainder", "kthvalue", "median", "mode", "searchsorted", "bucketize",
        "unique", "floor_divide",
    }
)  # fmt: skip
"""Operators whose results jump where numbers are equal or whole."""

_TRUTH = frozenset(
    {"sgn", "isinf", "any", "all", "nonzero", "logical_and", "logical_not", "logical_or", "logical_xor"}
)
"""Operators that ask whether numbers are 0, or infinite, or which sign they have."""

_TO_WHOLE = frozenset({"_to_copy", "sum", "prod", "cumsum", "cumprod"})
"""Operators that drop fractions where they are given a dtype of integers."""


class Roundings:
    """The casts to shorter floats that the tensors of a tape went through."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._casts: dict[tuple[int, torch.dtype], int] = {}  # a value and what it was cast to -> its bit
        self._calls: list[list[int]] = []  # the calls that are such a cast, by its bit
        self._dtypes: list[torch.dtype] = []  # what they cast to
        self._signed = 0  # the bits of casts that keep the sign of every number
        self._passed: dict[int, int] = {}  # position on the tape -> the bits of the casts it went through
        self._only: dict[int, int] = {}  # the same, of tensors that nothing but casts and views made since
        self.met: set[int] = set()  # the calls of casts whose rounding some other call computes

    def follow(
        self,
        number: int,
        reads: Sequence[int],
        made: Mapping[int, Sym],
        tensors: Mapping[int, Sym],
        first: int,
        *,
        views: bool,
    ) -> None:
        """Note what a call reads and makes, by position on the tape; its values are those from `first` on.

        `views` says that it only gives what it reads other dimensions.
        """
        passed = [self._passed.get(index, 0) for index in reads]
        bits = 0
        for one in passed:
            bits |= one
        if any(one != bits for one in passed):
            values = {*range(first, len(self._builder.nodes)), *(sym.value for sym in made.values())}
            if any(self._cancels(value) for value in values):
                self._meet(passed)
        for index, sym in made.items():
            casts = [tensors[read] for read in reads if tensors[read].value == sym.value]
            own = any(self._rounds(source, sym.dtype) for source in casts)
            bit = self._bit(number, sym) if own else 0
            self._passed[index] = bits | bit
            kept = reads if views else [read for read in reads if tensors[read].value == sym.value]
            for read in kept:
                bit |= self._only.get(read, 0)
            if bit:
                self._only[index] = bit

    def _rounds(self, source: Sym, dtype: torch.dtype) -> bool:
        """Whether a cast may round: small whole numbers stay what they are in any float, as others do."""
        if not _shortens(source.dtype, dtype):
            return False
        number = self._builder.constant(source.value)
        if number is not None:
            rounded = float(torch.tensor(float(number), dtype=torch.float64).to(dtype))
            return not isfinite(rounded) or Fraction(rounded) != number
        return source.dtype.is_floating_point or not is_held(self._builder, source, 1 << (_bits(dtype) - 1))

    def jump(self, call: Call, used: Collection[int], stored: Mapping[int, torch.dtype]) -> None:
        """Note the casts whose rounding decides where the results of a call jump, if they do.

        A tensor that is `stored` in the dtype of the cast holds rounded numbers anyway.
        """
        if not _jumps(call, used):
            return
        spared = self._signed if _is_with_zero(call) else 0
        for index in refs((call.args, call.kwargs)):
            for at in self._bits_of(self._only.get(index, 0) & ~spared):
                if stored.get(index) != self._dtypes[at]:
                    self.met.update(self._calls[at])

    def _bits_of(self, bits: int) -> list[int]:
        return [at for at in range(len(self._calls)) if bits >> at & 1]

    def _bit(self, number: int, sym: Sym) -> int:
        at = self._casts.setdefault((sym.value, sym.dtype), len(self._calls))
        if at == len(self._calls):
            self._calls.append([])
            self._dtypes.append(sym.dtype)
            self._signed |= (1 << at) * (sym.dtype == torch.bfloat16)
        self._calls[at].append(number)
        return 1 << at

    def _meet(self, passed: Iterable[int]) -> None:
        """Note the casts that some of the sides went through, and not all."""
        some, every = 0, -1
        for one in passed:
            some, every = some | one, every & one
        for at in self._bits_of(some & ~every):
            self.met.update(self._calls[at])

    def _cancels(self, value: int) -> bool:
        """Return whether a value is a difference of one value with itself, or compares these."""
        node = self._builder.nodes[value]
        if len(node.inputs) != 2 or node.tensorless:
            return False
        left, right = node.inputs
        if node.op == "sub" or node.op in COMPARISONS:
            return left == right
        return node.op == "add" and (self._is_negative(left, right) or self._is_negative(right, left))

    def _is_negative(self, value: int, other: int) -> bool:
        """Return whether a value is the negative of another one."""
        node = self._builder.nodes[value]
        if node.op == "neg":
            return node.inputs == (other,)
        factors = [self._builder.constant(one) for one in node.inputs if one != other]
        return node.op == "mul" and other in node.inputs and factors == [-1]


def _jumps(call: Call, used: Collection[int]) -> bool:
    """Return whether the least change of a number may change what a call makes by much."""
    name, dtype = operator_of(call.target), call.kwargs.get("dtype")
    if name in ("max", "min"):  # their values are continuous
        return any(one in used for one in call.outputs[1:])
    to_whole = name in _TO_WHOLE and isinstance(dtype, torch.dtype) and not dtype.is_floating_point
    of_bits = name == "view" and any(isinstance(one, torch.dtype) for one in call.args)
    return name in COMPARISONS or name in JUMPING or name in _TRUTH or to_whole or of_bits


def _is_with_zero(call: Call) -> bool:
    """Whether a call compares a tensor with 0."""
    compares = operator_of(call.target) in COMPARISONS
    return compares and any(type(one) in (int, float) and one == 0 for one in call.args)


def _shortens(old: torch.dtype, new: torch.dtype) -> bool:
    """Return whether a float dtype cannot hold all numbers of another dtype."""
    if old == torch.bool or not new.is_floating_point:
        return False
    if not old.is_floating_point:
        return torch.iinfo(old).bits > _bits(new)
    if 1 in (old.itemsize, new.itemsize):
        return False
    return torch.promote_types(old, new) != new


def _bits(dtype: torch.dtype) -> int:
    """Return how many bits whole numbers may have that a float dtype holds, with their signs."""
    return 2 - int(log2(torch.finfo(dtype).eps))
