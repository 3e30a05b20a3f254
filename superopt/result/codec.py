"""Codec: a result as plain JSON data, and back; every reader of a result reads it here.

No code is read from a file: kernels are written anew from their muGraphs and configurations, and the
muGraphs that run are proven equal to their regions again. What a result knows by itself (`speedup`,
`floor_us`, `predicted_us`, `floats.ok`, `opaque`) is written for other readers, and worked out anew here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from superopt.candidates.candidate import RegionCandidates
from superopt.candidates.codec import (
    READ,
    VERSION,
    candidate_from_json,
    candidate_json,
    checked_graph,
    checked_names,
    dropped_from_json,
    measured,
    member,
    number,
)
from superopt.candidates.order import RankedBy
from superopt.candidates.typed import typed_fields
from superopt.errors import GraphError, InputError, reason_of
from superopt.fate import Kind
from superopt.files import replace_text
from superopt.ir import Eager, parse_program, print_graph, print_program
from superopt.result.result import Result
from superopt.rivals.rivals import PEERS
from superopt.targets import Target, pick_target
from superopt.tune import Measurement
from superopt.verify.floats.report import DistributionReport, FloatReport
from superopt.weights.division import weight_bytes

if TYPE_CHECKING:
    from superopt.trace.traced import Traced

__all__ = [
    "inputs_json",
    "read_json",
    "read_result",
    "result_from_json",
    "result_json",
    "returned",
    "tree_of",
    "value_of",
    "write_json",
]

T = TypeVar("T")

_PLAIN = (bool, int, float, str, type(None))
_NUMBERS = {str(value): value for value in (inf, -inf, nan)}  # JSON has no form for these

_KEYS = (
    *("target", "device", "versions", "seed", "source", "inputs", "program", "regions"),
    *("winner", "measurements", "floats", "verdicts", "phases_ms"),
)


def result_json(result: Result) -> dict[str, Any]:
    """Return a result as plain data."""
    return {
        "superopt": "result",
        "version": VERSION,
        "name": result.name,
        "target": result.target.name,
        "device": result.device,
        "versions": dict(result.versions),
        "seed": result.seed,
        "source": None if result.source is None else dict(result.source),
        "inputs": inputs_json(result.inputs),
        "returns": result.returns,
        "open_axes": {axis: list(ends) for axis, ends in sorted((result.open_axes or {}).items())},
        "holds": list(result.holds),
        "program": print_program(result.program),
        "regions": [_region_json(one) for one in result.regions],
        "winner": result.winner,
        "speedup": result.speedup,
        "ratio": result.ratio,
        "interval": None if result.interval is None else list(result.interval),
        "unsettled": result.unsettled,
        "doubt": result.doubt,
        "measurements": {name: asdict(one) for name, one in result.measurements.items()},
        "floor_us": result.floor_us,
        "predicted_us": result.predicted_us,
        "floats": None if result.floats is None else _floats_json(result.floats),
        "verdicts": list(result.verdicts),
        "opaque": [asdict(node) for node in result.program.opaque],
        "phases_ms": {name: round(ms, 3) for name, ms in result.phases_ms.items()},
        "ranked_by": None if result.ranked_by is None else asdict(result.ranked_by),
        "interrupted": result.interrupted,
        "stood_in": result.stood_in,
        "eager": None if result.eager is None else asdict(result.eager),
    }


def _region_json(region: RegionCandidates) -> dict[str, Any]:
    return {
        "goal": print_graph(region.goal),
        "chosen": None if region.chosen is None else region.chosen.id,
        "candidates": [candidate_json(one) for one in region.candidates],
        "dropped": [asdict(one) for one in region.dropped],
        "weights": _weights_json(region),
        "floor_us": region.floor_us,
        "recalled": region.recalled,
    }


def _weights_json(region: RegionCandidates) -> dict[str, int]:
    """Return the bytes of weights that a call reads, as written and now, and of those kept and put away."""
    chosen = region.chosen
    parts = chosen.parts if chosen is not None else None
    before = weight_bytes(region.goal)
    after = weight_bytes(chosen.run) if chosen is not None else before
    kept, away = (parts.kept_bytes, parts.unread_bytes) if parts is not None else (0, 0)
    return {"read_before": before, "read_after": after, "kept": kept, "away": away}


def write_json(data: Mapping[str, Any], path: Path) -> None:
    """Write plain data to a file, all of it or nothing."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        replace_text(path, text)
    except (OSError, ValueError) as error:  # the latter of a name that no file can have
        raise InputError(f"cannot write {str(path)!r}: {reason_of(error)}") from error


def read_result(path: str | Path) -> Result:
    """Return the result in a file, or raise InputError."""
    return result_from_json(read_json(path), str(path))


