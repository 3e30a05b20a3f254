"""Kernels compiled ahead of time, one by one."""

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
    """Return the report of compiling a kernel in a process of its own, or raise CompileError."""
    with Children() as children:
        compiler = AheadCompiler(children)
        try:
            return compiler.compile(
                source, target=target, aligned=aligned, texts=texts, limit_seconds=limit_seconds
            )
        finally:
            compiler.close()
