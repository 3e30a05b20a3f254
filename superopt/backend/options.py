"""Options: what `torch.compile(model, backend="superopt", options={...})` takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from superopt.errors import InputError
from superopt.options import PRESETS

__all__ = ["BackendOptions", "mode_options", "read_options"]

_MEANINGS = {
    "budget_s": "seconds of search and tuning for all graphs of a model, 0 to use only what is cached;"
    " by default 0.7 of what Inductor is expected to take, and what it then saves, at most 60",
    "preset": f"how widely to tune: {' or '.join(PRESETS)}",
    "report": "a path: where to write, as JSON, what was decided for each region",
    "verify": "whether each taken region is checked against float64 once more as it will be called",
    "cache": "whether to use and keep the decisions of earlier runs",
    "retry": "whether to look again at regions for which earlier runs had no time",
    "tune": "what becomes of the regions that the budget leaves: off, later (`superopt tune --pending`),"
    " or background, a process of low priority beside the program",
    "inductor": "a dict of options for Inductor, which compiles all the rest",
}


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The settings of the backend; `read_options` makes them from the dict that a user gives."""

    budget_s: float | None = None
    preset: str = "quick"
    report: Path | None = None
    verify: bool = True
    cache: bool = True
    retry: bool = False
    inductor: Mapping[str, Any] = field(default_factory=dict)
    tune: str | None = None


def read_options(given: Any) -> BackendOptions:
    """Return the settings of a dict, or raise InputError with all that are valid."""
    known = [one.name for one in fields(BackendOptions)]
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise options_error(f"options is {given!r}; it is a dict of {', '.join(known)}")
    if unknown := [str(name) for name in given if name not in known]:
        listed = "\n".join(f"  {name}: {_MEANINGS[name]}" for name in known)
        raise options_error(
            f"the superopt backend has no {_named(unknown, known)}; valid are {', '.join(known)}\n{listed}"
        )
    budget = given.get("budget_s")
    if budget is not None and (
        isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < float("inf")
    ):
        raise _wrong("budget_s", budget)
    preset = given.get("preset", "quick")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _wrong("preset", preset)
    report = given.get("report")
    if report is not None and not isinstance(report, str | Path):
        raise _wrong("report", report)
    for name in ("verify", "cache", "retry"):
        if not isinstance(given.get(name, False), bool):
            raise _wrong(name, given[name])
    tune = given.get("tune")
    if tune is not None and tune not in ("off", "later", "background"):
        raise _wrong("tune", tune)
    inductor = given.get("inductor", {})
    if not isinstance(inductor, Mapping):
        raise _wrong("inductor", inductor)
    check_inductor(inductor)
    return BackendOptions(
        None if budget is None else float(budget),
        preset,
        None if report is None else Path(report),
        given.get("verify", True),
        given.get("cache", True),
        given.get("retry", False),
        {str(name).replace("-", "_"): value for name, value in inductor.items()},
        tune,
    )


def mode_options(mode: str) -> dict[str, Any]:
    """Return Inductor's options for one of its modes, or raise InputError with all that there are."""
    from torch._inductor import list_mode_options

    known = list_mode_options()
    if mode not in known:
        raise options_error(f"mode is {mode!r}; it is one of {', '.join(known)}")
    return dict(known[mode])


def check_inductor(given: Mapping[str, Any]) -> None:
    """Raise InputError for options that Inductor does not have, or whose values are not of their type."""
    from torch._inductor import config, list_options

    if not given:
        return
    known = list_options()
    if unknown := [str(name) for name in given if str(name).replace("-", "_") not in known]:
        every = "torch._inductor.list_options() has all"
        raise options_error(f"inductor: Inductor has no {_named(unknown, known)}; {every}")
    for name, value in given.items():
        kind = config.get_type(str(name).replace("-", "_"))  # type: ignore[attr-defined]
        if kind in (bool, int) and not isinstance(value, kind):  # others may be of several types
            raise options_error(f"inductor: {name} is {value!r}; it is of type {kind.__name__}")


def _named(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Return in words all names that are not known, each with the one that may be meant."""
    told = []
    for name in unknown:
        close = get_close_matches(name, known, 1)
        told.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    return f"option{'s' * (len(told) > 1)} {', '.join(told)}"


def _wrong(name: str, value: Any) -> InputError:
    return options_error(f"{name} is {value!r}; it is {_MEANINGS[name]}")


def options_error(message: str) -> InputError:
    """Return an InputError that torch.compile hands to the user as it is, and not as a fault of a backend."""
    try:
        from torch._dynamo.exc import ShortenTraceback
    except ImportError:  # a version of PyTorch that has no such thing wraps it
        return InputError(message)

    class OptionsError(InputError, ShortenTraceback):
        """An option of the backend is wrong."""

    OptionsError.__module__, OptionsError.__qualname__ = InputError.__module__, InputError.__qualname__
    return OptionsError(message, first_useful_frame=None)
