"""How well the cost model orders ways to run a program on this machine's processor, by family of programs.

    python -m bench.costs --json OUT                       every program, on one thread
    python -m bench.costs --family softmax,norm --json OUT
    python -m bench.costs --held-out --json OUT            programs of which the model knows nothing
    python -m bench.costs --data OUT                       the times that OUT has, by the model of today

OUT has the rates of the machine, too, by which its times are predicted again.

Measured: many ways to run each program, the schedules that are ranked first and others that are drawn, in
default and in other configurations. Against: the times that the cost model predicts. `right` is the share of
pairs, of those that differ by more than a tenth in two measurements, that are predicted in their order;
`regret` is by how much the best of the eight predicted best takes longer than the best of all. Nothing in the
model is fitted to a run: its rates are constants of `superopt.cost.cpu.rates`, or measured of the machine.

On one thread it is the processor's time that counts, which other programs lengthen little. On more threads
let nothing else run meanwhile.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superopt.bench.costs.measure import (
    Way,
    compiled,
    kept_device,
    kept_way,
    plain_device,
    predicted_us,
    timed,
    ways_of,
)
from superopt.bench.costs.programs import FAMILIES, HELD_OUT, PROGRAMS, Program
from superopt.bench.costs.score import Score, score, together
from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.harness.records import Record, failed
from superopt.bench.harness.results import Results, begin, machine, read_results, resumed, tell
from superopt.cost import Device
from superopt.errors import InputError, SuperoptError
from superopt.targets import Target, pick_target

__all__ = ["main"]

_RANKED, _DRAWN, _OTHERS = 6, 6, 4  # ways that are ranked first, drawn ones, and other configurations


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the programs that are asked for; return 0 where one was scored."""
    parser = Parser("costs", __doc__)
    parser.add_argument("--family", default="", help=f"only these, by commas: {', '.join(FAMILIES)}")
    parser.add_argument("--case", default="", help="only these programs, by commas, as in matmul/512")
    parser.add_argument("--held-out", action="store_true", help="the programs that the model was not made by")
    parser.add_argument("--threads", type=from_one, default=1, help="threads of a kernel (default: 1)")
    parser.add_argument("--seconds", type=above_zero, default=0.25, help="for each way (default: 0.25)")
    parser.add_argument("--seed", type=int, default=1, help="of the ways that are drawn (default: 1)")
    parser.add_argument("--minutes", type=above_zero, default=40.0, help="begin no program after them")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here after every program")
    parser.add_argument("--resume", action="store_true", help="keep the results that OUT has, and go on")
    parser.add_argument("--data", type=Path, help="score the times in this file; measure nothing")
    return parser.run(arguments, _run)


def _run(options: Namespace) -> int:
    import torch

    families, names = listed(options.family), listed(options.case)
    programs = HELD_OUT if options.held_out else PROGRAMS
    check_names("--family", families, list(dict.fromkeys(one.family for one in programs)))
    check_names("--case", names, [one.name for one in programs])
    document = read_results(options.data) if options.data else None
    if document is not None and document["suite"] != "costs":
        raise InputError(f"{str(options.data)!r} is a result of {document['suite']}, not of costs")
    before = torch.get_num_threads()
    torch.set_num_threads(document["settings"]["threads"] if document else options.threads)
    try:
        if document is not None:
            records = _scored_again(document["cases"], pick_target("cpu"))
        else:
            wanted = [
                one
                for one in programs
                if (not families or one.family in families) and (not names or one.name in names)
            ]
            records = _measured(wanted, options, pick_target("cpu"))
    finally:
        torch.set_num_threads(before)
    for line in _table(records):
        tell(line)
    return 0 if any("pairs" in one for one in records.values()) else 1


def _measured(programs: Sequence[Program], options: Namespace, target: Target) -> dict[str, Record]:
    """Return the record of each program, measured now."""
    check_out(options.json, resume=options.resume)
    settings = {"threads": options.threads, "seconds": options.seconds, "seed": options.seed}
    cases = resumed(options.json, resume=options.resume)["cases"]
    document = begin("costs", settings, machine(), cases)
    results = Results([one.name for one in programs], options.json, document, _families)
    by_name = {one.name: one for one in programs}
    for name in results.left(options.minutes):
        program = by_name[name]
        known = {"case": name, "family": program.family, "ratio": None}
        try:
            ways = ways_of(program, target, ranked=_RANKED, drawn=_DRAWN, others=_OTHERS, seed=options.seed)
            ways = timed(compiled(ways, target), target, seconds=options.seconds, seed=options.seed)
            device = target.cost_device()
            kept = {"host": plain_device(device), "ways": [way.kept() for way in ways]}
            record = known | _scored(ways, device) | kept
        except SuperoptError as error:
            record = failed(known, error)
        results.keep(name, record)
        tell(_line(name, record))
    return results.records


def _scored_again(cases: Mapping[str, Record], target: Target) -> dict[str, Record]:
    """Return records with the score of the model of today, by the rates of the machine that was timed."""
    found = {}
    for name, record in cases.items():
        ways = [kept_way(one, target) for one in record.get("ways", ())]
        device = kept_device(record["host"]) if "host" in record else target.cost_device()
        found[name] = {**record, **_scored(ways, device)} if ways else record
        tell(_line(name, found[name]))
    return found


def _scored(ways: Sequence[Way], device: Device) -> Record:
    """Return how well the times of ways are predicted."""
    predicted = [predicted_us(way, device) for way in ways]
    return _plain(score(predicted, [way.us for way in ways])) | {"predicted_us": predicted}


def _plain(found: Score) -> Record:
    return {"pairs": found.pairs, "right": found.right, "regret": found.regret}


def _families(records: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the score of each family, and the lowest share of all."""
    by_family: dict[str, list[Score]] = {}
    for one in records:
        if "pairs" in one:
            by_family.setdefault(one["family"], []).append(Score(one["pairs"], one["right"], one["regret"]))
    scores = {family: together(found) for family, found in by_family.items()}
    return {"by family": {family: {**_plain(one), "share": one.share} for family, one in scores.items()}}


def _line(name: str, record: Record) -> str:
    if "pairs" not in record:
        return f"{name}: {record.get('error')}"
    found = Score(record["pairs"], record["right"], record["regret"])
    return f"{record['family']}, {name}: {found.share:.0%} of {found.pairs} pairs, regret {found.regret:.1%}"


def _table(records: Mapping[str, Record]) -> list[str]:
    found = _families(records.values())["by family"]
    lines = [
        f"{family:22} {one['share']:5.0%} of {one['pairs']:4} pairs, regret {one['regret']:.1%}"
        for family, one in found.items()
    ]
    mean = sum(one["share"] for one in found.values()) / max(len(found), 1)
    return [*lines, f"{'mean of families':22} {mean:5.0%}"]


if __name__ == "__main__":
    raise SystemExit(main())
