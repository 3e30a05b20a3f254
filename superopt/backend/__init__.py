"""The backend of torch.compile: Inductor as the host, superopt for the regions where it is faster.

    torch.compile(model, backend="superopt", options={"budget_s": 60, "preset": "quick"})

Inductor hands over its functional graph of ATen operators, forward or backward. Its algebra is cut in
regions; each different region is searched, checked, and raced against what Inductor makes of it alone.
"""

from superopt.backend.entry import compile_graph, explain
from superopt.backend.options import BackendOptions

__all__ = ["BackendOptions", "compile_graph", "explain"]
