"""Region: a piece of a graph as algebra, traced once, with the key by which its decision is kept."""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import sympy
import torch
from torch import Tensor, fx
from torch.utils._sympy.functions import FloorDiv

from superopt.backend.decision import Decision, Ledger
from superopt.backend.subgraph import Subgraph, SubgraphRoom
from superopt.cache import Key, key_of, program_text, versions
from superopt.candidates.floors import least_us
from superopt.driver import SearchOptions, search
from superopt.errors import SuperoptError
from superopt.ir import Graph, Port, Program
from superopt.ir import Region as ProgramRegion
from superopt.rivals.aten import bytes_of, flops_of, operators_text, value_of
from superopt.rivals.inductor import alone, settings_text
from superopt.schedule import Room
from superopt.targets import Target
from superopt.trace import Traced, trace
from superopt.trace.capture.tape import refs
from superopt.trace.run import TORCH_DTYPES
from superopt.weights.division import run_part

__all__ = [
    "RECORDS",
    "CopyError",
    "OpaqueError",
    "Region",
    "at_other_sizes",
    "cheapest_us",
    "draft_of",
    "floor_anew",
    "in_room",
    "region_of",
    "trace_algebra",
]

T = TypeVar("T")

RECORDS = 10
"""The version of decisions in the cache."""

_GROWTH = 3  # sizes that are symbols are tried at so much more than was seen
_MOST_GROWTH = 4096  # tensors that are larger by more are not drawn


@dataclass(frozen=True, slots=True)
class Region:
    """A subgraph as algebra, with the key by which its decision is kept."""

    subgraph: Subgraph
    traced: Traced
    goal: Graph
    names: tuple[str, ...]  # for each result, the name of the goal's output that it is
    key: Key
    floor_us: float

    @property
    def room(self) -> Room | None:
        """The bytes that it may hold at once, where there is a limit."""
        found = self.subgraph.room
        if found is None:
            return None
        return Room(found.bytes, frozenset(self.traced.input_names[at] for at in found.ending))

    def in_order(self, names: Iterable[str], given: Sequence[T]) -> list[T]:
        """Return what is given for the inputs of the subgraph, in the order of these inputs of the goal."""
        places = self.traced.input_names
        return [given[places.index(name)] for name in names]


def region_of(subgraph: Subgraph, target: Target, ledger: Ledger) -> Region:
    """Return a subgraph as algebra, or raise SuperoptError where it is none."""
    if not subgraph.hints().keys() >= set(subgraph.symbols):
        raise SuperoptError("a size of its inputs depends on data")
    traced = trace_algebra(subgraph, subgraph.example())
    goal = traced.program.regions[0].graph
    _check_results(subgraph, traced, goal)
    key = _key_of(subgraph, goal, traced.program, target, ledger)
    return Region(subgraph, traced, goal, traced.program.outputs, key, target.floor_us(goal) or 0.0)


def _check_results(subgraph: Subgraph, traced: Traced, goal: Graph) -> None:
    """Raise SuperoptError unless kernels of the goal make all results, each one once and in its dtype."""
    dtypes = {output.port.name: TORCH_DTYPES[output.port.dtype] for output in goal.outputs}
    if not set(traced.program.outputs) <= dtypes.keys():
        raise SuperoptError("a result is one of the inputs")
    for result, name in zip(subgraph.results, traced.program.outputs, strict=False):
        if dtypes[name] != value_of(result.node).dtype:
            raise SuperoptError(f"{result.node.name} would be of {dtypes[name]}")
    copies = _copies(subgraph, traced)
    if copies:
        raise CopyError("a result is a copy of another one", copies)
    if not goal.inputs:
        raise SuperoptError("its results do not depend on any tensor")


def in_room(region: Region, room: SubgraphRoom, target: Target, ledger: Ledger) -> Region:
    """Return a region that may hold so many bytes at once; its decision is another one."""
    subgraph = replace(region.subgraph, room=room)
    key = _key_of(subgraph, region.goal, region.traced.program, target, ledger)
    return replace(region, subgraph=subgraph, key=key)


def _key_of(subgraph: Subgraph, goal: Graph, program: Program, target: Target, ledger: Ledger) -> Key:
    """Return the key of all that the decision on a region depends on."""
    options = {
        "backend": RECORDS,
        "preset": ledger.options.preset,
        "verify": ledger.options.verify,
        "weights": ledger.options.weights,
        "inductor": settings_text(ledger.options.inductor),
        "results": list(program.outputs),
        "symbols": [str(torch.Size(one.shape)) for one in subgraph.example(_grown_sizes(subgraph))],
    }
    casts = [str(value.dtype) for value in map(value_of, subgraph.piece.nodes) if isinstance(value, Tensor)]
    if len(set(casts)) > 1:  # algebra knows none, and kernels round where PyTorch does
        options["dtypes"] = casts
    if subgraph.symbols:
        options["elsewhere"] = _text_at_other_sizes(subgraph)
    if subgraph.room is not None:
        options["room"] = [subgraph.room.bytes, *subgraph.room.ending]
    parts = {**versions(), **target.key_parts()}
    return key_of("plan", program=program_text(goal), options=options, **parts)


def _copies(subgraph: Subgraph, traced: Traced) -> list[fx.Node]:
    """Return the results that are copies of results before them: kernels make each tensor once."""
    if not subgraph.results:  # it was read from data, which another process made of a region
        return []
    memory = [traced.memory.get(index) for index in refs(traced.result)]
    owners: dict[str, int | None] = {}
    made = zip(subgraph.results, traced.program.outputs, memory, strict=True)
    return [result.node for result, name, place in made if owners.setdefault(name, place) != place]


