"""A finished search as blocks for a reader, and as JSON for a machine."""

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


def search_blocks(search: "Search", *, show: int | None = None) -> list[Block]:
    """Return what a reader wants to know, the first `show` graphs of each region in full."""
    several = len(search.regions) > 1
    shown = (1 if several else 3) if show is None else show
    blocks: list[Block] = [Text(_headline(search), "bold")]
    for number, region in enumerate(search.regions, 1):
        place = f"region {number} of {len(search.regions)}, " if several else ""
        blocks += [Text(), *_region_blocks(region, place, shown)]
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


def _region_blocks(region: "RegionSearch", place: str, shown: int) -> list[Block]:
    goal = region.goal
    reads = ", ".join(f"{port.name} {port.dtype}{list(goal.shape(port))}" for port in goal.inputs)
    blocks: list[Block] = [Text(f"{place}{goal.name}: {reads or 'no inputs'}", "bold cyan")]
    if region.found:
        rows = tuple(_found_row(rank, found) for rank, found in enumerate(region.found, 1))
        blocks.append(Table(("rank", "bound µs", "steps", "passes", "split", "equal"), rows))
    for rank, found in enumerate(region.found[:shown], 1):
        blocks += [Text(), Text(_found_title(rank, found), "bold"), Code(annotated(found.graph))]
    if len(region.found) > shown > 0:
        blocks += [
            Text(),
            Text(f"{len(region.found) - shown} more graphs: --show {len(region.found)}", "dim"),
        ]
    return [*blocks, Text(), *_statistics_blocks(region)]


def _found_row(rank: int, found: "Found") -> tuple[str, ...]:
    return (
        str(rank),
        f"{found.bound.us:.2f}",
        str(len(found.graph.steps)),
        _passes(found.bound),
        ", ".join(found.split_axes) or "-",
        "original" if found.is_original else "yes" if found.verdict.equal else "no",
    )


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


def _statistics_blocks(region: "RegionSearch") -> list[Block]:
    statistics = region.statistics
    blocks: list[Block] = [
        Text(
            f"e-graph {_count(statistics.e_nodes, 'node')} in {_count(statistics.rounds, 'round')};"
            f" {_count(statistics.tensors, 'tensor')}, {_count(statistics.derivations, 'derivation')},"
            f" {_count(statistics.graphs, 'different graph')}"
        )
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
    blocks += [Text(f"truncated by: {why}", "yellow") for why in region.truncated]
    blocks += [Text(f"note: {note}", "yellow") for note in region.notes]
    return blocks


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
