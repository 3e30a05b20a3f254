"""The tiny grid on which the search evaluates tensors over the field.

Every axis group has a few positions; a tensor is stored over the whole grid, repeated along the
axes it lacks, so that any operator on any batch of tensors is a handful of numpy calls.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from superopt.dtypes import INTEGERS
from superopt.ir import Axis, Graph, Port
from superopt.rules.terms import OPERATORS, Goal, Leaf, Node
from superopt.verify.evaluation.integers import as_numbers, plain_integers
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.tiny import Tiny, tiny_sizes
from superopt.verify.field.primes import HIGHEST
from superopt.verify.field.residues import Residues
from superopt.verify.seeds import generator_seed

__all__ = ["Grid", "fits"]

_MOST_POINTS = 1 << 13
_TRIALS = 2
_MASK_TRIALS = 4  # masks leave few positions that tell programs apart: 2 trials lost 4 of 60 searches
_INTEGER_TRIALS = 16  # integers are drawn from few values, and each value must be met
_COMPARING_TRIALS, _COMPARED_POINTS = 8, 1 << 15  # at most so many, on so many points in all
_DRAWS = 24  # the trials are those draws in which every root is taken of a square
_LONGEST = (64, 16, 6)  # axes joined by equal indices stay whole up to the first of these lengths that fits


class Grid:
    """A goal on tiny axes: the values of its leaves, and of any operator on known values."""

    def __init__(self, goal: Goal, *, seed: int = 0) -> None:
        self.goal = goal
        self.seed = seed
        graph = _on_groups(goal)
        # Integers that are only computed with, as weights of eight bits are, stand for any numbers.
        self.graph, self.tiny = as_numbers(graph, plain_integers(graph)), _tiny(goal)
        self.names = tuple(group[0] for group in goal.groups)
        self.sizes = tuple(self.tiny.sizes[name] for name in self.names)
        self.shape = tuple(self.sizes)
        self.points = prod(self.shape)
        # Exponentials nested deeper than the tower is high are random oracles: that is sound, but finds less.
        dtypes = {port.dtype for port in self.graph.inputs}
        trials = _INTEGER_TRIALS if dtypes & INTEGERS else _MASK_TRIALS if "bool" in dtypes else _TRIALS
        if goal.windows and _compares(goal):  # its axes may be narrow, so that few positions show an outcome
            trials = max(trials, min(_COMPARING_TRIALS, _COMPARED_POINTS // self.points))
        levels = min(2 + _exp_depth(goal.nodes), len(HIGHEST))
        roots = any(node.op == "sqrt" for node in goal.nodes)
        wide = self.tiny.field(
            seed, trials=max(_DRAWS if roots else 0, 2 * trials), levels=levels, lenient=True
        )
        self.field = wide
        # A trial in which the goal divides by zero or takes the root of a non-square proves nothing.
        self._evaluate_goal()
        order = np.argsort(wide.faults, kind="stable")[:trials]
        self.field = wide.take(np.sort(order))
        values = self._evaluate_goal()
        self.roots = [values[root] for root in goal.roots]
        masks = self._goal_masks()
        self.root_masks = [masks[root] for root in goal.roots]

    @property
    def value_bytes(self) -> int:
        """The bytes of one tensor's value."""
        return self.field.levels * self.field.trials * self.points * 8

    def _evaluate_goal(self) -> list[Residues]:
        """Set the leaves and return the values of the goal's own terms, in the present field."""
        wanted = {leaf.position for leaf in self.goal.leaves if leaf.position is not None}
        for value in range(len(self.graph.inputs) + len(self.graph.steps) - 1, -1, -1):
            step = self.graph.step_of(value)
            if value in wanted and step is not None:
                wanted.update(step.inputs)
        only = frozenset(wanted)
        made = interpret(self.graph, self.field, self.tiny.sizes, axes=self.names, only=only)
        self.leaves = [self._leaf(leaf, made) for leaf in self.goal.leaves]
        values: list[Residues] = []
        for node in self.goal.nodes:
            row = (OPERATORS.index(node.op), node.attr, *node.args, *(-1,) * (3 - len(node.args)))
            values.append(self.evaluate([row], values)[:, :, 0])
        return values

    def _goal_masks(self) -> list[int]:
        """Return the axes of the goal's own terms."""
        masks: list[int] = []
        for node in self.goal.nodes:
            mask = self.goal.leaves[node.attr].mask if node.op == "leaf" else 0
            for arg in node.args:
                mask |= masks[arg]
            masks.append(self.goal.mask_after(node.op, node.attr, mask))
        return masks

    def evaluate(self, rows: Sequence[Sequence[int]], values: Sequence[Residues]) -> Residues:
        """Return the values of rows as (levels, trials, rows, points), given the values of their operands."""
        result = np.empty((self.field.levels, self.field.trials, len(rows), self.points), dtype=np.uint64)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault((row[0], row[1]), []).append(i)
        for (code, attr), members in groups.items():
            op = OPERATORS[code]
            if op == "leaf":
                result[:, :, members] = self.leaves[attr][:, :, None]
                continue
            args = [
                np.stack([values[rows[i][2 + place]] for i in members], axis=2)
                for place in range(3)
                if rows[members[0]][2 + place] >= 0
            ]
            result[:, :, members] = self._apply(op, attr, args)
        return result

    def _apply(self, op: str, attr: int, args: list[Residues]) -> Residues:
        field = self.field
        if op in _PLAIN:
            return np.asarray(getattr(field, op)(*args))
        if op == "log":
            return self._call(op, args)
        if op in ("call1", "call2", "call3"):
            return self._call(self.goal.functions[attr], args)
        a = args[0].reshape(*args[0].shape[:3], *self.shape)
        if op in ("sum", "max"):
            dim = 3 + attr
            if op == "max":
                reduced = field.max_over(a, dim)
            else:
                weights = field.weights(self.names[attr], self.shape[attr])
                weights = weights.reshape(
                    field.levels, field.trials, 1, *(-1 if i == attr else 1 for i in range(len(self.shape)))
                )
                reduced = field.sum_mod(field.mul(a, weights), dim)
            return np.broadcast_to(reduced, a.shape).reshape(args[0].shape)
        if op == "window":
            return self._window(attr, a).reshape(args[0].shape)
        return self._access(*self.goal.accesses[attr], a).reshape(args[0].shape)

    def _call(self, name: str, args: list[Residues]) -> Residues:
        if name == "infinity":
            return np.broadcast_to(_grow(self.field.infinity(), 4), args[0].shape)
        if name in ("less", "equal", "where"):
            return np.asarray(getattr(self.field, name)(*args))
        if name == "guard":  # it seems to equal what it guards, which is undefined wherever they differ
            return self.field.function("unknown", *args)
        return self.field.function(name, *args)

    def _access(self, op: str, mapping: tuple[tuple[str, str | int], ...], a: Residues) -> Residues:
        """Rename or select; the result is repeated along the axes that disappear."""
        bits = {self.goal.bit(old): new for old, new in mapping}
        if op == "select":
            for bit, at in bits.items():
                assert isinstance(at, int)
                positions = self.tiny.positions.get(self.names[bit])
                place = positions.index(at) if positions else at
                a = np.broadcast_to(a.take([place], axis=3 + bit), a.shape)
            return a
        moves = {bit: self.goal.bit(str(new)) for bit, new in bits.items()}
        # Old axes take the place of new ones; the value is constant along an axis that nothing is renamed to.
        targets = set(moves.values())
        for bit in targets - set(moves):
            a = a.take([0], axis=3 + bit)  # the value lacks this axis: all positions are equal
        order = list(range(a.ndim))
        free = [bit for bit in moves if bit not in targets]
        vacated = [bit for bit in targets if bit not in moves]
        for old, new in moves.items():
            order[3 + new] = 3 + old
        for bit, source in zip(free, vacated, strict=True):
            order[3 + bit] = 3 + source
        return np.broadcast_to(a.transpose(order), (*a.shape[:3], *self.shape))

    def _window(self, number: int, a: Residues) -> Residues:
        """Return what a window reads; the result is repeated along the axes that disappear.

        On so few positions its place would hardly ever lie inside. The axioms hold wherever a window reads,
        so it reads at random, elsewhere in each trial.
        """
        place = self.goal.windows[number]
        read = [self.goal.bit(axis) for axis in place.axes]
        made = [self.goal.bit(axis) for axis, _ in place.terms]
        shape = [size if bit in made else 1 for bit, size in enumerate(self.shape)]
        draw = np.random.default_rng((generator_seed(self.seed), number))
        found = np.zeros_like(a)
        for trial in range(a.shape[1]):
            one = a[:, trial]
            places = [draw.integers(self.shape[bit], size=shape) for bit in read]
            inside = draw.random(shape) < _INSIDE
            at: list[Any] = list(np.ogrid[tuple(map(slice, self.shape))])
            for bit, there in zip(read, places, strict=True):
                at[bit] = there
            found[:, trial] = np.where(inside, one[(slice(None), slice(None), *at)], 0)
        return found

    def _leaf(self, leaf: Leaf, values: Sequence[Residues]) -> Residues:
        """Return a leaf over the whole grid, without the batch dimension."""
        full = (self.field.levels, self.field.trials, *self.shape)
        if leaf.constant is not None:
            value = _grow(self.field.const(leaf.constant), len(full))
        else:
            assert leaf.position is not None
            value = values[leaf.position]
        return np.ascontiguousarray(np.broadcast_to(value, full)).reshape(*full[:2], self.points)


