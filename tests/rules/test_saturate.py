"""Saturation: what becomes what, what doesn't, and the table that is exported."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest

from superopt.ir import parse_graph
from superopt.rules.axioms import AXIOMS, Axiom
from superopt.rules.patterns import Pattern, number_of, numbers, parse_pattern, variables
from superopt.rules.saturate import SaturationLimits, _saturated, saturate
from superopt.rules.terms import COMMUTATIVE, OPERATORS, Goal, Node, goal_of

Becomes = Callable[..., bool]

EQUAL = {
    "delayed-division": (
        {"a": "mk", "s": "m", "w": "kn"},
        "(sum k (mul (mul a (inv s)) w))",
        "(mul (sum k (mul a w)) (inv s))",
    ),
    "matmuls-associate": (
        {"a": "mj", "b": "jk", "c": "kn"},
        "(sum k (mul (sum j (mul a b)) c))",
        "(sum j (mul a (sum k (mul b c))))",
    ),
    "lora-merges": (
        {"x": "mk", "w": "kn", "a": "kr", "b": "rn"},
        "(add (sum k (mul x w)) (sum r (mul (sum k (mul x a)) b)))",
        "(sum k (mul x (add w (sum r (mul a b)))))",
    ),
    "lora-splits": (
        {"x": "mk", "w": "kn", "a": "kr", "b": "rn"},
        "(sum k (mul x (add w (sum r (mul a b)))))",
        "(add (sum k (mul x w)) (sum r (mul (sum k (mul x a)) b)))",
    ),
    "exp-of-sum": ({"a": "m", "b": "k"}, "(mul (exp a) (exp b))", "(exp (add a b))"),
    "exp-shift": ({"a": "mk", "b": "m"}, "(sum k (exp (add a b)))", "(mul (exp b) (sum k (exp a)))"),
    "roots-join": ({"a": "m", "b": "m"}, "(mul (sqrt a) (sqrt b))", "(sqrt (mul a b))"),
    "root-of-quotient": (
        {"a": "m", "b": "m"},
        "(sqrt (mul (exp a) (inv (exp b))))",
        "(mul (sqrt (exp a)) (inv (sqrt (exp b))))",
    ),
    "root-of-mean-square": (
        {"a": "mk", "n": ""},
        "(sqrt (mul (sum k (mul a a)) (exp n)))",
        "(mul (sqrt (sum k (mul a a))) (sqrt (exp n)))",
    ),
    "common-factor": ({"a": "m", "b": "m", "c": "m"}, "(add (mul a b) (mul c a))", "(mul a (add b c))"),
    "signs-leave": ({"a": "mk", "b": "m"}, "(sum k (mul (neg a) b))", "(neg (mul b (sum k a)))"),
    "inverse-of-inverse": ({"a": "m", "b": "m"}, "(inv (mul a (inv b)))", "(mul b (inv a))"),
    "max-splits": (
        {"a": "mk", "b": "mk"},
        "(max k (maximum a b))",
        "(maximum (max k b) (max k a))",
    ),
    "sums-commute": ({"a": "jk"}, "(sum j (sum k a))", "(sum k (sum j a))"),
    "maxima-commute": ({"a": "jk"}, "(max j (max k a))", "(max k (max j a))"),
    "half-more": ({"x": "mk"}, "(add (mul x 1/2) x)", "(mul x 3/2)"),
    "half-more-of-a-product": (
        {"x": "mk", "w": "kn"},
        "(add (sum k (mul (mul x 1/2) w)) (sum k (mul x w)))",
        "(mul 3/2 (sum k (mul x w)))",
    ),
    "two-halves": ({"x": "m"}, "(add (mul x (inv 2)) (mul x (inv 2)))", "x"),
    "twice-half": ({"x": "m"}, "(mul 1/2 (mul (mul x x) 2))", "(mul x x)"),
    "multiples": ({"x": "m", "y": "m"}, "(add (add (mul 2 x) y) (mul 3 x))", "(add (mul 5 x) y)"),
    "multiples-cancel": ({"x": "m", "y": "m"}, "(add (add (mul 2 x) y) (neg (mul x 2)))", "y"),
    "less-of-a-multiple": ({"x": "m"}, "(add (mul 3 x) (neg (mul 4 x)))", "(neg x)"),
    "minus-a-multiple": ({"x": "m"}, "(add x (neg (mul 3 x)))", "(neg (mul 2 x))"),
    "negative-constant": ({"x": "m", "y": "m"}, "(mul (mul x -3) y)", "(neg (mul 3 (mul x y)))"),
    "constants-in-a-product": ({"x": "m"}, "(mul 2 (mul x 3))", "(mul 6 x)"),
    "constants-in-a-sum": ({"x": "m"}, "(add 1 (add x (neg 3)))", "(add x -2)"),
    "constant-quotient": ({"x": "m"}, "(mul x (mul 2 (inv 8)))", "(mul x 1/4)"),
    "difference": ({"x": "mk", "y": "m"}, "(add (add x (neg x)) y)", "y"),
    "difference-of-products": ({"x": "m", "y": "m"}, "(add (mul x y) (neg (mul y x)))", "0"),
    "difference-apart": ({"x": "m", "y": "m", "z": "m"}, "(add (add (add x y) z) (neg y))", "(add x z)"),
    "minus-sum": ({"x": "m", "y": "m"}, "(add x (neg (add y x)))", "(neg y)"),
    "zero-absorbs": ({"x": "mk", "y": "m"}, "(add (sum k (mul x 0)) y)", "(add (sum k 0) y)"),
    "zero-absorbs-all": ({"x": "mk", "y": "k"}, "(mul (exp x) (mul (add y (neg y)) x))", "0"),
    "exp-of-nothing": ({"x": "m"}, "(exp (add x (neg x)))", "1"),
    "exponentials-cancel": ({"x": "m"}, "(mul (exp x) (exp (neg x)))", "1"),
    "softmax-sums-to-one": ({"x": "mk"}, "(sum k (mul (exp x) (inv (sum k (exp x)))))", "1"),
    "quotient-of-sums": (
        {"x": "m", "y": "m", "z": "m"},
        "(mul (mul y (add (exp x) 1)) (inv (add (exp x) 1)))",
        "y",
    ),
    "quotient-apart": (
        {"x": "m", "y": "m", "z": "m"},
        "(mul (mul (mul y (exp x)) z) (inv (exp x)))",
        "(mul y z)",
    ),
    "share-of-an-extent": ({"x": "k"}, "(mul (size k) (mul (sum k x) (inv (size k))))", "(sum k x)"),
    "largest-of-same": ({"x": "mk"}, "(max k (max m (maximum x x)))", "(max k (max m x))"),
    "log-of-exp": ({"x": "m", "y": "m"}, "(add (log (exp x)) y)", "(add x y)"),
    "log-of-exps": ({"x": "m", "y": "m"}, "(log (mul (exp x) (exp y)))", "(add x y)"),
    "log-of-quotient": (
        {"x": "m", "y": "m"},
        "(log (mul (exp x) (inv (add 1 (exp y)))))",
        "(add x (neg (log (add 1 (exp y)))))",
    ),
    "log-softmax": (
        {"x": "mk"},
        "(log (mul (exp x) (inv (sum k (exp x)))))",
        "(add x (neg (log (sum k (exp x)))))",
    ),
    "log-of-sqrt": ({"x": "m"}, "(mul 2 (log (sqrt (exp x))))", "x"),
    "sum-of-logs": ({"x": "m", "y": "m"}, "(add (log x) (log y))", "(log (mul x y))"),
    "difference-of-logs": ({"x": "m", "y": "m"}, "(add (log x) (neg (log y)))", "(log (mul x (inv y)))"),
    "exp-of-log": ({"x": "m"}, "(exp (log (add (exp x) 1)))", "(add (exp x) 1)"),
    "exp-of-log-of-exp": ({"x": "m"}, "(exp (log (exp x)))", "(exp x)"),
}

DIFFERENT = {
    "division-by-what-is-summed": (
        {"a": "mk", "s": "mk", "w": "kn"},
        "(sum k (mul (mul a (inv s)) w))",
        "(mul (sum k (mul a w)) (inv s))",
    ),
    "sum-of-product": ({"a": "k", "b": "k"}, "(sum k (mul a b))", "(mul (sum k a) (sum k b))"),
    "other-axis": ({"a": "mk"}, "(sum k a)", "(sum m a)"),
    "matmul-over-other-axes": (
        {"a": "mj", "b": "jk", "c": "kn"},
        "(sum k (mul (sum j (mul a b)) c))",
        "(sum j (mul a (sum j (mul b c))))",
    ),
    "exp-of-product": ({"a": "m", "b": "m"}, "(mul (exp a) (exp b))", "(exp (mul a b))"),
    "inverse-of-sum": ({"a": "m", "b": "m"}, "(inv (add a b))", "(add (inv a) (inv b))"),
    "swapped-division": ({"a": "m", "b": "m"}, "(mul a (inv b))", "(mul b (inv a))"),
    "cancelled": ({"a": "m", "b": "m"}, "(mul (mul a b) (inv b))", "a"),
    "root-of-quotient-of-any-sign": (
        {"a": "m", "b": "m"},
        "(sqrt (mul a (inv b)))",
        "(mul (sqrt a) (inv (sqrt b)))",
    ),
    "root-of-square": ({"a": "m"}, "(sqrt (mul a a))", "a"),
    "root-of-quotient-by-any": ({"x": "m", "y": "m"}, "(mul (mul y x) (inv x))", "y"),
    "quotient-of-squares": ({"x": "m"}, "(mul (mul x x) (inv (mul x x)))", "1"),
    "other-multiples": ({"x": "m", "y": "m"}, "(add (mul 2 x) (mul 3 y))", "(mul 5 x)"),
    "wrong-multiple": ({"x": "m"}, "(add (mul 2 x) x)", "(mul 2 x)"),
    "difference-of-others": ({"x": "mk", "y": "m"}, "(add x (neg y))", "0"),
    "nothing-in-products": ({"x": "m"}, "(mul x (add x (neg x)))", "x"),
    "nothing-in-quotients": ({"x": "m"}, "(inv (add x (neg x)))", "0"),
    "log-of-any-product": ({"x": "m", "y": "m"}, "(log (mul x y))", "(add (log x) (log y))"),
    "log-of-square": ({"x": "m"}, "(log (mul x x))", "(mul 2 (log x))"),
    "log-of-sum": ({"x": "m", "y": "m"}, "(log (add (exp x) (exp y)))", "(add x y)"),
    "exp-of-any-log": ({"x": "m"}, "(exp (log x))", "x"),
    "max-of-sum": ({"a": "k", "b": "k"}, "(max k (add a b))", "(add (max k a) (max k b))"),
    "max-and-sum": ({"a": "jk"}, "(max j (sum k a))", "(sum k (max j a))"),
    "lora-without-factor": (
        {"x": "mk", "w": "kn", "a": "kr", "b": "rn"},
        "(add (sum k (mul x w)) (sum r (mul (sum k (mul x a)) b)))",
        "(sum k (mul x (add w (sum r a))))",
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_becomes(becomes: Becomes, name: str) -> None:
    assert becomes(*EQUAL[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_does_not_become(becomes: Becomes, name: str) -> None:
    assert not becomes(*DIFFERENT[name])


@pytest.mark.parametrize("axiom", AXIOMS, ids=lambda axiom: axiom.name)
def test_every_axiom_is_applied(becomes: Becomes, axiom: Axiom) -> None:
    """Each axiom rewrites in each of its directions; a guarded one not where its guard fails.

    Other axioms may reach the same from there, so the guard is tried with no axiom beside it.
    """
    for left, right in axiom.directions():
        names, axes = variables(parse_pattern(left))
        letters = "".join(axes)
        leaves = {f"leaf_{name}": letters + "z" for name in names} | {"other": letters}
        if axiom.lacks:
            leaves[f"leaf_{axiom.lacks[0]}"] = letters.replace(axiom.lacks[1], "") + "z"
        constants = dict(zip(numbers(parse_pattern(left)), NUMBERS[axiom.negative is not None], strict=False))
        start, end = (_spelled(parse_pattern(side), constants) for side in (left, right))
        for name in (*axiom.nonnegative, *axiom.positive):
            assert not becomes(leaves, start, end, by=axiom)
            sure = f"(add 1 (exp leaf_{name}))"
            start, end = (side.replace(f"leaf_{name}", sure) for side in (start, end))
        for name in axiom.once:
            assert not becomes(leaves, start, end, by=axiom)
            leaves[f"weight_{name}"] = leaves.pop(f"leaf_{name}")
            start, end = (side.replace(f"leaf_{name}", f"weight_{name}") for side in (start, end))
        assert becomes(leaves, start, end)
        if axiom.lacks:
            leaves[f"leaf_{axiom.lacks[0]}"] = letters + "z"
            assert not becomes(leaves, start, end, by=axiom)


NUMBERS = {False: (Fraction(3), Fraction(5)), True: (Fraction(-3),)}
"""What the constants of an axiom are, and of one that asks for a negative constant."""


def _spelled(pattern: Pattern, constants: Mapping[str, Fraction]) -> str:
    """Return a pattern as an expression: its variables become leaves, its constants numbers."""
    if isinstance(pattern, str):
        return f"leaf_{pattern}"
    name, *rest = pattern
    if name == "Const":
        return str(number_of(rest[0], constants, Fraction))
    op = str(name).lower()
    head = [op, str(rest.pop(0))] if op in ("sum", "max") else [op]
    return f"({' '.join([*head, *(_spelled(part, constants) for part in rest)])})"


def test_axiom_names_are_unique() -> None:
    assert len({axiom.name for axiom in AXIOMS}) == len(AXIOMS)


def test_complete(program: Goal) -> None:
    table = saturate(program)
    assert table.truncated is None
    assert table.nodes == len(set(table.entries))
    assert tuple(sorted(table.entries)) == table.entries


@pytest.mark.parametrize("plain", [False, True], ids=["all axioms", "between terms"])
def test_products_and_sums_are_met_in_both_orders(program: Goal, plain: bool) -> None:
    """A goal that constants and logarithms swell is saturated without their axioms, but as fully."""
    table = _saturated(program, SaturationLimits(), None, (), plain=plain)
    assert table.truncated is None
    assert table.entries == saturate(program).entries
    for code, attr, args, found in table.entries:
        if OPERATORS[code] in COMMUTATIVE:
            assert (code, attr, args[::-1], found) in table.entries


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SaturationLimits(nodes=20), "limit of 20 e-nodes"),
        (SaturationLimits(seconds=0), "limit of 0 s"),
        (SaturationLimits(rounds=1), "limit of 1 rounds"),
    ],
)
def test_truncated(programs: dict[str, Goal], limits: SaturationLimits, reason: str) -> None:
    table = saturate(programs["attention"], limits)
    assert table.truncated == reason
    assert table.rounds == 1


def test_interrupted(programs: dict[str, Goal]) -> None:
    assert saturate(programs["attention"], stop=lambda: True).truncated == "interrupted"


@pytest.mark.parametrize("limits", [SaturationLimits(), SaturationLimits(rounds=1)])
def test_table_is_closed(program: Goal, limits: SaturationLimits) -> None:
    table = saturate(program, limits)
    inhabited = {entry[3] for entry in table.entries}
    assert inhabited == set(range(table.classes))
    assert all(arg in inhabited for entry in table.entries for arg in entry[2])
    assert set(table.roots) <= inhabited
    reachable: set[int] = set()
    for _ in range(table.classes + 1):
        reachable |= {found for _, _, args, found in table.entries if reachable.issuperset(args)}
    assert reachable == inhabited
    leaf = OPERATORS.index("leaf")
    for number, found in enumerate(table.class_of_leaf):
        assert (leaf, number, (), found) in table.entries


def test_repeated_runs_agree(program: Goal) -> None:
    first, second = saturate(program), saturate(program)
    assert first.entries == second.entries
    assert (first.roots, first.class_of_leaf, first.rounds) == (
        second.roots,
        second.class_of_leaf,
        second.rounds,
    )


def test_hash_seeds_do_not_matter(programs: dict[str, Goal]) -> None:
    text = str(programs["lora"].graph)
    code = (
        "import sys, hashlib\n"
        "from superopt.ir import parse_graph\n"
        "from superopt.rules.saturate import saturate\n"
        "from superopt.rules.terms import goal_of\n"
        "table = saturate(goal_of(parse_graph(sys.argv[1])))\n"
        "print(hashlib.sha256(repr((table.entries, table.roots)).encode()).hexdigest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code, text],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


ACCESS = """graph access
    axes t=4 n=4 k=8
    in x: f32[t, k]
    in y: f32[{axes}]
    z = {access}(x)
    p = mul(z, y)
    s = sum[{over}](p)
    out o: f32[{out}] = s"""


@pytest.mark.parametrize(
    ("access", "axes", "over", "out", "leaves"),
    [
        ("select[t=0]", "t, k", "t", "k", True),  # the selected axis is gone: the factor leaves the sum
        ("select[t=0]", "t, k", "k", "t", False),
        ("rename[t->n]", "t, k", "t", "n, k", True),  # the old axis is gone
        ("rename[t->n]", "n, k", "n", "k", False),  # the new one is there
    ],
)
def test_axes_of_accesses(access: str, axes: str, over: str, out: str, leaves: bool) -> None:
    goal = goal_of(parse_graph(ACCESS.format(access=access, axes=axes, over=over, out=out)))
    table = saturate(goal)
    mul, total = OPERATORS.index("mul"), OPERATORS.index("sum")
    roots = [entry for entry in table.entries if entry[3] == table.roots[0]]
    assert table.truncated is None
    assert any(entry[0] == total for entry in roots)
    assert any(entry[0] == mul for entry in roots) is leaves


def test_groups_and_closed_masks(programs: dict[str, Goal]) -> None:
    goal = programs["attention"]
    assert goal.groups == (("b", "h"), ("m",), ("d",), ("n",), ("e",))
    masks = [leaf for leaf in goal.leaves if leaf.position is not None and leaf.position >= 3]
    assert [leaf.mask for leaf in masks] == [1 << 1 | 1 << 3]
    assert not any(node.op.startswith("call") for node in goal.nodes)


def test_axes_kept_apart(programs: dict[str, Goal]) -> None:
    apart = goal_of(programs["attention"].graph, apart=("h",))
    assert apart.groups == (("b",), ("h",), ("m",), ("d",), ("n",), ("e",))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_refused() -> None:
    code = """
import os
from superopt.errors import InputError
from superopt.ir import parse_graph
from superopt.rules.saturate import saturate
from superopt.rules.terms import goal_of

goal = goal_of(parse_graph("graph g\\naxes m=4\\nin x: f32[m]\\ny = neg(x)\\nout z: f32[m] = y"))
saturate(goal)
child = os.fork()
if not child:
    try:
        saturate(goal)
    except InputError as error:
        os._exit(0 if "forked from one that searched" in str(error) else 2)
    os._exit(3)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_deep_graphs_do_not_recurse() -> None:
    steps = "\n".join(f"v{i + 1} = neg(v{i})" for i in range(2000))
    graph = parse_graph(f"graph deep\naxes m=4\nin v0: f32[m]\n{steps}\nout y: f32[m] = v2000")
    goal = goal_of(graph)
    assert len(goal.nodes) == 2001
    assert goal.nodes[-1] == Node("neg", (1999,))
