"""Terms: all tensors that small graphs make, as arrays, and the operators applied to them as numbers.

A term is an input or one result of an application; an application is an operator with its operands, packed
into one integer (`code`). Terms are numbered from the inputs upwards, by the operators that they need and
then by code, so that the numbers do not depend on how the terms were found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.rules.discover.language.expressions import Apply, Expression, Input
from superopt.rules.discover.language.operators import Operator, Unifier
from superopt.rules.discover.language.shapes import Word, atoms, halves, size_of
from superopt.rules.discover.language.values import Numbers, Reals, fingerprints, given

__all__ = ["NOTHING", "UNARY", "Setting", "Terms", "Units", "first_terms", "pack", "unpack"]

Index = NDArray[np.int64]

NOTHING = -1
_BITS = 28  # the bits of a term's number in a code
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What graphs are made of, and what they are tested with."""

    operators: tuple[Operator, ...]
    inputs: tuple[tuple[str, Units], ...]  # each with its dimensions in units
    samples: int = 8
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Whether all numbers are fractions."""
        return all(operator.exact for operator in self.operators)

    def text(self) -> str:
        """Return all of it, for messages and checkpoints."""
        inputs = ", ".join(f"{name}[{', '.join(map('+'.join, sizes))}]" for name, sizes in self.inputs)
        names = ", ".join(operator.name for operator in self.operators)
        return f"{{{names}}} over {inputs}, {self.samples} samples, seed {self.seed}"


def pack(op: Index | int, left: Index, right: Index | int) -> Index:
    """Return the codes of applications."""
    codes: Index = (np.asarray(op, dtype=np.int64) << (2 * _BITS)) | (left << _BITS) | np.asarray(right)
    return codes


def unpack(codes: Index) -> tuple[Index, Index, Index]:
    """Return operators and both operands; the second operand of a unary operator is NOTHING."""
    right = codes & _MASK
    return codes >> (2 * _BITS), (codes >> _BITS) & _MASK, np.where(right == _MASK, NOTHING, right)


UNITS = {"u": 2, "r": 3, "b": 1, "c": 1, "y": 4, "z": 3, "k": 1, "j": 1}
"""The size of each unit.

