"""Queue: what a budget left undone, as records of the cache: regions, and graphs that did not race whole.

There is at most one record for each key. It holds what the work needs, and nothing of the user's: operators,
layouts, options, and the gain that is expected. The cache sees to the rest: records are written whole, a
damaged one is dropped, and a file that cannot be written leaves the queue as it is.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

import torch

from superopt.backend.cache import recorded
from superopt.backend.checks.whole import WholeRace
from superopt.backend.decision import Ledger
from superopt.backend.deferred.graph_data import data_of_graph
from superopt.backend.deferred.portable import Unportable, data_of
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region, draft_of
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.candidates.typed import typed_fields
from superopt.errors import InputError
from superopt.options import PRESETS
from superopt.rivals.inductor import PASS, settings_text
from superopt.targets import pick_target
from superopt.targets.products import ROUNDINGS, rounded_products, rounding_products
from superopt.targets.tf32 import is_tf32, tf32_products
from superopt.weights.division import Weights

__all__ = [
    "LARGE_S",
    "MOST_ITEMS",
    "Pending",
    "bound_queue",
    "decided_key",
    "defer",
    "defer_graph",
    "pending_items",
    "pending_key",
    "products_as_in",
    "put_back",
    "remove",
]

log = logging.getLogger("superopt")

LARGE_S = 120.0
"""Seconds that a pending region gets at most."""

MOST_ITEMS = 256
"""The most regions that wait; the regions with the least to gain give way."""

_VERSION = 5
_MOST_BYTES = 4 << 20  # the most that one record may take
_BOTH_WAYS = 2.0  # times as long as Inductor takes for a graph its race takes at least
_LARGEST = sys.float_info.max  # JSON has larger whole numbers
_NUMBERS = (bool, int, float, type(None))
_WORDS = re.compile(r"[A-Z_,]{0,80}")  # such as ATEN,CPP
_SETTINGS = frozenset(
    {
        *(
            "max_autotune",
            "max_autotune_gemm",
            "max_autotune_gemm_backends",
            "max_autotune_gemm_search_space",
        ),
        *(
            "max_autotune_pointwise",
            "coordinate_descent_tuning",
            "triton.cudagraphs",
            "triton.cudagraph_trees",
        ),
        *("epilogue_fusion", "aggressive_fusion", "max_fusion_size", "pattern_matcher", "split_reductions"),
        *("freezing", "layout_optimization", "shape_padding", "comprehensive_padding", "permute_fusion"),
        *("emulate_precision_casts", "fx_graph_cache", "cpp.simdlen", "cpp.min_chunk_size", "cpp.threads"),
    }
)
"""The settings of Inductor that an item may hold: none of them names a program, a file or code.

An item may come from somebody else, by `superopt cache import`, and other settings name a compiler.
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A region or a graph that waits: its key in the queue, its description, and its expected gain."""

    key: Key
    operators: str
    inputs: str
    gain_us: float  # about how much of one step of the model may be gained
    begun: int  # how often work on it began and did not end, as when it crashes the process
    threads: int
    preset: str
    verify: bool
    inductor: Mapping[str, Any]
    data: Mapping[str, Any]  # see `portable` and `graph_data`
    weights: Weights = "default"
    whole: bool = False  # whether it is a graph, and not a region
    after: tuple[str, ...] = ()  # the digests of the keys here of regions that should be decided before
    least_s: float = 0.0  # about how long it takes at least
    tf32: bool = False  # whether torch's own products of fp32 were in tf32
    rounded: Mapping[str, str] = field(default_factory=dict)  # which ones were rounded on a CPU, and to what

    @property
    def device(self) -> str:
        """The type of device that it is for; whether there is one here is another matter."""
        inputs = self.data.get("inputs")
        told = [one for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
        return next((str(one["device"]) for one in told if "device" in one), "cpu")

    @property
    def options(self) -> BackendOptions:
        """The settings by which it is decided."""
        return BackendOptions(
            LARGE_S,
            self.preset,
            verify=self.verify,
            cache=True,
            retry=False,
            inductor=self.inductor,
            weights=self.weights,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record's data."""
        return {"version": _VERSION, **{name: getattr(self, name) for name in _KEPT}}


_KEPT = tuple(one.name for one in fields(Pending) if one.name != "key")


def pending_key(key: Key) -> Key:
    """Return the key in the queue of that of a region or a graph: it depends on the same parts."""
    return key_of("pending", **key.parts)


def decided_key(item: Pending) -> Key:
    """Return the key of the decision on the region, or of the verdict on the graph, that waits."""
    return key_of("plan", **item.key.parts)


def defer(region: Region, gain_us: float, ledger: Ledger) -> bool:
    """Queue a region that a budget left undone; return whether it waits now.

    A region that waits already keeps the larger gain; a region that had its large budget is done.
    """
    draft = draft_of(region)
    try:
        item = _item(region.key, draft.operators, draft.inputs, gain_us, ledger, data_of(region.subgraph))
    except Unportable as error:
        log.info("%s is not queued: %s", draft.operators, error)
        return False
    with Cache.open() as cache:
        if is_done(cache, region.key):
            return False
        known = _item_of(item.key, cache.get(item.key))
        if known is not None and known.gain_us >= item.gain_us:
            return True
        return _put(cache, replace(item, begun=known.begun if known else 0))


