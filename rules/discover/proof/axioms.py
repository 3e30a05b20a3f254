"""The axioms of the operators: what proofs of discovered rules rest on, and how each axiom is checked.

Every axiom is stated with the shapes it holds for. Addition and elementwise products commute by how the
operators are defined, so that needs no axiom here. Signs are facts of their own: what is never negative stays
as it is under relu, and relu goes into a sum of two tensors that never have opposite signs.
"""

from __future__ import annotations

from functools import cache

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.images import CONVOLUTIONS
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule, parse_rule
from superopt.rules.discover.proof.algebra import ALGEBRA
from superopt.rules.discover.proof.windows import IMAGES

__all__ = ["NEVER_NEGATIVE", "NEVER_OPPOSITE", "axioms", "called"]

_AXIOMS = """
sums-associate         a[m, n] b[m, n] c[m, n]: add(a, add(b, c)) = add(add(a, b), c)
products-associate     a[m, n] b[m, n] c[m, n]: mul(a, mul(b, c)) = mul(mul(a, b), c)
product-of-sum         a[m, n] b[m, n] c[m, n]: mul(a, add(b, c)) = add(mul(a, b), mul(a, c))
scalars-commute        s[] t[]: scale(s, t) = scale(t, s)
scalars-associate      s[] t[] u[]: scale(scale(s, t), u) = scale(s, scale(t, u))
scaled-twice           s[] t[] a[m, n]: scale(scale(s, t), a) = scale(s, scale(t, a))
scaled-sum             s[] a[m, n] b[m, n]: scale(s, add(a, b)) = add(scale(s, a), scale(s, b))
scaled-product         s[] a[m, n] b[m, n]: scale(s, mul(a, b)) = mul(scale(s, a), b)
matmuls-associate      a[m, k] b[k, p] c[p, n]: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))
matmul-of-sum          a[m, k] b[k, n] c[k, n]: matmul(a, add(b, c)) = add(matmul(a, b), matmul(a, c))
sum-times-matrix       a[m, k] b[m, k] c[k, n]: matmul(add(a, b), c) = add(matmul(a, c), matmul(b, c))
scaled-left-of-matmul  s[] a[m, k] b[k, n]: matmul(scale(s, a), b) = scale(s, matmul(a, b))
scaled-right-of-matmul s[] a[m, k] b[k, n]: matmul(a, scale(s, b)) = scale(s, matmul(a, b))
transposed-twice       a[m, n]: transpose(transpose(a)) = a
transposed-sum         a[m, n] b[m, n]: transpose(add(a, b)) = add(transpose(a), transpose(b))
transposed-product     a[m, n] b[m, n]: transpose(mul(a, b)) = mul(transpose(a), transpose(b))
transposed-scale       s[] a[m, n]: transpose(scale(s, a)) = scale(s, transpose(a))
transposed-relu        a[m, n]: transpose(relu(a)) = relu(transpose(a))
transposed-matmul      a[m, k] b[k, n]: transpose(matmul(a, b)) = matmul(transpose(b), transpose(a))
relu-times-itself      a[m, n]: mul(a, relu(a)) = mul(relu(a), relu(a))
relu-of-square-factor  a[m, n] b[m, n]: relu(mul(a, mul(a, b))) = mul(a, mul(a, relu(b)))
relu-of-relu-factor    a[m, n] b[m, n]: relu(mul(relu(a), b)) = mul(relu(a), relu(b))
relu-of-square-scale   s[] a[m, n]: relu(scale(s, scale(s, a))) = scale(s, scale(s, relu(a)))
joined-rows-transposed a[m, n] b[p, n]: transpose(concat_rows(a, b)) =
  concat_cols(transpose(a), transpose(b))
joined-cols-transposed a[m, n] b[m, p]: transpose(concat_cols(a, b)) =
  concat_rows(transpose(a), transpose(b))
matmul-of-joined-rows  a[m, k] b[p, k] c[k, n]: matmul(concat_rows(a, b), c) =
  concat_rows(matmul(a, c), matmul(b, c))
matmul-of-joined-cols  a[m, k] b[k, n] c[k, p]: matmul(a, concat_cols(b, c)) =
  concat_cols(matmul(a, b), matmul(a, c))
matmul-in-parts        a[m, k] b[m, p] c[k, n] d[p, n]: matmul(concat_cols(a, b), concat_rows(c, d)) =
  add(matmul(a, c), matmul(b, d))
joined-both-ways       a[m, n] b[m, p] c[q, n] d[q, p]: concat_rows(concat_cols(a, b), concat_cols(c, d)) =
  concat_cols(concat_rows(a, c), concat_rows(b, d))
rows-of-matmul-0       a[m+p, k] b[k, n]: split_rows(matmul(a, b), m)[0] = matmul(split_rows(a, m)[0], b)
rows-of-matmul-1       a[m+p, k] b[k, n]: split_rows(matmul(a, b), m)[1] = matmul(split_rows(a, m)[1], b)
cols-of-matmul-0       a[m, k] b[k, n+p]: split_cols(matmul(a, b), n)[0] = matmul(a, split_cols(b, n)[0])
cols-of-matmul-1       a[m, k] b[k, n+p]: split_cols(matmul(a, b), n)[1] = matmul(a, split_cols(b, n)[1])
matmul-of-split        a[m, k+p] b[k+p, n]: matmul(a, b) =
  add(matmul(split_cols(a, k)[0], split_rows(b, k)[0]),
  matmul(split_cols(a, k)[1], split_rows(b, k)[1]))
rows-of-transposed-0   a[n, m+p]: split_rows(transpose(a), m)[0] = transpose(split_cols(a, m)[0])
rows-of-transposed-1   a[n, m+p]: split_rows(transpose(a), m)[1] = transpose(split_cols(a, m)[1])
cols-of-transposed-0   a[m+p, n]: split_cols(transpose(a), m)[0] = transpose(split_rows(a, m)[0])
cols-of-transposed-1   a[m+p, n]: split_cols(transpose(a), m)[1] = transpose(split_rows(a, m)[1])
cut-both-ways-00       a[m+p, n+q]: split_rows(split_cols(a, n)[0], m)[0] =
  split_cols(split_rows(a, m)[0], n)[0]
cut-both-ways-01       a[m+p, n+q]: split_rows(split_cols(a, n)[1], m)[0] =
  split_cols(split_rows(a, m)[0], n)[1]
cut-both-ways-10       a[m+p, n+q]: split_rows(split_cols(a, n)[0], m)[1] =
  split_cols(split_rows(a, m)[1], n)[0]
cut-both-ways-11       a[m+p, n+q]: split_rows(split_cols(a, n)[1], m)[1] =
  split_cols(split_rows(a, m)[1], n)[1]
"""

