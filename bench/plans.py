"""Plans for the cases of `bench.gpu`, made without a GPU: searched, scheduled, compiled ahead of time.

    python -m bench.plans [--suite all|decode|prefill] [--workloads A,B] [--dtype f16] [--out bench/plans]

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
from dataclasses import fields
from pathlib import Path
from typing import Any

from superopt.bench.command import Parser, check_names, mistakes_told
from superopt.bench.gpucases import CASES, DTYPES, SUITES, Case
from superopt.errors import InputError, SuperoptError
from superopt.files import replace_text
from superopt.plans.plan import Candidate
from superopt.targets import config_json
from superopt.workloads import WORKLOADS

__all__ = ["FOLDER", "chosen_cases", "make_plan", "write_plan"]

FOLDER = Path(__file__).with_name("plans")
_CANDIDATES = 8  # of a region
_WIDE = 4  # of them with other configurations
_OTHERS = 8  # of each kernel


def make_plan(case: Case, dtype: str, target: str) -> dict[str, Any]:
    """Return the plan of a case as plain data that is the same on every machine."""
    from superopt import optimize
    from superopt.plans import OptimizeOptions
    from superopt.plans.saved import result_json

    best = optimize(
        case.function,
        *case.inputs(dtype),
        name=case.workload,
        options=OptimizeOptions(target=target, measure=False, cache=False),
        source={"workload": case.workload, "sizes": dict(case.sizes)},
    )
    data = result_json(best)
    data |= {"versions": {}, "phases_ms": {}, "verdicts": []}
    for plan, region in zip(best.regions, data["regions"], strict=True):
        good = [at for at, one in enumerate(plan.candidates) if not one.rejected][:_CANDIDATES]
        region["candidates"] = [
            _bare(plan.candidates[at], region["candidates"][at])
            | {"others": _others(plan.candidates[at], best.target, place)}
            for place, at in enumerate(good)
        ]
        region["chosen"] = good.index(region["chosen"]) if region["chosen"] in good else None
        region["dropped"] = []
    return data


def _bare(candidate: Candidate, data: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate as data without what follows from the rest."""
    kept = {name: value for name, value in data.items() if value is not None}
    return kept | {
        "sources": [],
        "configs": [None if one is None else _short(one) for one in candidate.configs],
    }


def _short(config: Any) -> dict[str, Any]:
    """Return a configuration without fields that have their default, or are found anew where it runs."""
    usual = {one.name: one.default for one in fields(config)}
    data: dict[str, Any] = config_json(config)
    return {
        name: value
        for name, value in data.items()
        if name != "exact" and getattr(config, name) != usual[name]
    }


def _others(candidate: Candidate, target: Any, place: int) -> list[list[dict[str, Any]]]:
    """Return the configurations of each kernel that are predicted to be the next best."""
    from superopt.plans.ranking import Ranking, likely

    if place >= _WIDE:
        return []
    ranking = Ranking(target)
    return [
        [] if config is None else [_short(one) for one in likely(candidate, number, ranking, _OTHERS)]
        for number, config in enumerate(candidate.configs)
    ]


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


def chosen_cases(suite: str, workloads: Sequence[str] = (), names: Sequence[str] = ()) -> list[Case]:
    """Return the cases of a suite, of some workloads or all, of some names or all."""
    return [
        case
        for case in CASES
        if suite in ("all", case.suite)
        and (not workloads or case.workload in workloads)
        and (not names or case.case in names or case.name in names)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the plans; return the exit code."""
    parser = Parser(prog="python -m bench.plans", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", choices=SUITES, default="all", help="which cases (default: all)")
    parser.add_argument("--workloads", default="", help="only these, by commas")
    parser.add_argument("--case", default="", help="only cases of these names, by commas, as in decode-8")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="of the tensors (default: f16)")
    parser.add_argument("--target", default="cuda:90", help="the device to plan for (default: cuda:90)")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help=f"default: {FOLDER.name}")
    parser.add_argument("--missing", action="store_true", help="only those that are not there yet")
    options = parser.parse_args(arguments)
    with mistakes_told(parser):
        return _make_all(options)


def _make_all(options: argparse.Namespace) -> int:
    from superopt.targets import pick_target

    check_names("--workloads", _listed(options.workloads), list(WORKLOADS))
    cases = chosen_cases(options.suite, _listed(options.workloads), _listed(options.case))
    if not cases:
        raise InputError("no case is of these names; `python -m bench.gpu --list` shows all")
    pick_target(options.target)
    _make_folder(options.out)
    failed = 0
    for case in cases:
        place = case.plan(options.out, options.dtype)
        if options.missing and place.exists():
            continue
        start = time.perf_counter()
        try:
            data = make_plan(case, options.dtype, options.target)
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


def _make_folder(folder: Path) -> None:
    """Make the folder of the plans, or raise InputError: before any of them is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(folder)!r} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--out {str(folder)!r}: nothing can be written in it")


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    raise SystemExit(main())
