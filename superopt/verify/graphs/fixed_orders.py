"""Fixed orders: comparisons of constants that come out alike in all trials, whether that is true or not.

Which of two random numbers is the larger changes from trial to trial. Two constants that meet on the way, as
2 * max(x, 0.7) and 3 do where x is small, keep their order in all trials of one field. If it is not the order
of the real numbers, no trial resembles any real input.
"""

import numpy as np

from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.tiny import Tiny
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED
from superopt.verify.field.signs import Comparison, known_steps, signs
from superopt.verify.graphs.facts import Facts

__all__ = ["FIXED_TRIALS", "has_wrong_orders"]

FIXED_TRIALS = 64
_ALIKE = 3  # trials that must show a difference before it counts as no accident
_LARGEST = 1 << 10  # numerator or denominator of a fraction that a residue is read as


def has_wrong_orders(facts: Facts, tiny: Tiny, drawn: Field) -> bool:
    """Return whether constants are compared in an order that is not known to be theirs."""
    drawn.comparisons = []
    for graph in facts.graphs:
        interpret(graph, drawn, tiny.sizes, numbers=tiny.known_numbers(graph))
    return any(_is_wrong(made, drawn) for made in drawn.comparisons)


def _is_wrong(made: Comparison, drawn: Field) -> bool:
    prime = np.uint64(drawn.primes[made.level])
    difference = (made.b + (prime - made.a % prime)) % prime
    known = (made.a < UNDEFINED) & (made.b < UNDEFINED) & (difference != 0)
    numbers = np.arange(drawn.trials, dtype=np.uint64).reshape(-1, *(1,) * (difference.ndim - 1))
    pairs = np.unique((difference * np.uint64(drawn.trials) + numbers)[known])
    found, counts = np.unique(pairs // np.uint64(drawn.trials), return_counts=True)
    told = known_steps(drawn.source.fixed_numbers, drawn.primes)[made.level][0]
    fixed = found[(counts >= _ALIKE) & ~np.isin(found, told)]
    ways = signs(fixed, int(prime))
    return any(_sign(int(one), int(prime)) != way for one, way in zip(fixed, ways, strict=True))


def _sign(residue: int, prime: int) -> int:
    """Return the sign of the simple fraction that a residue stands for; 0 where there is none."""
    above, below = (prime, 0), (residue, 1)
    while below[0] > _LARGEST:
        quotient = above[0] // below[0]
        above, below = below, (above[0] - quotient * below[0], above[1] - quotient * below[1])
    if not 0 < abs(below[1]) <= _LARGEST:
        return 0
    return 1 if below[1] > 0 else -1
