"""Idioms: pairs that users would ask about, truly equal, and near misses that are not, by family."""

from superopt.bench.verdicts import (
    attention,
    calls,
    causal,
    inequalities,
    integers,
    layers,
    losses,
    masks,
    order,
    places,
    pointwise,
    powers,
    rows,
    shapes,
    sums,
    windows,
)
from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

_FAMILIES = (
    pointwise,
    powers,
    order,
    masks,
    inequalities,
    integers,
    rows,
    sums,
    shapes,
    attention,
    causal,
    layers,
    losses,
    calls,
    places,
    windows,
)

IDIOMS: dict[str, Pair] = {pair.name: pair for family in _FAMILIES for pair in family.IDIOMS}
"""Pairs that are equal, by name."""

WRONG: dict[str, Pair] = {pair.name: pair for family in _FAMILIES for pair in family.WRONG}
"""Pairs that differ, by name."""
