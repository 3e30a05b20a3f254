"""Saved: an optimized program as a file of plain data, and back.

No code is read from a file: kernels are written anew from their muGraphs and configurations, and the
muGraphs that run are proven equal to their regions again.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import GraphError, InputError, SuperoptError
from superopt.files import replace_text
from superopt.ir import Program, parse_program, print_graph, print_program, release_shifts
from superopt.plans.assembly import in_parts
from superopt.plans.optimized import Optimized
from superopt.plans.peers import PEERS, compiled_by_torch
from superopt.plans.plan import Candidate, Dropped, OptimizeOptions, RegionPlan, Work
from superopt.plans.proof import proven_by_graph
from superopt.plans.ranking import RankedBy
from superopt.plans.record import candidate_from_json, candidate_json, checked_graph, checked_names, member
from superopt.plans.shelf import parts_of
from superopt.plans.sizes import open_axes
from superopt.targets import Kernel, Target, pick_target
from superopt.tune import Measurement
from superopt.verify.report import DistributionReport, FloatReport

if TYPE_CHECKING:
    from superopt.trace.traced import Traced

__all__ = ["VERSION", "Result", "load", "read_result", "result_json", "save"]

log = logging.getLogger("superopt")

VERSION = 1

_KEYS = (
    *("name", "target", "device", "versions", "seed", "source", "inputs", "program", "regions"),
    *("winner", "speedup", "measurements", "floor_us", "predicted_us", "floats", "verdicts"),
    *("opaque", "phases_ms"),
)


def result_json(best: Optimized) -> dict[str, Any]:
    """Return a result as plain data."""
    from superopt.cache import versions

    program = best.traced.program
    names = best.traced.names
    return {
        "superopt": "result",
        "version": VERSION,
        "name": program.name,
        "target": best.target.name,
        "device": best.device,
        "versions": versions(),
        "seed": best.options.seed,
        "source": None if best.source is None else dict(best.source),
        "inputs": [_tree_json(one, _input_json) for one in best.inputs],
        "returns": _returns_json(best.traced, names),
        "open_axes": sorted(_open(best)),
        "holds": sorted(best.traced.constants),
        "program": print_program(program),
        "regions": [_region_json(plan) for plan in best.regions],
        "winner": best.winner,
        "speedup": best.speedup,
        "measurements": {name: asdict(one) for name, one in best.measurements.items()},
        "floor_us": best.floor_us,
        "predicted_us": best.predicted_us,
        "floats": None if best.floats is None else asdict(best.floats) | {"ok": best.floats.ok},
        "verdicts": [str(plan.chosen.verdict) for plan in best.regions if plan.chosen],
        "opaque": [asdict(node) for node in program.opaque],
        "phases_ms": {name: round(ms, 3) for name, ms in best.phases_ms.items()},
        "ranked_by": None if best.ranked_by is None else asdict(best.ranked_by),
        "interrupted": best.interrupted,
        "stood_in": best.stood_in,
    }


def _region_json(plan: RegionPlan) -> dict[str, Any]:
    chosen = next((i for i, one in enumerate(plan.candidates) if one is plan.chosen), None)
    return {
        "goal": print_graph(plan.goal),
        "chosen": chosen,
        "candidates": [candidate_json(one) for one in plan.candidates],
        "dropped": [asdict(one) for one in plan.dropped],
        "floor_us": plan.floor_us,
    }


def _open(best: Optimized) -> frozenset[str]:
    """Return the axes that may change; tried by tracing, once."""
    if best.open_axes is None:
        assert best.function is not None
        from superopt.trace import trace

        whole = trace(best.function, *best.inputs, name=best.traced.program.name).program
        best.open_axes = open_axes(best.function, whole, best.inputs)
    return best.open_axes


def save(best: Optimized, path: Path) -> None:
    """Write a result to a file, all of it or nothing."""
    write_json(result_json(best), path)


def write_json(data: Mapping[str, Any], path: Path) -> None:
    """Write plain data to a file, all of it or nothing."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


