"""Mend: where an audit finds a fault, a kernel gets another configuration, or its candidate is left out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from superopt.bench.harness.records import Record
from superopt.bench.planned.audit import audit, distinct, judged_all, unexcused
from superopt.bench.planned.judge import AuditedKernel, job_of, reasoned
from superopt.bench.planned.loaded import Loaded
from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.candidate import SCHEDULED, total_us
from superopt.candidates.order import ConfigurationOrder, in_likeliest_configurations, likely
from superopt.targets.cuda import CudaTarget

__all__ = ["Changed", "Changes", "configured_for", "mended"]

_ROUNDS = 4
_EVERY = 1 << 16  # more configurations than a kernel has
_OTHERS = 6  # configurations of a kernel that are compiled in the place of a faulty one

Tell = Callable[[str], None]
Changes = dict[tuple[int, str], Candidate | None]
"""What becomes of candidates, by the number of their region and their id; None: they are left out."""
Changed = Callable[[Loaded, Changes], Loaded]


def configured_for(loaded: Loaded, target: CudaTarget, best: int) -> Loaded:
    """Return a case whose plan is for another device, the best candidates in configurations for this one."""
    order = ConfigurationOrder(target)
    work = []
    for one in loaded.work:
        planned = [other for other in one.candidates if not other.variant][:best]
        found = []
        for candidate in planned:
            planned_anew = replace(candidate, configs=(), kernels=())
            configured = in_likeliest_configurations(planned_anew, target, order)
            reports = target.reports(configured.mugraph, configured.configs)
            found.append(replace(configured, predicted_us=total_us(reports)))
        work.append(replace(one, candidates=tuple(sorted(found, key=lambda other: other.us))))
    return replace(loaded, work=tuple(work))


def mended(
    loaded: Loaded,
    target: CudaTarget,
    *,
    best: int,
    workers: int,
    known: dict[str, Record],
    tell: Tell,
    changed: Changed | None = None,
) -> tuple[Loaded, Record]:
    """Return a case whose best candidates have no fault that other configurations have not, and its audit.

    A candidate is left out where no configuration of a faulty kernel is sound, as long as another one is
    left. `changed` makes the changes of a round; by default the candidates of the case are changed.
    """
    order = ConfigurationOrder(target)
    for _ in range(_ROUNDS):
        record = audit(loaded, target, best=best, workers=workers, known=known, tell=tell)
        changes: Changes = {}
        for at, (one, judged) in enumerate(zip(loaded.work, record["regions"], strict=True)):
            mender = _Mender(loaded, at, target, order, workers, known, tell)
            changes |= mender.changes(one, distinct(one.candidates)[:best], judged)
        if not changes:
            break
        loaded = (changed or _changed)(loaded, changes)
    return loaded, audit(loaded, target, best=best, workers=workers, known=known, tell=tell)


def _changed(loaded: Loaded, changes: Changes) -> Loaded:
    """Return a case with candidates changed or left out."""
    work = []
    for at, one in enumerate(loaded.work):
        found = [changes.get((at, other.id), other) for other in one.candidates]
        work.append(replace(one, candidates=tuple(other for other in found if other is not None)))
    return replace(loaded, work=tuple(work))


class _Mender:
    """What mends the candidates of one region."""

    def __init__(
        self,
        loaded: Loaded,
        region: int,
        target: CudaTarget,
        order: ConfigurationOrder,
        workers: int,
        known: dict[str, Record],
        tell: Tell,
    ) -> None:
        self.case = loaded.case
        self.region = region
        self.target = target
        self.order = order
        self.workers = workers
        self.known = known
        self.tell = tell

    def changes(
        self, region: RegionCandidates, audited: Sequence[Candidate], judged: Sequence[Record]
    ) -> Changes:
        """Return what becomes of the candidates in which faults were found, unless that leaves none."""
        found: Changes = {}
        for one, record in zip(audited, judged, strict=True):
            numbers = [at for at, kernel in enumerate(record["kernels"]) if unexcused(kernel)]
            nested = any("nested" in kernel["findings"] for kernel in record["kernels"])
            if numbers:  # a schedule without the inner loop is a candidate of its own
                found[self.region, one.id] = None if nested else self._mended(one, numbers)
        lost = {id for (_, id), one in found.items() if one is None}
        planned = {one.id for one in region.candidates if not one.variant}
        return {} if planned <= lost else found

    def _mended(self, candidate: Candidate, numbers: Sequence[int]) -> Candidate | None:
        """Return a candidate with sound configurations of some kernels; None where there are none."""
        if candidate.variant:
            return None
        for number in numbers:
            config = self._sound(candidate, number)
            if config is None:
                return None
            candidate = candidate.configured(number, config)
        reports = self.target.reports(candidate.mugraph, candidate.configs)
        return replace(candidate, kernels=tuple(reports), predicted_us=total_us(reports), fate=SCHEDULED)

    def _sound(self, candidate: Candidate, number: int) -> Any:
        """Return the likeliest configuration of a kernel that has no fault once compiled, or None."""
        if candidate.configs[number] is None:
            return None
        near, apart = (
            likely(candidate, number, self.order, _OTHERS // 2, apart=apart) for apart in (False, True)
        )
        return self._first_sound(candidate, number, [*near, *apart]) or self._first_sound(
            candidate, number, self._smaller(candidate, number)
        )

    def _smaller(self, candidate: Candidate, number: int) -> list[Any]:
        """Return the likeliest configurations whose warps hold at most half as much each."""
        most = _held(candidate.configs[number]) / 2
        found = likely(candidate, number, self.order, _EVERY, apart=True)
        return [one for one in found if _held(one) <= most][:_OTHERS]

    def _first_sound(self, candidate: Candidate, number: int, configs: Sequence[Any]) -> Any:
        """Return the first configuration in which a kernel has no fault once compiled, or None."""
        kernels = [
            AuditedKernel(self.case, self.region, 0, number, candidate.configured(number, config), config)
            for config in dict.fromkeys(configs)
        ]
        jobs = [(job_of(one, self.target), one) for one in kernels]
        judged = judged_all(jobs, self.target, self.workers, self.known, self.tell)
        for kernel, record in zip(kernels, judged, strict=True):
            if not unexcused(reasoned(kernel, record)):
                return kernel.config
        return None


def _held(config: Any) -> float:
    """Return how many elements of its tiles a configuration has for each warp."""
    return float(prod(tile for _, tile in config.tiles) / config.num_warps)
