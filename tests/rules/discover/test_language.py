"""Expressions, shapes and numbers: texts parse back, wrong shapes are refused, signs are right."""

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.rules.discover.language.expressions import applications, parse_expression, text_of
from superopt.rules.discover.language.match import special_case_of
from superopt.rules.discover.language.rule import parse_program, parse_rule, rule_of, rule_text
from superopt.rules.discover.language.shapes import simplified
from superopt.rules.discover.language.values import PRIME, drawn, fingerprints, fractions

RULES = [
    "a[m, k] b[k, n] c[n, p]: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))",
    "a[m+k, n]: concat_rows(split_rows(a, m)[0], split_rows(a, m)[1]) = a",
    "s[] a[m, k]: scale(s, relu(a)) = relu(scale(s, a))",
    "a[m, k] b[m, n]: relu(a), relu(b) = split_cols(relu(concat_cols(a, b)), k)[0], "
    "split_cols(relu(concat_cols(a, b)), k)[1]",
]


@pytest.mark.parametrize("text", RULES)
def test_the_text_of_a_rule_parses_back(text: str) -> None:
    assert rule_text(parse_rule(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a[m, k] b[m, k]: matmul(a, b) = a", "matmul cannot take"),
        ("a[m, k]: add(a, transpose(a)) = a", "add cannot take"),
        ("a[m, k]: transpose(a) = a", "different shapes"),
        ("a[m, k]: split_rows(a, m)[0] = a", "split_rows cannot take"),
        ("a[m+k, n]: split_rows(a, k)[0] = a", "split_rows cannot take"),
        ("a[m+k, n]: split_rows(a)[0] = a", "after how many rows"),
        ("a[m+k, n]: split_rows(a, m)[0] = split_rows(a,", "is missing after ','"),
        ("a[m+k, n]: split_rows(a, m)[0] = split_rows(a, m+", "is missing after '\\+'"),
        ("a[m+k, n]: split_rows(a, m) = a", "which part"),
        ("a[m, k]: relu(b) = a", "has no shape"),
        ("a[m, k]: gelu(a) = a", "no known operator"),
        ("a[m, k]: relu(a", "no rule"),
        ("a[m, k]: relu(a = a", "comma or bracket"),
        ("a[m, k]: relu(a) b = a", "after its end"),
        ("a[m]: relu(a) = a", "no input"),
        ("s[] a[m, k]: scale(a, s) = a", "scale cannot take"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_rule(text)


def test_a_program_is_no_rule() -> None:
    assert len(parse_program("a[m, n] b[m, n]: add(a, b), relu(a)")[1]) == 2
    with pytest.raises(InputError, match="no program"):
        parse_program("a[m, n]: a = a")


def test_an_operator_is_counted_once() -> None:
    both = [parse_expression(f"split_rows(relu(a), m)[{part}]") for part in (0, 1)]
    assert len(applications(*both)) == 2
    assert [text_of(one) for one in both] == ["split_rows(relu(a), m)[0]", "split_rows(relu(a), m)[1]"]


def test_symbols_that_stay_together_are_one() -> None:
    assert simplified([("x", "y", "z"), ("x", "y")]) == [("m", "k"), ("m",)]
    assert simplified([("x", "x"), ("x",)]) == [("m", "m"), ("m",)]
    assert simplified([("x", "y"), ("y", "x")]) == [("m", "k"), ("k", "m")]


@pytest.mark.parametrize(
    ("left", "right", "made"),
    [
        ("matmul(a, b)", "matmul(a, b)", "a[m, k] b[k, n]: matmul(a, b) = matmul(a, b)"),
        ("add(a, transpose(a))", "a", "a[m, m]: add(a, transpose(a)) = a"),
        ("concat_rows(a, b)", "concat_rows(b, a)", "a[m, k] b[m, k]: concat_rows(a, b) = concat_rows(b, a)"),
    ],
)
def test_a_rule_has_the_most_general_shapes(left: str, right: str, made: str) -> None:
    sizes = {"a": (2, 2), "b": (2, 2)}
    rule = rule_of("", [parse_expression(left)], [parse_expression(right)], sizes)
    assert rule is not None
    assert rule_text(rule) == made


def test_a_narrow_rule_is_known_as_one() -> None:
    sizes = {"a": (2, 2), "b": (2, 2)}
    sides = ["add(split_rows(a, m)[0], split_rows(b, m)[0])", "split_rows(add(a, b), m)[0]"]
    left, right = ([parse_expression(side)] for side in sides)
    assert rule_of("", left, right, sizes).narrow
    assert not rule_of("", right, right, sizes).narrow


def test_special_cases_need_the_shapes_of_the_general_rule() -> None:
    general = parse_rule("a[m, k] b[m, k]: mul(a, b) = mul(b, a)", name="general")
    assert special_case_of(parse_rule("a[m, k] b[m, k]: mul(relu(b), a) = mul(a, relu(b))"), [general])
    assert special_case_of(parse_rule("a[m, k] b[m, k]: mul(a, b) = mul(a, a)"), [general]) is None
    square = parse_rule("a[m, m]: relu(a) = a", name="square")
    assert special_case_of(parse_rule("c[k, n] d[n, k]: relu(matmul(c, d)) = matmul(c, d)"), [square])
    assert special_case_of(parse_rule("c[k, n]: relu(c) = c"), [square]) is None


def test_numbers_are_fractions_with_their_signs() -> None:
    numbers = drawn(np.random.default_rng(3), (5, 4, 4))
    shown = numbers.sizes * 1024
    assert (shown == np.rint(shown)).all()
    assert (numbers.residues * 1024 % PRIME == shown.astype(np.int64) % PRIME).all()
    for some in (numbers.sizes > 0, numbers.sizes < 0, np.abs(numbers.sizes) < 1, np.abs(numbers.sizes) > 1):
        assert some.any()
    product = numbers.matmul(numbers) + numbers * numbers
    assert np.allclose(product.sizes, numbers.sizes @ numbers.sizes + numbers.sizes**2)
    assert (product.relu().sizes == np.maximum(product.sizes, 0)).all()
    assert ((product.relu().residues == product.residues) | (product.sizes <= 0)).all()


def test_sums_modulo_the_prime_are_those_of_the_integers() -> None:
    generator = np.random.default_rng(0)
    left, right = (generator.integers(-(10**6), 10**6, (3, 2, 2)) for _ in range(2))
    product = fractions(left, 1).matmul(fractions(right, 1))
    assert (product.residues == (left @ right) % PRIME).all()


def test_fingerprints_tell_places_and_shapes_apart() -> None:
    one = fractions(np.arange(4).reshape(1, 1, 2, 2), 1)
    turned = fractions(np.arange(4).reshape(1, 1, 2, 2).swapaxes(2, 3).copy(), 1)
    long = fractions(np.arange(4).reshape(1, 1, 4, 1), 1)
    prints = [int(fingerprints(numbers)[0]) for numbers in (one, turned, long)]
    assert len(set(prints)) == 3
    assert int(fingerprints(one)[0]) == prints[0]
