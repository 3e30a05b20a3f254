"""Proofs: the axioms hold, known rules are proven, planted wrong ones are refuted with numbers."""

import pytest
from quick import few

from superopt.rules.discover.language.rule import parse_rule
from superopt.rules.discover.proof.axioms import NEVER_NEGATIVE, axioms
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver
from superopt.rules.discover.proof.prove import check_axioms, prove
from superopt.rules.discover.proof.symbolic import holds_at_small_sizes

TRUE = {
    "matmul associates": "a[m, k] b[k, n] c[n, p]: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))",
    "two products with one weight": "a[m, k] b[m, k] w[k, n]: add(matmul(a, w), matmul(b, w)) = "
    "matmul(add(a, b), w)",
    "relu over concat": "a[m, k] b[n, k]: relu(concat_rows(a, b)) = concat_rows(relu(a), relu(b))",
    "one product for two": "a[m, k] w[k, n] v[k, p]: matmul(a, w), matmul(a, v) = "
    "split_cols(matmul(a, concat_cols(w, v)), n)[0], split_cols(matmul(a, concat_cols(w, v)), n)[1]",
    "concats exchange": "a[m, n] b[m, p] c[q, n] d[q, p]: "
    "concat_rows(concat_cols(a, b), concat_cols(c, d)) = concat_cols(concat_rows(a, c), concat_rows(b, d))",
    "a cut of three": "a[m, k] b[n+p, k] c[q, k]: split_rows(concat_rows(a, concat_rows(b, c)), m+n)[0] = "
    "concat_rows(a, split_rows(b, n)[0])",
    "sum of signs alike": "a[m, n]: relu(add(a, add(a, a))) = add(relu(a), add(relu(a), relu(a)))",
    "relu of a product": "a[m, k] b[k, n]: relu(matmul(relu(a), relu(b))) = matmul(relu(a), relu(b))",
}
FALSE = {
    "concat on the wrong axis": "a[m, k] b[m, k] w[k, n]: concat_rows(matmul(a, w), matmul(b, w)) = "
    "concat_rows(matmul(b, w), matmul(a, w))",
    "split without its concat": "a[m+k, n] b[m+k, n]: split_rows(add(a, b), m)[0] = split_rows(a, m)[0]",
    "the other part": "a[m, n] b[m, n]: split_rows(concat_rows(a, b), m)[0] = b",
    "relu is linear": "a[m, n] b[m, n]: relu(add(a, b)) = add(relu(a), relu(b))",
    "relu commutes with a scalar": "s[] a[m, n]: relu(scale(s, a)) = scale(s, relu(a))",
    "relu of a square plus itself": "a[m, n]: relu(add(a, mul(a, a))) = add(a, mul(a, a))",
    "matmul commutes": "a[m, m] b[m, m]: matmul(a, b) = matmul(b, a)",
    "transpose is nothing": "a[m, m]: transpose(a) = a",
    "transposed product in order": "a[m, m] b[m, m]: transpose(matmul(a, b)) = "
    "matmul(transpose(a), transpose(b))",
    "elementwise for matmul": "a[m, m] b[m, m]: matmul(a, b) = mul(a, b)",
    "joined weights cut in the wrong order": "a[m, k] w[k, n] v[k, n]: matmul(a, w), matmul(a, v) = "
    "split_cols(matmul(a, concat_cols(v, w)), n)[0], split_cols(matmul(a, concat_cols(v, w)), n)[1]",
    "halves alike": "a[m+m, n]: split_rows(a, m)[0] = split_rows(a, m)[1]",
    "scaled twice": "s[] a[m, n]: scale(s, a) = scale(s, scale(s, a))",
}


@pytest.mark.parametrize("name", TRUE)
def test_true_rules_are_proven(name: str) -> None:
    proof = prove(parse_rule(TRUE[name]), seed=1)
    assert proof.status == "proven", proof


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", FALSE)
def test_false_rules_are_refuted_with_numbers(name: str, seed: int) -> None:
    proof = prove(parse_rule(FALSE[name]), seed)
    assert proof.status == "refuted"
    assert " against " in proof.detail
    assert "a = " in proof.detail


@pytest.fixture(scope="module")
def from_axioms() -> Deriver:
    """What follows from the axioms of matrices."""
    return Deriver(
        (one for one in axioms() if not any(len(shape) == 4 for _, shape in one.inputs)), signs=True
    )


