"""Guarded: work on one region, of which no fault may stop the compilation of a model."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from superopt.backend.decision import Decision
from superopt.errors import first_line, kind_and_line
from superopt.rivals.inductor import alone

__all__ = ["decide_or_leave", "has_failed"]

log = logging.getLogger("superopt")

_MEMORY, _ERROR = "out of memory", "failed"


def decide_or_leave(work: Callable[[], Decision], draft: Decision) -> Decision:
    """Return what some work decides; after an error, the draft, which leaves the region to Inductor."""
    try:
        return alone(work)
    except torch.OutOfMemoryError as error:
        found = replace(draft, why=f"{_MEMORY}: {first_line(error)}")
    except Exception as error:  # whatever goes wrong is ours
        found = replace(draft, why=f"{_ERROR}: {kind_and_line(error)}")
    log.warning("%s [%s] is left to Inductor: %s", found.operators, found.inputs, found.why)
    return found


def has_failed(found: Decision) -> bool:
    """Whether an error decided."""
    return found.why.startswith((_MEMORY, _ERROR))
