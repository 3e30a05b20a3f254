"""Calls of an optimized program as users make them: gradients, autocast, threads, forks, odd tensors."""

import copy
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import superopt
from superopt import InputError, Optimized, OptimizeOptions
from superopt.codegen.cpp.launch import CppMuGraph
from superopt.codegen.errors import CompileError
from superopt.errors import TraceError
from superopt.funnel import Limits, State
from superopt.live.modes import Modes
from superopt.optimizer import race_as_called
from superopt.rivals.final import FinalRace
from superopt.tune import Measurement

SHAPES = ((6, 32), (32,), (32, 16))


def norm_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


def scaled(d: dict[str, Tensor], by: float, /) -> dict[str, Tensor]:
    return {"both": d["a"] * by + d["b"].exp()}


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(32, 16))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return (x @ self.weight + bias).relu()


@pytest.fixture(scope="module")
def build(quick, in_use) -> Callable[..., Optimized]:
    def built(function: Callable[..., object], *inputs: object) -> Optimized:
        return in_use(superopt.optimize(function, *inputs, options=quick))

    return built


@pytest.fixture(scope="module")
def best(build, random) -> Optimized:
    return build(norm_linear, *random(*SHAPES))


def agree(found: object, wanted: object) -> None:
    for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gradients_are_the_originals(best: Optimized, random, caplog) -> None:
    x, g, w = random(*SHAPES)
    w.requires_grad_()
    best._said_why = False
    with caplog.at_level(logging.WARNING, "superopt"):
        best(x, g, w).sum().backward()
        made = best(x, g, w)
    assert made.requires_grad
    assert w.grad is not None
    torch.testing.assert_close(w.grad, torch.autograd.grad(norm_linear(x, g, w).sum(), w)[0])
    assert len(caplog.messages) == 1
    why = "gradients are wanted (they are not under torch.no_grad())"
    assert f"{why}; the original function runs" in caplog.text
    with torch.no_grad():
        assert not best(x, g, w).requires_grad
        agree(best(x, g, w), norm_linear(x, g, w))
    with torch.inference_mode():
        assert best(x, g, w).is_inference()


def test_parameters_want_gradients_too(build, random) -> None:
    module = Linear()
    x, bias = random((6, 32), (16,))
    best = build(module, x, bias)
    assert best(x, bias).requires_grad
    with torch.no_grad():
        assert not best(x, bias).requires_grad
        module.weight += 1
        agree(best(x, bias), module(x, bias))
    agree(best(bias=bias, x=x), module(x, bias))


def test_autocast_is_the_originals(best: Optimized, random, caplog) -> None:
    inputs = random(*SHAPES)
    best._said_why = False
    with torch.autocast("cpu", dtype=torch.bfloat16), caplog.at_level(logging.WARNING, "superopt"):
        assert best(*inputs).dtype == norm_linear(*inputs).dtype == torch.bfloat16
    assert best(*inputs).dtype == torch.float32
    assert "autocast is on; the original function runs" in caplog.text


def test_autocast_within_is_named(quick, random) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    line = function.__code__.co_firstlineno + 2
    with pytest.raises(TraceError, match=rf"autocast is on \(test_calls.py:{line}\)"):
        superopt.optimize(function, *random((4, 4)), options=quick)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TraceError, match="autocast is on"):
        superopt.optimize(norm_linear, *random(*SHAPES), options=quick)


def test_transforms_of_functions(best: Optimized, random) -> None:
    x, g, w = random((3, 6, 32), (32,), (32, 16))
    agree(best(x[0], g, w), norm_linear(x[0], g, w))  # prepared for tensors of this form
    agree(torch.func.vmap(lambda row: best(row, g, w))(x), norm_linear(x, g, w))
    agree(
        torch.func.grad(lambda row: best(row, g, w).sum())(x[0]),
        torch.func.grad(lambda row: norm_linear(row, g, w).sum())(x[0]),
    )
    traced = make_fx(best, tracing_mode="fake")(x[0], g, w)
    agree(traced(x[1], g, w), norm_linear(x[1], g, w))
    agree(best(x[0], g, w), norm_linear(x[0], g, w))


