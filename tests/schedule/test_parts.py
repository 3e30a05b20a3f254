"""Parts: how many an axis is cut into, and what stays in one kernel with them."""

import pytest

from superopt.ir import fuse, parse_graph, split_axis, stabilize
from superopt.schedule.moves import _even


@pytest.mark.parametrize(
    ("size", "wanted", "parts"),
    [(128000, 256, 250), (4096, 8, 8), (1000, 8, 8), (64 * 127, 32, 32), (6400, 30, 25)],
)
def test_parts_are_whole_lines_of_memory_where_some_near_number_is(size, wanted, parts):
    assert _even(size, wanted) == parts


LATENT = """graph latent
axes b=8 m=128 k=512 n=4096
in q: f16[b, m, k]
in c: f16[b, n, k]
t2 = contract[k](q, c)
t3 = exp(t2)
t4 = contract[n](t3, c)
out o: f16[b, m, k] = t4
"""


@pytest.mark.parametrize("parts", [2, 8, 16])
def test_an_axis_summed_over_and_stored_stays_whole_beside_short_parts(parts):
    graph, split = split_axis(parse_graph(LATENT), "n", parts)
    mugraph = fuse(stabilize(graph, [split.outer]), splits=[split], online=True)
    assert len(mugraph.kernels) == 2  # one for the parts, one that adds them up
