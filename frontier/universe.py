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
from superopt.rules.terms import COMMUTATIVE, OPERATORS
from superopt.verify.residues import mix

__all__ = ["Universe", "universe_of"]

_EACH_US = 1e-6  # breaks ties: of two graphs that cost the same, the one with fewer operators


@dataclass(frozen=True, slots=True)
class Universe:
    """All tensors with their derivations; roots are None where the search did not reach them."""

    arcs: tuple[tuple[Arc, ...], ...]
    roots: tuple[int | None, ...]
    tensors: int

    @property
    def derivations(self) -> int:
        """How many ways there are to make all tensors."""
        return sum(map(len, self.arcs))


def universe_of(space: MuGraphSpace, exploration: Exploration, machine: Machine) -> Universe:
    """Return the universe of a finished (or stopped) exploration: what can serve to derive the roots."""
    # Those of other processes, or of a level that was cut off, the space has not seen.
    space.note(exploration.rows[len(space.rows) :].tolist())
    known = len(exploration.rows)  # a limit on rows cuts off what the space has seen already
    classes = np.array(space.classes[:known], dtype=np.int64)
    state_masks = np.array(space.masks[:known], dtype=np.int64)
    prints = exploration.keys.copy()
    prints[:, 1] ^= mix(classes.view(np.uint64))
    # A value that happens to be constant along an axis, as x - x is, is not the one without the axis.
    prints[:, 1] ^= mix(state_masks.view(np.uint64))
    grouped, tensor_of = np.unique(prints, axis=0, return_inverse=True)
    wanted = space.grid.field.fingerprint(np.stack(space.grid.roots, axis=2))
    wanted[:, 1] ^= mix(np.array(space.grid.root_masks, dtype=np.int64).view(np.uint64))
    found = [np.flatnonzero((grouped == print_).all(axis=1)) for print_ in wanted]
    if not all(map(len, found)):
        return Universe((), (None,) * len(found), len(grouped))

    # Tensors are numbered by class, which no draw of the field changes; without one as they were met.
    tensor_of = tensor_of.reshape(-1)
    _, first_met = np.unique(tensor_of, return_index=True)
    least_class = np.full(len(grouped), np.iinfo(np.int64).max)
    np.minimum.at(least_class, tensor_of, classes)
    rank = np.empty(len(grouped), dtype=np.int64)
    rank[np.lexsort((first_met, least_class))] = np.arange(len(grouped))
    tensors = rank[tensor_of].tolist()
    masks = [0] * len(grouped)
    for tensor, mask in zip(tensors, state_masks.tolist(), strict=True):
        masks[tensor] = mask

    builder = _ArcBuilder(space, machine, masks)
    for state, (code, attr, *_) in enumerate(space.rows[:known]):
        if OPERATORS[code] == "leaf":
            builder.add(tensors[state], "leaf", attr, ())
            builder.leaves.add(tensors[state])
    arcs = set()
    for row, target in zip(exploration.arcs.tolist(), exploration.arc_targets.tolist(), strict=True):
        code, attr, *args = row
        if max(args) >= known:
            continue
        operands = [tensors[arg] for arg in args if arg >= 0]
        if OPERATORS[code] in COMMUTATIVE:
            operands.sort()
        arcs.add((tensors[target], code, attr, tuple(operands)))
    for tensor, code, attr, found_args in sorted(arcs):
        builder.add(tensor, OPERATORS[code], attr, found_args)
    builder.add_wholes()
    roots = tuple(int(rank[at[0]]) for at in found)
    return Universe(tuple(tuple(arcs.values()) for arcs in builder.arcs), roots, len(grouped))


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
        mask = 0
        for arg in args:
            mask |= self.masks[arg]
        left = mask & ~reduced if reduced else self.space.grid.mask_after(op, attr, mask)
        if op != "leaf" and left & ~self.masks[tensor]:
            return  # it makes the same value, but repeated along an axis
        mask |= self.masks[tensor]
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
        proper = [body.args for body in outer if all(not arc.reduced & ~self.masks[arg] for arg in body.args)]
        for factors in proper:
            self.add(tensor, "contract", 0, factors, arc.reduced)
        if proper and all(body.op == "mul" for body in bodies):
            del self.arcs[tensor][key]

    def _is_outer(self, args: tuple[int, ...]) -> bool:
        masks = [self.masks[arg] for arg in args]
        return len(masks) == 2 and bool(masks[0] & ~masks[1]) and bool(masks[1] & ~masks[0])

    def _volume(self, mask: int) -> float:
        return float(prod(extent for bit, extent in enumerate(self.extents) if mask >> bit & 1))
