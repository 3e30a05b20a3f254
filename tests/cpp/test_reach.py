"""Loops that a mask bounds: what lies beyond is never read, and nothing else changes."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from masks import AHEAD, MASKS, masked_mugraph, masked_text
from torch import Tensor

from superopt.codegen.cpp import CppConfig, CppMuGraph, default_config
from superopt.codegen.statements import lower_block
from superopt.ir import FusionChoices, MuGraph, fuse, parse_graph, stabilize
from superopt.trace import run_graph

UPPER = {"causal", "before", "window", "rising", "backwards"}
LOWER = {"after", "window"}


def seen(name: str, s: Tensor, t: Tensor) -> Tensor:
    here = s + AHEAD.get(name, 0)
    return {
        "causal": here >= t,
        "before": here > t,
        "after": here <= t,
        "window": (t >= here - 20) & (here >= t),
        "every other": here >= 2 * t,
        "rising": 2 * s >= t,
        "backwards": len(s) - s >= t,
    }[name]


def compiled(mugraph: MuGraph, rows: int) -> CppMuGraph:
    """Return kernels with so many rows in a tile, and 16 turns of a loop in one."""
    chosen: dict[int, CppConfig] = {}
    for number in range(len(mugraph.kernels)):
        first = default_config(lower_block(mugraph, number), mugraph.graph.sizes)
        length = {"s": rows, "t": 16, "t_at": 16}
        tiles = tuple((axis, length.get(axis, tile)) for axis, tile in first.tiles)
        chosen[number] = replace(first, tiles=tiles, whole=())
    return CppMuGraph(mugraph, chosen, flags=("-O1",))


def inputs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"q": torch.randn(40, 8), "k": torch.randn(130, 8), "v": torch.randn(130, 9)}


CASES = [
    pytest.param(*case, marks=[pytest.mark.slow] * (case[0] != "causal" and case[1:] != (7, 0)))
    for case in product(MASKS, (1, 7, 40), (0, 4))
]


@pytest.mark.parametrize(("name", "rows", "parts"), CASES)
def test_the_same(name: str, rows: int, parts: int) -> None:
    run = compiled(masked_mugraph(name, parts), rows)
    tensors = inputs()
    wanted = run_graph(parse_graph(masked_text(name)), tensors)["o"]
    torch.testing.assert_close(run(**tensors)["o"].double(), wanted, rtol=1e-4, atol=1e-5)
    assert ("_stop =" in run.sources[0]) == (name in UPPER)
    assert bool(re.search(r"_base = most\(0, ", run.sources[0])) == (name in LOWER)


@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("name", ["causal", "before", "after", "window", "rising", "backwards"])
def test_nothing_beyond_is_read(name: str, parts: int) -> None:
    """Rows in one tile read up to a tile beyond what one of them sees."""
    for rows in (1, 7):
        run = compiled(masked_mugraph(name, parts), rows)
        mask = seen(name, torch.arange(40)[:, None], torch.arange(130)[None])
        for at in (0, 17, 35, 50, 68, 129):
            tensors = inputs()
            tensors["v"][at] = torch.nan
            got = run(**tensors)["o"].isnan().any(-1)
            if not parts:
                lo, hi = at // 16 * 16, at // 16 * 16 + 16
            else:
                length = -(-130 // (4 * 16)) * 16
                first = at // length * length
                lo = first + (at - first) // 16 * 16
                hi = lo + 16
            tiles = [mask[first : first + rows] for first in range(0, 40, rows)]
            near = torch.cat([tile[:, lo:hi].any().expand(len(tile)) for tile in tiles])
            assert (got <= near).all()
            assert got[mask[:, at]].all()
            if name in UPPER and name not in LOWER:
                above = torch.cat([tile[:, at:].any().expand(len(tile)) for tile in tiles])
                assert torch.equal(got, above)


def test_keys_beyond_the_last_query_are_not_touched() -> None:
    run = compiled(masked_mugraph("causal", 0), 40)
    tensors = inputs()
    short = {"q": tensors["q"], "k": tensors["k"][:40], "v": tensors["v"][:40]}
    tensors["k"][40:] = torch.nan
    tensors["v"][40:] = torch.nan
    assert torch.equal(run(**tensors)["o"], run(**short)["o"])


@pytest.mark.parametrize(
    "change",
    [
        ("t20 = mul(t19, t4)", "t20 = add(t19, t4)"),  # what is masked does not vanish
        ("t22 = sum[t](t20)", "t22 = sum[t](t4)"),  # one sum is of everything
        ("ge(t8, t6)", "ge(t6, t8)"),
    ],
)
def test_what_does_not_vanish_is_added_up(change: tuple[str, str]) -> None:
    other = masked_text("causal").replace(*change)
    run = compiled(fuse(parse_graph(other)), 7)
    assert not any("_stop" in code for code in run.sources)
    tensors = inputs()
    torch.testing.assert_close(
        run(**tensors)["o"].double(), run_graph(parse_graph(other), tensors)["o"], rtol=1e-4, atol=1e-5
    )


def test_loops_that_stop_early_are_not_whole_in_a_tile() -> None:
    graph = parse_graph(masked_text("causal"))
    program = lower_block(fuse(stabilize(graph), online=True), 0)
    assert default_config(program, graph.sizes).whole == ()
    assert default_config(program, graph.sizes).schedule == "dynamic"  # some programs take fewer turns
    plain = parse_graph(masked_text("causal").replace("mul(t19, t4)", "mul(t4, t4)"))
    program = lower_block(fuse(stabilize(plain), online=True), 0)
    assert default_config(program, plain.sizes).whole == ("t",)
    assert default_config(program, plain.sizes).schedule == "static"


def test_a_comparison_with_what_is_no_number_ends_no_loop() -> None:
    """0 / 0 is unequal to 0, so that a number is summed beyond the mask."""
    text = """graph unequal
