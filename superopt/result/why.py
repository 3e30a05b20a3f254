"""Why: in one sentence about the program, why the chosen kernels are faster; or why nothing found is.

An operator that PyTorch runs reads each of its operands once, and a kernel reads a tensor once for each of
its loops that does. Bytes are those of the tensors that operators or kernels read and write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.dtypes import DTYPES
from superopt.frontier.tensors.bound import graph_bound
from superopt.ir import Eager, Graph, tensorless_values, value_axes, value_names
from superopt.ir.compose import compose, contract_products
from superopt.ir.mugraph import Call, Kernel, MuGraph, walk
from superopt.result.result import Result
from superopt.rivals.rivals import PEERS

__all__ = [
    "agreement",
    "best_rival",
    "headline",
    "how_fast",
    "moved_bytes",
    "what_is_left",
    "why_faster",
    "why_not_faster",
]

_FEWER = 0.9  # a program with less than this share of the arithmetic is said to do less
_MOSTLY = 0.6  # share of the bytes, above which inputs are named as most of them
_SPREAD = 2.0  # highest over lowest ratio, above which a single ratio says little
_NEARLY_ALL = 0.9  # the same, where more inputs are named rather than fewer
_NAMED = 3  # inputs that are named so
_CALL_US = 4.0  # what calling a program takes at most, besides its kernels
_LONG_US = 10_000.0  # from which on times are said in ms
_NEAR_FLOOR = 1.25  # a program within this many times the least possible time leaves little to win
_APART = 1.1  # times that two times of one program differ before a reader is told why
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, slots=True)
class _Most:
    """The inputs that account for most of the bytes that kernels read and write."""

    bytes: int
    names: str


def best_rival(result: Result) -> str:
    """Return the fastest of PyTorch's programs that raced, to be read."""
    times = {name: one.median_us for name, one in result.measurements.items() if name in PEERS}
    best = min(times, key=lambda name: times[name], default="PyTorch")
    return "eager PyTorch" if best == "eager" else best


def how_fast(result: Result) -> tuple[str, str]:
    """Return how many times as fast the kernels surely are, and in which interval that lies."""
    if result.interval is None:
        return f"{result.speedup:.2f} times", ""
    low, high = result.interval
    if high <= _SPREAD * low:
        return f"{result.speedup:.2f} times", f" ({low:.2f} to {high:.2f})"
    return f"at least {low:.2f} times", f" (up to {high:.2f}: the machine was busy)"


def headline(result: Result) -> str:
    """Return in one line what came of it."""
    name = result.name
    if result.winner is None:
        took = (
            f"{result.predicted_us:.1f} µs predicted" if result.predicted_us is not None else "no prediction"
        )
        return f"{name}: a plan for {result.target.name}, {took}; nothing was measured"
    if result.winner != "superopt":
        eager = "PyTorch's stand-in for the original" if result.stood_in else "PyTorch's program"
        kept = eager if result.winner == "eager" else result.winner
        return f"{name}: {kept} stays; nothing that was found is surely faster"
    against = "a stand-in for the original" if result.stood_in else best_rival(result)
    times, between = how_fast(result)
    return f"{name}: {times} as fast as {against}{between}"


