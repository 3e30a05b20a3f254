"""Moves: laws of slices, parts, sums and products of matrices, as rewrites of single nodes."""

from dataclasses import replace
from random import Random

from superopt.bench.verdicts.programs.nodes import (
    COMPARISONS,
    UNARY,
    Law,
    Node,
    constant,
    fitted,
    make,
    widened,
)

__all__ = ["MOVES"]

_PLACES = {"flip", "transpose", "slice", "index", "expand"}  # what only moves numbers
_LINEAR = {"sum", "mean", *_PLACES}
_OTHER = {"amax": "amin", "amin": "amax"}


def _along(node: Node, of: Node) -> Node:
    """Return an operator that moves or reduces, applied to a node that is as large as what it reads."""
    return replace(node, of=(fitted(of, node.of[0]),))


def _linear(node: Node, random: Random) -> Node | None:
    """A sum, a mean or a move of a sum is the sum of both; only where both are as large as the sum."""
    if node.op not in _LINEAR or node.of[0].op not in ("add", "sub"):
        return None
    a, b = node.of[0].of
    return make(node.of[0].op, *(_along(node, one) for one in (a, b)))


def _moved(node: Node, random: Random) -> Node | None:
    """What only moves numbers goes before or after what works on each number."""
    if node.op not in _PLACES:
        return None
    inner = node.of[0]
    if inner.op in UNARY or inner.op in ("clamp", "not"):
        return replace(inner, of=(_along(node, inner.of[0]),), shape=node.shape)
    if inner.op in ("mul", "maximum", "minimum", "where", *COMPARISONS):
        return replace(inner, of=tuple(_along(node, one) for one in inner.of), shape=node.shape)
    return None


def _split(node: Node, random: Random) -> Node | None:
    """Anything is a cat of its two parts."""
    dim = random.randrange(2)
    if node.op == "constant" or node.boolean or node.shape[dim] < 2:
        return None
    at = random.randrange(1, node.shape[dim])
    return make("cat", *_parts(node, dim, at), settings=(dim,), shape=node.shape)


def _parts(node: Node, dim: int, at: int) -> tuple[Node, Node]:
    made = []
    for start, stop in ((0, at), (at, node.shape[dim])):
        shape = (stop - start, node.shape[1]) if dim == 0 else (node.shape[0], stop - start)
        made.append(make("slice", node, settings=(dim, start, stop), shape=shape))
    return made[0], made[1]


def _split_reduction(node: Node, random: Random) -> Node | None:
    ways = {"sum": "add", "amax": "maximum", "amin": "minimum"}
    if node.op not in ways or node.of[0].shape[node.whole[0]] < 2:
        return None
    dim, x = node.whole[0], widened(node.of[0])
    at = random.randrange(1, x.shape[dim])
    return make(ways[node.op], *(replace(node, of=(part,)) for part in _parts(x, dim, at)))


def _reduction(node: Node, random: Random) -> Node | None:
    if node.op == "mean":
        size = node.of[0].shape[node.whole[0]]
        return make("div", replace(node, op="sum"), constant(size))
    if node.op in ("amax", "amin"):
        return make("neg", replace(node, op=_OTHER[node.op], of=(make("neg", widened(node.of[0])),)))
    if node.op == "sum":
        return replace(node, of=(make("flip", widened(node.of[0]), settings=node.settings),))
    return None


def _slice_of_cat(node: Node, random: Random) -> Node | None:
    if node.op != "slice" or node.of[0].op != "cat" or node.of[0].settings[0] != node.settings[0]:
        return None
    dim, start, stop = node.whole
    first, second = node.of[0].of
    size = first.shape[dim]
    if stop <= size:
        return replace(node, of=(first,))
    if start >= size:
        return replace(node, of=(second,), settings=(dim, start - size, stop - size))
    return None


def _slice_of_slice(node: Node, random: Random) -> Node | None:
    inner = node.of[0] if node.of else node
    if node.op != "slice" or inner.op != "slice" or inner.settings[0] != node.settings[0]:
        return None
    dim, start, stop = node.whole
    return replace(node, of=inner.of, settings=(dim, start + inner.whole[1], stop + inner.whole[1]))


def _slice_as_index(node: Node, random: Random) -> Node | None:
    if node.op == "slice":
        dim, start, stop = node.whole
        return replace(node, op="index", settings=(dim, *range(start, stop)))
    return None


def _of_cat(node: Node, random: Random) -> Node | None:
    if node.op in UNARY and node.of[0].op == "cat":
        return replace(node.of[0], of=tuple(make(node.op, widened(one)) for one in node.of[0].of))
    return None


def _matmul(node: Node, random: Random) -> Node | None:
    if node.op != "matmul":
        return None
    a, b = (widened(one) for one in node.of)
    (m, k), n = a.shape, b.shape[1]
    turned = (make("transpose", one, shape=one.shape[::-1]) for one in (b, a))
    ways = [make("transpose", make("matmul", *turned, shape=(n, m)), shape=(m, n))]
    ways.append(make("mul", replace(node, of=(make("mul", a, constant(0.5)), b)), constant(2.0)))
    if a.op in ("add", "sub"):
        ways.append(make(a.op, *(replace(node, of=(fitted(one, a), b)) for one in a.of)))
    if k > 1:
        at = random.randrange(1, k)
        ways.append(
            make(
                "add",
                *(replace(node, of=two) for two in zip(_parts(a, 1, at), _parts(b, 0, at), strict=True)),
            )
        )
    return random.choice(ways)


MOVES: dict[str, Law] = {
    "linear": _linear,
    "moved": _moved,
    "split": _split,
    "split reduction": _split_reduction,
    "reduction": _reduction,
    "slice of cat": _slice_of_cat,
    "slice of slice": _slice_of_slice,
    "slice as index": _slice_as_index,
    "of cat": _of_cat,
    "matmul": _matmul,
}
"""Every such law by its name."""
