"""Nodes of random programs: expressions on matrices, run by PyTorch and printed as one line."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Function

__all__ = [
    "ALGEBRA",
    "CALLS",
    "COMPARISONS",
    "LOGIC",
    "UNARY",
    "Law",
    "Node",
    "Shape",
    "as_function",
    "constant",
    "fitted",
    "make",
    "nodes",
    "widened",
]

Shape: TypeAlias = tuple[int, int]

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "square": torch.square,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "sin": torch.sin,
    "root": lambda x: (1 + x * x).sqrt(),
}
COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gt": torch.gt,
    "ge": torch.ge,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
}
LOGIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    **COMPARISONS,
    **LOGIC,
}
_REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: x.sum(dim, keepdim=True),
    "mean": lambda x, dim: x.mean(dim, keepdim=True),
    "amax": lambda x, dim: x.amax(dim, keepdim=True),
    "amin": lambda x, dim: x.amin(dim, keepdim=True),
}
CALLS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "sort": lambda x, dim: x.sort(dim).values,
    "flip": lambda x, dim: x.flip(dim),
}
_CHOICES = {"maximum", "minimum", "amax", "amin", "abs", "relu", *COMPARISONS, *LOGIC}
_MOVES = {"slice", "cat", "index", "transpose", "expand"}
ALGEBRA = {"input", "constant", "matmul", "softmax", *UNARY, *_BINARY, *_REDUCTIONS, *_MOVES} - _CHOICES
"""Operators that compare nothing, of which the verifier knows all laws but those of single functions."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator and what it reads. `settings` are numbers: an axis, the ends of a slice, a constant."""

    op: str
    shape: Shape
    of: tuple["Node", ...] = ()
    settings: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.op == "input":
            return f"x{self.settings[0]:g}"
        if self.op == "constant":
            return repr(self.settings[0])
        listed = [
            *map(str, self.of),
            *(f"{one:g}" if one == int(one) else repr(one) for one in self.settings),
        ]
        return f"{self.op}({', '.join(listed)})"

    @property
    def boolean(self) -> bool:
        """Whether it is a mask."""
        return self.op in COMPARISONS or self.op in LOGIC or self.op == "not"

    @property
    def size(self) -> int:
        """The number of its nodes."""
        return 1 + sum(one.size for one in self.of)

    @property
    def whole(self) -> tuple[int, ...]:
        """The settings as whole numbers."""
        return tuple(int(one) for one in self.settings)

    def at(self, path: Sequence[int]) -> "Node":
        """Return the node that a path leads to."""
        return self.of[path[0]].at(path[1:]) if path else self

    def put(self, path: Sequence[int], node: "Node") -> "Node":
        """Return this node with another one at the end of a path."""
        if not path:
            return node
        at, *rest = path
        return replace(self, of=(*self.of[:at], self.of[at].put(rest, node), *self.of[at + 1 :]))


Law: TypeAlias = Callable[[Node, Random], Node | None]
"""Returns a node that is equal to the one given, or None where it does not fit."""


def make(op: str, *of: Node, settings: Sequence[float] = (), shape: Shape | None = None) -> Node:
    """Return a node; its shape is that of what it reads, broadcast, unless it is given."""
    if shape is None:
        shape = (max(one.shape[0] for one in of), max(one.shape[1] for one in of))
    return Node(op, shape, of, tuple(float(one) for one in settings))


def constant(value: float) -> Node:
    """Return a constant."""
    return Node("constant", (1, 1), settings=(float(value),))


def fitted(made: Node, node: Node) -> Node:
    """Return a node as large as the one that it replaces."""
    return made if made.shape == node.shape else make("expand", made, shape=node.shape)


def widened(node: Node) -> Node:
    """Return a node that is a tensor where it runs, which a constant is not."""
    return make("expand", node, shape=(1, 1)) if node.op == "constant" else node


def nodes(root: Node) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Yield every node with the path that leads to it."""
    waiting: list[tuple[tuple[int, ...], Node]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += [((*path, at), one) for at, one in enumerate(node.of)]


def as_function(root: Node) -> Function:
    """Return an expression as a program of its inputs."""

    def program(*inputs: Tensor) -> Tensor:
        made = _run(root, inputs)
        return made if isinstance(made, Tensor) else torch.full((1, 1), made, dtype=inputs[0].dtype)

    return program


def _run(node: Node, inputs: Sequence[Tensor]) -> Any:
    """Compute a node. Constants stay numbers, as users write them, where an operator takes numbers."""
    if node.op == "input":
        return inputs[node.whole[0]]
    if node.op == "constant":
        return node.settings[0]
    like = inputs[0]
    of = [_run(one, inputs) for one in node.of]
    if node.op in ("add", "sub", "mul", "div") and isinstance(of[0], Tensor):
        return _BINARY[node.op](of[0], of[1])
    if node.op in COMPARISONS and isinstance(of[0], Tensor):
        return COMPARISONS[node.op](of[0], of[1])
    if node.op == "clamp":
        return _tensor(of[0], like).clamp(*node.settings)
    if node.op in ("where", "fill"):
        return _branch(node.op, of, like)
    return _run_on_tensors(node, [_tensor(one, like) for one in of])


def _branch(op: str, of: list[Any], like: Tensor) -> Tensor:
    if op == "fill":
        return _tensor(of[1], like).masked_fill(of[0], of[2])
    if not isinstance(of[1], Tensor) and not isinstance(of[2], Tensor):
        of[1] = _tensor(of[1], like)
    return torch.where(of[0], of[1], of[2])


def _run_on_tensors(node: Node, of: list[Tensor]) -> Tensor:
    if node.op in UNARY:
        return UNARY[node.op](of[0])
    if node.op in _BINARY:
        return _BINARY[node.op](of[0], of[1])
    if node.op in _REDUCTIONS:
        return _REDUCTIONS[node.op](of[0], node.whole[0])
    if node.op in CALLS:
        return CALLS[node.op](of[0], node.whole[0])
    if node.op == "softmax":
        return of[0].softmax(node.whole[0])
    if node.op == "slice":
        dim, start, stop = node.whole
        return of[0][start:stop] if dim == 0 else of[0][:, start:stop]
    return _run_shapes(node, of)


def _run_shapes(node: Node, of: list[Tensor]) -> Tensor:
    if node.op == "cat":
        return torch.cat(of, node.whole[0])
    if node.op == "index":
        places = torch.tensor(node.whole[1:])
        return of[0][places] if node.whole[0] == 0 else of[0][:, places]
    if node.op == "transpose":
        return of[0].T
    if node.op == "matmul":
        return of[0] @ of[1]
    if node.op == "expand":
        return of[0].expand(node.shape)
    assert node.op == "not", node.op
    return of[0].logical_not()


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((1, 1), value, dtype=like.dtype)
