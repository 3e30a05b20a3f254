"""Calls: the library calls of a graph in half precision, and the form that computes them in float32.

A product of matrices becomes a call of `superopt::wide_product`, which converts some blocks at a time. What
convolutions and attention read and make is converted by operators of the graph, which Inductor fuses with
what is around them.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_map_only

from superopt.rivals.aten import (
    ATTENTION,
    VIEWS,
    add_call,
    flops_of,
    hint_of,
    operator_name,
    tensor_bytes,
    tensors_in,
    value_of,
)
from superopt.rivals.wide.own import multiply_by_own
from superopt.rivals.wide.products import MOST_BYTES, multiply_groups_wide, multiply_wide
from superopt.trace.own_operators import define_operator

__all__ = [
    "CALLS",
    "GROUPED",
    "HALVES",
    "PRODUCTS",
    "WIDE_PRODUCT",
    "blank_like",
    "in_float32",
    "make_kernels",
    "may_be_wide",
    "operands_of",
    "put_wide",
]

PRODUCTS: Mapping[str, tuple[int, int]] = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Products of matrices, and which arguments are their factors; before these comes what is added."""

GROUPED = "_grouped_mm"
"""Products of groups of rows, each with a matrix of its own."""

_CONVERTED = frozenset({"convolution", "convolution_backward", ATTENTION, f"{ATTENTION}_backward"})
CALLS = frozenset({*PRODUCTS, GROUPED, *_CONVERTED})
"""All calls that may be computed in float32."""

HALVES = frozenset({torch.bfloat16, torch.float16})
_FLOATS = HALVES | {torch.float32}
SCARCE = 1 << 20
"""With less memory, a kernel of ours computes a product if it can: blocks for a library would be small."""

_LEAST_FLOPS = 1 << 20  # a product of less work gains less than a call costs

_convert: Any = torch.ops.prims.convert_element_type.default


def wide_product(
    left: Tensor,
    right: Tensor,
    summand: Tensor | None,
    beta: float,
    alpha: float,
    most_bytes: int,
    rounded: bool = True,
) -> Tensor:
    """Return `beta` times a summand, if any, and `alpha` times a product, computed in float32.

    It is `rounded` to the dtype of its factors, or left as it is.
    """
    made = _fake(left, right, summand, beta, alpha, most_bytes, rounded)
    plain = beta == alpha == 1 or (summand is None and alpha == 1)
    if most_bytes < SCARCE and plain and multiply_by_own(left, right, made, summand):
        return made
    # A backward pass may be called where autocast is on.
    with torch.no_grad(), torch._C._DisableAutocast():
        multiply_wide(left, right, made, summand=summand, beta=beta, alpha=alpha, most_bytes=most_bytes)
    return made


def _fake(
    left: Tensor, right: Tensor, summand: object, beta: float, alpha: float, most_bytes: int, rounded: bool
) -> Tensor:
    dtype = left.dtype if rounded else torch.float32
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=dtype)


WIDE_PRODUCT = define_operator(
    "wide_product(Tensor left, Tensor right, Tensor? summand, float beta, float alpha, int most_bytes,"
    " bool rounded) -> Tensor",
    wide_product,
    _fake,
)
"""A product of matrices in half precision, computed in float32 and rounded once, if at all."""


