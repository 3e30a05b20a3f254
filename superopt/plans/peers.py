"""Peers: the programs of PyTorch that ours must beat."""

import logging
from collections.abc import Callable
from typing import Any

from superopt.targets import Target

__all__ = ["PEERS", "compiled_by_torch", "peers"]

log = logging.getLogger("superopt")

PEERS = ("eager", "torch.compile", "torch.compile max-autotune")
"""Every peer by name."""

_MODES = {"torch.compile": None, "torch.compile max-autotune": "max-autotune-no-cudagraphs"}


def peers(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    target: Target,
    *,
    compiled: bool,
    tell: Callable[[str], None],
) -> dict[str, Callable[..., Any]]:
    """Return eager PyTorch and, where it works and is wanted, what torch.compile makes of a function."""
    found: dict[str, Callable[..., Any]] = {"eager": function}
    if not compiled:
        return found
    for name in PEERS[1:] if target.torch_device == "cuda" else PEERS[1:2]:
        tell(name)
        try:
            found[name] = compiled_by_torch(function, name)
            found[name](*inputs)
        except Exception as error:  # whatever stops Inductor here must not stop us
            log.warning("%s does not race: %s", name, str(error).splitlines()[0] if str(error) else error)
            found.pop(name, None)
    return found


def compiled_by_torch(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return what torch.compile makes of a function, under the name of a peer.

    Never with CUDA graphs of its own: they copy the inputs at each call, cannot be part of the graphs that
    a race makes of all contenders alike, and give out memory that the next call overwrites.
    """
    import torch

    return torch.compile(function, mode=_MODES[name])
