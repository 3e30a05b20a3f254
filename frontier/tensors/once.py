"""Once: what tensors cost a call where they are made of constant tensors, once and ahead of all calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from superopt.frontier.tensors.derive import EACH_US, Arc
from superopt.weights.division import Weights, is_small

__all__ = ["with_once_costs"]

_ONCE = 1e-4  # the share of its time that work costs which is done once: of equal calls the least work wins

Arcs = Sequence[tuple[Arc, ...]]


def with_once_costs(
    arcs_of: Arcs, leaves: Mapping[int, bool], bytes_of: Callable[[int], float], weights: Weights
) -> tuple[tuple[Arc, ...], ...]:
    """Return the arcs of all tensors, those among constant tensors at next to no cost.

    `leaves` says which leaves that are tensors are constant. A tensor that may not be kept is made in each
    call: whatever reads it pays for that.
    """
    held = _held(arcs_of, leaves)
    costs = _least_costs(arcs_of, held, leaves)

    def is_kept(tensor: int) -> bool:
        return tensor in leaves or weights == "frozen" or is_small(bytes_of(tensor))

    def charged(arc: Arc) -> Arc:
        """Return an arc with its cost in each call."""
        if arc.args and all(arg in held for arg in arc.args):
            return replace(arc, us=(arc.us - EACH_US) * _ONCE + EACH_US, walked=0)
        made = sum(costs[arg] for arg in set(arc.args) if arg in held and not is_kept(arg))
        return replace(arc, us=arc.us + made) if made else arc

    return tuple(tuple(map(charged, arcs)) for arcs in arcs_of)


def _held(arcs_of: Arcs, leaves: Mapping[int, bool]) -> set[int]:
    """Return the tensors that are made of constant leaves, or of no tensor at all."""
    numbers = enumerate(arcs_of)
    held = {at for at, arcs in numbers if any(not arc.args for arc in arcs) and leaves.get(at, True)}
    waiting = {at for at, arcs in enumerate(arcs_of) if at not in held and at not in leaves and arcs}
    while True:
        found = {at for at in waiting if any(held.issuperset(arc.args) for arc in arcs_of[at])}
        if not found:
            return held
        held |= found
        waiting -= found


def _least_costs(arcs_of: Arcs, held: set[int], leaves: Mapping[int, bool]) -> dict[int, float]:
    """Return the least cost of making each tensor that is held; a shared operand counts for each use."""
    costs = {at: 0.0 if at in leaves or any(not arc.args for arc in arcs_of[at]) else inf for at in held}
    changed = True
    while changed:
        changed = False
        for at in held:
            for arc in arcs_of[at]:
                if not arc.args or not held.issuperset(arc.args):
                    continue
                us = arc.us + sum(costs[arg] for arg in set(arc.args))
                if us < costs[at]:
                    costs[at], changed = us, True
    return costs
