"""Records: measured configurations as plain dictionaries, kept in the cache as measurements.

    {"kernel": text, "sizes": {axis: size}, "configuration": {...}, "device": {"name": ..., "processors": n},
     "race": {...}, "predicted_us": float, "measured_us": float}

Only records of one `race` may be compared: it holds what else the times depend on, such as the
configurations of the other kernels of a muGraph. The prediction is not kept: whoever loads the records
predicts anew, by the cost model of the day.
"""

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import InputError
from superopt.tune.measure import Measurement

__all__ = ["check_record", "load_records", "save_measurement"]

_PARTS = {
    "kernel": str,
    "sizes": Mapping,
    "configuration": Mapping,
    "device": Mapping,
    "predicted_us": (int, float),
    "measured_us": (int, float),
}


def check_record(record: Mapping[str, Any]) -> None:
    """Raise InputError where a record lacks a part or holds a time that is none."""
    for name, kind in _PARTS.items():
        if not isinstance(record.get(name), kind):  # type: ignore[arg-type]
            raise InputError(f"a record's {name} is {record.get(name)!r}; it needs {', '.join(_PARTS)}")
    for name in ("predicted_us", "measured_us"):
        if not (isfinite(record[name]) and record[name] > 0):
            raise InputError(f"a record's {name} is {record[name]!r}; give a time above 0")


def save_measurement(
    cache: Cache,
    measurement: Measurement,
    *,
    program: str,
    kernel: str,
    sizes: Mapping[str, int],
    configuration: Mapping[str, Any],
    device: Mapping[str, Any],
    race: Mapping[str, Any] | None = None,
    label: str = "",
) -> Key:
    """Keep what was measured of a kernel in one configuration, and return its key.

    `program` is the canonical text of the whole program, `kernel` that of the muGraph, `device` its name
    and numbers, `race` what all have in common that it was raced against.
    """
    key = key_of(
        "measurement",
        program=program,
        kernel=kernel,
        configuration=dict(configuration),
        device=str(device["name"]),
        options={
            "sizes": dict(sizes),
            "device": dict(device),
            "method": measurement.method,
            "race": dict(race or {}),
        },
        **versions(),
    )
    kept = {
        "median_us": measurement.median_us,
        "repeats": measurement.rounds,
        "quantiles_us": {f"{share:g}": time for share, time in measurement.quantiles_us},
        "note": measurement.note,
    }
    cache.put(key, Record(kept, label))
    return key


def load_records(
    cache: Cache,
    predict: Callable[[Mapping[str, Any]], float],
    *,
    device: str | None = None,
    newest: int | None = None,
) -> list[dict[str, Any]]:
    """Return the measurements in a cache, of one device or of all, each with its predicted time.

    `newest` limits them to the last so many. `predict` is given a record that has no times; where it
    returns no time above 0, the record is left out.
    """
    found = []
    for parts, kept in cache.records("measurement", device=device, newest=newest):
        options, median_us = parts["options"], kept.data.get("median_us")
        if not isinstance(median_us, int | float) or not 0 < median_us < inf:
            continue  # a failure
        if not isinstance(options, Mapping) or not {"sizes", "device"} <= set(options):
            continue  # the time of a whole program
        record = {
            "kernel": parts["kernel"],
            "sizes": options["sizes"],
            "configuration": parts["configuration"],
            "device": options["device"],
        }
        if options.get("race"):
            record["race"] = options["race"]
        predicted = predict(record)
        if isfinite(predicted) and predicted > 0:
            found.append({**record, "predicted_us": predicted, "measured_us": float(median_us)})
    return found
