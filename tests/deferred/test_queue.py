"""The queue: once for each region, in order, bounded; damaged or foreign records do no harm."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backend.conftest import plan_of

from superopt.backend import budget
from superopt.backend.cache import keep, known_decision
from superopt.backend.deferred import queue, work
from superopt.backend.deferred.mode import mode_of
from superopt.backend.deferred.queue import bound_queue, defer, pending_items, pending_key, put_back, remove
from superopt.backend.options import BackendOptions, read_options
from superopt.backend.region import Region, draft_of
from superopt.cache import Cache, Record
from superopt.cache.records import _sum
from superopt.errors import InputError
from superopt.funnel.warm_up import WarmUp
from superopt.targets import pick_target
from superopt.targets.cpu import CpuTarget
from superopt.targets.products import rounded_products, rounding_products
from superopt.targets.tf32 import is_tf32, tf32_products

from .conftest import MLP, Regions, ledger, mlp


def test_a_region_waits_once_with_the_larger_gain(region: Region) -> None:
    for gain, most in ((5.0, 5.0), (9.0, 9.0), (7.0, 9.0)):
        assert defer(region, gain, ledger())
        [item] = pending_items()
        assert item.gain_us == most
    assert item.operators == draft_of(region).operators
    assert item.key == pending_key(region.key)
    assert item.threads == 1


@pytest.mark.parametrize("allowed", [True, False])
def test_what_waits_is_decided_with_products_as_they_were(
    region: Region, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    parts, seen = pick_target("cpu").key_parts(), []
    attempt = work.Attempt("", "", False, True, "")
    monkeypatch.setattr(CpuTarget, "key_parts", lambda self: seen.append(is_tf32()) or parts)
    monkeypatch.setattr(work, "_worked_off", lambda item, seconds: seen.append(is_tf32()) or attempt)
    with tf32_products(allowed):
        defer(region, 5.0, ledger())
    [item] = pending_items()
    work.work_off(item, 1.0)
    assert (item.tf32, seen) == (allowed, [allowed, allowed])
    assert not is_tf32()


def test_what_waits_is_decided_with_products_of_a_cpu_as_they_were(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: with those of the program that works it off."""
    seen: list[dict[str, str]] = []
    attempt = work.Attempt("", "", False, True, "")
    monkeypatch.setattr(work, "_worked_off", lambda *given: seen.append(rounded_products()) or attempt)
    wanted = {"matmul": "bf16"}
    with rounding_products(wanted):
        [one] = regions(mlp, *MLP)
        defer(one, 5.0, ledger())
    [item] = pending_items()
    work.work_off(item, 1.0)
    assert seen == [wanted]
    assert rounded_products() == {}


