"""Kernels compiled ahead of time, one by one."""

import atexit
from functools import cache

from superopt.codegen.children import Children
from superopt.codegen.triton import AheadCompiler, CompileReport
from superopt.codegen.triton.source import TritonSource


def compile_ahead(
    source: TritonSource,
    *,
    target: str = "cuda:90",
    aligned: bool = True,
    texts: bool = False,
    limit_seconds: float = 120.0,
) -> CompileReport:
    """Return the report of compiling a kernel in the process that all tests share, or raise CompileError."""
    return _compiler().compile(
        source, target=target, aligned=aligned, texts=texts, limit_seconds=limit_seconds
    )


@cache
def _compiler() -> AheadCompiler:
    """Return a compiling process: to start one takes as long as to compile a kernel."""
    children = Children()
    compiler = AheadCompiler(children)
    atexit.register(children.close)
    atexit.register(compiler.close)
    return compiler