axes s=40 t=130
in x: f32[s, t]
in y: f32[s, t]
t3 = index[s]()
t4 = index[t]()
t5 = ge(t3, t4)
t6 = mul(t5, x)
t7 = div(t6, y)
t9 = ne(t7, t6)
t10 = mul(t9, x)
t11 = sum[t](t10)
out o: f32[s] = t11
"""
    torch.manual_seed(0)
    tensors = {"x": torch.randn(40, 130), "y": torch.randn(40, 130)}
    tensors["y"][:, 50::3] = 0
    graph = parse_graph(text)
    found = compiled(fuse(graph, online=True), 7)(**tensors)["o"]
    torch.testing.assert_close(found, run_graph(graph, tensors, torch.float32)["o"], rtol=1e-4, atol=1e-4)


WARM = """graph warm
axes h=3 s=40 d=8 t=40 e=9
in q: f32[h, s, d]
in k: f32[h, t, d]
in v: f32[h, t, e]
in g: f32[h]
t1 = exp(g)
t2 = contract[d](q, k)
t3 = mul(t2, t1)
t4 = exp(t3)
t5 = index[s]()
t6 = index[t]()
t7 = ge(t5, t6)
t8 = mul(t7, t4)
t9 = contract[t](t8, v)
t10 = sum[t](t8)
t11 = div(t9, t10)
out o: f32[h, s, e] = t11
out z: f32[h] = t1
"""


@pytest.mark.parametrize("order", [("h", "e", "s"), ("h", "s", "e"), ("e", "s", "h")])
def test_what_lacks_the_innermost_axis_is_stored_where_that_runs_downwards(order: tuple[str, ...]) -> None:
    """Before: the first program of a thread was not the one that stores it, and nothing was stored."""
    graph = parse_graph(WARM)
    mugraph = fuse(stabilize(graph), online=True, choices=FusionChoices(repeated=True))
    first = default_config(lower_block(mugraph, 0), mugraph.graph.sizes)
    length = {"s": 8, "t": 8, "h": 1}
    tiles = tuple((axis, length.get(axis, tile)) for axis, tile in first.tiles)
    config = replace(first, tiles=tiles, schedule="dynamic", order=order)
    torch.manual_seed(0)
    tensors = {port.name: torch.randn(graph.shape(port)) for port in graph.inputs}
    run = CppMuGraph(mugraph, {0: config}, flags=("-O1",))
    wanted, threads = run_graph(graph, tensors), torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        made = run(**tensors)
        torch.set_num_threads(threads)
        for name in ("o", "z"):
            torch.testing.assert_close(made[name].double(), wanted[name], rtol=1e-4, atol=1e-5)
