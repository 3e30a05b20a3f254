"""Traced: a function as a Program, with what it takes to run it; and `trace`, which makes it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from superopt.errors import InputError, TraceError
from superopt.ir import Eager, Graph, Opaque, Program, Region, plain_name
from superopt.lifetimes import last_reads
from superopt.trace.algebra import OpaqueCall, build
from superopt.trace.capture.dispatch import capture
from superopt.trace.capture.tape import Meta, Ref, is_view, map_leaves, refs, results_of
from superopt.trace.eager import digest_of, eager_of
from superopt.trace.regions import cut
from superopt.trace.results import View, in_order, laid_out, orders_of, outside_views
from superopt.trace.run import TORCH_DTYPES, run_graph

__all__ = ["Traced", "trace"]

_LENIENT: dict[Any, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}
"""What runs in place of operators that refuse some memory layouts: an input may come in another one."""


@dataclass(frozen=True)  # without slots, for what is worked out once
class Traced:
    """A traced function: its program, the constants it closes over, and its opaque calls."""

    program: Program
    constants: dict[str, Tensor]  # inputs of the program that the caller doesn't pass, by name
    input_names: tuple[str, ...]  # names of the tensors among the caller's inputs, in order
    calls: dict[str, OpaqueCall]
    names: dict[int, str]  # tape position of a result or an opaque argument -> tensor
    result: Any  # the function's own structure of results, with Refs for tensors
    read: tuple[Tensor, ...] = ()  # tensors that it closes over, whose values are numbers of the program
    eager: Eager | None = None  # what PyTorch does for it; None where that is not known
    # Position of a result -> in which memory PyTorch has it; 0 is memory of an input or a constant. Empty
    # where no result can lie in another memory here.
    memory: dict[int, int] = field(default_factory=dict)
    digest: str = ""  # of the function's own calls in order, those too whose results nothing reads
    # Results that are views of tensors which the function does not make, and the order of the dimensions of
    # others in memory where it is not that of the tensor; by position.
    views: dict[int, View] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # Whether the function does something else for tensors that require gradients, even under no_grad.
    depends_on_requires_grad: bool = False

    @property
    def graph(self) -> Graph:
        """The one region, where the whole function is algebra; else TraceError says what is not."""
        if self.program.opaque:
            listed = "; ".join(f"{node.target}: {node.reason}" for node in self.program.opaque)
            raise TraceError(
                f"{self.program.name} is not one graph: {len(self.program.regions)} regions around"
                f" {len(self.program.opaque)} opaque operators ({listed})"
            )
        if not self.program.regions:
            raise TraceError(f"{self.program.name} computes nothing: it returns its inputs as they are")
        return self.program.regions[0].graph

    def run(
        self, *inputs: Any, dtype: torch.dtype = torch.float64, run_region: "RunRegion | None" = None
    ) -> Any:
        """Return what the program computes, in the function's own structure.

        Regions are evaluated in one float dtype, or by `run_region` where it is given.
        """
        tensors = [leaf for value in inputs for leaf in _tensors(value)]
        if len(tensors) != len(self.input_names):
            raise InputError(
                f"{self.program.name} takes {len(self.input_names)} tensors"
                f" ({', '.join(self.input_names)}) but got {len(tensors)}"
            )
        known = {**self.constants, **dict(zip(self.input_names, tensors, strict=True))}
        device = tensors[0].device if tensors else torch.device("cpu")
        with torch.no_grad():
            for node, read_for_the_last_time in zip(self.program.nodes, self._last_reads, strict=True):
                if isinstance(node, Region):
                    known.update(run_region(node, known) if run_region else _run_region(node, known, dtype))
                else:
                    known.update(self.run_opaque(node, known, device))
                for name in read_for_the_last_time:
                    del known[name]
            return self._returned(known)

    @cached_property
    def _last_reads(self) -> list[list[str]]:
        """Of what the nodes make, and the caller does not get: for each node, what no later one reads."""
        given = {port.name for port in self.program.inputs}
        returned = {self.names[index] for index in refs(self.result) if index not in self.views}
        reads = ((*node.outputs, *node.inputs) for node in self.program.nodes)
        return last_reads(reads, staying=given | returned)

    def _returned(self, known: dict[str, Tensor]) -> Any:
        """Return the results; those that are copies in PyTorch are copies here."""
        outside = self.program.inputs if self.memory else ()
        taken = {_place(known[port.name]): 0 for port in outside}
        ways = self._ways
        found: dict[object, Tensor] = {}

        def made(index: int) -> Tensor:
            name, memory = self.names[index], self.memory.get(index)
            tensor = known[name]
            if name in ways:
                tensor = ways[name](tensor, self.orders.get(index))
            if memory is None or taken.setdefault(_place(tensor), memory) == memory:
                return tensor
            return tensor.clone()

        def leaf(value: Any) -> Any:
            if not isinstance(value, Ref):
                return value
            if value.index in self.views:
                return found.setdefault(value, self.views[value.index].of(known))
            key = self.names[value.index], self.memory.get(value.index), self.orders.get(value.index)
            if key not in found:
                found[key] = made(value.index)
            return found[key]

        return map_leaves(leaf, self.result)

    @cached_property
    def _ways(self) -> dict[str, Callable[[Tensor, tuple[int, ...] | None], Tensor]]:
        """What lays out what regions and operators make, but for views, which lie where others do."""
        ways: dict[str, Callable[[Tensor, tuple[int, ...] | None], Tensor]] = {}
        for node in self.program.nodes:
            if isinstance(node, Region):
                ways |= {output.port.name: laid_out for output in node.graph.outputs}
            elif not is_view(self.calls[node.name].call.function):
                ways |= dict.fromkeys(node.outputs, in_order)
        return ways

    def run_opaque(self, node: Opaque, known: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return what one operator outside the algebra makes, by name."""
        opaque = self.calls[node.name]
        call = opaque.call
        fresh = {
            index: known[self.names[index]].clone() if index in call.mutated else known[self.names[index]]
            for index, _ in opaque.inputs
        }
        if is_view(call.function):  # it reads memory, which regions fill in an order of their own
            regions = [one for one in self.program.nodes if isinstance(one, Region)]
            in_regions = {output.port.name for one in regions for output in one.graph.outputs}
            for index in [index for index in fresh if self.names[index] in in_regions]:
                fresh[index] = _laid_out(fresh[index], opaque.metas[index])
        args, kwargs = map_leaves(
            lambda leaf: fresh[leaf.index] if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs)
        )
        # The function made this tensor on the device of an input.
        if kwargs.get("device") == torch.device("meta"):
            kwargs["device"] = device
        function = _LENIENT.get(call.function, call.function)
        result = function(*args, **kwargs)
        made = results_of(call.function, result, [fresh[index] for index in call.mutated])
        outputs = [item for item, index in zip(made, call.outputs, strict=True) if index is not None]
        return dict(zip(node.outputs, outputs, strict=True))


