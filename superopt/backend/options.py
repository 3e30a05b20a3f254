"""Options: what `torch.compile(model, backend="superopt", options={...})` takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from superopt.errors import InputError
from superopt.plans.plan import PRESETS

__all__ = ["BackendOptions", "read_options"]

_MEANINGS = {
    "budget_s": "seconds of search and tuning for all graphs of a model, 0 to use only what is cached",
    "preset": f"how widely to tune: {' or '.join(PRESETS)}",
    "report": "a path: where to write, as JSON, what was decided for each region",
    "verify": "whether each taken region is checked against float64 once more as it will be called",
    "cache": "whether to use and keep the decisions of earlier runs",
    "inductor": "a dict of options for Inductor, which compiles all the rest",
}


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The settings of the backend; `read_options` makes them from the dict that a user gives."""

    budget_s: float = 60.0
    preset: str = "quick"
    report: Path | None = None
    verify: bool = True
    cache: bool = True
    inductor: Mapping[str, Any] = field(default_factory=dict)


def read_options(given: Mapping[str, Any] | None) -> BackendOptions:
    """Return the settings of a dict, or raise InputError with all that are valid."""
    given = dict(given or {})
    known = [one.name for one in fields(BackendOptions)]
    if unknown := [str(name) for name in given if name not in known]:
        listed = "; ".join(f"{name}: {_MEANINGS[name]}" for name in known)
        raise InputError(f"the superopt backend has no option {unknown[0]!r}; valid are {listed}")
    budget = given.get("budget_s", 60.0)
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < float("inf"):
        raise _wrong("budget_s", budget)
    preset = given.get("preset", "quick")
    if preset not in PRESETS:
        raise _wrong("preset", preset)
    report = given.get("report")
    if report is not None and not isinstance(report, str | Path):
        raise _wrong("report", report)
    for name in ("verify", "cache"):
        if not isinstance(given.get(name, True), bool):
            raise _wrong(name, given[name])
    inductor = given.get("inductor", {})
    if not isinstance(inductor, Mapping):
        raise _wrong("inductor", inductor)
    return BackendOptions(
        float(budget),
        preset,
        None if report is None else Path(report),
        given.get("verify", True),
        given.get("cache", True),
        dict(inductor),
    )


def _wrong(name: str, value: Any) -> InputError:
    return InputError(f"{name} is {value!r}; it is {_MEANINGS[name]}")
