"""Choose: the first candidate that is left is used; all later candidates are slower."""

from collections.abc import Sequence

from superopt.candidates.candidate import Candidate
from superopt.fate import Kind
from superopt.funnel.state import Context

__all__ = ["choose"]


def choose(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Choose the first candidate, where kernels run the one that passed the check in floats."""
    found = context.checked
    if not context.state.measures:
        found = next((one.id for one in candidates if one.is_kept), None)
    return [_ended(one, found, measured=context.state.measures) if one.is_kept else one for one in candidates]


def _ended(candidate: Candidate, chosen: str | None, *, measured: bool) -> Candidate:
    if candidate.id == chosen:
        return candidate.ended("choose", Kind.CHOSEN)
    if chosen is None:
        return candidate.ended("choose", Kind.NO_TIME, "not checked in floats")
    return candidate.ended("choose", Kind.SLOWER, "" if measured else "predicted to be slower")
