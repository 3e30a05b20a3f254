"""State: the data that the stages share, about the whole program and about one region."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from superopt.cache import Cache
from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.candidates.order import ConfigurationOrder
from superopt.clock import Clock
from superopt.cost.memory import check_memory
from superopt.errors import InputError, SuperoptError, first_line, kind_and_line
from superopt.fate import Kind
from superopt.funnel.assembly import known_tensors
from superopt.funnel.domain import TRIED, Domain, domain_of, failure, positive_domain
from superopt.ir import Graph
from superopt.options import OptimizeOptions
from superopt.targets import Kernel, Target
from superopt.trace.traced import Traced
from superopt.tune.errors import DeviceLostError
from superopt.tune.first_runs import FirstRuns
from superopt.tune.measure import bytes_of
from superopt.verify.floats.compare import Turned, sample, tensors_of, typical
from superopt.verify.floats.report import FloatReport
from superopt.verify.floats.samples import SMALL_INTEGERS

__all__ = ["LOST", "Context", "Limits", "Meanwhile", "State", "fail", "said"]

log = logging.getLogger("superopt")

LOST = "the device is lost to this process: nothing more is measured"

_RACE_S = 1.0  # seconds reserved for a race, when time runs out
_BUILDERS = 2  # candidates made at a time, where kernels are made and first run in this process


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the candidates of a program are taken."""

    seconds: float  # seconds of racing and tuning, for all regions together
    deadline: float = inf  # the time.monotonic() after which nothing is compiled or raced
    # The time to beat: slower candidates are not chosen, and those far from it are not tuned.
    beat_us: float = inf
    most: int | None = None  # candidates of a region that are compiled
    tune: bool = True  # try other configurations of the best


class Meanwhile(Protocol):
    """Work beside our compilers."""

    def begin(self, state: "State") -> None:
        """Begin the work, once there are inputs."""

    def wait(self) -> None:
        """Wait until it is done."""

    def end(self) -> None:
        """End it, done or not."""


