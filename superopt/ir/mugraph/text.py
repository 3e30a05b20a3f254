"""The text form of a muGraph, read back; `print_mugraph` writes it."""

import re

from superopt.errors import GraphError
from superopt.ir.graph import Graph
from superopt.ir.mugraph.check import check_mugraph
from superopt.ir.mugraph.kernels import Block, Call, Kernel, Loop, MuGraph, Split, Tile, sign_of
from superopt.ir.text import parse_graph

__all__ = ["parse_mugraph"]

_LINE = re.compile(r"(?P<again>again )?(?P<name>[\w.]+) (?P<sign>\+=|max=|=) (?P<step>\w+(?:\[.*)?\(.*\))")
_KERNEL = re.compile(r"kernel (?:grid\[(?P<grid>[^\]]*)\]|call)")
_LOOP = re.compile(r"loop\[(?P<axis>[^\]]*)\](?: running (?P<running>[\w., ]+))?")
_SPLIT = re.compile(r"split (\S+) into (\S+) (\S+)")
_ROUND = re.compile(r"round (\S+) to (\S+)")


def parse_mugraph(text: str) -> MuGraph:
    """Return the muGraph that a text describes, checked; the numbers in their names order the steps."""
    head: list[str] = []
    tail: list[str] = []
    steps: dict[str, str] = {}
    splits: list[Split] = []
    rounded: list[tuple[str, str]] = []
    lines: list[tuple[int, int, str]] = []  # number, depth, content: kernels and what is in them
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        content = line.strip()
        depth, odd = divmod(len(line) - len(content), 2)
        match = _LINE.fullmatch(content)
        if content.startswith(("graph ", "axes", "in ")) and not match:
            head.append(content)
        elif split := _SPLIT.fullmatch(content):
            splits.append(Split(split[1], split[2], split[3]))
        elif rounding := _ROUND.fullmatch(content):
            rounded.append((rounding[1], rounding[2]))
        elif content.startswith("out ") and depth == 0:
            tail.append(content)
        elif content:
            if odd:
                raise GraphError(f"line {number}: indent by two spaces for each level")
            if match:
                known = steps.setdefault(match["name"], match["step"])
                if known != match["step"]:
                    raise GraphError(f"line {number}: {match['name']} was {known} before")
            lines.append((number, depth, content))
    names = sorted(steps, key=lambda name: int(re.sub(r"\D", "", name) or 0))
    graph = parse_graph("\n".join([*head, *(f"{name} = {steps[name]}" for name in names), *tail]))
    places = {name: len(graph.inputs) + i for i, name in enumerate(names)}
    kernels: list[Kernel] = []
    while lines:
        number, depth, content = lines.pop(0)
        match = _KERNEL.fullmatch(content)
        if match is None or depth:
            raise GraphError(f"line {number}: {content!r} is not 'kernel grid[axes]' or 'kernel call'")
        body = _parse_body(lines, 1, (), places, graph)
        if match["grid"] is not None:
            grid = tuple(axis.strip() for axis in match["grid"].split(",") if axis.strip())
            kernels.append(Block(grid, body))
        else:
            tiles = tuple(item for item in body if isinstance(item, Tile))
            if len(tiles) < len(body):
                raise GraphError(f"line {number}: a call of a library has no loops that we know of")
            kernels.append(Call(tiles))
    if unknown := [name for name, _ in rounded if name not in places]:
        raise GraphError(f"{unknown[0]} is rounded, but nothing computes it")
    between = tuple((places[name], dtype) for name, dtype in rounded)
    return check_mugraph(MuGraph(graph, tuple(kernels), tuple(splits), between))


def _parse_body(
    lines: list[tuple[int, int, str]],
    depth: int,
    around: tuple[str, ...],
    places: dict[str, int],
    graph: Graph,
) -> tuple[Tile | Loop, ...]:
    """Take the lines of one level, and of all levels inside it, off the front of the list."""
    body: list[Tile | Loop] = []
    while lines and lines[0][1] >= depth:
        number, found, content = lines.pop(0)
        loop, line = _LOOP.fullmatch(content), _LINE.fullmatch(content)
        if found > depth or (loop is None and line is None):
            raise GraphError(
                f"line {number}: {content!r} is neither 'loop[axis]' nor 'name = op(...)' at depth {depth}"
            )
        if loop is not None:
            axis = loop["axis"].strip()
            names = [name.strip() for name in (loop["running"] or "").split(",") if name.strip()]
            unknown = next((name for name in names if name not in places), None)
            if unknown is not None:
                raise GraphError(f"line {number}: {unknown} runs, but nothing computes it")
            inner = _parse_body(lines, depth + 1, (*around, axis), places, graph)
            body.append(Loop(axis, inner, tuple(places[name] for name in names)))
        elif line is not None:
            value = places[line["name"]]
            step = graph.step_at(value)
            sign = sign_of(step, around)
            if line["sign"] != sign:
                raise GraphError(f"line {number}: write {line['name']} {sign} {line['step']} here")
            body.append(Tile(value, line["again"] is not None))
    return tuple(body)
