"""Mutations: small mistakes in random programs, most of which change what they compute."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

from superopt.bench.verdicts.programs.nodes import Node, Shape, constant, fitted, make, nodes

__all__ = ["MUTATIONS", "mutate"]

Mutation: TypeAlias = Callable[[Node, Random], Node | None]

_COMPARISONS = {
    "gt": ("ge", "lt"),
    "ge": ("gt", "eq"),
    "lt": ("le", "gt"),
    "le": ("lt", "ne"),
    "eq": ("ne", "le"),
    "ne": ("gt",),
}
_OTHER = {
    "maximum": "minimum",
    "minimum": "maximum",
    "add": "sub",
    "sub": "add",
    "and": "or",
    "or": "xor",
    "xor": "and",
    "sum": "mean",
    "mean": "sum",
    "amax": "amin",
    "amin": "amax",
    "tanh": "sigmoid",
    "sigmoid": "tanh",
    "gelu": "relu",
    "relu": "gelu",
    "abs": "relu",
    "sin": "tanh",
    "exp": "square",
    "square": "abs",
    "cumsum": "sort",
    "sort": "flip",
    "flip": "sort",
}


def mutate(root: Node, shapes: tuple[Shape, ...], random: Random) -> tuple[Node, str] | None:
    """Return a program with one mistake and what that is, or None where none was found that fits."""
    for _ in range(60):
        path, node = random.choice(list(nodes(root)))
        name = random.choice(list(MUTATIONS))
        made = (
            _another_input(node, shapes, random) if name == "another input" else MUTATIONS[name](node, random)
        )
        if made is not None and made != node:
            return root.put(path, fitted(made, node)), name
    return None


def _another_constant(node: Node, random: Random) -> Node | None:
    if node.op != "constant":
        return None
    value = node.settings[0]
    return constant(
        random.choice((value + 1, -value, value * 1.1, value + 1e-3, value * 2, 0.0, value + 1e-5))
    )


def _another_bound(node: Node, random: Random) -> Node | None:
    if node.op != "clamp":
        return None
    low, high = node.settings
    ways = ((low, high + 1), (low - 0.5, high), (low, 1e4), (-1e4, high), (low, low + (high - low) * 0.9))
    return replace(node, settings=random.choice(ways))


def _another_operator(node: Node, random: Random) -> Node | None:
    return replace(node, op=_OTHER[node.op]) if node.op in _OTHER and not _of_mask(node) else None


def _of_mask(node: Node) -> bool:
    return node.op in ("add", "sub") and any(one.boolean for one in node.of)


def _another_comparison(node: Node, random: Random) -> Node | None:
    return replace(node, op=random.choice(_COMPARISONS[node.op])) if node.op in _COMPARISONS else None


def _swapped_operands(node: Node, random: Random) -> Node | None:
    if node.op in ("sub", "div", "gt", "lt", "ge", "le") and node.of[1].op != "constant":
        return replace(node, of=(node.of[1], node.of[0]))
    if node.op == "matmul" and node.of[0].shape == node.of[1].shape:
        return replace(node, of=(node.of[1], node.of[0]))
    return None


def _turned(node: Node, random: Random) -> Node | None:
    """A square matrix with its axes exchanged."""
    rows, columns = node.shape
    return make("transpose", node, shape=node.shape) if rows == columns > 1 and not node.boolean else None


def _swapped_branches(node: Node, random: Random) -> Node | None:
    if node.op == "where" and node.of[2].op != "constant":
        mask, a, b = node.of
        return make("where", mask, b, a)
    return None


def _dropped_mask(node: Node, random: Random) -> Node | None:
    if node.op in ("where", "fill"):
        return node.of[1]
    return node.of[0] if node.op == "mul" and node.of[1].boolean else None


def _never(node: Node, random: Random) -> Node | None:
    """A comparison that is never true, or always."""
    if node.op not in _COMPARISONS:
        return None
    return replace(node, of=(node.of[0], node.of[0]))


def _dropped(node: Node, random: Random) -> Node | None:
    """An operator that keeps its argument's shape, left out."""
    kept = node.op in ("neg", "abs", "relu", "clamp", "softmax", "cumsum", "sort", "flip", "not", "tanh")
    return node.of[0] if kept else None


def _one_operand(node: Node, random: Random) -> Node | None:
    if node.op in ("add", "sub", "maximum", "minimum", "and", "or"):
        return node.of[0]
    return None


def _another_place(node: Node, random: Random) -> Node | None:
    if node.op == "slice":
        dim, start, stop = node.whole
        step = random.choice((-1, 1))
        inside = start + step >= 0 and stop + step <= node.of[0].shape[dim]
        return replace(node, settings=(dim, start + step, stop + step)) if inside else None
    if node.op == "index":
        places = list(node.whole[1:])
        places[random.randrange(len(places))] = random.randrange(node.of[0].shape[node.whole[0]])
        return replace(node, settings=(node.settings[0], *map(float, places)))
    return None


def _swapped_parts(node: Node, random: Random) -> Node | None:
    if node.op == "cat" and node.of[0].shape == node.of[1].shape:
        return replace(node, of=(node.of[1], node.of[0]))
    return None


def _another_axis(node: Node, random: Random) -> Node | None:
    if node.op in ("softmax", "cumsum", "sort", "flip"):
        return replace(node, settings=(1 - node.settings[0],))
    return None


def _another_input(node: Node, shapes: tuple[Shape, ...], random: Random) -> Node | None:
    if node.op != "input":
        return None
    others = [at for at, shape in enumerate(shapes) if shape == node.shape and at != node.settings[0]]
    return replace(node, settings=(float(random.choice(others)),)) if others else None


def _nothing(node: Node, random: Random) -> Node | None:
    return None


MUTATIONS: dict[str, Mutation] = {
    "another constant": _another_constant,
    "another bound": _another_bound,
    "another operator": _another_operator,
    "another comparison": _another_comparison,
    "swapped operands": _swapped_operands,
    "a square turned": _turned,
    "swapped branches": _swapped_branches,
    "a dropped mask": _dropped_mask,
    "a comparison with itself": _never,
    "a dropped operator": _dropped,
    "one operand only": _one_operand,
    "another place": _another_place,
    "swapped parts": _swapped_parts,
    "another axis": _another_axis,
    "another input": _nothing,  # needs the shapes of all inputs
}
"""Every mistake by its name."""