_INSIDE = 0.8
"""The share of positions at which a window reads inside of a tensor."""

_PLAIN = frozenset({"mul", "add", "inv", "neg", "exp", "sqrt", "maximum"})
"""Operators without an attribute, by the names of their methods of a field."""


def _grow(value: Residues, ndim: int) -> Residues:
    """Return a value of shape (levels, trials or 1) with grid dimensions of extent 1."""
    return value.reshape(*value.shape[:2], *(1,) * (ndim - 2))


def _exp_depth(nodes: Sequence[Node]) -> int:
    """Return how deeply exponentials are nested."""
    depth: list[int] = []
    for node in nodes:
        inside = max((depth[arg] for arg in node.args), default=0)
        depth.append(inside + (node.op == "exp"))
    return max(depth, default=0)


def _on_groups(goal: Goal) -> Graph:
    """Return the goal's graph with one axis for each group of axes that always travel together."""
    graph = goal.graph
    sizes = graph.sizes
    name = {axis: group[0] for group in goal.groups for axis in group}

    def reduced(port: Port) -> Port:
        axes = dict.fromkeys(name[axis] for axis in port.axes)
        return replace(port, dims=tuple((axis,) for axis in axes), strides=None)

    return replace(
        graph,
        # An axis of no positions tells no tensors apart, so it is given two: equal there is equal on none.
        axes=tuple(Axis(group[0], prod(sizes[axis] for axis in group) or 2) for group in goal.groups),
        inputs=tuple(map(reduced, graph.inputs)),
        steps=tuple(
            replace(step, axes=tuple(dict.fromkeys(name[axis] for axis in step.axes))) for step in graph.steps
        ),
        outputs=tuple(replace(output, port=reduced(output.port)) for output in graph.outputs),
    )


