"""Export: a result as a Python module that needs only torch, and triton where it runs on a GPU."""

from superopt.export.module import export_module

__all__ = ["export_module"]
