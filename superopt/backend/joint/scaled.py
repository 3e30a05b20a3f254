"""Scaled: gradients that chunks made for a loss that counts once, times what the loss really counts.

Most steps count it once, so there is nothing to do. Otherwise the gradient is scaled where it lies, since
PyTorch donates what is saved for a backward pass to it. A pass that may run again (`retain_graph=True`)
leaves what is saved as it is, and hands out a copy.

A loss may count infinitely often, or NaN times, as a sum of losses divided by a count of 0 does. A gradient
of 0 stays 0 then: PyTorch leaves out what does not count, as rows without a label, before it multiplies.
"""

import operator
from math import isfinite

import torch
from torch import Tensor, fx

from superopt.backend.joint.accumulate import adds_rows
from superopt.backend.joint.limits import limits
from superopt.backend.joint.piece import is_tangent
from superopt.backend.joint.step import results_of
from superopt.backend.region_plan import REGION
from superopt.rivals.aten import VIEWS, operator_name, tensor_bytes, value_of
from superopt.trace.own_operators import define_operator

__all__ = ["SCALED", "leave_zeros", "leaves_scaled", "scale_in_place", "scaled"]


def scaled(gradient: Tensor, by: Tensor) -> Tensor:
    """Return a gradient times a number, in the memory of the gradient where the pass runs once."""
    number, again = float(by), torch._C._autograd._get_current_graph_task_keep_graph()
    if not isfinite(number):
        product = torch.where(gradient == 0, gradient, gradient * by)
        return product if again else gradient.copy_(product)
    if again:
        return gradient * by
    return gradient if number == 1.0 else gradient.mul_(by)


def _fake(gradient: Tensor, by: Tensor) -> Tensor:
    return torch.empty_strided(
        gradient.shape, gradient.stride(), dtype=gradient.dtype, device=gradient.device
    )


SCALED = define_operator("scaled(Tensor gradient, Tensor by) -> Tensor", scaled, _fake)


def scale_in_place(forward: fx.GraphModule, backward: fx.GraphModule, forward_outputs: int) -> int:
    """Scale large gradients of chunks that leave the backward pass where they lie; return how many.

    Only what the plan of a part made in memory of its own, and what nothing else reads, may be changed. Of
    other gradients of chunks, too, what is 0 stays 0.
    """
    results = results_of(forward.graph)
    leaving = set(results[:forward_outputs])
    made = [
        one
        for one in results[forward_outputs:]
        if isinstance(one, fx.Node)
        and one.target is operator.getitem
        and one.all_input_nodes[0].target is REGION
    ]
    donated = torch._functorch.config.donated_buffer
    fresh = {
        one.name
        for one in made
        if donated and one not in leaving and all(user.op == "output" for user in one.users)
    }
    names, found = {one.name for one in made}, 0
    for node in backward.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        gradient, by = node.args
        if _is_scaling(node, fresh):
            node.target, found = SCALED, found + 1
            continue
        both = isinstance(gradient, fx.Node) and isinstance(by, fx.Node)
        if both and gradient.name in names and is_tangent(by):
            leave_zeros(node, gradient)
    backward.recompile()
    return found


def leave_zeros(node: fx.Node, gradient: fx.Node) -> fx.Node:
    """Let a product be 0 where its first factor is, whatever the other one; return what stands for it."""
    graph, value = node.graph, value_of(gradient)
    with graph.inserting_before(node):
        zero = graph.call_function(torch.ops.aten.eq.Scalar, (gradient, 0))
    with graph.inserting_after(node):
        made = graph.call_function(torch.ops.aten.where.self, (zero, gradient, node))
    zero.meta |= {"val": value == 0, "partitioner_tag": "must_be_in_backward"}  # else it might be kept, too
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return made


def leaves_scaled(node: fx.Node) -> bool:
    """Whether a value of a joint graph is a gradient that chunks make, and that leaves where it lies."""
    if node.target is not operator.getitem or node.all_input_nodes[0].target is not REGION:
        return False
    only = torch._functorch.config.donated_buffer and len(node.users) == 1
    return only and all(_multiplies(user, node) for user in node.users)


def _is_scaling(node: fx.Node, fresh: set[str]) -> bool:
    """Whether a node multiplies a gradient that nothing else reads by what its loss counts, and leaves."""
    gradient = node.args[0]
    if not isinstance(gradient, fx.Node) or gradient.name not in fresh:
        return False
    return gradient.op == "placeholder" and len(gradient.users) == 1 and _multiplies(node, gradient)


def _multiplies(node: fx.Node, gradient: fx.Node) -> bool:
    """Whether a node multiplies a large gradient by the gradient of a loss, and leaves as that lies."""
    by = node.args[1] if node.target is torch.ops.aten.mul.Tensor else None
    if not isinstance(by, fx.Node) or node.args[0] is not gradient or not is_tangent(by):
        return False
    value, number = value_of(gradient), value_of(by)
    large = tensor_bytes(value) >= limits().scaled_bytes
    same = value_of(node).stride() == value.stride() and number.dtype == value.dtype
    return large and same and number.dim() == 0 and _leaves(node)


def _leaves(node: fx.Node) -> bool:
    """Whether a node leaves a graph, as it is, as a view or with rows added, and nothing else reads it."""
    return bool(node.users) and all(
        user.op == "output"
        or (operator_name(user) in VIEWS and _leaves(user))
        or (adds_rows(user) and user.args[0] is node and len(node.users) == 1 and _leaves(user))
        for user in node.users
    )