_OF_ROWS = """
joined-{x}-associate   a[m, n] b[p, n] c[q, n]: concat(concat(a, b), c) = concat(a, concat(b, c))
sum-of-joined-{x}      a[m, n] b[p, n] c[m, n] d[p, n]: add(concat(a, b), concat(c, d)) =
  concat(add(a, c), add(b, d))
product-of-joined-{x}  a[m, n] b[p, n] c[m, n] d[p, n]: mul(concat(a, b), concat(c, d)) =
  concat(mul(a, c), mul(b, d))
scaled-joined-{x}      s[] a[m, n] b[p, n]: scale(s, concat(a, b)) = concat(scale(s, a), scale(s, b))
relu-of-joined-{x}     a[m, n] b[p, n]: relu(concat(a, b)) = concat(relu(a), relu(b))
split-{x}-joined       a[m+p, n]: concat(split(a, m)[0], split(a, m)[1]) = a
joined-{x}-split-0     a[m, n] b[p, n]: split(concat(a, b), m)[0] = a
joined-{x}-split-1     a[m, n] b[p, n]: split(concat(a, b), m)[1] = b
part-0-of-sum-{x}      a[m+p, n] b[m+p, n]: split(add(a, b), m)[0] = add(split(a, m)[0], split(b, m)[0])
part-1-of-sum-{x}      a[m+p, n] b[m+p, n]: split(add(a, b), m)[1] = add(split(a, m)[1], split(b, m)[1])
part-0-of-product-{x}  a[m+p, n] b[m+p, n]: split(mul(a, b), m)[0] = mul(split(a, m)[0], split(b, m)[0])
part-1-of-product-{x}  a[m+p, n] b[m+p, n]: split(mul(a, b), m)[1] = mul(split(a, m)[1], split(b, m)[1])
part-0-of-scaled-{x}   s[] a[m+p, n]: split(scale(s, a), m)[0] = scale(s, split(a, m)[0])
part-1-of-scaled-{x}   s[] a[m+p, n]: split(scale(s, a), m)[1] = scale(s, split(a, m)[1])
part-0-of-relu-{x}     a[m+p, n]: split(relu(a), m)[0] = relu(split(a, m)[0])
part-1-of-relu-{x}     a[m+p, n]: split(relu(a), m)[1] = relu(split(a, m)[1])
part-0-across-{x}      a[m+p, n] b[m+p, q]: split(across(a, b), m)[0] =
  across(split(a, m)[0], split(b, m)[0])
part-1-across-{x}      a[m+p, n] b[m+p, q]: split(across(a, b), m)[1] =
  across(split(a, m)[1], split(b, m)[1])
longer-first-part-{x}  a[m, n] b[p+q, n]: split(concat(a, b), m+p)[0] = concat(a, split(b, p)[0])
longer-last-part-{x}   a[m, n] b[p+q, n]: split(concat(a, b), m+p)[1] = split(b, p)[1]
shorter-first-part-{x} a[m+p, n] b[q, n]: split(concat(a, b), m)[0] = split(a, m)[0]
shorter-last-part-{x}  a[m+p, n] b[q, n]: split(concat(a, b), m)[1] = concat(split(a, m)[1], b)
"""
"""Axioms of rows, which hold for columns alike."""


