"""MuGraph: how a Graph runs, as kernels; the rules one must keep; and its text form.

A kernel is a block graph or a call of a library. A block graph has a grid, one program for each tile
of the grid axes, and a body: steps on tiles, and loops that walk along one axis tile by tile. An axis
that is neither on the grid nor looped over is whole inside a tile. How long a tile is stays open.

    graph rmsnorm_linear
    axes m=16 k=4096 n=6144
    in x: f16[m, k]
    ...
    kernel grid[m, n]
      loop[k]
        t3 = mul(x, g)
        t4 += contract[k](t3, w)
        t5 += contract[k](x, x)
      t6 = size[k]()
      ...
    out out: f16[m, n] = t11

A reduction over the axis of a loop around it accumulates (`+=`, `max=`) and is known after that loop.
`again` states that a value is computed once more instead of being kept or loaded. What a kernel loads
and stores follows from what crosses kernels; what reads no tensor is computed wherever it is used.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.cut import closed_values
from superopt.ir.graph import Graph, Step, value_axes
from superopt.ir.text import parse_graph, print_graph, print_step, value_names

__all__ = [
    "Block",
    "Call",
    "Kernel",
    "Loop",
    "MuGraph",
    "Tile",
    "check_mugraph",
    "parse_mugraph",
    "print_mugraph",
]


@dataclass(frozen=True, slots=True)
class Tile:
    """One step of the graph, carried out on a tile."""

    value: int
    again: bool = False  # computed before; once more is cheaper than keeping it


@dataclass(frozen=True, slots=True)
class Loop:
    """A walk along one axis, tile by tile."""

    axis: str
    body: tuple["Tile | Loop", ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A kernel of our own: a program for each tile of the grid axes."""

    grid: tuple[str, ...]
    body: tuple[Tile | Loop, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel of a library, and the values it computes."""

    body: tuple[Tile, ...]


Kernel = Block | Call


@dataclass(frozen=True, slots=True)
class MuGraph:
    """A graph and the kernels that compute it, in the order in which they run."""

    graph: Graph
    kernels: tuple[Kernel, ...]

    def __str__(self) -> str:
        return print_mugraph(self)

    def loads(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the values that a kernel reads from memory."""
        closed = closed_values(self.graph)
        made = {tile.value for tile, _ in walk(kernel)}
        read = {i for value in made if (step := self.graph.step_of(value)) for i in step.inputs}
        return tuple(sorted(i for i in read - made if not closed[i]))

    def stores(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the values that a kernel writes to memory.

        What reads no tensor is computed wherever it is used; the kernel that ends with it stores it.
        """
        tiles = [tile for tile, _ in walk(kernel)]
        closed = closed_values(self.graph)
        last = tiles[-1].value if tiles else -1
        made = {
            tile.value for tile in tiles if not tile.again and (not closed[tile.value] or tile.value == last)
        }
        wanted = {output.value for output in self.graph.outputs}
        for other in self.kernels:
            if other is not kernel:
                wanted.update(self.loads(other))
        return tuple(sorted(made & wanted))


def walk(kernel: Kernel) -> Iterator[tuple[Tile, tuple[Loop, ...]]]:
    """Yield the tiles of a kernel in order, each with the loops around it, outermost first."""
    pending: list[tuple[Tile | Loop, tuple[Loop, ...]]] = [(item, ()) for item in reversed(kernel.body)]
    while pending:
        item, loops = pending.pop()
        if isinstance(item, Tile):
            yield item, loops
        else:
            pending += [(inner, (*loops, item)) for inner in reversed(item.body)]


def known_inside(step: Step, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops inside which the value of a step is known: not those over which it accumulates."""
    if step.op not in ("sum", "max", "contract"):
        return loops
    return loops[: next((at for at, loop in enumerate(loops) if loop.axis in step.axes), len(loops))]


# -- the rules


def check_mugraph(mugraph: MuGraph) -> MuGraph:
    """Return the muGraph unchanged, or raise GraphError naming the first rule it breaks."""
    check_graph(mugraph.graph)
    checker = _Checker(mugraph)
    for number, kernel in enumerate(mugraph.kernels):
        checker.check_kernel(number, kernel)
    checker.where = ""
    first = len(mugraph.graph.inputs)
    for value in range(first, first + len(mugraph.graph.steps)):
        checker.require(value in checker.done, f"no kernel computes {checker.names[value]}")
    return mugraph


class _Checker:
    """The rules of one muGraph, and what its kernels have computed so far."""

    def __init__(self, mugraph: MuGraph) -> None:
        self.mugraph = mugraph
        self.graph = mugraph.graph
        self.names = value_names(self.graph)
        self.axes = value_axes(self.graph)
        self.closed = closed_values(self.graph)
        self.done: set[int] = set()
        self.where = ""

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise GraphError(f"muGraph {self.graph.name!r}: {self.where}{message}")

    def check_kernel(self, number: int, kernel: Kernel) -> None:
        self.where = f"kernel {number}: "
        if isinstance(kernel, Block):
            self._check_axes(kernel)
        before = frozenset(self.done)
        seen: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is known
        made: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is computed
        kept: dict[int, tuple[Loop, ...]] = {}  # as `seen`, for what is not computed again
        for tile, loops in walk(kernel):
            step = self.graph.step_of(tile.value) if 0 <= tile.value < len(self.names) else None
            self.require(step is not None, f"it computes value {tile.value}, which is no step of the graph")
            assert step is not None
            self._check_once(tile)
            for i in step.inputs:
                self._check_operand(tile.value, i, loops, before, seen, made)
            if isinstance(kernel, Block):
                self._check_step(tile.value, step, kernel, loops, made)
            made[tile.value] = loops
            seen[tile.value] = known_inside(step, loops)
            if not tile.again:
                kept.setdefault(tile.value, seen[tile.value])
            self.done.add(tile.value)
        if isinstance(kernel, Block):
            for value in self.mugraph.stores(kernel):
                self._check_store(value, kernel, kept[value])

    def _check_axes(self, block: Block) -> None:
        known = self.graph.sizes
        for axis in block.grid:
            self.require(axis in known, f"the grid has the undeclared axis {axis!r}")
            self.require(block.grid.count(axis) == 1, f"the grid has axis {axis!r} twice")
        pending: list[tuple[Tile | Loop, tuple[str, ...]]] = [(item, ()) for item in block.body]
        while pending:
            item, around = pending.pop()
            if isinstance(item, Loop):
                self.require(item.axis in known, f"a loop walks along the undeclared axis {item.axis!r}")
                self.require(
                    item.axis not in block.grid, f"axis {item.axis!r} is looped over and on the grid"
                )
                self.require(item.axis not in around, f"a loop over {item.axis!r} stands inside another one")
                self.require(bool(item.body), f"the loop over {item.axis!r} does nothing")
                pending += [(inner, (*around, item.axis)) for inner in item.body]

    def _check_once(self, tile: Tile) -> None:
        name = self.names[tile.value]
        if self.closed[tile.value]:
            return
        if tile.again:
            self.require(tile.value in self.done, f"{name} is computed 'again', but never was before")
        else:
            self.require(
                tile.value not in self.done,
                f"{name} is computed a second time; if that is meant, say 'again'",
            )

    def _check_operand(
        self,
        value: int,
        operand: int,
        loops: tuple[Loop, ...],
        before: frozenset[int],
        seen: dict[int, tuple[Loop, ...]],
        made: dict[int, tuple[Loop, ...]],
    ) -> None:
        name, reader = self.names[operand], self.names[value]
        if operand in seen:
            known, around = len(seen[operand]), made[operand]
            self.require(
                known == len(around) or not _starts_with(loops, around[: known + 1]),
                f"{reader} reads {name} inside the loop that is still adding it up; it needs a second loop",
            )
            self.require(
                _starts_with(loops, seen[operand]),
                f"{reader} reads {name}, a tile of a loop that has ended; compute it 'again' where used",
            )
        elif operand >= len(self.graph.inputs):
            self.require(
                operand in before and not self.closed[operand],
                f"{reader} reads {name}, which neither this kernel nor an earlier one has computed yet",
            )

    def _check_step(
        self, value: int, step: Step, block: Block, loops: tuple[Loop, ...], made: dict[int, tuple[Loop, ...]]
    ) -> None:
        name = self.names[value]
        if step.op in ("sum", "max", "contract"):
            for axis in step.axes:
                self.require(
                    axis not in block.grid,
                    f"{name} reduces {axis!r}, which is on the grid; split the axis and combine its"
                    " parts in a later kernel",
                )
            inner = [loop.axis for loop in loops[len(known_inside(step, loops)) :]]
            for axis in inner:
                self.require(
                    axis not in self.axes[value],
                    f"{name} adds up over {inner[0]!r}, with another part for each turn of the inner loop"
                    f" over {axis!r}; exchange the two loops",
                )
        if step.op in ("rename", "select") and step.inputs[0] in made:
            apart = {*block.grid, *(loop.axis for loop in loops)}
            for place in (place for pair in step.mapping for place in pair):
                self.require(
                    place not in apart,
                    f"{name} reads other places of {self.names[step.inputs[0]]} along {place!r}, which other"
                    " programs or turns compute; store it in an earlier kernel",
                )

    def _check_store(self, value: int, block: Block, loops: tuple[Loop, ...]) -> None:
        name = self.names[value]
        for axis in block.grid:
            self.require(
                axis in self.axes[value],
                f"it stores {name}, which has no axis {axis!r}: all programs along that grid axis would write"
                " the same place",
            )
        for loop in loops:
            self.require(
                loop.axis in self.axes[value],
                f"it stores {name} in every turn of the loop over {loop.axis!r}; compute it outside",
            )


def _starts_with(loops: tuple[Loop, ...], start: tuple[Loop, ...]) -> bool:
    """Return whether the first of these loops are those: the same ones, not equal ones."""
    return len(loops) >= len(start) and all(a is b for a, b in zip(loops, start, strict=False))


# -- the text form

_LINE = re.compile(r"(?P<again>again )?(?P<name>[\w.]+) (?P<sign>\+=|max=|=) (?P<step>\w+(?:\[.*)?\(.*\))")
_KERNEL = re.compile(r"kernel (?:grid\[(?P<grid>[^\]]*)\]|call)")
_LOOP = re.compile(r"loop\[(?P<axis>[^\]]*)\]")


def print_mugraph(mugraph: MuGraph) -> str:
    """Return the text form."""
    graph = mugraph.graph
    lines = print_graph(graph).splitlines()
    names = value_names(graph)
    body: list[str] = []
    for kernel in mugraph.kernels:
        body.append(f"kernel grid[{', '.join(kernel.grid)}]" if isinstance(kernel, Block) else "kernel call")
        around: tuple[Loop, ...] = ()
        for tile, loops in walk(kernel):
            shared = next(
                (i for i, loop in enumerate(around) if not _starts_with(loops, around[: i + 1])), len(around)
            )
            body += [f"{'  ' * (i + 1)}loop[{loop.axis}]" for i, loop in enumerate(loops) if i >= shared]
            around = loops
            step = graph.step_of(tile.value)
            assert step is not None
            again = "again " if tile.again else ""
            sign = _sign(step, [loop.axis for loop in loops])
            body.append(
                f"{'  ' * (len(loops) + 1)}{again}{names[tile.value]} {sign} {print_step(step, names)}"
            )
    ports = 2 + len(graph.inputs)
    return "\n".join([*lines[:ports], *body, *lines[len(lines) - len(graph.outputs) :]]) + "\n"


def parse_mugraph(text: str) -> MuGraph:
    """Return the muGraph that a text describes, checked; the numbers in their names order the steps."""
    head: list[str] = []
    tail: list[str] = []
    steps: dict[str, str] = {}
    lines: list[tuple[int, int, str]] = []  # number, depth, content: kernels and what is in them
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        content = line.strip()
        depth, odd = divmod(len(line) - len(content), 2)
        match = _LINE.fullmatch(content)
        if content.startswith(("graph ", "axes", "in ")) and not match:
            head.append(content)
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
    return check_mugraph(MuGraph(graph, tuple(kernels)))


def _parse_body(
    lines: list[tuple[int, int, str]],
    depth: int,
    around: tuple[str, ...],
    places: dict[str, int],
    graph: Graph,
) -> tuple[Tile | Loop, ...]:
    """Take the lines of one level, and of those inside it, off the front of the list."""
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
            body.append(Loop(axis, _parse_body(lines, depth + 1, (*around, axis), places, graph)))
        elif line is not None:
            value = places[line["name"]]
            step = graph.step_of(value)
            assert step is not None
            sign = _sign(step, around)
            if line["sign"] != sign:
                raise GraphError(f"line {number}: write {line['name']} {sign} {line['step']} here")
            body.append(Tile(value, line["again"] is not None))
    return tuple(body)


def _sign(step: Step, around: Sequence[str]) -> str:
    """Return how a step inside loops over these axes is written."""
    if step.op not in ("sum", "max", "contract") or not set(step.axes) & set(around):
        return "="
    return "max=" if step.op == "max" else "+="
