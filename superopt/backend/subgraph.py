"""Subgraph: a piece of a graph as a function by itself, with its inputs and results."""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._sympy.functions import FloorDiv

from superopt.backend.pieces import Piece, reads_of
from superopt.errors import InputError
from superopt.rivals.aten import hint_of, operator_name, read_by, tensor_bytes, tensors_in, value_of
from superopt.rivals.composites import COMPOSITE, composite_of
from superopt.rivals.images import CHANNELS_LAST, channels_last_strides
from superopt.rivals.kinds import Kind
from superopt.rivals.strided import views_of

__all__ = [
    "NumberError",
    "Result",
    "Subgraph",
    "SubgraphRoom",
    "masks_leaving",
    "subgraph_of",
    "weight_bytes_of",
]


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor of a piece that other nodes read; the function returns it contiguous."""

    node: fx.Node
    order: tuple[int, ...]  # its dimensions, from the slowest to the fastest

    @property
    def back(self) -> tuple[int, ...] | None:
        """The permutation from a contiguous result to its own order; None where it changes nothing."""
        inverse = tuple(self.order.index(dim) for dim in range(len(self.order)))
        return None if inverse == tuple(range(len(inverse))) else inverse


@dataclass(frozen=True, slots=True)
class SubgraphRoom:
    """The bytes that a piece may hold at once in its graph, and the places of inputs that end in it."""

    bytes: int
    ending: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A piece as a module of tensors alone, with canonical names: equal pieces make equal modules."""

    piece: Piece
    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    results: tuple[Result, ...]
    symbols: tuple[sympy.Symbol, ...]
    constant: tuple[int, ...] = ()  # the places of inputs that are weights
    weight_bytes: int | None = None  # of all inputs that the whole graph computes with, where that is known
    channels_last: tuple[int, ...] = ()  # the places of inputs that lie so when the graph runs
    room: SubgraphRoom | None = None  # in a pass of a training step, where memory is a limit

    def in_own_order(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Return what the module returns with the dimensions of the piece's tensors in their own order."""
        backs = [one.back for one in self.results] or [None] * len(results)
        return [
            made if back is None else made.permute(back) for made, back in zip(results, backs, strict=True)
        ]

    def layouts(self) -> list[tuple[Any, Any]]:
        """Return shape and strides of each input as it lies when the graph runs; they may be symbols."""
        found = []
        for at, node in enumerate(self.inputs):
            value = value_of(node)
            last = at in self.channels_last
            found.append((value.shape, channels_last_strides(value.shape) if last else value.stride()))
        return found

    def example(self, sizes: Mapping[sympy.Symbol, int] | None = None) -> tuple[Tensor, ...]:
        """Return inputs without data, at the sizes that were seen or at other sizes of some symbols."""
        found = []
        for node, layout in zip(self.inputs, self.layouts(), strict=True):
            shape, strides = ([_number(one, sizes or {}) for one in part] for part in layout)
            found.append(torch.empty_strided(shape, strides, dtype=value_of(node).dtype, device="meta"))
        return tuple(found)

    def hints(self) -> dict[sympy.Symbol, int]:
        """Return the size of every symbol when the graph was traced, also of one in `s0 + 10` alone."""
        found: dict[sympy.Symbol, int] = {}
        for node in self.inputs:
            value = value_of(node)
            for size in (*value.shape, *value.stride()):
                if isinstance(size, torch.SymInt):
                    known = _known_sizes(size.node.shape_env)
                    free = size.node.expr.free_symbols & known.keys()
                    for symbol in sorted(free, key=lambda one: (known[one], str(one))):
                        found.setdefault(symbol, int(known[symbol]))
        return found


_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})


class NumberError(InputError):
    """Operators of a piece read numbers that do not follow from the sizes of its inputs."""

    def __init__(self, message: str, nodes: Iterable[fx.Node] = ()) -> None:
        super().__init__(message)
        self.nodes = frozenset(nodes)


def subgraph_of(
    piece: Piece, kinds: Mapping[fx.Node, Kind], channels_last: Collection[fx.Node] = ()
) -> Subgraph:
    """Return a piece as a module, or raise InputError where it cannot stand alone.

    Some of the nodes that it reads, or that others read of it, lie with channels last when the graph runs.
    """
    return _Builder(piece, kinds, channels_last).build()


def weight_bytes_of(graph: fx.Graph, kinds: Mapping[fx.Node, Kind]) -> int:
    """Return the bytes of all inputs of a graph that it computes with; of tables, few rows are looked up."""
    read = {
        one
        for node in graph.nodes
        if kinds[node] != "free" and operator_name(node) not in _LOOKUPS
        for one in reads_of(node, kinds)
        if one.op == "placeholder"
    }
    return sum(tensor_bytes(tensor) for node in read for tensor in tensors_in(value_of(node)))


def masks_leaving(piece: Piece, kinds: Mapping[fx.Node, Kind]) -> set[fx.Node]:
    """Return the nodes whose booleans leave the piece; kernels do not store booleans."""
    members = set(piece.nodes)
    masks = [
        node for node in piece.nodes if [one.dtype for one in tensors_in(value_of(node))] == [torch.bool]
    ]
    return {node for node in masks if _leaves(node, members, kinds)}


