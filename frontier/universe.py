"""The universe: the explored tensors with every way to make each, ready for derivation.

Tensors that two classes of the e-graph kept apart but the field calls equal become one here, and
so the search may use an equality that no axiom states. Sums of products are offered as
contractions too, and nested sums as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.frontier.bound import Machine, operator_us
from superopt.frontier.derive import Arc
from superopt.frontier.mugraph import MuGraphSpace
from superopt.frontier.space import Exploration
from superopt.rules.terms import OPERATORS
from superopt.verify.residues import mix

__all__ = ["Universe", "universe_of"]

_EACH_US = 1e-6  # breaks ties: of two graphs that cost the same, the one with fewer operators


@dataclass(frozen=True, slots=True)
class Universe:
    """All tensors with their derivations; roots are None where the search did not reach them."""

    arcs: tuple[tuple[Arc, ...], ...]
    roots: tuple[int | None, ...]

    @property
    def derivations(self) -> int:
        """How many ways there are to make all tensors."""
        return sum(map(len, self.arcs))


def universe_of(space: MuGraphSpace, exploration: Exploration, machine: Machine) -> Universe:
    """Return the universe of a finished (or stopped) exploration."""
    _absorb_rest(space, exploration)
    known = len(space.rows)
    classes = np.array(space.classes, dtype=np.int64)
    prints = exploration.keys[:known].copy()
    prints[:, 1] ^= mix(classes.view(np.uint64))
    tensor_of_print: dict[tuple[int, int], int] = {}
    tensor_of = [
        tensor_of_print.setdefault((int(a), int(b)), len(tensor_of_print)) for a, b in prints.tolist()
    ]
    count = len(tensor_of_print)
    masks = [-1] * count
    for state, tensor in enumerate(tensor_of):
        masks[tensor] &= space.masks[state]

    builder = _ArcBuilder(space, machine, masks)
    for state, (code, attr, *_) in enumerate(space.rows):
        if OPERATORS[code] == "leaf":
            builder.add(tensor_of[state], "leaf", attr, ())
            builder.leaves.add(tensor_of[state])
    for row, target in zip(exploration.arcs.tolist(), exploration.arc_targets.tolist(), strict=True):
        if target < known:
            code, attr, *args = row
            builder.add(
                tensor_of[target], OPERATORS[code], attr, tuple(tensor_of[arg] for arg in args if arg >= 0)
            )
    builder.add_wholes()
    field = space.grid.field
    stacked = np.stack(space.grid.roots, axis=2)
    roots = tuple(tensor_of_print.get((int(a), int(b))) for a, b in field.fingerprint(stacked).tolist())
    return Universe(tuple(tuple(arcs.values()) for arcs in builder.arcs), roots)


def _absorb_rest(space: MuGraphSpace, exploration: Exploration) -> None:
    """Let the space know the tensors it has not seen: those of other processes, or of a level cut off."""
    seen = len(space.rows)
    for level in range(int(exploration.level_of[-1]) + 1 if len(exploration.rows) else 0):
        at = np.flatnonzero(exploration.level_of == level)
        if len(at) and at[0] >= seen:
            space.absorb(exploration.rows[at], exploration.keys[at])


class _ArcBuilder:
    """Collects the arcs of every tensor, each once, with its cost."""

    def __init__(self, space: MuGraphSpace, machine: Machine, masks: Sequence[int]) -> None:
        self.space = space
        self.machine = machine
        self.masks = masks
        self.arcs: list[dict[tuple[object, ...], Arc]] = [{} for _ in masks]
        self.leaves: set[int] = set()
        sizes = space.goal.graph.sizes
        self.extents = [prod(sizes[axis] for axis in group) for group in space.goal.groups]

    def add(self, tensor: int, op: str, attr: int, args: tuple[int, ...], reduced: int = 0) -> None:
        """Note one way to make a tensor."""
        if tensor in args or tensor in self.leaves:
            return  # what is given need not be made
        if op in ("sum", "max") and not reduced:
            reduced = 1 << attr
        key = (op, 0 if reduced else attr, args, reduced)
        if key in self.arcs[tensor]:
            return
        mask = self.masks[tensor]
        for arg in args:
            mask |= self.masks[arg]
        matrix = False
        if op == "contract":
            only = [self.masks[args[0]] & ~self.masks[args[1]], self.masks[args[1]] & ~self.masks[args[0]]]
            matrix = all(self._volume(bits) > 1 for bits in only)
        us = 0.0
        if op != "leaf":
            name = self.space.goal.functions[attr] if op.startswith("call") else op
            us = operator_us(name, self._volume(mask), matrix=matrix, machine=self.machine) + _EACH_US
        self.arcs[tensor][key] = Arc(op, attr, args, us, reduced, reduced & mask)

    def add_wholes(self) -> None:
        """Offer nested reductions as one, and sums of products as contractions."""
        for op in ("sum", "max"):
            pending = [
                (tensor, arc)
                for tensor, arcs in enumerate(self.arcs)
                for arc in arcs.values()
                if arc.op == op
            ]
            while pending:
                tensor, arc = pending.pop()
                for inner in list(self.arcs[arc.args[0]].values()):
                    if inner.op == op and not inner.reduced & arc.reduced:
                        before = len(self.arcs[tensor])
                        self.add(tensor, op, 0, inner.args, arc.reduced | inner.reduced)
                        if len(self.arcs[tensor]) > before:
                            pending.append((tensor, list(self.arcs[tensor].values())[-1]))
        for tensor, arcs in enumerate(self.arcs):
            for key, arc in list(arcs.items()):
                if arc.op == "sum":
                    self._contract(tensor, key, arc)

    def _contract(self, tensor: int, key: tuple[object, ...], arc: Arc) -> None:
        """Offer a sum over outer products as contractions, and only as those.

        The sum of an elementwise product stays a sum: its product may be shared.
        """
        bodies = list(self.arcs[arc.args[0]].values())
        outer = [body for body in bodies if body.op == "mul" and self._is_outer(body.args)]
        proper = [
            body.args for body in outer if all(not arc.reduced & ~self.masks[arg] for arg in body.args)
        ]
        for factors in proper:
            self.add(tensor, "contract", 0, factors, arc.reduced)
        if proper and all(body.op == "mul" for body in bodies):
            del self.arcs[tensor][key]

    def _is_outer(self, args: tuple[int, ...]) -> bool:
        masks = [self.masks[arg] for arg in args]
        return len(masks) == 2 and bool(masks[0] & ~masks[1]) and bool(masks[1] & ~masks[0])

    def _volume(self, mask: int) -> float:
        return float(prod(extent for bit, extent in enumerate(self.extents) if mask >> bit & 1))