@dataclass(slots=True)
class State:
    """A program whose regions go through the funnel: its settings, inputs and time, and what was chosen."""

    function: Callable[..., Any]  # the function that the kernels must agree with
    traced: Traced
    inputs: tuple[Any, ...]  # once kernels are to run, where the target computes
    target: Target
    options: OptimizeOptions
    limits: Limits
    clock: Clock = field(default_factory=Clock)
    tell: Callable[[str], None] = lambda message: None
    meanwhile: "Meanwhile | None" = None  # work to be done once, while compilers run
    first_runs: FirstRuns | None = None  # processes for first runs, where they are wanted
    builders: int = _BUILDERS
    order: ConfigurationOrder = field(init=False)
    typical: tuple[Any, ...] = ()  # the inputs with numbers as large as those of trained models
    domain: Domain | None = (
        None  # the numbers that the function takes, where it fails on others, or makes NaN
    )
    has_data: bool = True  # whether the inputs are examples with numbers of their own
    known: dict[str, Tensor] = field(default_factory=dict)  # every tensor that enters a region
    kernels: dict[str, Kernel] = field(default_factory=dict)  # the chosen kernels by the names of their goals
    eager: Callable[..., Any] | None = None  # what PyTorch's errors are those of; None: of the function
    turned: Turned | None = None  # results as they are compared in floats, where they lie otherwise
    floats: FloatReport | None = None  # how the program with these kernels compares in floats
    deadline: float = inf  # the time.monotonic() when the current region must be done
    interrupted: bool = False
    lost: bool = False  # whether the device is lost to this process
    unclear: bool = False  # whether the machine was too busy to tell candidates apart

    def __post_init__(self) -> None:
        cache = Cache.open() if self.options.cache and self.measures else None
        self.order = ConfigurationOrder(self.target, cache, seed=self.options.seed)

    @property
    def measures(self) -> bool:
        """Whether kernels run and are timed: the device is here, and that is wanted."""
        return self.target.available and self.options.measure

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Keep what kernels need to run: inputs, and processes for first runs."""
        if not self.measures:
            yield
            return

        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            with self.clock.phase("inputs"):
                if self.target.torch_device == "cpu":
                    check_memory(self.traced.program)
                self.has_data = not any(one.is_meta for one in tensors_of(self.inputs))
                self.inputs = _placed(self.inputs, self.target)
                self.domain = self.domain or positive_domain(self.traced, self.inputs)
                self.typical = self.draw(self.options.seed)
                # Algebra takes all numbers; what else there is may fail on some of those that come up later.
                others = TRIED if self.traced.program.opaque and self.has_data else ()
                drawn = [sample(name, self.inputs, seed=self.options.seed) for name in others]
                errors = (failure(self.function, inputs) for inputs in (self.typical, *drawn))
                if error := next(filter(None, errors), None):
                    self.keep_to_domain(error)
                self.known = known_tensors(self.traced, self.typical)
            size = bytes_of(self.known.values())
            if not self.options.guarded:
                self.first_runs = None
            else:
                self.builders = self.target.builders(size)
                if self.first_runs is not None:
                    self.builders = min(self.builders, self.first_runs.workers)
                else:
                    limit = self.options.limit_seconds
                    self.first_runs = stack.enter_context(
                        FirstRuns(self.builders, self.target.torch_device, limit)
                    )
            yield

    def contexts(self, regions: Sequence[RegionCandidates]) -> "Iterator[Context]":
        """Yield the context of each region; time that a region does not use goes to the regions after it."""
        for at, region in enumerate(regions):
            now = time.monotonic()
            self.deadline = now + (self.limits.deadline - now) / (len(regions) - at)
            ids = {one.id for one in region.candidates}
            yield Context(self, region.goal, region.recalled, 1 / len(regions), ids=ids)

    def draw(self, seed: int) -> tuple[Any, ...]:
        """Return inputs to measure with, that the function takes."""
        drawn = typical(self.inputs, seed=seed)
        return drawn if self.domain is None else self.domain.keep(drawn)

    def keep_to_domain(self, error: Exception) -> None:
        """From now on draw only inputs that the function accepts; it has failed on others.

        A function that fails on its examples too, or has none, is refused, though it could be traced.
        """
        name = self.traced.program.name
        why = kind_and_line(error)
        if not self.has_data:
            raise InputError(
                f"{name}: the function fails on random inputs: {why}; pass tensors with data, which it takes"
            ) from error
        try:
            self.domain = domain_of(self.function, self.inputs, seed=self.options.seed)
        except InputError as refused:
            raise InputError(f"{name}: {refused}") from error
        self.typical = self.draw(self.options.seed)
        log.info("%s: the function takes no other inputs than such as were given: %s", name, why)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline, without the seconds that a race needs."""
        return self.deadline - time.monotonic() - min(self.options.seconds / 2, _RACE_S)

    def fault(self, error: Exception) -> str:
        """Return an error as text, and note whether it has made the device unusable for this process."""
        try:
            self.target.synchronize()
        except Exception:
            self.lost = True
        self.lost |= isinstance(error, DeviceLostError)
        return said(error)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let a first Ctrl-C end the block and skip what would follow; a second one ends the program."""
        if self.interrupted:
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            self.stop()

    def stop(self, why: str = "interrupted: the best so far is what comes back") -> None:
        """Skip all further work, keep the best so far, and log why."""
        self.interrupted = True
        log.warning(why)


@dataclass(slots=True)
class Context:
    """What the stages share for the candidates of one region."""

    state: State
    goal: Graph
    recalled: bool  # whether the candidates come with the configurations that were best
    share: float  # the region's share of the time for all regions
    # Kernels that have run, by the ids of their candidates.
    kernels: dict[str, Kernel] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)  # ids that candidates of the region have
    checked: str | None = None  # the id of the candidate that passed the check in floats
    best_us: float = inf  # the least time that was told of
    # How each kernel may round, where no check in floats follows; None: in any way.
    roundings: Sequence[Collection[Any]] | None = None

    def new_id(self, base: Candidate) -> str:
        """Return an id for a variant of a candidate, which no candidate of the region has."""
        found = next(id for at in count(1) if (id := f"{base.id}/{at}") not in self.ids)
        self.ids.add(found)
        return found

    @property
    def seconds(self) -> float:
        """The seconds of racing and tuning for this region."""
        return self.state.limits.seconds * self.share

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that enter the region, by name."""
        return {port.name: self.state.known[port.name] for port in self.goal.inputs}


def said(error: Exception) -> str:
    """Return the first line of what an error says, with its type where it is none of ours."""
    return first_line(error) if isinstance(error, SuperoptError) else kind_and_line(error)


def fail(candidate: Candidate, stage: str, why: str, kind: Kind = Kind.FAILED) -> Candidate:
    """Return a candidate that is out of the race, and log why."""
    ended = candidate.ended(stage, kind, why or "no message")
    log.info("%s: skip %s: %s", candidate.graph.name, candidate.name, ended.fate.reason)
    return ended


def _placed(inputs: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    """Return inputs on the target's device; a tensor without data is made there."""

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_meta:
            empty = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=target.torch_device
            )
            if value.dtype in SMALL_INTEGERS:
                kind = torch.iinfo(value.dtype)
                random = torch.Generator(target.torch_device).manual_seed(0)
                memory = value.new_empty(0, device=target.torch_device).set_(empty.untyped_storage())
                memory.random_(kind.min, kind.max + 1, generator=random)  # elements may share their place
                return empty
            return empty if value.dtype.is_floating_point else empty.zero_()
        if value.device.type != target.torch_device:
            raise InputError(
                f"an input of shape {list(value.shape)} is on {value.device}, the target is {target.name};"
                f' move it there, or choose target="auto"'
            )
        return value

    return tuple(tree_map(put, inputs))
