"""Limits, checkpoints and interrupts: a search always ends in time, with the best so far, and says why."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from quick import few

from superopt.driver import Progress, RegionSearch, Search, SearchOptions, derived, search
from superopt.driver import run as driver
from superopt.errors import CheckpointError, InputError
from superopt.frontier.tensors.graphs import canonical
from superopt.ir import Graph, parse_graph
from superopt.ir.windows.partly import Corrected, corrected
from superopt.rules.terms import Goal
from superopt.trace import trace
from superopt.verify.graphs import all_equal
from superopt.verify.verdict import Verdict
from superopt.workloads import WORKLOADS


def graph_of(name: str, **sizes: int) -> Graph:
    item = WORKLOADS[name]
    return trace(item.function, *item.inputs(**sizes), name=name.replace("-", "_")).graph


STRIDED = parse_graph(
    """graph strided
axes b=1 f=2 h=3 c=2 r=3 h1=5
in x: f32[b, c, h1]
in k: f32[f, c, r]
t = window[h1 = 2*h + r - 1](x)
t2 = contract[c, r](t, k)
out y: f32[b, f, h] = t2
"""
)
SCALED = parse_graph(
    """graph scaled
axes b=4 c=3 f=5 w1=9 w=9 s=3
in x: f32[c, b, w1]
in k: f32[f, c, s]
in g: f32[f]
t3 = window[w1 = w + s - 1](x)
t4 = contract[c, s](t3, k)
t5 = mul(t4, g)
out y: f32[b, f, w] = t5
"""
)
WINDOWS = SearchOptions(max_graphs=4)


def originals(region: RegionSearch) -> list[Graph]:
    return [one.graph for one in region.found if one.is_original]


def texts(result: Search) -> list[list[str]]:
    return [[str(one.graph) for one in region.found] for region in result.regions]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Imports of egglog and z3 are not what the clocks below should measure."""
    search(graph_of("matmul"))
    search(graph_of("matmul"), options=SearchOptions(prune="z3", split=False))


@pytest.mark.parametrize("name", ["rmsnorm-linear", "ntrans", "llama-layer"])
@pytest.mark.parametrize("seconds", [1e-9, 0.02])
def test_seconds(name: str, seconds: float) -> None:
    start = time.process_time()  # of this process: other ones may keep the machine busy
    result = search(graph_of(name), options=SearchOptions(seconds=seconds))
    assert time.process_time() - start < 4  # verifying the original of a whole layer included
    assert not result.complete
    assert not result.interrupted
    assert any("seconds limit" in why for why in result.truncated)
    for region in result.regions:
        assert originals(region) in ([canonical(region.goal)], [region.goal])
        assert all(one.verdict.equal for one in region.found)


