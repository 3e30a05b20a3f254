"""The search: every graph once, nothing lost by pruning, and the same for any number of workers."""

import re
from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.frontier.engine import Limits, explore
from superopt.rules.discover.discover import MATRICES, Discovery, default_setting, discover
from superopt.rules.discover.language.expressions import parse_expression, text_of
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import parse_rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort
from superopt.rules.discover.search.candidates import candidates_of
from superopt.rules.discover.search.congruence import Congruence
from superopt.rules.discover.search.generalize import generalized
from superopt.rules.discover.search.graphs import Graphs, last_applications
from superopt.rules.discover.search.terms import NOTHING, Terms, first_terms
from superopt.rules.discover.store import text_of_rules
from superopt.rules.discover.why import why

SMALL = ("add", "relu", "transpose", "split_rows")
JOINING = ("add", "matmul", "concat_cols", "concat_rows", "split_cols")


def all_terms(names: tuple[str, ...], size: int, inputs: int | None = None) -> tuple[Terms, int]:
    """Return the terms of graphs of so many operators and inputs, and how many graphs were made."""
    setting = default_setting(size, names)
    terms, count = first_terms(replace(setting, inputs=setting.inputs[:inputs])), 0
    for length in range(1, size + 1):
        found = explore(Graphs(terms, length))
        count = len(found.rows)
        assert all(level.duplicates == 0 for level in found.levels)
        terms = terms.extended(last_applications(terms, found.rows, length), length, valued=length < size)
    return terms, count


def graphs_by_hand(names: tuple[str, ...], size: int) -> set[frozenset[tuple[str, ...]]]:
    """Return all graphs as sets of applications written as text, made one by one."""
    setting = default_setting(size, names)
    shapes = dict(setting.inputs)
    level: dict[frozenset[tuple[str, ...]], dict[str, tuple[int, ...]]] = {frozenset(): shapes}
    found = set(level)
    for length in range(1, size + 1):
        following = {}
        for graph, tensors in level.items():
            for name in names:
                for operands in product(sorted(tensors), repeat=OPERATORS[name].arity):
                    made = results_by_hand(name, [tensors[operand] for operand in operands])
                    ordered = sorted(operands) if OPERATORS[name].commutative else operands
                    step = (name, *ordered)
                    if made is None or step in graph:
                        continue
                    text = f"{name}({', '.join(ordered)})"
                    following[graph | {step}] = tensors | {
                        f"{text}[{part}]" if len(made) > 1 else text: shape for part, shape in enumerate(made)
                    }
        level = following
        # Applications that no other one uses must be joined by the operators that are left, two by each.
        found |= {graph for graph in level if unused_by_hand(graph) <= size - length + 1}
    return found


def unused_by_hand(graph: frozenset[tuple[str, ...]]) -> int:
    """Return how many applications of a graph no other one uses."""
    operands = {re.sub(r"\[\d\]$", "", operand) for _, *some in graph for operand in some}
    return sum(f"{name}({', '.join(some)})" not in operands for name, *some in graph)


