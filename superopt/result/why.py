"""Why: in one sentence about the program, why the chosen kernels are faster; or why nothing found is.

Reads are counted as the program says them: an operator of PyTorch reads each of its operands once, a kernel
reads a tensor once for each of its loops that does. Bytes are those of the tensors that cross kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.dtypes import DTYPES
from superopt.frontier.tensors.bound import graph_bound
from superopt.ir import Graph, tensorless_values, value_axes, value_names
from superopt.ir.compose import compose, contract_products
from superopt.ir.mugraph import Call, Kernel, MuGraph, walk
from superopt.result.result import Result
from superopt.rivals.rivals import PEERS

__all__ = [
    "agreement",
    "best_rival",
    "moved_bytes",
    "operators",
    "what_is_left",
    "why_faster",
    "why_not_faster",
]

_LAYOUT = ("rename", "select")
_FEWER = 0.9  # a program with less than this share of the arithmetic is said to do less
_MOSTLY = 0.5  # share of the bytes, from which one tensor is named as most of them
_NEAR_FLOOR = 1.25  # a program within this many times the least possible time leaves little to win
_APART = 1.1  # times that two times of one program differ before a reader is told why
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, slots=True)
class _Moved:
    """The bytes that the chosen kernels read and write, and the tensor that accounts for most of them."""

    bytes: int
    largest: str
    largest_bytes: int


def best_rival(result: Result) -> str:
    """Return the fastest of PyTorch's programs that raced, to be read."""
    times = {name: one.median_us for name, one in result.measurements.items() if name in PEERS}
    best = min(times, key=lambda name: times[name], default="PyTorch")
    return "eager PyTorch" if best == "eager" else best


def operators(goal: Graph) -> list[int]:
    """Return the values of a composed graph that an operator of PyTorch computes, each by itself."""
    closed = tensorless_values(goal)
    return [
        value
        for value, step in enumerate(goal.steps, len(goal.inputs))
        if not closed[value] and step.op not in _LAYOUT
    ]


