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
What a kernel stores may lack an axis of its grid: all programs along it compute the same, the first stores.

`loop[t] running t8` uses the shift t8, made from maxima over t, while they are still growing, and
rescales what was accumulated under the shift before (see `running`). `split t into t_part t_at` states
that positions of t are walked in parts, the last of which may be shorter.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.cut import closed_values
from superopt.ir.graph import Graph, Step, value_axes
from superopt.ir.running import growths, rescaled_by
from superopt.ir.text import parse_graph, print_graph, print_step, value_names

__all__ = [
    "Block",
    "Call",
    "Kernel",
    "Loop",
    "MuGraph",
    "Split",
    "Tile",
    "check_mugraph",
    "parse_mugraph",
    "print_mugraph",
    "running_path",
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
    running: tuple[int, ...] = ()  # shifts that are used while the maxima they come from still grow


@dataclass(frozen=True, slots=True)
class Split:
    """An axis walked in parts: position = part * (extent of `inner`) + position within the part.

    The extent of the axis itself may be less than the product; then the last parts are shorter.
    """

    axis: str
    outer: str
    inner: str


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
    splits: tuple[Split, ...] = ()

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


def _loops(block: Block) -> Iterator[tuple[Loop, tuple[str, ...]]]:
    """Yield the loops of a kernel, each with the axes of those around it."""
    pending: list[tuple[Tile | Loop, tuple[str, ...]]] = [(item, ()) for item in block.body]
    while pending:
        item, around = pending.pop()
        if isinstance(item, Loop):
            yield item, around
            pending += [(inner, (*around, item.axis)) for inner in item.body]


def known_inside(step: Step, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops inside which the value of a step is known: not those over which it accumulates."""
    if step.op not in ("sum", "max", "contract"):
        return loops
    return loops[: next((at for at, loop in enumerate(loops) if loop.axis in step.axes), len(loops))]


def running_path(graph: Graph, loop: Loop) -> tuple[int, ...]:
    """Return the values from the maxima of a loop, without them, to its running shifts, in order."""
    direct = [item.value for item in loop.body if isinstance(item, Tile)]
    grown = {value for value in direct if _reduces(graph, value, loop.axis)}
    path: list[int] = []
    for value in direct:
        step = graph.step_of(value)
        if step is not None and value not in grown and any(i in grown or i in path for i in step.inputs):
            path.append(value)
    needed = set(loop.running)
    for value in reversed(path):
        step = graph.step_of(value)
        if value in needed and step is not None:
            needed.update(step.inputs)
    return tuple(value for value in path if value in needed)


def _reduces(graph: Graph, value: int, axis: str) -> bool:
    step = graph.step_of(value)
    return step is not None and step.op in ("sum", "max", "contract") and axis in step.axes


# -- the rules


def check_mugraph(mugraph: MuGraph) -> MuGraph:
    """Return the muGraph unchanged, or raise GraphError naming the first rule it breaks."""
    check_graph(mugraph.graph)
    checker = _Checker(mugraph)
    checker.check_splits()
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
        self.path: set[int] = set()  # of the running shifts of the kernel at hand
        self.where = ""

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise GraphError(f"muGraph {self.graph.name!r}: {self.where}{message}")

    def check_splits(self) -> None:
        """Require that every split axis is there, and only as its parts."""
        sizes = self.graph.sizes
        for split in self.mugraph.splits:
            for axis in (split.axis, split.outer, split.inner):
                self.require(axis in sizes, f"the split of {split.axis!r} names the undeclared axis {axis!r}")
            self.require(
                sizes[split.outer] * sizes[split.inner] >= sizes[split.axis],
                f"{split.outer!r} times {split.inner!r} is less than {split.axis!r}",
            )
            parts = {split.axis, split.outer, split.inner}
            used = frozenset[str]().union(*self.axes)
            self.require(split.axis not in used, f"a value has the axis {split.axis!r}, which is split")
            for output in self.graph.outputs:
                self.require(not parts & set(output.port.axes), f"{split.axis!r} is split, and of an output")
            for step in self.graph.steps:
                mapped = {axis for pair in step.mapping for axis in pair}
                self.require(not parts & mapped, f"{split.axis!r} is split, and read at other places")

    def check_kernel(self, number: int, kernel: Kernel) -> None:
        self.where = f"kernel {number}: "
        self.path = set()
        for tile, _ in walk(kernel):
            known = len(self.graph.inputs) <= tile.value < len(self.names)
            self.require(known, f"it computes value {tile.value}, which is no step of the graph")
        self._check_parts(kernel)
        if isinstance(kernel, Block):
            self._check_axes(kernel)
            for loop, around in _loops(kernel):
                if loop.running:
                    self._check_running(loop, around)
        before = frozenset(self.done)
        seen: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is known
        made: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is computed
        kept: dict[int, tuple[Loop, ...]] = {}  # as `seen`, for what is not computed again
        for tile, loops in walk(kernel):
            step = self.graph.step_of(tile.value)
            assert step is not None
            self._check_once(tile)
            for i in step.inputs:
                self._check_operand(tile.value, i, loops, before, seen, made)
            if isinstance(kernel, Block):
                self._check_step(tile.value, step, kernel, loops, made)
            made[tile.value] = loops
            seen[tile.value] = loops[:-1] if tile.value in self.path else known_inside(step, loops)
            if not tile.again:
                kept.setdefault(tile.value, seen[tile.value])
            self.done.add(tile.value)
        if isinstance(kernel, Block):
            for value in self.mugraph.stores(kernel):
                self._check_store(value, kernel, kept[value])

    def _check_parts(self, kernel: Kernel) -> None:
        grid = kernel.grid if isinstance(kernel, Block) else ()
        touched = {tile.value for tile, _ in walk(kernel)} | set(self.mugraph.loads(kernel))
        for split in self.mugraph.splits:
            whole = not any(split.inner in self.axes[value] for value in touched)
            self.require(
                whole or split.outer in grid,
                f"it walks along {split.inner!r}, so {split.outer!r} must be on the grid",
            )

    def _check_running(self, loop: Loop, around: tuple[str, ...]) -> None:
        """Require that every value of a loop has a degree in its running shifts, and can be rescaled."""
        path = running_path(self.graph, loop)
        self.path |= set(path)
        direct = {item.value for item in loop.body if isinstance(item, Tile)}
        grown = {value for value in direct if _reduces(self.graph, value, loop.axis)}
        for value in path:
            step = self.graph.step_of(value)
            assert step is not None
            name = self.names[value]
            maxima = [self.graph.step_of(i) for i in step.inputs if i in grown]
            self.require(
                all(
                    one is not None and one.op == "max" and not set(one.axes) & set(around) for one in maxima
                ),
                f"{name} runs with what is no maximum over {loop.axis!r} alone",
            )
            self.require(
                all(i in grown or i in path or self.closed[i] or i not in direct for i in step.inputs)
                and step.op not in ("sum", "max", "contract")
                and loop.axis not in self.axes[value],
                f"{name} cannot run: it takes other values of the loop over {loop.axis!r} than maxima",
            )
        for shift in loop.running:
            moved = self.names[shift]
            self.require(shift in path, f"{moved} is not made from maxima directly in its loop")
            growth = growths(self.graph, shift)
            for tile, inner in walk(Block((), loop.body)):
                if tile.value not in growth or tile.value in path:
                    continue
                name, degree = self.names[tile.value], growth[tile.value]
                self.require(degree is not None, f"{name} has no degree in {moved}, which cannot run")
                if _reduces(self.graph, tile.value, loop.axis):
                    step = self.graph.step_of(tile.value)
                    assert step is not None
                    self.require(
                        rescaled_by(degree) is not None
                        and self.axes[shift] <= self.axes[tile.value]
                        and not inner
                        and not set(step.axes) & set(around),
                        f"{name} cannot be rescaled when {moved} moves",
                    )

    def _check_axes(self, block: Block) -> None:
        known = self.graph.sizes
        for axis in block.grid:
            self.require(axis in known, f"the grid has the undeclared axis {axis!r}")
            self.require(block.grid.count(axis) == 1, f"the grid has axis {axis!r} twice")
        for loop, around in _loops(block):
            self.require(loop.axis in known, f"a loop walks along the undeclared axis {loop.axis!r}")
            self.require(loop.axis not in block.grid, f"axis {loop.axis!r} is looped over and on the grid")
            self.require(loop.axis not in around, f"a loop over {loop.axis!r} stands inside another one")
            self.require(bool(loop.body), f"the loop over {loop.axis!r} does nothing")

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
            runs = operand in self.path or value in self.path
            self.require(
                known == len(around) or not _starts_with(loops, around[: known + 1]) or runs,
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
        inner = {split.inner for split in self.mugraph.splits}
        outputs = [output.port for output in self.graph.outputs if output.value == value]
        for axis in block.grid:
            apart = axis in self.axes[value]
            self.require(
                apart or axis not in inner,
                f"it stores {name}, which has no axis {axis!r}: the first program along it may have no part",
            )
            self.require(
                apart or not any(axis in port.axes for port in outputs),
                f"it stores {name}, which has no axis {axis!r}: an output repeats it along that grid axis",
            )
        for loop in loops:
            self.require(
                loop.axis in self.axes[value],
                f"it stores {name} in every turn of the loop over {loop.axis!r}; compute it outside",
            )
            for shift in loop.running:
                self.require(
                    value not in growths(self.graph, shift),
                    f"it stores {name} while {self.names[shift]}, on which it depends, still moves",
                )


def _starts_with(loops: tuple[Loop, ...], start: tuple[Loop, ...]) -> bool:
    """Return whether the first of these loops are those: the same ones, not equal ones."""
    return len(loops) >= len(start) and all(a is b for a, b in zip(loops, start, strict=False))


# -- the text form

_LINE = re.compile(r"(?P<again>again )?(?P<name>[\w.]+) (?P<sign>\+=|max=|=) (?P<step>\w+(?:\[.*)?\(.*\))")
_KERNEL = re.compile(r"kernel (?:grid\[(?P<grid>[^\]]*)\]|call)")
_LOOP = re.compile(r"loop\[(?P<axis>[^\]]*)\](?: running (?P<running>[\w., ]+))?")
_SPLIT = re.compile(r"split (\S+) into (\S+) (\S+)")


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
            body += [
                f"{'  ' * (i + 1)}{_print_loop(loop, names)}" for i, loop in enumerate(loops) if i >= shared
            ]
            around = loops
            step = graph.step_of(tile.value)
            assert step is not None
            again = "again " if tile.again else ""
            sign = _sign(step, [loop.axis for loop in loops])
            body.append(
                f"{'  ' * (len(loops) + 1)}{again}{names[tile.value]} {sign} {print_step(step, names)}"
            )
    ports = 2 + len(graph.inputs)
    splits = [f"split {split.axis} into {split.outer} {split.inner}" for split in mugraph.splits]
    return "\n".join([*lines[:ports], *splits, *body, *lines[len(lines) - len(graph.outputs) :]]) + "\n"


def _print_loop(loop: Loop, names: Sequence[str]) -> str:
    running = ", ".join(names[value] for value in loop.running)
    return f"loop[{loop.axis}]{' running ' if running else ''}{running}"


def parse_mugraph(text: str) -> MuGraph:
    """Return the muGraph that a text describes, checked; the numbers in their names order the steps."""
    head: list[str] = []
    tail: list[str] = []
    steps: dict[str, str] = {}
    splits: list[Split] = []
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
    return check_mugraph(MuGraph(graph, tuple(kernels), tuple(splits)))


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
            names = [name.strip() for name in (loop["running"] or "").split(",") if name.strip()]
            unknown = next((name for name in names if name not in places), None)
            if unknown is not None:
                raise GraphError(f"line {number}: {unknown} runs, but nothing computes it")
            inner = _parse_body(lines, depth + 1, (*around, axis), places, graph)
            body.append(Loop(axis, inner, tuple(places[name] for name in names)))
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
