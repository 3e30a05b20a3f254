"""equivalent: whether two PyTorch programs compute the same, by algebra and by floats."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from superopt.errors import GraphError, InputError
from superopt.ir import Graph, check_graph, value_axes
from superopt.verify.equality import equal_graphs
from superopt.verify.verdict import Verdict
from superopt.verify.whole import add_inputs, call_signatures, rename_inputs, whole_graph

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace import Traced

__all__ = ["equivalent"]

Program: TypeAlias = Callable[..., Any] | Graph

_MANY_OPERATIONS = 4_000_000_000  # of one run, above which only one distribution is tried
_TOO_MANY_OPERATIONS = 60_000_000_000  # above which floats are not tried
_RANDOM = ("bernoulli", "dropout", "rand", "multinomial", "normal", "uniform", "exponential_")
_GROSS = 1e-4  # a float64 difference that no order of operations explains


def equivalent(
    f: Program, g: Program, *inputs: Any, trials: int | None = None, floats: bool = True, seed: int = 0
) -> Verdict:
    """Return whether two functions, modules or Graphs compute the same tensors from the same inputs.

    The inputs are examples, matched by position: their shapes, dtypes and numbers count, not their
    data. The verdict is about exact algebra, with a bound on the chance of error; with `floats`,
    both are also run, and unequal ones are told apart by a concrete counterexample where one is
    found. Graphs need no inputs.
    """
    start = perf_counter()
    if isinstance(f, Graph) != isinstance(g, Graph) and not inputs:
        raise InputError("a Graph and a function: give example inputs for the function")
    left, right = _Side(f, inputs), _Side(g, inputs)
    right.match_inputs(left)
    reason = _incomparable(left, right)
    if reason:
        verdict = Verdict(False, proven=False, notes=(f"no proof: {reason}",))
    else:
        right.match(left)
        difference = _different_outputs(left.graph, right.graph)
        if difference:
            return Verdict(False, notes=(difference,), seconds=perf_counter() - start)
        verdict = _by_algebra(left, right, trials, seed)
    if floats:
        verdict = _by_floats(left, right, verdict, seed)
    elif not verdict.proven:
        verdict = replace(verdict, equal=False)
    return replace(verdict, seconds=perf_counter() - start)


class _Side:
    """One of the two programs: as a graph, and as a function to run."""

    def __init__(self, program: Program, inputs: tuple[Any, ...]) -> None:
        self.calls: tuple[str, ...] = ()
        self.constants: Mapping[str, Tensor] = {}
        self.results: tuple[tuple[str, ...], ...] = ()
        self.unreadable = ""  # why the program is not one graph, where it isn't
        if isinstance(program, Graph):
            self.graph = check_graph(program)
            self.names = tuple(port.name for port in program.inputs)
            self.inputs = inputs or _like_ports(program)
            self.function = _runner(program)
            return
        from superopt.trace import trace

        traced = trace(program, *inputs)
        self.function = program
        self.inputs = inputs
        self.names = traced.input_names
        self.constants = traced.constants
        self.calls = call_signatures(traced)
        self.results = tuple(node.outputs for node in traced.program.opaque)
        try:
            self.graph = self._whole(traced, inputs)
        except GraphError as error:
            self.unreadable = str(error)
            self.graph = max((region.graph for region in traced.program.regions), key=lambda g: len(g.steps))

    def _whole(self, traced: "Traced", inputs: tuple[Any, ...]) -> Graph:
        from superopt.verify.floats import tensors_of

        tensors = dict(zip(traced.input_names, tensors_of(inputs), strict=True)) | traced.constants
        return whole_graph(traced, {name: tuple(tensor.shape) for name, tensor in tensors.items()})

    def match_inputs(self, other: "_Side") -> None:
        """Check that both take as many tensors."""
        if len(self.names) != len(other.names):
            raise InputError(f"the programs take {len(other.names)} and {len(self.names)} tensors")

    def match(self, other: "_Side") -> None:
        """Name inputs, equal constants and results of opaque calls as the other side does."""
        # First out of the way of each other, then to their new names.
        self._rename({port.name: f"{port.name}'" for port in self.graph.inputs})
        names = {f"{mine}'": theirs for mine, theirs in zip(self.names, other.names, strict=True)}
        free = dict(other.constants)
        for name, constant in self.constants.items():
            for theirs, twin in free.items():
                if constant is twin or _same_data(constant, twin):
                    names[f"{name}'"] = theirs
                    del free[theirs]
                    break
        for made, twins in zip(self.results, other.results, strict=False):
            names |= {f"{mine}'": theirs for mine, theirs in zip(made, twins, strict=False)}
        self._rename(names)
        ours, known = self._ports(), other._ports()
        self.graph = add_inputs(self.graph, {name: known[name] for name in known.keys() - ours.keys()})
        other.graph = add_inputs(other.graph, {name: ours[name] for name in ours.keys() - known.keys()})

    def _ports(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {port.name: (port.dtype, self.graph.shape(port)) for port in self.graph.inputs}

    def _rename(self, names: Mapping[str, str]) -> None:
        self.graph = rename_inputs(self.graph, names)

    @property
    def operations(self) -> int:
        """About how many operations one run takes."""
        axes = value_axes(self.graph)
        sizes = self.graph.sizes
        return sum(
            prod(sizes[axis] for axis in axes[value].union(*(axes[i] for i in step.inputs)))
            for value, step in enumerate(self.graph.steps, len(self.graph.inputs))
        )


def _incomparable(left: _Side, right: _Side) -> str:
    """Return why the algebra has nothing to say about two programs, or nothing."""
    if left.calls != right.calls:
        listed = sorted({call.split()[0] for call in (*left.calls, *right.calls)})
        return f"the programs differ in operators outside the algebra ({', '.join(listed)})"
    if any(word in call.split()[0] for call in left.calls for word in _RANDOM):
        return "the programs draw random numbers"
    return left.unreadable or right.unreadable


def _by_algebra(left: _Side, right: _Side, trials: int | None, seed: int) -> Verdict:
    try:
        verdict = equal_graphs(left.graph, right.graph, trials=trials, seed=seed)
    except (GraphError, InputError) as error:
        return Verdict(False, proven=False, notes=(f"no proof: {error}",))
    if left.calls:
        opaque = tuple(call.split()[0] for call in left.calls)
        verdict = replace(verdict, oracles=tuple(sorted({*verdict.oracles, *opaque})))
    return verdict


def _by_floats(left: _Side, right: _Side, verdict: Verdict, seed: int) -> Verdict:
    from superopt.verify.floats import DISTRIBUTIONS, compare_floats, find_counterexample, tensors_of

    operations = max(left.operations, right.operations)
    if operations > _TOO_MANY_OPERATIONS:
        note = f"floats not compared: {operations / 1e9:.0f}e9 operations a run; give smaller inputs"
        return replace(verdict, notes=(*verdict.notes, note))
    names = tuple(DISTRIBUTIONS) if operations <= _MANY_OPERATIONS else tuple(DISTRIBUTIONS)[:1]
    f, g, inputs = left.function, right.function, left.inputs
    if not tensors_of(inputs) and left.names:
        raise InputError("no input tensors to compare floats on")
    if verdict.proven and verdict.equal:
        report = compare_floats(f, g, inputs, distributions=names, seed=seed)
        verdict = replace(verdict, floats=report)
        found = find_counterexample(
            f, g, inputs, distributions=names[:1], seed=seed, tolerance=_GROSS, finite=True
        )
        if found is None or verdict.oracles:
            return verdict
        note = "the algebra finds them equal, the floats do not: one of the two is at fault"
        return replace(verdict, equal=False, proven=False, counterexample=found, notes=(*verdict.notes, note))
    found = find_counterexample(f, g, inputs, distributions=names, seed=seed)
    if found is not None:
        return replace(verdict, equal=False, counterexample=found)
    if verdict.proven:
        note = "no float difference found above rounding"
        return replace(verdict, notes=(*verdict.notes, note))
    report = compare_floats(f, g, inputs, distributions=names, seed=seed)
    return replace(verdict, equal=True, floats=report)


def _different_outputs(a: Graph, b: Graph) -> str:
    """Return how the tensors that leave differ in number, shape or dtype, or nothing."""
    listed = [
        ", ".join(
            f"{output.port.dtype}[{', '.join(map(str, graph.shape(output.port)))}]"
            for output in graph.outputs
        )
        for graph in (a, b)
    ]
    return "" if listed[0] == listed[1] else f"they return different tensors: {listed[0]} against {listed[1]}"


def _same_data(a: "Tensor", b: "Tensor") -> bool:
    import torch

    return a.shape == b.shape and a.dtype == b.dtype and not a.is_meta and bool(torch.equal(a, b))


def _runner(graph: Graph) -> Callable[..., Any]:
    """Return a graph as a function of its tensors, computed in their own float dtype."""

    def run(*inputs: "Tensor") -> tuple["Tensor", ...]:
        import torch

        from superopt.trace.run import TORCH_DTYPES, run_graph

        floating = [value.dtype for value in inputs if value.dtype.is_floating_point]
        dtype = floating[0] if floating else torch.float64
        made = run_graph(graph, dict(zip((p.name for p in graph.inputs), inputs, strict=True)), dtype)
        doubled = dtype == torch.float64
        return tuple(
            made[output.port.name].to(dtype if doubled else TORCH_DTYPES[output.port.dtype])
            for output in graph.outputs
        )

    return run


def _like_ports(graph: Graph) -> tuple["Tensor", ...]:
    import torch

    from superopt.trace.run import TORCH_DTYPES

    return tuple(
        torch.empty(graph.shape(port), dtype=TORCH_DTYPES[port.dtype], device="meta") for port in graph.inputs
    )
