"""Facts: a result file's data, read without trust: what is missing or of a wrong type is absent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superopt.errors import GraphError, InputError
from superopt.ir import Graph, MuGraph, parse_graph, parse_mugraph

__all__ = ["CandidateFacts", "KernelFacts", "RegionFacts", "ResultFacts", "TimeFacts", "read_result"]


@dataclass(frozen=True, slots=True)
class TimeFacts:
    """A measured time and its spread, each in µs."""

    median_us: float
    low_us: float | None
    high_us: float | None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is known of one kernel."""

    name: str
    bytes: float | None
    flops: float | None
    predicted_us: float | None
    shared_bytes: float | None
    registers: float | None
    spill_bytes: float | None


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """One way to compute a region."""

    name: str
    text: str
    mugraph: MuGraph | None
    sources: tuple[str, ...]
    kernels: tuple[KernelFacts, ...]
    configs: tuple[str, ...]
    predicted_us: float | None
    time: TimeFacts | None
    rejected: str

    @property
    def order_us(self) -> float:
        """The time it is ranked by."""
        if self.time is not None:
            return self.time.median_us
        return math.inf if self.predicted_us is None else self.predicted_us


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """A region, its candidates in order, which one is chosen, and what was dropped before compiling."""

    text: str
    goal: Graph | None
    candidates: tuple[CandidateFacts, ...]
    chosen: CandidateFacts | None
    dropped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """A whole result."""

    name: str
    target: str
    device: str
    winner: str
    speedup: float | None
    stood_in: bool  # PyTorch raced with a stand-in for the original
    predicted_us: float | None
    floor_us: float | None
    regions: tuple[RegionFacts, ...]
    measurements: tuple[tuple[str, TimeFacts], ...]
    floats: Mapping[str, Any] | None
    verdicts: tuple[str, ...]
    opaque: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    phases_ms: tuple[tuple[str, float], ...]

    @property
    def is_plan(self) -> bool:
        """Whether nothing was measured."""
        return not self.winner


def read_result(result: Mapping[str, Any]) -> ResultFacts:
    """Return the facts of a result, or raise InputError where it is no result."""
    if not isinstance(result, Mapping) or not isinstance(result.get("regions"), list):
        raise InputError("the result has no list of regions; give the data of a file that superopt saved")
    measurements = result.get("measurements")
    timed = [(str(name), _time(one)) for name, one in _mapping(measurements).items()]
    phases = [(str(name), _number(one)) for name, one in _mapping(result.get("phases_ms")).items()]
    floats = result.get("floats")
    return ResultFacts(
        name=_text(result.get("name")) or "program",
        target=_text(result.get("target")),
        device=_text(result.get("device")),
        winner=_text(result.get("winner")),
        speedup=_number(result.get("speedup")),
        stood_in=result.get("stood_in") is True,
        predicted_us=_number(result.get("predicted_us")),
        floor_us=_number(result.get("floor_us")),
        regions=tuple(_region(one) for one in _objects(result.get("regions"))),
        measurements=tuple((name, one) for name, one in timed if one is not None),
        floats=floats if isinstance(floats, Mapping) else None,
        verdicts=tuple(_texts(result.get("verdicts"))),
        opaque=tuple(
            (_text(one.get("target")), _text(one.get("reason"))) for one in _objects(result.get("opaque"))
        ),
        versions=tuple((str(name), str(one)) for name, one in _mapping(result.get("versions")).items()),
        phases_ms=tuple((name, one) for name, one in phases if one is not None),
    )


def _region(data: Mapping[str, Any]) -> RegionFacts:
    candidates = tuple(_candidate(one, at) for at, one in enumerate(_objects(data.get("candidates")), 1))
    chosen = data.get("chosen")
    taken = None
    if isinstance(chosen, int) and not isinstance(chosen, bool) and 0 <= chosen < len(candidates):
        taken = candidates[chosen]
    text = _text(data.get("goal"))
    try:
        goal = parse_graph(text)
    except (GraphError, ValueError):
        goal = None
    dropped = ((_text(one.get("name")), _text(one.get("reason"))) for one in _objects(data.get("dropped")))
    return RegionFacts(text, goal, candidates, taken, tuple(dropped))


def _candidate(data: Mapping[str, Any], number: int) -> CandidateFacts:
    text = _text(data.get("mugraph")) or _text(data.get("graph"))
    try:
        mugraph = parse_mugraph(text)
    except (GraphError, ValueError):
        mugraph = None
    configs = data.get("configs")
    shown = [_config_text(one) for one in configs] if isinstance(configs, list) else []
    return CandidateFacts(
        name=_text(data.get("name")) or f"candidate {number}",
        text=text,
        mugraph=mugraph,
        sources=tuple(_texts(data.get("sources"))),
        kernels=tuple(_kernel(one, at) for at, one in enumerate(_objects(data.get("kernels")))),
        configs=tuple(shown),
        predicted_us=_number(data.get("predicted_us")),
        time=_time(data),
        rejected=_text(data.get("rejected")),
    )


def _kernel(data: Mapping[str, Any], number: int) -> KernelFacts:
    return KernelFacts(
        _text(data.get("name")) or f"kernel {number}",
        _number(data.get("bytes")),
        _number(data.get("flops")),
        _number(data.get("predicted_us")),
        _number(data.get("shared_bytes")),
        _number(data.get("registers")),
        _number(data.get("spill_bytes")),
    )


def _config_text(data: Any) -> str:
    """Return a configuration in a few words."""
    if not isinstance(data, Mapping):
        return ""
    words = []
    for name, value in data.items():
        if name == "tiles":
            pairs = value.items() if isinstance(value, Mapping) else value
            pairs = pairs if isinstance(pairs, (list, tuple)) or isinstance(value, Mapping) else []
            words += [
                f"{one[0]}={one[1]}" for one in pairs if isinstance(one, (list, tuple)) and len(one) == 2
            ]
        elif value not in (None, [], False, ""):
            words.append(f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(words)


def _time(data: Any) -> TimeFacts | None:
    median = _number(_mapping(data).get("median_us"))
    if median is None:
        return None
    return TimeFacts(median, _number(data.get("low_us")), _number(data.get("high_us")))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
