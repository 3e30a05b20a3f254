"""The universe: the explored tensors with every way to make each, ready for derivation.

Tensors that two classes of the e-graph kept apart but the field calls equal become one here, and
so the search may use an equality that no axiom states. Sums of products are offered as
contractions too, and nested sums as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.dtypes import FLOATS
from superopt.frontier.engine.interface import Exploration, Keys
from superopt.frontier.tensors.bound import Machine, operator_us
from superopt.frontier.tensors.derive import EACH_US, Arc
from superopt.frontier.tensors.once import with_once_costs
from superopt.frontier.tensors.space import TensorSpace
from superopt.rules.terms import COMMUTATIVE, OPERATORS
from superopt.verify.field.residues import mix
from superopt.weights.division import Weights

__all__ = ["Universe", "universe_of"]


@dataclass(frozen=True, slots=True)
class Universe:
    """All tensors with their derivations; roots are None where the search did not reach them."""

    arcs: tuple[tuple[Arc, ...], ...]
    roots: tuple[int | None, ...]
    tensors: int

    @property
    def derivations(self) -> int:
        """The number of ways to make all tensors."""
        return sum(map(len, self.arcs))


def universe_of(
    space: TensorSpace, exploration: Exploration, machine: Machine, weights: Weights = "live"
) -> Universe:
    """Return the universe of an exploration that is finished, or was stopped.

    What is made of constant tensors once costs nothing, as far as the policy for weights lets it be kept.
    """
    # The space has not seen the states of a level that was cut off, nor of the last one of other processes.
    space.note(exploration.rows[len(space.rows) :].tolist())
    known = len(exploration.rows)  # a limit on rows may cut off states that the space has seen
    classes = np.array(space.classes[:known], dtype=np.int64)
    state_masks = np.array(space.masks[:known], dtype=np.int64)
    prints = exploration.keys.copy()
    prints[:, 1] ^= mix(classes.view(np.uint64))
    tensor_of = _tensors(prints, classes, state_masks)
    count = int(tensor_of.max(initial=-1)) + 1
    wanted = space.grid.field.fingerprint(np.stack(space.grid.roots, axis=2))
    values = prints.copy()
    values[:, 0] ^= mix(state_masks.view(np.uint64))
    found = [
        _narrowest(np.flatnonzero((values == print_).all(axis=1)).tolist(), state_masks, mask)
        for print_, mask in zip(wanted, space.grid.root_masks, strict=True)
    ]
    for i, (class_, mask) in enumerate(zip(space.table.roots, space.grid.root_masks, strict=False)):
        if found[i] is None:
            found[i] = _narrowest(np.flatnonzero(classes == class_).tolist(), state_masks, mask)
    if None in found:
        return Universe((), (None,) * len(found), count)

    # Tensors are numbered by class, which no draw of the field changes, and without a class as they were met.
    _, first_met = np.unique(tensor_of, return_index=True)
    least_class = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least_class, tensor_of, classes)
    rank = np.empty(count, dtype=np.int64)
    rank[np.lexsort((first_met, least_class))] = np.arange(count)
    tensors = rank[tensor_of].tolist()
    masks = [0] * count
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
    roots = tuple(tensors[state] for state in found if state is not None)
    made = tuple(tuple(arcs.values()) for arcs in builder.arcs)
    constant = {} if weights == "live" else builder.constant_leaves()
    if any(constant.values()):
        made = with_once_costs(made, constant, builder.bytes_of, weights)
    return Universe(made, roots, count)


def _tensors(prints: Keys, classes: NDArray[np.int64], masks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each state's tensor: states of one value are one tensor, and states of one class.

    The field may not know what the axioms know: on the grid of a search a logarithm is a function like any
    other. But nearly always states of one class have one value, and then there is nothing to unite.
    """
    _, tensor_of = np.unique(prints, axis=0, return_inverse=True)
    leader = list(range(int(tensor_of.max(initial=-1)) + 1))

    def find(tensor: int) -> int:
        while leader[tensor] != tensor:
            tensor = leader[tensor]
        return tensor

    first: dict[tuple[int, int], int] = {}
    states = tensor_of.reshape(-1).tolist()
    for tensor, class_, mask in zip(states, classes.tolist(), masks.tolist(), strict=True):
        if class_ >= 0:
            one, other = find(first.setdefault((class_, mask), tensor)), find(tensor)
            leader[max(one, other)] = min(one, other)
    _, united = np.unique([find(tensor) for tensor in states], return_inverse=True)
    return united.reshape(-1).astype(np.int64)


