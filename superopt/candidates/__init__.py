"""Candidates: the ways to compute a region: as data, as JSON, in the cache, and in which configurations."""

from superopt.candidates.candidate import Candidate, RegionCandidates

__all__ = ["Candidate", "RegionCandidates"]
