"""Own: products of matrices by kernels of ours, which convert numbers as they read them."""

import logging
from collections.abc import Mapping, Sequence
from threading import Lock

import torch
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph
from superopt.dtypes import dtype_text
from superopt.errors import SuperoptError, first_line
from superopt.ir import Axis, Graph, Output, Port, Step, fuse

__all__ = ["multiply_by_own", "product_graph"]

log = logging.getLogger("superopt")

_KERNELS: dict[object, CppMuGraph | None] = {}
"""Kernels by the sizes and dtypes of what they multiply, None where there can be none."""

_lock = Lock()


def product_graph(
    factors: Sequence[Port], made: Port, summed: Sequence[str], sizes: Mapping[str, int], summand: Port | None
) -> Graph:
    """Return a product of two tensors over some axes, to which a summand may be added, as a graph."""
    inputs, steps = [*factors], [Step("contract", (0, 1), tuple(summed))]
    if summand is not None:
        inputs, steps = [*factors, summand], [*steps, Step("add", (2, 3))]
    return Graph(
        f"product_{made.name}",
        tuple(Axis(name, size) for name, size in sizes.items()),
        tuple(inputs),
        tuple(steps),
        (Output(made, len(inputs) + len(steps) - 1),),
    )


def multiply_by_own(left: Tensor, right: Tensor, made: Tensor, summand: Tensor | None) -> bool:
    """Write a product of matrices, and a summand, by a kernel of ours; return whether there is one."""
    given = [left, right] if summand is None else [left, right, summand]
    key = torch.get_num_threads(), *((one.shape, one.dtype, one.stride()) for one in (*given, made))
    with _lock:
        if key not in _KERNELS:
            _KERNELS[key] = _kernel(left, right, made, summand)
        kernel = _KERNELS[key]
    if kernel is None:
        return False
    try:
        kernel.into(given, [made])
    except SuperoptError as error:  # there may be no compiler, or a form that no kernel reads
        log.info("a product is left to PyTorch: %s", first_line(error))
        _KERNELS[key] = None
        return False
    return True


def _kernel(left: Tensor, right: Tensor, made: Tensor, summand: Tensor | None) -> CppMuGraph | None:
    axes = ("batch", "row", "column")[-made.dim() :]
    sizes = dict(zip((*axes, "sum"), (*made.shape, left.shape[-1]), strict=True))
    ports = [
        _port(name, tensor, (*axes[:-2], *matrix))
        for name, tensor, matrix in (
            ("left", left, ("row", "sum")),
            ("right", right, ("sum", "column")),
            ("made", made, ("row", "column")),
        )
    ]
    added = None
    if summand is not None:
        its_axes = axes[made.dim() - summand.dim() :]
        if [*summand.shape] != [sizes[axis] for axis in its_axes]:
            return None
        added = _port("summand", summand, its_axes)
    try:
        graph = product_graph(ports[:2], ports[2], ["sum"], sizes, added)
        kernel = CppMuGraph(fuse(graph))
        return kernel if kernel.makes_all else None
    except SuperoptError as error:
        log.info("a product is left to PyTorch: %s", first_line(error))
        return None


def _port(name: str, tensor: Tensor, axes: Sequence[str]) -> Port:
    return Port(name, dtype_text(tensor.dtype), tuple((axis,) for axis in axes))
