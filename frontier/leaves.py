"""The tiny grid on which the search evaluates tensors over the field.

Every axis group has a few positions; a tensor is stored over the whole grid, repeated along the
axes it lacks, so that any operator on any batch of tensors is a handful of numpy calls.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from superopt.ir import Step
from superopt.ops import OPS
from superopt.rules.terms import OPERATORS, Goal, Leaf, Node
from superopt.verify.field import Field
from superopt.verify.interpret import drawn_integers
from superopt.verify.residues import TOWER, Residues

__all__ = ["Grid", "fits"]

_MOST_POINTS = 1 << 13
_DRAWS = 24  # of which the trials are chosen that take roots of squares only


class Grid:
    """A goal on tiny axes: values of leaves, and of any operator application."""

    def __init__(self, goal: Goal, *, seed: int = 0, trials: int = 2) -> None:
        self.goal = goal
        self.seed = seed
        self.names = _shared_names(goal)
        self.sizes = _tiny_sizes(goal)
        self.shape = tuple(self.sizes)
        self.points = prod(self.shape)
        # An exponential nested deeper than the tower is high is a random oracle: sound, if less is found.
        levels = min(2 + _exp_depth(goal.nodes), len(TOWER))
        roots = any(node.op == "sqrt" for node in goal.nodes)
        integers = drawn_integers(goal.graph)
        wide = Field(seed, trials=_DRAWS if roots else 2 * trials, levels=levels, integers=integers)
        self.field = wide
        self._evaluate_goal()
        # A trial in which the goal divides by zero or takes the root of a non-square proves nothing.
        bad = wide.zero_divisions + wide.nonresidues
        order = np.argsort(bad, kind="stable")[:trials]
        self.field = wide.take(np.sort(order))
        values = self._evaluate_goal()
        self.roots = [values[root] for root in goal.roots]
        masks = self._goal_masks()
        self.root_masks = [masks[root] for root in goal.roots]

    @property
    def value_bytes(self) -> int:
        """The size of one tensor's value."""
        return self.field.levels * self.field.trials * self.points * 8

    def _evaluate_goal(self) -> list[Residues]:
        """Set the leaves and return the values of the goal's own terms, for the field at hand."""
        self.leaves = [self._leaf(leaf) for leaf in self.goal.leaves]
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
            masks.append(self.mask_after(node.op, node.attr, mask))
        return masks

    def mask_after(self, op: str, attr: int, mask: int) -> int:
        """Return the axes of a value from the union of its operands' axes."""
        if op in ("sum", "max"):
            return mask & ~(1 << attr)
        if op != "access":
            return mask
        _, mapping = self.goal.accesses[attr]
        result = mask
        for old, _ in mapping:
            result &= ~(1 << self.goal.bit(old))
        for old, new in mapping:
            if isinstance(new, str) and mask >> self.goal.bit(old) & 1:
                result |= 1 << self.goal.bit(new)
        return result

    def access_applies(self, attr: int, mask: int) -> bool:
        """Whether a tensor has the axes that an access renames or selects from."""
        return any(mask >> self.goal.bit(old) & 1 for old, _ in self.goal.accesses[attr][1])

    def evaluate(self, rows: Sequence[Sequence[int]], values: Sequence[Residues]) -> Residues:
        """Return the values of rows as (levels, trials, rows, points), given those of their operands."""
        result = np.empty((self.field.levels, self.field.trials, len(rows), self.points), dtype=np.uint64)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault((row[0], row[1] if row[0] not in _PLAIN else 0), []).append(i)
        for (code, attr), members in groups.items():
            op = OPERATORS[code]
            if op == "leaf":
                for i in members:
                    result[:, :, i] = self.leaves[rows[i][1]]
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
        if op == "mul":
            return field.mul(args[0], args[1])
        if op == "add":
            return field.add(args[0], args[1])
        if op == "maximum":
            return field.maximum(args[0], args[1])
        if op in ("inv", "neg", "exp", "sqrt"):
            return np.asarray(getattr(field, op)(args[0]))
        if op in ("call1", "call2", "call3"):
            return self._call(self.goal.functions[attr], args)
        a = args[0].reshape(*args[0].shape[:3], *self.shape)
        if op in ("sum", "max"):
            dim = 3 + attr
            if op == "max":
                reduced = field.max_over(a, dim, keepdims=True)
            else:
                weights = field.weights(self.names[attr], self.shape[attr])
                weights = weights.reshape(
                    field.levels, field.trials, 1, *(-1 if i == attr else 1 for i in range(len(self.shape)))
                )
                reduced = field.sum_mod(field.mul(a, weights), dim, keepdims=True)
            return np.broadcast_to(reduced, a.shape).reshape(args[0].shape)
        return self._access(*self.goal.accesses[attr], a).reshape(args[0].shape)

    def _call(self, name: str, args: list[Residues]) -> Residues:
        if name == "infinity":
            return np.broadcast_to(_grow(self.field.infinity(), 4), args[0].shape)
        if name in ("less", "equal", "where"):
            return np.asarray(getattr(self.field, name)(*args))
        return self.field.function(name, *args)

    def _access(self, op: str, mapping: tuple[tuple[str, str | int], ...], a: Residues) -> Residues:
        """Rename or select; the result is repeated along the axes that disappear."""
        bits = {self.goal.bit(old): new for old, new in mapping}
        if op == "select":
            for bit, at in bits.items():
                assert isinstance(at, int)
                a = np.broadcast_to(a.take([at], axis=3 + bit), a.shape)
            return a
        moves = {bit: self.goal.bit(str(new)) for bit, new in bits.items()}
        # Old axes take the place of new ones; an axis that nothing is renamed to becomes constant.
        targets = set(moves.values())
        for bit in targets - set(moves):
            a = a.take([0], axis=3 + bit)  # the value lacks it: all positions are equal
        order = list(range(a.ndim))
        free = [bit for bit in moves if bit not in targets]
        vacated = [bit for bit in targets if bit not in moves]
        for old, new in moves.items():
            order[3 + new] = 3 + old
        for bit, source in zip(free, vacated, strict=True):
            order[3 + bit] = 3 + source
        return np.broadcast_to(a.transpose(order), (*a.shape[:3], *self.shape))

    def _leaf(self, leaf: Leaf) -> Residues:
        """Return a leaf over the whole grid, without the batch dimension."""
        field = self.field
        full = (field.levels, field.trials, *self.shape)
        if leaf.constant is not None:
            value = _grow(field.const(leaf.constant), len(full))
        else:
            assert leaf.position is not None
            value = self._value(leaf.position)
        return np.ascontiguousarray(np.broadcast_to(value, full)).reshape(*full[:2], self.points)

    def _value(self, position: int) -> Residues:
        """Return an input, or a closed expression of indices, extents and constants."""
        field, graph = self.field, self.goal.graph
        ndim = 2 + len(self.shape)
        step = graph.step_of(position)
        if step is None:
            port = graph.inputs[position]
            bits = sorted({self.goal.bit(axis) for axis in port.axes})
            shape = tuple(self.shape[bit] if bit in bits else 1 for bit in range(len(self.shape)))
            return field.leaf(port.name, shape, port.dtype)
        if step.op == "const":
            assert step.value is not None
            return _grow(field.const(step.value), ndim)
        if step.op == "infinity":
            return _grow(field.infinity(), ndim)
        if step.op in ("size", "index"):
            return self._along(step, ndim)
        args = [self._value(i) for i in step.inputs]
        if step.op in OPS:
            return np.asarray(OPS[step.op].scalar(field, *args))
        return self._closed_structure(step, args)

    def _along(self, step: Step, ndim: int) -> Residues:
        bit = self.goal.bit(step.axes[0])
        if step.op == "size":
            return _grow(self.field.size(self.names[bit], self.shape[bit]), ndim)
        values = self.field.index(self.shape[bit])
        return values.reshape(*values.shape[:2], *(-1 if i == bit else 1 for i in range(len(self.shape))))

    def _closed_structure(self, step: Step, args: list[Residues]) -> Residues:
        """Evaluate a structural step of a closed expression, such as the number of unmasked keys."""
        full = (self.field.levels, self.field.trials, *self.shape)
        flat = [np.broadcast_to(arg, full).reshape(*full[:2], 1, self.points) for arg in args]
        if step.op in ("rename", "select"):
            found = self._access(step.op, step.mapping, flat[0].reshape(*full[:2], 1, *self.shape))
            return found.reshape(full)
        value = self.field.mul(*flat) if step.op == "contract" else flat[0]
        for bit in sorted({self.goal.bit(axis) for axis in step.axes}):
            value = self._apply("max" if step.op == "max" else "sum", bit, [value])
        return value.reshape(full)


