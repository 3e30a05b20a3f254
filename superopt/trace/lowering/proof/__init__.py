"""Proof lowerings: how operators are written where a program is only proven, not run."""

from superopt.trace.lowering.proof import extrema as extrema
from superopt.trace.lowering.proof import indices as indices
from superopt.trace.lowering.proof import moves as moves
from superopt.trace.lowering.proof import scalars as scalars
from superopt.trace.lowering.proof import scans as scans
from superopt.trace.lowering.proof import windows as windows
from superopt.trace.lowering.proof import writes as writes