def test_proofs_end_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that no proof shows to be equal in time are left out, and the original stays."""
    equal, ends = all_equal.equal_graphs, []

    def late(a: Graph, b: Graph, *, seed: int | None, end: float) -> Verdict:
        if end == math.inf:  # the goal as it is written
            return equal(a, b, seed=seed)
        ends.append(end)
        return Verdict("unknown")

    monkeypatch.setattr(all_equal, "equal_graphs", late)
    start = time.perf_counter()
    [region] = search(graph_of("rmsnorm-linear"), options=SearchOptions(seconds=3)).regions
    assert len(ends) > 3
    assert max(ends) < start + 3 + 0.1 * 3 + 0.5
    assert "are left out" in region.notes[0]
    assert originals(region) == [region.goal]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rows", few([1, 3, 7, 12, 20, 33], 1, 7, 20))
def test_rows(rows: int, workers: int) -> None:
    graph = graph_of("gated-mlp")
    result = search(graph, options=SearchOptions(rows=rows, workers=workers))
    assert result.truncated == (f"gated_mlp: exploration: rows limit ({rows} rows)",)
    (region,) = result.regions
    assert originals(region) == [canonical(graph)]
    assert region.statistics.tensors <= rows
    assert texts(result) == texts(search(graph, options=SearchOptions(rows=rows)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0; give a whole number of at least 1"),
        ({"workers": 1.5}, "workers is 1.5; give a whole number"),
        ({"max_graphs": 0}, "max_graphs is 0; give a whole number"),
        ({"rows": -1}, "rows is -1; give a whole number"),
        ({"seconds": 0}, "seconds is 0; give a time above 0"),
        ({"seconds": -1.0}, "seconds is -1.0; give a time above 0"),
        ({"seconds": math.nan}, "seconds is nan; give a time above 0"),
        ({"prune": "maybe"}, "prune is 'maybe'; choose egraph, z3 or none"),
        ({"resume": True}, "resume needs the folder of the checkpoints to resume from"),
    ],
)  # fmt: skip
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        search(graph_of("matmul"), options=SearchOptions(**options))  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_graph_takes_no_inputs() -> None:
    with pytest.raises(InputError, match="a Graph brings its own inputs; 1 were given"):
        search(graph_of("matmul"), 3)


@pytest.mark.parametrize("prune", ["none", "z3"])
@pytest.mark.parametrize("name", few(["rmsnorm-linear", "mha-decode"], "rmsnorm-linear"))
def test_without_the_e_graph(name: str, prune: str) -> None:
    start = time.process_time()  # of this process: other ones may keep the machine busy
    result = search(graph_of(name), options=SearchOptions(prune=prune, seconds=1.0))  # type: ignore[arg-type]
    assert time.process_time() - start < 8  # of 60 without a limit; a busy core makes it slower
    assert [why.partition("(")[0] for why in result.truncated] == [
        f"{name.replace('-', '_')}: exploration: seconds limit "
    ]
    (region,) = result.regions
    assert originals(region) == [canonical(region.goal)]
    assert region.statistics.e_nodes == 0
    assert sum(region.statistics.pruned.values()) > 0


@pytest.mark.parametrize("prune", ["none", "z3"])
def test_all_prunings_find_the_split_matmul(prune: str) -> None:
    graph = graph_of("matmul")
    options = SearchOptions(prune=prune, seconds=60.0, rows=1_000)  # type: ignore[arg-type]
    assert set(texts(search(graph))[0]) <= set(texts(search(graph, options=options))[0])


@pytest.mark.slow
def test_a_large_program_is_cut_into_regions() -> None:
    graph = graph_of("llama-layer")
    seen: list[Progress] = []
    result = search(graph, on_progress=seen.append)
    assert result.complete
    assert result.seconds < 20
    assert len(result.regions) > 1
    assert {port.name for region in result.regions for port in region.goal.inputs} >= {
        port.name for port in graph.inputs
    }
    made = {output.port.name for region in result.regions for output in region.goal.outputs}
    assert made >= {output.port.name for output in graph.outputs}
    for region in result.regions:
        assert originals(region) == [canonical(region.goal)]
        assert len(region.found) > 1
    assert [step.phase for step in seen][-1] == "done"
    assert {"saturate", "explore", "derive", "verify"} <= {step.phase for step in seen}


# -- checkpoints


def test_resuming_gives_the_same(tmp_path: Path) -> None:
    graph = graph_of("layernorm-linear-gelu")
    whole = search(graph)
    stopped = search(graph, options=SearchOptions(checkpoint=tmp_path, rows=40))
    assert stopped.truncated
    assert [path.name for path in tmp_path.iterdir()] == ["layernorm_linear_gelu.ckpt"]
    resumed = search(graph, options=SearchOptions(checkpoint=tmp_path, resume=True))
    assert resumed.complete
    assert texts(resumed) == texts(whole)
    assert texts(stopped) != texts(whole)


def test_resuming_where_nothing_was_begun(tmp_path: Path) -> None:
    graph = graph_of("matmul")
    options = SearchOptions(checkpoint=tmp_path / "new" / "folder", resume=True)
    assert texts(search(graph, options=options)) == texts(search(graph))


# -- Ctrl-C

SCRIPT = """
    import json, time
    from superopt.driver import SearchOptions, search
    from superopt.workloads import WORKLOADS
    item = WORKLOADS["rmsnorm-linear"]
    options = SearchOptions(prune="none", seconds=60, workers={workers})
    begun = []
    def on_progress(progress):
        if progress.phase == "explore" and not begun:
            begun.append(print("begun", flush=True))
    result = search(item.function, *item.inputs(), options=options, on_progress=on_progress)
    (region,) = result.regions
    print(json.dumps(dict(
        interrupted=result.interrupted, truncated=result.truncated,
        originals=sum(one.is_original for one in region.found),
        equal=all(one.verdict.equal for one in region.found),
    )))
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_interrupt_gives_the_best_so_far(workers: int) -> None:
    script = textwrap.dedent(SCRIPT).replace("{workers}", str(workers))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        sent = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        took = time.perf_counter() - sent
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["interrupted"]
    assert any("interrupted" in why for why in found["truncated"])
    assert found["originals"] == 1
    assert found["equal"]
    assert took < 8  # of 60; 1.5 s on an idle machine


