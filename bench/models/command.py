"""Models: a step by eager PyTorch, by Inductor, and by superopt's backend; what compiling takes.

    python -m bench.models --json OUT                          all cases, 30 to 50 minutes on two cores
    python -m bench.models --train                             forward and backward, times and memory
    python -m bench.models --loss 4096x512x32000               linear and cross-entropy alone
    python -m bench.models --cases llama:decode:bf16 --tokens 2048
    python -m bench.models --cases llama:decode,llama:decode:int8 --weights frozen --peers live,freezing
    python -m bench.models --cases bert --tune 4               and once more after `superopt tune --pending`
    python -m bench.models --json OUT --resume --minutes 10    what is missing, begun within the minutes
    python -m bench.models --table --tune 2 --peers all --json OUT --resume --minutes 7    a part of the table
    python -m bench.models --list

Measured: a step of each model, compiled by superopt's backend. Against: the same step by eager PyTorch and
by Inductor, in turns; a speedup above 1 means that superopt is faster than Inductor. A case is a model, a
phase and a dtype: `llama`, `llama:decode`, `llama:prefill:bf16`, and perhaps tokens, as `bert:512`; with int8
the weights of projections have eight bits, and all else is in fp32. A prefill is one step over all tokens; a
decode is one token after a static cache of as many; two come before the one that is timed, since in use a
decode finds in the caches what its last step left there. Models are small and built here with random
weights (`bench.zoo`); nothing is downloaded. On a machine with a GPU they run there. Needs the extra
`models`.

Compiling is timed in processes of their own, Inductor and superopt in turns: "cold" with empty caches,
"warm" with what the first process left (the median of `--starts`). What either makes once on a machine for
all models, such as compiled headers, is made before; `once_s` is superopt's time for that. With
`--starts 0` no start is timed, and a case takes one process. The shares of operations (of matmuls) and of
bytes (that operators read and write, one by one) tell how much of a model superopt's kernels compute. With
`--tune`, what the budget left undone is then worked off for so many minutes, the model is compiled once more,
and both steps run in one race. With `--peers all`, or some of freezing, max-autotune, openvino, onnx-runtime,
and torchao (for cases of int8), by commas, steps of these are timed in turns with the others; so are those of
superopt with other `--weights`, given as live, default or frozen, each of which decides in a process of its
own, from empty caches. A peer that is not installed (the extra `peers`; torchao by itself), or that fails, is
left out of the race, and the record says why. With `--caches FOLDER --starts 0`, what was
decided stays there, and a later run times it. Let nothing else run while anything is timed.

With `--train` a step is one of training, and a case in bf16 runs under autocast. Then eager PyTorch,
Inductor, Inductor with an activation budget, and superopt in its three memory settings run in turns, and
the peak memory of each is counted (`bench.models.training`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, get_args

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one, listed
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.bench.models.case import Case, caches_in, child
from superopt.bench.models.peers import PEERS, POLICIES, peers_of
from superopt.bench.models.training import FAMILIES, train, trained
from superopt.errors import InputError
from superopt.weights.division import Weights

__all__ = ["DEFAULT", "main"]

DEFAULT = (
    "llama:prefill",
    "llama:decode",
    "llama:prefill:bf16",
    "llama:decode:bf16",
    "qwen3:prefill",
    "qwen3:decode",
    "mistral:decode",
    "gemma2",
    "gpt2:prefill",
    "gpt2:decode",
    "bert",
    "t5-encoder",
    "mixtral",
    "vit",
    "whisper-encoder",
    "resnet",
    "convnext",
)
"""The cases that are run where none are named."""

_FAMILIES = (
    "llama",
    "qwen3",
    "mistral",
    "gemma2",
    "gpt2",
    "bert",
    "t5-encoder",
    "mixtral",
    "vit",
    "whisper-encoder",
)
_DECODED = ("llama", "qwen3", "mistral", "gpt2")
_PREFILLS = (64, 128, 512)

TABLE = tuple(
    f"{family}:{phase}:{dtype}"
    for dtype in ("fp32", "bf16")
    for phases in (_PREFILLS[:2], ("decode",), _PREFILLS[2:])
    for phase in phases
    for family in (_DECODED if phase == "decode" else _FAMILIES)
)
"""Ten families of models, prefills of three lengths and decodes, in two dtypes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("models", __doc__)
    add = parser.add_argument
    add("--cases", default="", help="by commas, each a model, perhaps :prefill or :decode, perhaps a dtype")
    add(
        "--table",
        action="store_true",
        help="ten families, prefills of 64, 128 and 512 tokens and decodes, in two dtypes",
    )
    add("--train", action="store_true", help="a step is forward and backward; peak memory is measured too")
    add("--loss", default="", help="rows, width and words, as 4096x512x32000, of a linear layer and a loss")
    add("--settings", default="fast,balanced,bytes", help="of memory, by commas, in which a step is trained")
    add("--modules", type=from_one, help="how many random modules with gradients to compare with eager's")
    add("--vocabulary", type=from_one, default=16000, help="of models that are trained")
    add("--bytes", type=from_one, default=16 << 20, help="the number given as `memory`, in training")
    add("--budget", type=above_zero, help="seconds of search for each model; by default the backend's own")
    add("--preset", default="quick", choices=("quick", "full"))
    add("--weights", default="default", choices=get_args(Weights), help="what may be made of weights once")
    add("--seconds", type=above_zero, default=6.0, help="of measuring each case")
    add("--width", type=from_one, default=1024, help="of the models: a multiple of 64")
    add("--layers", type=from_one, default=2)
    add("--tokens", type=from_one, default=128, help="of a prefill")
    add("--context", type=from_one, default=1024, help="tokens in the cache of a decode")
    add("--starts", type=_starts, default=3, help="warm starts, whose median is shown; 0 times no start")
    add("--caches", type=Path, help="where caches stay, for a later run that times what this one decides")
    add(
        "--tune", type=above_zero, help="minutes of `superopt tune --pending`, and measure once more after it"
    )
    add("--peers", default="", help="other compilers to race, by commas, or all")
    add("--limit", type=above_zero, default=10.0, help="minutes after which a process is given up")
    parser.add_results(minutes=45.0)
    add("--list", action="store_true", help="show the cases that would be run")
    add("--child", choices=("inductor", "superopt", "timed", "trained"), help=argparse.SUPPRESS)
    add("--folder", default="", help=argparse.SUPPRESS)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    if options.list:
        print("\n".join(_named(options)))
        return 0
    if options.child:
        measured = trained if options.child == "trained" else child
        print(json.dumps(measured(Case(options.cases), options)))
        return 0
    if options.loss:
        from superopt.bench.models.loss import measure_loss

        check_out(options.json)
        return measure_loss(options)
    if options.modules:
        from superopt.bench.models.modules import measure_modules

        return measure_modules(options)
    if find_spec("transformers") is None:
        raise InputError('models need transformers: pip install "superopt[models]"')
    if options.caches is not None and options.starts:
        raise InputError("with --caches no start is cold: add --starts 0")
    if options.width % 64:
        raise InputError(f"--width is {options.width}; it is a multiple of 64")
    cases = {text: Case(text) for text in _named(options)}
    peers_of(options)  # raises where one is unknown
    check_out(options.json, resume=options.resume)
    if options.train:
        return train(cases, options)
    document = _document(options)
    results = Results(list(cases), options.json, document)
    found = results.records
    kept = resumed(options.json, resume=options.resume)
    if kept["cases"] and any(kept[part] != document[part] for part in ("suite", "machine", "settings")):
        raise InputError(f"{options.json} was made elsewhere, or with other options")
    found.update({text: one for text, one in kept["cases"].items() if "error" not in one})
    print("\n".join([_HEAD, *(_line(text, found[text]) for text in cases if text in found)]), flush=True)
    for text in results.left(options.minutes):
        results.keep(text, {"case": text, **_measured(cases[text], options)})
        print(_line(text, found[text]), flush=True)
    if missing := [text for text in cases if text not in found]:
        print(f"not begun within {options.minutes:g} minutes: {', '.join(missing)}; --resume goes on")
    print("\n".join(_means(found)))
    return 0 if all("error" not in found.get(text, {}) for text in cases) else 1


