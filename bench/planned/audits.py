"""Audits: the document of audited cases, which goes on after what it has."""

import json
import os
import re
from pathlib import Path

from superopt.bench.harness.command import check_out
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import begin, machine, resumed, tell
from superopt.bench.planned.audit import EXCEPTIONS, FINDINGS, audit, is_fine, known_kernels, summary
from superopt.bench.planned.loaded import Loaded
from superopt.bench.planned.mend import Changed, configured_for, mended
from superopt.errors import InputError
from superopt.files import replace_text
from superopt.targets import pick_target
from superopt.targets.cuda import CudaTarget

__all__ = ["Audits"]

_KERNEL = re.compile(r'(\{"predicted_us"|"[^"]+":\{"floor_us")')


class Audits:
    """Audits of cases in one dtype for one device; a kernel that was audited before is not compiled again."""

    def __init__(self, out: Path | None, device: str, *, best: int, resume: bool) -> None:
        target = pick_target(device)
        if not isinstance(target, CudaTarget):
            raise InputError(f"--device {device!r} is no CUDA device; give h200 or a100")
        check_out(out, resume=resume)
        self.target = target
        self._out = out
        self._best = best
        self._cases: dict[str, Record] = resumed(out, resume=resume)["cases"]
        self._known = known_kernels(self._cases)
        about = {**machine(), "device": target.device_name, "target": target.name}
        self._document = begin("gpu-audit", {"best": best}, about, self._cases)
        self._document |= {"findings": FINDINGS, "exceptions": EXCEPTIONS}
        self._workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2

    def audit(self, loaded: Loaded) -> None:
        """Audit a case; where its plan is for another device, its candidates are configured for this one."""
        if loaded.target.name == self.target.name:
            record = audit(
                loaded, self.target, best=self._best, workers=self._workers, known=self._known, tell=tell
            )
            self._keep(loaded, record)
        else:
            self.mend(configured_for(loaded, self.target, self._best))

    def mend(self, loaded: Loaded, changed: Changed | None = None) -> None:
        """Audit a case, and again without the faults that were found."""
        _, record = mended(
            loaded,
            self.target,
            best=self._best,
            workers=self._workers,
            known=self._known,
            tell=tell,
            changed=changed,
        )
        self._keep(loaded, record)

    def told(self, names: list[str]) -> int:
        """Print what was found in some cases; return 1 where a finding has no reason."""
        cases = {name: self._cases[name] for name in names}
        print(summary(cases), end="")
        return 0 if is_fine(cases.values()) else 1

    def _keep(self, loaded: Loaded, record: Record) -> None:
        self._cases[loaded.case.name] = record
        if self._out is not None:
            text = json.dumps(self._document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            replace_text(self._out, _KERNEL.sub(r"\n\1", text) + "\n")  # a kernel a line
