"""A finished search as blocks for a reader, and as JSON for a machine."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superopt._version import __version__
from superopt.cli.screen import Block, Code, Table, Text
from superopt.ir import Graph, print_graph, value_axes

if TYPE_CHECKING:
    from superopt.driver import Found, RegionSearch, Search
    from superopt.frontier.engine.interface import LevelStats
    from superopt.frontier.tensors.bound import Bound

__all__ = ["annotated", "search_blocks", "search_json"]


def annotated(graph: Graph) -> str:
    """Return the text of a graph with the axes of each step's value behind it; it parses back."""
    lines = print_graph(graph).splitlines()
    order = [axis.name for axis in graph.axes]
    first = 2 + len(graph.inputs)
    values = value_axes(graph)[len(graph.inputs) :]
    width = max((len(line) for line in lines[first : first + len(graph.steps)]), default=0)
    for i, axes in enumerate(values, first):
        lines[i] = f"{lines[i]:<{width}}  # [{', '.join(axis for axis in order if axis in axes)}]"
    return "\n".join(lines) + "\n"


def search_blocks(search: "Search", *, show: int = 1, verbose: bool = False) -> list[Block]:
    """Return what a reader wants to know, the first `show` graphs of each region in full.

    With `verbose`, how the search went, too.
    """
    several = len(search.regions) > 1
    blocks: list[Block] = [Text(_headline(search), "bold")]
    for number, region in enumerate(search.regions, 1):
        place = f"region {number} of {len(search.regions)}, " if several else ""
        blocks += [Text(), *_region_blocks(region, place, show, verbose=verbose)]
    if search.program.opaque:
        blocks.append(Text())
    blocks += [
        Text(f"not optimized: {node.name} ({node.target}): {node.reason}", "yellow")
        for node in search.program.opaque
    ]
    blocks += [Text(), Text(_ending(search), "bold")]
    return blocks


def search_json(search: "Search") -> dict[str, Any]:
    """Return everything a search found as plain data."""
    return {
        "schema": "superopt.search/1",
        "version": __version__,
        "name": search.name,
        "seconds": search.seconds,
        "complete": search.complete,
        "truncated": list(search.truncated),
        "interrupted": search.interrupted,
        "opaque": [asdict(node) for node in search.program.opaque],
        "regions": [_region_json(region) for region in search.regions],
    }


def _headline(search: "Search") -> str:
    graphs = sum(len(region.found) for region in search.regions)
    regions = f" in {len(search.regions)} regions" if len(search.regions) > 1 else ""
    return f"{search.name}: {_count(graphs, 'graph')}{regions}, {search.seconds:.2f} s"


def _ending(search: "Search") -> str:
    if search.interrupted:
        return "interrupted: the above is the best so far"
    if not search.program.nodes:
        return "nothing to search: the program computes no tensor"
    if not search.regions:
        return "nothing to search: no part of the program is in the algebra"
    if search.complete:
        return "complete: no limit stopped anything"
    return f"truncated: {'; '.join(search.truncated)}"


def _region_blocks(region: "RegionSearch", place: str, shown: int, *, verbose: bool) -> list[Block]:
    goal = region.goal
    reads = ", ".join(f"{port.name} {port.dtype}{list(goal.shape(port))}" for port in goal.inputs)
    blocks: list[Block] = [Text(f"{place}{goal.name}: {reads or 'no inputs'}", "bold cyan")]
    if region.found:
        rows = _found_rows(region.found, folded=not verbose)
        blocks.append(Table(("rank", "bound µs", "steps", "passes", "split", "equal"), rows))
    for rank, found in enumerate(region.found[:shown], 1):
        blocks += [Text(), Text(_found_title(rank, found), "bold"), Code(annotated(found.graph))]
    if len(region.found) > shown > 0:
        blocks += [
            Text(),
            Text(f"{_count(len(region.found) - shown, 'more graph')}: --show {len(region.found)}", "dim"),
        ]
    return [*blocks, *_statistics_blocks(region, verbose=verbose)]


