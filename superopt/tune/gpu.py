"""GPU: times on CUDA that can be trusted.

CUDA events take the device's own time, and contenders take turns on changing inputs. Calls shorter than a
launch costs are replayed as CUDA graphs. Where the inputs are together more than three times as large as the
L2 cache, one graph holds many calls, each on the next inputs: none finds its own in the cache, and what
events and the start of a graph take is shared by all. Otherwise the cache is filled with other data before
each call, by a kernel long enough that the host has the next launch ready when it ends. All contenders of a
measurement are treated alike, and what is faster than the device can move the data is an error, not a win.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import ceil, inf
from statistics import median
from time import perf_counter
from typing import Any, Literal, Protocol

import torch

from superopt.errors import InputError, first_line
from superopt.tune.errors import DeviceLostError
from superopt.tune.measure import Contender, Times

__all__ = ["Device", "TorchCuda", "copy_gbs", "rotating_bytes", "times_on_cuda"]

Graphs = Literal["auto", "always", "never"]

_SHORT_US = 50.0  # launches take a notable part of the time of calls shorter than this
_LEAST_ROUNDS = 10
_MOST_ROUNDS = 400
_FIRST_CALLS = 3
_MOST_GRAPHS = 8  # captured inputs of one contender: each keeps its outputs in memory
_L2_TIMES = 2
_ROTATING = 3  # inputs of so many times the cache are rotated; the cache need not be cleared between calls
_COPIED_BYTES, _COPY_S = 1 << 29, 0.1  # size and seconds of a copy that shows the bandwidth of memory
_UNROLLED_US = 1000.0  # a graph holds as many calls as take this long, up to a limit
_FEWEST_UNROLLED, _MOST_UNROLLED = 32, 1024  # the least and the most calls in one graph


class Device(Protocol):
    """What measuring needs of a device; tests put a made-up one in its place."""

    @property
    def l2_bytes(self) -> int:
        """The size of the cache to clear."""

    def clear_cache(self, size: int) -> None:
        """Read so many bytes of other memory; nothing is left in the cache that is still to be written."""

    def mark(self) -> Any:
        """Return a mark in the stream of work."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return the device's time between two marks that it has passed."""

    def wait(self) -> None:
        """Wait until all work is done; raise any error of it."""

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return what replays the work of a call on the same tensors; raise where it cannot be captured."""

    def release(self) -> None:
        """Give back the memory of captured calls that are gone: other processes may need it."""


class TorchCuda:
    """A CUDA device, by torch."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise InputError("there is no CUDA device; measure on the CPU with measure_together")
        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._buffer = torch.empty(0, device=self._device)
        self._sum = torch.empty((), device=self._device)
        self._side = _side_stream(self._device)

    @property
    def l2_bytes(self) -> int:
        """The size of the L2 cache."""
        return int(self._torch.cuda.get_device_properties(self._device).L2_cache_size)

    def clear_cache(self, size: int) -> None:
        """Sum up a buffer: lines that are read need not be written back while the next kernel runs."""
        count = max(size // 4, 1)
        if self._buffer.numel() != count:
            self._buffer = self._torch.zeros(count, dtype=self._torch.float32, device=self._device)
        self._torch.sum(self._buffer, dim=0, out=self._sum)

    def mark(self) -> Any:
        """Return an event, recorded now."""
        event = self._torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return the time between two events."""
        return float(start.elapsed_time(end)) * 1e3

    def wait(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize(self._device)

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return the replay of a CUDA graph of a call, which is made once before on a side stream."""
        with suppress(self._torch.OutOfMemoryError):
            return self._captured(call)
        self.release()  # torch frees no memory by itself while it captures
        return self._captured(call)

    def release(self) -> None:
        """Give all unused memory back."""
        self._torch.cuda.empty_cache()

    def _captured(self, call: Callable[[], object]) -> Callable[[], object]:
        # Not by torch.cuda.graph: it waits and empties torch's cache of memory each time, and where a
        # capture fails, it leaves its own stream as the current one.
        cuda, side = self._torch.cuda, self._side
        side.wait_stream(cuda.current_stream(self._device))
        graph = cuda.CUDAGraph()
        with cuda.stream(side):
            call()
            graph.capture_begin()
            try:
                kept = call()
            except BaseException:
                with suppress(Exception):  # the error of the call says more
                    graph.capture_end()
                raise
            graph.capture_end()
        cuda.current_stream(self._device).wait_stream(side)

        def replay() -> object:
            graph.replay()
            return kept  # the outputs live as long as the graph that writes them

        return replay


@cache
def _side_stream(device: Any) -> Any:
    """Return the stream of all captures: libraries keep memory for every stream that they ever saw."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def rotating_bytes(device: Device | None = None) -> int:
    """Return how large inputs must be together so that no call in turn finds its own in the cache."""
    return _ROTATING * (device or TorchCuda()).l2_bytes + 1


def copy_gbs(*, size: int = _COPIED_BYTES, place: str = "cuda", device: Device | None = None) -> float:
    """Return the GB/s that a copy of so many bytes reaches, counting both reads and writes."""
    buffers = tuple(torch.empty(size, dtype=torch.uint8, device=place) for _ in range(2))
    taken = times_on_cuda(
        {"copy": lambda source, goal: goal.copy_(source)},
        [buffers],
        seconds=_COPY_S,
        graph="never",
        device=device,
    )
    return 2 * size / median(taken["copy"].us) / 1e3


def times_on_cuda(
    contenders: Mapping[str, Contender],
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    flush_bytes: int | None = None,
    graph: Graphs = "auto",
    least_rounds: int = _LEAST_ROUNDS,
    most_rounds: int = _MOST_ROUNDS,
    device: Device | None = None,
) -> dict[str, Times]:
    """Return the times of all contenders on a GPU, measured in turns for about so many seconds in all.

    `inputs` are interchangeable tuples of arguments, each round takes the next one. `flush_bytes` are
    read before each call, twice the L2 cache by default; none where graphs hold many calls. With
    `graph="auto"`, all contenders run as CUDA graphs if any of them is short.
    """
    if not inputs:
        raise InputError("there are no inputs to measure on; give one tuple of arguments at least")
    if graph not in ("auto", "always", "never"):
        raise InputError(f"graph is {graph!r}; give 'auto', 'always' or 'never'")
    device = device or TorchCuda()
    rotates = flush_bytes is None and _distinct_bytes(inputs) >= rotating_bytes(device)
    flush = _L2_TIMES * device.l2_bytes if flush_bytes is None else flush_bytes
    try:
        taken = _times(
            contenders, inputs, seconds, flush, graph, (least_rounds, most_rounds), device, rotates=rotates
        )
        if any(times.method in ("graph", "unrolled") for times in taken.values()):
            device.release()
    except Exception as error:
        _check_alive(device, error)
        raise
    return taken


def _times(
    contenders: Mapping[str, Contender],
    inputs: Sequence[tuple[Any, ...]],
    seconds: float,
    flush: int,
    graph: Graphs,
    rounds: tuple[int, int],
    device: Device,
    *,
    rotates: bool,
) -> dict[str, Times]:
    plain = {name: [_bound(one, given) for given in inputs] for name, one in contenders.items()}
    for calls in plain.values():  # a first call may compile, or allocate
        calls[0]()
        calls[-1]()
        device.wait()
    runs = {name: (calls, Times([], "events")) for name, calls in plain.items()}
    together = 1  # calls between two marks
    shortest = inf if graph == "never" else _shortest_us(plain, flush, device)
    if graph == "always" or shortest < _SHORT_US:
        if rotates:
            together, flush = _unrolled_count(len(inputs), shortest), 0
            runs = {name: _unrolled(calls, together, device) for name, calls in plain.items()}
        else:
            most = min(max(rounds), _MOST_GRAPHS)
            runs = {name: _captured(calls[:most], device) for name, calls in plain.items()}
    deadline = perf_counter() + seconds
    names = list(runs)
    for done in range(max(rounds)):
        if done >= rounds[0] and perf_counter() >= deadline:
            break
        turn = done % max(len(names), 1)
        marks = {}
        for name in names[turn:] + names[:turn]:  # no contender always follows the same neighbour
            calls, _ = runs[name]
            marks[name] = _marked(calls[done % len(calls)], flush, device)
        device.wait()
        for name, (start, end) in marks.items():
            runs[name][1].us.append(device.elapsed_us(start, end) / together)
    return {name: times for name, (_, times) in runs.items()}


def _bound(contender: Contender, given: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: contender(*given)


def _marked(call: Callable[[], object], flush: int, device: Device) -> tuple[Any, Any]:
    """Make a call between two marks, after the cache was cleared."""
    if flush:
        device.clear_cache(flush)
    start = device.mark()
    call()
    return start, device.mark()


def _shortest_us(plain: Mapping[str, list[Callable[[], object]]], flush: int, device: Device) -> float:
    """Return the time of the shortest contender, launches included, which would blur a comparison."""
    shortest = inf
    for calls in plain.values():
        marks = [_marked(calls[at % len(calls)], flush, device) for at in range(_FIRST_CALLS)]
        device.wait()
        shortest = min(shortest, median(device.elapsed_us(start, end) for start, end in marks))
    return shortest


def _distinct_bytes(inputs: Sequence[tuple[Any, ...]]) -> int:
    """Return the bytes of all tensors of the inputs; a shared tensor counts once."""
    found = {
        one.data_ptr(): one.numel() * one.element_size()
        for given in inputs
        for one in given
        if hasattr(one, "data_ptr")
    }
    return sum(found.values())


def _unrolled_count(inputs: int, shortest_us: float) -> int:
    """Return how many calls a graph holds: all inputs in turn, as often as that is long enough."""
    calls = max(_UNROLLED_US / max(shortest_us, 1.0), _FEWEST_UNROLLED)
    return inputs * max(ceil(min(calls, _MOST_UNROLLED) / inputs), 1)


def _unrolled(
    calls: list[Callable[[], object]], count: int, device: Device
) -> tuple[list[Callable[[], object]], Times]:
    """Return the replay of so many calls, each on the next inputs; else the calls themselves, with a note."""

    def several() -> object:
        made = None
        for at in range(count):
            made = calls[at % len(calls)]()
        return made

    runs, times = _captured([several], device)
    return runs, replace(times, method="unrolled") if times.method == "graph" else times


def _captured(calls: list[Callable[[], object]], device: Device) -> tuple[list[Callable[[], object]], Times]:
    """Return replays of calls; the calls themselves, with a note, where they cannot be captured."""
    try:
        return [device.capture(call) for call in calls], Times([], "graph")
    except Exception as error:  # a contender may do anything that a CUDA graph cannot capture
        _check_alive(device, error)
        return calls, Times([], "events", f"launches are included: no CUDA graph: {first_line(error)}")


def _check_alive(device: Device, error: Exception) -> None:
    """Raise DeviceLostError where an error outlives the call that made it."""
    try:
        device.wait()
    except Exception:  # the same error again: this process can do nothing more on the device
        raise DeviceLostError(f"the device is lost to this process: {first_line(error)}") from error
