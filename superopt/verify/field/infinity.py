"""Infinity: how arithmetic treats the residue that stands for it, and its negative.

What is added to an infinity is swallowed by it, 1 / infinity is 0, and exp makes 0 of its negative. All else
that arithmetic makes of infinities is undefined: infinity less infinity, products, sums over an axis.
"""

import numpy as np
from numpy.typing import NDArray

from superopt.verify.field.residues import Residues, widen

__all__ = ["endless", "exp_of_ends", "swallowed"]


def _ends(a: Residues, infinity: Residues, primes: Residues) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where values are infinity, and where they are its negative."""
    top = widen(infinity, a.ndim)
    return a == top, a == primes.reshape(-1, *(1,) * (a.ndim - 1)) - top


def endless(a: Residues, infinity: Residues, primes: Residues) -> NDArray[np.bool_]:
    """Return where values are infinity or its negative."""
    above, below = _ends(a, infinity, primes)
    return above | below


def swallowed(
    total: Residues, a: Residues, b: Residues, infinity: Residues, primes: Residues
) -> tuple[Residues, NDArray[np.bool_]]:
    """Return the sum of a and b, given that of their residues, and where it is infinity less infinity."""
    above, below = _ends(a, infinity, primes)
    above_too, below_too = _ends(b, infinity, primes)
    opposite = (above & below_too) | (below & above_too)
    total = np.where(above_too | below_too, b, total)
    return np.where(above | below, a, total), opposite


def exp_of_ends(
    result: Residues, a: Residues, infinity: Residues | None, primes: Residues, *, shift: int
) -> Residues:
    """Return exponentials that are 0 at minus infinity, and infinity at infinity, if there is one.

    With a shift of 1 the exponent of each level but the last is the next level of `a`.
    """
    if infinity is None:
        return result
    above, below = _ends(a, infinity, primes)
    if shift:
        above, below = (np.concatenate([one[1:], one[-1:]]) for one in (above, below))
    else:
        above, below = (np.broadcast_to(one.all(axis=0), one.shape) for one in (above, below))
    return np.where(below, np.uint64(0), np.where(above, widen(infinity, a.ndim), result))
