"""Plans for the cases of `bench.gpu`, made without a GPU: searched, scheduled, compiled ahead of time.

    python -m bench.plans [--suite all|decode|prefill] [--workloads A,B] [--dtype f16] [--out bench/plans]
    python -m bench.plans --mend OUT            plans without the faults of an audit, which is written to OUT

Each plan is a result file that `superopt tune` takes, too. It holds muGraphs and configurations, no
sources: kernels are written anew where they run. Beside its configuration a candidate has the `others`
that are predicted to be the next best of each kernel, so that nothing is predicted on the GPU's time.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from superopt.bench.harness.command import Parser, check_names
from superopt.bench.harness.results import tell
from superopt.bench.kernels.cases import Case, chosen
from superopt.bench.kernels.gpu_cases import DTYPES, SUITES, of_suite, plan_of
from superopt.bench.planned.audits import Audits
from superopt.bench.planned.loaded import Loaded, Settings, load_case, plan_data
from superopt.bench.planned.mend import Changes
from superopt.candidates import Candidate
from superopt.candidates.alike import alike_last
from superopt.candidates.candidate import SCHEDULED
from superopt.candidates.codec import candidate_json
from superopt.candidates.order import ConfigurationOrder, likely
from superopt.errors import InputError, SuperoptError
from superopt.fate import Kind
from superopt.files import replace_text
from superopt.funnel.compile_ahead import ensure_compiled
from superopt.targets import config_json

__all__ = ["FOLDER", "make_plan", "write_plan"]

Preset = Literal["quick", "full"]
FOLDER = Path(__file__).with_name("plans")
_CANDIDATES = 8  # that a plan keeps of each region
_COMPILED = 5  # of these, compiled in their own configurations
_FAR = 2.0  # times the least predicted time: what should take longer is not worth the time of a GPU
_WIDE = 4  # candidates whose other configurations are kept as well
_OTHERS = 8  # configurations of each kernel
_ALL = 1 << 16  # more candidates than a plan has
_CHOSEN = {"stage": "choose", "kind": "chosen", "reason": ""}
_SLOWER = {"stage": "choose", "kind": "slower", "reason": "predicted to be slower"}


def make_plan(case: Case, dtype: str, target: str, preset: Preset = "quick") -> dict[str, Any]:
    """Return the plan of a case as plain data that is the same on every machine."""
    from superopt import optimize
    from superopt.options import OptimizeOptions

    best = optimize(
        case.function,
        *case.inputs(dtype),
        name=case.workload,
        options=OptimizeOptions(target=target, preset=preset, measure=False, cache=False),
        source={"workload": case.workload, "sizes": dict(case.sizes)},
    )
    data = best.to_json()
    data |= {"versions": {}, "phases_ms": {}, "verdicts": []}
    order = ConfigurationOrder(best.target)
    for plan, region in zip(best.regions, data["regions"], strict=True):
        region["candidates"] = [
            _bare(one) | {"others": _others(one, order, place)}
            for place, one in enumerate(_worth_racing(plan.candidates, best.target, order))
        ]
        region["dropped"] = []
    return data


def _worth_racing(candidates: Sequence[Candidate], target: Any, order: ConfigurationOrder) -> list[Candidate]:
    """Return the candidates of a plan, the first of which the compiler has seen whole."""
    fates = {one.id: one.fate for one in candidates if one.fate.is_sound}
    different, alike = alike_last(replace(one, fate=SCHEDULED) for one in candidates if one.id in fates)
    sound = [*different, *alike][:_CANDIDATES]
    found = [one for one in ensure_compiled(sound, target, order, _COMPILED) if one.is_kept]
    least = min((one.us for one in found), default=0.0)
    chosen = [one for one in found if fates[one.id].kind is Kind.CHOSEN]
    near = [one for one in found if one.us <= _FAR * least and not one.spills and one not in chosen]
    return [replace(one, fate=fates[one.id]) for one in (*chosen, *near)]


def _bare(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as data without what follows from the rest."""
    kept = {name: value for name, value in candidate_json(candidate).items() if value is not None}
    return kept | {
        "sources": [],
        "configs": [None if one is None else _short(one) for one in candidate.configs],
    }


def _short(config: Any) -> dict[str, Any]:
    """Return a configuration without fields that have their default, or that the device finds anew."""
    usual = {one.name: one.default for one in fields(config)}
    data: dict[str, Any] = config_json(config)
    return {
        name: value
        for name, value in data.items()
        if name != "exact" and getattr(config, name) != usual[name]
    }


