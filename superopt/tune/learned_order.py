"""Learned order: a model of the cost model's errors, fitted to measurements, that ranks configurations.

The model is the logarithm of measured over predicted time as a quadratic function of a configuration's
features, fitted to differences within one kernel on one device (what all configurations of a kernel share
cannot rank them), and shrunk towards no correction at all. It is used where, on kernels that it was not
fitted to, it orders more pairs rightly than the prediction alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log2
from typing import Any, Literal, TypeAlias

import numpy as np

from superopt.errors import InputError
from superopt.tune.records import check_record

__all__ = [
    "FEATURES",
    "Accuracy",
    "Choice",
    "Ranker",
    "accuracy",
    "choose",
    "features",
]

Row: TypeAlias = Mapping[str, Any]
Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Pairs: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"

FEATURES = (
    "tile elements",
    "longest tile",
    "shortest tile",
    "first tile",
    "last tile",
    "warps",
    "stages",
    "elements of a warp",
    "tiles",
    "tiles of a processor",
    "unfilled last round",
    "padding",
    "dynamic schedule",
    "tensor descriptors",
    "threads",
    "whole axes",
    "size",
    "predicted",
)
"""What the numbers of `features` are, most of them logarithms to base 2."""

_SHRINKING = (1000.0, 100.0, 10.0, 1.0, 0.1)
_MOST_CORRECTION = 3.0  # the most that the logarithm of a time is corrected by
_ALIKE = 0.02  # two times that differ by less than this share are not compared
_MARGIN = 0.01  # the learned model must order so much more of all pairs rightly
_LEAST_PAIRS = 50  # held out, on which a claim to be better can rest
_FOLDS = 5
_INNER_FOLDS = 2  # folds that choose how much the model is shrunk


def features(record: Row) -> Array:
    """Return the numbers that describe a kernel's size, its configuration and its device."""
    sizes, configuration, device = record["sizes"], record["configuration"], record["device"]
    whole = configuration.get("whole", ())
    tiles = [
        (int(sizes.get(axis, length)), int(sizes.get(axis, length) if axis in whole else length))
        for axis, length in configuration.get("tiles", ())
    ]
    lengths = [log2(max(length, 1)) for _, length in tiles] or [0.0]
    counts = [ceil(size / max(length, 1)) for size, length in tiles]
    count = float(np.prod([max(one, 1) for one in counts], dtype=float))
    padded = sum(
        log2(max(number, 1) * max(length, 1) / max(size, 1))
        for number, (size, length) in zip(counts, tiles, strict=True)
    )
    processors = max(float(device.get("processors", 1)), 1.0)
    warps = log2(max(int(configuration.get("num_warps", 1)), 1))
    longer = [one for one in lengths if one > 0] or [0.0]
    rounds = count / processors
    return np.array(
        [
            sum(lengths),
            max(lengths),
            min(longer),
            lengths[0],
            lengths[-1],
            warps,
            float(configuration.get("num_stages", 1)),
            sum(lengths) - warps,
            log2(count),
            log2(rounds),
            log2(ceil(rounds) / rounds),
            padded,
            float(configuration.get("schedule") == "dynamic"),
            float(bool(configuration.get("descriptors"))),
            log2(int(configuration.get("threads", 0)) or processors),
            float(len(configuration.get("whole", ()))),
            sum(log2(max(size, 1)) for size in sizes.values()),
            log2(record["predicted_us"]),
        ]
    )


@dataclass(frozen=True, slots=True)
class Ranker:
    """A correction of predicted times; it ranks configurations of one kernel on one device."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]

    def scores(self, records: Sequence[Row]) -> Array:
        """Return the logarithms of the corrected times."""
        if not records:
            return np.zeros(0)
        numbers = np.stack([features(one) for one in records])
        return self.corrected(numbers, np.log([one["predicted_us"] for one in records]))

    def corrected(self, numbers: Array, predicted: Array) -> Array:
        """Return the logarithms of predicted times, corrected by the features of each."""
        plain = (numbers - self.centre) / self.scale
        correction = np.clip(_squares(plain) @ np.array(self.weights), -_MOST_CORRECTION, _MOST_CORRECTION)
        return np.asarray(predicted + correction, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Known:
    """A record with its features, computed once."""

    kernel: str
    group: str  # measurements of one kernel, size, device and race, which may be compared
    numbers: Array
    predicted_us: float
    measured_us: float


def _trained(records: Sequence[_Known], seed: int) -> Ranker:
    right = np.zeros(len(_SHRINKING))
    if len({one.kernel for one in records}) > 2:
        for rest, held in _folds(records, seed)[:_INNER_FOLDS]:
            pairs = _pairs(held)
            if len(pairs):
                right += [_right(pairs, _scores(one, held)) for one in _fits(rest, _SHRINKING)]
    chosen = _SHRINKING[int(right.argmax())]  # of equally good ones, the one that corrects least
    return _fits(records, [chosen])[0]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The share of pairs, of configurations of kernels held out, that each model orders rightly."""

    learned: float
    analytical: float
    pairs: int


def accuracy(records: Iterable[Row], *, seed: int = 0) -> Accuracy:
    """Return how well both models order configurations of kernels that the learned one has not seen.

    The kernels are split in parts, and each part is held out in turn.
    """
    return _accuracy(_known(records), seed)


