"""Lowerings: what turns calls of PyTorch's operators into algebra; to import the package fills the tables."""

from superopt.trace.lowering import attention as attention
from superopt.trace.lowering import layout as layout
from superopt.trace.lowering import pointwise as pointwise
from superopt.trace.lowering import proof as proof
from superopt.trace.lowering import readings as readings
from superopt.trace.lowering import reduce as reduce
from superopt.trace.lowering import windows as windows