@lru_cache(maxsize=16)
def _tiny(goal: Goal) -> Tiny:
    """Return the positions of each axis group: few, but where there is room all that are read apart."""
    graph = _on_groups(goal)
    narrowed = (False, True) if goal.windows else (False,)
    for narrow, most in product(narrowed, _LONGEST):
        tiny = tiny_sizes(graph, symbolic=True, smallest=True, guess=True, most=most, narrow=narrow)
        if goal.derivations:
            tiny = _with_new_axes(goal, tiny)
        if prod(tiny.sizes.values()) <= _MOST_POINTS:
            break
    return tiny


def _with_new_axes(goal: Goal, tiny: Tiny) -> Tiny:
    """Return sizes in which the axes that only windows of rules have are as long as the axes of others."""
    sizes = goal.graph.sizes
    new = {
        axis: min(sizes[axis], 2) for place in goal.windows for axis in place.named if tiny.sizes[axis] == 1
    }
    extents = {axis: extent for axis, extent in tiny.extents.items() if axis not in new}
    return replace(tiny, sizes={**tiny.sizes, **new}, extents=extents)


def _compares(goal: Goal) -> bool:
    """Whether what a goal computes depends on which of two numbers is larger."""
    return not {"less", "equal", "where"}.isdisjoint(goal.functions) or any(
        node.op in ("max", "maximum") for node in goal.nodes
    )


def fits(goal: Goal) -> bool:
    """Whether a goal has few enough axes for its tensors to be evaluated on a grid of all of them."""
    return prod(_tiny(goal).sizes.values()) <= _MOST_POINTS
