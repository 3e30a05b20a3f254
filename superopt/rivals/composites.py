"""Composites: operators of PyTorch that Inductor takes apart, put together again as eager PyTorch runs them.

Inductor computes a softmax or a layer norm from its exponentials and sums, and a gelu from its parts. Eager
PyTorch has one kernel for each. With sums in it this kernel may be faster than Inductor's code; a pointwise
one is no faster, but takes a fraction of the time of its parts one after the other. A node of Inductor's
graph remembers the operator that it was a part of. What that was called with is read off the parts, and
believed only if the call is equal to the parts as algebra.
"""

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from superopt.errors import SuperoptError, first_line
from superopt.rivals.aten import VIEWS, operator_name
from superopt.rivals.inductor import alone
from superopt.trace import trace
from superopt.verify.graphs.equality import equal_graphs

__all__ = ["COMPOSITE", "composite_of", "is_part", "recompose", "reduces"]

log = logging.getLogger("superopt")

COMPOSITE = "composite"
"""Where the metadata of a node says which call of a composite operator it is a part of."""

aten = torch.ops.aten

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
_REDUCING = frozenset({"amax", "sum", "mean", "var_mean"})


def composite_of(node: fx.Node) -> tuple[str, str] | None:
    """Return the composite operator that a node of Inductor's graph is a part of, and a name for the call."""
    name = str(node.meta.get("original_aten")).removeprefix("aten.").removesuffix(".default")
    if name not in _COMPOSITES or operator_name(node) == name:
        return None
    came = node.meta.get("from_node") or ()
    return name, str(came[0].name) if came else ""


def is_part(node: fx.Node) -> bool:
    """Whether a node is part of a composite operator with sums, for which eager PyTorch has one kernel."""
    found = composite_of(node)
    return found is not None and found[0] in _REDUCTIONS


def reduces(node: fx.Node) -> bool:
    """Whether a node calls a composite operator with sums."""
    return operator_name(node) in _REDUCTIONS


def recompose(module: fx.GraphModule, example: Sequence[Tensor]) -> fx.GraphModule | None:
    """Return a region with the composite operators that its nodes come from, or None where there are none.

    The nodes carry what `composite_of` said of them as `COMPOSITE`; `example` are inputs of the region.
    """
    calls: dict[tuple[str, str], list[str]] = {}
    for node in module.graph.nodes:
        if COMPOSITE in node.meta:
            calls.setdefault(tuple(node.meta[COMPOSITE]), []).append(node.name)
    if not calls:
        return None
    made = fx.GraphModule(module, fx.Graph())
    copied: dict[fx.Node, fx.Node] = {}
    made.graph.output(made.graph.graph_copy(module.graph, copied))
    by_name = {node.name: copied[node] for node in module.graph.nodes if node in copied}
    with torch.no_grad():
        values = _values(module, example)
    known = {copied[node]: value for node, value in values.items() if node in copied}
    changed = False
    for (name, _), members in calls.items():
        parts = [by_name[one] for one in members]
        try:
            changed |= _replaced(made, name, parts, known)
        except (SuperoptError, LookupError, TypeError, ValueError, RuntimeError) as error:
            log.info("%s is not put together again: %s", name, first_line(error))
    if not changed:
        return None
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


