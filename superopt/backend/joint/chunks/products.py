"""Products: those of a chunk as matrices, written or added where they belong, by a library."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from superopt.backend.joint.chunks.stages import Multiply

__all__ = ["Matrices"]

_PART_BYTES = 4 << 20  # bytes that are converted at a time
_WHOLE = 64  # rows or columns of which that is a multiple


class Matrices:
    """The operands and the result of a product as matrices: where they lie, or copies if need be.

    Where both operands keep axes, all are several matrices, one after another. Operands are multiplied in one
    dtype; where they or the result have another one, copies of some rows or columns at a time convert them.
    """

    def __init__(
        self,
        step: Multiply,
        left: Tensor,
        right: Tensor,
        made: Tensor,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        batch = step.batch
        rows, columns = (
            [axis for axis in one.axes if axis not in (*batch, *step.summed)]
            for one in (step.left, step.right)
        )
        self.dtype = dtype
        self.left = _matrix(left, step.left.axes, batch, rows, step.summed)
        self.right = _matrix(right, step.right.axes, batch, step.summed, columns)
        self.target = _in_order(made, step.made.axes, [*batch, *rows, *columns])
        self.made = _matrix(made, step.made.axes, batch, rows, columns)

    def multiply(self, *, again: bool = False) -> None:
        """Compute the product, or add it to what is there."""
        several = self.made.dim() == 3
        if any(one.dtype != self.dtype for one in (self.left, self.right, self.made)):
            self._multiply_in_parts(again=again)
        elif again:
            add = self.made.baddbmm_ if several else self.made.addmm_
            add(self.left, self.right)
        else:
            multiply = torch.bmm if several else torch.mm
            multiply(self.left, self.right, out=self.made)
        if self.made.data_ptr() != self.target.data_ptr():
            self.target.copy_(self.made.view(self.target.shape))

    def _multiply_in_parts(self, *, again: bool) -> None:
        """Compute a product whose operands or result are converted, along its longest axis."""
        dtype = self.dtype
        rows, columns, length = self.left.shape[-2], self.right.shape[-1], self.left.shape[-1]
        lengths = {"rows": rows, "columns": columns}
        if self.made.dtype == torch.float32:  # parts of a sum are not rounded as they are added
            lengths["sum"] = length
        along = max(lengths, key=lambda name: lengths[name])
        # What does not have that axis is converted once.
        left = self.left.to(dtype) if along == "columns" else self.left
        right = self.right.to(dtype) if along == "rows" else self.right
        made = torch.empty_like(self.made, dtype=dtype) if along == "sum" else self.made
        parts = {
            "rows": ((left, -2), (made, -2)),
            "columns": ((right, -1), (made, -1)),
            "sum": ((left, -1), (right, -2)),
        }[along]
        size = lengths[along]
        line = sum(one.numel() // max(size, 1) for one, _ in parts) * dtype.itemsize
        most = max(_PART_BYTES // max(line, 1) // _WHOLE * _WHOLE, _WHOLE)
        for start in range(0, size, most):
            count = min(most, size - start)
            cut = {id(one): one.narrow(axis, start, count) for one, axis in parts}
            factors = [cut.get(id(one), one).to(dtype) for one in (left, right)]
            part = torch.matmul(*factors, out=made) if along == "sum" else torch.matmul(*factors)
            target = self.made if along == "sum" else cut[id(made)]
            target.add_(part) if again or (along == "sum" and start) else target.copy_(part)


def _matrix(
    tensor: Tensor, axes: Sequence[str], batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Tensor:
    sizes = dict(zip(axes, tensor.shape, strict=True))
    several = [prod(sizes[axis] for axis in batch)] * bool(batch)
    shape = [*several, *(prod(sizes[axis] for axis in side) for side in (rows, columns))]
    return _in_order(tensor, axes, (*batch, *rows, *columns)).reshape(shape)


def _in_order(tensor: Tensor, axes: Sequence[str], order: Sequence[str]) -> Tensor:
    return tensor.permute([axes.index(axis) for axis in order])