def called(name: str) -> str:
    """Return the name of an operator in egglog."""
    return "".join(word.capitalize() for word in name.split("_"))


NEVER_NEGATIVE = (
    ("(Relu a)", ""),
    ("(Mul a a)", ""),
    ("(Scale a a)", ""),
    ("(Add a b)", "ab"),
    ("(Mul a b)", "ab"),
    ("(Scale a b)", "ab"),
    ("(Matmul a b)", "ab"),
    ("(Transpose a)", "a"),
    ("(ConcatRows a b)", "ab"),
    ("(ConcatCols a b)", "ab"),
    ("(SplitRows i p q a)", "a"),
    ("(SplitCols i p q a)", "a"),
    ("(Exp a)", ""),
    ("(Square a)", ""),
    ("(Sqrt a)", ""),
    ("(Abs a)", ""),
    ("(Less a b)", ""),
    ("(Div a b)", "ab"),
    ("(Max a b)", "a"),
    ("(Where a b)", "b"),
    ("(SumCols a)", "a"),
    ("(MaxCols a)", "a"),
    ("(ScaleRows a b)", "ab"),
    *((f"({called(one.name)} a b)", "" if one.relu else "ab") for one in CONVOLUTIONS),
    *(
        (f"({called(name)} a)", "a")
        for name in (
            "avg_pool",
            "max_pool",
            "avg_pool_half",
            "max_pool_half",
            "enlarge",
            "enlarge_high",
            "enlarge_wide",
        )
    ),
)
"""Which terms are never negative, provided that these operands are not."""

NEVER_OPPOSITE = (
    ("(Add a b)", "(alike x a) (alike x b)"),
    ("(Relu a)", "(alike x a)"),
    ("(Mul a b)", "(alike x a) (nonnegative b)"),
)
"""Which terms never have the sign opposite to that of a term x, provided that this holds."""


@cache
def axioms() -> tuple[Rule, ...]:
    """Return all axioms."""
    lines = _lines(_AXIOMS) + _lines(ALGEBRA) + _lines(IMAGES)
    for line in _lines(_OF_ROWS):
        for here, there in (("rows", "cols"), ("cols", "rows")):
            text = line.format(x=here)
            name, _, body = text.partition(" ")
            body = body.replace("concat(", f"concat_{here}(").replace("split(", f"split_{here}(")
            body = body.replace("across(", f"concat_{there}(")
            lines.append(f"{name} {body if here == 'rows' else _turned(body)}")
    known = [parse_rule(body.strip(), name=name) for name, _, body in (one.partition(" ") for one in lines)]
    return (*known, *(of_images for axiom in known if (of_images := _of_images(axiom)) is not None))


def _of_images(axiom: Rule) -> Rule | None:
    """Return an axiom of matrices for images, None where an operator of it takes no images."""
    matrices = any(len(shape) == 2 for _, shape in axiom.inputs)
    if any(constant_named(name) is not None for name, _ in axiom.inputs):
        return None
    if not matrices or not all(4 in OPERATORS[name].ranks for name in axiom.names):
        return None
    inputs = tuple((name, (*shape, ("h",), ("w",)) if shape else shape) for name, shape in axiom.inputs)
    return Rule(f"{axiom.name}-of-images", inputs, axiom.left, axiom.right)


def _lines(text: str) -> list[str]:
    """Return the axioms of a text; a line that begins with a space goes on from the one before."""
    return text.strip().replace("\n  ", " ").splitlines()


def _turned(body: str) -> str:
    """Return an axiom with the rows and columns of its inputs exchanged."""
    head, _, sides = body.partition(":")
    turned = []
    for part in head.split("]")[:-1]:
        name, _, sizes = part.strip().partition("[")
        turned.append(f"{name}[{', '.join(reversed(sizes.split(', ')))}]")
    return f"{' '.join(turned)}:{sides}"
