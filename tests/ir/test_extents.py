"""Sizes of axes are read off shapes, also those that share a dimension with known ones."""

import pytest
import sympy

from superopt.errors import InputError
from superopt.ir import extents, fitting_extents, measured_axes, parse_graph

GRAPH = parse_graph(
    """
    graph rows
    axes b=2 t=3 h=2 d=4 n=5
    in x: f32[b, (h d)]
    in y: f32[(b t), n]
    t2 = contract[b](x, y)
    out z: f32[h, d, t, n] = t2
    """
)


@pytest.mark.parametrize(
    ("x", "y", "found"),
    [
        ((2, 8), (6, 5), {"b": 2, "t": 3, "h": 2, "d": 4, "n": 5}),
        ((7, 8), (7, 1), {"b": 7, "t": 1, "h": 2, "d": 4, "n": 1}),
        ((3, 8), (33, 9), {"b": 3, "t": 11, "h": 2, "d": 4, "n": 9}),
        ((2, 12), (6, 5), {"b": 2, "t": 3, "h": 3, "d": 4, "n": 5}),  # the inner one keeps its size
        ((0, 8), (0, 5), {"b": 0, "t": 3, "h": 2, "d": 4, "n": 5}),
        ((2, 8), (0, 5), {"b": 2, "t": 0, "h": 2, "d": 4, "n": 5}),
    ],
)
def test_what_shapes_say(x, y, found):
    assert extents(GRAPH, (x, y)) == found
    assert fitting_extents(GRAPH, (x, y)) == found


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((2, 9), (6, 5), r"dimension 1 of 'x' is 9 long, which is no h \* d with h=2, d=4"),
        ((4, 8), (6, 5), r"dimension 0 of 'y' is 6 long, which is no b \* t with b=4, t=1"),
        ((0, 8), (6, 5), r"dimension 0 of 'y' is 6 long, which is no b \* t with b=0, t=3"),
    ],
)
def test_shapes_that_fit_no_sizes(x, y, message):
    with pytest.raises(InputError, match=message):
        fitting_extents(GRAPH, (x, y))


def test_an_axis_with_two_lengths():
    graph = parse_graph(
        "graph dot\naxes k=4\nin x: f32[k]\nin y: f32[k]\nt2 = contract[k](x, y)\nout z: f32[] = t2"
    )
    assert fitting_extents(graph, ((5,), (5,))) == {"k": 5}
    with pytest.raises(InputError, match="axis 'k' is 5 long, but dimension 0 of 'y' has 6"):
        fitting_extents(graph, ((5,), (6,)))


def test_sizes_may_be_symbols():
    rows, all_rows = sympy.symbols("rows all_rows", positive=True, integer=True)
    found = extents(GRAPH, ((rows, 8), (all_rows, 5)))
    assert found["b"] is rows
    assert found["t"] == all_rows // rows


@pytest.mark.parametrize(
    ("dims", "measured"),
    [
        ([("b",), ("b", "t"), ("t", "u")], "btu"),
        ([("b", "t"), ("t", "u")], ""),
        ([("b", "t"), ("t",), ()], "bt"),
        ([], ""),
    ],
)
def test_which_axes_follow_from_dimensions_alone(dims, measured):
    assert measured_axes(dims) == frozenset(measured)
