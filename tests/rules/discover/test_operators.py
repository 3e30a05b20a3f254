"""Operators on images, constants and the algebra: what they mean, what is proven of them, what is refuted."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from superopt.errors import InputError
from superopt.frontier.engine import explore
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.language.images import CONVOLUTIONS, Convolution
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import parse_rule, rule_text
from superopt.rules.discover.language.values import PRIME, Reals, fingerprints, fractions
from superopt.rules.discover.proof.axioms import axioms
from superopt.rules.discover.proof.derive import Deriver
from superopt.rules.discover.proof.prove import prove
from superopt.rules.discover.proof.symbolic import holds_at_small_sizes
from superopt.rules.discover.why import why

IMAGE, WEIGHT = (1, 1, 2, 4, 5, 6), (1, 1, 6, 4, 3, 3)


def convolution(kind: Convolution) -> Callable[..., torch.Tensor]:
    """Return PyTorch's convolution; its weight is cut to the channels that a group reads and makes."""

    def made(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        groups = {"": 1, "groups": 2, "depth": 4}[kind.groups]
        padding = kind.padding == "same"
        found = torch.conv2d(x, weight_for(kind, w), padding=int(padding), stride=kind.stride, groups=groups)
        return found.relu() if kind.relu else found

    return made


def weight_for(kind: Convolution, weight: Any) -> Any:
    """Return the part of a weight of six by four channels that this kind of convolution takes."""
    made, read = {"": (6, 4), "groups": (6, 2), "depth": (4, 1)}[kind.groups]
    return weight[..., :made, :read, :, :]


MEANINGS = {
    **{kind.name: convolution(kind) for kind in CONVOLUTIONS},
    "avg_pool": lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1),
    "max_pool": lambda x: torch.nn.functional.max_pool2d(x, 3, 1, 1),
    "avg_pool_half": lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1),
    "max_pool_half": lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
    "enlarge": lambda w: torch.nn.functional.pad(w, (1, 1, 1, 1)),
    "enlarge_high": lambda w: torch.nn.functional.pad(w, (0, 0, 1, 1)),
    "enlarge_wide": lambda w: torch.nn.functional.pad(w, (1, 1, 0, 0)),
    "div": torch.div,
    "exp": torch.exp,
    "square": torch.square,
    "abs": torch.abs,
    "max": torch.maximum,
    "less": lambda a, b: (a < b).to(a.dtype),
    "where": lambda mask, a: torch.where(mask != 0, a, 0),
    "sum_cols": lambda a: a.sum(-1, keepdim=True),
    "max_cols": lambda a: a.amax(-1, keepdim=True),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_an_operator_is_what_pytorch_makes_of_it(name: str) -> None:
    operator = OPERATORS[name]
    generator = np.random.default_rng(1)
    shapes = (IMAGE, WEIGHT) if operator.ranks == (4,) else ((1, 1, 3, 4),) * 2
    given = [generator.integers(-9, 10, shape) for shape in shapes[: operator.arity]]
    if name == "div":
        given[1][given[1] == 0] = 1
    operands = [fractions(one, 4) if operator.exact else Reals(one / np.longdouble(4)) for one in given]
    for kind in CONVOLUTIONS:
        if kind.name == name:
            operands[1] = operands[1].each(partial(weight_for, kind), operands[1])
    [made] = operator.meaning(operands, 0)
    [expected] = [MEANINGS[name](*(torch.tensor(one[0, 0] / 4.0) for one in given))]
    assert np.allclose(made.approximate[0, 0], expected.numpy(), rtol=1e-12)
    if operator.exact:  # 5,040 parts: every number here is a multiple of one
        parts = np.rint(made.approximate * 5_040)
        assert np.allclose(parts, made.approximate * 5_040, atol=1e-3)
        assert (made.residues * 5_040 % PRIME == parts.astype(np.int64) % PRIME).all()