Rows and columns `u` of a matrix are two: with one alone, a transpose or a product could look like nothing or
like mul. A matrix may have three rows `r` instead. Images have `y` rows and `z` columns, samples of one `b`
and channels of one `c`, and weights have windows of `k` rows and `j` columns, one each.
"""

_PLACES = {"y", "z"}  # the units that windows move over


def length(word: Word) -> int:
    """Return the size of a dimension."""
    return sum(size_of(unit, UNITS) for unit in word)


_CHUNK = 1 << 11  # applications evaluated at once
_BLOCK = 1 << 20  # applications that are looked at together: more would not fit into memory
_MOST_TERMS = (1 << 29) - 1

UNARY = _MASK
"""Stands in a code for the operand that a unary operator lacks."""


Units = tuple[Word, ...]
"""A shape while graphs are enumerated: each dimension is a word of units."""


_MOST_OPERATORS = 63
_MOST_SHAPES = 1 << 11


class Shapes:
    """The concrete shapes that occur, by number, and what each operator makes of them."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self.sizes: list[Units] = []
        self._number: dict[Units, int] = {}
        self._results: dict[tuple[int, ...], tuple[int, ...] | None] = {}
        self._takers: dict[int, NDArray[np.uint64]] = {}
        if len(operators) > _MOST_OPERATORS:
            raise InputError(f"{len(operators)} operators are too many; take at most {_MOST_OPERATORS}")

    def number(self, sizes: Units) -> int:
        """Return the number of a shape."""
        if sizes not in self._number:
            if len(self.sizes) + 1 >= _MOST_SHAPES:
                raise InputError("these graphs have too many shapes; take fewer operators or inputs")
            self._number[sizes] = len(self.sizes)
            self.sizes.append(sizes)
        return self._number[sizes]

    def results(self, op: int, *shapes: int) -> tuple[int, ...] | None:
        """Return the shapes that an operator makes of some shapes, or None where it cannot take them."""
        key = (op, *shapes)
        if key not in self._results:
            made = self.operators[op].typing([self.sizes[shape] for shape in shapes], _UNITS)
            if made is not None and min((length(word) for shape in made for word in shape), default=1) < 1:
                made = None  # a window that is larger than what it moves over
            self._results[key] = None if made is None else tuple(map(self.number, made))
        return self._results[key]

    def takers(self, left: Index, right: Index | None = None) -> NDArray[np.uint64]:
        """Return a bit for each operator that takes a shape, or two; none takes NOTHING."""
        arity = 1 if right is None else 2
        pairs = (left + 1) * _MOST_SHAPES + (0 if right is None else right + 1)
        table = self._takers.setdefault(arity, np.zeros(_MOST_SHAPES**arity, dtype=np.uint64))
        found = table[pairs] if right is not None else table[left + 1]
        fresh = found == 0
        if fresh.any():
            for pair in np.unique(pairs[fresh]).tolist():
                one, two = divmod(pair, _MOST_SHAPES)
                shapes = (one - 1,) if right is None else (one - 1, two - 1)
                bits = 1 << _MOST_OPERATORS  # what is known, though no operator takes it
                for op, operator in enumerate(self.operators if min(shapes) >= 0 else ()):
                    if operator.arity == arity and self.results(op, *shapes) is not None:
                        bits |= 1 << op
                table[pair if right is not None else one] = bits
            found = table[pairs] if right is not None else table[left + 1]
        return found & np.uint64((1 << _MOST_OPERATORS) - 1)


class _Given(Unifier):
    """Words of units, which are equal if they are the same.

    Weights have as many dimensions as images. A rule holds for all shapes that its operators take, so nothing
    is lost where images are no weights and weights no images.
    """

    def same(self, left: Word, right: Word) -> bool:
        return left == right

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        return halves(word)

    def may_move(self, place: Word, window: Word) -> bool:
        moved = all(_PLACES.issuperset(atoms(symbol)) and atoms(symbol) for symbol in place)
        return moved and self.may_grow(window)

    def may_grow(self, window: Word) -> bool:
        return not any(_PLACES.intersection(atoms(symbol)) for symbol in window)


_UNITS = _Given()