def wide_groups(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Return products of groups of rows, or of groups of what is summed, computed in float32 and rounded."""
    made = _fake_groups(left, right, ends)
    with torch.no_grad(), torch._C._DisableAutocast():
        multiply_groups_wide(left, right, ends.tolist(), made)
    return made


def _fake_groups(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    several = () if right.dim() == 3 else (ends.shape[0],)
    return left.new_empty((*several, left.shape[0], right.shape[-1]))


WIDE_GROUPS = define_operator(
    "wide_groups(Tensor left, Tensor right, Tensor ends) -> Tensor", wide_groups, _fake_groups
)
"""Products of groups of rows, as experts compute them, in float32."""


def may_be_wide(node: fx.Node) -> bool:
    """Whether a node calls a library in half precision on a CPU, for work that is worth a conversion."""
    name = operator_name(node)
    if name not in CALLS:
        return False
    made = [one for one in tensors_in(value_of(node)) if one.dtype in HALVES]
    tensors = [one for each in (*node.all_input_nodes, node) for one in tensors_in(value_of(each))]
    if not made or any(one.device.type != "cpu" or not tensor_bytes(one) for one in tensors):
        return False  # tensors without elements, or of sizes that depend on data
    if name in _CONVERTED:
        return True
    if name == GROUPED:
        if len(node.args) != 3 or any(value is not None for value in node.kwargs.values()):
            return False
        factors = [value_of(one) for one in node.args[:2]]  # type: ignore[arg-type]
        dims = [one.dim() for one in factors]
        alike = {one.dtype for one in factors} == {made[0].dtype}
        return dims in ([2, 3], [2, 2]) and alike and made[0].is_contiguous()
    left, right, _ = operands_of(node)
    dtypes = {value_of(one).dtype for one in (left, right)}
    numbers = (node.kwargs.get(one, 1) for one in ("beta", "alpha"))
    whole = all(isinstance(one, int | float) for one in numbers) and not set(node.kwargs) - {"beta", "alpha"}
    summand_fits = all(one.dtype in _FLOATS for one in tensors)
    return whole and summand_fits and dtypes == {made[0].dtype} and flops_of(node) >= _LEAST_FLOPS


def put_wide(graph: fx.Graph, nodes: Iterable[fx.Node], most_bytes: Mapping[fx.Node, int]) -> None:
    """Let a graph compute some calls in float32; products hold so many bytes while they run."""
    for node in nodes:
        with graph.inserting_before(node):
            if operator_name(node) == GROUPED:
                made = graph.call_function(WIDE_GROUPS, node.args)
                made.meta = dict(node.meta)
                node.replace_all_uses_with(made)
            elif operator_name(node) in PRODUCTS:
                _put_product(graph, node, most_bytes.get(node, MOST_BYTES))
            else:
                _put_conversions(graph, node)
        graph.erase_node(node)


def make_kernels(graph: fx.Graph) -> None:
    """Make the kernels of ours that products of a graph are computed by; called inside `alone`."""
    known = set[str]()
    for node in graph.find_nodes(op="call_function", target=WIDE_PRODUCT):
        values: Any = fx.map_arg(node.args, value_of)
        form = str(
            [(one.shape, one.stride(), one.dtype) if isinstance(one, Tensor) else one for one in values]
        )
        if values[-2] < SCARCE and form not in known:
            known.add(form)
            given: list[Any] = [blank_like(one) if isinstance(one, Tensor) else one for one in values]
            wide_product(*given)


def blank_like(value: Tensor) -> Tensor:
    """Return a tensor of zeros that lies as one of a graph does."""
    sizes, strides = ([*map(hint_of, some)] for some in (value.shape, value.stride()))
    one_each = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    return torch.empty_strided(one_each, strides, dtype=value.dtype).zero_().expand(sizes)


def _put_product(graph: fx.Graph, node: fx.Node, most_bytes: int) -> None:
    views = _views_until_float32(node)
    arguments = (*operands_of(node), *_numbers(node.kwargs), most_bytes, views is None)
    made = graph.call_function(WIDE_PRODUCT, arguments)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    if views is not None:
        for one in (made, *views):
            one.meta["val"] = value_of(one).to(torch.float32)
        last = [made, *views][-1]
        [conversion] = last.users
        conversion.replace_all_uses_with(last)
        graph.erase_node(conversion)


def _views_until_float32(node: fx.Node) -> list[fx.Node] | None:
    """Return the views of a product up to one that is converted and leaves the graph so; None without one.

    Such are gradients of weights under autocast. In float32 from the start, they need not lie there twice.
    """
    views, value = list[fx.Node](), value_of(node)
    while len(node.users) == 1:
        [user] = node.users
        if operator_name(user) == "_to_copy" and not user.kwargs.keys() - {"dtype"}:
            leaves = all(one.op == "output" for one in user.users)
            return views if leaves and value_of(user).dtype == torch.float32 else None
        shown = value_of(user)
        if operator_name(user) not in VIEWS or not isinstance(shown, Tensor):
            return None
        if shown.dtype != value.dtype or shown.numel() != value.numel():  # a view of bits, or of a part
            return None
        views.append(user)
        node = user
    return None


def operands_of(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    """Return both factors of a product of matrices, and what is added to it, if anything."""
    *before, left, right = node.args[: PRODUCTS[str(operator_name(node))][1] + 1]
    return left, right, before[0] if before else None  # type: ignore[return-value]


def _numbers(named: Mapping[str, Any]) -> tuple[float, float]:
    return float(named.get("beta", 1)), float(named.get("alpha", 1))


def in_float32(node: fx.Node, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return what a node's call makes of such arguments where it is computed in float32."""
    if operator_name(node) in PRODUCTS:
        *before, left, right = arguments
        return wide_product(left, right, before[0] if before else None, *_numbers(named), MOST_BYTES)
    if operator_name(node) == GROUPED:
        return wide_groups(*arguments)
    dtypes = [one.dtype for one in tensors_in(value_of(node))]
    made = tensors_in(node.target(*_cast(arguments), **_cast(named)))  # type: ignore[operator]
    return [one.to(dtype) for one, dtype in zip(made, dtypes, strict=True)]


def _cast(value: Any) -> Any:
    """Return arguments with their tensors in half precision converted."""
    return tree_map_only(Tensor, lambda one: one.float() if one.dtype in HALVES else one, value)


def _put_conversions(graph: fx.Graph, node: fx.Node) -> None:
    """Replace a call by one of its operands in float32, whose results are converted back."""
    values = [one for each in node.all_input_nodes for one in tensors_in(value_of(each))]
    called = partial(add_call, graph, detect_fake_mode(values))

    def widened(one: fx.Node) -> fx.Node:
        value = value_of(one)
        is_half = isinstance(value, Tensor) and value.dtype in HALVES
        return called(_convert, one, torch.float32) if is_half else one

    def back(made: fx.Node, wanted: Any) -> fx.Node:
        is_half = isinstance(wanted, Tensor) and wanted.dtype in HALVES
        return called(_convert, made, wanted.dtype) if is_half else made

    given: dict[fx.Node, fx.Node] = {one: widened(one) for one in node.all_input_nodes}
    arguments, named = fx.map_arg((node.args, node.kwargs), given.__getitem__)
    made = called(node.target, *arguments, **named)
    if isinstance(value_of(node), Tensor):
        node.replace_all_uses_with(back(made, value_of(node)))
        return
    for user in list(node.users):  # each takes one of several results
        item = back(called(operator.getitem, made, user.args[1]), value_of(user))
        user.replace_all_uses_with(item)
        graph.erase_node(user)