_PLAIN = frozenset(
    OPERATORS.index(op) for op in ("leaf", "mul", "add", "inv", "neg", "exp", "sqrt", "maximum")
)


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


def _renamed(goal: Goal) -> list[tuple[int, int]]:
    return [
        (goal.bit(old), goal.bit(new))
        for _, mapping in goal.accesses
        for old, new in mapping
        if isinstance(new, str)
    ]


def _shared_names(goal: Goal) -> tuple[str, ...]:
    """Return a name for each axis group; groups that a rename joins share one, so their sums agree."""
    names = [group[0] for group in goal.groups]
    pairs = _renamed(goal)
    for _ in pairs:
        for a, b in pairs:
            names[a] = names[b] = min(names[a], names[b])
    return tuple(names)


def _tiny_sizes(goal: Goal) -> tuple[int, ...]:
    """Return the positions of each axis group on the grid: few, but enough for what is selected."""
    sizes = [2] * len(goal.groups)
    graph = goal.graph
    real = graph.sizes
    for step in graph.steps:
        if step.op == "select":
            for axis, at in step.mapping:
                assert isinstance(at, int)
                bit = goal.bit(axis)
                sizes[bit] = max(sizes[bit], at + 1)
        if step.op == "index":  # compared with constants or other indices: three tell apart more
            bit = goal.bit(step.axes[0])
            sizes[bit] = max(sizes[bit], min(real[step.axes[0]], 3))
    pairs = _renamed(goal)
    for _ in pairs:
        for a, b in pairs:
            sizes[a] = sizes[b] = max(sizes[a], sizes[b])
    return tuple(sizes)


def fits(goal: Goal) -> bool:
    """Whether a goal has few enough axes for its tensors to be evaluated on a grid of all of them."""
    return prod(_tiny_sizes(goal)) <= _MOST_POINTS
