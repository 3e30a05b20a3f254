"""Records: what the times of one case say, from one launch or from several.

A record has `measured`, the median and the quantiles of each contender; `blocks_us`, what each block of
each launch said (`superopt.bench.harness.blocks`); `ours` and `baseline`, the names of what is compared;
and `ratios`, the times of all others over ours. The record of a case that failed has an `error` instead.
"""

import statistics
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.blocks import in_blocks, quartiles
from superopt.bench.harness.intervals import Launch, speed
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.tune.measure import Times

__all__ = [
    "Means",
    "Record",
    "failed",
    "first_line",
    "geometric_means",
    "launch_record",
    "launches_of",
    "line",
    "merged",
    "with_floor",
]

Record = dict[str, Any]
Means = dict[str, dict[str, dict[str, Any]]]


# -- one launch


def launch_record(
    taken: Mapping[str, "Times"],
    ours: str,
    baseline: str,
    *,
    blocks: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Record:
    """Return what the times of one process say; without `blocks`, the times are cut into some."""
    measured = {name: one.summary() for name, one in taken.items()}
    blocks = blocks or in_blocks({name: one.us for name, one in taken.items()})
    return {
        "ours": ours,
        "baseline": baseline,
        "measured": {name: _plain(asdict(one)) for name, one in measured.items()},
        "blocks_us": {name: [found] for name, found in quartiles(blocks).items()},
        **_ratios({name: one.median_us for name, one in measured.items()}, ours),
    }


def _ratios(medians: Mapping[str, float], ours: str) -> Record:
    rivals = {name: us for name, us in medians.items() if name != ours}
    best = min(rivals, key=lambda name: rivals[name], default=None)
    return {
        "ratios": {name: us / medians[ours] for name, us in rivals.items()},
        "best_peer": best,
        "ratio": None if best is None else rivals[best] / medians[ours],
    }


def _plain(data: Mapping[str, Any]) -> Record:
    return {
        key: [list(one) for one in value] if isinstance(value, tuple) else value
        for key, value in data.items()
    }


def first_line(text: str) -> str:
    """Return the first line of a message that is not empty."""
    return next((line for line in text.splitlines() if line.strip()), "no message")


def failed(known: Mapping[str, Any], error: BaseException) -> Record:
    """Return the record of a case that failed: what is known of it, the error, and where it was raised.

    An error that the user can mend has no place worth showing.
    """
    record = {**known, "error": f"{type(error).__name__}: {first_line(str(error))}"}
    if isinstance(error, SuperoptError):
        return record
    return {**record, "traceback": traceback.format_exception(error)[-4:]}


def line(record: Mapping[str, Any]) -> str:
    """Return a record in one line."""
    if record.get("ratio") is None:
        return f"{record['case']}: {record.get('error')}"
    times = ", ".join(f"{name} {one['median_us']:.1f}" for name, one in record["measured"].items())
    return f"{record['case']}: {record['ratio']:.2f} of {record['best_peer']}; µs: {times}"


# -- several launches


def merged(records: Sequence[Record]) -> Record:
    """Return the record of several launches of one case: the median of their medians, all of their blocks.

    Where one launch failed, its record says why, and counts for all.
    """
    broken = next((one for one in records if one.get("error") or "blocks_us" not in one), None)
    if broken is not None:
        return dict(broken)
    first = records[0]
    names = [name for name in first["measured"] if all(name in one["measured"] for one in records)]
    measured = {name: _merged([one["measured"][name] for one in records]) for name in names}
    blocks = {name: [part for one in records for part in one["blocks_us"][name]] for name in names}
    medians = {name: one["median_us"] for name, one in measured.items()}
    return {**first, "measured": measured, "blocks_us": blocks, **_ratios(medians, first["ours"])}


def _merged(several: Sequence[Record]) -> Record:
    def middle(field: str) -> float:
        return float(statistics.median(one[field] for one in several))

    shares = [share for share, _ in several[0]["quantiles_us"]]
    return {
        **several[0],
        **{field: middle(field) for field in ("median_us", "low_us", "high_us")},
        "rounds": sum(one["rounds"] for one in several),
        "quantiles_us": [
            [share, statistics.median(one["quantiles_us"][at][1] for one in several)]
            for at, share in enumerate(shares)
        ],
    }


def launches_of(record: Mapping[str, Any], *, baseline: bool = True) -> list[Launch]:
    """Return the blocks of a record as the statistics take them."""
    blocks = record["blocks_us"]
    ours = blocks[record["ours"]]
    base = blocks.get(record["baseline"]) if baseline else None
    return [
        Launch(one, base[at] if base is not None and at < len(base) else []) for at, one in enumerate(ours)
    ]


def with_floor(record: Record, floor: float | None) -> Record:
    """Return a record with how many times as fast as its baseline it is, and whether that is enough."""
    if record.get("error"):
        return record
    try:
        found = speed(launches_of(record))
    except (IndexError, KeyError) as error:
        raise SuperoptError(f"{record['case']}: its times are damaged") from error
    about = {"ratio": found.ratio, "low": found.low, "high": found.high}
    return record | {"speed": about, "floor": floor, "held": floor is None or found.high >= floor}


# -- several cases


def geometric_means(records: Iterable[Mapping[str, Any]], *groups: str) -> Means:
    """Return the geometric mean of each rival's time over ours, and of how many cases, group by group.

    `groups` are the fields whose values are groups; all cases together are one more.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.get("ratio") is None:
            continue
        for group in (*(record[field] for field in groups), "all"):
            found = ratios.setdefault(group, {})
            for name, ratio in {**record["ratios"], "best peer": record["ratio"]}.items():
                found.setdefault(name, []).append(ratio)
    return {
        group: {
            name: {"mean": statistics.geometric_mean(several), "cases": len(several)}
            for name, several in sorted(found.items())
        }
        for group, found in sorted(ratios.items())
    }