@dataclass(frozen=True)
class Terms:
    """All terms of up to so many operators, with their values."""

    setting: Setting
    shapes: Shapes
    codes: Index  # the codes of the applications, sorted
    firsts: NDArray[np.int32]  # the first result of each application
    code_of: Index  # the application of each term, NOTHING for inputs
    part_of: NDArray[np.int8]
    size_of: NDArray[np.int8]  # the number of operators of each term
    shape_of: NDArray[np.int32]
    fingerprint_of: NDArray[np.uint64]
    values: Mapping[int, Any]  # the values of the terms of each shape
    slot_of: NDArray[np.int32]  # the place of each term in the values of its shape

    def __len__(self) -> int:
        return len(self.code_of)

    def expression(self, term: int) -> Expression:
        """Return a term as a tree."""
        if self.code_of[term] == NOTHING:
            return Input(self.setting.inputs[term][0])
        return self.application(int(self.code_of[term]), int(self.part_of[term]))

    def application(self, code: int, part: int = 0) -> Expression:
        """Return a result of an application as a tree; it need not be one of the terms."""
        op, left, right = (int(word) for word in unpack(np.array(code)))
        operands = (left,) if right == NOTHING else (left, right)
        operator = self.setting.operators[op]
        return Apply(operator.name, tuple(self.expression(operand) for operand in operands), part)

    @cached_property
    def shape_count(self) -> int:
        """How many shapes the terms have."""
        return int(self.shape_of.max()) + 1

    def results(self, codes: Index) -> tuple[Index, Index]:
        """Return the first and second results of applications, NOTHING where they are no terms."""
        at = np.searchsorted(self.codes, codes).clip(max=max(len(self.codes) - 1, 0))
        known = self.codes[at] == codes if len(self.codes) else np.zeros(codes.shape, dtype=bool)
        first = np.where(known, self.firsts[at] if len(self.codes) else NOTHING, NOTHING).astype(np.int64)
        two = self.two_results(codes) & known
        return first, np.where(two, first + 1, NOTHING)

    def two_results(self, codes: Index) -> NDArray[np.bool_]:
        """Return which applications have two results."""
        two = np.array([operator.results > 1 for operator in self.setting.operators])
        found: NDArray[np.bool_] = two[np.asarray(codes) >> (2 * _BITS)]
        return found

    def alike(self, codes: Index) -> Iterator[tuple[Index, int, tuple[Index, ...], tuple[int, ...]]]:
        """Yield applications in groups of one operator and one shape of each operand.

        A group is: which of the applications, the operator, their operands, the shapes of the results.
        """
        if not len(codes):
            return
        ops, left, right = unpack(codes)
        second = np.where(right == NOTHING, NOTHING, self.shape_of[right])
        count = self.shape_count
        kinds = (ops * count + self.shape_of[left]) * (count + 1) + second + 1
        order = np.argsort(kinds, kind="stable")
        starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            lead = members[0]
            op = int(ops[lead])
            operands = (left,) if right[lead] == NOTHING else (left, right)
            made = self.shapes.results(op, *(int(self.shape_of[operand[lead]]) for operand in operands))
            assert made is not None
            yield members, op, tuple(operand[members] for operand in operands), made

    def evaluated(self, codes: Index) -> Iterator[tuple[Index, tuple[Any, ...], tuple[int, ...]]]:
        """Yield the values of applications in groups: which of them, results, shapes."""
        for members, op, operands, made in self.alike(codes):
            operator = self.setting.operators[op]
            at = 0 if operator.cuts is None else length(self.shapes.sizes[made[0]][operator.cuts])
            yield members, operator.meaning([self.of(operand) for operand in operands], at), made

    def _prints(self, codes: Index, lead: Index) -> NDArray[np.uint64]:
        """Return the fingerprints of both results of each application, 0 for a result that is not there.

        Operands of equal value give equal results, so each combination of values is evaluated once. `lead` is
        the first term of the same value for each term.
        """
        ops, left, right = unpack(codes)
        stand_in = pack(ops, lead[left], np.where(right == NOTHING, UNARY, lead[right]))
        distinct, places = np.unique(stand_in, return_inverse=True)
        found = np.zeros((len(distinct), 2), dtype=np.uint64)
        for start in range(0, len(distinct), _CHUNK):
            chunk = distinct[start : start + _CHUNK]
            for members, results, _ in self.evaluated(chunk):
                for part, numbers in enumerate(results):
                    found[start + members, part] = fingerprints(numbers)
        return found[places]

    def of(self, terms: Index) -> Any:
        """Return the values of terms of one shape."""
        values = self.values[int(self.shape_of[terms[0]])]
        slots = self.slot_of[terms]
        return type(values).each(lambda x: x[slots], values)

    def extended(self, codes: Index, size: int, *, valued: bool = True) -> Terms:
        """Return the terms with all results of further applications, each of so many operators.

        Without values nothing more can be applied to any of them, but they take little memory.
        """
        codes = np.sort(codes)
        two = self.two_results(codes)
        firsts = (len(self) + np.arange(len(codes)) + np.cumsum(two) - two).astype(np.int32)
        total = len(self) + len(codes) + int(two.sum())
        most = _MASK if valued else _MOST_TERMS
        if total > most:
            raise InputError(f"{total:,} terms are more than {most:,}; take fewer operators or inputs")
        code_of, part_of = _grown(self.code_of, total, NOTHING), _grown(self.part_of, total, 0)
        shape_of, size_of = _grown(self.shape_of, total, 0), _grown(self.size_of, total, size)
        prints = _grown(self.fingerprint_of, total, 0)
        same = np.unique(self.fingerprint_of, return_index=True, return_inverse=True)
        lead = same[1][same[2]]
        for start in range(0, len(codes), _BLOCK):
            block = slice(start, start + _BLOCK)
            some, first, second = codes[block], firsts[block], firsts[block][two[block]] + 1
            code_of[first], code_of[second], part_of[second] = some, some[two[block]], 1
            for members, _, _, made in self.alike(some):
                for part, shape in enumerate(made):
                    shape_of[first[members] + part] = shape
            found = self._prints(some, lead)
            prints[first], prints[second] = found[:, 0], found[two[block], 1]
        values, slot_of = self._more_values(codes, firsts, total) if valued else ({}, self.slot_of)
        order = np.argsort(np.concatenate((self.codes, codes)), kind="stable")
        return Terms(
            setting=self.setting,
            shapes=self.shapes,
            codes=np.concatenate((self.codes, codes))[order],
            firsts=np.concatenate((self.firsts, firsts))[order],
            code_of=code_of,
            part_of=part_of,
            size_of=size_of,
            shape_of=shape_of,
            fingerprint_of=prints,
            values=values,
            slot_of=slot_of,
        )

    def _more_values(
        self, codes: Index, firsts: NDArray[np.int32], total: int
    ) -> tuple[dict[int, Any], NDArray[np.int32]]:
        """Return the values of all terms and of further applications, by shape, and their places."""
        slot_of = _grown(self.slot_of, total, 0)
        parts = {shape: [numbers] for shape, numbers in self.values.items()}
        filled = {shape: numbers.shape[0] for shape, numbers in self.values.items()}
        for members, results, made in self.evaluated(codes):
            for part, (numbers, shape) in enumerate(zip(results, made, strict=True)):
                start = filled.get(shape, 0)
                slot_of[firsts[members] + part] = np.arange(start, start + len(members))
                filled[shape] = start + len(members)
                parts.setdefault(shape, []).append(numbers)
        joined = {}
        for shape in list(parts):
            some = parts.pop(shape)  # the parts are let go of one shape after the other
            joined[shape] = some[0].each(lambda *x: np.concatenate(x), *some)
        return joined, slot_of


