"""Benchmarks: of the search, of kernels, of models, and of a user's own functions; and whether they regress.

Each suite is a module that measures one thing and writes its results in the one form of
`superopt.bench.harness.results`. A file of one's own needs only the decorator:

    from superopt.bench import case

    @case(inputs="f32[8,1024] f32[1024,1024]")
    def product(x, w):
        return (x @ w).relu()

    superopt bench run mine.py
"""

from superopt.bench.functions.declared import case

__all__ = ["case"]
