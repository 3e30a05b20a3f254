"""Rivals: the ways of PyTorch to compute a function, or a region of one, which ours must beat."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import first_line
from superopt.targets import Target

__all__ = [
    "EAGER",
    "INDUCTOR",
    "LIBRARY_CALLS",
    "PEERS",
    "RIVALS",
    "Function",
    "Rival",
    "rivals_of",
]

log = logging.getLogger("superopt")

Function = Callable[..., Any]

Maker = Callable[[Any, Sequence[tuple[Any, ...]], Mapping[str, Any]], Function]
"""Makes a contender of a function, for inputs several times over, with some options of Inductor's."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A way of PyTorch to compute a function, or a bound of it."""

    name: str
    make: Maker
    compiles: bool = True  # whether it needs a compiler, which takes a while and may fail
    devices: tuple[str, ...] = ("cpu", "cuda")


def _by_torch_compile(mode: str | None) -> Maker:
    """Return what compiles a function in a mode of torch.compile.

    Never with CUDA graphs of its own: they copy the inputs at each call, cannot be part of the graphs that
    a race makes of all contenders alike, and give out memory that the next call overwrites.
    """

    def compiled(function: Function, copies: object, options: object) -> Function:
        import torch

        return torch.compile(function, mode=mode)

    return compiled


def _by_inductor(module: Any, copies: Sequence[tuple[Any, ...]], options: Mapping[str, Any]) -> Function:
    from superopt.rivals.inductor import compiled_by_inductor

    return compiled_by_inductor(module, copies[0], options)


def _by_library(module: Any, copies: Sequence[tuple[Any, ...]], options: object) -> Function:
    from superopt.rivals.library_calls import LibraryCalls

    return LibraryCalls(module, copies)


EAGER = Rival("eager", lambda function, copies, options: function, compiles=False)
LIBRARY_CALLS = Rival("library calls", _by_library, compiles=False)
INDUCTOR = Rival("inductor", _by_inductor)

RIVALS = (
    EAGER,
    Rival("torch.compile", _by_torch_compile(None)),
    Rival("torch.compile max-autotune", _by_torch_compile("max-autotune-no-cudagraphs"), devices=("cuda",)),
)
"""The rivals of a program."""


PEERS = {one.name: one for one in RIVALS}
"""The rivals of a program by name."""


def rivals_of(
    function: Function,
    inputs: Sequence[Any],
    target: Target,
    *,
    compiled: bool,
    tell: Callable[[str], None],
) -> dict[str, Function]:
    """Return the contenders that race on a target, each called once; with `compiled`, compilers too."""
    found: dict[str, Function] = {}
    for one in RIVALS:
        if target.torch_device not in one.devices or (one.compiles and not compiled):
            continue
        if one.compiles:
            tell(one.name)
        try:
            contender = one.make(function, [tuple(inputs)], {})
            if one.compiles:
                contender(*inputs)
        except Exception as error:  # whatever stops a compiler here must not stop us
            log.warning("%s does not race: %s", one.name, first_line(error))
            continue
        found[one.name] = contender
    return found
