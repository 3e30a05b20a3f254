"""Two results of one suite: which cases became faster, which slower, and which the times leave open."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

from superopt.bench.harness.intervals import Interval, change, verdict
from superopt.bench.harness.records import Record, launches_of
from superopt.errors import InputError

__all__ = ["Comparison", "Row", "compare_results"]

_SAME = ("device", "instructions", "cores", "threads")
_TOLD = ("python", "torch", "superopt", "compiler", "cuda")


@dataclass(frozen=True, slots=True)
class Row:
    """One case in both results: its times, and its change without the change of the machine."""

    case: str
    old_us: float
    new_us: float
    baseline: str  # empty where none was measured in both
    change: Interval
    verdict: str  # faster, slower, same, unclear, or broken: it worked in the old one
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cases that both results have, and notes on how far they can be compared."""

    suite: str
    tolerance: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[str, ...]:
        """The cases that are surely slower than the tolerance allows, or that no longer work."""
        return tuple(row.case for row in self.rows if row.verdict in ("slower", "broken"))


def compare_results(
    old: Record, new: Record, *, tolerance: float = 0.05, any_machine: bool = False
) -> Comparison:
    """Return how each case changed, or raise InputError where the two have nothing to do with each other."""
    if old["suite"] != new["suite"]:
        raise InputError(f"the results are of different suites, {old['suite']} and {new['suite']}")
    differing = [
        f"{name} {old['machine'].get(name)} and {new['machine'].get(name)}"
        for name in _SAME
        if old["machine"].get(name) != new["machine"].get(name)
    ]
    if differing and not any_machine:
        raise InputError(
            f"the results are of different machines ({'; '.join(differing)}): measure both on one,"
            " or compare their ratios to the baseline by --any-machine"
        )
    common = [name for name in old["cases"] if name in new["cases"]]
    if not common:
        raise InputError("the results have no case in common")
    notes = [f"different machines: {one}" for one in differing]
    notes += [
        f"{name} {old['machine'].get(name)} and {new['machine'].get(name)}: the baseline may differ, too"
        for name in _TOLD
        if old["machine"].get(name) != new["machine"].get(name)
    ]
    for which, one, other in (("old", old, new), ("new", new, old)):
        if missing := [name for name in one["cases"] if name not in other["cases"]]:
            notes.append(f"only in the {which} result: {', '.join(missing)}")
    rows = [_row(name, old["cases"][name], new["cases"][name], tolerance) for name in common]
    launches = [
        len(launches_of(one["cases"][row.case]))
        for one in (old, new)
        for row in rows
        if row.verdict != "broken" and not row.note.startswith("no ")
    ]
    if launches and min(launches) < 3:
        notes.append(
            f"of {min(launches)} launch{'es' if min(launches) > 1 else ''}: how much launches differ"
            " is guessed; --repeat 5 measures it"
        )
    return Comparison(old["suite"], tolerance, tuple(rows), tuple(notes))


def _row(name: str, old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> Row:
    unknown = Interval(nan, nan, nan)
    before, after = _median(old), _median(new)
    if before != before or after != after:
        reason = str((new if after != after else old).get("error"))
        broken = before == before
        note = reason if broken else f"no time in the old result: {reason}"
        return Row(name, before, after, "", unknown, "broken" if broken else "unclear", note)
    if not all(one.get("blocks_us", {}).get(one["ours"]) for one in (old, new)):
        known = Interval(after / before, nan, nan)
        return Row(name, before, after, "", known, "unclear", "no blocks of times in both results")
    note, baseline = _baseline(old, new)
    found = change(
        launches_of(old, baseline=bool(baseline)),
        launches_of(new, baseline=bool(baseline)),
    )
    return Row(name, before, after, baseline, found, verdict(found, tolerance), note)


def _median(record: Mapping[str, Any]) -> float:
    """Return the time of ours, or NaN where there is none."""
    if record.get("error") or "measured" not in record:
        return nan
    return float(record["measured"][record["ours"]]["median_us"])


def _baseline(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
    """Return a note, and the baseline by which the two records can be compared, if there is one."""
    if old.get("program") != new.get("program"):
        return "another program: times are compared as they are", ""
    name = old["baseline"]
    if name != new["baseline"] or not all(one["blocks_us"].get(name) for one in (old, new)):
        return "no common baseline: times are compared as they are", ""
    return "", name
