"""Goals for the tests of the rules: whole programs as graphs, and one-line expressions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from superopt.ir import parse_graph
from superopt.rules import egraph
from superopt.rules import program as rules
from superopt.rules.axioms import Axiom
from superopt.rules.patterns import parse_pattern
from superopt.rules.saturate import Entry, SaturationLimits, Table, saturate
from superopt.rules.terms import COMMUTATIVE, OPERATORS, Goal, Leaf, Node, constant_leaf, goal_of

PROGRAMS = {
    "rmsnorm_linear": """graph rmsnorm_linear
        axes m=16 k=4096 n=6144
        in x: f16[m, k]
        in g: f16[k]
        in w: f16[k, n]
        a = square(x)
        b = sum[k](a)
        c = size[k]()
        d = div(b, c)
        e = const[1e-06]()
        f = add(d, e)
        h = sqrt(f)
        i = mul(x, g)
        j = div(i, h)
        o = contract[k](j, w)
        out y: f16[m, n] = o""",
    "attention": """graph attention
        axes b=2 h=32 m=16 d=128 n=4096 e=128
        in q: f16[b, h, m, d]
        in k: f16[b, h, n, d]
        in v: f16[b, h, n, e]
        s = contract[d](q, k)
        c = const[0.08838834764831845]()
        t = mul(s, c)
        im = index[m]()
        in_ = index[n]()
        mask = ge(im, in_)
        p = exp(t)
        pm = mul(mask, p)
        z = sum[n](pm)
        a = div(pm, z)
        o = contract[n](a, v)
        out y: f16[b, h, m, e] = o""",
    "lora": """graph lora
        axes m=16 k=4096 r=16 n=4096
        in x: f16[m, k]
        in w: f16[k, n]
        in a: f16[k, r]
        in b: f16[r, n]
        base = contract[k](x, w)
        low = contract[k](x, a)
        up = contract[r](low, b)
        y = add(base, up)
        out y_: f16[m, n] = y""",
    "gated_mlp": """graph gated_mlp
        axes m=8 k=4096 n=14336
        in x: f16[m, k]
        in w1: f16[k, n]
        in w2: f16[k, n]
        a = contract[k](x, w1)
        b = contract[k](x, w2)
        s = silu(a)
        y = mul(s, b)
        out y_: f16[m, n] = y""",
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Goal:
    return goal_of(parse_graph(PROGRAMS[request.param]))


@pytest.fixture
def programs() -> dict[str, Goal]:
    return {name: goal_of(parse_graph(text)) for name, text in PROGRAMS.items()}


def goal_from(leaves: Mapping[str, str], *texts: str) -> Goal:
    """Return the goal of s-expressions over leaves, whose axes are letters: {"x": "mk"}.

    A leaf whose name begins with `weight` is one.
    A number is a constant, and (size k) the extent of an axis.
    """
    letters = sorted({axis for axes in leaves.values() for axis in axes})
    names = list(leaves)
    found = [
        Leaf(
            i,
            None,
            sum(1 << letters.index(axis) for axis in leaves[name]),
            once=name.startswith("weight"),
        )
        for i, name in enumerate(names)
    ]
    nodes: list[Node] = []
    known: dict[Node, int] = {}

    def leaf(new: Leaf) -> Node:
        if new not in found:
            found.append(new)
        return Node("leaf", (), found.index(new))

    def build(pattern: object) -> int:
        if isinstance(pattern, str):
            node = (
                Node("leaf", (), names.index(pattern))
                if pattern in names
                else leaf(constant_leaf(Fraction(pattern)))
            )
        else:
            assert isinstance(pattern, tuple)
            op, *rest = pattern
            if op == "size":
                extent = sum(1 << letters.index(axis) for axis in rest)
                return place(leaf(Leaf(len(names), None, 0, True, extent=extent)))
            attr = letters.index(rest.pop(0)) if op in ("sum", "max") else 0
            args = tuple(build(part) for part in rest)
            node = Node(op, tuple(sorted(args)) if op in COMMUTATIVE else args, attr)
        return place(node)

    def place(node: Node) -> int:
        if node not in known:
            known[node] = len(nodes)
            nodes.append(node)
        return known[node]

    roots = tuple(build(parse_pattern(text)) for text in texts)
    return Goal(
        graph=parse_graph("graph none\nin x: f32[]\nout y: f32[] = x"),
        groups=tuple((letter,) for letter in letters),
        nodes=tuple(nodes),
        leaves=tuple(found),
        functions=(),
        accesses=(),
        roots=roots,
    )


@pytest.fixture(scope="session")
def expressions() -> Callable[..., Goal]:
    return goal_from


def class_in(table: Table, term: tuple[Node, ...]) -> int | None:
    """Return the class of a term's last node in a table, None where it is not there."""
    of_key = {(op, attr, args): found for op, attr, args, found in table.entries}
    classes: list[int | None] = []
    for node in term:
        args = tuple(classes[i] for i in node.args)
        if None in args:
            classes.append(None)
            continue
        classes.append(of_key.get((OPERATORS.index(node.op), node.attr, args)))  # type: ignore[arg-type]
    return classes[-1]


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return whether the first of two expressions, saturated alone, becomes equal to the second.

    With `by` no axiom but this one is used.
    """

    def check(leaves: Mapping[str, str], start: str, end: str, by: Axiom | None = None) -> bool:
        both = goal_from(leaves, start, end)
        alone = replace(both, nodes=both.nodes[: both.roots[0] + 1], roots=both.roots[:1])
        with monkeypatch.context() as patch:
            if by is not None:
                patch.setattr(rules, "AXIOMS", (by,))
                patch.setattr(rules, "WINDOW_AXIOMS", ())
                patch.setattr(egraph, "commands", rules.commands.__wrapped__)
            weights = any(leaf.once for leaf in both.leaves)
            table = saturate(alone, SaturationLimits(nodes=5000), weights=weights)
        assert table.truncated is None
        return class_in(table, both.nodes[: both.roots[1] + 1]) == table.roots[0]

    return check


def terms_of(table: Table) -> list[tuple[Entry, tuple[Node, ...]]]:
    """Return each entry of a table with a term that spells it, operands in their first form."""
    best: dict[int, Entry] = {}
    size = -1
    while size != len(best):
        size = len(best)
        for entry in table.entries:
            if entry[3] not in best and all(arg in best for arg in entry[2]):
                best[entry[3]] = entry
    assert len(best) == table.classes

    def spell(entry: Entry) -> tuple[Node, ...]:
        nodes: list[Node] = []
        places: dict[int, int] = {}

        def place(number: int) -> int:
            if number not in places:
                add(best[number])
                places[number] = len(nodes) - 1
            return places[number]

        def add(entry: Entry) -> None:
            op, attr, args, _ = entry
            nodes.append(Node(OPERATORS[op], tuple([place(arg) for arg in args]), attr))

        add(entry)
        return tuple(nodes)

    return [(entry, spell(entry)) for entry in table.entries]


@pytest.fixture(scope="session")
def spelled() -> Callable[[Table], list[tuple[Entry, tuple[Node, ...]]]]:
    return terms_of
