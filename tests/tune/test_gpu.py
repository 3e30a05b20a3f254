"""Measuring on CUDA: the logic on a made-up device, and a few real kernels where there is a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from superopt.errors import InputError
from superopt.tune import confirm
from superopt.tune.errors import DeviceLostError
from superopt.tune.gpu import TorchCuda, copy_gbs, rotating_bytes, times_on_cuda
from superopt.tune.measure import measure_together


class FakeDevice:
    """A device whose clock moves by what kernels take; a launch outside a graph costs as well."""

    l2_bytes = 1000
    launch_us = 5.0

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.flushed: list[int] = []
        self.capturing = False
        self.captured = self.released = 0
        self.broken: Exception | None = None

    def kernel(self, name: str, time_us: float, *, capturable: bool = True) -> Callable[[int], str]:
        def run(value: int) -> str:
            if self.capturing and not capturable:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            self.log.append(f"{name}{value}")
            self.now += time_us if self.capturing else time_us + self.launch_us
            return name

        return run

    def clear_cache(self, size: int) -> None:
        self.flushed.append(size)
        self.log.append("flush")
        self.now += 40.0

    def mark(self) -> float:
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        if self.broken is not None:
            raise self.broken

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        def replay() -> object:
            self.capturing = True
            try:
                return call()
            finally:
                self.capturing = False

        self.captured += 1
        replay()
        return replay

    def release(self) -> None:
        self.released += 1


INPUTS = [(0,), (1,), (2,)]


def measure(device: FakeDevice, contenders: dict[str, Any], **options: Any):
    options = {"seconds": 0.0, "least_rounds": 6} | options
    how = {name: options.pop(name) for name in ("graph", "flush_bytes") if name in options}
    times = partial(times_on_cuda, device=device, **how)
    return measure_together(contenders, INPUTS, times=times, **options)


def test_long_kernels_are_timed_by_events_between_flushes_in_turns() -> None:
    device = FakeDevice()
    contenders = {name: device.kernel(name, us) for name, us in (("a", 100.0), ("b", 200.0))}
    found = measure(device, contenders)
    assert found["a"].median_us == 105.0
    assert found["b"].median_us == 205.0
    assert {one.method for one in found.values()} == {"events"}
    assert found["a"].rounds == 6
    assert set(device.flushed) == {2000}
    timed = [one for one in device.log[-24:] if one != "flush"]
    assert timed == ["a0", "b0", "b1", "a1", "a2", "b2", "b0", "a0", "a1", "b1", "b2", "a2"]
    assert device.log[-24::2] == ["flush"] * 12
    assert dict(found["a"].quantiles_us)[0.9] == 105.0


def test_one_short_kernel_makes_graphs_of_all() -> None:
    device = FakeDevice()
    contenders = {name: device.kernel(name, us) for name, us in (("a", 4.0), ("b", 200.0))}
    found = measure(device, contenders)
    assert found["a"].median_us == 4.0
    assert found["b"].median_us == 200.0
    assert {one.method for one in found.values()} == {"graph"}
    replayed = {one for one in device.log[-24:] if one.startswith("a")}
    assert replayed == {"a0", "a1", "a2"}


def rotating(copies: int, elements: int) -> list[tuple[torch.Tensor]]:
    """Return inputs that are told apart by their numbers."""
    return [(torch.full((elements,), float(at)),) for at in range(copies)]


@pytest.mark.parametrize(("copies", "calls"), [(3, 114), (4, 112), (300, 300)])
def test_inputs_larger_than_the_cache_are_called_in_turn_in_one_graph(copies: int, calls: int) -> None:
    device = FakeDevice()
    kernels = {name: device.kernel(name, us) for name, us in (("a", 4.0), ("b", 200.0))}
    contenders = {name: lambda x, run=run: run(int(x[0])) for name, run in kernels.items()}
    times = partial(times_on_cuda, device=device, least_rounds=2, most_rounds=2)
    found = measure_together(contenders, rotating(copies, 3001 // (4 * copies) + 1), seconds=0.0, times=times)
    assert {one.method for one in found.values()} == {"unrolled"}
    assert (found["a"].median_us, found["b"].median_us) == (4.0, 200.0)
    assert device.captured == 2
    last = device.log[-2 * calls :]  # a round: all calls of one contender after the other's
    assert "flush" not in last
    assert [one for one in last if one.startswith("a")] == [f"a{at % copies}" for at in range(calls)]


def test_inputs_that_the_cache_holds_are_called_one_by_one() -> None:
    device = FakeDevice()
    run = device.kernel("a", 4.0)
    times = partial(times_on_cuda, device=device)
    found = measure_together({"a": lambda x: run(int(x[0]))}, rotating(3, 250), seconds=0.0, times=times)
    assert found["a"].method == "graph"
    tensor = torch.zeros(700)
    shared = [(tensor, at) for at in range(3)]  # a tensor in all of them counts once
    found = measure_together({"a": lambda x, at: run(at)}, shared, seconds=0.0, times=times)
    assert found["a"].method == "graph"


def test_all_contenders_are_unrolled_even_those_that_no_graph_holds() -> None:
    device = FakeDevice()
    kernels = {"a": device.kernel("a", 4.0, capturable=False), "b": device.kernel("b", 4.0)}
    contenders = {name: lambda x, run=run: run(int(x[0])) for name, run in kernels.items()}
    times = partial(times_on_cuda, device=device)
    found = measure_together(contenders, rotating(3, 300), seconds=0.0, times=times)
    assert (found["a"].method, found["b"].method) == ("events", "unrolled")
    assert (found["a"].median_us, found["b"].median_us) == (9.0, 4.0)  # with its launches


def test_the_bandwidth_of_a_copy() -> None:
    device = FakeDevice()
    device.elapsed_us = lambda start, end: 250.0
    assert copy_gbs(size=1 << 20, place="cpu", device=device) == pytest.approx(2 * (1 << 20) / 250e3)
    assert rotating_bytes(device) == 3001


def test_a_call_that_cannot_be_captured_says_so() -> None:
    device = FakeDevice()
    contenders = {"a": device.kernel("a", 4.0, capturable=False), "b": device.kernel("b", 4.0)}
    found = measure(device, contenders)
    assert found["a"].method == "events"
    assert found["a"].median_us == 9.0
    assert found["a"].note.endswith("no CUDA graph: operation not permitted when stream is capturing")
    assert found["b"].method == "graph"
    assert found["b"].note == ""


@pytest.mark.parametrize(("most_rounds", "captured"), [(2, 2), (3, 3), (50, 8)])
def test_no_more_graphs_than_rounds(most_rounds: int, captured: int) -> None:
    device = FakeDevice()
    inputs = [(at,) for at in range(16)]
    options = {"seconds": 9.0, "least_rounds": 1, "most_rounds": most_rounds}
    times = partial(times_on_cuda, device=device)
    found = measure_together({"a": device.kernel("a", 4.0)}, inputs, times=times, **options)
    assert found["a"].rounds == most_rounds
    assert device.captured == captured
    assert device.released == 1  # at the end, not at each of them


def test_memory_is_kept_where_there_are_no_graphs() -> None:
    device = FakeDevice()
    measure(device, {"a": device.kernel("a", 400.0)})
    assert device.captured == device.released == 0


def test_graphs_by_order() -> None:
    device = FakeDevice()
    assert measure(device, {"a": device.kernel("a", 4.0)}, graph="never")["a"].method == "events"
    assert measure(device, {"a": device.kernel("a", 400.0)}, graph="always")["a"].method == "graph"
    with pytest.raises(InputError, match="graph is 'maybe'"):
        measure(device, {}, graph="maybe")


def test_flushing_as_much_as_was_asked() -> None:
    device = FakeDevice()
    measure(device, {"a": device.kernel("a", 100.0)}, flush_bytes=77)
    assert set(device.flushed) == {77}
    device.flushed.clear()
    measure(device, {"a": device.kernel("a", 100.0)}, flush_bytes=0)
    assert device.flushed == []


def test_without_inputs() -> None:
    with pytest.raises(InputError, match="no inputs"):
        times_on_cuda({}, [], seconds=0.0, device=FakeDevice())


def test_a_fault_of_one_call_passes_and_one_of_the_device_is_told_apart() -> None:
    device = FakeDevice()

    def wrong(value: int) -> None:
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        measure(device, {"a": wrong})

    def poison(value: int) -> None:
        device.broken = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with pytest.raises(DeviceLostError, match="lost to this process: CUDA error: an illegal memory access"):
        measure(device, {"a": poison})


def test_a_winner_is_confirmed_head_to_head() -> None:
    device = FakeDevice()
    contenders = {name: device.kernel(name, us) for name, us in (("a", 100.0), ("b", 80.0), ("c", 1.0))}
    times = partial(times_on_cuda, device=device, least_rounds=20, graph="never")
    found = confirm(contenders, "a", "b", INPUTS, seconds=0.0, times=times)
    assert (found.winner, found.loser, found.share, found.sure) == ("b", "a", 1.0, True)
    assert found.speedup == pytest.approx(105 / 85)
    assert set(found.measurements) == {"a", "b"}
    assert not any(one.startswith("c") for one in device.log)


def test_alike_contenders_have_no_sure_winner() -> None:
    device = FakeDevice()
    contenders = {name: device.kernel(name, 100.0) for name in "ab"}
    times = partial(times_on_cuda, device=device, least_rounds=20, graph="never")
    assert not confirm(contenders, "a", "b", INPUTS, seconds=0.0, times=times).sure
    with pytest.raises(InputError, match="'a' against 'a'; there are a, b"):
        confirm(contenders, "a", "a", INPUTS, seconds=0.0, times=times)


class FakeCuda:
    """What TorchCuda uses of torch, where a capture may fail at its end."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, *, fails: bool = False) -> None:
        self.cuda = self
        self.current = "main"
        self.fails = fails
        self.log: list[str] = []

    def current_stream(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(name=self.current, wait_stream=lambda other: None)

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            capture_begin=lambda: self.log.append("begin"),
            capture_end=self.end,
            replay=lambda: self.log.append("replay"),
        )

    def end(self) -> None:
        self.log.append("end")
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")

    def empty_cache(self) -> None:
        self.log.append("empty")


