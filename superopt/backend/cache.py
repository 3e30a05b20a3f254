"""Cache: what the backend keeps for later processes: decisions, the graphs it has seen, and an epoch.

Inductor keeps compiled graphs. A graph in which a region was left for want of time must not come back once
the region has a plan, so Inductor's key has the epoch, which changes when such a region is taken later.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from torch import Tensor, fx

from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region, draft_of
from superopt.backend.region_plan import plan_of
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.candidates.typed import typed_fields
from superopt.errors import InputError, SuperoptError, first_line
from superopt.ir import print_graph
from superopt.weights.division import Weights

__all__ = [
    "epoch",
    "graph_key",
    "is_seen",
    "keep",
    "known_decision",
    "narrower_decision",
    "next_epoch",
    "note_seen",
    "recorded",
    "waiting_in",
]

log = logging.getLogger("superopt")

_EPOCH_BITS = 48

# The fields of a decision that later processes read.
_KEPT = (
    *("taken", "why", "before_us", "before_is_least", "after_us"),
    *("verdict", "plan", "open", "final", "budget_s"),
)


def known_decision(region: Region, ledger: Ledger) -> Decision | None:
    """Return the decision on a region that was made before, in this process or an earlier one."""
    found = ledger.known.get(region.key.digest)
    if found is None and ledger.options.cache:
        found = _recalled(Cache.open(), region, draft_of(region), ledger.options)
        if found is not None:
            ledger.known[region.key.digest] = found
    return found


def narrower_decision(region: Region, ledger: Ledger) -> Decision | None:
    """Return the decision to take a region under a policy that lets less be made of weights, if there is one.

    Its plan is a choice under this policy, too, and what is chosen here must be faster.
    """
    options = ledger.options
    policies: tuple[Weights, ...] = get_args(Weights)
    for weights in reversed(policies[: policies.index(options.weights)] if options.cache else ()):
        parts = dict(region.key.parts)
        parts["options"] = {**parts["options"], "weights": weights}
        key = key_of("plan", **parts)
        as_kept = replace(options, budget_s=0.0, retry=False)  # even if more time may find more
        found = _recalled(Cache.open(), replace(region, key=key), draft_of(region), as_kept)
        if found is not None and found.taken:
            return replace(found, open=True)  # what else may be made of weights here was not tried
    return None


def keep(found: Decision, region: Region, ledger: Ledger) -> None:
    """Note a decision for this model, and for later processes.

    A region left by a budget of 0 is recorded as open, since Inductor caches its graph without our kernels.
    """
    ledger.known[region.key.digest] = found
    options = ledger.options
    if not options.cache:
        return
    cache = Cache.open()
    before = cache.get(region.key)
    if before is not None and (options.budget_s == 0 or _is_better_known(before, found, options)):
        return
    data = {name: getattr(found, name) for name in _KEPT}
    cache.put(region.key, Record(data, found.operators))
    if before is not None and _is_renewed(before, found):
        # The graphs that Inductor has cached lack these kernels, and so does one that is compiled before the
        # decision can be read: the epoch changes after that.
        next_epoch()


def _is_better_known(before: Record, found: Decision, options: BackendOptions) -> bool:
    """Whether the recorded decision had a large budget, and the new one has not."""
    return bool(before.data.get("final")) and not (found.final or options.retry)


def _is_renewed(before: Record, found: Decision) -> bool:
    """Whether a decision makes what Inductor keeps of a graph out of date."""
    left = bool(before.data.get("open"))
    return found.taken and (left or (found.final and before.data.get("plan") != found.plan))


def recorded(cache: Cache, key: Key) -> Mapping[str, Any] | None:
    """Return what the cache keeps of the decision on a region; its plan is not proven yet."""
    record = cache.get(key)
    if record is None:
        return None
    try:
        return typed_fields(Decision, record.data, _KEPT)
    except InputError:
        return None


def _recalled(cache: Cache, region: Region, draft: Decision, options: BackendOptions) -> Decision | None:
    """Return an earlier decision, unless there is more time for it now; a plan is proven equal again."""
    data = recorded(cache, region.key)
    if data is None:
        return None
    found = replace(draft, recalled=True, **data)
    budget_s = options.budget_s
    more = found.budget_s == 0 if budget_s is None else budget_s > found.budget_s
    if found.open and (more or options.retry):
        return None
    if not found.taken and found.plan is None:
        return found
    try:
        plan = plan_of(str(found.plan))
        if print_graph(plan.goal) != print_graph(region.goal):
            raise SuperoptError("it is for another region")
        plan.prove()
    except SuperoptError as error:
        log.warning("cache: a plan of %s is not used: %s", found.operators, first_line(error))
        return None
    return found


# -- graphs


def graph_key(module: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Key:
    """Return the key of a graph of dynamo's, with the sizes of its inputs."""
    told = [str(one.shape) + str(one.dtype) if isinstance(one, Tensor) else str(one) for one in inputs]
    digest = hashlib.sha256("\n".join([module.code, *told]).encode()).hexdigest()
    given = {"backend": "seen", "graph": digest, "budget_s": str(options.budget_s), "preset": options.preset}
    return key_of("plan", program="none", device="any", options=given, **versions())


def is_seen(key: Key) -> bool:
    """Whether a graph was compiled before, in this process or an earlier one."""
    return Cache.open().get(key) is not None


def note_seen(key: Key, waiting: Iterable[Key] = ()) -> None:
    """Note that a graph is compiled, and which of its regions wait for more time."""
    Cache.open().put(key, Record({"waiting": [one.text for one in waiting]}, "backend"))


def waiting_in(key: Key) -> dict[str, Key]:
    """Return the keys of the regions of a graph that waited when it was compiled, by their digests."""
    record = Cache.open().get(key)
    texts = record.data.get("waiting", []) if record else []
    try:
        keys = [key_of("plan", **json.loads(text)) for text in texts]
    except (TypeError, ValueError, InputError):
        return {}
    return {one.digest: one for one in keys}


def epoch() -> int:
    """Return a number that grows as often as a region that was once left for want of time is taken later.

    It begins anywhere, so that graphs that Inductor has kept are not found once this cache is emptied.
    """
    if (found := _kept_epoch()) is None:
        Cache.open().put(_epoch_key(), Record({"epoch": secrets.randbits(_EPOCH_BITS)}, "backend"))
        found = _kept_epoch()  # where nothing can be written, nothing is kept of decisions either
    return found or 0


def _kept_epoch() -> int | None:
    record = Cache.open().get(_epoch_key())
    found = record.data.get("epoch") if record else None
    return found if isinstance(found, int) else None


def next_epoch() -> None:
    """Change Inductor's key, so that the graphs it has cached so far are not found again."""
    Cache.open().put(_epoch_key(), Record({"epoch": epoch() + 1}, "backend"))


def _epoch_key() -> Key:
    return key_of("plan", program="none", device="any", options={"backend": "epoch"}, **versions())
