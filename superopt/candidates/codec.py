"""Codec: candidates as plain JSON data and back; nothing in it is ever executed.

Kernels are written anew from the muGraph and the configurations, and the muGraph is proven equal to
its region again, so that a record that was tampered with computes nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from superopt.candidates.candidate import SCHEDULED, Candidate
from superopt.errors import GraphError, InputError
from superopt.fate import Fate, Kind
from superopt.ir import Block, Graph, MuGraph, parse_graph, parse_mugraph, print_graph, print_mugraph
from superopt.schedule import Dropped
from superopt.targets import KernelReport, Target, config_json
from superopt.tune import Measurement
from superopt.weights.division import divided

__all__ = [
    "READ",
    "VERSION",
    "candidate_from_json",
    "candidate_json",
    "checked_graph",
    "checked_names",
    "dropped_from_json",
    "measured",
    "member",
    "number",
    "runnable_json",
]

VERSION = 3
"""The version of the data; version 1 had no ids and fates, version 2 nothing that is made of weights once."""

READ = (2, VERSION)
"""The versions that are read: a file of version 2 lacks nothing."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as plain data."""
    timing = candidate.measurement
    return {
        "id": candidate.id,
        "name": candidate.name,
        "schedule": candidate.schedule,
        "variant": candidate.variant,
        "fate": asdict(candidate.fate),
        "library": candidate.library,
        "wide": list(candidate.wide),
        **runnable_json(candidate),
        "sources": list(candidate.sources),
        "kernels": [
            {name: value for name, value in asdict(one).items() if value is not None}
            for one in candidate.kernels
        ],
        "predicted_us": candidate.predicted_us,
        "median_us": None if timing is None else timing.median_us,
        "low_us": None if timing is None else timing.low_us,
        "high_us": None if timing is None else timing.high_us,
        "rounds": None if timing is None else timing.rounds,
    }


def runnable_json(candidate: Candidate) -> dict[str, Any]:
    """Return what it takes to prove a candidate and to make its kernels."""
    return {
        "graph": print_graph(candidate.graph),
        "once": list(candidate.once),
        "mugraph": print_mugraph(candidate.mugraph),
        "configs": [None if one is None else config_json(one) for one in candidate.configs],
    }


def candidate_from_json(data: Any, target: Target) -> Candidate:
    """Return a candidate from plain data, not yet proven equal to anything; or raise InputError.

    Fields that kernels are made from must be present; others may be missing.
    """
    graph = checked_graph(member(data, "graph", str, "a candidate"))
    try:
        mugraph = parse_mugraph(member(data, "mugraph", str, "a candidate"))
    except GraphError as error:
        raise InputError(f"a candidate's muGraph cannot be read: {error}") from error
    checked_names(mugraph.graph)
    configs = tuple(
        None if one is None else target.config_from_json(one)
        for one in member(data, "configs", list, "a candidate")
    )
    if configs:
        _check_configs(mugraph, configs)
    once = _once(graph, data)
    median = number(data, "median_us")
    timing = None
    if median is not None:
        low, high = number(data, "low_us"), number(data, "high_us")
        rounds = data.get("rounds")
        timing = measured(
            Measurement(
                median,
                median if low is None else low,
                median if high is None else high,
                rounds if type(rounds) is int else 0,
            )
        )
    return Candidate(
        str(data.get("id", "")),
        graph,
        mugraph,
        configs,
        _fate(data["fate"]) if data.get("fate") else SCHEDULED,
        schedule=str(data.get("schedule", "")),
        variant=str(data.get("variant", "")),
        library=bool(data.get("library")),
        once=once,
        wide=tuple(one for one in data.get("wide") or () if type(one) is int),
        sources=tuple(map(str, data.get("sources") or ())),
        kernels=tuple(_report(one) for one in data.get("kernels") or ()),
        predicted_us=number(data, "predicted_us"),
        measurement=timing,
    )


