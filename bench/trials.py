"""How far `superopt bench compare` can be trusted: how many planted slowdowns it finds, and false alarms.

    python -m bench.trials --json OUT             20 trials, some 25 minutes on a busy machine of 2 cores
    python -m bench.trials --json OUT --resume    goes on after those that OUT has

Measured, again and again by `superopt bench run`: a kernel of superopt's against eager PyTorch, and an
operator of PyTorch's against another, each called ten times in a row. A run of the same code must raise no
alarm against the run before it. A run that calls one of the two eleven times, which is 10% more work, must
be found slower in that one, and in no other.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one
from superopt.bench.harness.comparison import Comparison, compare_results
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import begin, machine, read_results, resumed, tell, write_results

__all__ = ["main", "original"]

_CASES = ("kernel", "operator")
_FILE = """
import torch
from superopt import load
from superopt.bench import case
from superopt.bench.trials import original

best = load({result!r}, original)


def eager(x):
    for _ in range({calls}):
        original(x)


def other(x):
    for _ in range({calls}):
        torch.layer_norm(x, (1024,))


@case(inputs="f32[16,1024]", against=eager, optimize=False)
def kernel(x):
    for _ in range({kernel}):
        best(x)


@case(inputs="f32[16,1024]", against=other, optimize=False)
def operator(x):
    for _ in range({operator}):
        torch.sigmoid(x)
"""
_CALLS = 10


def original(x: Any) -> Any:
    """Return the softmax, which is what the kernel computes."""
    return x.softmax(-1)


def _prepare(folder: Path) -> None:
    """Write the file of the same code, and one for each planted slowdown."""
    import torch

    from superopt import OptimizeOptions, optimize

    result = folder / "kernel.json"
    options = OptimizeOptions(target="cpu", seconds=1.0, torch_compile=False, cache=False)
    optimize(original, torch.empty(16, 1024, device="meta"), options=options).save(result)
    for planted in ("", *_CASES):
        calls = {name: _CALLS + (name == planted) for name in _CASES}
        text = _FILE.format(result=str(result), calls=_CALLS, **calls)
        (folder / f"with_{planted or 'nothing'}.py").write_text(text)


def _run(folder: Path, planted: str, options: argparse.Namespace) -> Record:
    """Return the document of one `superopt bench run`."""
    out = folder / "out.json"
    command = [sys.executable, "-m", "superopt", "bench", "run", f"{folder}/with_{planted or 'nothing'}.py"]
    command += ["--repeat", str(options.repeat), "--seconds", str(options.seconds), "--threads", "1"]
    ended = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"a run failed: {ended.stderr.strip()}")
    return read_results(out)


def _outcome(found: Comparison, planted: str, seconds: float) -> Record:
    """Return the verdicts of a comparison, and whether they are right."""
    right = found.regressions == ((planted,) if planted else ())
    return {
        "planted": planted or None,
        "right": right,
        "seconds": round(seconds, 1),
        "cases": {
            row.case: {
                "change": row.change.ratio,
                "low": row.change.low,
                "high": row.change.high,
                "verdict": row.verdict,
            }
            for row in found.rows
        },
    }


def measure(options: argparse.Namespace, document: Record) -> None:
    """Do the trials that the document lacks, and write the document after each."""
    trials = document["cases"]
    with tempfile.TemporaryDirectory(prefix="superopt-trials-") as name:
        folder = Path(name)
        _prepare(folder)
        old = _run(folder, "", options)
        for number in range(1, options.trials + 1):
            if str(number) in trials:
                continue
            start = time.monotonic()
            planted = _CASES[number % len(_CASES)]
            runs = {which: _run(folder, which, options) for which in ("", planted)}
            seconds = (time.monotonic() - start) / len(runs)
            found = {which: compare_results(old, new) for which, new in runs.items()}
            trials[str(number)] = {
                "same": _outcome(found[""], "", seconds),
                "slower": _outcome(found[planted], planted, seconds),
            }
            old = runs[""]
            document |= _counts(trials)
            write_results(document, options.json)
            tell(f"trial {number}: {_shown(trials[str(number)])}")


def _counts(trials: Record) -> Record:
    return {
        "trials": len(trials),
        "found": sum(one["slower"]["right"] for one in trials.values()),
        "no_alarm": sum(one["same"]["right"] for one in trials.values()),
    }


def _shown(trial: Record) -> str:
    parts = []
    for which, one in trial.items():
        changes = ", ".join(
            f"{name} {case['change']:.3f} ({case['low']:.3f} to {case['high']:.3f}, {case['verdict']})"
            for name, case in one["cases"].items()
        )
        parts.append(f"{which}: {'right' if one['right'] else 'WRONG'}: {changes}")
    return "; ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; return 0 where at least 19 of 20 of each kind are right."""
    parser = Parser("trials", __doc__)
    add = parser.add_argument
    add("--trials", type=from_one, default=20, help="of each kind (default: 20)")
    add("--repeat", type=from_one, default=5, help="launches of a run (default: 5)")
    add("--seconds", type=above_zero, default=0.6, help="of a case in a launch (default: 0.6)")
    add("--json", type=Path, metavar="OUT", required=True, help="where the results go")
    add("--resume", action="store_true", help="keep the trials that OUT has, and go on")
    return parser.run(arguments, _run_trials)


def _run_trials(options: argparse.Namespace) -> int:
    check_out(options.json)
    cases = resumed(options.json, resume=options.resume)["cases"]
    settings = {"repeat": options.repeat, "seconds": options.seconds, "planted": 1 / _CALLS}
    document = begin("trials", settings, machine(), cases)
    measure(options, document)
    print(
        f"{document['found']} of {document['trials']} planted slowdowns found,"
        f" {document['no_alarm']} of {document['trials']} runs of identical code without an alarm"
    )
    enough = 0.95 * document["trials"]
    return 0 if min(document["found"], document["no_alarm"]) >= enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