def _place(tensor: Tensor) -> int:
    """Return in which memory a tensor lies."""
    return int(tensor.untyped_storage()._cdata)


def _laid_out(tensor: Tensor, meta: Meta) -> Tensor:
    """Return a tensor in the memory layout that it has in PyTorch."""
    if tensor.stride() == meta.strides or tensor.shape != meta.shape or 0 in meta.strides:
        return tensor
    made = torch.empty_strided(meta.shape, meta.strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


RunRegion = Callable[[Region, dict[str, Tensor]], dict[str, Tensor]]
"""Computes the outputs of a region from all tensors known so far, each by name."""


def _run_region(region: Region, known: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    made = run_graph(region.graph, known, dtype)
    ports = {output.port.name: output.port for output in region.graph.outputs}
    return {name: tensor.to(TORCH_DTYPES[ports[name].dtype]) for name, tensor in made.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def trace(
    function: Callable[..., Any] | nn.Module,
    *inputs: Any,
    name: str | None = None,
    live: str | None = None,
    for_proof: bool = False,
) -> Traced:
    """Return a function, or a module, as a program of algebra on named axes and opaque operators.

    The inputs are examples: tensors of the right shape, dtype and strides (on any device, also
    meta), numbers, or tuples, lists and dicts of them. Numbers become constants of the program, and
    so do the values of 0-d tensors that the function closes over. With `live`, the type of the device
    that is to run the program, those of real numbers are tensors of it instead, read at each call.
    A trace `for_proof` is compared, never run, so that what a program costs does not matter: operators
    are taken apart where PyTorch knows how, and gathered or moved elements are sums over one-hot masks.
    """
    title = name or getattr(function, "__name__", None) or type(function).__name__
    title = "function" if title == "<lambda>" else plain_name(title)
    tape = capture(function, inputs, title, live, for_proof=for_proof)
    views = {} if live is None else outside_views(tape)
    kept = replace(tape, result=[Ref(index) for index in refs(tape.result) if index not in views])
    found = cut(build(kept, for_proof=for_proof))
    return Traced(
        found.program,
        {source.name: source.tensor for source in tape.constants},
        tuple(source.name for source in tape.inputs),
        found.calls,
        found.names,
        tape.result,
        tape.read,
        eager_of(tape),
        found.memory,
        digest_of(tape),
        views,
        {} if live is None else orders_of(kept),
        depends_on_requires_grad=tape.depends_on_requires_grad,
    )
