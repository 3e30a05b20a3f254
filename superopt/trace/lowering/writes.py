"""Lowerings of tensors with some places written anew: what is written there, the old numbers elsewhere.

A write to a view comes as one of these operators, on the tensor that it is a view of.
"""

from dataclasses import replace

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import choose
from superopt.trace.lowering.table import lower

__all__ = ["along"]


@lower("select_scatter")
def _select_scatter(b: Builder, x: Sym, source: Sym, dim: int, index: int) -> Sym:
    x = b.settle(x)
    at = dim % len(x.dims)
    here = b.apply("eq", b.index(b.dims(x)[at]), b.const(index % b.shape(x)[at]))
    wide = replace(source, dims=(*source.dims[:at], (), *source.dims[at:]))
    return choose(b, along(here, b.dims(x)[at], len(x.dims) - at - 1), b.settle(wide), x)


@lower("slice_scatter")
def _slice_scatter(
    b: Builder,
    x: Sym,
    source: Sym,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Sym:
    x, source = b.settle(x), b.settle(source)
    at = dim % len(x.dims)
    places = range(*slice(start, end, step).indices(b.shape(x)[at]))
    if len(places) in (0, b.shape(x)[at]):
        return source if places else x
    if step != 1 or b.covers(source.value) & set(b.dims(source)[at]):
        raise UnsupportedError("writes other numbers at each place of a part")
    index = b.index(b.dims(x)[at])
    after, before = b.apply("ge", index, b.const(places[0])), b.apply("le", index, b.const(places[-1]))
    here = along(b.apply("and", after, before), b.dims(x)[at], len(x.dims) - at - 1)
    return choose(b, here, replace(source, dims=(*source.dims[:at], (), *source.dims[at + 1 :])), x)


def along(mask: int, dim: Dim, after: int) -> Sym:
    """Return a mask along one dimension, which so many dimensions follow."""
    return Sym(mask, (dim, *[()] * after), torch.bool)
