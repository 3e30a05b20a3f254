"""Optimize: search, compile, check and race; the fastest correct program is what comes back.

Every region of a function is searched; the best graphs become kernels, are raced against one
another, and the whole is checked in floats and raced against PyTorch. What is slower than PyTorch,
or less accurate, or not finite where PyTorch is, is never returned: then PyTorch is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from superopt.driver import Search, search
from superopt.errors import InputError
from superopt.ir import Graph, Region
from superopt.plans import Candidate, OptimizeOptions, RegionPlan, Shelf, schedules
from superopt.tune import Measurement, measure_together, race
from superopt.verify.report import FloatReport

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace.traced import Traced

__all__ = ["Candidate", "OptimizeOptions", "Optimized", "RegionPlan", "optimize"]

log = logging.getLogger("superopt")

Winner = Literal["superopt", "eager", "torch.compile"]
Kernel = Callable[..., "dict[str, Tensor]"]

_WIN = 1.02  # how much faster than PyTorch a program must be to be preferred
_MOST_CHECKS = 4  # candidates of a region that are checked in floats, the fastest first
_COPY_BYTES = 96 << 20  # inputs are copied until they are more than caches hold
_MOST_COPIES = 16


class Optimized:
    """A function that computes what the original does, by the fastest correct program found.

    Call it like the original. Inputs of other shapes, dtypes or devices than it was made for are
    computed by the original.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        winner: Winner,
        fused: Callable[..., Any] | None,
        compiled: Callable[..., Any] | None,
        search: Search,
        regions: Sequence[RegionPlan],
        measurements: Mapping[str, Measurement],
        floats: FloatReport | None,
        signature: object,
    ) -> None:
        self.function = function
        self.winner = winner
        self.search = search
        self.regions = tuple(regions)
        self.measurements = dict(measurements)
        self.floats = floats
        self.fused = fused  # the whole function with our kernels in it, whether they won or not
        chosen = {"superopt": fused, "torch.compile": compiled, "eager": function}[winner]
        assert chosen is not None
        self._program = chosen
        self._signature = signature

    def __call__(self, *inputs: Any) -> Any:
        """Compute; by the original where these inputs are not what this was made for."""
        if self.winner != "superopt" or _signature(inputs) == self._signature:
            return self._program(*inputs)
        return self.function(*inputs)

    @property
    def speedup(self) -> float:
        """How much faster it is than the better of eager and torch.compile; 1 where it is one of them."""
        if self.winner != "superopt":
            return 1.0
        peers = [
            self.measurements[name].median_us
            for name in ("eager", "torch.compile")
            if name in self.measurements
        ]
        return min(peers) / self.measurements["superopt"].median_us

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every region, as it now runs."""
        return tuple(plan.chosen.found.graph if plan.chosen else plan.goal for plan in self.regions)

    @property
    def sources(self) -> tuple[str, ...]:
        """The source of every kernel that runs."""
        return tuple(source for plan in self.regions if plan.chosen for source in plan.chosen.sources)

    def explain(self) -> str:
        """Return, in plain text, what was tried and why each candidate was or was not taken."""
        lines = [f"{self.search.name}: {self.winner}, {self.speedup:.2f} times the better of PyTorch's two"]
        for name, one in sorted(self.measurements.items(), key=lambda item: item[1].median_us):
            lines.append(f"  {name:13} {one.median_us:10.1f} µs  ({one.low_us:.1f} to {one.high_us:.1f})")
        if self.floats is not None:
            lines.append(f"  {self.floats}")
        for plan in self.regions:
            lines.append(f"region {plan.goal.name}")
            for candidate in plan.candidates:
                taken = "taken" if candidate is plan.chosen else candidate.rejected or "slower"
                at = (
                    f"{candidate.standing.measurement.median_us:10.1f} µs" if candidate.standing else " " * 13
                )
                lines.append(f"  {candidate.name:17} {at}  {taken}")
        for node in self.search.program.opaque:
            lines.append(f"not optimized: {node.target}: {node.reason}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "name": self.search.name,
            "winner": self.winner,
            "speedup": round(self.speedup, 4),
            "measurements": {name: asdict(one) for name, one in self.measurements.items()},
            "floats": None if self.floats is None else asdict(self.floats) | {"ok": self.floats.ok},
            "regions": [
                {
                    "goal": str(plan.goal),
                    "chosen": None if plan.chosen is None else str(plan.chosen.mugraph),
                    "candidates": [
                        {
                            "name": one.name,
                            "graph": str(one.found.graph),
                            "median_us": None if one.standing is None else one.standing.measurement.median_us,
                            "rejected": one.rejected,
                        }
                        for one in plan.candidates
                    ],
                    "sources": [] if plan.chosen is None else list(plan.chosen.sources),
                }
                for plan in self.regions
            ],
            "opaque": [asdict(node) for node in self.search.program.opaque],
        }


def optimize(
    function: Callable[..., Any],
    *inputs: Any,
    name: str | None = None,
    options: OptimizeOptions | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Optimized:
    """Return the fastest correct program for a function on inputs like these.

    Tensors on the meta device stand for normal random data of their shape.
    """
    import torch

    from superopt.trace import trace
    from superopt.verify.floats import compare_floats, sample

    options = options or OptimizeOptions()
    _check_options(options)
    tell = on_progress or (lambda message: None)
    tell("tracing and searching")
    traced = trace(function, *inputs, name=name)
    shelf = Shelf(options)
    recalled = {region.graph.name: shelf.recall(region.graph) for region in traced.program.regions}
    if all(recalled.values()):
        found = Search(traced.program.name, traced.program, (), 0.0)
        work = [(region.graph, recalled[region.graph.name]) for region in traced.program.regions]
    else:
        found = search(traced.program, name=name, options=options.search)
        work = [(one.goal, schedules(one.found[: options.graphs])) for one in found.regions]
        if not _whole(found, traced):
            work = []
    copies = [
        sample("normal", inputs, seed=options.seed + i) for i in range(_copies(sample("normal", inputs)))
    ]
    with torch.no_grad():
        known = _known_tensors(traced, copies[0])
        plans = []
        kernels: dict[str, Kernel] = {}
        floats = None
        for goal, candidates in work:
            ranked, ready = _race_region(candidates, goal, known, options, tell)
            tell(f"checking {goal.name} in floats")
            judged: list[Candidate] = []
            chosen = None
            for one in ranked:
                if chosen is None and one.name in ready and len(judged) < _MOST_CHECKS:
                    trial = {**kernels, goal.name: ready[one.name]}
                    report = compare_floats(function, _program(traced, trial), inputs, seed=options.seed)
                    if report.ok:
                        chosen, kernels, floats = one, trial, report
                    else:
                        one = replace(one, rejected=str(report))
                judged.append(one)
            plans.append(RegionPlan(goal, tuple(judged), chosen))
            shelf.keep(plans[-1])
        contenders: dict[str, Callable[..., Any]] = {"eager": function}
        fused = _program(traced, kernels) if kernels else None
        if fused is not None:
            contenders["superopt"] = fused
        if options.torch_compile:
            contenders |= _compiled(function, copies[0], tell)
        tell("racing against PyTorch")
        measurements = measure_together(contenders, copies, seconds=options.seconds / 2)
    winner = _winner(measurements)
    return Optimized(
        function,
        winner=winner,
        fused=fused,
        compiled=contenders.get("torch.compile"),
        search=found,
        regions=plans,
        measurements=measurements,
        floats=floats,
        signature=_signature(copies[0]),
    )


def _check_options(options: OptimizeOptions) -> None:
    if options.target not in ("auto", "cpu"):
        raise InputError(f"target is {options.target!r}; this version makes kernels for 'cpu' (or 'auto')")
    if not options.seconds > 0:
        raise InputError(f"seconds is {options.seconds!r}; give a time above 0")
    if options.graphs < 1:
        raise InputError(f"graphs is {options.graphs!r}; give at least 1")


def _whole(found: Search, traced: "Traced") -> bool:
    """Whether every region was searched as it was traced, not cut in parts."""
    return [one.goal.name for one in found.regions] == [
        region.graph.name for region in traced.program.regions
    ]


def _race_region(
    candidates: Sequence[Candidate],
    goal: Graph,
    known: Mapping[str, "Tensor"],
    options: OptimizeOptions,
    tell: Callable[[str], None],
) -> tuple[list[Candidate], dict[str, Kernel]]:
    """Compile the best graphs of a region and race them; return them ranked, and their kernels."""
    tell(f"compiling {goal.name}")
    tensors = {port.name: known[port.name] for port in goal.inputs}
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = list(pool.map(lambda one: _build(one, tensors), candidates))
    ready = {one.name: kernel for one, kernel in built if kernel is not None}
    tell(f"racing {len(ready)} kernels of {goal.name}")
    runs = {label: _called(kernel, tuple(tensors)) for label, kernel in ready.items()}
    standings = race(runs, _cloned(tuple(tensors.values())), seconds=options.seconds / 4)
    order = {standing.name: i for i, standing in enumerate(standings)}
    ranked = [
        replace(one, standing=standings[order[one.name]]) if one.name in order else one for one, _ in built
    ]
    return sorted(ranked, key=lambda one: order.get(one.name, len(order))), ready


def _build(candidate: Candidate, tensors: Mapping[str, "Tensor"]) -> tuple[Candidate, Kernel | None]:
    """Compile a candidate and run it once."""
    from superopt.codegen.cpp import CppError, CppMuGraph

    try:
        kernel = CppMuGraph(candidate.mugraph)
        kernel(**tensors)
    except CppError as error:
        log.info("%s: skip %s: %s", candidate.found.graph.name, candidate.name, error)
        return replace(candidate, rejected=str(error).splitlines()[0]), None
    return replace(candidate, sources=kernel.sources), kernel


def _called(kernel: Kernel, names: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *tensors: kernel(**dict(zip(names, tensors, strict=True)))


def _program(traced: "Traced", kernels: Mapping[str, Kernel]) -> Callable[..., Any]:
    """Return the whole function, its regions computed by kernels where there are some."""
    import torch

    from superopt.trace.run import run_graph

    def run_region(region: Region, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
        graph = region.graph
        kernel = kernels.get(graph.name)
        if kernel is None:
            return run_graph(graph, known, torch.float32)
        return kernel(**{port.name: known[port.name] for port in graph.inputs})

    return lambda *inputs: traced.run(*inputs, run_region=run_region)


def _known_tensors(traced: "Traced", inputs: tuple[Any, ...]) -> "dict[str, Tensor]":
    """Return every tensor that enters a region, from one run of the program."""
    import torch

    from superopt.trace.run import TORCH_DTYPES, run_graph

    seen: dict[str, Tensor] = {}

    def run_region(region: Region, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
        seen.update(known)
        made = run_graph(region.graph, known, torch.float32)
        dtypes = {output.port.name: TORCH_DTYPES[output.port.dtype] for output in region.graph.outputs}
        return {name: tensor.to(dtypes[name]) for name, tensor in made.items()}

    traced.run(*inputs, run_region=run_region)
    return seen


def _compiled(
    function: Callable[..., Any], inputs: tuple[Any, ...], tell: Callable[[str], None]
) -> dict[str, Callable[..., Any]]:
    """Return torch.compile's program as a contender, where torch.compile works."""
    import torch

    tell("torch.compile")
    try:
        compiled = torch.compile(function)
        compiled(*inputs)
    except Exception as error:  # whatever stops Inductor here must not stop us
        log.warning("torch.compile does not race: %s", str(error).splitlines()[0] if str(error) else error)
        return {}
    return {"torch.compile": compiled}


