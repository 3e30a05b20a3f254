"""Signature: what a call is given, and what must agree for the preparation of another call to serve it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from superopt.codegen.statements import split_extents
from superopt.dtypes import torch_dtypes
from superopt.errors import InputError
from superopt.ir import Graph, MuGraph, fitting_extents

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["form_of", "in_order", "sizes_of"]


def form_of(given: "Sequence[Tensor]") -> tuple[object, ...]:
    """Return the shapes, strides, dtypes, devices and classes of tensors, and whether memory holds them.

    Every call of a kernel passes here, so that up to three tensors are written out: a comprehension
    takes half as long again.
    """
    count = len(given)
    if count == 1:
        (a,) = given
        return a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg() or a._is_zerotensor(), type(a)
    if count == 2:
        a, b = given
        return (
            a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg() or a._is_zerotensor(), type(a),
            b.shape, b.stride(), b.dtype, b.is_cpu or b.device, b.is_neg() or b._is_zerotensor(), type(b),
        )  # fmt: skip
    if count == 3:
        a, b, c = given
        return (
            a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg() or a._is_zerotensor(), type(a),
            b.shape, b.stride(), b.dtype, b.is_cpu or b.device, b.is_neg() or b._is_zerotensor(), type(b),
            c.shape, c.stride(), c.dtype, c.is_cpu or c.device, c.is_neg() or c._is_zerotensor(), type(c),
        )  # fmt: skip
    return tuple(
        [
            (
                one.shape,
                one.stride(),
                one.dtype,
                one.is_cpu or one.device,
                one.is_neg() or one._is_zerotensor(),
                type(one),
            )
            for one in given
        ]
    )


def in_order(graph: Graph, tensors: "Mapping[str, Tensor]") -> "list[Tensor]":
    """Return tensors that are given by name in the order of a graph's inputs."""
    try:
        return [tensors[port.name] for port in graph.inputs]
    except KeyError as missing:
        listed = ", ".join(port.name for port in graph.inputs)
        raise InputError(f"{graph.name}: give the tensor {missing}; it takes {listed}") from None


def sizes_of(mugraph: MuGraph, given: "Sequence[Tensor]", multiple: int = 1) -> dict[str, int]:
    """Return the extent of every axis, from tensors in order; split ones in as many parts as before.

    Each part is a multiple of `multiple` long.
    """
    graph, dtypes = mugraph.graph, torch_dtypes()
    for port, one in zip(graph.inputs, given, strict=True):
        found = f"{graph.name}: {port.name!r}"
        if one.dim() != len(port.dims):
            raise InputError(f"{found} has {one.dim()} dimensions; it was built for {len(port.dims)}")
        if one.dtype != dtypes[port.dtype]:
            raise InputError(f"{found} is {one.dtype}; it was built for {dtypes[port.dtype]}")
    sizes = fitting_extents(graph, [one.shape for one in given], mugraph.splits)
    for split in mugraph.splits:
        sizes = split_extents(split, sizes, multiple)
    return sizes
