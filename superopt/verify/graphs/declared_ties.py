"""Declared ties: trials in which comparisons are declared less, equal or greater at random.

Once the outcomes of all comparisons are given, two programs are two functions without comparisons. If these
functions agree on random numbers they agree on all numbers, also on those for which the outcomes are true. So
programs that agree whatever is declared agree wherever comparisons tie, however many at once. A difference
proves nothing: where x is 3, `x` and `3` are the same, which a declared tie of other numbers does not know.
"""

from collections.abc import Hashable
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from superopt.verify.evaluation.interpret import interpret
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import fingerprint, fold
from superopt.verify.graphs.setting import Setting
from superopt.verify.graphs.trials import Tally, batches, compare
from superopt.verify.verdict import Witness

__all__ = ["ACCIDENT", "agree_where_declared", "difference_where_declared"]

ACCIDENT = 2.0**-44
"""The chance that different programs agree in all trials with declared outcomes."""

_ROUND = 3000
_ROUNDS = 4
_LOOKED_AT = 4  # trials that tell which comparisons compare the same numbers
_OUTCOMES = 3  # a comparison is declared less, equal or greater, each as likely as the others


def difference_where_declared(setting: Setting, sites: frozenset[Hashable], wanted: int) -> Witness | None:
    """Return a difference that shows where the outcomes of some comparisons are declared, or None.

    In one half of these trials all other numbers differ, in the other half some are equal: a difference may
    need a declared tie together with a drawn one.
    """
    for number, pooled in enumerate((False, True)):
        drawn = setting.field(_ROUND + number, 2 * wanted, pooled=pooled)
        witness = _compare(setting, drawn, sites, Tally(), wanted)
        if witness is not None:
            return witness
    return None


def agree_where_declared(setting: Setting, sites: frozenset[Hashable]) -> bool:
    """Return whether programs agree for all outcomes of some comparisons, but for an `ACCIDENT`.

    All other comparisons must come out equal by themselves where numbers are drawn, as those of integers do:
    the bound counts them apart.
    """
    wanted, tally = _wanted(setting, sites), Tally()
    if wanted is None:
        return False
    for number in range(_ROUNDS):
        drawn = setting.field(_ROUND + 2 + number, 2 * wanted)
        if _compare(setting, drawn, sites, tally, tally.lacking(wanted)) is not None:
            return False
        if tally.kept >= wanted:
            return True
    return False


def _compare(
    setting: Setting, drawn: Field, sites: frozenset[Hashable], tally: Tally, most: int
) -> Witness | None:
    """Return a difference in some trials that are good, with ties of some comparisons declared."""
    for batch in batches(setting, drawn, setting.roots.good(drawn)[:most]):
        batch.declared = sites
        witness = compare(setting, batch, tally, judged=False)
        if witness is not None:
            return witness
    return None


def _wanted(setting: Setting, sites: frozenset[Hashable]) -> int | None:
    """Return how many trials surely show a difference, if there is one; None if that is too many."""
    compared = _compared_by_one(setting, sites)
    if compared is None:
        return None
    # The bound counts what else is drawn from few numbers together with the orders of these comparisons.
    bits = compared * log2(_OUTCOMES) + max(setting.bound.bits - compared, 0.0)
    if bits > log2(setting.most_trials):
        return None
    wanted = ceil(log2(ACCIDENT) / log2(1 - 2.0**-bits / 2))
    return wanted if wanted <= setting.most_trials else None


def _compared_by_one(setting: Setting, sites: frozenset[Hashable]) -> int | None:
    """Return the most comparisons of different numbers that one element depends on; None where unknown."""
    field = setting.field(_ROUND, _LOOKED_AT)
    field.comparisons = []
    values = [interpret(graph, field, setting.tiny.sizes) for graph in setting.facts.graphs]
    alike: dict[bytes, set[tuple[int, int]]] = {}
    for made in field.comparisons:
        if made.site in sites and made.site is not None:
            prime = field.primes[made.level]
            difference = (made.a + (prime - made.b)) % prime
            both = np.minimum(difference, (prime - difference) % prime)
            alike.setdefault(_key(both), set()).add(made.site)
    most = 0
    for needs in setting.judge.needs(values):
        counted: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        for several in alike.values():
            own: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
            for graph, value in several:
                needed = needs[graph]
                if needed is None:
                    return None
                parts = needed[value]
                if parts is not None:
                    own = np.maximum(own, parts.reshape(parts.shape[0], -1).sum(axis=1))
            counted = counted + own
        most = max(most, int(counted.max(initial=0)))
    return most


def _key(numbers: NDArray[np.uint64]) -> bytes:
    """Return a key that is the same only for arrays of the same numbers."""
    return bytes(fingerprint(np.ascontiguousarray(numbers)[None], fold("difference")))
