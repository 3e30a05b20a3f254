"""Laws: equations that hold over the reals for every input, as rewrites of nodes of random programs."""

from dataclasses import replace
from random import Random

from superopt.bench.verdicts.programs.moves import MOVES
from superopt.bench.verdicts.programs.nodes import UNARY, Law, Node, constant, fitted, make, nodes, widened

__all__ = ["LAWS", "rewrite"]

_COMMUTATIVE = {"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"}
_ASSOCIATIVE = {"add", "maximum", "minimum", "and", "or"}
_TURNED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}
_NEGATED = {"gt": "le", "le": "gt", "lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}
_OTHER = {
    "maximum": "minimum",
    "minimum": "maximum",
    "amax": "amin",
    "amin": "amax",
    "and": "or",
    "or": "and",
}
_RISING = {"exp", "tanh", "sigmoid", "relu"}
_ALWAYS = {"identity", "both branches", "split"}  # laws that fit almost anywhere
_LARGEST = 60  # nodes that one law may make
_POINTWISE = {*UNARY} - {"root"}


def rewrite(root: Node, random: Random, times: int) -> tuple[Node, tuple[str, ...]]:
    """Return an equal program after some laws were applied at random nodes, and the names of the laws."""
    used: list[str] = []
    for _ in range(times):
        fits: list[tuple[tuple[int, ...], str, Node]] = []
        for path, node in nodes(root):
            made = ((name, law(node, random)) for name, law in LAWS.items() if node.op != "constant")
            fits += [(path, name, one) for name, one in made if one is not None and one.size <= _LARGEST]
        telling = [one for one in fits if one[1] not in _ALWAYS]
        if not fits:
            break
        path, name, one = random.choice(telling if telling and random.random() < 0.75 else fits)
        used.append(name)
        root = root.put(path, fitted(one, root.at(path)))
    return root, tuple(used)


def _like(node: Node, *of: Node) -> Node:
    """Return the same operator of other nodes, of the same shape."""
    return replace(node, of=of)


def _commute(node: Node, random: Random) -> Node | None:
    return _like(node, *reversed(node.of)) if node.op in _COMMUTATIVE and _tensor(node.of[1]) else None


def _tensor(node: Node) -> bool:
    return node.op != "constant"


def _associate(node: Node, random: Random) -> Node | None:
    if node.op not in _ASSOCIATIVE or node.of[0].op != node.op:
        return None
    (a, b), c = node.of[0].of, node.of[1]
    return make(node.op, a, make(node.op, b, c)) if _tensor(b) else None


def _distribute(node: Node, random: Random) -> Node | None:
    if node.op != "mul" or node.of[1].boolean or node.of[0].op not in ("add", "sub"):
        return None
    (a, b), c = node.of[0].of, node.of[1]
    return make(
        node.of[0].op, make("mul", a, c), make("mul", c, b) if _tensor(c) else make("mul", widened(b), c)
    )


def _factor(node: Node, random: Random) -> Node | None:
    if node.op not in ("add", "sub") or any(one.op != "mul" for one in node.of):
        return None
    (a, b), (c, d) = (one.of for one in node.of)
    return make("mul", make(node.op, a, c), b) if b == d and not b.boolean else None


def _minus(node: Node, random: Random) -> Node | None:
    if node.op == "sub":
        a, b = node.of
        return make("add", a, make("neg", b) if _tensor(b) else constant(-b.settings[0]))
    return None


def _identity(node: Node, random: Random) -> Node | None:
    if node.boolean:
        return make("not", make("not", node))
    ways = [
        make("neg", make("neg", widened(node))),
        make("mul", widened(node), constant(1.0)),
        make("add", widened(node), constant(0.0)),
        make("mul", make("mul", widened(node), constant(2.0)), constant(0.5)),
        make("transpose", make("transpose", widened(node), shape=node.shape[::-1]), shape=node.shape),
        make("flip", make("flip", widened(node), settings=(1,)), settings=(1,)),
        make("maximum", node, node) if _tensor(node) else make("mul", widened(node), constant(1.0)),
        make("sub", make("relu", widened(node)), make("relu", make("neg", widened(node)))),
    ]
    return random.choice(ways)


def _both_branches(node: Node, random: Random) -> Node | None:
    if node.boolean or not _tensor(node):
        return None
    mask = make(random.choice(["gt", "ge", "eq"]), node, constant(random.choice((0.0, 1.0, 50.0))))
    return make("where", mask, node, node)


def _relu(node: Node, random: Random) -> Node | None:
    if node.op != "relu":
        return None
    x, zero = node.of[0], constant(0.0)
    ways = [
        make("where", make("gt", x, zero), x, zero),
        make("where", make("ge", x, zero), x, zero),
        make("where", make("le", x, zero), zero, x),
        make("maximum", x, zero),
        make("mul", x, make("gt", x, zero)),
        make("mul", make("add", x, make("abs", x)), constant(0.5)),
        make("mul", make("relu", make("mul", x, constant(2.0))), constant(0.5)),
    ]
    return random.choice(ways)


def _abs(node: Node, random: Random) -> Node | None:
    if node.op != "abs":
        return None
    x = node.of[0]
    ways = [
        make("maximum", x, make("neg", x)),
        make("where", make("lt", x, constant(0.0)), make("neg", x), x),
        make("abs", make("neg", x)),
        make("add", make("relu", x), make("relu", make("neg", x))),
    ]
    if x.op == "mul" and not x.of[1].boolean and _tensor(x.of[1]):
        ways.append(make("mul", make("abs", x.of[0]), make("abs", x.of[1])))
    return random.choice(ways)


def _square(node: Node, random: Random) -> Node | None:
    if node.op == "square":
        x = node.of[0]
        return random.choice(
            [make("mul", x, x), make("square", make("neg", x)), make("square", make("abs", x))]
        )
    return None


def _smooth(node: Node, random: Random) -> Node | None:
    if node.op not in ("sigmoid", "tanh", "sin"):
        return None
    x = node.of[0]
    if node.op == "sin":
        return make("neg", make("sin", make("neg", x)))
    if node.op == "tanh":
        inner = make("sigmoid", make("mul", x, constant(2.0)))
        return make("sub", make("mul", inner, constant(2.0)), constant(1.0))
    below = make("sub", make("expand", constant(1.0), shape=x.shape), make("sigmoid", make("neg", x)))
    return random.choice([below, make("neg", make("sub", make("sigmoid", make("neg", x)), constant(1.0)))])


def _exp_of_sum(node: Node, random: Random) -> Node | None:
    if node.op == "exp" and node.of[0].op == "add" and _tensor(node.of[0].of[1]):
        return make("mul", *(make("exp", one) for one in node.of[0].of))
    return None


def _extreme(node: Node, random: Random) -> Node | None:
    """A maximum as where, by relu, or as a minimum of what is negated."""
    if node.op not in ("maximum", "minimum"):
        return None
    a, b = node.of
    if not _tensor(a) or not _tensor(b):
        return None
    comparison = random.choice(("gt", "ge")) if node.op == "maximum" else random.choice(("lt", "le"))
    ways = [
        make("where", make(comparison, a, b), a, b),
        make("neg", make(_OTHER[node.op], make("neg", a), make("neg", b))),
        make("add", b, make("relu", make("sub", a, b)))
        if node.op == "maximum"
        else make("sub", a, make("relu", make("sub", a, b))),
        make(
            "mul", make(node.op, make("mul", a, constant(4.0)), make("mul", b, constant(4.0))), constant(0.25)
        ),
    ]
    return random.choice(ways)


def _shifted_extreme(node: Node, random: Random) -> Node | None:
    if node.op == "add" and node.of[0].op in ("maximum", "minimum"):
        (a, b), c = node.of[0].of, node.of[1]
        return make(node.of[0].op, make("add", widened(a), c), make("add", widened(b), c))
    return None


def _rising_extreme(node: Node, random: Random) -> Node | None:
    if node.op in _RISING and node.of[0].op in ("maximum", "minimum"):
        return make(node.of[0].op, *(make(node.op, widened(one)) for one in node.of[0].of))
    return None


def _clamp(node: Node, random: Random) -> Node | None:
    if node.op != "clamp":
        return None
    x, (low, high) = node.of[0], map(constant, node.settings)
    ways = [
        make("minimum", make("maximum", x, low), high),
        make("maximum", make("minimum", x, high), low),
        make("where", make("lt", x, low), low, make("where", make("gt", x, high), high, x)),
        make("neg", make("clamp", make("neg", x), settings=[-one for one in reversed(node.settings)])),
        make("clamp", node, settings=node.settings),
    ]
    return random.choice(ways)


def _comparison(node: Node, random: Random) -> Node | None:
    if node.op not in _NEGATED:
        return None
    a, b = node.of
    ways = [make("not", make(_NEGATED[node.op], a, b))]
    if node.op in _TURNED and _tensor(b):
        ways.append(make(_TURNED[node.op], b, a))
    if node.op in _TURNED:
        ways.append(
            make(_TURNED[node.op], make("neg", a), make("neg", b) if _tensor(b) else constant(-b.settings[0]))
        )
    if node.op == "eq":
        ways.append(make("and", make("ge", a, b), make("le", a, b)))
    if node.op == "ne":
        ways.append(make("or", make("gt", a, b), make("lt", a, b)))
    if node.op == "ge":
        ways.append(make("or", make("gt", a, b), make("eq", a, b)))
    if node.op == "gt":
        ways.append(make("and", make("ge", a, b), make("ne", a, b)))
    if not _tensor(b):
        ways.append(make(node.op, make("mul", a, constant(2.0)), constant(2 * b.settings[0])))
    return random.choice(ways)


def _logic(node: Node, random: Random) -> Node | None:
    if node.op in ("and", "or"):
        return make("not", make(_OTHER[node.op], *(make("not", one) for one in node.of)))
    if node.op == "xor":
        a, b = node.of
        return make("and", make("or", a, b), make("not", make("and", a, b)))
    return None


def _branches(node: Node, random: Random) -> Node | None:
    if node.op != "where":
        return None
    mask, a, b = node.of
    ways = [make("where", make("not", mask), b, a)]
    if mask.op == "not":
        ways.append(make("where", mask.of[0], b, a))
    if mask.op == "and":
        ways.append(make("where", mask.of[0], make("where", mask.of[1], a, b), b))
    if mask.op == "or":
        ways.append(make("where", mask.of[0], a, make("where", mask.of[1], a, b)))
    if _tensor(a):
        zero = constant(0.0)
        ways.append(
            make("add", make("where", mask, a, zero), make("where", make("not", mask), widened(b), zero))
        )
        ways.append(make("add", make("mul", a, mask), make("mul", widened(b), make("not", mask))))
    return random.choice(ways)


def _mask(node: Node, random: Random) -> Node | None:
    zero = constant(0.0)
    if node.op == "mul" and node.of[1].boolean:
        return random.choice(
            [
                make("where", node.of[1], node.of[0], zero),
                make("fill", make("not", node.of[1]), node.of[0], zero),
            ]
        )
    if node.op == "fill":
        mask, x, value = node.of
        return random.choice([make("where", mask, value, x), make("where", make("not", mask), x, value)])
    return None


def _through_where(node: Node, random: Random) -> Node | None:
    if node.op in _POINTWISE and node.of[0].op == "where":
        mask, a, b = node.of[0].of
        return make("where", mask, make(node.op, widened(a)), make(node.op, widened(b)))
    if node.op in ("add", "mul", "sub") and node.of[0].op == "where" and not node.of[1].boolean:
        (mask, a, b), c = node.of[0].of, node.of[1]
        return make("where", mask, make(node.op, widened(a), c), make(node.op, widened(b), c))
    return None


def _softmax(node: Node, random: Random) -> Node | None:
    if node.op != "softmax":
        return None
    x, dim = widened(node.of[0]), node.whole[0]
    shape = (1, x.shape[1]) if dim == 0 else (x.shape[0], 1)
    top = make("sub", x, make("amax", x, settings=(dim,), shape=shape))
    e = random.choice([make("exp", top), make("exp", x)])
    ways = [
        make("div", e, make("sum", e, settings=(dim,), shape=shape)),
        replace(node, of=(make("add", x, constant(2.0)),)),
        replace(node, of=(top,)),
    ]
    return random.choice(ways)


def _call(node: Node, random: Random) -> Node | None:
    """Calls: scaled by a power of two, shifted where that commutes, or of a rewritten argument."""
    if node.op not in ("cumsum", "sort"):
        return None
    x = widened(node.of[0])
    ways = [make("mul", replace(node, of=(make("mul", x, constant(2.0)),)), constant(0.5))]
    if node.op == "sort":
        ways.append(make("sub", replace(node, of=(make("add", x, constant(1.0)),)), constant(1.0)))
        ways.append(replace(node, of=(make("flip", x, settings=node.settings),)))
    return random.choice(ways)


LAWS: dict[str, Law] = {
    "commute": _commute,
    "associate": _associate,
    "distribute": _distribute,
    "factor": _factor,
    "minus": _minus,
    "identity": _identity,
    "both branches": _both_branches,
    "relu": _relu,
    "abs": _abs,
    "square": _square,
    "smooth": _smooth,
    "exp of a sum": _exp_of_sum,
    "extreme": _extreme,
    "shifted extreme": _shifted_extreme,
    "rising extreme": _rising_extreme,
    "clamp": _clamp,
    "comparison": _comparison,
    "logic": _logic,
    "branches": _branches,
    "mask": _mask,
    "through where": _through_where,
    "softmax": _softmax,
    "call": _call,
    **MOVES,
}
"""Every law by its name. A law returns None for a node that it does not fit."""