@pytest.mark.parametrize("name", FALSE)
def test_false_rules_are_not_derived_nor_found_to_hold(name: str, from_axioms: Deriver) -> None:
    rule = parse_rule(FALSE[name])
    assert not from_axioms.derives(rule)
    assert holds_at_small_sizes(rule) == "fails"


OF_MATRICES = ["a[m, k] b[k, n]: exp(matmul(a, b)) = exp(matmul(a, b))"]
COVERED = [
    *OF_MATRICES,
    "x[n, c, h, w] v[c, 1, r, s]: conv_depth_relu(x, v) = conv_depth(x, v)",
]


@pytest.mark.parametrize(
    ("rules", "least"),
    [
        (OF_MATRICES, 40),
        pytest.param(COVERED, 80, marks=pytest.mark.slow),
        pytest.param(None, 80, marks=pytest.mark.slow),
    ],
)
def test_every_axiom_holds_at_small_sizes(rules: list[str] | None, least: int) -> None:
    checked = check_axioms(5, None if rules is None else [parse_rule(text) for text in rules])
    assert [rule.name for rule, proof in checked if proof.status != "proven"] == []
    names = [rule.name for rule, _ in checked]
    assert len(set(names)) == len(names) > least


@pytest.mark.parametrize("apart", few([3, 1], 3))
def test_no_axiom_is_refuted_with_numbers(apart: int) -> None:
    some = axioms()[::apart]
    assert [one.name for one in some if counterexample(one, seed=5) is not None] == []


@pytest.mark.parametrize("axiom", axioms(), ids=lambda axiom: axiom.name)
def test_no_axiom_is_a_trivial_one(axiom) -> None:
    assert axiom.left != axiom.right


def test_what_is_never_negative() -> None:
    relus = {  # one rule for each fact about signs
        "(Mul a a)": "a[m, n]: relu(mul(a, a)) = mul(a, a)",
        "(Scale a a)": "s[]: scale(s, s) = scale(s, s)",
        "(Add a b)": "a[m, n] b[m, n]: relu(add(relu(a), relu(b))) = add(relu(a), relu(b))",
        "(Matmul a b)": TRUE["relu of a product"],
        "(Transpose a)": "a[m, n]: relu(transpose(relu(a))) = transpose(relu(a))",
        "(SplitRows i p q a)": "a[m+k, n]: relu(split_rows(relu(a), m)[0]) = split_rows(relu(a), m)[0]",
    }
    assert relus.keys() <= {term for term, _ in NEVER_NEGATIVE}
    for text in relus.values():
        assert counterexample(parse_rule(text), 3) is None
        assert prove(parse_rule(text), 3).status == "proven"


def test_without_a_derivation_the_answer_is_unknown() -> None:
    whole = "add(add(a, b), mul(a, b))"
    twice = "add(add(a, b), add(mul(a, b), add(a, add(b, mul(a, b)))))"
    rule = parse_rule(f"a[m, n] b[m, n]: add(relu({whole}), relu({whole})) = relu({twice})")
    assert counterexample(rule, 0) is None
    assert prove(rule, 0).status in ("proven", "unknown")


def test_a_derivation_keeps_to_the_shapes_of_a_rule() -> None:
    """A rule of square matrices says nothing of others, and one of matrices nothing of scalars."""
    square = Deriver([parse_rule("a[m, m]: relu(a) = a")])
    assert square.derives(parse_rule("c[k, n] d[n, k]: relu(matmul(c, d)) = matmul(c, d)"))
    assert not square.derives(parse_rule("c[k, n]: relu(c) = c"))
    matrices = Deriver([parse_rule("s[] t[] a[m, n]: scale(s, scale(t, a)) = scale(t, scale(s, a))")])
    assert not matrices.derives(parse_rule("s[] t[] u[]: scale(s, scale(t, u)) = scale(t, scale(s, u))"))
    halves = Deriver([parse_rule("a[m+m, n]: split_rows(a, m)[0] = split_rows(a, m)[1]")])
    assert halves.derives(parse_rule("a[k+k, n]: relu(split_rows(a, k)[0]) = relu(split_rows(a, k)[1])"))


def test_a_deriver_forgets_its_questions_and_the_rules_left_out() -> None:
    deriver = Deriver()
    twice = parse_rule("a[m, n]: transpose(transpose(a)) = a")
    deriver.add(twice)
    question = parse_rule("b[k, n]: relu(transpose(transpose(b))) = relu(b)")
    assert deriver.derives(question)
    assert deriver.derives(question)
    assert deriver.derives_each([question], without=[twice]) == [False]
    deriver.remove(twice)
    assert not deriver.derives(question)


