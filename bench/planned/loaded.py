"""One case of `bench.gpu` with its plan: the candidates that the plan gives, on a device that is here."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from superopt.bench.kernels.cases import Case
from superopt.bench.kernels.gpu_cases import PEERS, plan_of
from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.alike import alike_last
from superopt.candidates.candidate import SCHEDULED
from superopt.errors import InputError
from superopt.live.saved import trace_again
from superopt.result import Result, result_from_json
from superopt.result.codec import read_json
from superopt.targets import Target, pick_target

__all__ = ["Loaded", "Settings", "check_device", "load_case", "plan_data"]

_SHARED, _SHARING = "f16", "bf16"  # plans in the one dtype serve the other one as well


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all cases of a run."""

    folder: Path
    dtype: str = "f16"
    trials: int = 16  # candidates of a region, each in one configuration for every kernel
    peers: tuple[str, ...] = PEERS
    seed: int = 0

    @property
    def slow_peers(self) -> tuple[str, ...]:
        """The rivals for which torch.compile compiles many kernels and picks among them."""
        return tuple(name for name in self.peers if "autotune" in name)

    @property
    def quick_peers(self) -> tuple[str, ...]:
        """All other rivals."""
        return tuple(name for name in self.peers if name not in self.slow_peers)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A case with its plan, ready to be raced."""

    case: Case
    result: Result
    traced: Any
    work: tuple[RegionCandidates, ...]
    ready: tuple[str, ...] = ()  # the slow peers whose kernels are compiled

    @property
    def target(self) -> Target:
        """The device that its kernels are for."""
        return self.result.target

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The kind of device that its kernels run on."""
        return "cuda" if self.target.torch_device == "cuda" else "cpu"


def check_device(cases: Sequence[Case], settings: Settings) -> None:
    """Raise InputError before any case is tried if the plans are for a device that is not here."""
    places = [_place(case, settings) for case in cases]
    for name in dict.fromkeys(_planned_for(place) for place in places if place.exists()):
        if not pick_target(name).available:
            raise InputError(f"the plans in {str(settings.folder)!r} are for {name}; {_here()}")


def _planned_for(place: Path) -> str:
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["target"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{place}: it is damaged; `python -m bench.plans` makes it anew") from error


def _here() -> str:
    """Return in words which device is here, and what can be done with it."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device is here: --dry-run and --check need none"
    if find_spec("triton") is None:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability()
    name = f"cuda:{major}{minor}"
    return (
        f"{torch.cuda.get_device_name()} is {name}: make plans for it by"
        f" `python -m bench.plans --device {name} --out FOLDER`, and give --plans FOLDER"
    )


def load_case(case: Case, settings: Settings) -> Loaded:
    """Return a case with the candidates that its plan gives; InputError where there is no good plan."""
    data, place = plan_data(case, settings), _place(case, settings)
    result, saved = result_from_json(data, str(place)), data["regions"]
    work = tuple(
        RegionCandidates(
            plan.goal, tuple(_trials(plan, data["candidates"], result.target, settings.trials)), recalled=True
        )
        for plan, data in zip(result.regions, saved, strict=True)
    )
    if empty := [one.goal.name for one in work if not one.candidates]:
        raise InputError(f"{place}: no candidate for {empty[0]}")
    return Loaded(case, result, trace_again(result, case.function, str(place)), work)


def plan_data(case: Case, settings: Settings) -> Any:
    """Return the plan of a case as plain data; InputError where there is none.

    A case in bf16 that has no plan of its own has the one in fp16, with bf16 in its place.
    """
    place = _place(case, settings)
    if not place.exists():
        raise InputError(f"{case.name} has no plan in {settings.folder}; `python -m bench.plans` makes it")
    data = read_json(place)
    is_own = place == plan_of(case, settings.folder, settings.dtype)
    return data if is_own else _in_dtype(data, settings.dtype)


def _place(case: Case, settings: Settings) -> Path:
    """Return the plan of a case, or the one in fp16 that it shares."""
    own = plan_of(case, settings.folder, settings.dtype)
    return own if settings.dtype != _SHARING or own.exists() else plan_of(case, settings.folder, _SHARED)


def _in_dtype(data: Any, dtype: str) -> Any:
    """Return a plan with another dtype in the place of fp16: in its programs, graphs and ports."""
    if isinstance(data, str):
        return re.sub(rf"\b{_SHARED}\b", dtype, data)
    if isinstance(data, dict):
        return {name: _in_dtype(one, dtype) for name, one in data.items()}
    return [_in_dtype(one, dtype) for one in data] if isinstance(data, list) else data


def _trials(
    plan: RegionCandidates, data: Sequence[Mapping[str, Any]], target: Target, count: int
) -> list[Candidate]:
    """Return the candidates of a plan, then the best of them in other configurations, kernel by kernel.

    Candidates that are like an earlier one come last.
    """
    found, alike = alike_last(replace(one, fate=SCHEDULED) for one in plan.candidates if one.fate.is_sound)
    variants = [
        list(_variants(replace(one, fate=SCHEDULED), saved.get("others") or [], target))
        for one, saved in zip(plan.candidates, data, strict=True)
        if any(one.id == other.id for other in found)
    ]
    for turn in range(max(map(len, variants), default=0)):
        found += [several[turn] for several in variants if turn < len(several)]
    return [*found, *alike][:count]


def _variants(candidate: Candidate, others: Sequence[Sequence[Any]], target: Target) -> Iterator[Candidate]:
    """Yield a candidate with other configurations of one kernel: first the next best of each kernel."""
    for turn in range(max(map(len, others), default=0)):
        for number, several in enumerate(others):
            if turn < len(several):
                config = target.config_from_json(several[turn])
                yield replace(
                    candidate.configured(number, config),
                    id=f"{candidate.id}.{number}.{turn}",
                    variant=f"kernel {number} as guess {turn + 2}",
                    predicted_us=None,
                )
