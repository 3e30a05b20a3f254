"""Idioms: pairs that users would ask about, truly equal, and near misses that are not, by family."""

from superopt.bench.verdicts.numbers import (
    inequalities,
    integers,
    masks,
    order,
    pointwise,
    powers,
    rows,
    sums,
)
from superopt.bench.verdicts.pairs import Pair
from superopt.bench.verdicts.tensors import (
    attention,
    calls,
    causal,
    layers,
    losses,
    places,
    positions,
    shapes,
    windows,
)

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
    positions,
    windows,
)

IDIOMS: dict[str, Pair] = {pair.name: pair for family in _FAMILIES for pair in family.IDIOMS}
"""Pairs that are equal, by name."""

WRONG: dict[str, Pair] = {pair.name: pair for family in _FAMILIES for pair in family.WRONG}
"""Pairs that differ, by name."""
