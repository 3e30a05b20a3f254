"""Written modules run on processes of gloo and give the results of the whole program."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from shard.cases import (
    attention,
    biased,
    causal,
    gradient,
    graph_of,
    log_softmax,
    merged_attention,
    mlp,
    norm_mlp,
)
from shard.processes import Case, worst_errors
from torch import Tensor
from torch.distributed.tensor import placement_types

from superopt.errors import InputError
from superopt.ir import parse_graph
from superopt.shard.api import shard_program
from superopt.shard.costs import mesh_of
from superopt.shard.machine import parse_machine
from superopt.shard.output.dtensor import dtensor_placements
from superopt.shard.output.written import tightened, write_module
from superopt.shard.proof import prove_sharded
from superopt.shard.search import Plan, Plans, plan_shardings
from superopt.shard.sharded import Instruction, Placement, Sharded, layout_of

SLOW_DEVICE = "device 1 MFLOP/s 10 MB/s"  # so slow that sharding is worth its while on small tensors
TWO = f"gpu=2 @ 1 GB/s 1 us, {SLOW_DEVICE}"
FOUR = f"node=2 @ 1 GB/s 2 us own, gpu=2 @ 10 GB/s 1 us, {SLOW_DEVICE}"
Pins = dict[str, Placement]

MLP = ((8, 16), (16, 32), (32, 16))
CASES: tuple[tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str, Pins], ...] = (
    (mlp, MLP, TWO, {"x": (None,), "out": (None,)}),
    (norm_mlp, ((8, 16), (16,), (16, 32), (32, 16)), TWO, {"x": ("m",), "w1": ("n",), "out": ("m",)}),
    (log_softmax, ((4, 16), (16, 32)), TWO, {"x": (None,), "out": ("n",)}),
    (mlp, MLP, FOUR, {"x": (None, None), "w1": ("n", "n"), "w2": ("n", "n"), "out": (None, None)}),
    (attention, ((16, 32), *((32, 32),) * 4), FOUR, {"x": ("m", None), "out": (None, None)}),
    (merged_attention, ((8, 8), (16, 8), (16, 8)), FOUR, {"k": ("n", "n"), "v": ("n", "n")}),
    (causal, ((16, 8), (16, 8), (16, 8)), FOUR, {"q": ("m", "m"), "k": (None, None)}),
    (gradient, ((16, 8), (8, 8), (16, 8)), FOUR, {"x": ("m", "m"), "out": ("k", None)}),
    (biased, ((8, 16), (16, 32), (32, 16), (16,)), FOUR, {"w1": ("n", "n"), "out": ("m", "m")}),
)


def gathered_mask(path: Path) -> Case:
    """Write a program that gathers a mask, which then hides infinities."""
    graph = parse_graph(
        "graph hidden\naxes m=8 n=4\nin x: f32[m, n]\nin p: bool[m, n]\n"
        "t2 = mul(p, x)\nout y: f32[m, n] = t2\n"
    )
    layout = layout_of(graph, mesh_of(parse_machine(TWO)))
    instructions = (
        Instruction("enter", 0, (None,)),
        Instruction("enter", 1, ("m",)),
        Instruction("all-gather", 1, (None,), (1,), (0,), "m"),
        Instruction("step", 2, (None,), (2, 0)),
    )
    plan = Plan(Sharded(layout, instructions, (3,)), 0.0, 0.0, 0)
    assert prove_sharded(plan.sharded)
    path.write_text(write_module(Plans(graph, parse_machine(TWO), (plan,), True)))
    hidden = torch.arange(32).view(8, 4) % 3 == 0
    x = torch.ones(8, 4).masked_fill(hidden, float("inf"))
    return path, {"x": x, "p": ~hidden}, {"y": torch.where(hidden, 0.0, x)}


@pytest.mark.parametrize("machine", [TWO, pytest.param(FOUR, marks=pytest.mark.slow)])
def test_processes_give_the_results_of_the_program(machine: str, tmp_path: Path) -> None:
    cases: list[Case] = []
    for at, (function, shapes, own, pins) in enumerate(CASES):
        if own != machine:
            continue
        graph = graph_of(function, *shapes)
        plans = plan_shardings(graph, parse_machine(machine), pins=pins)
        assert prove_sharded(tightened(plans.best.sharded), original=graph)
        random = torch.Generator().manual_seed(at)
        inputs = [torch.randn(shape, generator=random) for shape in shapes]
        names = [port.name for port in graph.inputs]
        path = tmp_path / f"sharded{at}.py"
        path.write_text(write_module(plans))
        wanted = {graph.outputs[0].port.name: function(*inputs)}
        cases.append((path, dict(zip(names, inputs, strict=True)), wanted))
    if machine == TWO:
        cases.append(gathered_mask(tmp_path / "gathered.py"))
    errors = worst_errors(cases, parse_machine(machine).devices)
    assert max(errors) < 1e-5, errors


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x, w: (x @ w, x), "x"),
        (lambda x, w: [w, torch.relu(x @ w)], "w"),
        (lambda x, w: {"a": (made := x @ w), "b": made}, "out"),
        (lambda x, w: ((x @ w).relu(), x @ w, w.T), None),
    ],
)
def test_results_that_are_not_computed_are_not_left_out_without_a_word(
    function: Callable[..., Any], named: str | None
) -> None:
    """Before: the program returned the others, and a caller took the second for the first."""
    found = shard_program(function, torch.randn(8, 16), torch.randn(16, 4), machine=TWO)
    assert found.verdict
    if named is None:
        assert "def program" in found.source
        return
    with pytest.raises(InputError, match=rf"each tensor once; leave {named} out of"):
        _ = found.source


def test_numbers_among_the_results_are_returned_in_their_places() -> None:
    """Before: they were left out, and a caller took one result for another."""

    def function(x: torch.Tensor, w: torch.Tensor, by: float, bias: None) -> Any:
        return None, x @ w, {"by": by, "rows": x.shape[0], "least": -float("inf")}, (x @ w).relu()

    found = shard_program(function, torch.randn(8, 16), torch.randn(16, 4), 2.5, None, machine=TWO)
    assert re.search(r'return \(None, .+, 2\.5, 8, float\("-inf"\), .+,\)\n', found.source)
    assert "-> tuple[Any, ...]:" in found.source


def test_a_result_that_cannot_be_written_is_named() -> None:
    found = shard_program(lambda x, w: (x @ w, x.dtype), torch.randn(8, 16), torch.randn(16, 4), machine=TWO)
    with pytest.raises(InputError, match=r"cannot return torch\.float32; leave it out"):
        _ = found.source


def test_placements_are_those_of_dtensor() -> None:
    pins: Pins = {"x": (None,), "out": (None,), "w1": ("n",), "w2": ("n",)}
    best = plan_shardings(graph_of(mlp, *MLP), parse_machine(TWO), pins=pins).best.sharded
    assert dtensor_placements(best) == {
        "x": ("Replicate()",),
        "w1": ("Shard(1)",),
        "w2": ("Shard(0)",),
        "out": ("Replicate()",),
    }


def part_of_dtensor(placements: tuple[str, ...], place: tuple[int, ...], tensor: Tensor) -> Tensor:
    """Return what a device of 2x2 has of a tensor, as `distribute_tensor` takes it apart."""
    for text, at in zip(placements, place, strict=True):
        one = eval(text, vars(placement_types))
        if not one.is_replicate():
            tensor = one._split_tensor(tensor, 2, with_padding=False)[0][at]
    return tensor


@pytest.mark.parametrize(
    ("entering", "leaving", "wanted"),
    [
        (("m", "m"), ("m", "m"), ("Shard(0)", "Shard(0)")),
        ((None, "m"), (None, "m"), ("Replicate()", "Shard(0)")),
        ((None, "m"), ("m", "m"), ("Replicate()", "_StridedShard(0, split_factor=2)")),
        ((None, "d"), (None, "d"), ("Replicate()", "_StridedShard(1, split_factor=4)")),
        (("h", "d"), ("h", "d"), ("Shard(1)", "_StridedShard(1, split_factor=2)")),
        (("d", "h"), ("d", "h"), ("_StridedShard(1, split_factor=4)", "Shard(1)")),
    ],
)
def test_dtensor_takes_tensors_apart_as_the_written_module_does(
    entering: Placement, leaving: Placement, wanted: tuple[str, ...]
) -> None:
    """Before: a level of a nested split that a tensor leaves out was forgotten, and other rows were named."""
    graph = parse_graph(
        "graph pieces\naxes m=8 h=4 d=8\nin x: f32[m, (h d)]\nt1 = exp(x)\nout y: f32[m, (h d)] = t1\n"
    )
    found = shard_program(graph, machine="node=2, gpu=2", pins={"x": entering, "y": leaving})
    assert found.placements["x"] == wanted
    written: dict[str, Any] = {"__name__": "written"}
    exec(found.source, written)
    whole = torch.arange(8 * 32).view(8, 32)
    for place in product(range(2), repeat=2):
        mesh = written["ProcessMesh"].__new__(written["ProcessMesh"])
        mesh.place = place
        for name in ("x", "y"):
            part = part_of_dtensor(found.placements[name], place, whole)
            assert torch.equal(part, written["local_part"](mesh, name, whole))
