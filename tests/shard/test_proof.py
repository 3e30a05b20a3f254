"""Sharded programs with a planted error are refuted, and the device and the tensor are named."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from shard.cases import LARGE, biased, gradient, graph_of, mlp, norm
from torch import Tensor

from superopt.shard.costs import mesh_of
from superopt.shard.machine import parse_machine
from superopt.shard.output.written import tightened
from superopt.shard.proof import prove_sharded
from superopt.shard.search import plan_shardings
from superopt.shard.sharded import SUM, Instruction, Sharded, layout_of

TWO_LEVELS = "node=2 @ 20 GB/s, gpu=4 @ 200 GB/s"


def megatron() -> Sharded:
    pins = {"x": (None, None), "out": (None, None), "w1": (None, "n")}
    graph = graph_of(mlp, *LARGE[mlp])
    return plan_shardings(graph, parse_machine(TWO_LEVELS), pins=pins).best.sharded


def changed(sharded: Sharded, at: int, **how: object) -> Sharded:
    made = list(sharded.instructions)
    made[at] = replace(made[at], **how)  # type: ignore[arg-type]
    return replace(sharded, instructions=tuple(made))


def reduction_of(sharded: Sharded) -> int:
    return next(at for at, one in enumerate(sharded.instructions) if one.kind == "all-reduce")


def without_reduction() -> Sharded:
    right = megatron()
    return changed(right, reduction_of(right), dims=())


def in_the_wrong_group() -> Sharded:
    right = megatron()
    return changed(right, reduction_of(right), dims=(0,))


def reduced_twice() -> Sharded:
    right = megatron()
    at = right.outputs[0]
    again = Instruction("all-reduce", right.instructions[at].value, (None, None), (at,), (1,))
    return replace(right, instructions=(*right.instructions, again), outputs=(len(right.instructions),))


def gain_twice() -> Sharded:
    graph = graph_of(norm, *LARGE[norm])
    right = plan_shardings(graph, parse_machine(TWO_LEVELS)).best.sharded
    at = right.outputs[0]
    last = right.instructions[at]
    again = replace(last, inputs=(at, last.inputs[1]))
    return replace(right, instructions=(*right.instructions, again), outputs=(len(right.instructions),))


def bias_before_the_sum() -> Sharded:
    """Each device adds the bias to its part of the sum."""
    graph = graph_of(biased, *LARGE[biased])
    layout = layout_of(graph, mesh_of(parse_machine("gpu=4")))
    x, w1, w2, b, hidden, kept, made, out = range(8)
    assert [step.op for step in graph.steps] == ["contract", "relu", "contract", "add"]
    return Sharded(
        layout,
        (
            Instruction("enter", x, (None,)),
            Instruction("enter", w1, ("n",)),
            Instruction("enter", w2, ("n",)),
            Instruction("enter", b, (None,)),
            Instruction("step", hidden, ("n",), (0, 1)),
            Instruction("step", kept, ("n",), (4,)),
            Instruction("step", made, (SUM,), (5, 2)),
            Instruction("step", out, (SUM,), (6, 3)),
            Instruction("all-reduce", out, (None,), (7,), (0,)),
        ),
        (8,),
    )


def bias_after_the_sum() -> Sharded:
    wrong = bias_before_the_sum()
    *first, added, reduced = wrong.instructions
    made = replace(reduced, value=added.value - 1, inputs=(6,))
    return replace(wrong, instructions=(*first, made, replace(added, placement=(None,), inputs=(7, 3))))


def gradient_of_one_share() -> Sharded:
    graph = graph_of(gradient, *LARGE[gradient])
    pins = {"x": ("m",), "out": (None,)}
    right = plan_shardings(graph, parse_machine("gpu=4"), pins=pins).best.sharded
    return changed(right, reduction_of(right), dims=())


WRONG: tuple[tuple[Callable[[], Sharded], str], ...] = (
    (without_reduction, r"device \(node 0, gpu 0\) has a wrong t5"),
    (in_the_wrong_group, r"device \(node 0, gpu 0\) has a wrong t5"),
    (reduced_twice, r"device \(node 0, gpu 0\) has a wrong t5"),
    (gain_twice, r"device \(node 0, gpu 0\) has a wrong t10"),
    (bias_before_the_sum, r"device \(gpu 0\) has a wrong t7 after instruction %7"),
    (gradient_of_one_share, r"device \(gpu 0\) has a wrong t\d"),
)


@pytest.mark.parametrize(("made", "said"), WRONG)
def test_planted_errors_are_refuted_with_device_and_tensor(made: Callable[[], Sharded], said: str) -> None:
    wrong = made()
    verdict = prove_sharded(wrong)
    assert verdict.verdict.different, str(verdict.verdict)
    assert verdict.fault is not None
    assert re.search(said, verdict.fault.text(wrong.layout.mesh.names)), verdict.fault


@pytest.mark.parametrize("made", [megatron, bias_after_the_sum])
def test_right_programs_beside_them_are_proven(made: Callable[[], Sharded]) -> None:
    verdict = prove_sharded(made())
    assert verdict
    assert verdict.fault is None


def test_chunks_of_the_wrong_axis_are_refuted() -> None:
    right = bias_after_the_sum()
    wrong = changed(right, 2, placement=("r",))  # columns of w2 instead of its rows
    verdict = prove_sharded(wrong)
    assert verdict.verdict.different
    assert verdict.fault is not None
    assert verdict.fault.tensor == "t6"


def test_an_error_of_one_device_only_names_it() -> None:
    """A device that holds its own chunk of everything is right on the first chunk only if all are alike."""
    right = bias_after_the_sum()
    gathered = Instruction("slice", 7, ("m",), (8,), (0,), "m")
    made = replace(right, instructions=(*right.instructions, gathered), outputs=(9,))
    assert prove_sharded(made)
    claimed = changed(made, 9, placement=(None,))
    verdict = prove_sharded(claimed)
    assert verdict.verdict.different
    assert verdict.fault is not None


def padded(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (1, 1)).relu()


def test_windows_are_proven_along_whole_axes_only() -> None:
    graph = graph_of(padded, (8, 8))
    right = plan_shardings(graph, parse_machine("gpu=2"), pins={"out": ("m",)}).best.sharded
    for one in (right, tightened(right)):
        assert prove_sharded(one, original=graph)
    (window,) = (step for step in graph.steps if step.op == "window")
    (read,) = window.places[0].axes
    at = next(at for at, one in enumerate(right.instructions) if one.kind == "enter")
    verdict = prove_sharded(changed(right, at, placement=(read,)))
    assert verdict.verdict.different
    assert verdict.fault is not None
