"""Measure: what one process does with one graph, written down after each step so that a crash tells where."""

import json
import logging
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from superopt.bench.graphs.request import Request
from superopt.bench.harness.records import Record, launch_record
from superopt.errors import kind_and_line
from superopt.files import replace_text

if TYPE_CHECKING:
    from torch import Tensor, fx

    from superopt.backend.decision import Ledger

__all__ = ["measure"]

_FACTOR, _FLOOR = 4.0, 64.0  # times eager's own error, and units in the last place, that are allowed
_CHAOS = 0.01  # an error of eager's above which the result says nothing
_REASONS = 8  # that are kept, the most frequent ones


class _Steps:
    """What is known so far, in a file."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.known: Record = {"seconds": {}}
        self.start = time.perf_counter()

    def begin(self, step: str) -> None:
        """Note what is done from now on, and how long the step before took."""
        now = time.perf_counter()
        if before := self.known.get("while"):
            self.known["seconds"][before] = round(now - self.start, 2)
        self.start = now
        self.note(**{"while": step})

    def note(self, **known: Any) -> None:
        """Note what was found."""
        self.known |= known
        replace_text(self.out, json.dumps(self.known))


def measure(request: Request, out: Path) -> None:
    """Do what a request says, in this process, which it limits; the record goes to a file."""
    steps = _Steps(out)
    steps.begin("starting")
    resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes, request.memory_bytes))
    try:
        _run(request, steps)
    except MemoryError:
        steps.note(result="memory", why=f"more than {request.memory_bytes >> 20} MiB")
    except Exception as error:  # whatever a graph of others raises is its record
        said = kind_and_line(error)
        no_memory = "can't allocate memory" in str(error)
        early = steps.known["while"] in ("loading", "eager")
        kind = "memory" if no_memory else "unusable" if early else "failed"
        steps.note(result=kind, why=said[:300])


def _run(request: Request, steps: _Steps) -> None:
    import torch

    from superopt.backend.entry import ledger_of
    from superopt.bench.graphs.captured import captured
    from superopt.bench.graphs.host import running
    from superopt.verify.floats.compare import in_float64

    faults = _Faults()
    logging.getLogger("superopt").addHandler(faults)
    torch.set_num_threads(request.threads)
    torch._inductor.config.fallback_random = True  # random numbers as eager draws them
    torch._dynamo.config.capture_scalar_outputs = True  # a graph that reads numbers stays one graph
    steps.begin("loading")
    module, inputs = captured(Path(request.graph), request.device, request.seed)
    steps.begin("eager")
    own, left = _called(module, inputs, request.seed)
    steps.begin("float64")
    exact, _ = _called(in_float64(module), inputs, request.seed)
    steps.begin("compiling")
    options: dict[str, Any] = {"budget_s": request.budget_s}
    compiled = torch.compile(module, backend="superopt", options=options)
    with running(request.way):
        made, ours = _called(compiled, inputs, request.seed)
    steps.note(**_told(ledger_of(options)), faults=faults.lines)
    steps.begin("comparing")
    ratio, why, found = _judged(exact, own, made)
    if ratio > 1:  # Inductor reorders as well
        steps.begin("comparing with Inductor")
        inductor, _, _ = _judged(exact, own, _called(torch.compile(module), inputs, request.seed)[0])
        found["inductor_ratio"] = round(inductor, 3)
        if 2 * inductor >= ratio:
            ratio, why = 0.0, f"Inductor by itself does so, too: {why}"
    if any(_other(a, b) for a, b in zip(left, ours, strict=True)):
        ratio, why = 2.0, "an input is left with other numbers"
    steps.note(errors=found)
    if request.seconds:
        steps.begin("timing")
        steps.note(**_timed(request, inputs, options))
    if request.tune_s:
        steps.note(tuned=_tuned(request, inputs, options, steps))
    steps.note(result="right" if why is None else "wrong" if ratio > 1 else "unjudged", why=why)


class _Faults(logging.Handler):
    """Keeps the warnings of superopt: each tells of something that a fault left to Inductor."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self.lines.append(record.getMessage()[:300])


def _called(
    function: Callable[..., Any], inputs: tuple[Any, ...], seed: int
) -> "tuple[list[Tensor], list[Tensor]]":
    """Return the tensors that a call makes, and its inputs as the call leaves them."""
    import torch
    from torch.utils._pytree import tree_map_only

    from superopt.verify.floats.compare import tensors_of

    torch.manual_seed(seed)
    given = tree_map_only(torch.Tensor, torch.clone, inputs)
    with torch.no_grad():
        made = [one.clone() for one in tensors_of(function(*given))]
    return made, tensors_of(given)


