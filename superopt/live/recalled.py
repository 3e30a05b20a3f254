"""Recalled: what an identical earlier call found and measured, as a program again, with no new race.

Identical means: the same program, inputs of the same form, and the same options, device, threads and
versions. What is recalled is proven equal to its program again, as a result from a file is. Only programs
that are all algebra and hold no tensors of their own are kept: a key does not tell what others depend on.

A key names the processor, not its clock, nor what else runs on it. So kernels are timed for a moment, and
where they take another time than when they raced, they must beat the original once more.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import torch

from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import InputError, SuperoptError, kind_and_line
from superopt.fate import Kind
from superopt.funnel.race import copies_for
from superopt.ir import print_program
from superopt.live.arguments import without_data
from superopt.live.optimized import Optimized
from superopt.live.saved import program_of
from superopt.options import OptimizeOptions
from superopt.result.codec import inputs_json, result_from_json, result_json, returned
from superopt.result.result import Result
from superopt.rivals.final import STAGE
from superopt.rivals.inductor import changed_settings, settings_text
from superopt.rivals.rivals import PEERS
from superopt.targets import Target
from superopt.trace.traced import Traced
from superopt.tune import confirm, measure_together
from superopt.verify.floats.compare import tensors_of, typical

__all__ = ["ResultCache", "still_wins"]

log = logging.getLogger("superopt")

# An older result is not used: the machine may have changed in ways that no version tells.
_STALE = timedelta(days=30)
_CHANGED = 1.3  # kernels that take this many times as long as before, or as short, are raced once more
_LOOK_S, _RACE_S = 0.05, 0.5  # seconds in which they are timed, and raced
_FORMAT = 2  # the version of the records; another number makes every older result a miss


class ResultCache:
    """Whole results in the cache, for one function on inputs of one form."""

    def __init__(
        self,
        cache: Cache | None,
        traced: Traced,
        inputs: tuple[Any, ...],
        options: OptimizeOptions,
        target: Target,
    ) -> None:
        self._cache = cache
        self._options = options
        self._inputs = inputs
        measures = target.available and options.measure
        whole = not (traced.program.opaque or traced.constants or traced.read)
        self._key = _key(traced, inputs, options, target) if cache and measures and whole else None

    def recall(
        self, function: Callable[..., Any], traced: Traced, source: Mapping[str, Any] | None
    ) -> Optimized | None:
        """Return the result of an identical recent call as a program, or None."""
        record = self._cache.get(self._key) if self._cache and self._key else None
        if record is None or record.made is None or not self._options.recall:
            return None
        if datetime.now(UTC) - record.made > _STALE:
            return None
        try:
            result = result_from_json(dict(record.data), "the cached result")
            # Equal programs may return their tensors in other structures; open axes are tried again when
            # the result is saved.
            result = replace(
                result,
                inputs=without_data(self._inputs),  # a file has the keys of dicts in another order
                source=source,
                open_axes=None,
                returns=returned(traced),
            )
            best = program_of(result, function, "the cached result", options=self._options, traced=traced)
        except SuperoptError as error:
            log.warning("cache: a result of %s is not used: %s", traced.program.name, error)
            return None
        if best.winner == "superopt" and best.fused is None:  # its kernels cannot be made any more
            return None
        if best.winner == "superopt" and not self._stands(best):
            return None
        best.recalled = record.made
        return best

    def _stands(self, best: Optimized) -> bool:
        try:
            return still_wins(best, self._inputs)
        except Exception as error:  # what is kept was raced and proven before
            log.info("%s: a cached result is not timed: %s", best.name, kind_and_line(error))
            return True

    def keep(self, best: Optimized) -> None:
        """Keep a result that was measured to its end."""
        result = best.result
        if self._cache is None or self._key is None or result.interrupted or not result.measurements:
            return
        if result.unsettled or _may_pass(result, self._options):  # another race may decide it
            return
        bare = tuple(
            replace(
                region,
                candidates=tuple(
                    one if one is region.chosen else replace(one, sources=()) for one in region.candidates
                ),
            )
            for region in result.regions
        )
        self._cache.put(self._key, Record(result_json(replace(result, regions=bare)), result.name))


def _may_pass(result: Result, options: OptimizeOptions) -> bool:
    """Whether kernels or a rival of PyTorch's are out of the race by what may be otherwise in the next one.

    Memory, disk and time may be short once, and compilers be killed.
    """
    ended = [one.fate for region in result.regions if region.chosen is None for one in region.candidates]
    if any(fate.kind is Kind.FAILED or fate.stage == STAGE for fate in ended):
        return True
    raced = [PEERS[name] for name in result.measurements if name in PEERS]
    return options.torch_compile and not any(rival.compiles for rival in raced)


def still_wins(best: Optimized, inputs: tuple[Any, ...]) -> bool:
    """Whether kernels take about as long as when they raced, or still beat the original on this machine."""
    ours, before = best.fused, best.result.measurements.get("superopt")
    here = {best.target.torch_device} | ({"meta"} if best.target.torch_device == "cpu" else set())
    if ours is None or before is None or not {one.device.type for one in tensors_of(inputs)} <= here:
        return True
    times, pair = best.target.times, {"superopt": ours, "eager": best.original}
    copies = [typical(inputs, seed=at) for at in range(copies_for(tensors_of(inputs)))]
    with torch.no_grad():
        # The faster calls tell the state of the machine, the slower ones who else was busy.
        now = measure_together({"superopt": ours}, copies, seconds=_LOOK_S, times=times)["superopt"]
        if max(now.low_us, before.low_us) < _CHANGED * min(now.low_us, before.low_us):
            return True
        raced = confirm(pair, "superopt", "eager", copies, seconds=_RACE_S, level=1.0, times=times)
    if raced.winner == "superopt" or not raced.sure:
        return True
    speed = raced.speed_of("superopt")
    log.warning("%s: cached kernels run at %.2f times eager's speed now: all race again", best.name, speed)
    return False


def _key(traced: Traced, inputs: tuple[Any, ...], options: OptimizeOptions, target: Target) -> Key | None:

    chosen = asdict(options)
    for name in ("seed", "search", "cache", "recall"):
        chosen.pop(name)
    try:
        return key_of(
            "result",
            program=print_program(traced.program),
            options={
                **chosen,
                "search": options.search.key_parts(),
                "inputs": inputs_json(inputs),
                "data": [not one.is_meta for one in tensors_of(inputs)],
                "threads": torch.get_num_threads(),
                "eager": traced.digest,  # equal programs may take PyTorch different times
                "inductor": settings_text(changed_settings()) if options.torch_compile else {},
                "format": _FORMAT,
            },
            **{**versions(), **target.key_parts()},
        )
    except InputError:  # arguments that no file can hold, or endless seconds
        return None
