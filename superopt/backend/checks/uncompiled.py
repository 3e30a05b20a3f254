"""Uncompiled: a graph as eager PyTorch runs it, raced in turns with what was compiled of it.

What Inductor makes of a graph may be slower than eager PyTorch, whose libraries choose their own layouts and
join a bias to a product. So the first compilation of a graph ends with a few calls of both, on the inputs
that it was compiled for, and the graph stays uncompiled where that is surely faster. The verdict is kept
until better kernels are found: later starts obey it, and compile nothing where eager PyTorch has won.

A graph is raced only if a call of it leaves no trace: not if it writes into an input, be it through `.data`,
talks to another process, or calls an operator of the user's. Nor is one raced whose sizes are symbols: who
wins at the sizes of the first call may lose at others. No graph is run that may need much of the free memory,
or more time than a race has, as its sizes tell.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.cache import epoch
from superopt.backend.checks.needs import held_bytes, least_seconds
from superopt.backend.decision import Ledger
from superopt.backend.region_race import even
from superopt.cache import Cache, Key, Record, key_of
from superopt.codegen.forms import is_plain
from superopt.cost.memory import available_bytes
from superopt.errors import kind_and_line
from superopt.rivals.inductor import have_same_numbers, settings_text
from superopt.targets import pick_target
from superopt.tune import confirm
from superopt.tune.measure import bytes_of

__all__ = ["EagerGraph"]

log = logging.getLogger("superopt")

Program = Callable[..., Any]

_RACE_S, _MOST_RACE_S = 0.6, 4.0  # seconds of a race, and of one that is not decided by then
_RACE_SHARE = 0.15  # a race takes at most this share of the time that compiling took
_LOOKS = 2  # calls of each program that tell whether a race is worth while
_CALLS = 7  # the fewest calls of each program in a race
_NEAR = 1.2  # eager PyTorch does not race if its fastest call takes this many times as long
_SHORT_S = 2e-4  # in a race, the nearest caches hold what a shorter call reads; in a program they do not
_SHORT_WIN = 1.1  # so in short calls eager PyTorch must be this many times as fast
_FREE = 0.25  # a call with copies of the inputs may take this share of the free memory

# Where the functions of graphs come from that leave no trace; each may be followed by a dot and more.
_PLAIN = ("torch", "_operator", "operator", "math", "builtins")
_TRACES = ("torch.distributed", "torch.ops", "torch.library", "torch.utils", "torch.cuda")
_NAMESPACES = ("aten", "prims")


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """A graph of Dynamo's before anything is compiled of it, and the key of the verdict on it."""

    module: fx.GraphModule
    inputs: Sequence[Any]
    ledger: Ledger
    key: Key

    @classmethod
    def of(
        cls, module: fx.GraphModule, inputs: Sequence[Any], ledger: Ledger, seen: Key
    ) -> "EagerGraph | None":
        """Return a graph to race, whose key among the seen ones is known, or None where it must not be.

        It is a copy, as compiling may change the graph.
        """
        options = ledger.options
        fixed = torch.are_deterministic_algorithms_enabled()
        if options.budget_s == 0 or even() < 1 or fixed or not _is_plain(module, inputs):
            return None
        told = {
            "backend": "eager 2",
            "seen": seen.digest,
            "verify": options.verify,
            "weights": options.weights,
            "strides": [list(map(str, one.stride())) for one in inputs if isinstance(one, Tensor)],
            "inductor": settings_text(options.inductor),
            "threads": torch.get_num_threads(),
            "autocast": torch.is_autocast_enabled("cpu"),
        }
        key = key_of("plan", **{**seen.parts, "options": told, **pick_target("cpu").key_parts()})
        graph = fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        return cls(fx.GraphModule(module, graph), [*map(_as_number, inputs)], ledger, key)

    @property
    def run(self) -> Program:
        """The graph as eager PyTorch runs it."""
        found: Program = self.module.forward
        return found

    @property
    def speed(self) -> float | None:
        """How many times as fast as compiled code it was in an earlier race; None where none tells."""
        if not self.ledger.options.cache or self.ledger.options.retry:
            return None
        with Cache.open() as cache:
            record = cache.get(self.key)
        if record is None or record.data.get("epoch") != epoch():
            return None
        found = record.data.get("speed")
        return float(found) if isinstance(found, float) and found > 0 else None

    def is_known_faster(self) -> bool:
        """Whether it was faster in an earlier race, so that nothing has to be compiled; this is noted.

        A report tells of every region, so that the graph is compiled for it.
        """
        found = self.speed
        if found is None or found <= 1 or self.ledger.options.report is not None:
            return False
        self.note(found)
        return True

    def is_faster(self, compiled: Program, compiling_s: float) -> bool:
        """Whether it is faster than what was compiled in so many seconds; this is kept and noted."""
        found = self.speed
        if found is None:
            try:
                same = torch.random.fork_rng(devices=[])
                with self.ledger.spending(), torch.no_grad(), same, _same_autocast():
                    found = self._raced(compiled, compiling_s)
            except Exception as error:  # whatever a program of others raises, its compiled form is at hand
                log.info("a graph is not raced with eager PyTorch: %s", kind_and_line(error))
                return False
            if self.ledger.options.cache:
                with Cache.open() as cache:
                    cache.put(self.key, Record({"speed": found, "epoch": epoch()}, "uncompiled graph"))
        if found > 1:
            self.note(found)
        return found > 1

    def note(self, speed: float) -> None:
        """Note that the graph runs uncompiled."""
        told = f"left to eager PyTorch as a whole, which runs at {speed:.2f} times the speed of compiled code"
        self.ledger.uncompiled.append(told)
        log.info("a graph is %s", told)

    def _raced(self, compiled: Program, compiling_s: float) -> float:
        """Return how many times as fast it is, 1.0 where that is not sure, or where it writes to an input."""
        told = self.ledger.options.budget_s
        longest = _MOST_RACE_S if told is None else told
        most = min(_RACE_SHARE * compiling_s, longest)
        if not (self._fits() and self._ends_within(most) and self._leaves_inputs(longest / _CALLS)):
            return 1.0
        pair = {"eager": lambda: self.run(*self.inputs), "compiled": lambda: compiled(*self.inputs)}
        compiled(*self.inputs)
        least = {label: min(_seconds_of(call) for _ in range(_LOOKS)) for label, call in pair.items()}
        if least["eager"] > _NEAR * least["compiled"] or _CALLS * sum(least.values()) > most:
            return 1.0
        seconds = min(_RACE_S, most)
        found = confirm(pair, "eager", "compiled", [()], seconds=seconds, most_seconds=most)
        speed, level = found.speed_of("eager"), _SHORT_WIN if max(least.values()) < _SHORT_S else 1.0
        return speed if speed > level and found.sure else 1.0

    def _fits(self) -> bool:
        """Whether there is memory for a call with copies of the inputs."""
        free = available_bytes()
        return free is None or bytes_of(self._tensors) + held_bytes(self.module.graph) <= _FREE * free

    def _ends_within(self, seconds: float) -> bool:
        """Whether all calls of a race may end within so many seconds."""
        each_s = least_seconds(self.module, self.inputs, pick_target("cpu").cost_device())
        return 2 * _CALLS * each_s <= seconds

    def _leaves_inputs(self, most_s: float) -> bool:
        """Whether a call on copies leaves its inputs as they are, and takes no more than so many seconds."""
        with torch.inference_mode(False):  # tensors of that mode do not count what is written to them
            copies = [_copied(one) if isinstance(one, Tensor) else one for one in self.inputs]
            written = [one for one in copies if isinstance(one, Tensor)]
            before = [one._version for one in written]
            start = time.perf_counter()
            self.run(*copies)
            took_s = time.perf_counter() - start
            if took_s > most_s or before != [one._version for one in written]:
                return False
            # Not every write is counted: `x.data` has a count of its own, and running statistics have none.
            return all(map(have_same_numbers, written, self._tensors))

    @property
    def _tensors(self) -> list[Tensor]:
        return [one for one in self.inputs if isinstance(one, Tensor)]