def _accuracy(records: Sequence[_Known], seed: int) -> Accuracy:
    learned = analytical = 0.0
    count = 0
    if len({one.kernel for one in records}) > 1:
        for rest, held in _folds(records, seed):
            pairs = _pairs(held)
            if len(pairs):
                count += len(pairs)
                learned += len(pairs) * _right(pairs, _scores(_trained(rest, seed), held))
                analytical += len(pairs) * _right(pairs, _predicted(held))
    return Accuracy(learned / count, analytical / count, count) if count else Accuracy(0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which model ranks better, and the ranker where it is the learned one."""

    use: Literal["learned", "analytical"]
    accuracy: Accuracy
    ranker: Ranker | None

    def scores(self, records: Sequence[Row]) -> list[float]:
        """Return what ranks records: corrected times, or the predicted ones."""
        if self.ranker is None:
            return [float(one["predicted_us"]) for one in records]
        return [float(one) for one in np.exp(self.ranker.scores(records))]


def choose(records: Iterable[Row], *, seed: int = 0) -> Choice:
    """Return the model to rank by: the learned one only where it beats the prediction on kernels held out."""
    known = _known(records)
    found = _accuracy(known, seed)
    if found.pairs >= _LEAST_PAIRS and found.learned > max(found.analytical + _MARGIN, 0.5):
        return Choice("learned", found, _trained(known, seed))
    return Choice("analytical", found, None)


def _known(records: Iterable[Row]) -> list[_Known]:
    listed = list(records)
    if not listed:
        raise InputError("there are no records; measure some configurations first")
    found = []
    for one in listed:
        check_record(one)
        group = [one["kernel"], one["sizes"], one["device"], one.get("race")]
        found.append(
            _Known(
                one["kernel"],
                json.dumps(group, sort_keys=True),
                features(one),
                float(one["predicted_us"]),
                float(one["measured_us"]),
            )
        )
    return found


def _fits(records: Sequence[_Known], shrinkings: Sequence[float]) -> list[Ranker]:
    """Return the ridge regressions on differences within each group, one for each strength."""
    plain = np.stack([one.numbers for one in records])
    centre, scale = plain.mean(axis=0), plain.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    inputs = _squares((plain - centre) / scale)
    wanted = np.array([log(one.measured_us / one.predicted_us) for one in records])
    for members in _groups(records):
        inputs[members] -= inputs[members].mean(axis=0)
        wanted[members] -= wanted[members].mean()
    return [
        Ranker(tuple(centre.tolist()), tuple(scale.tolist()), weights)
        for weights in _ridge(inputs, wanted, shrinkings)
    ]


def _ridge(inputs: Array, wanted: Array, shrinkings: Sequence[float]) -> list[tuple[float, ...]]:
    """Return the weights of least squares, shrunk by each strength.

    Matrices this small are solved on one thread: waiting for others takes longer, most of all on a busy
    machine.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = torch.from_numpy(inputs), torch.from_numpy(wanted)
        added = torch.tensor(shrinkings, dtype=a.dtype)[:, None, None] * torch.eye(a.shape[1], dtype=a.dtype)
        found = torch.linalg.solve(a.T @ a + added, a.T @ b)
    finally:
        torch.set_num_threads(threads)
    return [tuple(one) for one in found.tolist()]


def _scores(ranker: Ranker, records: Sequence[_Known]) -> Array:
    return ranker.corrected(np.stack([one.numbers for one in records]), _predicted(records))


def _predicted(records: Sequence[_Known]) -> Array:
    return np.log([one.predicted_us for one in records])


def _squares(plain: Array) -> Array:
    """Return the features, and the product of every two."""
    first, second = np.triu_indices(plain.shape[1])
    return np.hstack([plain, plain[:, first] * plain[:, second]])


def _groups(records: Sequence[_Known]) -> list[list[int]]:
    """Return the positions of the records that may be compared."""
    groups: dict[str, list[int]] = {}
    for at, one in enumerate(records):
        groups.setdefault(one.group, []).append(at)
    return list(groups.values())


def _pairs(records: Sequence[_Known]) -> Pairs:
    """Return the positions of all pairs, one a row, of which the first is measurably faster."""
    times = np.array([one.measured_us for one in records])
    found = [np.zeros((0, 2), dtype=np.intp)]
    for members in map(np.array, _groups(records)):
        first, second = np.nonzero(times[members][:, None] * (1 + _ALIKE) < times[members][None, :])
        found.append(np.stack([members[first], members[second]], axis=1))
    return np.concatenate(found)


def _right(pairs: Pairs, scores: Array) -> float:
    """Return the share of pairs that scores order as the measurements do; a tie counts half."""
    gap = scores[pairs[:, 1]] - scores[pairs[:, 0]]
    return float(np.mean((gap > 0) + 0.5 * (gap == 0)))


def _folds(records: Sequence[_Known], seed: int) -> list[tuple[list[_Known], list[_Known]]]:
    """Return the records split by kernel: for each part the rest, and the part."""
    kernels = sorted({one.kernel for one in records})
    np.random.default_rng(abs(seed)).shuffle(kernels)  # NumPy takes no seed below 0
    folds = []
    for number in range(min(_FOLDS, len(kernels))):
        part = set(kernels[number::_FOLDS])
        rest = [one for one in records if one.kernel not in part]
        folds.append((rest, [one for one in records if one.kernel in part]))
    return folds