def cheapest_us(region: Region, target: Target, seconds: float) -> float:
    """Return the floor of the cheapest graphs equal to a region that a search of so many seconds finds.

    Whatever may be made of its weights once takes no time, so that it is a floor under every policy.
    """
    found = search(region.traced.program, options=SearchOptions(seconds=seconds, weights="frozen"))
    return sum(
        least_us(target, [run_part(graph.graph, "frozen") for graph in part.found if not graph.splits]) or 0.0
        for part in found.regions
    )


def floor_anew(region: Region, target: Target, seen_us: float) -> float:
    """Return the floor by rates that are measured again; 0 where it lies above a time that was seen.

    The rates were those of a moment when the device was busy. Else no floor is believed.
    """
    target.renew()
    floor = target.floor_us(region.goal) or 0.0
    return floor if floor <= seen_us else 0.0


def trace_algebra(subgraph: Subgraph, example: tuple[Tensor, ...]) -> Traced:
    """Return a subgraph traced as a program of one region; raise SuperoptError for any other program."""
    traced = alone(lambda: trace(subgraph.module, *example, name="region"))
    program = traced.program
    if program.opaque:
        raise OpaqueError({node.target: node.reason for node in program.opaque})
    if len(program.regions) != 1:
        raise SuperoptError(f"it is {len(program.regions)} regions")
    return _mark_constant(traced, {traced.input_names[at] for at in subgraph.constant})


def _mark_constant(traced: Traced, names: Collection[str]) -> Traced:
    """Return a program in which the inputs of some names are marked as constant."""

    def mark(ports: Sequence[Port]) -> tuple[Port, ...]:
        return tuple(replace(port, constant=port.name in names) for port in ports)

    [region] = traced.program.regions
    nodes = (ProgramRegion(replace(region.graph, inputs=mark(region.graph.inputs))),)
    program = replace(traced.program, inputs=mark(traced.program.inputs), nodes=nodes)
    return replace(traced, program=program)


class CopyError(SuperoptError):
    """Some results of a piece are tensors that differ from others in nothing but their memory."""

    def __init__(self, message: str, nodes: Iterable[fx.Node]) -> None:
        super().__init__(message)
        self.nodes = frozenset(nodes)


class OpaqueError(SuperoptError):
    """A piece holds operators that are no algebra in the form they have there."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{target}: {reason}" for target, reason in reasons.items()))
        self.reasons = reasons  # by operator


def _grown_sizes(subgraph: Subgraph, growth: int = _GROWTH, apart: int = 2) -> dict[Any, int]:
    """Return larger sizes of all symbols: the first grows by `growth`, each next one by `apart` more."""
    return {symbol: size + growth + apart * at for at, (symbol, size) in enumerate(subgraph.hints().items())}


def at_other_sizes(subgraph: Subgraph) -> tuple[tuple[Tensor, ...], Traced] | None:
    """Return inputs of other sizes and the program traced on them, or None where no other sizes work.

    All sizes that are divided have another quotient and another remainder there. Where a module does not
    take such sizes, which may have to be divisible, others are tried. Symbols may depend on one another
    without a word, as the lengths of keys and of their mask do: where sizes that grow differently do not fit
    together, all grow by as much.
    """
    wanted = _uneven_growth(_divisors(subgraph))
    for growth in dict.fromkeys((wanted, _GROWTH)) if wanted <= _MOST_GROWTH else ():
        for apart in (growth - 1, 0):
            example = subgraph.example(_grown_sizes(subgraph, growth, apart))
            try:
                return example, trace_algebra(subgraph, example)
            except (SuperoptError, RuntimeError):  # superopt's own, or PyTorch's where shapes do not match
                continue
    return None


def _uneven_growth(divisors: Collection[int]) -> int:
    """Return the least growth that is larger than all divisors, and that none of them divides."""
    least = max([_GROWTH - 1, *divisors]) + 1
    return next(growth for growth in count(least) if all(growth % one for one in divisors))


def _divisors(subgraph: Subgraph) -> set[int]:
    """Return the numbers above 1 by which a subgraph, or the shape of an input, divides sizes."""
    nodes = subgraph.module.graph.find_nodes(op="call_function", target=operator.floordiv)
    sizes = [size for layout in subgraph.layouts() for part in layout for size in part]
    divisions = [
        division
        for size in sizes
        if isinstance(size, torch.SymInt)
        for division in size.node.expr.atoms(FloorDiv)
    ]
    told = [node.args[1] for node in nodes] + [division.args[1] for division in divisions]
    return {int(one) for one in told if isinstance(one, int | sympy.Integer) and one > 1}


def _text_at_other_sizes(subgraph: Subgraph) -> str:
    """Return the text of the goal at other sizes, where a number read off a size is another constant.

    Without it, two regions with equal goals at the sizes seen would share a decision: one divides by 16, the
    other one by a size that was 16.
    """
    found = at_other_sizes(subgraph)
    return "none" if found is None else program_text(found[1].program.regions[0].graph)


def draft_of(region: Region) -> Decision:
    """Return the draft of a decision: it leaves a region to Inductor, with no reason yet."""
    inputs = ", ".join(
        f"{port.dtype}{list(region.goal.shape(port))}".replace(" ", "") for port in region.goal.inputs
    )
    nodes = region.subgraph.piece.nodes
    flops, moved = sum(map(flops_of, nodes)), sum(map(bytes_of, nodes))
    floor = region.floor_us or None
    return Decision(operators_text(nodes), inputs, False, "", flops=flops, bytes=moved, floor_us=floor)