class Wrapped(Tensor):
    """A tensor without memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapped":
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [one.inner if isinstance(one, Wrapped) else one for one in args]
        return func(*plain, **(kwargs or {}))


def test_tensors_that_kernels_cannot_read(best: Optimized, random) -> None:
    x, g, w = random(*SHAPES)
    wanted = norm_linear(x, g, w)
    agree(best(x, g, w), wanted)
    agree(best(Wrapped(x), g, w), wanted)
    agree(best(x, torch.nn.Parameter(g, requires_grad=False), w), wanted)
    negative = torch.complex(x, -x).conj().imag
    assert negative.is_neg()
    agree(best(negative, g, w), wanted)
    zeros = torch._efficientzerotensor(x.shape)
    assert zeros.data_ptr() == 0  # kernels would read what is not there
    agree(best(zeros, g, w), norm_linear(zeros, g, w))
    agree(best(x, g, w), wanted)
    with pytest.raises(InputError, match=r"input 1 is f32\[6, 32\] on meta"):
        best(x.to("meta"), g, w)
    with pytest.raises(RuntimeError):
        best(x.to_sparse(), g, w)
    with pytest.raises(RuntimeError):
        norm_linear(x.to_sparse(), g, w)


def test_arguments_by_name_and_in_other_orders(best: Optimized, build, random) -> None:
    x, g, w = random(*SHAPES)
    agree(best(x, w=w, g=g), norm_linear(x, g, w))
    for inputs, named in (((x, g), {}), ((x, g, w, w), {}), ((x, g, w), {"g": g})):
        with pytest.raises(InputError):
            best(*inputs, **named)
    a, b = random((3, 4), (4,))
    other = build(scaled, {"a": a, "b": b}, 2.0)
    agree(other({"b": b, "a": a}, 2.0), scaled({"a": a, "b": b}, 2.0))
    agree(other({"b": b, "a": a[:1]}, 2), scaled({"a": a[:1], "b": b}, 2))
    agree(other({"a": a, "b": b}, b.exp()), scaled({"a": a, "b": b}, b.exp()))
    with pytest.raises(InputError, match=r"input 3 is a builtins\.object; it was built for 2\.0"):
        other({"a": a, "b": b}, object())
    with pytest.raises(InputError, match="positional only"):
        other(d={"a": a, "b": b}, by=2.0)


def test_texts_and_not_a_number_among_the_arguments(build, random) -> None:
    def function(x: Tensor, mode: str, unused: float) -> Tensor:
        return (x * 2 if mode == "double" else x).exp()

    (x,) = random((4, 8))
    best = build(function, x, "double", float("nan"))
    agree(best(x, "double", float("nan")), function(x, "double", 0))
    agree(best(x[:2], "double", float("nan")), function(x[:2], "double", 0))
    agree(best(x, "single", float("nan")), function(x, "single", 0))


@pytest.mark.parametrize("loaded", [False, True])
def test_the_original_function_runs_at_strides_for_which_nothing_compiles(
    build, random, monkeypatch, caplog, tmp_path: Path, loaded: bool
) -> None:
    """Before: a disk that had become full ended the call with an error."""

    def full(*_: object) -> None:
        raise CompileError("kernel: No space left on device")

    x, g, w = random(*SHAPES)
    best = build(norm_linear, x, g, w)
    if loaded:
        best.save(tmp_path / "best.json")
        best = superopt.load(tmp_path / "best.json")
    a, b = random((3, 4), (4,))
    other = build(scaled, {"a": a, "b": b}, 2.0)
    monkeypatch.setattr(CppMuGraph, "prepared", full)
    turned = torch.randn(32, 6).t()
    with caplog.at_level(logging.WARNING, "superopt"):
        for _ in range(2):
            agree(best(turned, g, w), norm_linear(turned, g, w))
            agree(other({"a": a, "b": b}, 2.0), scaled({"a": a, "b": b}, 2.0))
    assert [line.partition(":")[0] for line in caplog.messages] == ["norm_linear", "scaled"]
    inputs = "f32[6, 32], f32[32], f32[32, 16]"
    assert f"the original function runs for {inputs}: kernel: No space left" in caplog.text


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy])
def test_it_is_not_pickled(best: Optimized, take) -> None:
    with pytest.raises(InputError, match=r"not pickled or copied; write it with its save\(path\)"):
        take(best)


def test_threads_of_python_and_of_torch(best: Optimized, random) -> None:
    calls = [random((rows, 32), (32,), (32, 16)) for rows in (1, 6, 65)]
    wanted = [norm_linear(*inputs) for inputs in calls]
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for turn in range(60):
                at = (first + turn) % 3
                agree(best(*calls[at]), wanted[at])
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            agree(best(*calls[2]), wanted[2])
    finally:
        torch.set_num_threads(before)


FORKED = """
import os, sys, torch, superopt
from pathlib import Path
from superopt import OptimizeOptions, SearchOptions
from superopt.codegen.cpp import compile as cpp_compile

cpp_compile._folder = lambda: Path(sys.argv[1])

def function(x, w):
    return (x @ w).softmax(-1)

options = OptimizeOptions(
    seconds=0.2, graphs=1, torch_compile=False, guarded=False, search=SearchOptions(max_graphs=2)
)
inputs = torch.randn(200, 64), torch.randn(64, 300)
best = superopt.optimize(function, *inputs, options=options)
wanted = function(*inputs)
torch.testing.assert_close(best.fused(*inputs), wanted)
child = os.fork()
if not child:
    torch.set_num_threads(1)  # as PyTorch's own workers do
    torch.testing.assert_close(best.fused(*inputs), wanted)
    torch.testing.assert_close(best(inputs[0][:7], inputs[1]), wanted[:7])
    try:
        superopt.optimize(lambda x: x.exp().sum(), inputs[0], options=options)
        os._exit(2)
    except superopt.InputError as error:
        assert "forked from one that searched" in str(error)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
