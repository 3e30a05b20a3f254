"""Candidates: the terms that have the same fingerprint, without most pairs that say nothing new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.rule import rule_of
from superopt.rules.discover.search.terms import NOTHING, UNARY, Terms, pack, unpack

__all__ = ["Candidates", "candidates_of", "distinct_renamed", "of_operands", "of_terms"]

Index = NDArray[np.int64]

_BLOCK = 1 << 18  # pairs that are renamed at once: more would not fit into memory


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs of terms that look equal, general ones first, and how many were left out."""

    lefts: Index
    rights: Index
    equal: int  # pairs of a term and the first one of the same fingerprint
    replaced: int  # pairs of `equal` that follow from an equality of a part
    renamed: int  # pairs of the rest that are other pairs with renamed inputs


def candidates_of(terms: Terms) -> Candidates:
    """Return the equalities between each term and the first term that has its fingerprint."""
    _, firsts, classes = np.unique(terms.fingerprint_of, return_index=True, return_inverse=True)
    lead = firsts[classes]
    others = np.flatnonzero(lead != np.arange(len(terms)))
    del classes
    replaceable = _replaceable(terms, others, lead)
    blocks = [others[start : start + _BLOCK] for start in range(0, len(others), _BLOCK)]
    follows = np.concatenate([others[:0] != 0, *(_follows(terms, block, replaceable) for block in blocks)])
    lefts = others[~follows]
    distinct, _ = distinct_renamed(terms, lefts, lead[lefts])
    order = _generality(terms, distinct)
    return Candidates(
        lefts=distinct[order, 0],
        rights=distinct[order, 1],
        equal=len(others),
        replaced=int(follows.sum()),
        renamed=len(lefts) - len(distinct),
    )


def _replaceable(terms: Terms, members: Index, lead: Index) -> Index:
    """Return for each term the one that may replace it in larger terms, which allows the same shapes."""
    parts = members[terms.size_of[members] < terms.size_of.max()]
    distinct, places = distinct_renamed(terms, parts, lead[parts])
    sizes = dict(terms.setting.inputs)
    narrow = np.zeros(len(distinct), dtype=bool)
    for at, (left, right) in enumerate(distinct.tolist()):
        rule = rule_of("", [terms.expression(left)], [terms.expression(right)], sizes)
        narrow[at] = rule is None or rule.narrow
    found = lead.copy()
    kept = parts[narrow[places]]
    found[kept] = kept
    return found


def _follows(terms: Terms, members: Index, lead: Index) -> NDArray[np.bool_]:
    """Return which terms are another known term once a part is replaced by a smaller equal one."""
    found = np.zeros(len(members), dtype=bool)
    made = terms.code_of[members] != NOTHING
    codes = terms.code_of[members[made]]
    ops, left, right = unpack(codes)
    one, two = lead[left], np.where(right == NOTHING, UNARY, lead[right])
    after = _application(terms, ops, one, two)
    found[made] = (after != codes) & (terms.results(after)[0] != NOTHING)
    return found


def _application(terms: Terms, ops: Index, left: Index, right: Index) -> Index:
    """Return the codes of applications, with the operands of a commutative operator in order."""
    commutes = np.array([operator.commutative for operator in terms.setting.operators])[ops]
    low = np.where(commutes, np.minimum(left, right), left)
    high = np.where(commutes, np.maximum(left, right), right)
    return pack(ops, low, high)


def distinct_renamed(terms: Terms, lefts: Index, rights: Index) -> tuple[Index, Index]:
    """Return the different pairs once inputs are named in the order in which they first occur.

    Beside them, for each given pair, its place among these.
    """
    kinds: list[object] = [
        sizes if constant_named(name) is None else name for name, sizes in terms.setting.inputs
    ]
    orders = _Orders(len(kinds), int(terms.size_of.max()) + 1)
    codes = np.empty(len(lefts), dtype=np.int64)  # both terms of each pair as one number
    for start in range(0, len(lefts), _BLOCK):
        left, right = lefts[start : start + _BLOCK], rights[start : start + _BLOCK]
        names = _names(kinds, orders, orders.appended(orders.of(terms, left), orders.of(terms, right)))
        one, other = _substituted(terms, left, names), _substituted(terms, right, names)
        codes[start : start + _BLOCK] = one * len(terms) + other
    distinct, places = np.unique(codes, return_inverse=True)
    return np.stack(np.divmod(distinct, len(terms)), axis=1), places


def _names(kinds: Sequence[object], orders: _Orders, met: Index) -> Index:
    """Return for each order in which inputs are met the new input of each input."""
    names = np.tile(np.arange(len(kinds)), (len(met), 1))
    for kind in dict.fromkeys(kinds):
        pool = np.array([at for at, other in enumerate(kinds) if other == kind])
        used = np.zeros(len(met), dtype=np.int64)
        for place in range(2 * orders.most):
            digit = orders.digit(met, place)
            here = np.flatnonzero((digit != 0) & np.isin(digit - 1, pool))
            names[here, digit[here] - 1] = pool[used[here]]
            used[here] += 1
    return names


