"""What there is to beat: the library calls of a region, as Inductor makes them too, and nothing else."""

import operator
import os
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from superopt.backend.pieces import pieces_of
from superopt.backend.subgraph import subgraph_of
from superopt.rivals import inductor
from superopt.rivals.inductor import (
    PASS,
    alone,
    as_in_a_graph,
    changed_settings,
    compiled_by_inductor,
    settings_text,
)
from superopt.rivals.kinds import kinds_of
from superopt.rivals.library_calls import LibraryCalls, library_calls
from superopt.rivals.opponents import Opponents
from superopt.rivals.rivals import INDUCTOR, LIBRARY_CALLS
from superopt.targets import pick_target

from ..test_passes import Named
from .test_pieces import functional


def region(function: Any, *shapes: tuple[int, ...]) -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    """Return a function as the module of a region, and inputs of it."""
    graph = functional(function, *(torch.ones(shape) for shape in shapes))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    subgraph = subgraph_of(piece, kinds)
    return subgraph.module, tuple(torch.randn(one.shape) for one in subgraph.example())


X, W, B, HEADS, KEYS = (4, 8), (8, 8), (8,), (3, 4, 8), (3, 8, 5)


@pytest.mark.parametrize(
    ("function", "shapes", "calls"),
    [
        (lambda x, w: torch.relu(x @ w) @ w, (X, W), [torch.mm] * 2),
        (lambda x, w, b: torch.relu(F.linear(x, w, b)), (X, W, B), [torch.mm]),  # the bias may be fused
        (lambda q, k: torch.relu(q @ k), (HEADS, KEYS), [torch.bmm]),
        (lambda q, k: torch.relu(q[:, :1] @ k), (HEADS, KEYS), []),  # Inductor adds up products itself
        (lambda x: x.softmax(-1), (X,), []),
    ],
)
def test_products_of_matrices_are_library_calls(
    function: Any, shapes: tuple[tuple[int, ...], ...], calls: list[Any]
) -> None:
    assert [call for call, *_ in library_calls(*region(function, *shapes))] == calls


def test_attention_is_a_library_call_on_cpus() -> None:
    graph = torch.fx.Graph()
    made = graph.call_function(
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        tuple(graph.placeholder(name) for name in "qkv"),
    )
    graph.output(graph.call_function(torch.relu, (graph.call_function(operator.getitem, (made, 0)),)))
    given = tuple(torch.randn(1, 2, 4, 8) for _ in range(3))
    [(call, arguments, _)] = library_calls(torch.fx.GraphModule({}, graph), given)
    assert "flash_attention_for_cpu" in str(call)
    assert all(one is other for one, other in zip(arguments, given, strict=True))


def test_calls_read_what_they_read_in_the_region() -> None:
    module, (x, w) = region(lambda x, w: torch.relu(x @ w) @ w, X, W)
    calls = LibraryCalls(module, [(x, w)])
    [made] = calls._calls.values()
    results = [named["out"] for _, _, named in made]
    for result in results:
        result.zero_()
    calls(x, w)
    torch.testing.assert_close(results[0], x @ w)
    torch.testing.assert_close(results[1], torch.relu(x @ w) @ w)


LONG, SQUARE = (512, 256), (256, 256)


@pytest.mark.parametrize(
    ("function", "shapes", "calls"),
    [
        (lambda x, w: torch.relu(x @ w) @ w, (LONG, SQUARE), "mm copy_ mm"),
        (lambda x, w: torch.relu(x) @ w, (LONG, SQUARE), "copy_ mm"),
        (lambda x, w: ((x @ w).sigmoid() * (x @ w.T)) @ w, (LONG, SQUARE), "mm mm add mm"),
        (lambda x, w: x + x @ w, (LONG, SQUARE), "mm add"),
        (lambda x, w: x @ w @ w, (LONG, SQUARE), "mm mm"),  # the second reads the result of the first
        (
            lambda x, w: (x @ w).view(2, 256, 256).transpose(1, 2) @ w.expand(2, -1, -1),
            (LONG, SQUARE),
            "mm bmm",
        ),
        (lambda x, w: torch.relu(x @ w)[:8] @ w, (LONG, SQUARE), "mm mm"),  # Inductor computes eight rows
        (lambda x, w: torch.relu(x @ w) @ w, ((8, 256), SQUARE), "mm mm"),  # too short to tell
        (lambda x: x.softmax(-1), (LONG,), ""),
    ],
)
def test_what_must_be_read_and_written_between_calls_is(
    function: Any, shapes: tuple[tuple[int, ...], ...], calls: str
) -> None:
    module, given = region(function, *shapes)
    made = LibraryCalls(module, [given])
    assert " ".join(call.__name__ for call, *_ in library_calls(module, given)) == calls
    assert bool(made) == bool(calls)
    made(*given)


@pytest.mark.parametrize("plain", [True, False])
def test_a_rival_draws_its_copies_when_they_are_asked_for(plain: bool) -> None:
    module, given = region(lambda x, w: torch.relu(x @ w), X, W)
    drawn = []

    def draw() -> list[tuple[Tensor, ...]]:
        drawn.append(1)
        return [given, tuple(map(torch.clone, given))]

    rival = Opponents(module, draw, pick_target("cpu"), {} if plain else {"max_autotune": True})
    assert rival.has_library == plain
    assert rival.most_us > 0
    assert len(rival.copies) == 2
    assert len(drawn) == 1
    assert rival.has_made(LIBRARY_CALLS) == plain
    assert not rival.has_made(INDUCTOR)
    rival.give_up_copies()
    assert not rival.has_made(LIBRARY_CALLS)
    assert len(rival.copies) == 2
    assert len(drawn) == 2