def test_what_waits_of_other_settings_by_environment_variables_stays(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: it was given up as another region."""
    defer(region, 5.0, ledger())
    assert len(pending_items()) == 1
    monkeypatch.setattr("superopt.rivals.inductor._defaults", lambda: "others")
    assert pending_items() == []


def test_the_largest_gain_comes_first_and_the_least_gives_way(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MOST_ITEMS", 3)
    for rows, gain in ((2, 1.0), (3, 4.0), (4, 2.0), (5, 3.0)):
        [one] = regions(mlp, torch.ones(rows, 8), *MLP[1:])
        defer(one, gain, ledger())
        bound_queue()
    assert [item.gain_us for item in pending_items()] == [4.0, 3.0, 2.0]


def test_one_that_had_its_time_waits_no_more(region: Region) -> None:
    defer(region, 5.0, ledger())
    [item] = pending_items()
    done = replace(draft_of(region), why="nothing faster", final=True, budget_s=queue.LARGE_S)
    keep(done, region, ledger())
    remove(item)
    assert not defer(region, 5.0, ledger())
    assert pending_items() == []
    left = replace(done, final=False, open=True, why="no time", budget_s=1.0)
    keep(left, region, ledger())  # by a process with a small budget, which began before
    kept = known_decision(region, ledger())
    assert kept is not None
    assert kept.final


def test_what_was_removed_is_not_put_back(region: Region) -> None:
    defer(region, 5.0, ledger())
    [item] = pending_items()
    put_back(replace(item, begun=2))
    assert [one.begun for one in pending_items()] == [2]
    remove(item)
    put_back(item)
    assert pending_items() == []


@pytest.mark.parametrize(
    "data",
    [
        {"version": 99},
        {"version": 1},
        {"version": 1, "threads": 0},
        {"version": 1, "gain_us": "much"},
        {},
    ],
)
def test_a_record_of_another_version_is_left_out(data: dict[str, Any], region: Region) -> None:
    defer(region, 5.0, ledger())
    [item] = pending_items()
    changed = {} if not data else {**item.to_json(), **data} if len(data) > 1 else data
    with Cache.open() as cache:
        cache.put(item.key, Record(changed))
    assert pending_items() == []
    assert defer(region, 5.0, ledger())
    assert len(pending_items()) == 1


def test_a_damaged_record_is_left_out(region: Region, tmp_path: Path) -> None:
    defer(region, 5.0, ledger())
    with sqlite3.connect(tmp_path / "superopt" / "cache-1.db") as file:
        file.execute("UPDATE entries SET data = substr(data, 1, 40) WHERE kind = 'pending'")
    file.close()
    assert pending_items() == []
    (tmp_path / "superopt" / "cache-1.db").write_bytes(b"no database")
    assert pending_items() == []
    assert defer(region, 5.0, ledger())


def test_a_cache_that_takes_nothing_stops_nobody(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", "/proc/nowhere")
    defer(region, 5.0, ledger())
    assert pending_items() == []


def test_a_full_cache_stops_nobody(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **named: Any) -> int:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("superopt.cache.store.FileStore.put", full)
    defer(region, 5.0, ledger())
    monkeypatch.undo()


def test_other_machines_work_is_not_ours(region: Region) -> None:
    defer(region, 5.0, ledger())
    parts = pending_key(region.key).parts
    from superopt.cache import key_of

    [item] = pending_items()
    with Cache.open() as cache:
        cache.put(key_of("pending", **{**parts, "device": "another, 1 threads"}), Record(item.to_json()))
        cache.put(key_of("pending", **{**parts, "torch": "1.0"}), Record(item.to_json()))
        assert len(list(cache.records("pending"))) == 3
    assert len(pending_items()) == 1


def test_options_with_objects_are_not_queued(region: Region) -> None:
    assert not defer(region, 5.0, ledger(inductor={"joint_custom_pre_pass": print}))
    assert not defer(region, 5.0, ledger(cache=False))
    assert defer(region, 5.0, ledger(inductor={"max_autotune": True}))
    assert pending_items()[0].options.inductor == {"max_autotune": True}


# -- what the backend queues


@pytest.mark.parametrize(
    ("option", "environment", "deterministic", "expected"),
    [
        (None, None, False, "later"),
        (None, "off", False, "off"),
        (None, "background", False, "background"),
        ("background", None, False, "background"),
        ("background", "later", False, "later"),
        ("background", "off", False, "off"),
        ("background", "background", True, "later"),
        ("later", "background", False, "later"),
        ("off", "background", False, "off"),
    ],
)
def test_the_mode(option: str | None, environment: str | None, deterministic: bool, expected: str) -> None:
    told = {} if environment is None else {"SUPEROPT_TUNE": environment}
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert mode_of(BackendOptions(tune=option), told) == expected
        assert mode_of(BackendOptions(tune=option, cache=False), told) == "off"
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(InputError, match="SUPEROPT_TUNE is 'on'; it is one of off, later, background"):
        mode_of(BackendOptions(), {"SUPEROPT_TUNE": "on"})
    with pytest.raises(InputError, match="tune is 'now'"):
        read_options({"tune": "now"})


@pytest.mark.parametrize(("tune", "count"), [("later", 1), ("off", 0)])
def test_what_a_budget_leaves_is_queued(tune: str, count: int) -> None:
    def step(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return mlp(x, up, down)

    compiled = torch.compile(step, backend="superopt", options={"budget_s": 0, "tune": tune})
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):  # of an earlier run
        torch.testing.assert_close(compiled(*MLP), mlp(*MLP))
    assert len(pending_items()) == count


def test_what_is_decided_is_not_queued(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = replace(draft_of(region), taken=True, why="a test", plan=plan_of(region, pick_target("cpu")))
    found = budget._defer
    one = ledger()
    for decision, count in (
        (taken, 0),
        (replace(taken, taken=False, plan=None), 0),
        (replace(taken, open=True), 1),
    ):
        found({region.key.digest: decision}, {}, {region.key.digest: [region]}, one)
        assert len(pending_items()) == count
    assert set(one.pending) == {region.key.digest}


def test_a_fault_of_the_queue_leaves_the_decisions(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> bool:
        raise RuntimeError("a test")

    monkeypatch.setattr(budget, "defer", fails)
    monkeypatch.setattr(budget, "known_decision", lambda region, ledger: replace(draft_of(region), open=True))
    found = budget.decisions_of([region], pick_target("cpu"), ledger(), WarmUp())
    assert list(found) == [region.key.digest]


def test_a_key_of_another_version_is_left_out(region: Region, tmp_path: Path) -> None:
    defer(region, 5.0, ledger())
    with Cache.open() as cache:
        [row] = cache._rows("pending")
        parts = json.dumps({**json.loads(row.parts), "future": "part"}, sort_keys=True, separators=(",", ":"))
        changed = replace(row, digest="0" * 64, parts=parts)
        changed = replace(changed, sum=_sum("pending", "0" * 64, row.label, parts, row.data, row.made))
        assert cache._store is not None
        cache._store.put([changed])
        assert len(cache.records("pending")) == 2
    assert len(pending_items()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"inductor": {"cpp.cxx": ["/tmp/c++"]}},
        {"inductor": {"cpp.cxx": "/tmp/c++"}},
        {"inductor": {"cpp.threads": "1) {} int evil("}},
        {"inductor": {"max_autotune": {"a": 1}}},
        {"preset": "none"},
        {"begun": -9},
        {"gain_us": 10**309},
        {"after": [[1]]},
    ],
    ids=str,
)
def test_a_record_of_somebody_else_asks_for_nothing_unknown(changes: dict[str, Any], region: Region) -> None:
    """`superopt cache import` takes over whatever is of the form of a record."""
    defer(region, 5.0, ledger())
    [item] = pending_items()
    with Cache.open() as cache:
        cache.put(item.key, Record({**item.to_json(), **changes}))
    assert pending_items() == []


def test_settings_that_are_numbers_and_words_wait(region: Region) -> None:
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,CPP", "cpp.threads": 2}
    assert not defer(region, 5.0, ledger(inductor={"cpp.cxx": "g++"}))
    assert defer(region, 5.0, ledger(inductor=settings))
    assert pending_items()[0].options.inductor == settings