torch.testing.assert_close(best.fused(*inputs), wanted)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process(kernels_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), str(kernels_folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_program_of_pytorchs_is_called_without_further_ado(best: Optimized, random, monkeypatch) -> None:
    """Before: such calls took a microsecond longer than the function itself."""
    given: list[tuple[Tensor, ...]] = []

    def function(*inputs: Tensor) -> Tensor:
        given.append(inputs)
        return best.function(*inputs)

    theirs = Optimized(
        function, replace(best.result, winner="eager"), best.traced, kernels={}, options=best.options
    )
    monkeypatch.setattr(Modes, "forbid_kernels", lambda self: pytest.fail("modes are looked at"))
    inputs = random(*SHAPES)
    torch.testing.assert_close(theirs(*inputs), best.function(*inputs))
    assert given == [inputs]


def test_what_reads_earlier_tensors_serves_no_later_call(best: Optimized, random, monkeypatch) -> None:
    inputs, program = random(*SHAPES), best._program

    def meanwhile(inputs: tuple[Tensor, ...]) -> Callable[..., object]:
        found = program(inputs)
        best._forget_calls()  # as another thread does where the function's tensors have changed
        return found

    best._forget_calls()
    monkeypatch.setattr(best, "_program", meanwhile)
    agree(best(*inputs), norm_linear(*inputs))
    assert best._calls.latest is None
    monkeypatch.undo()
    agree(best(*inputs), norm_linear(*inputs))
    assert best._calls.latest is not None


def slow(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*inputs: Tensor) -> Tensor:
        time.sleep(0.002)
        return function(*inputs)

    return run


def raced(
    best: Optimized,
    options: OptimizeOptions,
    us: float,
    eager: Callable[..., Tensor],
    compiled: Callable[..., Tensor] | None = None,
    inputs: tuple[object, ...] | None = None,
) -> Optimized:
    times = {"superopt": Measurement(us, us, us, 9), "eager": Measurement(2 * us, us, us, 9)}
    contenders = {"eager": eager, **({"torch.compile": compiled} if compiled else {})}
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in SHAPES) if inputs is None else inputs
    state = State(best.function, best.traced, inputs, best.target, options, Limits(1.0))
    with state.ready():
        return race_as_called(best, FinalRace(contenders, times), state)


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the look at modes take two milliseconds."""
    # None is false, so that a call like the latest one looks at both.
    for look in ("forbid_kernels", "unguarded_are_same"):
        monkeypatch.setattr(Modes, look, lambda self: time.sleep(0.002))


@pytest.mark.usefixtures("slow_calls")
def test_kernels_that_lose_by_what_a_call_takes_are_not_returned(best, quick, random) -> None:
    found = raced(best, quick, 9.0, lambda x, g, w: x, best.function)
    assert best.winner == "superopt"
    assert found.winner == "eager"
    assert found.measurements["superopt"].median_us > 2000
    assert found.ratio is None
    assert set(found.measurements) <= {*best.measurements, "superopt", "eager"}  # no other that took part
    inputs = random(*SHAPES)
    assert torch.equal(found(*inputs), best.function(*inputs))


def test_kernels_that_win_as_they_are_called_stay(best, quick) -> None:
    assert raced(best, quick, 9.0, slow(best.function)) is best


def noting(function: Callable[..., Tensor], modes: set[bool]) -> Callable[..., Tensor]:
    """Return a function that notes whether gradients are on where it is called."""

    def run(*inputs: Tensor) -> Tensor:
        modes.add(torch.is_grad_enabled())
        return function(*inputs)

    return run


def test_the_race_of_calls_is_in_the_modes_of_calls(best, quick) -> None:
    eager, compiled = set(), set()
    raced(best, quick, 9.0, noting(best.function, eager), noting(best.function, compiled))
    assert (eager, compiled) == ({True}, {False})  # a compiled program would be compiled anew


def test_weights_that_want_gradients_are_raced_without(build, quick, random) -> None:
    module, inputs, modes = Linear(), random((6, 32), (16,)), set()
    raced(build(module, *inputs), quick, 9.0, noting(module, modes), inputs=inputs)
    assert modes == {False}  # else PyTorch's own program would compute on both sides


def test_calls_on_other_things_than_tensors_are_raced(build, quick, random) -> None:
    a, b = random((6, 32), (6, 32))
    inputs, modes = ({"a": a, "b": b}, 2.0), set()
    raced(build(scaled, *inputs), quick, 9.0, noting(scaled, modes), inputs=inputs)
    assert modes == {True}


@pytest.mark.usefixtures("slow_calls")
def test_a_long_program_hides_what_a_call_takes(best, quick) -> None:
    assert raced(best, quick, 900.0, lambda x, g, w: x) is best
