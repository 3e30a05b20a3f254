"""Lowerings: what turns calls of PyTorch's operators into algebra; to import the package fills the tables."""

from superopt.trace.lowering import attention as attention
from superopt.trace.lowering import layout as layout
from superopt.trace.lowering import pointwise as pointwise
from superopt.trace.lowering import proof_extrema as proof_extrema
from superopt.trace.lowering import proof_indices as proof_indices
from superopt.trace.lowering import proof_moves as proof_moves
from superopt.trace.lowering import proof_scalars as proof_scalars
from superopt.trace.lowering import proof_windows as proof_windows
from superopt.trace.lowering import proof_writes as proof_writes
from superopt.trace.lowering import readings as readings
from superopt.trace.lowering import reduce as reduce
from superopt.trace.lowering import windows as windows