class Result:
    """A result file that was read and checked: its parts as our own types, nothing built yet."""

    def __init__(self, data: Any, place: str) -> None:
        self.data = _checked(data, place)
        self.place = place
        self.target: Target = pick_target(str(data["target"]))
        self.options = OptimizeOptions(target=self.target.name, seed=int(data["seed"]))
        self.inputs: tuple[Any, ...] = tuple(_tree(one, _input) for one in data["inputs"])
        try:
            self.program: Program = parse_program(str(data["program"]))
        except GraphError as error:
            raise InputError(f"{place}: the program cannot be read: {error}") from error
        for region in self.program.regions:
            checked_names(region.graph)
        self.regions = [self._region(one) for one in data["regions"]]
        goals = [plan.goal for plan in self.regions]
        if goals != [region.graph for region in self.program.regions]:
            raise InputError(f"{place}: its regions are not those of its program")
        self.open_axes = frozenset(str(axis) for axis in data.get("open_axes") or ())
        self.source: Mapping[str, Any] | None = data["source"]

    def traced(self, function: Callable[..., Any] | None) -> "Traced":
        """Return the program to run: the function's own where it is given, which must be the same one."""
        if function is None:
            return self._alone()
        from superopt.trace import trace

        found = trace(function, *self.inputs, name=self.program.name)
        goals = [plan.goal for plan in self.regions]
        names = {goal.name: None for goal in goals}
        parts = [parts_of(release_shifts(region.graph), names) or [] for region in found.program.regions]
        traced = in_parts(found, goals)
        same = [goal for found_parts in parts for goal in found_parts] == goals
        if not same or print_program(traced.program) != print_program(self.program):
            raise InputError(f"{self.place}: the given function is not the one that this result was made for")
        return traced

    def _alone(self) -> "Traced":
        from superopt.trace.tape import Ref
        from superopt.trace.traced import Traced

        if self.program.opaque:
            listed = ", ".join(node.target for node in self.program.opaque)
            raise InputError(
                f"{self.place}: the program has operators of PyTorch's ({listed}); give function="
            )
        if self.data.get("holds"):
            listed = ", ".join(map(str, self.data["holds"]))
            raise InputError(
                f"{self.place}: the function holds tensors of its own ({listed}); give function="
            )
        if self.data.get("returns") is None:
            raise InputError(f"{self.place}: what the function returns is no plain structure; give function=")
        names: dict[int, str] = {}

        def leaf(data: Mapping[str, Any]) -> Any:
            if "tensor" not in data:
                return data.get("value")
            names[len(names)] = str(data["tensor"])
            return Ref(len(names) - 1)

        result = _tree(self.data["returns"], leaf)
        made = {port.name for port in self.program.inputs}
        made |= {name for node in self.program.nodes for name in node.outputs}
        if missing := [name for name in names.values() if name not in made]:
            raise InputError(f"{self.place}: it returns {missing[0]!r}, which nothing makes")
        inputs = tuple(port.name for port in self.program.inputs)
        return Traced(self.program, {}, inputs, {}, names, result)

    def work(self) -> list[Work]:
        """Return the candidates of each region that are proven equal to it again."""
        found = []
        for plan in self.regions:
            good: list[Candidate] = []
            for one in plan.candidates:
                verdict = proven_by_graph(plan.goal, one.graph, one.mugraph, seed=self.options.seed)
                if verdict is None:
                    log.warning("%s: %s of %s computes something else", self.place, one.name, plan.goal.name)
                    continue
                good.append(replace(one, verdict=verdict, measurement=None, rejected=None))
            found.append(Work(plan.goal, tuple(good), plan.dropped))
        return found

    def _region(self, data: Any) -> RegionPlan:
        goal = checked_graph(member(data, "goal", str, "a region"))
        candidates = tuple(
            candidate_from_json(one, self.target) for one in member(data, "candidates", list, "a region")
        )
        chosen = data.get("chosen")
        if chosen is not None and (type(chosen) is not int or not 0 <= chosen < len(candidates)):
            raise InputError(f"{self.place}: a region has no candidate {chosen!r}")
        dropped = tuple(Dropped(str(one["name"]), str(one["reason"])) for one in data.get("dropped") or ())
        return RegionPlan(
            goal, candidates, None if chosen is None else candidates[chosen], dropped, data.get("floor_us")
        )


