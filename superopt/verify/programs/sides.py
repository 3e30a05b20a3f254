"""Sides: each of two programs as it is compared, as one graph and as a function to run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from superopt.errors import GraphError, InputError
from superopt.ir import Graph, check_graph, operations_of
from superopt.trace import Traced, trace
from superopt.trace.run import TORCH_DTYPES, blank_inputs, run_graph
from superopt.verify.floats.compare import tensors_of
from superopt.verify.programs.results import Branch, Made, Structure, Watched
from superopt.verify.programs.whole import Whole, rename_inputs, whole_program

__all__ = ["Program", "Side"]

Program: TypeAlias = Callable[..., Any] | Graph

_SAMPLED = 64  # elements of a constant by which others are ruled out before all are compared


class Side:
    """One of the two programs: as a graph around its opaque calls, and as a function to run."""

    def __init__(self, program: Program, inputs: tuple[Any, ...]) -> None:
        self.constants: Mapping[str, Tensor] = {}
        self.titles: dict[str, str] = {}  # the names that the user gave to constants
        self.whole: Whole | None = None
        self.unreadable = ""  # why the program is not one graph, where it isn't
        self.random: tuple[str, ...] = ()  # its operators that draw random numbers
        self.unwritten: tuple[str, ...] = ()  # its operators that make tensors of memory as they find it
        self.operations = 0  # about how many one run takes
        if isinstance(program, Graph):
            self._graph(check_graph(program), inputs)
        else:
            self._function(program, inputs)

    def _graph(self, graph: Graph, inputs: tuple[Any, ...]) -> None:
        self.is_graph = True
        self.program: Graph | Traced = graph
        self.whole = Whole.of_graph(graph)
        self.names = tuple(port.name for port in graph.inputs)
        self.inputs = inputs or blank_inputs(graph)
        self.function = _runner(graph)
        self.operations = operations_of(graph)
        made = (Made(output.port.dtype, graph.shape(output.port)) for output in graph.outputs)
        self.structure: Structure = Branch(tuple, tuple((f"[{i}]", one) for i, one in enumerate(made)))

    def _function(self, program: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.is_graph = False
        watched = Watched(program)
        name = getattr(program, "__name__", None) or type(program).__name__
        traced = trace(watched.function, *inputs, name=name, for_proof=True)
        self.program = traced
        assert watched.structure is not None
        self.structure = watched.structure
        self.function = watched.function
        self.inputs = inputs
        self.names = traced.input_names
        self.constants = traced.constants
        titles = {id(tensor): title for title, tensor in _named_tensors(program)}
        self.titles = {
            name: titles[id(tensor)] for name, tensor in self.constants.items() if id(tensor) in titles
        }
        self.operations = sum(operations_of(region.graph) for region in traced.program.regions)
        try:
            self.whole = self._as_one(traced, inputs)
        except GraphError as error:
            self.unreadable = str(error)
            return
        self.random = tuple(call.target for call in self.whole.calls if call.random)
        self.unwritten = tuple(call.target for call in self.whole.calls if call.unwritten)

    def _as_one(self, traced: Traced, inputs: tuple[Any, ...]) -> Whole:
        tensors = dict(zip(traced.input_names, tensors_of(inputs), strict=True)) | traced.constants
        return whole_program(traced, {name: tuple(tensor.shape) for name, tensor in tensors.items()})

    def match_inputs(self, other: "Side") -> None:
        """Check that both take the same tensors."""
        if len(self.names) != len(other.names):
            raise InputError(f"the programs take {len(other.names)} and {len(self.names)} tensors")
        if self.whole is None or other.whole is None:
            return
        ours, theirs = _ports(self.whole.graph), _ports(other.whole.graph)
        for mine, name in zip(self.names, other.names, strict=True):
            if ours[mine] != theirs[name]:
                raise InputError(
                    f"input {name!r} differs between the programs: {theirs[name]} and {ours[mine]}"
                )

    def named_as(self, other: "Side") -> Whole:
        """Return the program with its inputs and equal constants named as in the other program."""
        assert self.whole is not None
        names = dict(zip(self.names, other.names, strict=True))
        names |= _shared(self.constants, other.constants)
        taken = {*_ports(other.whole.graph)} if other.whole else set()
        fresh: dict[str, str] = {}
        for port in self.whole.graph.inputs:
            name = names.get(port.name)
            while name is None or (name in taken and port.name not in names):
                name = f"{name or port.name}'"
            fresh[port.name] = name
        calls = tuple(
            replace(call, results=tuple(fresh[name] for name in call.results)) for call in self.whole.calls
        )
        self.constants = {fresh[name]: tensor for name, tensor in self.constants.items()}
        self.titles = {fresh[name]: title for name, title in self.titles.items()}
        return replace(self.whole, graph=rename_inputs(self.whole.graph, fresh), calls=calls)


def _ports(graph: Graph) -> dict[str, str]:
    """Return the dtype and shape of each input as a text; float dtypes are alike to the algebra."""
    return {port.name: f"{port.dtype}[{', '.join(map(str, graph.shape(port)))}]" for port in graph.inputs}


def _named_tensors(program: Callable[..., Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the named tensors of a module, or of the modules that a function closes over."""
    if isinstance(program, nn.Module):
        yield from program.named_parameters()
        yield from program.named_buffers()
        return
    owner = getattr(program, "__self__", None)
    cells = [cell.cell_contents for cell in getattr(program, "__closure__", None) or () if _is_filled(cell)]
    for held in (owner, *cells):
        if isinstance(held, nn.Module):
            yield from held.named_parameters()
            yield from held.named_buffers()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _shared(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names on the other side of constants that are the same tensors, or hold the same numbers."""
    by_identity = {id(tensor): name for name, tensor in theirs.items()}
    names = {name: by_identity[id(tensor)] for name, tensor in ours.items() if id(tensor) in by_identity}
    free: dict[object, list[str]] = {}
    for name, tensor in theirs.items():
        if name not in names.values():
            free.setdefault(_look(tensor), []).append(name)
    for name, tensor in ours.items():
        if name in names:
            continue
        alike = free.get(_look(tensor), [])
        twin = next((one for one in alike if _same_data(tensor, theirs[one])), None)
        if twin is not None:
            names[name] = twin
            alike.remove(twin)
    return names


def _look(tensor: Tensor) -> object:
    """Return what tells most different tensors apart: shape, dtype and a few numbers."""
    if tensor.is_meta:
        return tuple(tensor.shape), tensor.dtype
    with torch.no_grad():
        step = max(tensor.numel() // _SAMPLED, 1)
        some = tensor.detach().reshape(-1)[::step].cpu().contiguous().view(torch.uint8)
    return tuple(tensor.shape), tensor.dtype, blake2b(some.numpy().tobytes()).digest()


def _same_data(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and not a.is_meta and bool(torch.equal(a, b))


def _runner(graph: Graph) -> Callable[..., Any]:
    """Return a graph as a function of its tensors, computed in their own float dtype."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:

        floating = [value.dtype for value in inputs if value.dtype.is_floating_point]
        dtype = floating[0] if floating else torch.float64
        made = run_graph(graph, dict(zip((p.name for p in graph.inputs), inputs, strict=True)), dtype)
        doubled = dtype == torch.float64
        return tuple(
            made[output.port.name].to(dtype if doubled else TORCH_DTYPES[output.port.dtype])
            for output in graph.outputs
        )

    return run
