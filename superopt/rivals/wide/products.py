"""Products: those of half-precision matrices in float32, a bounded number of bytes at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["MOST_BYTES", "multiply_groups_wide", "multiply_wide"]

MOST_BYTES = 2 << 20
"""What a product may hold beside its operands and its result; with more, it is no faster."""

_EDGE = 64  # a block is at least so long along each axis, and a multiple of it


def multiply_wide(
    left: Tensor,
    right: Tensor,
    made: Tensor,
    *,
    summand: Tensor | None = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Write a product of matrices, or of several pairs of them, into a tensor, block by block.

    As with `torch.addmm`, `alpha` times the product is added to `beta` times a summand. All is computed in
    float32, and rounded once. Blocks hold about `most_bytes` in float32.
    """
    summand = None if summand is None or beta == 0 else summand.expand(made.shape)
    if made.dim() == 2:
        _multiply(left, right, made, summand, beta, alpha, most_bytes)
        return
    rows, length, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    each = _block_bytes((left, right, made), rows, length, columns)
    several = max(most_bytes // max(each, 1), 1)
    if several == 1:
        for at in range(made.shape[0]):
            added = None if summand is None else summand[at]
            _multiply(left[at], right[at], made[at], added, beta, alpha, most_bytes)
        return
    for start in range(0, made.shape[0], several):
        cut = slice(start, start + several)
        product = torch.bmm(left[cut].float(), right[cut].float())
        _finish(product, made[cut], None if summand is None else summand[cut], beta, alpha)


def multiply_groups_wide(left: Tensor, right: Tensor, ends: Sequence[int], made: Tensor) -> None:
    """Write a product for each group of rows, or of what is summed, as `torch.nn.functional.grouped_mm` does.

    A group ends where the next one begins. Rows behind the last group are 0.
    """
    start = 0
    for at, end in enumerate(ends):
        if right.dim() == 3:
            multiply_wide(left[start:end], right[at], made[start:end])
        else:
            multiply_wide(left[:, start:end], right[start:end], made[at])
        start = end
    if right.dim() == 3:
        made[start:].zero_()


def _multiply(
    left: Tensor,
    right: Tensor,
    made: Tensor,
    summand: Tensor | None,
    beta: float,
    alpha: float,
    most_bytes: int,
) -> None:
    """Write one product of two matrices, or add it to a summand."""
    (rows, length), columns = left.shape, right.shape[1]
    if not rows * length * columns:
        made.zero_() if summand is None else made.copy_(summand.float() * beta)
        return
    in_place = made.dtype == torch.float32 and alpha == 1 and summand is None
    high, deep, wide = _block((left, right, made), rows, length, columns, most_bytes)
    lefts, rights = _Blocks(left), _Blocks(right)
    for across in range(0, columns, wide):
        for down in range(0, rows, high):
            target = made[down : down + high, across : across + wide]
            product = target if in_place else made.new_empty(target.shape, dtype=torch.float32)
            for start in range(0, length, deep):
                factors = (
                    lefts.block(down, start, high, deep),
                    rights.block(start, across, deep, wide),
                )
                if start:
                    product.addmm_(*factors)
                else:
                    torch.mm(*factors, out=product)
            if not in_place:
                added = None if summand is None else summand[down : down + high, across : across + wide]
                _finish(product, target, added, beta, alpha)


def _finish(product: Tensor, made: Tensor, summand: Tensor | None, beta: float, alpha: float) -> None:
    """Write a product in float32 where it belongs, times a number, and with what is added to it."""
    if alpha != 1:
        product.mul_(alpha)
    if summand is not None:
        product.add_(summand, alpha=beta)
    made.copy_(product)


def _block(
    tensors: Sequence[Tensor], rows: int, length: int, columns: int, most_bytes: int
) -> tuple[int, int, int]:
    """Return the rows, length and columns of blocks that hold so many bytes, as like cubes as may be."""
    sizes = [rows, length, columns]
    while _block_bytes(tensors, *sizes) > most_bytes and max(sizes) > _EDGE:
        at = sizes.index(max(sizes))
        sizes[at] = -(-sizes[at] // (2 * _EDGE)) * _EDGE
    return sizes[0], sizes[1], sizes[2]


def _block_bytes(tensors: Sequence[Tensor], rows: int, length: int, columns: int) -> int:
    """Return the bytes of a block in float32, of what does not lie in memory so."""
    counts = rows * length, length * columns, rows * columns
    return sum(4 * count for one, count in zip(tensors, counts, strict=True) if one.dtype != torch.float32)


@dataclass(slots=True)
class _Blocks:
    """A matrix block by block in float32; the latest block is kept, as the next product may read it again."""

    matrix: Tensor
    _place: tuple[int, int] | None = None
    _latest: Tensor | None = field(default=None, repr=False)

    def block(self, row: int, column: int, rows: int, columns: int) -> Tensor:
        """Return the block that begins at a row and a column."""
        if self._latest is None or self._place != (row, column):
            self._latest = None  # before the next one is made
            self._latest = self.matrix[row : row + rows, column : column + columns].float()
            self._place = row, column
        return self._latest