def why_faster(result: Result) -> str:
    """Return what the chosen kernels do less of than the program as it was written; nothing if not known."""
    chosen = [(one, one.chosen) for one in result.regions if one.chosen is not None]
    if not chosen:
        return ""
    parts = [text for one, candidate in chosen if (text := _passes(one, candidate))][:1]
    before = sum(len(operators(_composed(one))) for one, _ in chosen)
    kernels = [kernel for _, candidate in chosen for kernel in candidate.mugraph.kernels]
    calls = sum(isinstance(kernel, Call) for kernel in kernels)
    if before > len(kernels):
        own = len(kernels) - calls
        after = _counted(own, "kernel") if own or not calls else ""
        after += (" and " if after else "") + _counted(calls, "library call") if calls else ""
        parts.append(f"{_counted(before, 'operator')} became {after}")
    done = sum(graph_bound(candidate.graph).flops for _, candidate in chosen)
    asked = sum(graph_bound(one.goal).flops for one, _ in chosen)
    if done < _FEWER * asked:
        parts.append(f"{asked / done:.1f} times less arithmetic" if done else "no arithmetic is left")
    if not parts:
        parts.append("the same work, in kernels made for these sizes")
    if len(chosen) == 1 and (moved := _moved(chosen[0][1].mugraph)) is not None:
        whole, share = _megabytes(moved.bytes, moved.largest_bytes)
        parts.append(f"{share} of the {whole} that it moves are {moved.largest}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


def why_not_faster(result: Result) -> list[str]:
    """Return, as sentences, what stands in the way of a faster program."""
    rivals = {name: one.median_us for name, one in result.measurements.items() if name in PEERS}
    if not rivals:
        return ["Nothing was measured."] if result.interrupted else []
    best = min(rivals, key=lambda name: rivals[name])
    said = []
    if result.unsettled:
        said.append(f"It is not decided: {result.unsettled}.")
    ours = result.measurements.get("superopt")
    if ours is not None:
        said.append(f"The best of ours takes {ours.median_us:.0f} µs, {best} {rivals[best]:.0f} µs.")
    else:
        faults = [
            one.fate.reason for region in result.regions for one in region.candidates if not one.fate.is_sound
        ]
        kept = any(region.candidates for region in result.regions)
        if not result.regions:
            said.append("No part of the program is in the algebra.")
        elif faults:
            said.append(f"None of our kernels passed: {faults[0]}.")
        elif not kept:
            said.append("No schedule fits this device.")
    said += _floor(result, best, rivals[best])
    if all(len(operators(_composed(one))) == 1 for one in result.regions) and result.regions:
        said.append("It is one operator already: there is nothing to fuse.")
    if result.program.opaque:
        names = ", ".join(dict.fromkeys(node.target for node in result.program.opaque))
        said.append(f"Not in the algebra, so PyTorch computes it: {names}.")
    return said


def agreement(result: Result) -> list[str]:
    """Return why the times that were printed do not agree, where they do not."""
    ours = result.measurements.get("superopt")
    rivals = [one.median_us for name, one in result.measurements.items() if name in PEERS]
    said = []
    if ours is not None and rivals and result.ratio is not None:
        together = min(rivals) / ours.median_us
        if max(together, result.ratio) > _APART * min(together, result.ratio):
            said.append(
                f"In the race of all, the ratio was {together:.2f}; the one above is of a second race, of"
                " the best two alone, which noise disturbs less."
            )
    kernels = [one.chosen.measurement for one in result.regions if one.chosen is not None]
    known = [one.median_us for one in kernels if one is not None]
    if ours is not None and known and len(known) == len(kernels) == len(result.program.nodes):
        alone = sum(known)
        if max(alone, ours.median_us) > _APART * min(alone, ours.median_us):
            said.append(
                f"In the race of the candidates it took {alone:,.0f} µs: there other programs did not empty"
                " the caches between its calls, or the machine was less busy."
            )
    return said


def what_is_left(result: Result) -> list[str]:
    """Return, as sentences, how far the chosen kernels are from the least possible time, and what they do."""
    ours = result.measurements.get("superopt")
    chosen = [one.chosen for one in result.regions if one.chosen is not None]
    if ours is None or not chosen:
        return []
    said = _floor(result, "superopt", ours.median_us)
    moved = [found for one in chosen if (found := moved_bytes(one.mugraph))]
    flops = sum(graph_bound(one.graph).flops for one in chosen)
    if moved:
        rate = sum(moved) / ours.median_us / 1e3
        said.append(
            f"Its kernels read and write {_size(sum(moved))} and do {_large(flops)} operations of arithmetic,"
            f" which is {rate:.1f} GB and {_large(flops / ours.median_us * 1e6)} operations in a second."
        )
    return said


def _floor(result: Result, name: str, us: float) -> list[str]:
    """Return how a program's time compares with the least that is possible, where that is known."""
    floor = result.floor_us
    if not floor:
        return []
    ratio = us / floor
    near = f"{name} takes {ratio:.1f} times that" if ratio >= 1 else f"{name} finds some of it in a cache"
    end = ", so there is little to win" if ratio < _NEAR_FLOOR else ""
    return [f"The program's bytes and arithmetic take {floor:.0f} µs at least; {near}{end}."]


def _composed(region: RegionCandidates) -> Graph:
    return contract_products(compose(region.goal))


def _passes(region: RegionCandidates, candidate: Candidate) -> str:
    """Return how often the input is read of which most reads are saved; nothing where none is."""
    goal, after = _composed(region), candidate.mugraph
    sizes = goal.sizes
    once = _reads_of_kernels(after)
    best, saved = "", 0
    for value, port in enumerate(goal.inputs):
        before, now = _reads_of_operators(goal, value), once.get(port.name, 0)
        if now and (less := (before - now) * prod(sizes[axis] for axis in port.axes)) > saved:
            best, saved = (
                f"{_counted(now, 'pass', 'passes')} over {port.name} instead of {_word(before)}",
                less,
            )
    return best


def _reads_of_operators(graph: Graph, value: int) -> int:
    """Return how many operators read a tensor where one after the other runs."""
    made = set(operators(graph))
    return sum(at in made and value in step.inputs for at, step in enumerate(graph.steps, len(graph.inputs)))


def _reads_of_kernels(mugraph: MuGraph) -> Mapping[str, int]:
    """Return how many times kernels read each input: once for each of their loops that does."""
    found: dict[str, int] = {}
    for kernel in mugraph.kernels:
        for value, name in _loaded(mugraph, kernel).items():
            found[name] = found.get(name, 0) + _walks(mugraph, kernel, value)
    return found


def _loaded(mugraph: MuGraph, kernel: Kernel) -> dict[int, str]:
    names = value_names(mugraph.graph)
    return {value: names[value] for value in mugraph.loads(kernel) if value < len(mugraph.graph.inputs)}


def _walks(mugraph: MuGraph, kernel: Kernel, value: int) -> int:
    places = set()
    for tile, loops in walk(kernel):
        step = mugraph.graph.step_of(tile.value)
        if step is not None and value in step.inputs:
            places.add(tuple(id(loop) for loop in loops))
    return len(places)


def moved_bytes(mugraph: MuGraph) -> int:
    """Return how many bytes kernels read and write, each tensor once in each kernel."""
    return sum(size for _, size in _traffic(mugraph))


def _traffic(mugraph: MuGraph) -> list[tuple[int, int]]:
    """Return each value that a kernel reads or writes, with its bytes."""
    graph = mugraph.graph
    axes, sizes = value_axes(graph), graph.sizes
    dtypes = {value: port.dtype for value, port in enumerate(graph.inputs)}
    dtypes |= dict(mugraph.rounded) | {output.value: output.port.dtype for output in graph.outputs}
    found = []
    for kernel in mugraph.kernels:
        for value in (*mugraph.loads(kernel), *mugraph.stores(kernel)):
            elements = prod(sizes[axis] for axis in axes[value])
            found.append((value, elements * DTYPES[dtypes.get(value, "f32")].bytes))
    return found


def _moved(mugraph: MuGraph) -> _Moved | None:
    """Return the bytes that the kernels move, where one input of the program accounts for most of them."""
    traffic, inputs = _traffic(mugraph), mugraph.graph.inputs
    total = sum(size for _, size in traffic)
    of_each = {at: sum(size for value, size in traffic if value == at) for at in range(len(inputs))}
    if not total or not of_each:
        return None
    largest = max(of_each, key=lambda at: of_each[at])
    if of_each[largest] <= _MOSTLY * total:
        return None
    return _Moved(total, inputs[largest].name, of_each[largest])


def _size(count: int) -> str:
    return _megabytes(count, 0)[0]


def _large(count: float) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def _megabytes(whole: int, share: int) -> tuple[str, str]:
    """Return two sizes in one unit, the first with its name."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if whole >= size:
            return f"{whole / size:.1f} {unit}", f"{share / size:.1f}"
    return f"{whole} bytes", f"{share}"


def _word(count: int) -> str:
    return _COUNTS[count] if count < len(_COUNTS) else str(count)


def _counted(count: int, noun: str, plural: str = "") -> str:
    number = _word(count) if noun == "pass" else str(count)
    return f"{number} {noun if count == 1 else plural or noun + 's'}"
