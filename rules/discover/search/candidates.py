"""Candidates: the terms that have the same fingerprint, without most pairs that say nothing new."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.rule import rule_of
from superopt.rules.discover.search.terms import NOTHING, UNARY, Terms, pack, unpack

__all__ = ["Candidates", "candidates_of"]

Index = NDArray[np.int64]


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
    follows = _follows(terms, others, _replaceable(terms, others, lead))
    lefts = others[~follows]
    pairs = np.stack(_renamed(terms, lefts, lead[lefts]), axis=1)
    distinct = np.unique(pairs, axis=0)
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
    pairs = np.stack(_renamed(terms, parts, lead[parts]), axis=1)
    distinct, places = np.unique(pairs, axis=0, return_inverse=True)
    sizes = dict(terms.setting.inputs)
    narrow = np.zeros(len(distinct), dtype=bool)
    for at, (left, right) in enumerate(distinct.tolist()):
        rule = rule_of("", [terms.expression(left)], [terms.expression(right)], sizes)
        narrow[at] = rule is None or rule.narrow
    found = lead.copy()
    kept = parts[narrow[places.reshape(-1)]]
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


def _renamed(terms: Terms, lefts: Index, rights: Index) -> tuple[Index, Index]:
    """Return both sides of each pair with inputs named in the order in which they first occur."""
    kinds: list[object] = [
        sizes if constant_named(name) is None else name for name, sizes in terms.setting.inputs
    ]
    orders = _Orders(len(kinds), int(terms.size_of.max()) + 1)
    of_terms = orders.of(terms)
    met = orders.appended(of_terms[lefts], of_terms[rights])
    names = np.tile(np.arange(len(kinds)), (len(lefts), 1))
    for kind in dict.fromkeys(kinds):
        pool = np.array([at for at, other in enumerate(kinds) if other == kind])
        used = np.zeros(len(lefts), dtype=np.int64)
        for place in range(2 * orders.most):
            digit = orders.digit(met, place)
            here = np.flatnonzero((digit != 0) & np.isin(digit - 1, pool))
            names[here, digit[here] - 1] = pool[used[here]]
            used[here] += 1
    return _substituted(terms, lefts, names), _substituted(terms, rights, names)


class _Orders:
    """Orders in which terms meet their inputs, as digits from 1 in one number."""

    def __init__(self, inputs: int, most: int) -> None:
        self.most = most  # inputs of one term
        self._inputs = inputs
        self._bits = inputs.bit_length()
        if 2 * most * self._bits > 63:
            raise InputError(f"{inputs} inputs are too many for graphs of {most - 1} operators; take fewer")

    def of(self, terms: Terms) -> Index:
        """Return the order of each term."""
        orders = np.zeros(len(terms), dtype=np.int64)
        orders[: self._inputs] = np.arange(1, self._inputs + 1)
        for members, left, right in _by_size(terms):
            second = np.where(right == NOTHING, 0, orders[right])
            orders[members] = self.appended(orders[left], second)
        return orders

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


def _by_size(terms: Terms) -> list[tuple[Index, Index, Index]]:
    """Return terms with their operands; terms of fewer operators come first."""
    found = []
    for size in range(1, int(terms.size_of.max()) + 1):
        members = np.flatnonzero(terms.size_of == size)
        _, left, right = unpack(terms.code_of[members])
        found.append((members, left, right))
    return found


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
    """Return the order of pairs: small trees first, then sides of like size, then pairs with many inputs."""
    trees = np.zeros(len(terms), dtype=np.int64)
    masks = np.zeros(len(terms), dtype=np.int64)
    count = len(terms.setting.inputs)
    masks[:count] = 1 << np.arange(count)
    for members, left, right in _by_size(terms):
        second = np.where(right == NOTHING, 0, trees[right])
        trees[members] = 1 + trees[left] + second
        masks[members] = masks[left] | np.where(right == NOTHING, 0, masks[right])
    size, larger = trees[pairs].sum(axis=1), trees[pairs].max(axis=1)
    together = masks[pairs[:, 0]] | masks[pairs[:, 1]]
    inputs = sum((together >> at) & 1 for at in range(count))
    return np.lexsort((pairs[:, 0], pairs[:, 1], -np.asarray(inputs), larger, size))
