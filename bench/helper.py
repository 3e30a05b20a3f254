"""The helper of `options={"tune": "background"}`: what it costs the program that it works beside.

    python -m bench.helper --json OUT        a program of one thread, two minutes
    python -m bench.helper --threads 2       one that leaves no processor free, of a machine with two

Measured: calls of a model that Inductor compiled, while a helper tunes the regions of another model of
the same program. Against: the same calls while the helper, and all that it started, are stopped. Both states
take turns of half a second, and what counts is the mean time of a call in each turn, its slowest calls
included. The numbers of a helper that hardly ran say nothing: how much processor time it got is told, too.
The exit code is 1 where calls surely take longer by more than `--most` percent. Needs Linux. Let nothing else
run meanwhile.
"""

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one
from superopt.bench.harness.intervals import Launch, speed
from superopt.bench.harness.results import begin, machine, write_results
from superopt.errors import InputError
from superopt.frontier.interrupts import Ended, ending_signals

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["cost_of", "main", "processor_s"]

_PATIENCE_S = 60.0  # seconds to wait for the helper's first region
_ENDING_S = 10.0  # seconds to wait for its end
_IMPORTED_S = 5.0  # seconds of a processor after which the helper has surely imported PyTorch
_BUSY = 0.1  # the share of its turns for which a helper must have a processor
_WIDTHS = (512, 640, 768, 896, 1024, 1152)  # of the layers that wait: each is a region of its own
_ROWS = 64


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return 1 where the helper costs more than it may."""
    parser = Parser("helper", __doc__)
    add = parser.add_argument
    add("--seconds", type=above_zero, default=120.0, help="of measuring (default: 120)")
    add("--turn", type=above_zero, default=0.5, help="seconds of one state (default: 0.5)")
    add("--threads", type=from_one, default=1, help="of the program (default: 1)")
    add("--most", type=above_zero, default=5.0, help="percent that calls may take longer (default: 5)")
    add("--json", type=Path, metavar="OUT", help="write the results here")
    try:
        with ending_signals():  # a helper that is stopped would not see the end of its program
            return parser.run(arguments, _run)
    except Ended as ended:
        return 128 + ended.number


def _run(options: argparse.Namespace) -> int:
    if not Path("/proc/self/stat").exists():
        raise InputError("the helper is stopped and watched as Linux allows it")
    check_out(options.json)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        os.environ["SUPEROPT_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
        os.environ["SUPEROPT_TUNE"] = "background"
        call, waiting = _programs(options.threads)
        helper = _helper()
        try:
            found = cost_of(call, helper, options.seconds, options.turn)
        finally:
            _end(helper)
        del waiting
    settings = {name: getattr(options, name) for name in ("seconds", "turn", "threads", "most")}
    document = begin("helper", settings, machine() | {"threads": options.threads}, {})
    document["cases"]["helper"] = {"case": "helper", **found}
    if options.json is not None:
        write_results(document, options.json)
    slower, low, high = (100 * (found[name] - 1) for name in ("ratio", "low", "high"))
    busy = f"the helper had a processor for {found['busy']:.0%} of its turns"
    print(f"calls take {slower:.1f}% longer beside the helper ({low:.1f} to {high:.1f}%); {busy}")
    if found["busy"] < _BUSY:
        raise InputError(f"{busy}: this says nothing")
    return 1 if low > options.most else 0


def _programs(threads: int) -> "tuple[Callable[[], Any], Any]":
    """Return what is called and measured, and a compiled model whose regions wait for the helper."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)

    def layer(x: "Tensor", up: "Tensor", gate: "Tensor", down: "Tensor") -> "Tensor":
        normed = F.rms_norm(x, x.shape[-1:])
        return x + (F.silu(normed @ gate) * (normed @ up)) @ down

    def layers(rows: "list[Tensor]", weights: "list[tuple[Tensor, ...]]") -> "list[Tensor]":
        return [layer(x, *three) for x, three in zip(rows, weights, strict=True)]

    rows = [torch.randn(1, width) for width in _WIDTHS]
    weights: list[tuple[Tensor, ...]] = [
        (torch.randn(width, 3 * width), torch.randn(width, 3 * width), torch.randn(3 * width, width))
        for width in _WIDTHS
    ]
    waiting = torch.compile(layers, backend="superopt", options={"tune": "background", "budget_s": 0})
    model = torch.compile(nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).eval())
    given = torch.randn(_ROWS, 1024)
    with torch.no_grad():
        waiting(rows, weights)
        model(given)

    def call() -> Any:
        with torch.no_grad():
            return model(given)

    return call, waiting


def _helper() -> int:
    """Return the number of the helper's process once it computes."""
    from superopt.backend.deferred.live import helper_at_work

    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        helper = helper_at_work()
        if helper is not None and processor_s(helper) > _IMPORTED_S:
            return helper
        time.sleep(0.1)
    raise InputError(
        f"no helper was at work within {_PATIENCE_S:g} s: is SUPEROPT_TUNE set, or the cache read-only?"
    )


def _end(helper: int) -> None:
    """End the helper, as the end of the program does, and wait for it: it writes into the cache."""
    from superopt.backend.deferred.live import end_helper

    end_helper()
    end = time.monotonic() + _ENDING_S
    while _family(helper)[1:] and time.monotonic() < end:
        time.sleep(0.1)


def cost_of(call: Callable[[], Any], helper: int, seconds: float, turn_s: float) -> dict[str, Any]:
    """Return how many times as long calls take while a process works as while it is stopped."""
    times: dict[bool, list[float]] = {True: [], False: []}
    processor, running_s = 0.0, 0.0
    draw = random.Random(0)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and Path(f"/proc/{helper}").exists():
            for works in draw.sample((True, False), 2):
                _signal(helper, signal.SIGCONT if works else signal.SIGSTOP)
                before, start = processor_s(helper), time.perf_counter()
                times[works].append(_mean_s(call, turn_s))
                if works:
                    processor += max(processor_s(helper) - before, 0.0)
                    running_s += time.perf_counter() - start
    finally:
        _signal(helper, signal.SIGCONT)
    if not times[True]:
        raise InputError("the helper ended before anything was measured")
    both = speed([Launch(times[False], times[True])])  # what is beside the helper, over what is alone
    return {
        "ratio": both.ratio,
        "low": both.low,
        "high": both.high,
        "busy": processor / running_s,
        "turns": len(times[True]),
        "beside_us": [1e6 * one for one in times[True]],
        "alone_us": [1e6 * one for one in times[False]],
    }


def _mean_s(call: Callable[[], Any], seconds: float) -> float:
    """Return the mean time of the calls that fit in so many seconds, at least one."""
    start, count = time.perf_counter(), 0
    while True:
        call()
        count += 1
        if (spent := time.perf_counter() - start) >= seconds:
            return spent / count


def _family(helper: int) -> list[int]:
    from superopt.backend.deferred.priority import descendants

    return [helper, *descendants(helper)]


def _signal(helper: int, number: signal.Signals) -> None:
    """Stop a process and all that it started, or let them go on; some may have ended."""
    for one in _family(helper):
        with contextlib.suppress(OSError):
            os.kill(one, number)


def processor_s(helper: int) -> float:
    """Return the processor time of a process and of all that it started, those that ended included."""
    ticks = 0
    for one in _family(helper):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and that of children it waited for
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
