"""Programs: random ones over comparisons, masks, slices, calls and odd constants, at small full sizes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from superopt.bench.verdicts.programs.nodes import CALLS, COMPARISONS, LOGIC, Node, Shape, constant, make

__all__ = ["CONSTANTS", "Grower", "grow"]

CONSTANTS = (
    0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    -2.0,
    3.0,
    0.1,
    -0.3,
    1 / 3,
    0.7071067811865476,
    10.0,
    50.0,
    127.0,
    255.0,
)
_ODD = (1e-5, 1e-6, 0.044715, 0.10000000149011612, 88**-0.5)
_LIKE_PRIMES = (2147483647.0, 2147483648.0, 2444789759.0)  # added last: within, rounding would decide
_INPUTS = 4
_SQUARE = 0.25  # of all programs: there, one axis is easily taken for another
_STEEP = frozenset({"exp", "square", "matmul", "mul", "cumsum", "div"})  # what makes numbers large


def grow(random: Random) -> tuple[Node, tuple[Shape, ...]]:
    """Return a random program and the shapes of its inputs."""
    shape = (random.choice((1, 2, 3, 4, 5, 7)), random.choice((1, 2, 3, 5, 6, 7, 9)))
    if random.random() < _SQUARE:
        shape = shape[0], shape[0]
    grower = Grower(random)
    depth = random.choice((2, 3, 4, 4, 5, 5))
    root = grower.number(shape, depth)
    if not grower.inputs:
        root = make("add", root, grower.leaf(shape))
    if random.random() < 0.02:
        root = make("add", root, constant(random.choice(_LIKE_PRIMES)))
    return root, tuple(grower.inputs)


@dataclass(slots=True)
class Grower:
    """Grows expressions from the result down to its inputs."""

    random: Random
    inputs: list[Shape] = field(default_factory=list)

    def number(self, shape: Shape, depth: int, *, steep: bool = True) -> Node:
        """Return an expression of floats; without `steep` its numbers stay about as large as the inputs."""
        if depth <= 0:
            return self.leaf(shape)
        ways: list[tuple[int, Callable[[Shape, int, bool], Node]]] = [
            (5, self._arithmetic),
            (3, self._unary),
            (3, self._order),
            (5, self._masked),
            (2, self._clamped),
            (3, self._moved),
            (2, self._called),
            (1, self._softmax),
            (2, self._reduced),
            (2 if steep else 0, self._product),
            (1, lambda shape, depth, steep: self.leaf(shape)),
        ]
        way = self.random.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
        made = way(shape, depth - 1, steep)
        return made if made.shape == shape else make("expand", made, shape=shape)

    def mask(self, shape: Shape, depth: int) -> Node:
        """Return a mask."""
        if depth > 0 and self.random.random() < 0.3:
            if self.random.random() < 0.4:
                return make("not", self.mask(shape, depth - 1))
            op = self.random.choice(list(LOGIC))
            return make(op, self.mask(shape, depth - 1), self.mask(shape, depth - 1))
        op = self.random.choice(list(COMPARISONS))
        inner = 0 if self.random.random() < 0.6 else 1
        left = self.number(shape, inner, steep=False)
        right = (
            constant(self.random.choice(CONSTANTS))
            if self.random.random() < 0.6
            else self.number(shape, 0, steep=False)
        )
        made = make(op, left, right)
        return made if made.shape == shape else make(op, left, make("expand", right, shape=shape))

    def leaf(self, shape: Shape) -> Node:
        """Return an input of this shape: a new one or one that is there."""
        known = [at for at, one in enumerate(self.inputs) if one == shape]
        if known and (len(self.inputs) >= _INPUTS or self.random.random() < 0.5):
            return make("input", shape=shape, settings=(self.random.choice(known),))
        if len(self.inputs) < _INPUTS or not known:
            self.inputs.append(shape)
        return make("input", shape=shape, settings=(len(self.inputs) - 1,))

    def _value(self) -> float:
        return self.random.choice(_ODD if self.random.random() < 0.15 else CONSTANTS[:11])

    def _either(self, shape: Shape) -> Shape:
        """Return a shape that broadcasts to this one."""
        return self.random.choice((shape, shape, shape, (1, shape[1]), (shape[0], 1)))

    def _arithmetic(self, shape: Shape, depth: int, steep: bool) -> Node:
        op = self.random.choice(("add", "sub", "mul", "add", "mul") if steep else ("add", "sub"))
        left = self.number(shape, depth, steep=steep)
        if self.random.random() < 0.35:
            return make(op, left, constant(self._value()))
        if self.random.random() < 0.1:
            return make("div", left, make("root", self.number(self._either(shape), depth - 1, steep=False)))
        return make(op, left, self.number(self._either(shape), depth - 1, steep=steep))

    def _unary(self, shape: Shape, depth: int, steep: bool) -> Node:
        op = self.random.choice(
            ("neg", "abs", "relu", "relu", "tanh", "sigmoid", "gelu", "sin", "exp", "square")
        )
        if op in _STEEP and not steep:
            op = "abs"
        return make(op, self.number(shape, depth, steep=steep and op not in _STEEP))

    def _order(self, shape: Shape, depth: int, steep: bool) -> Node:
        op = self.random.choice(("maximum", "minimum"))
        left = self.number(shape, depth, steep=steep)
        return make(op, left, self.number(self._either(shape), depth - 1, steep=steep))

    def _masked(self, shape: Shape, depth: int, steep: bool) -> Node:
        mask = self.mask(shape, depth)
        kept = self.number(shape, depth, steep=steep)
        if self.random.random() < 0.3:
            return make("fill", mask, kept, constant(self.random.choice(CONSTANTS[:5])))
        if self.random.random() < 0.3:
            return make("mul", kept, mask)
        return make("where", mask, kept, self.number(shape, depth - 1, steep=steep))

    def _clamped(self, shape: Shape, depth: int, steep: bool) -> Node:
        low, high = sorted(self.random.sample(CONSTANTS[:12], 2))
        return make("clamp", self.number(shape, depth, steep=steep), settings=(low, high))

    def _moved(self, shape: Shape, depth: int, steep: bool) -> Node:
        dim = self.random.randrange(2)
        if self.random.random() < 0.4 and shape[dim] > 1:
            first = self.random.randrange(1, shape[dim])
            sizes = (first, shape[dim] - first)
            parts = [self.number(_with(shape, dim, size), depth, steep=steep) for size in sizes]
            return make("cat", *parts, settings=(dim,), shape=shape)
        if self.random.random() < 0.3:
            return make("transpose", self.number((shape[1], shape[0]), depth, steep=steep), shape=shape)
        start = self.random.randrange(3)
        size = start + shape[dim] + self.random.randrange(3)
        inner = self.number(_with(shape, dim, size), depth, steep=steep)
        return make("slice", inner, settings=(dim, start, start + shape[dim]), shape=shape)

    def _called(self, shape: Shape, depth: int, steep: bool) -> Node:
        dim = self.random.randrange(2)
        if self.random.random() < 0.4:
            size = self.random.randrange(1, 6)
            places = [self.random.randrange(size) for _ in range(shape[dim])]
            inner = self.number(_with(shape, dim, size), depth, steep=steep)
            return make("index", inner, settings=(dim, *places), shape=shape)
        op = self.random.choice(list(CALLS)) if steep else "flip"
        return make(op, self.number(shape, depth, steep=steep), settings=(dim,))

    def _softmax(self, shape: Shape, depth: int, steep: bool) -> Node:
        return make("softmax", self.number(shape, depth, steep=False), settings=(self.random.randrange(2),))

    def _reduced(self, shape: Shape, depth: int, steep: bool) -> Node:
        dim = self.random.randrange(2)
        op = self.random.choice(("sum", "mean", "amax", "amin"))
        size = self.random.choice((2, 3, 5, 7, 9))
        inner = self.number(_with(shape, dim, size), depth, steep=steep)
        made = make(op, inner, settings=(dim,), shape=_with(shape, dim, 1))
        return made if shape[dim] == 1 else make("add", made, self.leaf(shape))

    def _product(self, shape: Shape, depth: int, steep: bool) -> Node:
        size = self.random.choice((1, 2, 3, 5))
        left = self.number((shape[0], size), depth, steep=False)
        return make("matmul", left, self.number((size, shape[1]), depth - 1, steep=False), shape=shape)


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (size, shape[1]) if dim == 0 else (shape[0], size)
