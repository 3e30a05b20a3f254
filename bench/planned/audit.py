"""Audit: what the compiler makes of the kernels that would be raced, without a device to run them on.

Every kernel of the best candidates of each plan is compiled for a named device, at the sizes of its case, and
its instructions are read. What the best kernels written by hand would not do is a finding, of a closed set.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from superopt.bench.harness.records import Record
from superopt.bench.kernels.cases import Case
from superopt.bench.planned.judge import FINDINGS, AuditedKernel, job_of, judged, mark_of, reasoned
from superopt.bench.planned.loaded import Loaded
from superopt.candidates import Candidate
from superopt.ir import Call, Graph
from superopt.precision import half_of
from superopt.targets.cuda import CudaTarget
from superopt.tune.pool import TritonJob, compile_all

__all__ = [
    "EXCEPTIONS",
    "FINDINGS",
    "audit",
    "distinct",
    "is_fine",
    "judged_all",
    "known_kernels",
    "summary",
    "unexcused",
]

EXCEPTIONS = {
    "arithmetic": "at most 60 beside the arithmetic on vectors that the program asks for in that loop: the"
    " product of one row, which has no matrix instruction, or the norm of what is read",
}
"""Why a kernel may have a finding all the same, by the word for it."""

_JOB_S = 120.0


def audit(
    loaded: Loaded,
    target: CudaTarget,
    *,
    best: int,
    workers: int,
    known: dict[str, Record] | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Record:
    """Return the record of a case: its floor, its best kernels, and what is wrong with them.

    `known` has the records of kernels by what stands for them: these are not compiled again. It gets those of
    this case.
    """
    regions = []
    jobs: list[tuple[TritonJob | str, AuditedKernel]] = []
    for at, work in enumerate(loaded.work):
        kept = distinct(work.candidates)[:best]
        regions.append([_candidate_record(candidate, target) for candidate in kept])
        jobs += [(job_of(kernel, target), kernel) for kernel in _kernels(loaded.case, at, kept, target)]
    found = judged_all(jobs, target, workers, {} if known is None else known, tell)
    for (_, kernel), record in zip(jobs, found, strict=True):
        regions[kernel.region][kernel.place]["kernels"][kernel.number] |= reasoned(kernel, record)
    floors = [target.floor_us(work.goal) for work in loaded.work]
    total = None if None in floors else sum(us for us in floors if us is not None)
    return {"floor_us": total, "regions": regions}


def judged_all(
    jobs: Sequence[tuple[TritonJob | str, AuditedKernel]],
    target: CudaTarget,
    workers: int,
    known: dict[str, Record],
    tell: Callable[[str], None],
) -> list[Record]:
    """Return what the compiler makes of each kernel; `known` gets those that it did not have."""
    marks = [mark_of(kernel, job, target) for job, kernel in jobs]
    new = {mark: one for mark, one in zip(marks, jobs, strict=True) if mark not in known}
    if new:
        name = jobs[0][1].case.name
        tell(f"{name}: compiling {len(new)} of {len(jobs)} kernels for {target.name}")
    waiting = [job for job, _ in new.values() if not isinstance(job, str)]
    results = iter(compile_all(waiting, workers=workers, limit_seconds=_JOB_S) if waiting else ())
    for mark, (job, kernel) in new.items():
        result = job if isinstance(job, str) else next(results)
        known[mark] = {"mark": mark, **judged(kernel, result, target)}
    return [known[mark] for mark in marks]


def known_kernels(cases: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records of all kernels of some cases that the compiler made, by what stands for them."""
    of_candidate = ("predicted_us", "arithmetic_per_kib", "exceptions")
    return {
        kernel["mark"]: {name: value for name, value in kernel.items() if name not in of_candidate}
        for case in cases.values()
        for region in case["regions"]
        for candidate in region
        for kernel in candidate["kernels"]
        if "mark" in kernel
    }


def summary(cases: Mapping[str, Record]) -> str:
    """Return how many kernels there are, and how many have each finding without a reason, case by case."""
    lines = []
    total: Counter[str] = Counter()
    count = 0
    for name, case in cases.items():
        kernels = [
            kernel for region in case["regions"] for candidate in region for kernel in candidate["kernels"]
        ]
        found = Counter(word for kernel in kernels for word in unexcused(kernel))
        found["excepted"] = sum(len(kernel.get("exceptions", ())) for kernel in kernels)
        total += found
        count += len(kernels)
        lines.append(f"{name:36} {len(kernels):3} kernels  {_listed(found)}")
    return "\n".join([*lines, f"{'all':36} {count:3} kernels  {_listed(total)}"]) + "\n"


def _listed(found: Counter[str]) -> str:
    faults = [f"{found[word]} {word}" for word in FINDINGS if found[word]] or ["fine"]
    return ", ".join([*faults, *([f"{found['excepted']} excepted"] if found["excepted"] else [])])


def is_fine(cases: Iterable[Record]) -> bool:
    """Return whether no kernel has a finding without a reason."""
    return not any(
        unexcused(kernel)
        for case in cases
        for region in case["regions"]
        for candidate in region
        for kernel in candidate["kernels"]
    )


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, of those with the same kernels the first."""
    seen = {(one.mugraph, one.configs): one for one in reversed(candidates)}
    kept = {id(one) for one in seen.values()}
    return [one for one in candidates if id(one) in kept]


def _candidate_record(candidate: Candidate, target: CudaTarget) -> Record:
    reports = target.reports(candidate.mugraph, candidate.configs)
    graph = candidate.mugraph.graph
    kernels: list[Record] = []
    for kernel, report in zip(candidate.mugraph.kernels, reports, strict=True):
        us = report.predicted_us
        record: Record = {"predicted_us": None if us is None else round(us, 1), "findings": []}
        if isinstance(kernel, Call):
            record["library"] = _library(graph, kernel, dict(candidate.mugraph.rounded))
            wide = half_of(graph) is not None and "f32" in record["library"]
            record["findings"] = ["library"] if wide else []
        kernels.append(record)
    return {"name": candidate.name, "kernels": kernels}


def _library(graph: Graph, call: Call, rounded: Mapping[int, str]) -> list[str]:
    """Return the dtypes of the operands of a library's products."""
    steps = [graph.step_of(tile.value) for tile in call.body]
    operands = {i for step in steps if step is not None and step.op == "contract" for i in step.inputs}
    first = len(graph.inputs)
    return sorted({graph.inputs[i].dtype if i < first else rounded.get(i, "f32") for i in operands})


def _kernels(
    case: Case, region: int, kept: Sequence[Candidate], target: CudaTarget
) -> Iterable[AuditedKernel]:
    for place, candidate in enumerate(kept):
        for number, config in enumerate(candidate.configs):
            if config is not None:
                yield AuditedKernel(case, region, place, number, candidate, config)


def unexcused(kernel: Record) -> list[str]:
    """Return the findings of a kernel that have no reason."""
    return [word for word in kernel["findings"] if word not in kernel.get("exceptions", ())]
