"""Choice: regions as algebra, and the decisions on them that are kept for other processes."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from superopt.backend.decision import Decision, Ledger
from superopt.backend.generation import next_generation
from superopt.backend.hosting import PASS, alone
from superopt.backend.nodes import bytes_of, flops_of, listed
from superopt.backend.options import BackendOptions
from superopt.backend.region import runner_of
from superopt.backend.subgraph import Subgraph
from superopt.cache import Cache, Key, Record, key_of, program_text, versions
from superopt.errors import SuperoptError
from superopt.ir import Graph, Program, print_graph
from superopt.targets import Target
from superopt.trace import trace

__all__ = [
    "OpaqueError",
    "Region",
    "blank_of",
    "keep",
    "known_decision",
    "line_of",
    "others",
    "region_of",
    "traced_algebra",
]

log = logging.getLogger("superopt")

_RECORDS = 3


@dataclass(frozen=True, slots=True)
class Region:
    """A subgraph as algebra, with the key by which its decision is kept."""

    subgraph: Subgraph
    goal: Graph
    names: tuple[str, ...]  # the goal's output that each result is
    key: Key
    floor_us: float


def region_of(subgraph: Subgraph, target: Target, ledger: Ledger) -> Region:
    """Return a subgraph as algebra, or raise SuperoptError where it is none."""
    program = traced_algebra(subgraph, subgraph.example())
    goal = program.regions[0].graph
    made = {output.port.name for output in goal.outputs}
    if not set(program.outputs) <= made:
        raise SuperoptError("a result is one of the inputs")
    options = {
        "backend": _RECORDS,
        "preset": ledger.options.preset,
        "verify": ledger.options.verify,
        "inductor": {
            name: str(value) for name, value in sorted(ledger.options.inductor.items()) if name != PASS
        },
        "results": list(program.outputs),
        "symbols": [str(torch.Size(tensor.shape)) for tensor in subgraph.example(others(subgraph))],
    }
    parts = {**versions(), **target.key_parts()}
    key = key_of("plan", program=program_text(goal), options=options, **parts)
    return Region(subgraph, goal, program.outputs, key, target.floor_us(goal) or 0.0)


def known_decision(region: Region, ledger: Ledger) -> Decision | None:
    """Return the decision on a region that was made before, in this process or an earlier one."""
    found = ledger.known.get(region.key.digest)
    if found is None and ledger.options.cache:
        found = _recalled(Cache.open(), region, blank_of(region), ledger.options)
        if found is not None:
            ledger.known[region.key.digest] = found
    return found


def traced_algebra(subgraph: Subgraph, example: tuple[Tensor, ...]) -> Program:
    """Return a subgraph as a program of one region, or raise SuperoptError where it is none."""
    program = alone(lambda: trace(subgraph.module, *example, name="region")).program
    if program.opaque:
        listed = "; ".join(f"{node.target}: {node.reason}" for node in program.opaque)
        raise OpaqueError(listed, tuple(node.target for node in program.opaque))
    if len(program.regions) != 1:
        raise SuperoptError(f"it is {len(program.regions)} regions")
    return program


class OpaqueError(SuperoptError):
    """A piece holds operators that are no algebra in the form they have there."""

    def __init__(self, message: str, targets: tuple[str, ...]) -> None:
        super().__init__(message)
        self.targets = targets


def others(subgraph: Subgraph, apart: int = 2) -> dict[Any, int]:
    """Return other sizes of all symbols, each by so much more than the one before."""
    return {symbol: size + 3 + apart * at for at, (symbol, size) in enumerate(subgraph.hints().items())}


def blank_of(region: Region) -> Decision:
    """Return a region that is left to Inductor, with no reason yet."""
    inputs = ", ".join(
        f"{port.dtype}{list(region.goal.shape(port))}".replace(" ", "") for port in region.goal.inputs
    )
    nodes = region.subgraph.piece.nodes
    flops, moved = sum(map(flops_of, nodes)), sum(map(bytes_of, nodes))
    floor = region.floor_us or None
    return Decision(listed(nodes), inputs, False, "", flops=flops, bytes=moved, floor_us=floor)


# -- decisions of earlier runs

_KEPT: Mapping[str, type | tuple[type, ...]] = {
    "taken": bool,
    "why": str,
    "before_us": (int, float, type(None)),
    "before_is_least": bool,
    "after_us": (int, float, type(None)),
    "verdict": str,
    "plan": (str, type(None)),
    "open": bool,
    "budget_s": (int, float),
}


def keep(found: Decision, region: Region, ledger: Ledger) -> None:
    """Note a decision for this model, and for later processes.

    What a budget of 0 leaves is kept only to be known for open: Inductor keeps graphs without it.
    """
    ledger.known[region.key.digest] = found
    options = ledger.options
    if not options.cache:
        return
    cache = Cache.open()
    before = cache.get(region.key)
    if options.budget_s == 0 and before is not None:
        return
    if found.taken and before is not None and before.data.get("open"):
        next_generation()  # graphs that Inductor keeps were made without it
    cache.put(region.key, _record(found))


def _record(found: Decision) -> Record:
    return Record({name: getattr(found, name) for name in _KEPT}, found.operators)


def _recalled(cache: Cache, region: Region, blank: Decision, options: BackendOptions) -> Decision | None:
    """Return an earlier decision, unless there is more time for it now; a plan is proven equal again."""
    record = cache.get(region.key)
    if record is None:
        return None
    data = record.data
    if any(not isinstance(data.get(name), kind) for name, kind in _KEPT.items()):
        return None
    found = replace(blank, recalled=True, **{name: data[name] for name in _KEPT})
    budget_s = options.budget_s
    more = found.budget_s == 0 if budget_s is None else budget_s > found.budget_s
    if found.open and (more or options.retry):
        return None
    if not found.taken:
        return found
    try:
        runner = runner_of(str(found.plan))
        if print_graph(runner.goal) != print_graph(region.goal):
            raise SuperoptError("it is for another region")
        runner.prove()
    except SuperoptError as error:
        log.warning("cache: a plan of %s is not used: %s", found.operators, line_of(error))
        return None
    return found


def line_of(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
