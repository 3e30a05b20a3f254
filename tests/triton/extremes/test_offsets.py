"""Offsets of tensors with more than 2^31 elements."""

from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, parse_graph

CHOSEN = """graph chosen
axes k=4 m=16
in x: i8[k, m]
t1 = select[k=3](x)
t2 = add(t1, t1)
out o: f32[m] = t2
"""


def test_a_chosen_position_times_its_stride_takes_64_bits():
    """Before: three times a stride of 2^30 elements wrapped around, and the kernel read elsewhere."""
    built = TritonMuGraph(fuse(parse_graph(CHOSEN)))
    wide, narrow = (built.source(0, built.graph.sizes, wide=one).text for one in (True, False))
    assert "x_ptr + 3 * tl.cast(stride_x_k, tl.int64) + " in wide
    assert "x_ptr + 3 * stride_x_k + " in narrow
