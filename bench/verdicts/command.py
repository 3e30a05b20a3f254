"""How often the verifier is right: idioms, near misses, published equations and random programs.

    python -m bench.verdicts                              all named pairs and 500 random ones
    python -m bench.verdicts --pairs 20000 --workers 2 --json bench/results/verdicts.json
    python -m bench.verdicts --only "relu as where" --seed 7      one pair again, or several
    python -m bench.verdicts --only "random 17" --seed 7          a random pair of the run with this seed

The truth of each pair is known: idioms and equations are true, near misses have a difference in numbers,
random pairs are equal by laws or have a mistake that shows in float64 at full size on directed inputs. A
mistake that does not show leaves the pair out. An "equal" or a "different" that is not true and an error
are wrong; then, where the algebra alone says "equal" of programs that differ in numbers, and where a program
is not found equal to itself, the exit code is 1.
"""

import argparse
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from superopt.bench.harness.command import Parser, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import begin, machine, write_results
from superopt.bench.verdicts.answers import Answer, ask_by_name, ask_random, known
from superopt.errors import InputError

__all__ = ["main"]

_KINDS = {
    "equal by laws": "random programs",
    "pure algebra": "random programs of pure algebra",
    "equations": "equations",
    "inequalities": "inequalities",
}
_CHUNK = 20  # pairs that a process takes at a time
_RANDOM = "random "
_TOLD = 10  # parts after which a log is told
_SLOWEST = 5  # pairs that are named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 where anything is wrong."""
    return _parser().run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    check_out(options.json)
    chosen = _chosen(options)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    answers: list[Answer] = []
    try:
        for some in _answers(*chosen, seed, options.workers):
            answers += some
            for answer in some:
                if answer.broken or options.only:
                    print(_told(answer, seed), flush=True)
    except KeyboardInterrupt:
        print("interrupted: these are the answers so far", flush=True)
    answers.sort(key=lambda one: (one.family, one.name))
    seconds = time.monotonic() - start
    print(_table(answers, seconds))
    if options.list:
        print("\n".join(_open(answers)))
    if options.json is not None:
        _write(options, answers, seed, seconds)
    return 1 if any(one.broken for one in answers) else 0


def _parser() -> Parser:
    parser = Parser("verdicts", __doc__)
    parser.add_argument(
        "--pairs", type=_from_nothing, default=500, help="random pairs (default: 500; 20000 in full)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this pair; repeatable")
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME", help="this family of pairs, or 'random'"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the whole run (default: a fresh one)")
    parser.add_argument("--workers", type=from_one, default=1, help="processes (default: 1)")
    parser.add_argument("--list", action="store_true", help="name the true equalities left unknown, too")
    parser.add_argument("--json", type=Path, default=None, help="write the results here")
    return parser


