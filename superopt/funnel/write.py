"""Write: the source of every kernel."""

from collections.abc import Sequence
from dataclasses import replace

from superopt.candidates.candidate import Candidate
from superopt.funnel.state import Context, fail, said

__all__ = ["write"]


def write(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Write the kernels of all candidates; a candidate whose kernel cannot be written fails."""
    with context.state.clock.phase("emit"):
        return [_written(one, context) for one in candidates]


def _written(candidate: Candidate, context: Context) -> Candidate:
    if not candidate.is_kept:
        return candidate
    try:
        sources = context.state.target.sources(candidate.mugraph, candidate.configs)
    except context.state.target.errors as error:
        return fail(candidate, "write", said(error))
    return replace(candidate, sources=sources)