# Inductor's code of a region is raced without what PyTorch does around the code of each graph.


def joined(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([x, y - x], -1)
    return (both @ w).relu(), both.sum(-1)


def operands() -> tuple[Tensor, ...]:
    return torch.randn(4, 8), torch.randn(4, 8), torch.randn(16, 3)


def module_of(function: Callable[..., Any], given: tuple[Tensor, ...]) -> fx.GraphModule:
    made: fx.GraphModule = make_fx(function)(*given)
    return made


def quickest_us(function: Callable[..., Any], given: tuple[Tensor, ...]) -> float:
    times = []
    for _ in range(300):
        start = time.perf_counter_ns()
        function(*given)
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1e3


@pytest.mark.slow
def test_it_computes_the_same_in_less_time() -> None:
    given = operands()
    module = module_of(joined, given)
    code = alone(lambda: as_in_a_graph(module, given, {}))
    whole = alone(lambda: compiled_by_inductor(module, given, {}))
    for values in (given, operands()):  # the tensors that it was compiled for are not kept
        for one, other in zip(code(*values), joined(*values), strict=True):
            torch.testing.assert_close(one, other)
    assert quickest_us(code, given) < quickest_us(whole, given)


def test_a_race_meets_the_settings_that_were_made_here() -> None:
    settings = torch._inductor.config
    with settings.patch({"max_fusion_size": 7}), torch._functorch.config.patch({"cse": False}):
        found = alone(lambda: (settings.max_fusion_size, alone(lambda: torch._functorch.config.cse)))
    assert found == (7, False)


def test_settings_that_change_code_are_told() -> None:
    settings = torch._inductor.config
    before = changed_settings()
    changed: dict[str, Any] = {"max_fusion_size": 7, "cpp.simdlen": 8, "pattern_matcher": True}
    silent: dict[str, Any] = {"force_disable_caches": True, "compile_threads": 3, PASS: print}
    with settings.patch({**changed, **silent}):
        assert changed_settings() == {**before, "max_fusion_size": 7, "cpp.simdlen": 8}
        assert settings_text(changed_settings()) != settings_text(before)
    assert changed_settings() == before  # set back to what they are by themselves


# PyTorch is imported once, and Inductor, which reads the environment, in two processes.
SETTINGS = """
import os, torch

def tell():
    from superopt.rivals.inductor import settings_text
    print(repr(settings_text({})), flush=True)

assert "torch._inductor.config" not in __import__("sys").modules
child = os.fork()
if child:
    os.waitpid(child, 0)
    os.environ["TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE"] = "64"
tell()
"""


def test_settings_by_environment_variables_are_told() -> None:
    """Before: what was raced with one setting was taken with another."""
    here = settings_text({})
    silent = {
        "PYTHONHASHSEED": "7",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": "/",
        "TORCH_LOGS": "graph",
    }
    command = [sys.executable, "-c", SETTINGS]
    done = subprocess.run(command, env={**os.environ, **silent}, capture_output=True, check=True)
    with_silent, with_another = map(literal_eval, done.stdout.decode().splitlines())
    assert with_silent == here
    assert with_another != here


def test_a_pass_among_the_settings_is_told_by_its_own_name() -> None:
    """Before: by the address of the object, so that no process found what another one had decided."""

    def told(*passes: Any) -> set[str]:
        return {settings_text({"joint_custom_pre_pass": one})["joint_custom_pre_pass"] for one in passes}

    assert len(told(Named("a"), Named("a"))) == 1
    assert len(told([Named("a"), print], [Named("a"), print])) == 1
    assert len(told(Named("a"), Named("b"), [Named("a"), Named("b")], Named(None), Named(None), None)) == 6


def test_a_tensor_that_comes_twice_is_one_input() -> None:
    """PyTorch drops the second one before Inductor sees it: code for one input is not called with two."""
    x = torch.randn(4, 8)
    given = (x, x, torch.randn(16, 3))
    code = alone(lambda: as_in_a_graph(module_of(joined, operands()), given, {}))
    for one, other in zip(code(*given), joined(*given), strict=True):
        torch.testing.assert_close(one, other)


def test_a_race_leaves_random_numbers_to_the_program() -> None:
    """Before: a backward graph that was raced as it was first run changed what the program drew next."""
    before = torch.get_rng_state()
    drawn = [alone(lambda: torch.rand(3)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="no memory"):
        alone(draw_and_fail)
    assert torch.equal(*drawn)
    assert torch.equal(torch.get_rng_state(), before)


def draw_and_fail() -> None:
    torch.rand(3)
    raise RuntimeError("no memory")


@pytest.mark.parametrize("fault", ["another number", "another shape", "an error"])
def test_code_that_is_not_all_of_it_does_not_stand_alone(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else PyTorch may do one day between a graph and its code."""

    def code(values: list[Tensor]) -> list[Tensor]:
        if fault == "an error":
            raise RuntimeError("not like that")
        first, *rest = joined(*values)
        return [first + 1 if fault == "another number" else first[:1], *rest]

    def whole(module: fx.GraphModule, *unused: Any, compile_inner: Callable[..., Any]) -> fx.GraphModule:
        compile_inner()
        return module

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", lambda: code)
    monkeypatch.setattr(inductor, "with_inductor", whole)
    given = operands()
    found = as_in_a_graph(module_of(joined, given), given, {})
    assert isinstance(found, fx.GraphModule)
    for one, other in zip(found(*given), joined(*given), strict=True):
        torch.testing.assert_close(one, other)