def test_logarithms_roots_and_inverses_have_no_value_where_there_is_none() -> None:
    numbers = Reals(np.array([-1.0, 0.0, 4.0], dtype=np.longdouble).reshape(1, 1, 1, 3))
    assert np.isnan(numbers.log().approximate).tolist() == [[[[True, True, False]]]]
    assert np.isnan(numbers.sqrt().approximate).tolist() == [[[[True, False, False]]]]
    inverse = fractions(np.array([[[[-1, 0, 4]]]]), 1).inverse()
    assert np.isnan(inverse.sizes).tolist() == [[[[False, True, False]]]]
    assert inverse.residues[0, 0, 0, 1] == PRIME  # no fraction has this residue
    assert ((inverse + inverse).residues == PRIME).tolist() == [[[[False, True, False]]]]
    assert (inverse.where(fractions(np.array([[[[1, 0, 1]]]]), 1)).sizes == [-1, 0, 0.25]).all()


def test_reals_that_differ_by_rounding_have_one_fingerprint() -> None:
    numbers = Reals(np.random.default_rng(0).uniform(-3, 3, (4, 8, 5, 5)).astype(np.longdouble))
    assert (fingerprints(numbers.exp().log()) == fingerprints(numbers)).all()
    assert (fingerprints(numbers + numbers) == fingerprints(numbers * numbers.constant(Fraction(2)))).all()
    assert (fingerprints(numbers) != fingerprints(numbers + numbers.constant(Fraction(1, 1 << 30)))).all()
    power = Reals(np.full((1, 1, 1, 1), 4, dtype=np.longdouble))
    below = Reals(np.nextafter(power.numbers, np.longdouble(0)))
    assert fingerprints(power) == fingerprints(below)