def why_faster(result: Result) -> str:
    """Return what the chosen kernels do less of than PyTorch's operators; nothing if not known."""
    chosen = [(one, one.chosen) for one in result.regions if one.chosen is not None]
    if not chosen:
        return ""
    programs = [candidate.mugraph for _, candidate in chosen]
    whole = len(chosen) == len(result.program.nodes)  # PyTorch computes nothing of it any more
    eager = result.eager if whole else None
    parts = [found] if eager is not None and (found := _passes(result, eager, programs)) else []
    parts += _fewer_kernels(eager, [one.goal for one, _ in chosen], programs)
    done = sum(graph_bound(candidate.graph).flops for _, candidate in chosen)
    asked = sum(graph_bound(one.goal).flops for one, _ in chosen)
    if done < _FEWER * asked:
        parts.append(f"{asked / done:.1f} times less arithmetic" if done else "no arithmetic is left")
    moved = sum(map(moved_bytes, programs))
    saves = eager is not None and moved < _FEWER * eager.bytes
    if eager is not None and saves:
        before, now = _megabytes(eager.bytes, moved)
        parts.append(f"it moves {now} instead of {before}")
    if not parts:
        parts.append("the same work, in kernels made for these sizes")
    if not saves and len(chosen) == 1 and (most := _most_of(programs[0])) is not None:
        all_of_it, share = _megabytes(moved, most.bytes)
        some = "nearly all" if all_of_it.startswith(f"{share} ") else share
        parts.append(f"{some} of the {all_of_it} that it moves are {most.names}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _fewer_kernels(eager: Eager | None, goals: Sequence[Graph], programs: Sequence[MuGraph]) -> list[str]:
    """Return into how many kernels the operators of PyTorch went, or the steps where these are not known."""
    count = sum(map(_steps, goals)) if eager is None else eager.operators
    kernels = [kernel for mugraph in programs for kernel in mugraph.kernels]
    if count <= len(kernels):
        return []
    calls = sum(isinstance(kernel, Call) for kernel in kernels)
    own = len(kernels) - calls
    after = _counted(own, "kernel") if own or not calls else ""
    after += (" and " if after else "") + _counted(calls, "library call") if calls else ""
    return [f"{_counted(count, 'operator' if eager is not None else 'step')} became {after}"]


def _steps(goal: Graph) -> int:
    """Return how many steps of the algebra a graph has, with those that people write as one."""
    composed = contract_products(compose(goal))
    closed = tensorless_values(composed)
    views = ("rename", "select", "window")
    return sum(not closed[value] and step.op not in views for value, step in composed.numbered)


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
        said.append(f"The best of ours takes {_time(ours.median_us)}, {best} {_time(rivals[best])}.")
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
    if result.eager is not None and result.eager.operators == 1:
        said.append("It is one operator of PyTorch already.")
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
                f"The race of all programs gave {together:.2f}; the ratio above is of a second race, of the"
                " best two alone, which noise disturbs less."
            )
    kernels = [one.chosen.measurement for one in result.regions if one.chosen is not None]
    known = [one.median_us for one in kernels if one is not None]
    if ours is not None and known and len(known) == len(kernels) == len(result.program.nodes):
        alone = sum(known)
        if max(alone, ours.median_us) > _APART * min(alone, ours.median_us):
            if alone > ours.median_us:
                why = ": the machine was busier then"
            elif ours.median_us - alone < _CALL_US:
                why = ", without what calling the whole program takes"
            else:
                why = ": other programs did not empty the caches there, or the machine was less busy"
            said.append(f"Raced among the candidates it took {_time(alone)}{why}.")
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
        return [f"Error: {result.doubt}."] if result.doubt else []
    ratio = us / floor
    times = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
    near = f"{name} takes {times} times that" if ratio >= 1 else f"{name} finds some of it in a cache"
    end = ", so there is little to win" if ratio < _NEAR_FLOOR else ""
    return [f"The program's bytes and arithmetic take {_time(floor)} at least; {near}{end}."]


def _passes(result: Result, eager: Eager, programs: Sequence[MuGraph]) -> str:
    """Return how often the input is read of which most reads are saved; nothing where none is."""
    once = _reads_of_kernels(programs)
    elements = {port.name: prod(one.goal.shape(port)) for one in result.regions for port in one.goal.inputs}
    best, saved = "", 0
    for name, before in eager.reads.items():
        now = once.get(name, 0)
        if now and (less := (before - now) * elements.get(name, 0)) > saved:
            best, saved = f"{_counted(now, 'pass', 'passes')} over {name} instead of {_word(before)}", less
    return best


def _reads_of_kernels(programs: Sequence[MuGraph]) -> Mapping[str, int]:
    """Return how many times kernels read each input: once for each of their loops that does."""
    found: dict[str, int] = {}
    for mugraph in programs:
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


def _most_of(mugraph: MuGraph) -> _Most | None:
    """Return the fewest inputs that account for most of the bytes that kernels move; None where many do."""
    traffic, inputs = _traffic(mugraph), mugraph.graph.inputs
    total = sum(size for _, size in traffic)
    of_each = {at: sum(size for value, size in traffic if value == at) for at in range(len(inputs))}
    largest = sorted(of_each, key=lambda at: -of_each[at])
    for share in (_NEARLY_ALL, _MOSTLY):
        for count in range(1, _NAMED + 1):
            some = sorted(largest[:count])
            if (moved := sum(of_each[at] for at in some)) > share * total:
                names = [inputs[at].name for at in some]
                return _Most(moved, " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))))
    return None


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


def _time(us: float) -> str:
    value, unit = (us / 1e3, "ms") if us >= _LONG_US else (us, "µs")
    if value < 1:
        return f"{value:.1g} {unit}"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def _word(count: int) -> str:
    return _COUNTS[count] if count < len(_COUNTS) else str(count)


def _counted(count: int, noun: str, plural: str = "") -> str:
    number = _word(count) if noun == "pass" else str(count)
    return f"{number} {noun if count == 1 else plural or noun + 's'}"