def _winner(measurements: Mapping[str, Measurement]) -> Winner:
    peers: dict[Winner, float] = {
        name: measurements[name].median_us for name in ("eager", "torch.compile") if name in measurements
    }
    best = min(peers, key=lambda name: peers[name])
    ours = measurements.get("superopt")
    return "superopt" if ours is not None and ours.median_us * _WIN < peers[best] else best


def _copies(inputs: tuple[Any, ...]) -> int:
    from superopt.verify.floats import tensors_of

    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(inputs))
    return max(2, min(_MOST_COPIES, _COPY_BYTES // max(size, 1)))


def _cloned(tensors: "tuple[Tensor, ...]") -> "list[tuple[Tensor, ...]]":
    """Return copies of tensors with their strides, enough that no cache holds all."""
    import torch

    def clone(tensor: "Tensor") -> "Tensor":
        if 0 in tensor.stride():
            return tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)

    return [tensors] + [tuple(map(clone, tensors)) for _ in range(_copies(tensors) - 1)]


def _signature(inputs: tuple[Any, ...]) -> object:
    """Return what must agree for kernels to be used: structure, shapes, strides, dtypes, devices, numbers."""
    from torch import Tensor
    from torch.utils._pytree import tree_flatten

    leaves, structure = tree_flatten(inputs)
    return structure, tuple(
        (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves
    )