TRUE = {
    "linear in the image": "x[n, c, h, w] y[n, c, h, w] v[o, c, r, s]: add(conv_half(x, v), "
    "conv_half(y, v)) = "
    "conv_half(add(x, y), v)",
    "linear in the weight": "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: add(conv_valid(x, v), "
    "conv_valid(x, u)) = "
    "conv_valid(x, add(v, u))",
    "merged convolutions": "x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: conv_same_relu(x, v), "
    "conv_same_relu(x, u) = "
    "split_cols(conv_same_relu(x, concat_rows(v, u)), o)[0], split_cols(conv_same_relu(x, "
    "concat_rows(v, u)), o)[1]",
    "a small window beside a large one": "x[n, c, h, w] v[o, c, r, s] u[o, c, wide(r), wide(s)]: "
    "add(conv_same(x, v), conv_same(x, u)) = conv_same(x, add(enlarge(v), u))",
    "a pool as a convolution": "x[n, c, h, w] v[o, c, 3, 3] box[c, c, 3, 3]: "
    "add(avg_pool(x), conv_same(x, box)) = add(avg_pool(x), avg_pool(x))",
    "groups in one": "x[n, c, h, w] y[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: "
    "relu(concat_cols(conv_same(x, v), conv_same(y, u))) = "
    "relu(conv_groups(concat_cols(x, y), concat_rows(v, u)))",
    "the identity": "a[m, n] eye[n, n] b[n, p]: matmul(matmul(a, eye), b) = matmul(a, b)",
    "a normalization that waits": "a[m, k] w[k, n] v[m, 1]: matmul(scale_rows(v, a), w) = "
    "scale_rows(v, matmul(a, w))",
    "a shift of exponentials": "a[m, n] b[m, n]: mul(exp(add(a, b)), exp(a)) = mul(exp(b), square(exp(a)))",
    "an order under a shift": "a[m, n] b[m, n] c[m, n]: max(add(c, a), add(c, b)) = add(max(b, a), c)",
    "a root of squares": "a[m, n]: sqrt(square(a)) = abs(a)",
    "sums by ones": "a[m, n] b[m, n] ones[n, 1]: matmul(add(a, b), ones) = add(sum_cols(a), sum_cols(b))",
}
FALSE = {
    "groups that are joined": "x[n, c+c, h, w] v[o+o, c, r, s] u[o+o, c, r, s]: "
    "concat_cols(conv_groups(x, v), conv_groups(x, u)) = conv_groups(x, concat_rows(v, u))",
    "joined on the wrong axis": "x[n, c, h, w] v[n, c, r, s] u[n, c, r, s]: "
    "concat_cols(conv_same(x, v), conv_same(x, u)) = concat_cols(conv_same(x, u), conv_same(x, v))",
    "split without its concat": "x[n, c+d, h, w] y[n, c+d, h, w]: split_cols(add(x, y), c)[0] = "
    "split_cols(x, c)[0]",
    "relu is linear": "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: conv_same_relu(x, add(v, u)) = "
    "add(conv_same_relu(x, v), conv_same_relu(x, u))",
    "an average is a sum": "x[n, c, h, w]: avg_pool(x) = add(x, x)",
    "an average is the largest": "x[n, c, h, w]: avg_pool(x) = max_pool(x)",
    "the largest is linear": "x[n, c, h, w] y[n, c, h, w]: max_pool(add(x, y)) = "
    "add(max_pool(x), max_pool(y))",
    "an average of an average": "x[n, c, h, w] v[o, c, r, s]: avg_pool(conv_same(x, v)) = "
    "conv_same(avg_pool(x), v)",
    "enlarged without padding": "x[n, c, h, w] v[o, c, r, s] u[o, c, wide(r), wide(s)]: "
    "conv_valid(x, add(enlarge(v), u)) = conv_valid(x, u)",
    "an identity of ones": "a[m, n] ones[n, n]: matmul(a, ones) = a",
    "exponential of a product": "a[m, n] b[m, n]: exp(mul(a, b)) = mul(exp(a), exp(b))",
    "a root is a number's": "a[m, n]: square(sqrt(a)) = a",
    "over itself": "a[m, n] b[m, n]: mul(div(a, b), b) = a",
    "logarithm of a product": "a[m, n] b[m, n]: log(mul(a, b)) = add(log(a), log(b))",
    "a choice sees what it leaves out": "a[m, n] b[m, n] c[m, n]: where(c, div(a, b)) = div(where(c, a), b)",
    "the larger of products": "a[m, n] b[m, n] c[m, n]: mul(c, max(a, b)) = max(mul(c, a), mul(c, b))",
    "an order of squares": "a[m, n] b[m, n]: less(square(a), square(b)) = less(a, b)",
}


@pytest.mark.parametrize("name", TRUE)
def test_true_rules_are_proven(name: str) -> None:
    proof = prove(parse_rule(TRUE[name]), seed=1)
    assert proof.status == "proven", proof


@pytest.fixture(scope="module")
def from_axioms() -> Deriver:
    """What follows from the axioms."""
    return Deriver(axioms(), signs=True)


@pytest.mark.parametrize("name", FALSE)
def test_false_rules_are_refuted_with_numbers_and_never_derived(name: str, from_axioms: Deriver) -> None:
    rule = parse_rule(FALSE[name])
    for seed in (0, 1, 2):
        proof = prove(rule, seed)
        assert proof.status == "refuted"
        assert " against " in proof.detail
    assert not from_axioms.derives(rule)
    assert holds_at_small_sizes(rule) != "holds" or rule.names & {"div", "sqrt", "log"}


@pytest.mark.parametrize(
    "text",
    [
        "x[n, c, h, w] v[o, d, r, s]: conv_same(x, v) = conv_same(x, v)",
        "x[n, c+d, h, w] v[o+o, c, r, s]: conv_groups(x, v) = conv_groups(x, v)",
        "x[n, c+c, h, w] v[o, c, r, s]: conv_groups(x, v) = conv_groups(x, v)",
        "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: add(enlarge(v), u) = u",
        "x[n, c, h, w] v[o, c, r, s]: add(conv_valid(x, v), conv_same(x, v)) = conv_same(x, v)",
        "a[m, n] eye[m, n]: matmul(a, eye) = a",
        "box[c, c, 2, 2]: box = box",
        "a[m, n, p]: a = a",
    ],
)
def test_shapes_that_an_operator_or_a_constant_cannot_have_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_rule(text)