def read_json(path: str | Path) -> Any:
    """Return the plain data in a file, its numbers all finite; or raise InputError."""
    place = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except FileNotFoundError:
        raise InputError(f"{place!r} does not exist") from None
    except RecursionError:
        raise InputError(f"cannot read {place!r}: its lists and objects are nested too deeply") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not JSON"
        said = str(error) if isinstance(error, _NumberError) else said
        raise InputError(f"cannot read {place!r}: {said}") from error


class _NumberError(ValueError):
    """A number that no float holds."""


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):
        raise _NumberError(f"it holds the number {text[:40]}, which is beyond the range of floats")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def result_from_json(data: Any, place: str = "the result") -> Result:
    """Return a result from plain data, its candidates not yet proven equal; or raise InputError."""
    try:
        return _result(_checked(data, place), place)
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{place}: it is damaged: {type(error).__name__}: {error}") from error


def _result(data: Mapping[str, Any], place: str) -> Result:
    target = pick_target(str(data["target"]))
    try:
        program = parse_program(str(data["program"]))
    except GraphError as error:
        raise InputError(f"{place}: the program cannot be read: {error}") from error
    for region in program.regions:
        checked_names(region.graph)
    regions = tuple(_region(one, target, place) for one in data["regions"])
    if [one.goal for one in regions] != [region.graph for region in program.regions]:
        raise InputError(f"{place}: its regions are not those of its program")
    return Result(
        program,
        target,
        tuple(tree_of(one, _input) for one in data["inputs"]),
        regions,
        int(data["seed"]),
        data["winner"],
        measurements={
            str(name): measured(_typed(Measurement, one)) for name, one in data["measurements"].items()
        },
        floats=_floats(data["floats"]),
        device=None if data["device"] is None else str(data["device"]),
        source=None if data["source"] is None else member(data, "source", dict, place),
        returns=data.get("returns"),
        holds=tuple(map(str, data.get("holds") or ())),
        open_axes=_open_axes(data.get("open_axes")),
        verdicts=tuple(map(str, data["verdicts"])),
        phases_ms={str(name): number(data["phases_ms"], name) or 0.0 for name in data["phases_ms"]},
        ranked_by=_ranked_by(data.get("ranked_by")),
        versions={str(name): str(one) for name, one in data["versions"].items()},
        interrupted=bool(data.get("interrupted")),
        stood_in=bool(data.get("stood_in")),
        ratio=number(data, "ratio"),
        interval=_interval(data.get("interval")),
        unsettled=str(data.get("unsettled") or ""),
        doubt=str(data.get("doubt") or ""),
        eager=None if data.get("eager") is None else _typed(Eager, _eager(data["eager"])),
    )


def _region(data: Any, target: Target, place: str) -> RegionCandidates:
    goal = checked_graph(member(data, "goal", str, "a region"))
    candidates = tuple(
        candidate_from_json(one, target) for one in member(data, "candidates", list, "a region")
    )
    if len({one.id for one in candidates}) < len(candidates):
        raise InputError(f"{place}: two candidates of {goal.name} have the same id")
    if sum(one.fate.kind is Kind.CHOSEN for one in candidates) > 1:
        raise InputError(f"{place}: two candidates of {goal.name} are chosen")
    dropped = dropped_from_json(data.get("dropped") or [])
    recalled = bool(data.get("recalled"))
    return RegionCandidates(goal, candidates, dropped, number(data, "floor_us"), recalled)


def _checked(data: Any, place: str) -> Mapping[str, Any]:
    """Return the data of a result of this version, or raise InputError."""
    if not isinstance(data, dict) or data.get("superopt") != "result":
        raise InputError(
            f"{place!r} is not a result of superopt; `superopt optimize TARGET -o FILE` makes one"
        )
    if data.get("version") not in READ:
        raise InputError(
            f"{place}: version {data.get('version')!r} is not known; this superopt reads version {VERSION}"
        )
    if missing := [name for name in _KEYS if name not in data]:
        raise InputError(f"{place}: {missing[0]!r} is missing; the file is damaged")
    if data["winner"] not in (None, "superopt", *PEERS):
        raise InputError(
            f"{place}: the winner is {data['winner']!r}; it is superopt or one of {', '.join(PEERS)}"
        )
    return data


def _floats_json(report: FloatReport) -> dict[str, Any]:
    reports = [
        {name: _value_json(value) if _is_endless(value) else value for name, value in asdict(one).items()}
        for one in report.distributions
    ]
    return asdict(report) | {"distributions": reports, "ok": report.ok}


def _floats(data: Any) -> FloatReport | None:
    if data is None:
        return None
    reports = tuple(
        _typed(
            DistributionReport,
            {name: value_of(value) if isinstance(value, dict) else value for name, value in one.items()},
        )
        for one in data["distributions"]
    )
    uncovered = tuple(map(str, data.get("uncovered", ())))
    known = {"dtype": data["dtype"], "factor": data["factor"]}
    return _typed(FloatReport, {**known, "distributions": reports, "uncovered": uncovered})


