"""Options: what `torch.compile(model, backend="superopt", options={...})` takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from superopt.driver import SearchOptions
from superopt.errors import InputError
from superopt.options import PRESETS, OptimizeOptions
from superopt.weights.division import Weights

__all__ = ["BackendOptions", "Memory", "mode_options", "read_options"]

Memory = Literal["fast", "balanced"] | int
"""What less memory may cost: no time, 5% of it, or what keeps a step's tensors under a number of bytes."""

_GRAPHS = {"quick": 2, "full": 6}  # graphs of a search that are made into kernels, which takes long
_UNSEARCHED_S = 1e-9  # the e-graph is not even begun

_MEANINGS = {
    "budget_s": "seconds of search and tuning for all graphs of a model, 0 to use only what is cached;"
    " by default 0.85 of what Inductor is expected to take, and what it then saves, at most 60",
    "preset": f"how widely to tune: {' or '.join(PRESETS)}",
    "report": "a path: where to write, as JSON, what was decided for each region",
    "verify": "whether each taken region is checked against float64 once more as it will be called",
    "cache": "whether to use and keep the decisions of earlier runs",
    "retry": "whether to look again at regions for which earlier runs had no time",
    "tune": "what becomes of the regions that the budget leaves: off, later (`superopt tune --pending`),"
    " or background, a process of low priority beside the program",
    "weights": "what may be made of weights once, before all calls: nothing (live), small tensors (default),"
    " or any that makes calls faster (frozen)",
    "memory": "what a training step may pay for less memory: no time (fast), 5% of it (balanced), or as much"
    " as holds it under a number of bytes, without its inputs, results and gradients",
    "inductor": "a dict of options for Inductor, which compiles all the rest",
}


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_VALID: Mapping[str, Callable[[Any], bool]] = {
    "budget_s": lambda value: (
        value is None
        or (isinstance(value, int | float) and not _is_flag(value) and 0 <= value < float("inf"))
    ),
    "preset": lambda value: isinstance(value, str) and value in PRESETS,
    "report": lambda value: value is None or isinstance(value, str | Path),
    "verify": _is_flag,
    "cache": _is_flag,
    "retry": _is_flag,
    "tune": lambda value: value in (None, "off", "later", "background"),
    "weights": lambda value: value in get_args(Weights),
    "memory": lambda value: (
        value in ("fast", "balanced") or (isinstance(value, int) and not _is_flag(value) and value > 0)
    ),
    "inductor": lambda value: isinstance(value, Mapping),
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
    weights: Weights = "default"
    memory: Memory = "fast"

    def optimizing(self, target: str, search_s: float, racing_s: float) -> OptimizeOptions:
        """Return the options by which a region is searched and its kernels race, for so many seconds each."""
        return OptimizeOptions(
            target=target,
            preset=self.preset,  # type: ignore[arg-type]
            seconds=racing_s,
            graphs=_GRAPHS[self.preset],
            torch_compile=False,
            cache=self.cache,
            weights=self.weights,
            search=SearchOptions(seconds=search_s or _UNSEARCHED_S),
        )


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
    for name, value in given.items():
        if not _VALID[name](value):
            raise options_error(f"{name} is {value!r}; it is {_MEANINGS[name]}")
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    check_inductor(settings.get("inductor", {}))
    for name, made in (("budget_s", float), ("report", Path), ("inductor", _underscored)):
        if name in settings:
            settings[name] = made(settings[name])
    return BackendOptions(**settings)


def _underscored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of Inductor's with the names that it uses inside."""
    return {str(name).replace("-", "_"): value for name, value in options.items()}


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
