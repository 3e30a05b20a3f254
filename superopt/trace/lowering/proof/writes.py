"""Proof lowerings of tensors with some places written anew: what is written there, the old numbers elsewhere.

A write to a view comes as one of these operators, on the tensor that it is a view of.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.layout import along
from superopt.trace.lowering.masks import choose, pointwise, scale
from superopt.trace.lowering.proof.indices import one_hot, required
from superopt.trace.lowering.proof.moves import WHOLE, inside, moved
from superopt.trace.lowering.reduce import total
from superopt.trace.lowering.table import LOWERINGS, flat, held, lower

__all__: list[str] = []


@lower("empty", "empty_like", "empty_strided", "new_empty", for_proof=True)
def _empty(b: Builder, *arguments: object, **options: object) -> Sym:
    raise UnsupportedError("what it holds is anybody's guess")


@lower("slice_scatter", for_proof=True)
def _slice_scatter(
    b: Builder,
    x: Sym,
    source: Sym,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Sym:
    x, source = b.settle(x), held(b, source, x.dtype)
    at = dim % len(x.dims)
    size = b.shape(x)[at]
    places = range(*slice(start, end, step).indices(size))
    if len(places) in (0, size):
        return b.settle(source) if places else x
    made = b.axes.dim(size)
    if step == 1:
        place = b.apply("sub", b.index(made), b.const(places[0]))
    elif size <= WHOLE:
        place = b.table(made, [places.index(i) if i in places else -1 for i in range(size)])
    else:
        raise UnsupportedError(f"writes to every {step}th of {size} places")
    here = along(inside(b, place, len(places)), made, len(x.dims) - at - 1)
    return choose(b, here, _read(b, source, at, made, place), x)


@lower("diagonal_scatter", for_proof=True)
def _diagonal_scatter(b: Builder, x: Sym, source: Sym, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Sym:
    x, source = b.settle(x), held(b, source, x.dtype)
    i, j = dim1 % len(x.dims), dim2 % len(x.dims)
    size = b.shape(x)[i]
    rows, columns = b.axes.dim(size), b.axes.dim(b.shape(x)[j])
    b.axes.meet(rows + columns)
    place = b.apply("sub", b.index(rows), b.const(max(-offset, 0)))
    right = b.apply("sub", b.index(columns), b.const(max(offset, 0)))
    on = b.apply("and", b.apply("ge", place, b.const(0)), b.apply("eq", place, right))
    read = _read(b, source, len(source.dims) - 1, rows, place)
    *outer, line = read.dims
    dims = list(outer)
    for at, dim in sorted(((i, line), (j, ()))):
        dims.insert(at, dim)
    mask = [rows if at == i else columns if at == j else () for at in range(len(x.dims))]
    return choose(b, Sym(on, tuple(mask), torch.bool), replace(read, dims=tuple(dims)), x)


def _index_put(
    b: Builder, x: Sym, indices: Sequence[Sym | None], values: Sym, accumulate: bool = False
) -> Sym:
    """Return the tensor with one number in the places that an index tensor names."""
    given = [i for i, index in enumerate(indices) if index is not None]
    index = indices[given[0]]
    assert index is not None
    if len(given) > 1 or accumulate or index.dtype == torch.bool or b.axes.extent(flat(values.dims)) != 1:
        found = LOWERINGS["index_put"](b, x, indices, values, accumulate)
        assert isinstance(found, Sym)
        return found
    [dim] = given
    x = b.settle(x)
    hit = one_hot(b, index, x.dims[dim], wraps=True)
    met = required(b, total(b, hit, -1))
    hits = scale(b, "mul", hit, replace(met, dims=(*met.dims, ())))
    counted = total(b, hits, range(len(index.dims))) if index.dims else hits
    here = pointwise(b, "gt", counted, b.scalar(0, torch.int64))
    mask = replace(here, dims=(*here.dims, *[()] * (len(x.dims) - dim - 1)), dtype=torch.bool)
    return choose(b, mask, replace(held(b, values, x.dtype), dims=()), x)


lower("index_put", for_proof=True)(_index_put)


def _read(b: Builder, source: Sym, at: int, made: Dim, place: int) -> Sym:
    """Return what is written, read at a place of each index of a new dimension; anything where outside."""
    source = b.settle(source)
    if not b.covers(source.value) & set(b.dims(source)[at]):
        return replace(source, dims=(*source.dims[:at], made, *source.dims[at + 1 :]))
    return moved(b, source, at, (made,), place)
