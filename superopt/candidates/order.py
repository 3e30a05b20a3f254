"""Order: the configurations of a kernel in the order in which they are worth a try on a target.

The order is by predicted time. Where a cache holds measurements of this device, a learned ranker corrects the
predictions, if it orders pairs of kernels that it was not fitted to better than the predictions do. New
measurements are kept for the next time.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from superopt.cache import Cache, program_text
from superopt.candidates.candidate import Candidate
from superopt.errors import GraphError, InputError, SuperoptError
from superopt.ir import Graph, MuGraph, parse_mugraph
from superopt.targets import Configs, Target, config_json

if TYPE_CHECKING:
    from superopt.tune.learned_order import Choice

__all__ = ["ConfigurationOrder", "Ranked", "RankedBy", "in_likeliest_configurations", "likely"]

log = logging.getLogger("superopt")

_SAME_TILES = 0.02  # added to a configuration's time, as a share, for each better one with the same tiles
_SAME_REST = 0.01  # added for each better one that is the same in all but its tiles
_RECORDS = 400  # the newest records, which are read and learned from in a fifth of a second

Ranked = tuple[tuple[Any, float | None], ...]
"""Configurations with their predicted times, the likeliest first."""


@dataclass(frozen=True, slots=True)
class RankedBy:
    """Which model ranked configurations, and the share of pairs that each orders rightly."""

    model: Literal["learned", "analytical"]
    learned: float
    analytical: float
    pairs: int

    def __str__(self) -> str:
        if not self.pairs:
            return "configurations ranked by the analytical model: too few were measured before to learn from"
        return (
            f"configurations ranked by the {self.model} model: of {self.pairs} pairs measured before"
            f" the learned one orders {self.learned:.0%} rightly, the analytical one {self.analytical:.0%}"
        )


class ConfigurationOrder:
    """The order of configurations on one target, and what was measured of them; no cache: by prediction."""

    def __init__(self, target: Target, cache: Cache | None = None, *, seed: int = 0) -> None:
        self._target = target
        self._cache = cache
        self._seed = seed
        self._learned: Choice | None = None
        self._known: dict[tuple[MuGraph, Configs, int], Ranked] = {}
        self.used: RankedBy | None = None  # once something was ranked

    def ranked(self, mugraph: MuGraph, configs: Configs, number: int) -> Ranked:
        """Return the configurations of one kernel of a muGraph; the other kernels are configured as given."""
        key = mugraph, configs, number
        if key not in self._known:
            self._known[key] = self._order(mugraph, configs, number)
        return self._known[key]

    def keep(self, goal: Graph, candidates: Iterable[Candidate], number: int) -> None:
        """Keep the times of candidates that differ in the configuration of one kernel."""
        if self._cache is None:
            return
        from superopt.tune.records import save_measurement

        device = self._device()
        for one in candidates:
            if one.measurement is None or one.configs[number] is None:
                continue
            save_measurement(
                self._cache,
                one.measurement,
                program=program_text(goal),
                kernel=_text(one.mugraph),
                sizes=one.mugraph.graph.sizes,
                configuration=config_json(one.configs[number]),
                device=device,
                race=_race(one.configs, number),
                label=f"{goal.name}: {one.name}",
            )

    # -- the order

    def _order(self, mugraph: MuGraph, configs: Configs, number: int) -> Ranked:
        found = list(self._target.configs(mugraph, number))
        times = self._target.predictions(mugraph, number, found)
        choice = self._choice()
        places = [float("inf") if us is None else us for us in times]
        if choice is not None and choice.ranker is not None:
            fits = [at for at, us in enumerate(times) if us is not None]
            rest = _rest_us(self._target, mugraph, configs, number)
            kernel, sizes, device = _text(mugraph), mugraph.graph.sizes, self._device()
            scores = choice.scores(
                [
                    {
                        "kernel": kernel,
                        "sizes": sizes,
                        "configuration": config_json(found[at]),
                        "device": device,
                        "predicted_us": places[at] + rest,
                    }
                    for at in fits
                ]
            )
            for at, score in zip(fits, scores, strict=True):
                places[at] = score
        order = _varied(places, [config_json(config) for config in found])
        return tuple((found[at], times[at]) for at in order)

    def _choice(self) -> "Choice | None":
        """Return what earlier measurements of this device teach; read once."""
        if self.used is None:
            self._learned = self._learn()
            if self._learned is None:
                self.used = RankedBy("analytical", 0.0, 0.0, 0)
            else:
                found = self._learned.accuracy
                self.used = RankedBy(self._learned.use, found.learned, found.analytical, found.pairs)
        return self._learned

    def _learn(self) -> "Choice | None":
        if self._cache is None:
            return None
        from superopt.tune.learned_order import choose
        from superopt.tune.records import load_records

        predict = _Predictor(self._target)
        records = load_records(self._cache, predict, device=str(self._device()["name"]), newest=_RECORDS)
        try:
            return choose(records, seed=self._seed) if records else None
        except InputError as error:  # a record of another program may hold anything
            log.warning("cache: its measurements teach nothing: %s", error)
            return None

    def _device(self) -> dict[str, Any]:
        return {"name": self._target.device_name, "processors": self._target.cost_device().cores}


class _Predictor:
    """Predicts the times of records by the cost model of today."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._mugraphs: dict[str, MuGraph | None] = {}
        self._rests: dict[str, float] = {}

    def __call__(self, record: Mapping[str, Any]) -> float:
        """Return the predicted time of a muGraph as it was measured; NaN where there is none."""
        try:
            return self._us(record)
        except (SuperoptError, ValueError, KeyError, IndexError, TypeError, AssertionError, AttributeError):
            return float("nan")  # a record of the cache may hold anything

    def _us(self, record: Mapping[str, Any]) -> float:
        race, sizes = record["race"], record["sizes"]
        number = race["number"]
        mugraph = self._mugraph(record["kernel"], sizes)
        if mugraph is None:
            return float("nan")
        config = self._target.config_from_json(record["configuration"])
        [us] = self._target.predictions(mugraph, number, [config])
        if us is None:
            return float("nan")
        key = f"{record['kernel']}{sorted(sizes.items())}{race}"
        if key not in self._rests:
            configs = [None if one is None else self._target.config_from_json(one) for one in race["others"]]
            configs.insert(number, config)
            self._rests[key] = _rest_us(self._target, mugraph, tuple(configs), number)
        return us + self._rests[key]

    def _mugraph(self, text: str, sizes: Mapping[str, int]) -> MuGraph | None:
        axes = " ".join(f"{name}={size}" for name, size in sizes.items())
        whole = f"graph measured\naxes {axes}\n{text.partition(chr(10))[2]}"
        if whole not in self._mugraphs:
            try:
                self._mugraphs[whole] = parse_mugraph(whole)
            except GraphError:
                self._mugraphs[whole] = None
        return self._mugraphs[whole]