def torch_cuda(fake: FakeCuda) -> TorchCuda:
    device = object.__new__(TorchCuda)
    device._torch, device._device = fake, "cuda:0"
    device._side = SimpleNamespace(name="side", wait_stream=lambda other: None)
    return device


def test_a_capture_ends_on_the_stream_where_it_began() -> None:
    fake = FakeCuda()
    streams: list[str] = []
    replay = torch_cuda(fake).capture(lambda: streams.append(fake.current) or "made")
    assert streams == ["side", "side"]
    assert fake.current == "main"
    assert replay() == "made"
    assert fake.log == ["begin", "end", "replay"]


@pytest.mark.parametrize("in_call", [True, False])
def test_a_capture_that_fails_leaves_no_stream_behind(in_call: bool) -> None:
    fake = FakeCuda(fails=True)

    def call() -> None:
        if in_call and fake.log:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted" if in_call else "previous error"):
        torch_cuda(fake).capture(call)
    assert fake.current == "main"
    assert fake.log == ["begin", "end"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_capture_is_tried_again_with_the_memory_that_is_unused(times: int) -> None:
    fake = FakeCuda()

    def call() -> str:
        if "begin" in fake.log[-1:] and fake.log.count("begin") <= times:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "made"

    if times == 1:
        assert torch_cuda(fake).capture(call)() == "made"
        assert fake.log == ["begin", "end", "empty", "begin", "end", "replay"]
    else:
        with pytest.raises(torch.OutOfMemoryError):
            torch_cuda(fake).capture(call)
        assert fake.log == ["begin", "end", "empty", "begin", "end"]


def test_the_cache_is_cleared_by_reading() -> None:
    device = object.__new__(TorchCuda)
    device._torch, device._device = torch, torch.device("cpu")
    device._buffer, device._sum = torch.empty(0), torch.empty(())
    device.clear_cache(4096)
    assert device._buffer.nbytes == 4096
    written = device._buffer._version
    device.clear_cache(4096)
    assert device._buffer._version == written
    device.clear_cache(1)
    assert device._buffer.numel() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device_is_a_clear_error() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        times_on_cuda({}, INPUTS, seconds=0.0)


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_cuda
def test_real_kernels_small_and_large() -> None:
    inputs = [tuple(torch.randn(2, 4096, 4096, device="cuda")) for _ in range(3)]
    found = measure_together(
        {"add": torch.add, "matmul": torch.matmul}, inputs, seconds=0.3, times=times_on_cuda
    )
    assert found["add"].median_us < found["matmul"].median_us
    small = [tuple(torch.randn(2, 64, device="cuda")) for _ in range(3)]
    assert (
        measure_together({"add": torch.add}, small, seconds=0.1, times=times_on_cuda)["add"].method == "graph"
    )


@on_cuda
def test_a_real_call_that_cannot_be_captured() -> None:
    inputs = [(torch.randn(64, device="cuda"),)]
    [found] = measure_together(
        {"item": lambda x: x.sum().item()}, inputs, seconds=0.1, times=times_on_cuda
    ).values()
    assert found.method == "events"
    assert "no CUDA graph" in found.note


@on_cuda
def test_a_real_call_after_one_that_cannot_be_captured() -> None:
    inputs = [(torch.randn(64, device="cuda"),)]
    before = torch.cuda.current_stream()
    contenders = {"item": lambda x: x.sum().item(), "add": lambda x: x + 1}
    found = measure_together(contenders, inputs, seconds=0.1, times=times_on_cuda)
    assert torch.cuda.current_stream() == before
    assert {name: one.method for name, one in found.items()} == {"item": "events", "add": "graph"}


@on_cuda
def test_a_real_flush_is_twice_the_cache() -> None:
    device = TorchCuda()
    assert device.l2_bytes > 1 << 20
    device.clear_cache(2 * device.l2_bytes)
    device.wait()