def _starts(text: str) -> int:
    """Return how many warm starts are timed."""
    return 0 if text == "0" else from_one(text)


def _means(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the geometric means of the speeds over others', at once and once deferred work is done."""
    lines = []
    for title, mark in (("all", ""), ("prefill and decode", ":")):
        cases = [one for text, one in records.items() if "speedup" in one and mark in text]
        tuned = [one["tuned"] for one in cases if "tuned" in one]
        for when, several in (("", cases), (", tuned", tuned)):
            if not several:
                continue
            mean = geometric_mean(one["speedup"] for one in several)
            better = [_over_the_better(one) for one in several]
            lines.append(
                f"{title}{when}: {mean:.3f} times Inductor in the geometric mean of {len(several)} cases,"
                f" {geometric_mean(better):.3f} times the better of eager and Inductor,"
                f" least {min(better):.2f}"
            )
            for peer in (*PEERS, *POLICIES):
                raced = [one["ratios"][peer] for one in several if peer in one["ratios"]]
                if raced:
                    ahead = sum(ratio > 1 for ratio in raced)
                    told = f"{geometric_mean(raced):.3f} times {peer}, ahead in {ahead} of {len(raced)}"
                    lines.append(f"{title}{when}: {told}")
    return lines


def _over_the_better(record: Mapping[str, Any]) -> float:
    return float(min(record["ratios"][name] for name in ("eager", "inductor")))


def _named(options: argparse.Namespace) -> list[str]:
    """Return the cases to run; for training, the default's models."""
    if options.cases:
        return listed(options.cases)
    if options.table:
        return list(TABLE)
    if options.train:
        return [f"{name}:{dtype}" for name in FAMILIES for dtype in ("fp32", "bf16")]
    return list(DEFAULT)


def _measured(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one case from processes of their own, or the reason why there is none."""
    with _caches(case, options) as folder:
        if "error" in (cold := _decided(case, folder, options)):
            return cold
        found = _started(case, folder, options) if options.starts else _stepped(case, folder, options)
    return found if "error" in found else {**found, **cold}


@contextmanager
def _caches(case: Case, options: argparse.Namespace) -> Iterator[Path]:
    """Give the folder of a case's caches, which goes afterwards unless `--caches` names a place."""
    if options.caches is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = options.caches / case.text.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder.absolute()


def _decided(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let each policy of weights that races decide from empty caches, in a process and a folder of its own.

    So does the policy of `--weights`, unless its starts are timed. Return what was decided.
    """
    names = [one for one in peers_of(options) if one in POLICIES]
    own = [] if options.starts or not names else [options.weights]
    told: dict[str, Any] = {}
    for policy, place in [*((one, folder) for one in own), *((one, folder / one) for one in names)]:
        kept = place / "decided.json"
        if kept.exists():  # of an earlier run with these caches
            found = json.loads(kept.read_text())
        else:
            changed = argparse.Namespace(**{**vars(options), "weights": policy})
            found = _in_process(case, "superopt", place, "superopt", changed, peers=False)
            if "error" in found:
                return {"error": f"{policy}: {found['error']}"}
            place.mkdir(exist_ok=True)
            kept.write_text(json.dumps(found))
        found.pop("compile_s", None)
        told |= found if place == folder else {"policies": {**told.get("policies", {}), policy: found}}
    return told


def _stepped(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a step takes in the first process that compiles it; no start is timed."""
    return _in_process(case, "timed", folder, "superopt", options)


def _started(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how long starts take, in turns, and what a step takes in the last one."""
    seconds: dict[str, list[float]] = {"inductor": [], "superopt": []}
    cold: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for at in range(1 + options.starts):
        for by in seconds:
            kind = "timed" if by == "superopt" and at == options.starts else by
            found = _in_process(case, kind, folder, by, options)
            if "error" in found:
                return found
            seconds[by].append(found.pop("compile_s"))
        cold = cold or found
    return {
        **found,
        **cold,
        "cold_s": {by: each[0] for by, each in seconds.items()},
        "warm_s": {by: median(each[1:]) for by, each in seconds.items()},
        "starts_s": seconds,
    }


def _in_process(
    case: Case, kind: str, folder: Path, by: str, options: argparse.Namespace, *, peers: bool = True
) -> dict[str, Any]:
    """Return what a process measures, whose caches are in a folder, or why there is nothing."""
    command = [sys.executable, "-m", "superopt.bench.models", "--child", kind, "--cases", case.text]
    command += ["--preset", options.preset, "--weights", options.weights]
    command += ["--seconds", str(options.seconds)]
    command += ["--width", str(options.width), "--layers", str(options.layers)]
    command += ["--tokens", str(options.tokens), "--context", str(options.context)]
    command += ["--folder", str(folder)]
    command += ["--peers", options.peers] if options.peers and peers else []
    command += ["--tune", str(options.tune)] if options.tune and kind == "timed" else []
    command += [] if options.budget is None else ["--budget", str(options.budget)]
    said = _output(command, folder, by, options.limit + 2 * (options.tune or 0))
    if isinstance(said, dict):
        return {"error": f"{kind}: {said['error']}"}
    record: dict[str, Any] = json.loads(said.splitlines()[-1])
    return record


def _output(command: Sequence[str], folder: Path, by: str, limit: float) -> str | dict[str, Any]:
    """Return what a command prints, whose caches are in a folder, or why it failed within so many minutes."""
    places = caches_in(folder, by)
    try:
        done = subprocess.run(
            command, env={**os.environ, **places}, capture_output=True, text=True, timeout=60 * limit
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:g} minutes"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    return done.stdout


_HEAD = (
    f"{'case':22} {'eager µs':>10} {'Inductor':>10} {'superopt':>10} speedup  tuned  ops bytes"
    "   cold s, times    warm s, times"
)


def _line(text: str, record: Mapping[str, Any]) -> str:
    if "error" in record:
        return f"{text:22} failed: {record['error']}"
    last = record.get("tuned", record)
    timed = record["measured"]
    times = " ".join(f"{timed[label]['median_us']:10.1f}" for label in ("eager", "inductor", "superopt"))
    best = last["measured"]
    raced = ", ".join(f"{name} {best[name]['median_us']:.1f}" for name in (*PEERS, *POLICIES) if name in best)
    raced += f", superopt tuned {best['superopt']['median_us']:.1f}" if raced and last is not record else ""
    absent = "; ".join(f"no {name}: {why}" for name, why in last.get("absent", {}).items())
    spent = []
    for name in (one for one in ("cold_s", "warm_s") if one in record):
        ours, inductors = record[name]["superopt"], record[name]["inductor"]
        spent.append(f"{ours:8.1f} {ours / inductors:6.2f}")
    shares = f"{record['flops']:4.0%} {record['bytes']:5.0%}"
    tuned = f"{record['tuned']['speedup']:6.2f}" if "tuned" in record else f"{'-':>6}"
    own = f"{text:22} {times} {record['speedup']:7.2f} {tuned} {shares} {'  '.join(spent)}"
    return "\n    ".join(part for part in (own, raced, absent) if part)


def _document(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import transformers

    from superopt.targets import pick_target

    target = pick_target("cuda" if torch.cuda.is_available() else "cpu")
    about = machine() | {"device": target.device_name, "transformers": transformers.__version__}
    settings = {
        "train": options.train,
        "budget_s": options.budget,
        "preset": options.preset,
        "weights": options.weights,
        "tune_minutes": options.tune,
        "peers": peers_of(options),
        "starts": options.starts,
        "sizes": {name: getattr(options, name) for name in ("width", "layers", "tokens", "context")},
    }
    return begin("models", settings, about | {"threads": torch.get_num_threads()}, {})
