"""Constants: what is proven of their parts and of zeros, and what is not."""

import pytest

from superopt.rules.discover.language.rule import parse_rule
from superopt.rules.discover.proof.prove import prove, prove_each

TRUE = {
    "half of an identity": "eye[m+k, m+k] e[k, n]: matmul(split_cols(eye, m)[1], e) = "
    "concat_rows(matmul(split_rows(split_cols(eye, m)[1], m)[0], e), e)",
    "halves of an identity meet nowhere": "dirac[m+m, m+m, k, n] s[]: "
    "mul(split_rows(dirac, m)[0], scale(s, split_rows(dirac, m)[1])) = "
    "mul(split_rows(dirac, m)[0], split_rows(dirac, m)[1])",
    "groups of which one is left out": "x[m, k+k, n, p] dirac[k+k, k+k, q, r]: "
    "split_cols(conv_groups(x, split_cols(dirac, k)[0]), k)[0] = split_cols(x, k)[0]",
    "a convolution with nothing": "x[n, c, h, w] v[o, c, r, s] blank[o, c, r, s]: "
    "conv_same(x, add(v, blank)) = conv_same(x, v)",
    "channels scaled": "x[m, k, n, p] u[k, k, q, r] dirac[k, k, q, r]: "
    "conv_same_relu(relu(x), mul(u, dirac)) = conv_same_relu(x, mul(dirac, relu(u)))",
    "relu of a scalar": "s[] eye[m, m] e[m, m]: matmul(relu(scale(s, eye)), e) = "
    "matmul(e, relu(scale(s, eye)))",
    "a pool of growing functions": "x[m, k, n, p]: max_pool(add(x, relu(x))) = "
    "add(max_pool(x), relu(max_pool(x)))",
}
FALSE = {
    "the other half": "x[m, k+k, n, p] dirac[k+k, k+k, q, r]: "
    "split_cols(conv_groups(x, split_cols(dirac, k)[1]), k)[0] = split_cols(x, k)[0]",
    "relu of a scalar on any tensor": "s[] a[m, n] b[m, n]: relu(scale(s, add(a, b))) = "
    "add(relu(scale(s, a)), relu(scale(s, b)))",
    "a pool of what falls": "x[m, k, n, p]: max_pool(mul(x, x)) = mul(max_pool(x), max_pool(x))",
    "a pool of two images": "x[m, k, n, p] y[m, k, n, p]: "
    "max_pool(add(x, y)) = add(max_pool(x), max_pool(y))",
    "any weight is even": "u[k, k, q, r] full[m, k, n, p]: max_pool(conv_same(full, u)) = conv_same(full, u)",
    "zero times what is undefined": "a[m, n] b[m, n] zeros[m, n]: mul(div(a, b), zeros) = zeros",
    "a product of zeros with a chosen tensor": "a[m, k] c[m, k] zeros[k, n] zeros2[m, n]: "
    "matmul(where(c, a), zeros) = zeros2",
}


def test_rules_of_constants_are_proven() -> None:
    proofs = prove_each([parse_rule(text) for text in TRUE.values()], 3)
    assert {name: proof.status for name, proof in zip(TRUE, proofs, strict=True)} == dict.fromkeys(
        TRUE, "proven"
    )


@pytest.mark.parametrize("name", FALSE)
def test_wrong_rules_of_constants_are_not_proven(name: str) -> None:
    proof = prove(parse_rule(FALSE[name]), 3)
    assert proof.status == "refuted" or ("zeros" in FALSE[name] and proof.status == "unknown"), proof


def test_many_rules_have_the_proofs_that_each_has() -> None:
    rules = [parse_rule(text) for text in (*list(FALSE.values())[:3], *list(TRUE.values())[:3])]
    told = list[int]()
    assert prove_each(rules, 3, told.append) == [prove(rule, 3) for rule in rules]
    assert told == sorted(told)