def test_nothing_to_search() -> None:
    graph = parse_graph("graph copy\naxes i=3\nin x: f32[i]\nout y: f32[i] = x\n")
    (region,) = search(graph).regions
    assert originals(region) == [graph]


def test_a_goal_with_more_axes_than_a_grid_holds_is_cut_or_left_as_it_is() -> None:
    axes = [f"a{i}" for i in range(16)]
    text = "graph wide\naxes " + " ".join(f"{axis}=2" for axis in axes) + "\n"
    text += "".join(f"in x{i}: f32[{axis}]\n" for i, axis in enumerate(axes))
    text += "".join(f"e{i} = exp(x{i})\n" for i in range(16))
    text += "p0 = add(e0, e1)\n" + "".join(f"p{i} = mul(p{i - 1}, e{i + 1})\n" for i in range(1, 15))
    text += f"out y: f32[{', '.join(axes)}] = p14\n"
    found = search(parse_graph(text), options=SearchOptions(seconds=30, prune="none", rows=500))
    assert found.regions
    assert all(any(one.is_original for one in region.found) for region in found.regions)
    assert found.truncated


def test_an_interrupt_between_two_phases_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def interrupted(*unused: object) -> None:
        asked.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "fits", interrupted)  # asked between saturating and exploring
    result = search(graph_of("matmul"))
    assert asked == [1]
    assert result.interrupted
    [region] = result.regions
    assert [one.is_original for one in region.found] == [True]
    assert any("interrupted" in why for why in region.truncated)


def test_an_interrupt_while_corrections_are_tried_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(graph: Graph) -> Iterator[Corrected]:
        yield next(corrected(graph))
        raise KeyboardInterrupt

    monkeypatch.setattr(derived, "corrected", interrupted)
    result = search(SCALED, options=WINDOWS)
    assert result.interrupted
    [region] = result.regions
    assert len(region.found) > 1
    assert region.truncated == ("interrupted",)


def test_no_correction_is_tried_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(graph: Graph) -> Iterator[Corrected]:
        first, second, *_ = corrected(graph)
        yield first
        signal.raise_signal(signal.SIGINT)
        yield second
        pytest.fail("another correction is asked for")

    monkeypatch.setattr(derived, "corrected", interrupted)
    result = search(SCALED, options=WINDOWS)
    assert result.interrupted
    [region] = result.regions
    assert [one.correction for one in region.found if one.correction]
    assert "corrections: interrupted" in region.truncated


def test_an_interrupt_in_the_second_half_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Goal] = []
    fits = driver.fits

    def interrupted(goal: Goal) -> bool:
        asked.append(goal)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return fits(goal)

    monkeypatch.setattr(driver, "_TOO_MANY_REDUCTIONS", 1)  # so that a goal of two is searched in halves
    monkeypatch.setattr(driver, "fits", interrupted)
    result = search(graph_of("rmsnorm-linear"), options=SearchOptions(split=False))
    assert result.interrupted
    first, second = result.regions
    assert first.statistics.tensors > 0
    assert first.truncated == ()
    assert second.truncated == ("interrupted",)


# -- what the clock cuts short is not complete