def _varied(places: Sequence[float], configs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the order of configurations, each put behind for every better one that is like it.

    Predicted times differ less than measured ones do, so the few configurations that are tried should not all
    have the same tiles, or all the same warps, stages and ways to memory.
    """
    before: Counter[str] = Counter()
    delayed: dict[int, float] = {}
    for at in sorted(range(len(places)), key=places.__getitem__):
        tiles = f"tiles {configs[at].get('tiles')}"
        rest = str({name: value for name, value in configs[at].items() if name not in ("tiles", "exact")})
        delayed[at] = places[at] * (1 + _SAME_TILES * before[tiles] + _SAME_REST * before[rest])
        before.update((tiles, rest))
    return sorted(delayed, key=delayed.__getitem__)


def _rest_us(target: Target, mugraph: MuGraph, configs: Configs, number: int) -> float:
    """Return the predicted time of all kernels but one."""
    if len(configs) == 1:
        return 0.0
    reports = target.reports(mugraph, configs)
    return sum(one.predicted_us or 0.0 for at, one in enumerate(reports) if at != number)


def _text(mugraph: MuGraph) -> str:
    """Return the text of a muGraph for any sizes: a kernel seen at one of them is not new at another."""
    return program_text(mugraph, open_axes=mugraph.graph.sizes)


def _race(configs: Configs, number: int) -> dict[str, Any]:
    """Return what must agree for times to be compared: which kernel is configured, and the other ones."""
    others = [None if one is None else config_json(one) for at, one in enumerate(configs) if at != number]
    return {"number": number, "others": others}


def likely(
    base: Candidate,
    number: int,
    order: ConfigurationOrder,
    count: int,
    *,
    apart: bool = False,
    roundings: Collection[Any] | None = None,
) -> list[Any]:
    """Return the configurations of a kernel worth compiling, the likeliest first.

    `apart` asks for other tiles each, `roundings` for products that are rounded in one of these ways.
    """
    current = base.configs[number]
    ranked = order.ranked(base.mugraph, base.configs, number)
    found = [config for config, _ in ranked if config != current and _is_allowed(base, number, config)]
    if roundings is not None:
        found = [one for one in found if one.rounding in roundings]
    if apart:
        first = {one.tiles: one for one in reversed(found) if one.tiles != current.tiles}
        found = [one for one in found if first.get(one.tiles) is one]
    return found[:count]


def _is_allowed(base: Candidate, number: int, config: Any) -> bool:
    return not (number in base.wide and config.rounds_operands)


def in_likeliest_configurations(candidate: Candidate, target: Target, order: ConfigurationOrder) -> Candidate:
    """Return a candidate, each kernel in the likeliest configuration."""
    configs = candidate.configs or target.default_configs(candidate.mugraph)
    best = list(configs)
    for number, default in enumerate(configs):
        if default is not None:
            ranked = order.ranked(candidate.mugraph, configs, number)
            config, us = next(one for one in ranked if _is_allowed(candidate, number, one[0]))
            best[number] = default if us is None else config
    return replace(candidate, configs=tuple(best))