def _from_nothing(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _chosen(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return the names and the numbers of the pairs that are asked about."""
    pairs = known()
    if options.only:
        numbers = [name.removeprefix(_RANDOM) for name in options.only if name.startswith(_RANDOM)]
        names = [name for name in options.only if not name.startswith(_RANDOM)]
        for name in options.only:
            if name not in pairs and not name.removeprefix(_RANDOM).isdecimal():
                raise InputError(f"--only has no {name!r}")
        return names, [int(number) for number in numbers]
    families = {_RANDOM.strip()} | {pair.family for pair in pairs.values()}
    for family in options.family:
        if family not in families:
            raise InputError(f"--family has no {family!r}; there are {', '.join(sorted(families))}")
    if options.family:
        names = [name for name, pair in pairs.items() if pair.family in options.family]
        return names, list(range(options.pairs if _RANDOM.strip() in options.family else 0))
    return list(pairs), list(range(options.pairs))


def _answers(names: list[str], numbers: list[int], seed: int, workers: int) -> Iterator[list[Answer]]:
    """Yield answers as they come, some at a time."""
    parts = [names[at : at + _CHUNK] for at in range(0, len(names), _CHUNK)]
    others = [numbers[at : at + _CHUNK] for at in range(0, len(numbers), _CHUNK)]
    if workers == 1:
        _begin_process()
        yield from (ask_by_name(part, seed) for part in parts)
        yield from (ask_random(part, seed) for part in others)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin_process) as pool:
        waiting: list[Future[list[Answer]]] = [pool.submit(ask_by_name, part, seed) for part in parts]
        waiting += [pool.submit(ask_random, part, seed) for part in others]
        try:
            for done, one in enumerate(as_completed(waiting), 1):
                _show(done, len(waiting))
                yield one.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _show(done: int, of: int) -> None:
    """Show how far it is: always on a terminal, elsewhere now and then."""
    if sys.stderr.isatty():
        print(f"{done} of {of} parts", end="\r", file=sys.stderr, flush=True)
    elif done % _TOLD == 0:
        print(f"{done} of {of} parts", file=sys.stderr, flush=True)


def _begin_process() -> None:
    """Keep each process on one core, and quiet about what odd programs warn of."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _told(answer: Answer, seed: int) -> str:
    """Return what there is to know of one answer, and how to get it again."""
    word = "WRONG" if answer.wrong else "NOT ITSELF" if not answer.itself else "right"
    word = "CONTRADICTED" if answer.contradicted else word
    if word == "right" and answer.said != answer.truth:
        word = "open"
    lines = [f"{word}: {answer.name!r} is {answer.truth}, called {answer.said or 'nothing'}: {answer.reason}"]
    if answer.programs:
        lines.append(f"  {answer.programs}")
    if answer.broken:
        lines.append(f'  again: python -m bench.verdicts --only "{answer.name}" --seed {seed}')
    return "\n".join(lines)


def _table(answers: Sequence[Answer], seconds: float) -> str:
    """Return the table: a row for each family and truth, and the shares of what is left unknown."""
    head = (
        "family",
        "truth",
        "pairs",
        "equal",
        "different",
        "unknown",
        "refused",
        "error",
        "wrong",
        "not itself",
        "s",
    )
    rows: list[tuple[str, ...]] = [head]
    groups = sorted({(one.family, one.truth) for one in answers})
    for family, truth in groups:
        group = [one for one in answers if (one.family, one.truth) == (family, truth)]
        said = Counter(one.said for one in group)
        rows.append(
            (
                family,
                truth,
                str(len(group)),
                *(str(said[word]) for word in ("equal", "different", "unknown", "refused", "error")),
                str(sum(one.wrong for one in group)),
                str(sum(not one.itself for one in group)),
                f"{sum(one.seconds for one in group):.1f}",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    for what, share in _shares(answers).items():
        lines.append(f"unknown of true equalities, {what}: {share:.1%}")
    slow = sorted(answers, key=lambda one: one.seconds)[: -1 - _SLOWEST : -1]
    lines.append(f"slowest: {', '.join(f'{one.name} ({one.seconds:.1f} s)' for one in slow)}")
    itself = sum(not one.itself for one in answers)
    wrong = sum(one.wrong for one in answers)
    numbers = sum(one.contradicted for one in answers)
    lines.append(
        f"{wrong} wrong of {len(answers)}, {numbers} whose algebra the numbers contradict,"
        f" {itself} not equal to themselves, in {seconds:.0f} s"
    )
    return "\n".join(lines)


def _shares(answers: Sequence[Answer]) -> dict[str, float]:
    """Return which share of the true equalities is left unknown."""
    groups: dict[str, list[Answer]] = {}
    for one in answers:
        if one.truth == "equal":
            groups.setdefault(_KINDS.get(one.family, "idioms"), []).append(one)
    return {kind: sum(one.open for one in group) / len(group) for kind, group in groups.items()}


def _open(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the true equalities that are left unknown, with the reasons."""
    for one in answers:
        if one.truth == "equal" and one.open:
            yield f"unknown: [{one.family}] {one.name}: {one.reason}"


def _write(options: argparse.Namespace, answers: Sequence[Answer], seed: int, seconds: float) -> None:
    """Write the document: counts of each family, and every pair that is wrong or left unknown."""
    families: dict[str, Record] = {}
    for family, truth in sorted({(one.family, one.truth) for one in answers}):
        group = [one for one in answers if (one.family, one.truth) == (family, truth)]
        said = Counter(one.said for one in group if one.said)
        families[f"{family}/{truth}"] = {
            "pairs": len(group),
            **dict(sorted(said.items())),
            "wrong": sum(one.wrong for one in group),
            "contradicted": sum(one.contradicted for one in group),
            "not_itself": sum(not one.itself for one in group),
            "seconds": round(sum(one.seconds for one in group), 1),
        }
    document = begin(
        "verdicts", {"pairs": options.pairs, "asked": len(answers), "seed": seed}, machine(), families
    )
    document |= {
        "unknown_of_true_equalities": {kind: round(share, 4) for kind, share in _shares(answers).items()},
        "seconds": round(seconds, 1),
        "broken": [one.to_json() for one in answers if one.broken],
        "unknown": [one.to_json() for one in answers if not one.broken and one.open],
    }
    write_results(document, options.json)