def _leaves(node: fx.Node, members: set[fx.Node], kinds: Mapping[fx.Node, Kind]) -> bool:
    """Whether a node outside reads a node's tensors, directly or through views."""
    if not tensors_in(value_of(node)):
        return False
    return any(
        _leaves(user, members, kinds) if kinds[user] == "free" else user not in members for user in node.users
    )


class _Builder:
    def __init__(
        self, piece: Piece, kinds: Mapping[fx.Node, Kind], channels_last: Collection[fx.Node]
    ) -> None:
        self.piece = piece
        self.kinds = kinds
        self.channels_last = channels_last
        self.members = set(piece.nodes)
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.inputs: list[fx.Node] = []
        self.known: dict[Any, Callable[[], fx.Node]] = {}

    def build(self) -> Subgraph:
        for node in self.piece.nodes:
            for read in self._entering(node):
                if read not in self.copies:
                    self.copies[read] = self.graph.placeholder(f"x{len(self.inputs)}")
                    self.inputs.append(read)
        if not self.inputs:
            raise InputError("it reads no tensor")
        for node in self.inputs:
            self._note_sizes(node)
        unread: dict[fx.Node, str] = {}
        for node in self.piece.nodes:
            try:
                self._copy(node)
            except NumberError as error:
                unread[node] = str(error)
                self.copies[node] = self.graph.placeholder(node.name)  # so that its readers are tried as well
        if unread:
            raise NumberError("; ".join(dict.fromkeys(unread.values())), unread)
        results = tuple(
            Result(node, CHANNELS_LAST) if node in self.channels_last else _result(node)
            for node in self.piece.nodes
            if isinstance(value_of(node), Tensor) and _leaves(node, self.members, self.kinds)
        )
        made = []
        for result in results:
            value = self.copies[result.node]
            if result.back is not None:
                value = self.graph.call_function(torch.ops.aten.permute.default, (value, list(result.order)))
            made.append(value)
        self.graph.output(tuple(made))
        self.graph.eliminate_dead_code()
        module = fx.GraphModule(torch.nn.Module(), self.graph, "Region")
        symbols = sorted(
            {symbol for node in self.inputs for symbol in _symbols(value_of(node))}, key=lambda one: one.name
        )
        last = tuple(at for at, node in enumerate(self.inputs) if node in self.channels_last)
        return Subgraph(self.piece, module, tuple(self.inputs), results, tuple(symbols), channels_last=last)

    def _entering(self, node: fx.Node) -> list[fx.Node]:
        """Return the tensors from outside that a node reads, also through views."""
        found = []
        for read in reads_of(node, self.kinds):
            if read not in self.members and tensors_in(value_of(read)):
                if not isinstance(value_of(read), Tensor):
                    raise InputError(f"{read.name} is not a tensor")
                found.append(read)
        return found

    def _copy(self, node: fx.Node) -> fx.Node:
        """Return a node of the module that computes what one of the graph does."""
        found = self.copies.get(node)
        if found is not None:
            return found
        if not isinstance(value_of(node), Tensor | tuple | list):
            return cast(fx.Node, self._size(value_of(node)))  # a node is replaced by its number
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._copy)
        target: Any = node.target
        if operator_name(node) == "as_strided":
            return self._by_views(node, args[0])
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "prims":
            written = _PRIMS.get(target._opname)
            if written is None:
                raise InputError(f"{target} has no form in ATen")
            target, args, kwargs = written(*args, **kwargs)
        elif node.target is not operator.getitem:
            kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if isinstance(target, torch._ops.OpOverload):
            widest = _float_without_dimensions(node)
            target = target if widest is None else _of_number(target, args)
            exact = not any(one.dtype.is_floating_point for one in read_by(node))
            args = tuple(
                self._tensor(target, at, one, type(one) if exact else widest) for at, one in enumerate(args)
            )
        made = self.graph.call_function(target, args, kwargs)
        if (composite := composite_of(node)) is not None:
            made.meta[COMPOSITE] = composite
        self.copies[node] = made
        return made

    def _by_views(self, node: fx.Node, made: Any) -> fx.Node:
        """Return the plainer views that a view by explicit strides is made of; see `kinds`."""
        viewed: Any = value_of(cast(fx.Node, node.args[0]))
        steps = views_of(viewed.shape, viewed.stride(), *cast(Any, node.args[1:3]))
        assert steps is not None
        for target, args in steps:
            made = self.graph.call_function(target, (made, *args))
        self.copies[node] = made
        return cast(fx.Node, made)

    def _tensor(self, target: torch._ops.OpOverload, at: int, argument: Any, dtype: Any) -> Any:
        """Return an argument, a number as a tensor where the operator is declared to take one.

        Beside integers an integer stays one, as PyTorch has it: as a float it would make floats of them.
        """
        if not isinstance(argument, int | float) or not isinstance(
            target._schema.arguments[at].type, torch.TensorType
        ):
            return argument
        number = torch.ops.aten.scalar_tensor.default
        made: torch.dtype = _OF_NUMBERS.get(dtype, dtype) or torch.float32
        value = argument if made in (torch.int64, torch.bool) else float(argument)
        return self.graph.call_function(number, (value,), {"dtype": made})

    # -- symbolic sizes, read off the inputs

    def _note_sizes(self, node: fx.Node) -> None:
        copy = self.copies[node]
        for dim, size in enumerate(value_of(node).shape):
            if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer:
                read = lambda copy=copy, dim=dim: self.graph.call_method("size", (copy, dim))  # noqa: E731
                self.known.setdefault(size.node.expr, read)

    def _size(self, value: Any) -> Any:
        """Return a number of the module: a constant, or worked out from the sizes of inputs."""
        if isinstance(value, int | float | bool):
            return value
        if not isinstance(value, torch.SymInt):
            raise NumberError(f"it reads a {type(value).__name__}")
        return self._expression(value.node.expr)

    def _expression(self, expr: sympy.Expr) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr in self.known:
            return self.known[expr]()
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return self.graph.call_function(operator.pow, (self._expression(expr.base), int(expr.exp)))
        function = {sympy.Add: operator.add, sympy.Mul: operator.mul, FloorDiv: operator.floordiv}.get(
            expr.func
        )
        if function is None:
            raise NumberError(f"the size {expr} is not that of an input")
        made = self._expression(expr.args[0])
        for other in expr.args[1:]:
            made = self.graph.call_function(function, (made, self._expression(other)))
        return made