def read_result(path: str | Path) -> Result:
    """Return a result file, checked, or raise InputError."""
    place = str(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{place!r} does not exist") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InputError(f"cannot read {place!r}: {said}") from error
    try:
        return Result(data, place)
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{place}: it is damaged: {type(error).__name__}: {error}") from error


def load(path: str | Path, function: Callable[..., Any] | None = None, *, retune: bool = False) -> Optimized:
    """Return the optimized program of a file that `Optimized.save` wrote; what it runs is proven equal again.

    `function` is the original; it may be left out where the program is all algebra.
    """
    result = read_result(path)
    data, target = result.data, result.target
    traced = result.traced(function)
    regions: list[RegionPlan] = []
    kernels: dict[str, Kernel] = {}
    winner = data["winner"]
    for plan in result.regions:
        chosen = plan.chosen
        if chosen is not None:
            if not chosen.configs:
                chosen = replace(chosen, configs=target.default_configs(chosen.mugraph))
            verdict = proven_by_graph(plan.goal, chosen.graph, chosen.mugraph, seed=result.options.seed)
            if verdict is None:
                raise InputError(
                    f"{path}: the kernel of {plan.goal.name} computes something else than its region"
                )
            fresh = replace(chosen, verdict=verdict, sources=_sources(target, chosen, result.place))
            plan = replace(
                plan,
                chosen=fresh,
                candidates=tuple(fresh if one is plan.chosen else one for one in plan.candidates),
            )
            if winner == "superopt" and target.available:
                try:
                    kernels[plan.goal.name] = target.make(fresh.mugraph, fresh.configs)
                except SuperoptError as error:
                    log.warning("%s: the original computes %s: %s", path, plan.goal.name, error)
        regions.append(plan)
    if winner == "superopt" and not target.available:
        log.warning("%s: made for %s, which is not here: the original computes", path, target.name)
    if data["device"] is not None and target.available and data["device"] != target.device_name:
        log.warning(
            "%s: measured on %s, here is %s; `superopt tune` measures anew",
            path,
            data["device"],
            target.device_name,
        )
    compiled = None
    if winner in PEERS[1:] and function is not None:
        compiled = compiled_by_torch(function, winner)
    return Optimized(
        function,
        traced=traced,
        target=target,
        options=replace(result.options, retune=retune),
        inputs=result.inputs,
        regions=regions,
        winner=winner,
        kernels=kernels,
        compiled=compiled,
        measurements={str(name): Measurement(**one) for name, one in data["measurements"].items()},
        floats=_floats(data["floats"]),
        phases_ms=data["phases_ms"],
        device=data["device"],
        source=result.source,
        open_axes=result.open_axes if function is None else None,
        ranked_by=_ranked_by(data.get("ranked_by")),
        interrupted=bool(data.get("interrupted")),
        stood_in=bool(data.get("stood_in")),
    )


def _sources(target: Target, chosen: Candidate, place: str) -> tuple[str, ...]:
    """Return the text of the kernels, or raise InputError where their configurations do not fit them."""
    try:
        return target.sources(chosen.mugraph, chosen.configs)
    except (KeyError, IndexError, ValueError, AssertionError) as error:
        raise InputError(f"{place}: a configuration of {chosen.name!r} does not fit its kernel") from error


def _checked(data: Any, place: str) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("superopt") != "result":
        raise InputError(
            f"{place!r} is not a result of superopt; `superopt optimize TARGET -o FILE` makes one"
        )
    if data.get("version") != VERSION:
        raise InputError(
            f"{place}: version {data.get('version')!r} is not known; this is superopt for {VERSION}"
        )
    if missing := [name for name in _KEYS if name not in data]:
        raise InputError(f"{place}: {missing[0]!r} is missing; the file is damaged")
    if data["winner"] not in (None, "superopt", *PEERS):
        raise InputError(
            f"{place}: the winner is {data['winner']!r}; it is superopt or one of {', '.join(PEERS)}"
        )
    return data


def _floats(data: Any) -> FloatReport | None:
    if data is None:
        return None
    reports = tuple(DistributionReport(**one) for one in data["distributions"])
    return FloatReport(data["dtype"], data["factor"], reports)


def _ranked_by(data: Any) -> RankedBy | None:
    if data is None:
        return None
    model, numbers = data["model"], [data[name] for name in ("learned", "analytical", "pairs")]
    if model not in ("learned", "analytical") or any(type(one) not in (int, float) for one in numbers):
        raise InputError(f"ranked_by is {data!r}; the file is damaged")
    return RankedBy(model, numbers[0], numbers[1], int(numbers[2]))


# -- structures of arguments and results


def _tree_json(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [_tree_json(one, leaf) for one in tree]}
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {"dict": {name: _tree_json(one, leaf) for name, one in tree.items()}}
    return leaf(tree)


def _tree(data: Any, leaf: Callable[[Mapping[str, Any]], Any]) -> Any:
    if "tuple" in data:
        return tuple(_tree(one, leaf) for one in data["tuple"])
    if "list" in data:
        return [_tree(one, leaf) for one in data["list"]]
    if "dict" in data:
        return {str(name): _tree(one, leaf) for name, one in data["dict"].items()}
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
    if type(value) in (bool, int, float, str, type(None)):
        return {"value": value}
    raise InputError(
        f"an input is a {type(value).__name__}; results with tensors, numbers and text can be saved"
    )


def _input(data: Mapping[str, Any]) -> Any:
    import torch

    from superopt.trace.run import TORCH_DTYPES

    if "value" in data:
        return data["value"]
    shape, strides = data["shape"], data["strides"]
    if data["dtype"] not in TORCH_DTYPES or any(
        type(size) is not int or size < 0 for size in (*shape, *strides)
    ):
        raise InputError(f"an input is {dict(data)!r}, which is no tensor")
    return torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[data["dtype"]], device="meta")


def _returns_json(traced: "Traced", names: Mapping[int, str]) -> Any:
    """Return what a function returns as plain data, or None where it is no plain structure."""
    from superopt.trace.tape import Ref

    def leaf(value: Any) -> dict[str, Any]:
        if isinstance(value, Ref):
            return {"tensor": names[value.index]}
        if type(value) in (bool, int, float, str, type(None)):
            return {"value": value}
        raise TypeError

    try:
        return _tree_json(traced.result, leaf)
    except TypeError:
        return None