def _narrowest(states: Sequence[int], masks: NDArray[np.int64], wanted: int) -> int | None:
    """Return the state with the fewest axes among the states of a root's value; an output may repeat it."""
    fitting = [state for state in states if not int(masks[state]) & ~wanted]
    return min(fitting, key=lambda state: int(masks[state]).bit_count(), default=None)


class _ArcBuilder:
    """Collects the arcs of every tensor, each once, with its cost."""

    def __init__(self, space: TensorSpace, machine: Machine, masks: Sequence[int]) -> None:
        self.space = space
        self.machine = machine
        self.masks = masks
        self.arcs: list[dict[tuple[object, ...], Arc]] = [{} for _ in masks]
        self.leaves: set[int] = set()
        sizes = space.goal.graph.sizes
        self.extents = [prod(sizes[axis] for axis in group) for group in space.goal.groups]
        self._volumes: dict[int, float] = {}
        self._outer: dict[int, list[tuple[int, ...]]] = {}  # tensor -> the outer products that make it

    def add(self, tensor: int, op: str, attr: int, args: tuple[int, ...], reduced: int = 0) -> None:
        """Note one way to make a tensor."""
        if tensor in args or tensor in self.leaves:
            return  # a leaf need not be made
        if op in ("sum", "max") and not reduced:
            reduced = 1 << attr
        key = (op, 0 if reduced else attr, args, reduced)
        if key in self.arcs[tensor]:
            return
        mask = 0
        for arg in args:
            mask |= self.masks[arg]
        left = mask & ~reduced if reduced else self.space.goal.mask_after(op, attr, mask)
        if op != "leaf" and left & ~self.masks[tensor]:
            return  # the operator makes the same value, only repeated along an axis
        mask |= self.masks[tensor]
        matrix = False
        if op == "contract":
            only = [self.masks[args[0]] & ~self.masks[args[1]], self.masks[args[1]] & ~self.masks[args[0]]]
            matrix = all(self._volume(bits) > 1 for bits in only)
        us = 0.0
        if op != "leaf":
            name = self.space.goal.functions[attr] if op.startswith("call") else op
            us = operator_us(name, self._volume(mask), matrix=matrix, machine=self.machine) + EACH_US
            if op == "window" and args[0] not in self.leaves:  # a window reads what was stored before
                us += 2 * self.bytes_of(args[0]) / self.machine.bytes_per_us
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
        bodies = self.arcs[arc.args[0]].values()
        if arc.args[0] not in self._outer:
            products = (body.args for body in bodies if body.op == "mul")
            self._outer[arc.args[0]] = [args for args in products if self._is_outer(args)]
        masks, reduced = self.masks, arc.reduced
        proper = [
            (a, b) for a, b in self._outer[arc.args[0]] if not reduced & ~masks[a] and not reduced & ~masks[b]
        ]
        for factors in proper:
            self.add(tensor, "contract", 0, factors, reduced)
        if proper and all(body.op == "mul" for body in bodies):
            del self.arcs[tensor][key]

    def _is_outer(self, args: tuple[int, ...]) -> bool:
        if len(args) != 2:
            return False
        first, second = self.masks[args[0]], self.masks[args[1]]
        return bool(first & ~second) and bool(second & ~first)

    def constant_leaves(self) -> dict[int, bool]:
        """Return for each leaf that is a tensor whether something may be made of it once.

        Nothing is made of integers: as floats they would be larger. Other leaves read no tensor.
        """
        goal, found = self.space.goal, dict[int, bool]()
        first = len(goal.graph.inputs)
        for tensor in self.leaves:
            for arc in self.arcs[tensor].values():
                position = goal.leaves[arc.attr].position if arc.op == "leaf" else None
                if position is not None and position < first:
                    port = goal.graph.inputs[position]
                    found[tensor] = port.constant and port.dtype in FLOATS
        return found

    def bytes_of(self, tensor: int) -> float:
        """Return the bytes of a tensor, were it in fp32."""
        return 4 * self._volume(self.masks[tensor])

    def _volume(self, mask: int) -> float:
        if mask not in self._volumes:
            extents = (extent for bit, extent in enumerate(self.extents) if mask >> bit & 1)
            self._volumes[mask] = float(prod(extents))
        return self._volumes[mask]