def test_questions_that_are_asked_together_do_not_meet() -> None:
    """The inputs and the constants of one question are others than those of the next, though named alike."""
    deriver = Deriver([parse_rule("a[m, n]: transpose(relu(a)) = relu(transpose(a))")])
    questions = [
        parse_rule("a[m, n]: relu(transpose(relu(a))) = transpose(relu(relu(a)))"),
        parse_rule("a[m, m]: transpose(relu(a)) = relu(a)"),
        parse_rule("a[m, m]: relu(transpose(a)) = relu(a)"),
        parse_rule("eye[m, m]: transpose(eye) = eye"),
    ]
    assert deriver.derives_each(questions) == [True, False, False, False]
    assert deriver.derives_each(questions[::-1]) == [False, False, False, True]


@pytest.mark.parametrize(
    ("rule", "follows", "does_not"),
    [
        (
            "a[m, k] b[k, k]: add(a, matmul(a, b)) = a",
            "c[p, q] d[q, q]: relu(add(c, matmul(c, d))) = relu(c)",
            "c[p, q]: relu(c) = c",
        ),
        (  # two joined tensors of one shape may be joined of parts that differ
            "a[m, n] b[p, n] c[m, n] d[p, n]: add(concat_rows(a, b), concat_rows(c, d)) = concat_rows(a, b)",
            "a[m, n] b[p+q, n] c[m, n] d[p+q, n]: relu(add(concat_rows(a, b), concat_rows(c, d))) = "
            "relu(concat_rows(a, b))",
            "a[m+q, n] b[p, n] c[m, n] d[q+p, n]: add(concat_rows(a, b), concat_rows(c, d)) = "
            "concat_rows(a, b)",
        ),
        (  # and the halves of joined channels may be others than the parts
            "x[n, c, h, w] y[n, c, h, w] v[o+o, c, r, s]: conv_groups(concat_cols(x, y), v) = "
            "conv_same(x, v)",
            "x[n, k, h, w] y[n, k, h, w] v[p+p, k, r, s]: relu(conv_groups(concat_cols(x, y), v)) = "
            "relu(conv_same(x, v))",
            "x[n, k, h, w] y[n, k+k+k, h, w] v[p+p, k+k, r, s]: conv_groups(concat_cols(x, y), v) = "
            "conv_same(concat_cols(x, x), v)",
        ),
        (
            "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: add(conv_same(x, v), conv_same(x, u)) = "
            "conv_same(x, v)",
            "y[n, c, h, w] v[o, c, p, q] u[o, c, p, q]: relu(add(conv_same(y, v), conv_same(y, u))) = "
            "relu(conv_same(y, v))",
            "y[n, c, h, w] v[o, c, p, q] u[o, c, q, p]: add(conv_same(y, v), conv_same(y, u)) = "
            "conv_same(y, v)",
        ),
        (
            "x[n, c, h, w] v[o, c, 1, 1] u[o, c, 1, 1]: add(conv_same(x, v), conv_same(x, u)) = "
            "conv_same(x, v)",
            "x[n, c, h, w] v[o, c, 1, 1]: relu(add(conv_same(x, v), conv_same(x, v))) = "
            "relu(conv_same(x, v))",
            "x[n, c, h, w] v[o, c, r, s]: add(conv_same(x, v), conv_same(x, v)) = conv_same(x, v)",
        ),
        (  # a sum of matrices, where sums of images are known
            "x[n, c, h, w] y[n, c, h, w]: add(x, y) = x",
            "x[n, c, h, w] y[n, c, h, w]: relu(add(x, y)) = relu(x)",
            "a[m, n] b[m, n]: add(a, b) = a",
        ),
        (
            "x[n, c+c, h, w] v[o+o, c, r, s]: conv_groups(x, v) = conv_groups(x, add(v, v))",
            "x[n, k+k, h, w] v[p+p, k, r, s]: relu(conv_groups(x, v)) = relu(conv_groups(x, add(v, v)))",
            "x[n, k, h, w] v[p, k, r, s]: conv_same(x, v) = conv_same(x, add(v, v))",
        ),
    ],
)
def test_a_rule_asks_for_the_shapes_that_its_operators_leave_open(
    rule: str, follows: str, does_not: str
) -> None:
    deriver = Deriver([parse_rule(rule)])
    assert deriver.derives(parse_rule(follows))
    assert not deriver.derives(parse_rule(does_not))