def _once(graph: Graph, data: Any) -> tuple[int, ...]:
    """Return the values of a graph that a candidate says are made once, or raise InputError."""
    found = [] if data.get("once") is None else member(data, "once", list, "a candidate")
    if not all(type(one) is int for one in found) or sorted(set(found)) != found:
        raise InputError(f"what is made once is {found!r}; it is numbers of values in order")
    try:
        if found:
            divided(graph, found)
    except GraphError as error:
        raise InputError(f"what is made once cannot be: {error}") from error
    return tuple(found)


def dropped_from_json(data: Any) -> tuple[Dropped, ...]:
    """Return the schedules that were cut from plain data, or raise InputError."""
    if not isinstance(data, list):
        raise InputError("what was dropped is no list; the file is damaged or not a result of superopt")
    return tuple(
        Dropped(
            str(member(one, "id", str, "a dropped schedule")),
            str(member(one, "name", str, "a dropped schedule")),
            _fate(member(one, "fate", dict, "a dropped schedule")),
        )
        for one in data
    )


def _fate(data: Any) -> Fate:
    texts = [str(member(data, name, str, "a fate")) for name in ("stage", "kind", "reason")]
    if texts[1] not in list(Kind):
        raise InputError(f"the kind of a fate is {texts[1]!r}; it is one of {', '.join(Kind)}")
    return Fate(texts[0], Kind(texts[1]), texts[2])


def member(data: Any, name: str, kind: type, what: str) -> Any:
    """Return a field of an object, or raise InputError where it is missing or of another type."""
    if not isinstance(data, Mapping) or not isinstance(data.get(name), kind):
        raise InputError(f"{what} has no good {name!r}; the file is damaged or not a result of superopt")
    return data[name]


def checked_graph(text: str) -> Graph:
    """Return the graph of a text whose names may stand in the source of a kernel, or raise InputError."""
    try:
        graph = parse_graph(text)
    except GraphError as error:
        raise InputError(f"a graph cannot be read: {error}") from error
    checked_names(graph)
    return graph


def checked_names(graph: Graph) -> None:
    """Refuse names that are no names: they become part of a kernel's text."""
    ports = (*graph.inputs, *(output.port for output in graph.outputs))
    names = [graph.name, *(axis.name for axis in graph.axes), *(port.name for port in ports)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is not a name; names are letters, digits, _ and dots")


def _check_configs(mugraph: MuGraph, configs: tuple[Any, ...]) -> None:
    """Refuse configurations that are not one for each kernel, of its kind and its axes."""
    if len(configs) != len(mugraph.kernels):
        raise InputError(f"{len(configs)} configurations for {len(mugraph.kernels)} kernels")
    for number, (kernel, config) in enumerate(zip(mugraph.kernels, configs, strict=True)):
        if isinstance(kernel, Block) != (config is not None):
            raise InputError(f"kernel {number} has a configuration of the wrong kind")
        if config is None:
            continue
        named = [axis for axis, _ in config.tiles] + [
            axis
            for one in fields(config)
            if one.name != "tiles" and isinstance(value := getattr(config, one.name), tuple | frozenset)
            for axis in value
        ]
        if bad := [axis for axis in named if axis not in mugraph.graph.sizes]:
            raise InputError(f"kernel {number}: its configuration names the unknown axis {bad[0]!r}")


def _report(data: Any) -> KernelReport:
    known = {one.name for one in fields(KernelReport)} - {"name"}
    name = str(member(data, "name", str, "a kernel"))
    found = {field: number(data, field) for field in known if field in data}
    whole = {
        field: value if field == "predicted_us" or value is None else int(value)
        for field, value in found.items()
    }
    return KernelReport(name, **whole)  # type: ignore[arg-type]


def measured(timing: Measurement) -> Measurement:
    """Return a measurement, or raise InputError where a time of it is 0: nothing runs in no time."""
    for name in ("median_us", "low_us", "high_us"):
        if not getattr(timing, name) > 0:
            raise InputError(f"{name} is {getattr(timing, name)!r}; a time that was measured is above 0")
    return timing


def number(data: Mapping[str, Any], name: str) -> float | None:
    """Return a number from 0 up, or None where there is none; or raise InputError."""
    value = data.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise InputError(f"{name} is {value!r}; it is a number from 0 up")
    return value  # type: ignore[no-any-return]