def _judged(
    exact: "Sequence[Tensor]", own: "Sequence[Tensor]", made: "Sequence[Tensor]"
) -> tuple[float, str | None, Record]:
    """Return errors over what is allowed, why a result is not as it should be, and the errors of both."""
    from superopt.verify.floats.errors import errors_of, judged

    if [(one.shape, one.dtype) for one in own] != [(one.shape, one.dtype) for one in made]:
        return float("inf"), "other shapes or dtypes", {}
    if not own:
        return 0.0, "it returns no tensor", {}
    report = judged("as seen", [errors_of(exact, own, made, None)], _FACTOR, _FLOOR)
    found = {"eager": report.eager_error, "superopt": report.candidate_error}
    if report.nonfinite:
        return float("inf"), "not finite where eager is", found
    if report.skipped:
        return 0.0, report.skipped, found
    if report.ratio > 1:
        return report.ratio, f"{report.ratio:.1f} times the error that is allowed", found
    if report.eager_error > _CHAOS:
        return 0.0, f"eager itself errs by {report.eager_error:.2g}", found
    return report.ratio, None, found


def _other(eager: "Tensor", ours: "Tensor") -> bool:
    """Whether a call leaves other numbers in an input than eager does."""
    import torch

    return not torch.allclose(eager, ours, rtol=1e-3, atol=1e-5, equal_nan=True)


def _told(ledger: "Ledger") -> Record:
    """Return what the backend made of the graph: its regions, and what stays with Inductor and why."""
    decisions = [one for one in ledger.decisions if one.inputs]  # of algebra; others are pieces without a key
    left = Counter(_plain(one.why) for one in ledger.decisions if not one.taken)
    return {
        "graphs": ledger.graphs,
        "regions": len(decisions),
        "taken": sum(one.taken for one in decisions),
        "left": dict(left.most_common(_REASONS)),
        "outside": dict(ledger.outside.most_common(_REASONS)),
    }


def _plain(why: str) -> str:
    """Return a reason without its numbers, to count it."""
    return re.sub(r"\d+(\.\d+)?", "N", why)[:100]


def _tuned(request: Request, inputs: tuple[Any, ...], options: dict[str, Any], steps: _Steps) -> Record:
    """Return the record of a race after deferred work, of the graph as the next start compiles it."""
    import torch

    from superopt.backend.deferred.work import work_through
    from superopt.backend.entry import ledger_of

    steps.begin("tuning")
    worked = [one.why for one in work_through(seconds=request.tune_s)]
    steps.begin("timing what was tuned")
    torch._dynamo.reset()
    timed = _timed(request, inputs, options)
    taken = sum(one.taken for one in ledger_of(options).decisions)
    return {**timed, "taken": taken, "worked": worked}


def _timed(request: Request, inputs: tuple[Any, ...], options: dict[str, Any]) -> Record:
    """Return the record of a race, in turns, of eager, Inductor and superopt.

    Each has a module of its own, and superopt's is compiled anew, from its cache: what a process compiles
    first is up to 3% slower than what it compiles later, be it the same code. `control` is Inductor's time
    over that of its own second compilation: what does not tell. `captured_us` is the time of the graph as
    Dynamo captures it, run by eager: what its checks cost any backend.
    """
    import torch

    from superopt.bench.graphs.captured import module_of
    from superopt.rivals.inductor import with_inductor
    from superopt.tune.measure import times_together

    def inductor_again(graph: "fx.GraphModule", example: Sequence[Any], **unused: Any) -> Callable[..., Any]:
        return with_inductor(graph, example, {})

    def module() -> Any:
        return module_of(Path(request.graph), request.device)

    contenders: dict[str, Callable[..., Any]] = {
        "eager": module(),
        "inductor": torch.compile(module()),
        "superopt": torch.compile(module(), backend="superopt", options=options),
        "again": torch.compile(module(), backend=inductor_again),
        "captured": torch.compile(module(), backend="eager"),
    }
    with torch.no_grad():
        times = dict(times_together(contenders, [inputs], seconds=request.seconds))
    again, bare = times.pop("again"), times.pop("captured")
    control = median(a / b for a, b in zip(times["inductor"].us, again.us, strict=True))
    told = {"control": round(control, 4), "captured_us": round(median(bare.us), 3)}
    return launch_record(times, "superopt", "eager") | told