def test_what_there_was_no_time_to_prove_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = all_equal.equal_graphs

    def late(a: Graph, b: Graph, *, seed: int | None, end: float) -> Verdict:
        return equal(a, b, seed=seed, end=0.0 if end < math.inf else end)

    monkeypatch.setattr(all_equal, "equal_graphs", late)
    result = search(graph_of("matmul"), options=SearchOptions(split=False))
    assert result.truncated == ()  # its graph is the original
    result = search(graph_of("rmsnorm-linear"), options=SearchOptions(split=False))
    assert result.truncated == ("rmsnorm_linear: proofs: seconds limit (60 s)",)


def test_a_derivation_that_the_clock_ends_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = driver.derive

    def late(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(driver._Run, "out_of_time", lambda run: True)
        return derive(*arguments, **options)

    monkeypatch.setattr(driver, "derive", late)
    result = search(graph_of("rmsnorm-linear"), options=SearchOptions(split=False))
    assert result.truncated == ("rmsnorm_linear: derivation: seconds limit (60 s)",)


@pytest.mark.parametrize("by_clock", [True, False])
def test_reductions_that_are_not_split_for_want_of_time_are_a_limit(
    by_clock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saturate, asked = driver.saturate, []

    def late(*arguments: object, **options: object) -> object:
        asked.append(1)
        table = saturate(*arguments, **options)
        return table if len(asked) == 1 else replace(table, truncated="limit of 1 x", late=by_clock)

    monkeypatch.setattr(driver, "saturate", late)
    [region] = search(graph_of("matmul")).regions
    assert len(asked) == 2
    why = ("reductions stay whole: limit of 1 x",)
    assert (region.truncated, region.notes) == ((why, ()) if by_clock else ((), why))


@pytest.fixture(scope="module")
def of_windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, Path]:
    """A search of a goal with windows, and its checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return search(STRIDED, options=replace(WINDOWS, checkpoint=folder)), folder


def test_windows_that_are_not_taken_apart_for_want_of_time_are_a_limit(
    of_windows: tuple[Search, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_windows[0].truncated == ()
    monkeypatch.setattr(derived, "_SHARE", 0.0)
    [region] = search(STRIDED, options=WINDOWS).regions
    assert [why for why in region.truncated if "not all tried, its time was over" in why]


# -- checkpoints of goals with windows, and spaces that travel


def test_resuming_a_search_of_windows_gives_the_same(of_windows: tuple[Search, Path]) -> None:
    whole, folder = of_windows
    names = sorted(path.name for path in folder.iterdir())
    assert "strided.ckpt" in names
    assert len(names) > 1
    resumed = search(STRIDED, options=replace(WINDOWS, checkpoint=folder, resume=True))
    assert texts(resumed) == texts(whole)
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_checkpoint_of_another_e_graph_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, options = graph_of("matmul"), SearchOptions(checkpoint=tmp_path)
    search(graph, options=options)
    search(graph, options=replace(options, resume=True))
    saturate = driver.saturate

    def other(*arguments: object, **options: object) -> object:
        table = saturate(*arguments, **options)
        return replace(table, entries=table.entries[:-1])

    monkeypatch.setattr(driver, "saturate", other)
    with pytest.raises(CheckpointError, match="is of another search"):
        search(graph, options=replace(options, resume=True))


@pytest.mark.parametrize("prune", ["egraph", "z3"])
def test_a_space_travels_without_what_asks_its_process(prune: str, monkeypatch: pytest.MonkeyPatch) -> None:
    explore = driver.explore
    lock = threading.Lock()  # as those that show progress hold; nothing of the kind can travel

    def travelled(space: object, **options: object) -> object:
        return explore(pickle.loads(pickle.dumps(space)), **options)

    monkeypatch.setattr(driver, "explore", travelled)
    options = SearchOptions(prune=prune, split=False)  # type: ignore[arg-type]
    found = search(graph_of("matmul"), options=options, on_progress=lambda _, lock=lock: None)
    monkeypatch.setattr(driver, "explore", explore)
    assert texts(found) == texts(search(graph_of("matmul"), options=options))