@contextmanager
def _same_autocast() -> Iterator[None]:
    """Leave autocast as it is, also where a graph fails between two of its nodes that enter and leave it."""
    kinds = ("cpu", "cuda")
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    depth = _autocast_depth()  # none is added: PyTorch forgets its casts of weights where the outermost ends
    try:
        yield
    finally:
        while _autocast_depth() > depth:
            torch.autocast_decrement_nesting()
        if not depth:
            torch.clear_autocast_cache()
        for kind, enabled, dtype in before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def _seconds_of(call: Program) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _copied(tensor: Tensor) -> Tensor:
    copied: Tensor = torch._prims_common.clone_preserve_strides(tensor.detach())  # type: ignore[no-untyped-call]
    return copied


def _as_number(value: Any) -> Any:
    """Return a symbol as the number that it was when the graph was traced."""
    if isinstance(value, torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value


def _is_plain(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph may be run once more on such inputs, on a CPU, and leave no trace.

    What is written to a tensor that is no input would not be seen.
    """
    known = (int, float, bool, torch.SymFloat, torch.SymBool)  # a size that is a symbol is none of them
    for one in inputs:
        plain = isinstance(one, Tensor) and is_plain(one) and one.is_cpu and one.layout == torch.strided
        if not plain and not isinstance(one, known):
            return False
    return all(
        _leaves_no_trace(node.target) for node in module.graph.nodes if node.op == "call_function"
    ) and not any(
        node.op == "call_module" or (node.op == "get_attr" and _is_tensor(module, str(node.target)))
        for node in module.graph.nodes
    )


def _is_tensor(module: fx.GraphModule, name: str) -> bool:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, Tensor)


def _leaves_no_trace(function: Any) -> bool:
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace in _NAMESPACES
    if isinstance(function, torch._ops.OpOverloadPacket | torch._ops.OperatorBase):
        return str(function).partition(".")[0] in _NAMESPACES
    place = str(getattr(function, "__module__", None) or "torch")
    return _is_in(place, _PLAIN) and not _is_in(place, _TRACES)


def _is_in(place: str, rooms: Sequence[str]) -> bool:
    return any(place == room or place.startswith(f"{room}.") for room in rooms)