def _range(length: Any, *, start: int, step: int, dtype: Any, device: Any, **unused: Any) -> Any:
    """Return the call of ATen for the integers from a first one on."""
    if isinstance(length, fx.Node) and (start, step) != (0, 1):
        raise NumberError("its integers begin or step elsewhere, and their number is a symbol")
    bounds = (length,) if (start, step) == (0, 1) else (start, start + length * step, step)
    operators = torch.ops.aten.arange
    target = operators.default if len(bounds) == 1 else operators.start_step
    return target, bounds, {"dtype": dtype, "device": device}


def _of_number(target: Any, args: tuple[Any, ...]) -> Any:
    """Return the form of an operator that takes a number, where it gets one in place of a tensor."""
    if target._overloadname != "Tensor" or len(args) < 2 or not isinstance(args[1], int | float):
        return target
    return getattr(target.overloadpacket, "Scalar", target)


def _float_without_dimensions(node: fx.Node) -> torch.dtype | None:
    """Return the float that an operator reads where no float that it reads has dimensions, else None.

    A number made into a tensor would widen the dtype of such a tensor; of others it does not.
    """
    floats = [one for one in read_by(node) if one.dtype.is_floating_point]
    return floats[0].dtype if floats and not any(one.dim() for one in floats) else None


_OF_NUMBERS: Mapping[Any, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float32}
"""What PyTorch takes numbers for beside integers."""


_PRIMS: Mapping[str, Callable[..., Any]] = {
    "convert_element_type": lambda x, dtype: (
        torch.ops.aten._to_copy.default,
        (x,),
        {"dtype": dtype or torch.float32},
    ),
    "fma": lambda x, y, z: (torch.ops.aten.addcmul.default, (z, x, y), {}),
    "_low_memory_max_pool_with_offsets": lambda x, kernel, *rest: (
        getattr(torch.ops.aten, f"max_pool{len(kernel)}d_with_indices").default,
        (x, kernel, *rest),
        {},
    ),
    "iota": _range,
    "rev": lambda x, dims: (torch.ops.aten.flip.default, (x, dims), {}),
}
"""Calls of ATen for Inductor's own operators."""


def _result(node: fx.Node) -> Result:
    value = value_of(node)
    # Sorting is stable: dimensions of equal stride, one of them 1 long, keep their order.
    order = tuple(sorted(range(value.dim()), key=lambda dim: -hint_of(value.stride(dim))))
    expected = 1
    for dim in reversed(order):
        size, stride = hint_of(value.shape[dim]), hint_of(value.stride(dim))
        if size != 1 and stride != expected:
            raise InputError(f"{node.name} has gaps in memory: {list(map(hint_of, value.stride()))}")
        expected *= size
    if _contiguous(value):
        order = tuple(range(value.dim()))
    return Result(node, order)


def _contiguous(value: Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if hint_of(size) != 1 and hint_of(stride) != expected:
            return False
        expected *= hint_of(size)
    return True


def _number(value: Any, sizes: Mapping[sympy.Symbol, int]) -> int:
    if isinstance(value, int):
        return value
    found = value.node.expr.subs(sizes)
    if not found.is_Integer:
        return hint_of(value)
    return int(found)


def _known_sizes(sizes: Any) -> Mapping[sympy.Symbol, Any]:
    """Return the number of each symbol when the graph was traced, by either name that PyTorch has for it."""
    found: Mapping[sympy.Symbol, Any] = getattr(sizes, "backed_var_to_val", None) or sizes.var_to_val
    return found


def _symbols(value: Tensor) -> set[sympy.Symbol]:
    return {
        symbol
        for size in (*value.shape, *value.stride())
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    }