@pytest.mark.parametrize(
    ("names", "constants", "expected"),
    [
        pytest.param(
            ("conv_same", "enlarge", "avg_pool"),
            ("dirac", "box"),
            "avg_pool(x) = conv_same(x, box)",
            marks=pytest.mark.slow,
        ),
        (("conv_same", "enlarge"), (), "conv_same(x, enlarge(u)) = conv_same(x, u)"),
        # A rule without constants, though one with an identity implies it wherever that is.
        (
            ("relu", "conv_same", "conv_same_relu"),
            ("dirac",),
            "relu(conv_same(x, u)) = conv_same_relu(x, u)",
        ),
        (("relu", "max_pool"), (), "max_pool(relu(x)) = relu(max_pool(x))"),
        (("exp", "log", "add", "mul"), (), "log(exp(a)) = a"),
        (("matmul", "scale_rows"), (), "scale_rows(v, matmul(a, b)) = matmul(scale_rows(v, a), b)"),
        (("matmul", "transpose"), ("eye",), "matmul(a, eye) = a"),
        (("sum_cols", "matmul", "max_cols"), ("ones",), "max_cols(matmul(a, ones)) = sum_cols(a)"),
    ],
)
def test_known_rules_are_found(names: tuple[str, ...], constants: tuple[str, ...], expected: str) -> None:
    found = discover(default_setting(2, names, constants=constants), 2, explore)
    texts = [rule_text(rule).partition(": ")[2] for rule, _ in found.rules]
    assert expected in texts
    assert {proof.status for _, proof in found.rules} <= {"proven", "unknown"}


@pytest.mark.slow
def test_convolutions_without_padding_are_linear() -> None:
    names = ("add", "conv_valid", "concat_rows")
    rules = [rule for rule, _ in discover(default_setting(2, names), 2, explore).rules]
    twice = "x[n, c, h, w] u[o, c, r, s]: add(conv_valid(x, u), conv_valid(x, u)) = conv_valid"
    for side in ("(x, add(u, u))", "(add(x, x), u)"):
        reason = why(parse_rule(twice + side), rules, 4)
        assert "special case" in reason or "follows" in reason, reason
    assert "it is wrong" in why(parse_rule(f"{twice}(add(x, x), add(u, u))"), rules, 4)


def test_matrices_and_images_share_one_universe() -> None:
    names = ("matmul", "scale", "conv_same", "conv_depth", "relu")
    found = discover(default_setting(2, names), 2, explore)
    texts = [rule_text(rule).partition(": ")[2] for rule, _ in found.rules]
    assert {
        "matmul(a, matmul(b, c)) = matmul(matmul(a, b), c)",
        "conv_same(scale(s, x), u) = scale(s, conv_same(x, u))",
        "conv_same(x, scale(s, u)) = scale(s, conv_same(x, u))",
        "conv_depth(scale(s, x), p) = scale(s, conv_depth(x, p))",
        "relu(relu(a)) = relu(a)",
        "relu(relu(x)) = relu(x)",
    } <= {form for text in texts for form in (text, " = ".join(text.split(" = ")[::-1]))}
    assert {proof.status for _, proof in found.rules} == {"proven"}


def test_constants_of_other_tensors_are_refused() -> None:
    with pytest.raises(InputError, match="other tensors"):
        default_setting(2, ("conv_same",), constants=("eye",))
    with pytest.raises(InputError, match="no constant"):
        default_setting(2, ("matmul",), constants=("pi",))
