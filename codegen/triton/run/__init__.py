"""Runs and compiles printed kernels: calls of a muGraph on tensors, and reports for a device not here."""

from superopt.codegen.triton.run.compile import AheadCompiler, CompileReport
from superopt.codegen.triton.run.launch import TritonMuGraph

__all__ = ["AheadCompiler", "CompileReport", "TritonMuGraph"]
