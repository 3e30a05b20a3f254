"""Candidates whose kernels take the same time: what is alike, and what is not."""

from dataclasses import replace

import pytest

from superopt.candidates.alike import alike_last, frame
from superopt.candidates.candidate import Candidate
from superopt.ir import FusionChoices, fuse, parse_graph
from superopt.precision import with_rounding

NORM = """
graph norm
axes m=64 k=128 n=256
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
t3 = {square}
t4 = sum[k](t3)
t5 = const[{epsilon}]()
t6 = add(t4, t5)
t7 = {root}
t8 = mul(x, {operand})
t9 = contract[k](t8, w)
t10 = mul(t9, t7)
out o: f16[m, n] = t10
"""


def candidate(id, *, square="square(x)", epsilon="1", root="rsqrt(t6)", operand="g", **choices):
    text = NORM.format(square=square, epsilon=epsilon, root=root, operand=operand)
    graph = parse_graph(text)
    return Candidate(id, graph, fuse(graph, choices=FusionChoices(**choices)), configs=("tiles",))


FIRST = candidate("first")


@pytest.mark.parametrize("changed", [{"square": "mul(x, x)"}, {"epsilon": "2"}, {"root": "reciprocal(t6)"}])
def test_arithmetic_on_single_numbers_makes_no_difference(changed):
    other = candidate("other", **changed)
    assert frame(other.mugraph) == frame(FIRST.mugraph)
    assert alike_last([FIRST, other]) == ([FIRST], [other])


@pytest.mark.parametrize(
    "changed", [{"operand": "x"}, {"cuts": frozenset({8})}, {"looped": frozenset({"n"})}]
)
def test_what_is_read_stored_or_walked_along_does(changed):
    other = candidate("other", **changed)
    assert frame(other.mugraph) != frame(FIRST.mugraph)
    assert alike_last([FIRST, other]) == ([FIRST, other], [])


def test_configurations_and_dtypes_between_kernels_do():
    other = replace(FIRST, id="other", configs=("other tiles",))
    assert alike_last([FIRST, other]) == ([FIRST, other], [])
    cut = candidate("cut", cuts=frozenset({8}))
    narrow, wide = (
        replace(cut, mugraph=with_rounding(cut.mugraph, wide=one), id=f"{one}") for one in (False, True)
    )
    assert alike_last([narrow, wide]) == ([narrow, wide], [])