def _typed(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a record of fields of their types, its numbers not below 0, or raise InputError."""
    found = typed_fields(kind, data, data)
    for name, value in found.items():
        if type(value) in (int, float) and not value >= 0:
            raise InputError(f"{name} is {value!r}; the file is damaged")
    return kind(**found)


def _interval(data: Any) -> tuple[float, float] | None:
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != 2 or any(type(one) not in (int, float) for one in data):
        raise InputError(f"interval is {data!r}; the file is damaged")
    return data[0], data[1]


def _open_axes(data: Any) -> dict[str, tuple[int, int]]:
    """Return between which sizes axes may change; older files name axes, of which too little was tried."""
    if data is None or isinstance(data, list):
        return {}
    found = {}
    for axis, ends in data.items():
        if (
            not isinstance(ends, list)
            or len(ends) != 2
            or any(type(one) is not int or one < 0 for one in ends)
        ):
            raise InputError(f"open_axes is {data!r}; the file is damaged")
        found[str(axis)] = (ends[0], ends[1])
    return found


def _eager(data: Any) -> Mapping[str, Any]:
    reads = {str(name): count for name, count in data["reads"].items()}
    if any(type(count) is not int or count < 0 for count in reads.values()):
        raise InputError(f"reads is {reads!r}; the file is damaged")
    return {**data, "reads": reads}


def _ranked_by(data: Any) -> RankedBy | None:
    if data is None:
        return None
    model, numbers = data["model"], [data[name] for name in ("learned", "analytical", "pairs")]
    if model not in ("learned", "analytical") or any(type(one) not in (int, float) for one in numbers):
        raise InputError(f"ranked_by is {data!r}; the file is damaged")
    return RankedBy(model, numbers[0], numbers[1], int(numbers[2]))


# -- structures of arguments and results


def inputs_json(inputs: tuple[Any, ...]) -> list[Any]:
    """Return the form of arguments as plain data, without the numbers in their tensors."""
    return [_tree_json(one, _input_json) for one in inputs]


def _tree_json(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [_tree_json(one, leaf) for one in tree]}
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {"dict": {name: _tree_json(one, leaf) for name, one in tree.items()}}
    return leaf(tree)


def tree_of(data: Any, leaf: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return a structure of tuples, lists and dicts from plain data."""
    if "tuple" in data:
        return tuple(tree_of(one, leaf) for one in data["tuple"])
    if "list" in data:
        return [tree_of(one, leaf) for one in data["list"]]
    if "dict" in data:
        return {str(name): tree_of(one, leaf) for name, one in data["dict"].items()}
    return leaf(data)


def _input_json(value: Any) -> dict[str, Any]:
    from torch import Tensor

    from superopt.trace.run import dtype_name

    if isinstance(value, Tensor):
        return {
            "dtype": dtype_name(value.dtype),
            "shape": list(value.shape),
            "strides": list(value.stride()),
        }
    if type(value) in _PLAIN:
        return _value_json(value)
    raise InputError(
        f"an input is a {type(value).__name__}; results with tensors, numbers and text can be saved"
    )


def _input(data: Mapping[str, Any]) -> Any:
    import torch

    from superopt.trace.run import TORCH_DTYPES

    if "value" in data or "number" in data:
        return value_of(data)
    shape, strides = data["shape"], data["strides"]
    if data["dtype"] not in TORCH_DTYPES or any(
        type(size) is not int or size < 0 for size in (*shape, *strides)
    ):
        raise InputError(f"an input is {dict(data)!r}, which is no tensor")
    try:
        return torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[data["dtype"]], device="meta")
    except (RuntimeError, TypeError) as error:  # more sizes than strides, or more elements than can be
        raise InputError(f"an input is {dict(data)!r}, which is no tensor") from error


def _is_endless(value: Any) -> bool:
    """Whether a value is infinite or NaN, for which JSON has no form."""
    return type(value) is float and not isfinite(value)


def _value_json(value: Any) -> dict[str, Any]:
    """Return a value that is no tensor as plain data."""
    return {"number": str(value)} if _is_endless(value) else {"value": value}


def value_of(data: Mapping[str, Any]) -> Any:
    """Return a value that is no tensor from plain data."""
    return _NUMBERS[data["number"]] if "number" in data else data["value"]


def returned(traced: "Traced") -> Any:
    """Return the structure of a function's result as plain data, or None where it has no plain structure."""
    from superopt.trace.capture.tape import Ref

    def leaf(value: Any) -> dict[str, Any]:
        if isinstance(value, Ref) and value.index not in traced.views:
            memory = {"memory": traced.memory[value.index]} if traced.memory else {}
            return {"tensor": traced.names[value.index], **memory}
        if type(value) in _PLAIN:
            return _value_json(value)
        raise TypeError

    try:
        return _tree_json(traced.result, leaf)
    except TypeError:
        return None
