"""Products: those of a turn as matrices, written or added where they belong, by a library or by us."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from superopt.backend.joint.turns.stages import Multiply
from superopt.codegen.cpp import default_config, lower_kernel
from superopt.codegen.cpp.calls import chained
from superopt.codegen.cpp.launch import CppKernel
from superopt.codegen.processor import vectors
from superopt.ir import fuse, parse_graph

__all__ = ["Matrices", "OwnProduct"]

_TEXT = """
graph product
axes m={m} n={n} k={k}
in a: f32[{a}]
in b: f32[{b}]
t2 = contract[k](a, b)
out c: f32[{c}] = t2
"""

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

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The rows and the columns of the result, and the length of the sum."""
        return self.left.shape[-2], self.right.shape[-1], self.left.shape[-1]

    def multiply(self, own: "OwnProduct | None" = None, *, again: bool = False) -> None:
        """Compute the product, or add it to what is there."""
        several = self.made.dim() == 3
        if any(one.dtype != self.dtype for one in (self.left, self.right, self.made)):
            self._multiply_in_parts(again=again)
        elif again:
            add = self.made.baddbmm_ if several else self.made.addmm_
            add(self.left, self.right)
        elif own is None or several or not own.multiply(self):
            multiply = torch.bmm if several else torch.mm
            multiply(self.left, self.right, out=self.made)
        if self.made.data_ptr() != self.target.data_ptr():
            self.target.copy_(self.made.view(self.target.shape))

    def _multiply_in_parts(self, *, again: bool) -> None:
        """Compute a product whose operands or result are converted, along its longest axis."""
        dtype = self.dtype
        rows, columns, length = self.sizes
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


class OwnProduct:
    """A product of matrices by a kernel of ours, for matrices that lie in memory as the first ones do."""

    def __init__(self, matrices: Matrices) -> None:
        m, n, k = matrices.sizes
        self.turned = _turned(matrices)
        a, b, c = (
            ", ".join(axes[::-1] if turned else axes)
            for turned, axes in zip(self.turned, ("mk", "kn", "mn"), strict=True)
        )
        graph = parse_graph(_TEXT.format(m=m, n=n, k=k, a=a, b=b, c=c))
        program = lower_kernel(fuse(graph), 0)
        self.kernel = CppKernel(
            program, default_config(program, graph.sizes, cores=torch.get_num_threads(), vectors=vectors())
        )

    def multiply(self, matrices: Matrices) -> bool:
        """Compute a product and return True, or False where matrices lie otherwise."""
        if _turned(matrices) != self.turned:
            return False
        parts = (matrices.left, matrices.right, matrices.made)
        lying = [one.t() if turned else one for one, turned in zip(parts, self.turned, strict=True)]
        left, right, made = (one.stride() for one in lying)
        sizes = dict(zip("mnk", matrices.sizes, strict=True))
        link = self.kernel.link([left, right], [made], sizes, torch.get_num_threads())
        chained([link])(*(one.data_ptr() for one in lying))
        return True


def _turned(matrices: Matrices) -> tuple[bool | None, ...]:
    """Return of each matrix whether its columns lie along memory; None where neither they nor its rows do."""
    return tuple(
        False if one.stride(1) == 1 else True if one.stride(0) == 1 else None
        for one in (matrices.left, matrices.right, matrices.made)
    )
