"""Schedules whose kernels hold too much for a device are dropped with the reason, or made of smaller ones."""

from dataclasses import dataclass

import pytest

from superopt.ir import Graph, release_shifts
from superopt.schedule import rank, schedules
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.workloads import WORKLOADS

TARGET = pick_target("cuda:90")
DEVICE = TARGET.cost_device()


@dataclass
class Original:
    graph: Graph
    is_original: bool = True


def graph_of(name, dtype):
    workload = WORKLOADS[name]
    return release_shifts(trace(workload.function, *workload.inputs(dtype=dtype)).graph)


@pytest.mark.parametrize(("name", "dtype"), [("mla", "f32"), ("llama-layer", "f16")])
def test_what_is_kept_fits(name, dtype):
    found = rank([Original(graph_of(name, dtype))], DEVICE, keep=8, misfit=TARGET.misfit)
    assert found.kept
    assert all(TARGET.misfit(one.mugraph) is None for one in found.kept)
    reasons = [one.reason for one in found.dropped if "registers" in one.reason]
    assert reasons
    assert all(reason.startswith("kernel ") and "KiB" in reason for reason in reasons)


def test_kernels_of_several_wide_results_end_earlier():
    found = rank([Original(graph_of("llama-layer", "f16"))], DEVICE, keep=8, misfit=TARGET.misfit)
    assert any(one.recipe.small and "small kernels" in one.name for one in found.kept)


def test_what_fits_changes_nothing():
    graph = graph_of("rmsnorm-linear", "f16")
    plain = schedules(graph, DEVICE)
    assert schedules(graph, DEVICE, misfit=TARGET.misfit) == plain
    assert not any(one.recipe.small for one in plain.kept)


def test_the_default_stays_where_nothing_fits():
    graph = graph_of("softmax", "f16")
    found = schedules(graph, DEVICE, misfit=lambda mugraph: "no room")
    assert len(found.kept) == 1
    assert "no room" in {one.reason for one in found.dropped}


def test_a_processor_holds_what_it_likes():
    graph = graph_of("mla", "f32")
    target = pick_target("cpu")
    assert all(target.misfit(one.mugraph) is None for one in schedules(graph, target.cost_device()).kept)
