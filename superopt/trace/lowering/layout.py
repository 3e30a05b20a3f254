"""Lowerings that only relabel, select or join axes, and tensors made of indices and constants."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from math import ceil, gcd, prod
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.integers import check_fits
from superopt.trace.lowering.masks import between, choose, picked
from superopt.trace.lowering.readings import joined, read_dim, side_by_side
from superopt.trace.lowering.table import flat, held, lower, lower_all
from superopt.trace.narrow import narrowed

__all__ = ["along", "select", "slice_dim", "unfolded_apart"]

_MOST_BLOCKS = 64  # a slice or cat of more blocks than this is data movement, not algebra
_MOSTLY = 2  # a slice of windows is windows if it keeps one in so many of them


@lower("clone", "detach", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "lift", "positive")
def _identity(b: Builder, x: Sym, **options: Any) -> Sym:
    return x


@lower("transpose")
def _transpose(b: Builder, x: Sym, i: int, j: int) -> Sym:
    if not x.dims:
        return x
    dims = list(x.dims)
    dims[i], dims[j] = dims[j], dims[i]
    return replace(x, dims=tuple(dims))


@lower("view", "_unsafe_view", "reshape", "_reshape_alias")
def _view(b: Builder, x: Sym, shape: Sequence[int], *strides: Any) -> Sym:
    if isinstance(shape, torch.dtype):
        raise UnsupportedError("reinterprets the bits of another dtype")
    count = b.axes.extent(flat(b.dims(x)))
    known = prod(size for size in shape if size != -1)
    sizes = tuple(count // known if size == -1 else size for size in shape)
    if 0 in sizes:
        return replace(x, value=b.const(0), dims=tuple(b.axes.dim(size) for size in sizes), mask=None)
    dims = b.axes.cut(flat(x.dims), sizes)
    if dims is None:
        raise UnsupportedError(f"a view of {list(b.shape(x))} as {list(sizes)} cuts across an axis")
    return replace(x, dims=dims)


@lower("expand")
def _expand(b: Builder, x: Sym, shape: Sequence[int], implicit: bool = False) -> Sym:
    dims: list[Dim] = [()] * (len(shape) - len(x.dims)) + list(b.dims(x))
    grown = [
        b.axes.dim(size) if not dim and size not in (-1, 1) else dim
        for dim, size in zip(dims, shape, strict=True)
    ]
    return replace(x, dims=tuple(grown))


@lower("repeat")
def _repeat(b: Builder, x: Sym, repeats: Sequence[int]) -> Sym:
    dims: list[Dim] = [()] * (len(repeats) - len(x.dims)) + list(b.dims(x))
    return replace(x, dims=tuple(b.axes.dim(n) + dim for dim, n in zip(dims, repeats, strict=True)))


@lower("unsqueeze")
def _unsqueeze(b: Builder, x: Sym, dim: int) -> Sym:
    at = dim % (len(x.dims) + 1)
    return replace(x, dims=(*x.dims[:at], (), *x.dims[at:]))


@lower("squeeze")
def _squeeze(b: Builder, x: Sym, dim: int | Sequence[int] | None = None) -> Sym:
    dims = b.dims(x)
    listed = range(len(dims)) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {i % len(dims) for i in listed if dims and not dims[i]}
    return replace(x, dims=tuple(d for i, d in enumerate(dims) if i not in gone))


@lower("select")
def select(b: Builder, x: Sym, dim: int, index: int) -> Sym:
    """Return the slice of a tensor at one index of a dimension, which is gone."""
    at = dim % len(x.dims)
    chosen = b.dims(x)[at]
    size = b.axes.extent(chosen)
    places = b.axes.position(chosen, index % size if size else 0)
    y = b.map(x, partial(b.select, at=places))
    return replace(y, dims=(*x.dims[:at], *x.dims[at + 1 :]))


@lower("slice")
def _slice(
    b: Builder, x: Sym, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Sym:
    size = b.shape(x)[dim]
    begin, stop, _ = slice(start, end).indices(size)
    return slice_dim(b, x, dim, begin, max(begin, stop), step)


def unfolded_apart(b: Builder, x: Sym, dim: int, size: int, step: int) -> Sym:
    """Return the windows of a dimension that share no elements."""
    at, shape = dim % len(x.dims), b.shape(x)
    count = (shape[at] - size) // step + 1
    if step > size and count * step > shape[at]:
        raise UnsupportedError("the last window is shorter than the others")
    whole = _slice(b, x, at, 0, count * step)
    apart = _view(b, whole, (*shape[:at], count, step, *shape[at + 1 :]))
    found = _slice(b, apart, at + 1, 0, size)
    return replace(found, dims=(*found.dims[: at + 1], *found.dims[at + 2 :], found.dims[at + 1]))


@lower("split")
def _split(b: Builder, x: Sym, length: int | Sequence[int], dim: int = 0) -> tuple[Sym, ...]:
    size = b.shape(x)[dim]
    if isinstance(length, int):
        starts = range(0, size, length) if length else [0]
        return tuple(slice_dim(b, x, dim, start, min(start + length, size), 1) for start in starts)
    ends = list(accumulate(length))
    return tuple(slice_dim(b, x, dim, end - own, end, 1) for own, end in zip(length, ends, strict=True))


lower("split_with_sizes", "split_copy", "split_with_sizes_copy", "unsafe_split", "unsafe_split_with_sizes")(
    _split
)


@lower("unbind")
def _unbind(b: Builder, x: Sym, dim: int = 0) -> tuple[Sym, ...]:
    return tuple(select(b, x, dim, i) for i in range(b.shape(x)[dim]))


def slice_dim(b: Builder, x: Sym, dim: int, start: int, end: int, step: int) -> Sym:
    """Return the elements start, start + step, ... before end of a dimension."""
    at = dim % len(x.dims)
    size = b.shape(x)[at]
    count = len(range(start, end, step))
    if count == size:
        return x
    if count == 0:
        return replace(x, value=b.const(0), dims=(*x.dims[:at], b.axes.dim(0), *x.dims[at + 1 :]), mask=None)
    chosen = b.dims(x)[at]
    if not b.covers(x.value) & set(chosen) and (x.mask is None or not b.covers(x.mask) & set(chosen)):
        return _put(x, at, b.axes.dim(count))
    if b.nodes[x.value].tensorless and len(chosen) == 1 and (x.mask is None or b.nodes[x.mask].tensorless):
        made = b.axes.dim(count)
        place = b.apply("add", b.apply("mul", b.index(made), b.const(step)), b.const(start))
        return _put(b.map(x, partial(b.substitute, places={chosen[0]: place})), at, made)
    if len(chosen) == 1 and x.mask is None and _MOSTLY * count >= size:
        made = b.axes.dim(count)
        value = narrowed(b, x.value, chosen[0], made[0], step, start) if made else None
        if value is not None:
            return replace(_put(x, at, made), value=value)
    if x.value in b.readings:
        return read_dim(b, x, at, range(start, end, step))
    if step > 1:
        return _stride(b, x, at, start, count, step)
    block = gcd(size, start, count)
    parts = b.axes.cut(chosen, (size // block, block)) if size // block <= _MOST_BLOCKS else None
    if parts is None:
        return read_dim(b, x, at, range(start, end))
    outer, inner = parts
    if count == block:
        places = b.axes.position(outer, start // block)
        return _put(b.map(x, partial(b.select, at=places)), at, inner)
    made = b.axes.dim(count // block)
    return _put(_shift(b, b.settle(x), outer, made, start // block), at, made + inner)


def _stride(b: Builder, x: Sym, at: int, start: int, count: int, step: int) -> Sym:
    size = b.shape(x)[at]
    parts = None
    if size % step == 0 and start < step and count == size // step:
        parts = b.axes.cut(x.dims[at], (count, step))
    if parts is None:
        return read_dim(b, x, at, range(start, start + step * count, step))
    places = b.axes.position(parts[1], start)
    return _put(b.map(x, partial(b.select, at=places)), at, parts[0])


def _put(x: Sym, at: int, dim: Dim) -> Sym:
    return replace(x, dims=(*x.dims[:at], dim, *x.dims[at + 1 :]))


def _shift(b: Builder, x: Sym, old: Dim, new: Dim, offset: int) -> Sym:
    """Return the value along `new`, read at `new + offset` of `old`: a product with a one-hot mask."""
    place = b.apply("add", b.index(new), b.const(offset))
    return replace(x, value=picked(b, x.value, old, b.apply("eq", b.index(old), place)))


@lower("cat", "concat")
def _cat(b: Builder, parts: Sequence[Sym], dim: int = 0) -> Sym:
    parts = [part for part in parts if b.shape(part) != (0,)] or list(parts[:1])
    at = dim % len(parts[0].dims)
    parts = [part for part in parts if b.shape(part)[at]] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    sizes = [b.shape(part)[at] for part in parts]
    if (found := joined(b, parts, at)) is not None:
        return found
    block = gcd(*sizes)
    blocks = sum(sizes) // block
    if blocks > _MOST_BLOCKS:
        return side_by_side(b, parts, at)
    outer = b.axes.dim(blocks)
    placed, offset = [], 0
    for part, size in zip(parts, sizes, strict=True):
        cut = b.axes.cut(part.dims[at], (size // block, block))
        if cut is None:
            return side_by_side(b, parts, at)
        dims = (*part.dims[:at], *cut, *part.dims[at + 1 :])
        placed.append((replace(part, dims=dims), offset))
        offset += size // block
    return _assemble(b, placed, at, outer)


@lower("stack")
def _stack(b: Builder, parts: Sequence[Sym], dim: int = 0) -> Sym:
    at = dim % (len(parts[0].dims) + 1)
    if len(parts) > _MOST_BLOCKS:
        raise UnsupportedError(f"a stack of {len(parts)} tensors")
    placed = [
        (replace(part, dims=(*part.dims[:at], (), (), *part.dims[at:])), i) for i, part in enumerate(parts)
    ]
    return _assemble(b, placed, at, b.axes.dim(len(parts)))


def _assemble(b: Builder, parts: Sequence[tuple[Sym, int]], at: int, outer: Dim) -> Sym:
    """Return parts with dimensions [.., own block, inner, ..] joined along one axis of all blocks.

    Each part counts where a one-hot mask says so: the result is `sum of eq(index[t], i) * part`.
    """
    rank = len(parts[0][0].dims)
    operands = []
    for number, (part, _) in enumerate(parts):
        labels: list[object] = list(range(rank))
        labels[at] = ("block", number)
        operands.append((part, labels))
    joined, placed = b.join(operands)
    b.axes.meet(axis for dim in (*placed.values(), outer) for axis in dim)
    masked = any(sym.mask is not None for sym in joined)
    picks = False
    boolean = all(sym.dtype == torch.bool for sym in joined)
    value, mask = b.const(0), b.const(0)
    for number, (sym, (_, offset)) in enumerate(zip(joined, parts, strict=True)):
        own = placed.get(("block", number), ())
        if own and not masked and not b.covers(sym.value) & set(b.axes.leaves(own)):
            hot, own = between(b, outer, offset, offset + b.axes.extent(own) - 1), ()  # its blocks are alike
        else:
            place = b.apply("add", b.index(own), b.const(offset))
            hot = b.apply("eq", b.index(outer), place)
        if own and masked:
            raise UnsupportedError("a cat of unequal parts that may be minus infinity")
        if own:
            piece = picked(b, sym.value, own, hot)
            picks = True
        else:
            piece = b.apply("mul", hot, sym.value)
            mask = b.apply("or", mask, hot if sym.mask is None else b.apply("and", hot, sym.mask))
        value = b.apply("or" if boolean and not own else "add", value, piece)
    if boolean:
        b.spans[value] = 0, 1  # no two parts are in one place
    if boolean and picks and not b.for_proof:  # else a product with it, as of `where`, would leave out no NaN
        value = b.apply("ne", value, b.const(0))
    dims = [placed.get(i, ()) for i in range(rank)]
    dims[at : at + 2] = [outer + placed.get(at + 1, ())]
    return Sym(value, tuple(dims), parts[0][0].dtype, mask if masked else None)


def _triangle(b: Builder, x: Sym, op: str, diagonal: int) -> Sym:
    rows, columns = b.dims(x)[-2:]
    moved = b.apply("add", b.index(rows), b.const(diagonal))
    kept = Sym(b.apply(op, moved, b.index(columns)), (rows, columns), torch.bool)
    return choose(b, kept, x, b.scalar(0, x.dtype))


@lower("arange")
def _arange(b: Builder, *bounds: float, **options: Any) -> Sym:
    start, end = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) > 2 else options.get("step", 1)
    whole = all(isinstance(one, int) for one in (start, end, step))
    dtype = options.get("dtype") or (torch.int64 if whole else torch.get_default_dtype())
    count = _count(start, end, step, dtype)
    if not dtype.is_floating_point:
        start, step = int(start), int(step)
    made = b.axes.dim(count)
    scaled = b.apply("mul", b.index(made), b.const(step))
    found = Sym(b.apply("add", scaled, b.const(start)), (made,), dtype)
    if not dtype.is_floating_point:
        check_fits(b, replace(found, dtype=torch.int64), dtype)
    return found


def _count(start: float, end: float, step: float, dtype: torch.dtype) -> int:
    """Return how many numbers PyTorch puts between two: by whole numbers for int64, else by doubles."""
    if dtype != torch.int64:
        return max(0, ceil((float(end) - float(start)) / float(step)))
    start, end, step = int(start), int(end), int(step)
    return max(0, -((start - end) // step))


def _check_fractions(dtype: torch.dtype | None) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise UnsupportedError("rounds to integers")


@lower("linspace")
def _linspace(b: Builder, start: float | Sym, end: float | Sym, steps: int, **options: Any) -> Sym:
    _check_fractions(options.get("dtype"))
    if isinstance(start, Sym) or isinstance(end, Sym):
        raise UnsupportedError("its ends are tensors")
    made = b.axes.dim(steps)
    step = (Fraction(end) - Fraction(start)) / max(steps - 1, 1)
    value = b.apply("add", b.apply("mul", b.index(made), b.const(step)), b.const(start))
    return Sym(value, (made,), torch.float32)


@lower("eye")
def _eye(b: Builder, rows: int, columns: int | None = None, **options: Any) -> Sym:
    i, j = b.axes.dim(rows), b.axes.dim(rows if columns is None else columns)
    b.axes.meet(i + j)
    return Sym(b.apply("eq", b.index(i), b.index(j)), (i, j), torch.float32)


def _filled(b: Builder, shape: Sequence[int], value: Any) -> Sym:
    dims = tuple(b.axes.dim(size) for size in shape)
    return replace(value if isinstance(value, Sym) else b.scalar(value, torch.float32), dims=dims)


@lower("full", "new_full")
def _full(b: Builder, *arguments: Any, **options: Any) -> Sym:
    shape, value = arguments[-2:]
    like = arguments[0].dtype if len(arguments) > 2 else None  # the tensor of new_full
    return _filled(b, shape, held(b, value, options.get("dtype") or like))


def _register_filled() -> None:
    # What `empty` holds is anybody's guess, so 0 is a right one.
    for name, value in (("ones", 1), ("zeros", 0), ("empty", 0), ("empty_strided", 0)):

        def made(b: Builder, shape: Sequence[int], *strides: Any, fill: int = value, **options: Any) -> Sym:
            return _filled(b, shape, fill)

        def like(b: Builder, x: Sym, fill: int = value, **options: Any) -> Sym:
            return replace(b.scalar(fill, x.dtype), dims=x.dims)

        def new(b: Builder, x: Sym, shape: Sequence[int], fill: int = value, **options: Any) -> Sym:
            return _filled(b, shape, fill)

        lower(name)(made)
        if name != "empty_strided":
            lower(f"{name}_like")(like)
            lower(f"new_{name}")(new)


_register_filled()


def _full_like(b: Builder, x: Sym, value: Any, **options: Any) -> Sym:
    return replace(held(b, value, options.get("dtype") or x.dtype), dims=x.dims)


@lower("copy")
def _copy(b: Builder, x: Sym, source: Any, non_blocking: bool = False) -> Sym:
    (_, found), dims = b.broadcast(replace(x, value=b.const(0), mask=None), held(b, source, x.dtype))
    return replace(found, dims=dims)


# -- tensors with some places written anew, as a write to a view comes


@lower("select_scatter")
def _select_scatter(b: Builder, x: Sym, source: Sym, dim: int, index: int) -> Sym:
    x, source = b.settle(x), held(b, source, x.dtype)
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
    x, source = b.settle(x), b.settle(held(b, source, x.dtype))
    at = dim % len(x.dims)
    places = range(*slice(start, end, step).indices(b.shape(x)[at]))
    if len(places) in (0, b.shape(x)[at]):
        return source if places else x
    if step != 1:
        return _stride_scatter(b, x, source, at, places)
    if b.covers(source.value) & set(b.dims(source)[at]):
        around = (
            slice_dim(b, x, at, 0, places[0], 1),
            slice_dim(b, x, at, places[-1] + 1, b.shape(x)[at], 1),
        )
        return _cat(b, (around[0], source, around[1]), at)
    here = along(between(b, b.dims(x)[at], places[0], places[-1]), b.dims(x)[at], len(x.dims) - at - 1)
    return choose(b, here, replace(source, dims=(*source.dims[:at], (), *source.dims[at + 1 :])), x)


def _stride_scatter(b: Builder, x: Sym, source: Sym, at: int, places: range) -> Sym:
    """Return a tensor with every few places of a dimension written anew."""
    size, step = b.shape(x)[at], places.step
    parts = None
    if size % step == 0 and places[0] < step and len(places) == size // step:
        parts = b.axes.cut(b.dims(x)[at], (len(places), step))
    if parts is None:
        raise UnsupportedError(f"writes to each {step}th place of {size}, which are no factors")
    apart = replace(x, dims=(*x.dims[:at], *parts, *x.dims[at + 1 :]))
    made = _select_scatter(b, apart, source, at + 1, places[0])
    return replace(made, dims=(*made.dims[:at], made.dims[at] + made.dims[at + 1], *made.dims[at + 2 :]))


def along(mask: int, dim: Dim, after: int) -> Sym:
    """Return a mask along one dimension, which so many dimensions follow."""
    return Sym(mask, (dim, *[()] * after), torch.bool)


lower_all(
    {
        "permute": lambda b, x, order: replace(x, dims=tuple(x.dims[i] for i in order)),
        "t": lambda b, x: replace(x, dims=x.dims[::-1]),
        "numpy_T": lambda b, x: replace(x, dims=x.dims[::-1]),
        "tril": lambda b, x, diagonal=0: _triangle(b, x, "ge", diagonal),
        "triu": lambda b, x, diagonal=0: _triangle(b, x, "le", diagonal),
        "zero": lambda b, x: replace(b.scalar(0, x.dtype), dims=x.dims),
        "full_like": _full_like,
        "fill": _full_like,
        "scalar_tensor": lambda b, value, **options: _filled(b, (), held(b, value, options.get("dtype"))),
    }
)
