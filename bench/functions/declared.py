"""A user's benchmark: a function, the inputs of its calls, and the functions it is measured against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from superopt.errors import InputError

__all__ = ["PEERS", "Declared", "case", "declared_in"]

PEERS = ("eager", "torch.compile")
"""The rivals that `against` can name; any other is given as a function."""

_MARK = "__superopt_case__"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declared:
    """One benchmark. `against` has the baseline, by which runs are compared, and then the other rivals."""

    name: str
    function: Callable[..., Any]
    inputs: str | Callable[[], Any]
    against: tuple[tuple[str, Callable[..., Any] | None], ...]  # a name of PEERS has no function here
    optimize: bool
    floor: float | None

    @property
    def baseline(self) -> str:
        """The name of the rival by which runs are compared."""
        return self.against[0][0]

    @property
    def ours(self) -> str:
        """The name under which the benchmark itself is measured."""
        return "superopt" if self.optimize else self.name


def case(
    *,
    inputs: str | Callable[[], Any],
    against: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = PEERS,
    optimize: bool = True,
    floor: float | None = None,
) -> Callable[[_Function], _Function]:
    """Make a function a benchmark for `superopt bench run FILE`; the function itself stays as it is.

    `inputs` is a text, as in "f32[8,1024] f32[1024]", or a function that returns them.
    `against` names eager, torch.compile, or gives functions; the first is the baseline.
    With `optimize=False` the function is timed as it is, instead of what superopt makes of it.
    `floor` is how many times as fast as the baseline it must be: a run that is surely below it fails.
    """

    def mark(function: _Function) -> _Function:
        name = getattr(function, "__name__", "")
        if not callable(function) or not name:
            raise InputError(f"@case decorates a function, not {function!r}")
        _check(name, inputs, optimize, floor)
        found = Declared(name, function, inputs, _against(name, against, optimize), optimize, floor)
        setattr(function, _MARK, found)
        return function

    return mark


def declared_in(module: ModuleType) -> list[Declared]:
    """Return the benchmarks that a module defines, in their order."""
    found = [getattr(value, _MARK, None) for value in vars(module).values()]
    return [one for one in found if isinstance(one, Declared)]


def _check(name: str, inputs: object, optimize: object, floor: object) -> None:
    if not (isinstance(inputs, str) or callable(inputs)):
        raise InputError(
            f"@case of {name}: inputs is {inputs!r}; give a text, as in"
            ' "f32[8,1024] f32[1024]", or a function that returns the inputs'
        )
    if not isinstance(optimize, bool):
        raise InputError(f"@case of {name}: optimize is {optimize!r}; give True or False")
    if floor is not None and (isinstance(floor, bool) or not isinstance(floor, int | float) or not floor > 0):
        raise InputError(f"@case of {name}: floor is {floor!r}; give a number above 0, as in 1.2")


def _against(name: str, given: Any, optimize: bool) -> tuple[tuple[str, Callable[..., Any] | None], ...]:
    several = (given,) if isinstance(given, str) or callable(given) else tuple(given)
    found: dict[str, Callable[..., Any] | None] = {}
    for one in several:
        if isinstance(one, str):
            if one not in PEERS:
                raise InputError(
                    f"@case of {name}: against has {one!r}; give {' or '.join(PEERS)}, or a function"
                )
            found[one] = None
        elif callable(one):
            found[getattr(one, "__name__", type(one).__name__)] = one
        else:
            raise InputError(f"@case of {name}: against has {one!r}, which is no function")
    if not found:
        raise InputError(f"@case of {name}: against is empty; the first of it is the baseline")
    if not optimize and next(iter(found.values())) is None:
        raise InputError(
            f"@case of {name}: with optimize=False the function is what PyTorch runs;"
            " give against= another function"
        )
    if set(found) & {"superopt", name}:
        raise InputError(f"@case of {name}: against has a function of the name {name!r} or 'superopt'")
    return tuple(found.items())
