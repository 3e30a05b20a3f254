"""Words: why two programs are neither shown to be equal nor to be different, as a user reads it."""

from collections.abc import Collection, Iterable
from math import ceil, log2

__all__ = ["called", "functions", "knows_in_part", "only_in_one", "too_likely"]

_SYMBOLS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!="}
_OWN = frozenset({"guard"})  # functions of the algebra itself, which no program calls
_MOST_NAMED = 6


def called(targets: Iterable[str]) -> str:
    """Return operators as a user knows them: `sort` for `aten.sort.default`."""
    return _listed(dict.fromkeys(_plain(target) for target in targets))


def _plain(target: str) -> str:
    """Return one operator as a user knows it."""
    name = target.removeprefix("aten.").partition(".")[0] if target.startswith("aten.") else target
    return _SYMBOLS.get(name, name.strip("_"))


def functions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of a proof that the programs themselves call, in order."""
    return tuple(sorted(set(names) - _OWN))


def knows_in_part(*, ordered: bool, integers: bool, names: Collection[str]) -> str:
    """Return why a difference in the arithmetic of a proof is none of real numbers yet."""
    parts = ["comparisons and maxima"] if ordered else []
    parts += ["integers"] if integers else []
    parts += functions(names)
    some = f", which knows only some laws of {_listed(parts)}" if parts else ""
    return f"no proof: the results differ in exact arithmetic at random{some}; on real numbers they may agree"


def too_likely(bound: float) -> str:
    """Return that random tests agree, and are not enough."""
    most = "" if bound >= 1 else f": the chance of error is below 2^{ceil(log2(bound))} only, not below 2^-40"
    return f"no proof: random tests agree, but prove too little with so many comparisons or terms{most}"


def only_in_one(targets: Iterable[str]) -> str:
    """Return which operators have no partner in the other program."""
    return (
        f"only one of the programs calls {called(targets)}, or calls it with other tensors;"
        " a proof knows only that equal calls give equal results"
    )


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _MOST_NAMED
    return ", ".join(shown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