def results_by_hand(name: str, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    rows, cols = shapes[0] or ((), ())
    if name == "add":
        return [shapes[0]] if shapes[0] == shapes[1] and shapes[0] else None
    if name == "relu":
        return [shapes[0]] if shapes[0] else None
    if name == "transpose":
        return [(cols, rows)] if shapes[0] else None
    assert name == "split_rows"
    return [(rows[: len(rows) // 2], cols)] * 2 if rows and len(rows) % 2 == 0 else None


@pytest.mark.parametrize(("names", "size"), [(SMALL, 1), (SMALL, 2), (("relu", "split_rows"), 2)])
def test_every_graph_that_can_be_joined_is_made_once(names: tuple[str, ...], size: int) -> None:
    _, count = all_terms(names, size)
    assert count == len(graphs_by_hand(names, size))


def test_every_graph_of_three_operators_is_made_once() -> None:
    _, count = all_terms(("relu", "transpose", "split_rows"), 3)
    assert count == len(graphs_by_hand(("relu", "transpose", "split_rows"), 3))


def test_terms_are_what_they_say() -> None:
    terms, _ = all_terms(("add", "split_rows", "concat_rows"), 2)
    texts = [text_of(terms.expression(term)) for term in range(len(terms))]
    assert len(set(texts)) == len(texts)
    assert {"a", "split_rows(a)[1]", "add(a, concat_rows(b, c))"} - set(texts) == {
        "add(a, concat_rows(b, c))"
    }
    assert "concat_rows(split_rows(a)[0], split_rows(a)[1])" in texts
    whole = texts.index("concat_rows(split_rows(a)[0], split_rows(a)[1])")
    assert terms.fingerprint_of[whole] == terms.fingerprint_of[texts.index("a")]
    turned = texts.index("concat_rows(split_rows(a)[1], split_rows(a)[0])")
    assert terms.fingerprint_of[turned] != terms.fingerprint_of[texts.index("a")]


@cache
def discovered(names: tuple[str, ...]) -> Discovery:
    """Return what is discovered of graphs of two such operators."""
    return discover(default_setting(2, names), 2, explore)


@pytest.mark.parametrize("names", [SMALL, ("mul", "scale", "relu", "matmul"), JOINING], ids="-".join)
def test_all_equalities_follow_from_the_rules(names: tuple[str, ...]) -> None:
    """Each tensor that equals an earlier one for other numbers too is joined with it, or derived."""
    rules = [rule for rule, _ in discovered(names).rules]
    terms, _ = all_terms(names, 2)
    congruence = Congruence(terms)
    changed = True
    while changed:
        changed = False
        for rule in rules:
            changed |= congruence.apply(rule.left[0], rule.right[0])
    deriver = Deriver(rules)
    sizes = dict(terms.setting.inputs)
    _, firsts, classes = np.unique(terms.fingerprint_of, return_index=True, return_inverse=True)
    missed = []
    for term, first in enumerate(firsts[classes].tolist()):
        if congruence.joined(term, first):
            continue
        rule = rule_of("", [terms.expression(term)], [terms.expression(first)], sizes)
        assert rule is not None
        if counterexample(rule, 99) is None and not deriver.derives(rule, Effort(6, 8000)):
            missed.append((text_of(terms.expression(term)), text_of(terms.expression(first))))
    assert missed == []


def test_congruence_joins_nothing_but_what_is_equal() -> None:
    terms, _ = all_terms(JOINING, 2)
    congruence = Congruence(terms)
    for rule, _ in discovered(JOINING).rules:
        congruence.apply(rule.left[0], rule.right[0])
    joined = np.flatnonzero(congruence.classes != np.arange(len(terms)))
    assert len(joined)
    assert (terms.fingerprint_of[joined] == terms.fingerprint_of[congruence.classes[joined]]).all()


def test_a_rule_for_other_shapes_joins_nothing() -> None:
    """The halves of a joined matrix are its parts only where the parts are of one size."""
    terms, _ = all_terms(("concat_rows", "split_rows"), 3, inputs=2)
    congruence = Congruence(terms)
    rule = parse_rule("a[m, k] b[n, k]: split_rows(concat_rows(a, b), m)[0] = a")
    assert congruence.apply(rule.left[0], rule.right[0])
    joined = np.flatnonzero(congruence.classes != np.arange(len(terms)))
    assert (terms.shape_of[joined] == terms.shape_of[congruence.classes[joined]]).all()


def test_candidates_leave_nothing_out() -> None:
    terms, _ = all_terms(("mul", "scale", "relu"), 2)
    candidates = candidates_of(terms)
    parts = candidates.replaced + candidates.renamed + len(candidates.lefts)
    assert candidates.equal == parts
    assert (terms.fingerprint_of[candidates.lefts] == terms.fingerprint_of[candidates.rights]).all()
    assert (terms.code_of[candidates.lefts] != NOTHING).all()


@pytest.fixture(scope="module")
def two() -> Discovery:
    return discover(default_setting(2), 2, explore)


@pytest.fixture(scope="module")
def three() -> Discovery:
    return discover(default_setting(3, JOINING), 3, explore)


@pytest.mark.parametrize("size", ["two", pytest.param("three", marks=pytest.mark.slow)])
def test_all_rules_are_proven(size: str, request: pytest.FixtureRequest) -> None:
    rules = request.getfixturevalue(size).rules
    assert {proof.status for _, proof in rules} == {"proven"}
    assert len({rule.name for rule, _ in rules}) == len(rules) > 5


KNOWN_OF_TWO = [
    "a[m, k] b[k, n] c[n, p]: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))",
    "s[] a[m, k] b[k, n]: matmul(scale(s, a), b) = scale(s, matmul(a, b))",
    "a[m, n]: transpose(transpose(a)) = a",
    "a[m, n]: transpose(relu(a)) = relu(transpose(a))",
    "a[m, n] b[p, n]: split_rows(concat_rows(a, b), m)[1] = b",
    "a[m+p, n]: split_rows(relu(a), m)[0] = relu(split_rows(a, m)[0])",
    "a[m, n] b[p, n]: concat_rows(relu(a), relu(b)) = relu(concat_rows(a, b))",
]
KNOWN_OF_IMAGES = [
    "x[n, c, h, w] y[n, c, h, w] v[o, c, r, s]: add(conv_same(x, v), conv_same(y, v)) = "
    "conv_same(add(x, y), v)",
    "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: add(conv_same(x, v), conv_same(x, u)) = "
    "conv_same(x, add(v, u))",
    "x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: concat_cols(conv_same(x, v), conv_same(x, u)) = "
    "conv_same(x, concat_rows(v, u))",
    "x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: conv_same(x, v), conv_same(x, u) = "
    "split_cols(conv_same(x, concat_rows(v, u)), o)[0], split_cols(conv_same(x, concat_rows(v, u)), o)[1]",
]
KNOWN_OF_THREE = [
    "a[m, k] b[m, k] w[k, n]: add(matmul(a, w), matmul(b, w)) = matmul(add(a, b), w)",
    "a[m, k] w[k, n] v[k, n]: add(matmul(a, w), matmul(a, v)) = matmul(a, add(w, v))",
    "a[m, k] b[k, n] c[k, p]: concat_cols(matmul(a, b), matmul(a, c)) = matmul(a, concat_cols(b, c))",
    "a[m, k] b[m, p] c[k, n] d[p, n]: matmul(concat_cols(a, b), concat_rows(c, d)) = "
    "add(matmul(a, c), matmul(b, d))",
    "a[m, n] b[m, p] c[q, n] d[q, p]: concat_rows(concat_cols(a, b), concat_cols(c, d)) = "
    "concat_cols(concat_rows(a, c), concat_rows(b, d))",
    "a[m, k] w[k, n] v[k, p]: matmul(a, w), matmul(a, v) = "
    "split_cols(matmul(a, concat_cols(w, v)), n)[0], split_cols(matmul(a, concat_cols(w, v)), n)[1]",
]


@pytest.mark.parametrize("text", KNOWN_OF_TWO)
def test_known_rules_of_two_operators_are_found_or_follow(text: str, two: Discovery) -> None:
    reason = why(parse_rule(text), [rule for rule, _ in two.rules], 4)
    assert "special case" in reason or "follows" in reason, reason


@pytest.mark.slow
@pytest.mark.parametrize("text", KNOWN_OF_THREE)
def test_known_rules_of_three_operators_are_found_or_follow(text: str, three: Discovery) -> None:
    reason = why(parse_rule(text), [rule for rule, _ in three.rules], 4)
    assert "special case" in reason or "follows" in reason, reason


@pytest.mark.slow
def test_known_rules_of_convolutions_are_found_or_follow() -> None:
    names = ("conv_same", "add", "concat_rows", "concat_cols", "split_cols")
    rules = [rule for rule, _ in discover(default_setting(3, names), 3, explore).rules]
    for text in KNOWN_OF_IMAGES:
        reason = why(parse_rule(text), rules, 4)
        assert "special case" in reason or "follows" in reason, (text, reason)


@pytest.mark.slow
def test_a_joint_rule_is_found(three: Discovery) -> None:
    joint = [rule for rule, _ in three.rules if len(rule.left) == 2]
    assert len(joint) == three.counts["joint"] > 0
    assert any(rule.operators == (2, 3) for rule in joint)


def test_candidates_follow_under_the_shapes_that_they_allow(two: Discovery) -> None:
    """Among the terms all sizes are alike; here a rule is applied only where its own shapes are met."""
    terms, _ = all_terms(MATRICES, 2)
    candidates = candidates_of(terms)
    deriver, sizes = Deriver([rule for rule, _ in two.rules]), dict(terms.setting.inputs)
    pairs = zip(candidates.lefts.tolist(), candidates.rights.tolist(), strict=True)
    rules = [rule_of("", *([terms.expression(term)] for term in pair), sizes) for pair in pairs]
    assert len(rules) > 100
    missed = [rule_text(rule) for rule in rules if not deriver.derives(rule, Effort(6, 8000))]
    assert [text for text in missed if counterexample(parse_rule(text), 7) is None] == []


def test_each_dropped_equality_says_why(two: Discovery) -> None:
    assert two.dropped
    assert all(one.reason for one in two.dropped)
    counts = two.counts
    assert counts["candidates"] == counts["closed"] + counts["followed"] + counts["rules"] - counts["joint"]


def test_what_only_looks_equal_is_no_rule() -> None:
    """Halves of units are never told apart from what has the same size but another meaning."""
    found = discover(
        default_setting(2, ("transpose", "split_rows", "split_cols", "relu", "scale")), 2, explore
    )
    rules = [rule for rule, _ in found.rules]
    for text in ("a[m, m]: transpose(a) = a", "s[] a[m, n]: relu(scale(s, a)) = scale(s, relu(a))"):
        assert "it is wrong" in why(parse_rule(text), rules, 0)


@pytest.mark.parametrize(
    ("names", "workers"),
    [(SMALL, 3), pytest.param(("add", "matmul", "concat_cols", "split_cols"), 8, marks=pytest.mark.slow)],
)
def test_any_number_of_workers_makes_the_same_file(names: tuple[str, ...], workers: int) -> None:
    several = discover(default_setting(2, names), 2, partial(explore, workers=workers))
    assert text_of_rules(several) == text_of_rules(discovered(names))


def test_a_part_of_the_graphs_makes_no_rules() -> None:
    with pytest.raises(InputError, match="stopped"):
        discover(default_setting(2, SMALL), 2, partial(explore, limits=Limits(rows=10)))
    with pytest.raises(InputError, match="at least 1"):
        discover(default_setting(2, SMALL), 0, explore)
    with pytest.raises(InputError, match="no operator 'gelu'"):
        default_setting(2, ("gelu",))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (  # two of four matrices are one
            "concat_cols(add(a, b), add(c, c))",
            "add(concat_cols(a, c), concat_cols(b, c))",
            "concat_cols(add(a, b), add(c, d)) = add(concat_cols(a, c), concat_cols(b, d))",
        ),
        (  # a constant is any matrix, but where it is the identity it must stay so
            "add(matmul(a, eye), eye)",
            "add(eye, a)",
            "add(matmul(a, eye), eye) = add(eye, a)",
        ),
        ("add(eye, relu(a))", "add(relu(a), eye)", "add(b, relu(a)) = add(relu(a), b)"),
        ("add(a, a)", "add(a, relu(a))", None),  # wrong as it is: nothing wider holds either
    ],
)
def test_an_equality_is_generalized_as_far_as_it_holds(left: str, right: str, expected: str | None) -> None:
    sizes = dict(default_setting(2, ("add", "relu", "matmul", "concat_cols"), constants=("eye",)).inputs)
    sides = parse_expression(left), parse_expression(right)
    rule = rule_of("", sides[:1], sides[1:], sizes)
    assert rule is not None
    found = generalized(rule, sides, sizes, 1).rule
    shown = rule_text(found).partition(": ")[2]
    assert shown == (expected or f"{left} = {right}")
    assert expected is None or counterexample(found, 5) is None