def _others(candidate: Candidate, order: ConfigurationOrder, place: int) -> list[list[dict[str, Any]]]:
    """Return the configurations of each kernel that are predicted to be the next best.

    The last one keeps the range of fp32 where the others round to fp16: they may be refused.
    """
    if place >= _WIDE:
        return []
    found = []
    for number, config in enumerate(candidate.configs):
        several = [] if config is None else likely(candidate, number, order, _OTHERS)
        if several and all(one.rounds_operands for one in (config, *several)):
            several[-1] = likely(replace(candidate, wide=(number,)), number, order, 1)[0]
        found.append([_short(one) for one in several])
    return found


def write_plan(data: dict[str, Any], place: Path) -> None:
    """Write a plan, its keys sorted and its times rounded."""
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        _rounded(data), sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    replace_text(place, text.replace('{"configs":', '\n{"configs":') + "\n")


def _rounded(data: Any) -> Any:
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {name: _rounded(one) for name, one in data.items()}
    return [_rounded(one) for one in data] if isinstance(data, list) else data


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the plans; return the exit code."""
    parser = Parser("plans", __doc__)
    add = parser.add_argument
    parser.add_cases(SUITES, DTYPES, "f16", "decode-8")
    add("--device", dest="target", default="h200", help="the device to plan for (default: h200)")
    add("--out", type=Path, default=FOLDER, metavar="FOLDER", help=f"default: {FOLDER.name}")
    add("--preset", choices=("quick", "full"), default="full", help="how many kernels are compiled ahead")
    add("--missing", action="store_true", help="make only the plans that are not there yet")
    add("--mend", type=Path, metavar="AUDIT", help="mend the plans that are there, and write their audit")
    add("--list", action="store_true", help="print the cases")
    return parser.run(arguments, _make_all)


def _make_all(options: argparse.Namespace) -> int:
    from superopt.targets import pick_target

    check_names("--dtype", [options.dtype], DTYPES)
    cases = chosen(options, of_suite(options.suite))
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    pick_target(options.target)
    _make_folder(options.out)
    if options.mend is not None:
        return _mend_all(cases, options)
    failed = 0
    for case in cases:
        place = plan_of(case, options.out, options.dtype)
        if options.missing and place.exists():
            continue
        start = time.perf_counter()
        try:
            data = make_plan(case, options.dtype, options.target, options.preset)
        except SuperoptError as error:
            failed += 1
            print(f"{case.name:36} no plan: {error}", file=sys.stderr, flush=True)
            continue
        write_plan(data, place)
        seconds = time.perf_counter() - start
        count = sum(len(region["candidates"]) for region in data["regions"])
        us = data["predicted_us"]
        predicted = "" if us is None else f"{us:9.1f} µs predicted, {data['floor_us'] or 0:.1f} at least"
        print(f"{case.name:36} {count:3} candidates {predicted}  {seconds:.1f} s", flush=True)
    return 1 if failed else 0


def _mend_all(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """Mend the plans of all cases that have one; return 1 where a fault is left."""
    audits = Audits(options.mend, options.target, best=_COMPILED, resume=True)
    settings = Settings(options.out, options.dtype, trials=_ALL)
    done = []

    def changed(loaded: Loaded, changes: Changes) -> Loaded:
        place = plan_of(loaded.case, options.out, options.dtype)
        write_plan(_with_changes(plan_data(loaded.case, settings), changes), place)
        return load_case(loaded.case, settings)

    for case in cases:
        try:
            audits.mend(load_case(case, settings), changed)
        except InputError as error:
            tell(f"{case.name}: {error}")
            continue
        done.append(case.name)
    return audits.told(done)


def _with_changes(data: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Return a plan with candidates changed or left out; a variant is one of the `others` of a candidate."""
    for at, region in enumerate(data["regions"]):
        kept = []
        for saved in region["candidates"]:
            one = changes.get((at, saved["id"]), saved)
            if one is None:
                continue
            others = [
                [
                    config
                    for turn, config in enumerate(several)
                    if (at, f"{saved['id']}.{n}.{turn}") not in changes
                ]
                for n, several in enumerate(saved.get("others") or [])
            ]
            kept.append({**saved, **({} if one is saved else _bare(one)), "others": others})
        kept.sort(key=lambda one: one["predicted_us"])
        for place, one in enumerate(kept):
            one["fate"] = _SLOWER if place else _CHOSEN
        region |= {"candidates": kept, "chosen": kept[0]["id"]}
    data["predicted_us"] = sum(region["candidates"][0]["predicted_us"] for region in data["regions"])
    return data


def _make_folder(folder: Path) -> None:
    """Make the folder of the plans, or raise InputError before any plan is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(folder)!r} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--out {str(folder)!r}: nothing can be written in it")


if __name__ == "__main__":
    raise SystemExit(main())