class _Orders:
    """Orders in which terms meet their inputs, as digits from 1 in one number."""

    def __init__(self, inputs: int, most: int) -> None:
        self.most = most  # inputs of one term
        self._inputs = inputs
        self._bits = inputs.bit_length()
        self._known: Index | None = None
        if 2 * most * self._bits > 63:
            raise InputError(f"{inputs} inputs are too many for graphs of {most - 1} operators; take fewer")

    def of(self, terms: Terms, asked: Index) -> Index:
        """Return the orders of some terms."""
        if self._known is None:
            self._known = of_operands(terms, np.arange(1, self._inputs + 1), self._joined)
        return of_terms(terms, asked, self._known, self._joined)

    def _joined(self, codes: Index, left: Index, right: Index) -> Index:
        return self.appended(left, right)

    def digit(self, orders: Index, place: int) -> Index:
        """Return the digits at a place, 0 where an order has ended."""
        found: Index = (orders >> (self._bits * place)) & ((1 << self._bits) - 1)
        return found

    def appended(self, first: Index, second: Index) -> Index:
        """Return the digits of one order, followed by the digits of another order that it lacks."""
        found = first.copy()
        length = sum(self.digit(first, place) != 0 for place in range(self.most))
        for place in range(self.most):
            digit = self.digit(second, place)
            known = digit == 0
            for other in range(self.most):
                known |= self.digit(first, other) == digit
            found |= np.where(known, 0, digit << (self._bits * length))
            length = length + ~known
        return found


Joined = Callable[[Index, Index, Index], Index]
"""What terms have, given their codes and what both operands have; that is 0 where there is no second one."""


def of_operands(terms: Terms, of_inputs: Index, joined: Joined) -> Index:
    """Return what all terms but those of the most operators have, given what inputs have."""
    sizes = terms.size_of[: int((terms.size_of < terms.size_of.max()).sum())]
    found = np.zeros(max(len(sizes), len(of_inputs)), dtype=of_inputs.dtype)
    found[: len(of_inputs)] = of_inputs
    for size in range(1, int(terms.size_of.max())):
        members = np.flatnonzero(sizes == size)
        found[members] = _joined(terms.code_of[members], found, joined)
    return found


def of_terms(terms: Terms, asked: Index, known: Index, joined: Joined) -> Index:
    """Return what some terms have, given what all terms but those of the most operators have."""
    large = np.flatnonzero(asked >= len(known))
    found = known[np.where(asked < len(known), asked, 0)]
    found[large] = _joined(terms.code_of[asked[large]], known, joined)
    return found


def _joined(codes: Index, known: Index, joined: Joined) -> Index:
    _, left, right = unpack(codes)
    return joined(codes, known[left], np.where(right == NOTHING, known.dtype.type(0), known[right]))


def _substituted(terms: Terms, members: Index, names: Index) -> Index:
    """Return terms with renamed inputs; every renaming of a term is a term."""
    found = np.empty_like(members)
    inputs = terms.code_of[members] == NOTHING
    found[inputs] = names[np.flatnonzero(inputs), members[inputs]]
    made = np.flatnonzero(~inputs)
    if len(made):
        ops, left, right = unpack(terms.code_of[members[made]])
        one = _substituted(terms, left, names[made])
        two = np.full(len(made), UNARY)
        binary = np.flatnonzero(right != NOTHING)
        if len(binary):
            two[binary] = _substituted(terms, right[binary], names[made[binary]])
        first, _ = terms.results(_application(terms, ops, one, two))
        assert (first != NOTHING).all()
        found[made] = first + terms.part_of[members[made]]
    return found


def _generality(terms: Terms, pairs: Index) -> Index:
    """Return the order of pairs: small trees first, then sides of like size, then pairs with many inputs.

    Pairs with constants come after all others: their rules are of no use where these constants are not.
    """
    names = [name for name, _ in terms.setting.inputs]
    trees, masks = (
        of_terms(terms, pairs.reshape(-1), of_operands(terms, first, joined), joined).reshape(pairs.shape)
        for first, joined in (
            (np.zeros(len(names), dtype=np.int64), lambda codes, left, right: 1 + left + right),
            (1 << np.arange(len(names)), lambda codes, left, right: left | right),
        )
    )
    size, larger = trees.sum(axis=1), trees.max(axis=1)
    together = masks[:, 0] | masks[:, 1]
    counts = {True: np.zeros(len(pairs), dtype=np.int64), False: np.zeros(len(pairs), dtype=np.int64)}
    for at, name in enumerate(names):
        counts[constant_named(name) is not None] += (together >> at) & 1
    return np.lexsort((pairs[:, 0], pairs[:, 1], -counts[False], larger, size, counts[True]))
