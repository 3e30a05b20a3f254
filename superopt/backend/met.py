"""Met: the graphs that came by before, whose regions are likely decided: nothing is begun ahead for them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from superopt.backend.options import BackendOptions
from superopt.cache import Cache, Key, Record, key_of, versions

__all__ = ["is_met", "meet", "met_key"]


def met_key(module: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Key:
    """Return the key of a graph of dynamo's, with the sizes of its inputs."""
    told = [str(one.shape) + str(one.dtype) if isinstance(one, Tensor) else str(one) for one in inputs]
    digest = hashlib.sha256("\n".join([module.code, *told]).encode()).hexdigest()
    given = {"backend": "met", "graph": digest, "budget_s": str(options.budget_s), "preset": options.preset}
    return key_of("plan", program="none", device="any", options=given, **versions())


def is_met(key: Key) -> bool:
    """Whether a graph came by before, in this process or an earlier one."""
    return Cache.open().get(key) is not None


def meet(key: Key) -> None:
    """Note that a graph came by."""
    Cache.open().put(key, Record({}, "backend"))
