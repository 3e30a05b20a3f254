"""What is tried for a graph, what is kept, in which order, and the reasons for the rest."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
import torch

from superopt.cost import DEVICES, Device
from superopt.driver import Found, search
from superopt.errors import InputError
from superopt.fate import Kind
from superopt.ir import (
    Call,
    Graph,
    Loop,
    MuGraph,
    check_mugraph,
    parse_graph,
    release_shifts,
    value_axes,
)
from superopt.schedule import Recipe, Schedules, rank, schedules
from superopt.trace import trace
from superopt.workloads import WORKLOADS

H200 = DEVICES["H200"]
PROCESSOR = replace(
    DEVICES["L4"], name="processor", kind="cpu", cores=4, memory_gbs=40, l2_gbs=200, vector_flops=4e11
)
ALL = 10_000


@cache
def found_for(name: str, **sizes: int) -> tuple[Found, ...]:
    item = WORKLOADS[name]
    goal = trace(item.function, *item.inputs(**sizes), name="w").graph
    return search(goal).regions[0].found


def best(name: str, **sizes: int) -> Graph:
    return found_for(name, **sizes)[0].graph


@dataclass(frozen=True)
class Plain:
    """A graph as a search gives it."""

    graph: Graph
    is_original: bool = False
    splits: tuple = ()


def everything(graph: Graph, device: Device = H200) -> dict[str, MuGraph]:
    return {one.name: one.mugraph for one in schedules(graph, device, keep=ALL).kept}


def loops_of(mugraph: MuGraph) -> list[list[tuple[str, ...]]]:
    """Return for each kernel the axes of its loops, each with those around it."""

    def inside(body, around: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = []
        for item in body:
            if isinstance(item, Loop):
                found += [(*around, item.axis), *inside(item.body, (*around, item.axis))]
        return found

    return [inside(kernel.body, ()) for kernel in mugraph.kernels]


def stored_axes(mugraph: MuGraph) -> list[frozenset[str]]:
    axes = value_axes(mugraph.graph)
    return [axes[value] for kernel in mugraph.kernels for value in mugraph.stores(kernel)]


def test_the_default_is_first_where_nothing_is_better() -> None:
    found = schedules(best("gated-mlp"), H200)
    assert found.kept[0].name == "graph"
    assert found.kept[0].recipe == Recipe()
    assert not found.kept[0].library


@pytest.mark.parametrize("name", ["rmsnorm-linear", "gated-mlp", "mha-decode", "softmax", "ntrans"])
def test_what_is_kept_is_right_ranked_and_has_names(name: str) -> None:
    found = schedules(best(name), H200, keep=6)
    assert 1 <= len(found.kept) <= 6
    times = [one.estimate.us for one in found.kept]
    assert all(early <= late * 1.15 for early, late in pairwise(times))
    assert times[0] <= 1.1 * min(times)
    assert max(times) <= 3 * min(times)
    names = [one.name for one in (*found.kept, *found.dropped)]
    assert len(set(names)) == len(names)
    for one in found.kept:
        check_mugraph(one.mugraph)
        assert one.library == any(isinstance(kernel, Call) for kernel in one.mugraph.kernels)
    assert all(one.fate.reason for one in found.dropped)


def test_the_same_graph_has_the_same_schedules() -> None:
    def texts() -> list[tuple[str, str]]:
        return [(one.name, str(one.mugraph)) for one in schedules(best("mla"), H200).kept]

    assert texts() == texts()


# -- one variant after another


def test_one_row_shares_out_its_reduction() -> None:
    found = schedules(best("rmsnorm-linear", M=1, K=65536, N=64), H200)
    split = [one for one in found.kept if one.mugraph.splits]
    assert split
    default = schedules(best("rmsnorm-linear", M=1, K=65536, N=64), H200, keep=ALL).kept
    assert split[0].estimate.us < next(one for one in default if one.name == "graph").estimate.us
    assert split[0].mugraph.splits[0].outer in split[0].mugraph.kernels[0].grid


def test_decoding_is_one_pass_over_parts_of_the_keys_and_a_combination() -> None:
    made = everything(best("gqa-decode", B=1)).values()
    mugraph = next(one for one in made if len(one.splits) == 1 and len(one.kernels) == 2)
    (split,) = mugraph.splits
    assert loops_of(mugraph)[0] == [(split.inner,)]
    assert mugraph.kernels[0].body[-1].running
    assert split.outer in mugraph.kernels[0].grid
    assert split.outer not in mugraph.kernels[1].grid
    assert not any(split.inner in axes for axes in stored_axes(mugraph))


@pytest.mark.parametrize("name", ["rmsnorm-linear", "gated-mlp", "gqa", "mla"])
def test_one_loop_reads_every_tensor_once_and_only_results_are_stored(name: str) -> None:
    kept = [one.mugraph for one in schedules(best(name), H200).kept]
    mugraph = next(one for one in kept if len(one.kernels) == 1)
    [kernel] = mugraph.kernels
    assert [len(loops) for loops in loops_of(mugraph)] == [1]
    assert mugraph.loads(kernel) == tuple(range(len(mugraph.graph.inputs)))
    assert mugraph.stores(kernel) == tuple(output.value for output in mugraph.graph.outputs)


def test_logits_are_never_stored() -> None:
    """Log-sum-exp of a product: the vocabulary in parts over the grid, the contraction in its loop."""

    def loss(x, w):
        return (x @ w).logsumexp(-1)

    x, w = torch.empty(16, 4096, device="meta"), torch.empty(4096, 32000, device="meta")
    graph = release_shifts(trace(loss, x, w, name="loss").graph)
    found = schedules(graph, H200, keep=ALL).kept
    split = next(one for one in found if one.mugraph.splits and one.recipe.looped == {"n_at"})
    kernel, combining = split.mugraph.kernels
    assert kernel.grid == ("m", "n_part")
    assert loops_of(split.mugraph)[0] == [("n_at",), ("n_at", "k")]
    assert combining.grid == ("m",)
    assert set().union(*stored_axes(split.mugraph)) == {"m", "n_part"}
    assert any(one.recipe.splits == split.recipe.splits for one in schedules(graph, H200).kept)


def test_a_softmax_waits_for_its_maximum_or_does_not() -> None:
    found = everything(best("mha-decode"))
    running = [name for name, mugraph in found.items() if "running" in str(mugraph)]
    waiting = [name for name in found if "two passes" in name]
    assert running
    assert waiting
    assert not set(running) & set(waiting)


def test_libraries_compute_all_matmuls_or_one() -> None:
    names = set(everything(best("gated-mlp")))
    assert "graph + library" in names
    assert sum(name.startswith("graph + library for t") for name in names) == 2
    alone = schedules(best("gated-mlp"), H200, library=False, keep=ALL)
    assert not any(one.library for one in alone.kept)


PROJECTED = parse_graph("""
graph projected
axes m=2048 t=2048 k=512 d=64 e=64
in x: f16[m, k]
in y: f16[t, k]
in wq: f16[k, d]
in wk: f16[k, d]
in v: f16[t, e]
t5 = contract[k](x, wq)
t6 = contract[k](y, wk)
t7 = contract[d](t5, t6)
t8 = exp(t7)
t9 = contract[t](t8, v)
out o: f16[m, e] = t9
""")


def test_a_library_projects_what_a_fused_kernel_attends_to() -> None:
    found = everything(PROJECTED)
    mugraph = found["graph + library for t5, t6"]
    calls = [isinstance(kernel, Call) for kernel in mugraph.kernels]
    assert calls == [True, True, False]
    scores = next(at for at, step in PROJECTED.numbered if step.op == "exp")
    assert scores not in {value for kernel in mugraph.kernels for value in mugraph.stores(kernel)}


def test_kernels_end_where_a_value_is_worth_its_place() -> None:
    found = schedules(best("qknorm-attention"), H200, keep=ALL).kept
    cut = [one for one in found if "cut after" in one.name and len(one.recipe.cuts) == 1]
    assert cut
    for one in cut:
        (value,) = one.recipe.cuts
        stored = {made for kernel in one.mugraph.kernels[:-1] for made in one.mugraph.stores(kernel)}
        assert value in stored


# -- what is not kept


def reasons(found: Schedules, name: str) -> str:
    return next(one.fate.reason for one in found.dropped if one.name == name)


def test_a_grid_that_fills_the_device_is_not_split() -> None:
    found = schedules(best("matmul", M=4096), H200)
    assert "the grid already fills the device" in reasons(found, "graph + split k")
    assert not any(one.mugraph.splits for one in found.kept)


def test_a_short_axis_is_not_split() -> None:
    assert "too few for parts" in reasons(schedules(best("matmul", M=16, K=64), H200), "graph + split k")


def test_an_axis_of_an_output_is_not_split() -> None:
    found = schedules(best("softmax", M=16, N=4096), H200)
    assert "an output has it" in reasons(found, "graph + split k")


def test_what_takes_far_longer_is_dropped_with_both_times() -> None:
    found = schedules(best("mha"), H200)
    far = [one for one in found.dropped if "the best takes" in one.fate.reason]
    assert far
    assert all(one.fate.reason.startswith("estimated at ") for one in far)


def test_a_large_graph_is_not_tried_in_every_way() -> None:
    lines = ["graph long", "axes m=16 k=4096 n=4096", "in x: f16[m, k]", "in w: f16[k, n]"]
    lines += ["t0 = contract[k](x, w)", *(f"t{i} = exp(t{i - 1})" for i in range(1, 400))]
    found = schedules(parse_graph("\n".join([*lines, "out y: f16[m, n] = t399"])), H200)
    assert found.kept[0].name == "graph"
    assert len(found.kept) + len(found.dropped) < 30


@pytest.mark.parametrize("after", [0, 5])
def test_no_more_ways_are_tried_once_it_is_late(after: int) -> None:
    graphs = found_for("mha")[:2]
    asked = iter(range(1000))
    found = rank(graphs, H200, keep=ALL, late=lambda: next(asked) >= after)
    every = rank(graphs, H200, keep=ALL, late=lambda: False)
    assert len(graphs) <= len(found.kept) < len(every.kept)
    untried = [one.fate for one in found.dropped if one.fate.kind is Kind.NO_TIME]
    assert [fate.reason.endswith("more schedules were not tried") for fate in untried] == [True] * len(graphs)


# -- several graphs


@pytest.mark.parametrize("keep", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 8))])
def test_the_original_always_stays(keep: int) -> None:
    found = found_for("qknorm-attention")
    at = next(i for i, one in enumerate(found, 1) if one.is_original)
    ranked = rank(found, H200, keep=keep)
    assert f"graph {at}" in [one.name for one in ranked.kept]
    assert len(ranked.kept) == keep


def test_a_library_stays_on_a_processor_unless_it_is_far_off() -> None:
    found = found_for("lora")
    assert any(one.library for one in rank(found, PROCESSOR, keep=2).kept)
    assert not any(one.library for one in rank(found, PROCESSOR, keep=2, library=False).kept)
    few_rows = rank(found_for("rmsnorm-linear"), PROCESSOR, keep=ALL)
    least = min(one.estimate.us for one in few_rows.kept)
    assert all(one.estimate.us <= 1.6 * least for one in few_rows.kept if one.library)


def test_what_is_kept_is_varied() -> None:
    kept = rank(found_for("gqa-decode"), H200).kept
    assert len({idea for one in kept for idea in one.recipe.ideas}) >= 4
    assert any(one.mugraph.splits for one in kept)


def test_graphs_are_told_apart_by_number() -> None:
    graphs = [Plain(best("rmsnorm-linear")), Plain(best("gated-mlp"), is_original=True)]
    ranked = rank(graphs, H200, keep=ALL)
    for one in ranked.kept:
        assert one.name.startswith(f"graph {one.number}")
        assert one.mugraph.graph.outputs == graphs[one.number - 1].graph.outputs or one.mugraph.splits


def test_nothing_found_is_nothing_kept() -> None:
    assert rank([], H200) == Schedules((), ())


@pytest.mark.parametrize("keep", [0, -1])
def test_a_number_below_one_is_refused(keep: int) -> None:
    with pytest.raises(InputError, match="keep is"):
        schedules(best("matmul"), H200, keep=keep)
    with pytest.raises(InputError, match="keep is"):
        rank(found_for("matmul"), H200, keep=keep)


def test_an_empty_axis_is_scheduled_too() -> None:
    text = "graph none\naxes m=0 k=4096 n=64\nin x: f16[m, k]\nin w: f16[k, n]\nt = contract[k](x, w)\n"
    assert schedules(parse_graph(text + "out y: f16[m, n] = t\n"), H200).kept
