"""Runtime: the devices of a mesh as processes of torch.distributed, and the collectives between them.

This file needs only torch, since every exported module contains its text.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ProcessMesh", "ReductionStep", "contracted"]

ReductionStep: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A collective, the dimensions along which it goes, and those of which only the first place takes part."""


_reduce_scatter: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)  # from 2.13 on


class ProcessMesh:
    """The processes of torch.distributed as a mesh, the last dimension running fastest."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        if dist.get_world_size() != prod(self.sizes):
            raise ValueError(f"a mesh of {self.sizes} needs {prod(self.sizes)} processes")
        self.devices = list(product(*map(range, self.sizes)))
        self.rank = dist.get_rank()
        self.place = self.devices[self.rank]
        self._moves = ThreadPoolExecutor(1)
        self._groups: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Any, tuple[int, ...]]] = {}

    def begin(self, move: Callable[..., Tensor], tensor: Tensor, *arguments: Any) -> "Future[Tensor]":
        """Begin a move beside the steps that follow; `result()` waits for it. Moves run in their order."""
        # The thread has a stream of its own, which would not wait until the tensor is there.
        own = torch.cuda.stream(torch.cuda.current_stream(tensor.device)) if tensor.is_cuda else nullcontext()

        def moved() -> Tensor:
            with torch.no_grad(), own:
                return move(tensor, *arguments)

        return self._moves.submit(moved)

    def members(self, rank: int, dims: Sequence[int]) -> tuple[int, ...]:
        """Return the devices that differ from one along some dimensions only, in order."""
        own = self.devices[rank]
        fixed = [dim for dim in range(len(self.sizes)) if dim not in dims]
        return tuple(at for at, other in enumerate(self.devices) if all(own[d] == other[d] for d in fixed))

    def group(self, dims: Sequence[int], first: Sequence[int] = ()) -> tuple[Any, tuple[int, ...]]:
        """Return this process's group along some dimensions and its members; all processes must ask for it.

        Along the dimensions in `first`, only processes at place 0 have a group.
        """
        key = tuple(dims), tuple(first)
        if key not in self._groups:
            self._groups[key] = None, ()
            for members in sorted({self.members(rank, dims) for rank in range(len(self.devices))}):
                if any(self.devices[members[0]][dim] for dim in first):
                    continue
                made = dist.new_group(list(members))
                if self.rank in members:
                    self._groups[key] = made, members
        return self._groups[key]

    def part_of(
        self, tensor: Tensor, pieces: Sequence[int], held: dict[int, int], shape: Sequence[int]
    ) -> Tensor:
        """Return this device's part of a tensor, given its pieces and the dimension that holds each."""
        tensor = tensor.reshape(tuple(pieces))
        for at in sorted(held, reverse=True):
            tensor = tensor.select(at, self.place[held[at]])
        return tensor.reshape(tuple(shape))

    def reduce(self, tensor: Tensor, steps: Sequence[ReductionStep], how: str = "+") -> Tensor:
        """Return the sum or maximum over the devices that the steps reach, by these steps."""
        if how == "+" or not tensor.is_floating_point():
            return self._reduced(tensor, steps, dist.ReduceOp.SUM if how == "+" else dist.ReduceOp.MAX)
        # Collectives may lose a NaN. As integers that have the order of the floats, it is the largest.
        floats = tensor if tensor.dtype in _BITS else tensor.float()
        bits = floats.masked_fill(floats.isnan(), float("nan")).view(_BITS[floats.dtype])
        found = _in_order(self._reduced(_in_order(bits), steps, dist.ReduceOp.MAX))
        return found.view(floats.dtype).to(tensor.dtype)

    def _reduced(self, tensor: Tensor, steps: Sequence[ReductionStep], operation: Any) -> Tensor:
        dims = tuple(sorted({dim for _, along, _ in steps for dim in along}))
        members = self.members(self.rank, dims)
        chunks = len(members)
        flat = tensor.reshape(-1)
        if all(name == "all-reduce" and not first for name, _, first in steps):
            flat = flat.clone()
            for _, along, _ in steps:
                dist.all_reduce(flat, operation, group=self.group(along)[0])
            return flat.reshape(tensor.shape)
        rows = torch.empty(chunks, -(-flat.numel() // chunks), dtype=flat.dtype, device=flat.device)
        rows.view(-1)[: flat.numel()] = flat
        rows.view(-1)[flat.numel() :] = 0
        held = {member: list(range(chunks)) for member in members}
        for name, along, first in steps:
            self._step(rows, held, name, self.group(along, first), operation)
            for group in {self.members(member, along) for member in members}:
                if not any(self.devices[group[0]][dim] for dim in first):
                    held.update(_held_after(name, group, held))
        return rows.view(-1)[: flat.numel()].reshape(tensor.shape)

    def _step(
        self,
        rows: Tensor,
        held: dict[int, list[int]],
        name: str,
        found: tuple[Any, tuple[int, ...]],
        operation: Any,
    ) -> None:
        """Take one step of a reduction in this device's group, if it has one."""
        group, members = found
        own = held[self.rank]
        if group is None or len(members) == 1:
            return
        if name == "all-gather":
            parts = [_chunks(rows, held[member]) for member in members]
            dist.all_gather(parts, _chunks(rows, own), group=group)
            for member, part in zip(members, parts, strict=True):
                _put(rows, held[member], part)
            return
        chunks = held[members[0]] if name == "broadcast" else own
        sent = _chunks(rows, chunks)
        if name == "broadcast":
            dist.broadcast(sent, members[0], group=group)
        elif name == "reduce":
            dist.reduce(sent, members[0], operation, group=group)
        elif name == "all-reduce":
            dist.all_reduce(sent, operation, group=group)
        else:
            share = len(own) // len(members)
            at = members.index(self.rank) * share
            chunks = own[at : at + share]
            sent = self._reduce_scatter(sent.reshape(len(members), -1), found, operation).view(share, -1)
        _put(rows, chunks, sent)

    def _reduce_scatter(
        self, parts: Tensor, found: tuple[Any, tuple[int, ...]], operation: Any = dist.ReduceOp.SUM
    ) -> Tensor:
        """Return this device's share of what a group's devices have, a row for each of them."""
        group, members = found
        if dist.get_backend(group) != "gloo":
            made = torch.empty_like(parts[0])
            _reduce_scatter(made, parts.reshape(-1), operation, group=group)
            return made
        # Gloo's own reduce-scatter is a whole all-reduce, which moves twice the bytes of this ring.
        many, at = len(members), members.index(self.rank)
        passed = parts[at - 1].clone()
        for turn in range(2, many + 1):
            got = torch.empty_like(passed)
            # Of two devices, gloo lets one send only after the other unless both say first that they receive.
            moves = [
                dist.P2POp(dist.irecv, got, members[at - 1], group),
                dist.P2POp(dist.isend, passed, members[(at + 1) % many], group),
            ]
            for work in dist.batch_isend_irecv(moves):
                work.wait()
            own = parts[at - turn]
            passed = torch.maximum(got, own) if operation == dist.ReduceOp.MAX else got.add_(own)
        return passed

    def scatter(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this device's share of the sum, whose first dimension has a share for each device."""
        made = self._reduce_scatter(tensor.reshape(len(tensor), -1), self.group((dim,)))
        return made.reshape(tensor.shape[1:])

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the tensors of all devices along a dimension, stacked."""
        group, members = self.group((dim,))
        tensor = tensor.contiguous()
        made = [torch.empty_like(tensor) for _ in members]
        dist.all_gather(made, tensor, group=group)
        return torch.stack(made)

    def exchange(self, tensor: Tensor, dim: int) -> Tensor:
        """Return what each device along a dimension has for this one, stacked."""
        group, _ = self.group((dim,))
        made = torch.empty_like(tensor.contiguous())
        dist.all_to_all_single(made, tensor.contiguous(), group=group)
        return made


def _chunks(rows: Tensor, own: list[int]) -> Tensor:
    """Return some chunks: in their place where they lie side by side, else as a copy."""
    if own and own[-1] - own[0] == len(own) - 1:
        return rows[own[0] : own[-1] + 1]
    return rows[own]


def _put(rows: Tensor, own: list[int], chunks: Tensor) -> None:
    """Put chunks into their place unless they are there."""
    if own and chunks.data_ptr() != rows[own[0]].data_ptr():
        rows[own] = chunks


def _held_after(name: str, group: tuple[int, ...], held: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the chunks that the members of a group hold after a step."""
    own = held[group[0]]
    if name == "all-reduce":
        return {}
    if name == "reduce":
        return {member: [] for member in group[1:]}
    if name == "broadcast":
        return dict.fromkeys(group, own)
    if name == "all-gather":
        union = sorted(row for member in group for row in held[member])
        return dict.fromkeys(group, union)
    share = len(own) // len(group)
    return {member: own[at * share : (at + 1) * share] for at, member in enumerate(group)}


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _in_order(bits: Tensor) -> Tensor:
    """Return the bits of floats as integers in the order of the floats, or those bits again."""
    known = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (known.bits - 1)) & known.max)  # all bits of negative numbers but the sign


def contracted(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Return an einsum of halves whose products are added up in float32, and not rounded after."""
    left, right, made = equation.replace("->", ",").split(",")
    summed = [axis for axis in left if axis not in made]
    if {*summed} != {*right} - {*made}:
        return torch.einsum(equation, a.float(), b.float())
    batch = [axis for axis in left if axis in right and axis in made]
    rows, columns = ([axis for axis in made if axis not in other] for other in (right, left))
    sizes = dict(zip(left + right, (*a.shape, *b.shape), strict=True))

    def matrices(tensor: Tensor, axes: str, groups: Sequence[list[str]]) -> Tensor:
        order = [axes.index(axis) for group in groups for axis in group]
        return tensor.permute(order).reshape([prod(sizes[axis] for axis in group) for group in groups])

    x, y = matrices(a, left, (batch, rows, summed)), matrices(b, right, (batch, summed, columns))
    if x.is_cuda and torch.version.hip is None:
        found = torch.bmm(x, y, out_dtype=torch.float32)
    else:
        found = torch.bmm(x.float(), y.float())
    order = [*batch, *rows, *columns]
    return found.reshape([sizes[axis] for axis in order]).permute([order.index(axis) for axis in made])