def _values(module: fx.GraphModule, example: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """Return what every node makes of inputs without data."""

    class Recorder(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if "device" in kwargs:  # the inputs are elsewhere than the region
                kwargs = {**kwargs, "device": torch.device("meta")}
            return super().call_function(target, args, kwargs)

        def run_node(self, n: fx.Node) -> Any:
            seen[n] = made = super().run_node(n)
            return made

    seen: dict[fx.Node, Any] = {}
    Recorder(module).run(*example)
    return seen


def _replaced(made: fx.GraphModule, name: str, parts: list[fx.Node], known: dict[fx.Node, Any]) -> bool:
    """Replace the parts of one call by the call; return whether that is proven to change nothing."""
    members = _whole(parts)
    begins = {node for node in members if operator_name(node) == "_to_copy" and _begins(node, members)}
    # Where a result stays in float32, the call is that of numbers which were cast before.
    return any(_replaced_by(made, name, some, known) for some in (members, members - begins))


def _begins(node: fx.Node, members: set[fx.Node]) -> bool:
    """Whether a node reads only what comes from outside."""
    return not members.intersection(node.all_input_nodes)


def _replaced_by(made: fx.GraphModule, name: str, members: set[fx.Node], known: dict[fx.Node, Any]) -> bool:
    leaving = [node for node in members if set(node.users) - members]
    if len(leaving) != 1 or not isinstance(known.get(leaving[0]), Tensor):
        return False
    [last] = leaving
    order = [node for node in made.graph.nodes if node in members]
    read = list(dict.fromkeys(one for node in order for one in node.all_input_nodes if one not in members))
    if not read or not all(isinstance(known.get(one), Tensor) for one in read):
        return False
    call = _COMPOSITES[name](_Parts(order, read, known))
    if call is None or not _proven(order, read, last, call, known):
        return False
    target, arguments, named = call
    with made.graph.inserting_before(last):
        found = made.graph.call_function(target, arguments, named)
        if len(target._schema.returns) > 1:
            found = made.graph.call_function(operator.getitem, (found, 0))
    known[found] = known[last]
    last.replace_all_uses_with(found)
    return True


def _whole(parts: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the parts of a call with the views and the numbers that only they read."""
    members = set(parts)
    while True:
        between = {
            one
            for node in members
            for one in node.all_input_nodes
            if one not in members
            and operator_name(one) in {*VIEWS, "scalar_tensor"}
            and members.issuperset(one.all_input_nodes)
            and members.issuperset(one.users)
        }
        if not between:
            return members
        members |= between


def _proven(
    order: Sequence[fx.Node],
    read: Sequence[fx.Node],
    last: fx.Node,
    call: Call,
    known: Mapping[fx.Node, Any],
) -> bool:
    """Whether a call is equal to its parts, as algebra, and makes a tensor of the same form."""
    given = [torch.empty_like(known[one], device="meta") for one in read]
    apart, copies = fx.Graph(), {}
    for at, one in enumerate(read):
        copies[one] = apart.placeholder(f"x{at}")
    for node in order:
        copies[node] = apart.node_copy(node, copies.__getitem__)
    apart.output((copies[last],))
    places = {one: at for at, one in enumerate(read)}
    target, arguments, named = call

    def together(*tensors: Tensor) -> tuple[Tensor]:
        filled = [tensors[places[one]] if isinstance(one, fx.Node) else one for one in arguments]
        found = target(*filled, **named)
        return (found[0] if isinstance(found, tuple | list) else found,)

    parts = fx.GraphModule(torch.nn.Module(), apart)
    [made] = together(*given)
    if (made.shape, made.dtype) != (known[last].shape, known[last].dtype):
        return False
    graphs = []
    for function in (parts, together):
        program = alone(partial(trace, function, *given, name="composite")).program
        if program.opaque or len(program.regions) != 1:
            return False
        graphs.append(program.regions[0].graph)
    return equal_graphs(*graphs).equal


class _Parts:
    """The nodes of one call of a composite operator, from which its arguments are read."""

    def __init__(
        self, order: Sequence[fx.Node], read: Sequence[fx.Node], known: Mapping[fx.Node, Any]
    ) -> None:
        self.order = order
        self.read = read
        self.shape = tuple(known[read[0]].shape)
        self.x = read[0]

    def first(self, *names: str) -> fx.Node | None:
        """Return the first node of these operators."""
        return next((node for node in self.order if operator_name(node) in names), None)

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the first reduction."""
        node = self.first(*_REDUCING)
        dims = node.args[1] if node is not None and len(node.args) > 1 else None
        rank = len(self.shape)
        return tuple(sorted(one % rank for one in dims)) if isinstance(dims, list | tuple) else ()

    def other(self, name: str) -> fx.Node | None:
        """Return the tensor from outside that an operator reads, besides the first one."""
        for node in self.order:
            for one in node.all_input_nodes if operator_name(node) == name else ():
                if one in self.read and one is not self.x:
                    return one
        return None


def _softmax(parts: _Parts) -> Call | None:
    return (aten._softmax.default, (parts.x, parts.dims[0], False), {}) if len(parts.dims) == 1 else None


def _log_softmax(parts: _Parts) -> Call | None:
    return (aten._log_softmax.default, (parts.x, parts.dims[0], False), {}) if len(parts.dims) == 1 else None


def _layer_norm(parts: _Parts) -> Call | None:
    dims, rank = parts.dims, len(parts.shape)
    if not dims or dims != tuple(range(rank - len(dims), rank)):
        return None
    added = (one.args[1] for one in parts.order if operator_name(one) == "add")
    eps = next(filter(None, map(_number, added)), None)
    shape = [parts.shape[one] for one in dims]
    if eps is None or not all(isinstance(one, int) for one in shape):
        return None
    weight, bias = parts.other("mul"), parts.other("add")
    return aten.native_layer_norm.default, (parts.x, shape, weight, bias, eps), {}


def _number(argument: Any) -> float | None:
    """Return an argument that is a number, also one made into a tensor."""
    if isinstance(argument, fx.Node) and operator_name(argument) == "scalar_tensor":
        argument = argument.args[0]
    return argument if isinstance(argument, float) else None


def _vector_norm(parts: _Parts) -> Call | None:
    total, power = parts.first("sum"), parts.first("pow")
    order = 1 if power is None else power.args[1]
    if total is None or not isinstance(order, int | float) or not parts.dims:
        return None
    keepdim = len(total.args) > 2 and bool(total.args[2])
    return aten.linalg_vector_norm.default, (parts.x, order, list(parts.dims), keepdim), {}


def _gelu(parts: _Parts) -> Call | None:
    approximate = "none" if parts.first("erf") is not None else "tanh"
    return aten.gelu.default, (parts.x,), {"approximate": approximate}


def _of_one(target: Any) -> Callable[[_Parts], Call | None]:
    """Return what reads off the parts how an operator of one tensor was called."""
    return lambda parts: (target, (parts.x,), {})


_REDUCTIONS: Mapping[str, Callable[[_Parts], Call | None]] = {
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm,
    "linalg_vector_norm": _vector_norm,
}
_COMPOSITES: Mapping[str, Callable[[_Parts], Call | None]] = {
    **_REDUCTIONS,
    "gelu": _gelu,
    "silu": _of_one(aten.silu.default),
    "hardswish": _of_one(aten.hardswish.default),
    "hardsigmoid": _of_one(aten.hardsigmoid.default),
}
"""Composite operators, and how what they were called with is read off their parts."""
