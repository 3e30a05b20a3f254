"""The suites by name: which cases each has, and how its module is started."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUITES", "Suite", "run_suite"]


@dataclass(frozen=True, slots=True)
class Suite:
    """A module that is run as `python -m superopt.bench.NAME`."""

    name: str
    summary: str
    cases: Callable[[bool], list[str]]  # all names, or those of a quick look
    named: str | None  # the option that takes names, by commas; None: they are arguments
    timed: bool = True  # takes --minutes and --resume
    quick: tuple[str, ...] = ()  # further options of a quick look

    def command(
        self, names: Sequence[str], out: Path, *, quick: bool, minutes: float | None, resume: bool
    ) -> list[str]:
        """Return the command that measures some cases and writes a document."""
        command = [sys.executable, "-m", f"superopt.bench.{self.name}", "--json", str(out)]
        command += names if self.named is None else [self.named, ",".join(names)]
        command += self.quick if quick else ()
        command += ["--minutes", f"{minutes:g}"] if minutes is not None else []
        return [*command, "--resume"] if resume else command


def run_suite(command: Sequence[str]) -> int:
    """Run a suite in a process of its own; return its exit code."""
    ended = subprocess.run(command, check=False)
    if ended.returncode in (130, -2):
        raise KeyboardInterrupt
    return ended.returncode


def _search(quick: bool) -> list[str]:
    from superopt.workloads import WORKLOADS

    few = ("softmax", "rmsnorm-linear", "gated-mlp", "gqa-decode")
    return [name for name in WORKLOADS if not quick or name in few]


def _frontier(quick: bool) -> list[str]:
    return ["programs-3x4"] if quick else ["programs-4x4"]


def _cpu(quick: bool) -> list[str]:
    from superopt.bench.kernels.cpu_cases import DEFAULT, of_suite

    return [case.name for case in of_suite("quick" if quick else "all") if case.dtype in DEFAULT]


def _gpu(quick: bool) -> list[str]:
    from superopt.bench.kernels.gpu_cases import CASES

    return [case.name for case in CASES if case.case == "decode-8" or not quick]


def _models(quick: bool) -> list[str]:
    from superopt.bench.models.command import DEFAULT

    return ["gpt2:prefill", "bert"] if quick else list(DEFAULT)


SUITES = {
    one.name: one
    for one in (
        Suite("search", "how long the search takes for every named workload", _search, None),
        Suite(
            "frontier",
            "how the search engine scales",
            _frontier,
            "--case",
            timed=False,
            quick=("--repeats", "2", "--seconds", "20"),
        ),
        Suite("cpu", "C++ kernels against PyTorch", _cpu, "--case"),
        Suite("gpu", "Triton kernels against PyTorch, from bench/plans", _gpu, "--case"),
        Suite("models", "whole models by the torch.compile backend", _models, "--cases"),
    )
}
"""Every suite whose cases are searched, tuned and measured by a module of its own."""
