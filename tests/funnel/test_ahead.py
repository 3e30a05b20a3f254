"""Ahead: rivals are made in another thread, as they would be here, and race without being made again."""

import threading
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest
import torch

import superopt
from superopt import OptimizeOptions, SearchOptions
from superopt.funnel import Limits, State
from superopt.funnel.build import build
from superopt.funnel.state import Context
from superopt.ir import parse_graph
from superopt.rivals import ahead as module
from superopt.rivals.ahead import Ahead
from superopt.rivals.rivals import rivals_of
from superopt.targets import pick_target
from superopt.trace import trace

GOAL = parse_graph("graph g\naxes m=4\nin a: f32[m]\nt1 = neg(a)\nout c: f32[m] = t1\n")
SETTING: ContextVar[str] = ContextVar("SETTING", default="none")
QUICK = OptimizeOptions(
    seconds=0.4, graphs=1, guarded=False, cache=False, search=SearchOptions(max_graphs=1, seconds=2.0)
)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2.0).sum(-1)


def state_of() -> State:
    inputs = (torch.randn(4, 8),)
    state = State(doubled, trace(doubled, *inputs), inputs, pick_target("cpu"), QUICK, Limits(1.0))
    state.typical = inputs
    return state


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return how rivals were asked for; no compiler is loaded."""
    asked: list[dict[str, Any]] = []

    def noted(function: Any, inputs: Any, target: Any, **named: Any) -> dict[str, Any]:
        here = threading.current_thread() is threading.main_thread()
        known = {"here": here, "grad": torch.is_grad_enabled(), "setting": SETTING.get(), "inputs": inputs}
        asked.append({**named, **known})
        return {"eager": function, "torch.compile": function}

    monkeypatch.setattr(module, "rivals_of", noted)
    monkeypatch.setattr("superopt.rivals.final.rivals_of", noted)
    monkeypatch.setattr(module, "load_compilers", lambda: None)
    return asked


def test_rivals_are_made_in_another_thread_with_the_settings_of_this_one(made: list[dict[str, Any]]) -> None:
    token, state = SETTING.set("mine"), state_of()
    try:
        with Ahead(known=True) as ahead:
            ahead.begin(state)
            ahead.wait()
            assert ahead.rivals == {"eager": doubled, "torch.compile": doubled}
    finally:
        SETTING.reset(token)
    [asked] = made
    assert (asked["here"], asked["grad"], asked["setting"], asked["compiled"]) == (False, False, "mine", True)
    assert asked["inputs"] is state.typical


def test_modes_of_this_thread_and_stand_ins_keep_rivals_here(made: list[dict[str, Any]]) -> None:
    state = state_of()
    for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("cpu")):
        with mode, Ahead(known=True) as ahead:
            ahead.begin(state)
            ahead.wait()
            assert ahead.rivals is None
    with Ahead(known=False) as ahead:
        ahead.begin(state)
        ahead.wait()
        assert ahead.rivals is None
    assert made == []


def test_what_fails_ahead_is_left_to_the_race(monkeypatch: pytest.MonkeyPatch, made: list[Any]) -> None:
    def fails(*given: Any, **named: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(module, "rivals_of", fails)
    with Ahead(known=True) as ahead:
        ahead.begin(state_of())
        ahead.wait()
        assert ahead.rivals is None


def test_after_ctrl_c_nothing_is_begun_that_would_be_waited_for(made: list[dict[str, Any]]) -> None:
    for interrupted in (True, False):
        state = state_of()
        state.interrupted = interrupted
        with Ahead(known=True) as ahead:
            state.meanwhile = ahead
            build([], Context(state, GOAL, recalled=False, share=1.0))
            assert (ahead.rivals is None) is interrupted
    assert len(made) == 1


def test_rivals_are_made_once(made: list[dict[str, Any]]) -> None:
    best = superopt.optimize(doubled, torch.randn(4, 8), options=QUICK)
    assert len(made) == 1
    assert not made[0]["here"]
    assert "torch.compile" in best.measurements
    torch.testing.assert_close(best(torch.ones(4, 8)), torch.full((4,), 16.0))
    made.clear()
    with torch.inference_mode():
        superopt.optimize(doubled, torch.randn(4, 8), options=replace(QUICK, weights="live"))
    assert [one["here"] for one in made] == [True]


@pytest.mark.slow
def test_a_rival_of_another_thread_is_not_compiled_again_here() -> None:
    state = state_of()
    with Ahead(known=True) as ahead:
        ahead.begin(state)
        ahead.wait()
        assert ahead.rivals is not None
        compiled = ahead.rivals["torch.compile"]
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(compiled(*state.inputs), doubled(*state.inputs))


@pytest.mark.slow
def test_a_compiler_without_the_instructions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    fine = [str(one) for one in cpu_vec_isa.valid_vec_isa_list()]
    monkeypatch.setattr(cpu_vec_isa.VecAVX2, "_arch_flags", "-mno-such-thing")
    monkeypatch.setattr(cpu_vec_isa.VecAVX512, "_arch_flags", "-mno-such-thing")
    monkeypatch.setattr(cpu_vec_isa.VecAVX512VNNI, "_arch_flags", "-mno-such-thing")
    try:
        for one in cpu_vec_isa.supported_vec_isa_list:
            getattr(type(one).__bool__, "cache_clear", lambda: None)()
        cpu_vec_isa.VecISA._VecISA__bool__impl.cache_clear()
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        torch._dynamo.reset()
        inputs = (torch.randn(3, 5),)
        found = rivals_of(
            doubled, inputs, pick_target("cpu"), compiled=True, products=0, tell=lambda text: None
        )
        assert "torch.compile" in found  # without vectors
        assert fine
    finally:
        monkeypatch.undo()
        for one in cpu_vec_isa.supported_vec_isa_list:
            getattr(type(one).__bool__, "cache_clear", lambda: None)()
        cpu_vec_isa.VecISA._VecISA__bool__impl.cache_clear()
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