def _found_rows(found: Sequence["Found"], *, folded: bool) -> tuple[tuple[str, ...], ...]:
    """Return a row for each graph; where `folded`, graphs that differ in their steps at most share one."""
    if not folded:
        return tuple(
            (str(rank), f"{one.bound.us:.2f}", str(len(one.graph.steps)), *_kind(one))
            for rank, one in enumerate(found, 1)
        )
    alike: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for rank, one in enumerate(found, 1):
        alike.setdefault((f"{one.bound.us:.1f}", *_kind(one)), []).append((rank, len(one.graph.steps)))
    rows = []
    for (bound, *kind), some in alike.items():
        ranks, steps = zip(*some, strict=True)
        rows.append((_ranks(ranks), bound, _from_to(min(steps), max(steps)), *kind))
    return tuple(rows)


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in order as `1 to 3, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(_from_to(run[0], run[-1]) for run in runs)


def _kind(found: "Found") -> tuple[str, str, str]:
    """Return what tells graphs of one bound apart: passes, split axes, and whether it is the goal."""
    equal = "original" if found.is_original else "yes" if found.verdict.equal else "no"
    return _passes(found.bound), ", ".join(found.split_axes) or "-", equal


def _from_to(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _found_title(rank: int, found: "Found") -> str:
    parts = [f"#{rank}  bound {found.bound.us:.2f} µs"]
    if found.bound.passes:
        parts.append(f"passes {_passes(found.bound)}")
    if found.split_axes:
        parts.append(f"split {', '.join(found.split_axes)}")
    parts.append("the original" if found.is_original else str(found.verdict).partition("\n")[0])
    return ", ".join(parts)


def _passes(bound: "Bound") -> str:
    return ", ".join(f"{axis} x{count}" for axis, count in bound.passes) or "one"


def _statistics_blocks(region: "RegionSearch", *, verbose: bool) -> list[Block]:
    said = [Text(f"truncated by: {why}", "yellow") for why in region.truncated]
    said += [Text(f"note: {note}", "yellow") for note in region.notes]
    if not verbose:
        return [Text(), *said] if said else []
    statistics = region.statistics
    blocks: list[Block] = [
        Text(),
        Text(
            f"e-graph {_count(statistics.e_nodes, 'node')} in {_count(statistics.rounds, 'round')};"
            f" {_count(statistics.tensors, 'tensor')}, {_count(statistics.derivations, 'derivation')},"
            f" {_count(statistics.graphs, 'different graph')}"
        ),
    ]
    if statistics.levels:
        blocks.append(
            Table(
                ("level", "frontier", "candidates", "new", "duplicates", "ms"),
                tuple(_level_row(level) for level in statistics.levels),
            )
        )
    if any(statistics.pruned.values()):
        reasons = sorted(statistics.pruned.items(), key=lambda item: (-item[1], item[0]))
        blocks.append(
            Text("pruned: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons if count))
        )
    if statistics.phase_ms:
        blocks.append(
            Text(
                "time: " + ", ".join(f"{phase} {took:.1f} ms" for phase, took in statistics.phase_ms.items())
            )
        )
    return [*blocks, *said]


def _level_row(level: "LevelStats") -> tuple[str, ...]:
    return (
        str(level.level),
        f"{level.frontier:,}",
        f"{level.candidates:,}",
        f"{level.new:,}",
        f"{level.duplicates:,}",
        f"{level.seconds * 1e3:.1f}",
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _region_json(region: "RegionSearch") -> dict[str, Any]:
    statistics = region.statistics
    return {
        "name": region.goal.name,
        "goal": print_graph(region.goal),
        "complete": not region.truncated,
        "truncated": list(region.truncated),
        "notes": list(region.notes),
        "found": [_found_json(found) for found in region.found],
        "statistics": {
            "e_nodes": statistics.e_nodes,
            "e_classes": statistics.e_classes,
            "rounds": statistics.rounds,
            "tensors": statistics.tensors,
            "derivations": statistics.derivations,
            "graphs": statistics.graphs,
            "pruned": dict(statistics.pruned),
            "phase_ms": dict(statistics.phase_ms),
            "levels": [{**asdict(level), "duplicates": level.duplicates} for level in statistics.levels],
        },
    }


def _found_json(found: "Found") -> dict[str, Any]:
    return {
        "graph": print_graph(found.graph),
        "bound": {**asdict(found.bound), "passes": dict(found.bound.passes)},
        "split_axes": list(found.split_axes),
        "is_original": found.is_original,
        "verdict": None if found.verdict is None else found.verdict.to_json(),
    }