def _grown(array: NDArray[Any], total: int, fill: int) -> NDArray[Any]:
    grown = np.full(total, fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def first_terms(setting: Setting) -> Terms:
    """Return the inputs as terms, with random values."""
    shapes = Shapes(setting.operators)
    generator = np.random.default_rng(setting.seed)
    kind = Numbers if setting.exact else Reals
    numbers: dict[int, list[Any]] = {}
    shape_of, slot_of, prints = [], [], []
    for name, units in setting.inputs:
        shape = shapes.number(units)
        dimensions = tuple(map(length, units)) or (1, 1)
        value = given(kind, name, generator, (1, setting.samples), dimensions)
        shape_of.append(shape)
        slot_of.append(len(numbers.setdefault(shape, [])))
        numbers[shape].append(value)
        prints.append(fingerprints(value)[0])
    count = len(setting.inputs)
    empty = np.empty(0, dtype=np.int64)
    return Terms(
        setting=setting,
        shapes=shapes,
        codes=empty,
        firsts=empty.astype(np.int32),
        code_of=np.full(count, NOTHING),
        part_of=np.zeros(count, dtype=np.int8),
        size_of=np.zeros(count, dtype=np.int8),
        shape_of=np.array(shape_of, dtype=np.int32),
        fingerprint_of=np.array(prints, dtype=np.uint64),
        values={shape: kind.each(lambda *x: np.concatenate(x), *some) for shape, some in numbers.items()},
        slot_of=np.array(slot_of, dtype=np.int32),
    )