def defer_graph(
    race: WholeRace, gain_us: float, waiting: Collection[Key], regions: int, ledger: Ledger
) -> bool:
    """Queue the race of a whole graph, for when its waiting regions are decided; return whether it waits."""
    operators, count = f"a whole graph with {regions} regions", len(race.graph.find_nodes(op="placeholder"))
    try:
        data = data_of_graph(race.graph, race.weights)
        item = _item(race.key, operators, f"{count} inputs", gain_us, ledger, data)
    except Unportable as error:
        log.info("%s is not queued: %s", operators, error)
        return False
    after = tuple(sorted(pending_key(key).digest for key in waiting))
    least_s = round(_BOTH_WAYS * race.compiling_s, 1)
    with Cache.open() as cache:
        known = _item_of(item.key, cache.get(item.key))
        begun = known.begun if known else 0
        return _put(cache, replace(item, whole=True, after=after, least_s=least_s, begun=begun))


def _item(
    key: Key, operators: str, inputs: str, gain_us: float, ledger: Ledger, data: Mapping[str, Any]
) -> Pending:
    """Return an item, or raise Unportable where another process could not work on it."""
    options = ledger.options
    inductor = {name: value for name, value in options.inductor.items() if name != PASS}
    if not options.cache or not _are_portable(inductor):
        raise Unportable("there is no cache, or Inductor has settings that do not go to other processes")
    return Pending(
        pending_key(key),
        operators,
        inputs,
        round(gain_us, 3) if isfinite(gain_us) else 0.0,
        0,
        torch.get_num_threads(),
        options.preset,
        options.verify,
        inductor,
        data,
        options.weights,
        tf32=is_tf32(),
        rounded=rounded_products(),
    )


def _are_portable(settings: Mapping[str, Any]) -> bool:
    """Whether settings are known names with numbers or words; whoever reads an item asks again."""
    return all(
        name in _SETTINGS
        and (isinstance(one, _NUMBERS) or (isinstance(one, str) and bool(_WORDS.fullmatch(one))))
        for name, one in settings.items()
    )


def _put(cache: Cache, item: Pending) -> bool:
    record = Record(item.to_json(), item.operators)
    if len(str(record.data)) > _MOST_BYTES:
        return False
    cache.put(item.key, record)
    return True


def bound_queue() -> None:
    """Remove the regions with the least to gain, where too many wait of this version of superopt."""
    with Cache.open() as cache:
        own = [one for one in _sorted(cache) if one.key.parts["superopt"] == versions()["superopt"]]
        for least in own[MOST_ITEMS:]:
            cache.remove(least.key)


def is_done(cache: Cache, key: Key) -> bool:
    """Whether a region was decided with a large budget of its own."""
    data = recorded(cache, key)
    return data is not None and bool(data["final"])


def pending_items() -> list[Pending]:
    """Return what waits of this machine and these versions, the largest gain first.

    A record that cannot be read, as of another version, is left out; it gives way in time.
    """
    with Cache.open() as cache:
        return [one for one in _sorted(cache) if _is_of_here(one)]


def put_back(item: Pending) -> None:
    """Write an item as it is now, unless somebody removed it meanwhile."""
    with Cache.open() as cache:
        if cache.get(item.key) is not None:
            cache.put(item.key, Record(item.to_json(), item.operators))


def remove(item: Pending) -> None:
    """Take an item out of the queue."""
    with Cache.open() as cache:
        cache.remove(item.key)


def _sorted(cache: Cache) -> list[Pending]:
    found = []
    for parts, record in cache.records("pending"):
        with contextlib.suppress(InputError):  # the key is of another version
            item = _item_of(key_of("pending", **parts), record)
            if item is not None:
                found.append(item)
    return sorted(found, key=lambda one: (-one.gain_us, one.key.digest))


@contextlib.contextmanager
def products_as_in(item: Pending) -> Iterator[None]:
    """Let PyTorch round products of fp32 for a while as it did where an item was queued."""
    with tf32_products(item.tf32), rounding_products(item.rounded):
        yield


def _is_of_here(item: Pending) -> bool:
    """Whether a region can be decided in this process, with its settings, versions and processor."""

    parts, threads = item.key.parts, torch.get_num_threads()
    try:
        torch.set_num_threads(item.threads)
        with products_as_in(item):
            here = {**versions(), **pick_target(item.device).key_parts()}
    except InputError:  # there is no such device
        return False
    finally:
        torch.set_num_threads(threads)
    told = parts.get("options")
    by_inductor = told.get("inductor") if isinstance(told, dict) else None
    defaults = settings_text({}).items()  # what environment variables say here
    same = isinstance(by_inductor, dict) and defaults <= by_inductor.items()
    return same and all(parts.get(name) == value for name, value in here.items())


def _item_of(key: Key, record: Record | None) -> Pending | None:
    """Return the item of a record, or None where the record is damaged or of another version."""
    if record is None or record.data.get("version") != _VERSION:
        return None
    try:
        item = Pending(key, **typed_fields(Pending, record.data, _KEPT))
    except InputError:
        return None
    sound = (
        1 <= item.threads <= 4096
        and item.begun >= 0
        and abs(item.gain_us) <= _LARGEST
        and abs(item.least_s) <= _LARGEST
        and item.preset in PRESETS
        and all(isinstance(one, str) for one in item.after)
        and _are_portable(item.inductor)
        and all(one in ROUNDINGS for one in item.rounded.values())
    )
    return replace(item, after=tuple(item.after)) if sound else None
