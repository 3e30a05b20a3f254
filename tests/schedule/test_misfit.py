"""Schedules whose kernels hold too much for a device are dropped with the reason, or made of smaller ones."""

from dataclasses import dataclass
from math import prod

import pytest

from superopt.ir import Graph, release_shifts, value_axes
from superopt.ir.mugraph import walk
from superopt.schedule import rank, schedules
from superopt.schedule.recipe import Recipe
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.workloads import WORKLOADS

TARGET = pick_target("cuda:90")
DEVICE = TARGET.cost_device()


@dataclass
class Original:
    graph: Graph
    is_original: bool = True
    splits: tuple = ()


def graph_of(name, dtype):
    workload = WORKLOADS[name]
    return release_shifts(trace(workload.function, *workload.inputs(dtype=dtype)).graph)


def test_what_is_kept_fits():
    found = rank([Original(graph_of("mla", "f32"))], DEVICE, keep=8, misfit=TARGET.misfit)
    assert found.kept
    assert all(TARGET.misfit(one.mugraph) is None for one in found.kept)
    reasons = [one.fate.reason for one in found.dropped if "registers" in one.fate.reason]
    assert reasons
    assert all(reason.startswith("kernel ") and "KiB" in reason for reason in reasons)


@pytest.mark.parametrize("dtype", ["f16", pytest.param("f32", marks=pytest.mark.slow)])
def test_a_whole_layer_fits(dtype):
    found = rank([Original(graph_of("llama-layer", dtype))], DEVICE, keep=8, misfit=TARGET.misfit)
    assert all(TARGET.misfit(one.mugraph) is None for one in found.kept)


def most_whole(mugraph):
    """The positions of whole axes in the largest tile of a muGraph's kernels."""
    axes, sizes = value_axes(mugraph.graph), mugraph.graph.sizes
    found = 1
    for kernel in mugraph.kernels:
        for tile, loops in walk(kernel):
            step = mugraph.graph.step_of(tile.value)
            for value in (tile.value, *step.inputs):
                whole = axes[value] - set(kernel.grid) - {loop.axis for loop in loops}
                found = max(found, prod(sizes[axis] for axis in whole))
    return found


@pytest.mark.parametrize(("most", "name"), [(256, "small kernels"), (8, "single steps")])
def test_kernels_end_earlier_until_they_fit(most, name):
    graph = graph_of("mla", "f16")

    def misfit(mugraph):
        return None if most_whole(mugraph) <= most else f"more than {most} positions"

    found = schedules(graph, DEVICE, library=False, misfit=misfit)
    assert all(misfit(one.mugraph) is None for one in found.kept)
    assert any(one.recipe.held < Recipe().held and name in one.name for one in found.kept)


def test_what_fits_changes_nothing():
    graph = graph_of("rmsnorm-linear", "f16")
    plain = schedules(graph, DEVICE)
    assert schedules(graph, DEVICE, misfit=TARGET.misfit) == plain
    assert all(one.recipe.held == Recipe().held for one in plain.kept)


def test_the_default_stays_where_nothing_fits():
    graph = graph_of("softmax", "f16")
    found = schedules(graph, DEVICE, misfit=lambda mugraph: "no room")
    assert len(found.kept) == 1
    assert "no room" in {one.fate.reason for one in found.dropped}


def test_a_processor_holds_what_it_likes():
    graph = graph_of("mla", "f32")
    target = pick_target("cpu")
    assert all(target.misfit(one.mugraph) is None for one in schedules(graph, target.cost_device()).kept)
