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
that positions of t are walked in parts, the last of which may be shorter. `round t3 to f16` states that
a value lies between kernels in half precision; all others do so in fp32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.ir.cut import tensorless_values
from superopt.ir.graph import REDUCTIONS, Graph, Step, print_graph, print_step, value_names

__all__ = [
    "Block",
    "Call",
    "Kernel",
    "Loop",
    "MuGraph",
    "Split",
    "Tile",
    "begins_with",
    "known_inside",
    "loops_of",
    "print_mugraph",
    "reduces",
    "running_path",
    "seen_through",
    "sign_of",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Tile:
    """One step of the graph, carried out on a tile."""

    value: int
    recomputed: bool = False  # computed before; once more is cheaper than keeping it


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
    rounded: tuple[tuple[int, str], ...] = ()  # values that lie between kernels in another dtype than fp32

    def __str__(self) -> str:
        return print_mugraph(self)

    def loads(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the values that a kernel reads from memory."""
        tensorless = tensorless_values(self.graph)
        made = {tile.value for tile, _ in walk(kernel)}
        read = {i for value in made if (step := self.graph.step_of(value)) for i in step.inputs}
        return tuple(sorted(i for i in read - made if not tensorless[i]))

    def stores(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the values that a kernel writes to memory.

        What reads no tensor is computed wherever it is used; the kernel that ends with it stores it.
        """
        tiles = [tile for tile, _ in walk(kernel)]
        tensorless = tensorless_values(self.graph)
        last = tiles[-1].value if tiles else -1
        made = {
            tile.value
            for tile in tiles
            if not tile.recomputed and (not tensorless[tile.value] or tile.value == last)
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


def loops_of(block: Block) -> Iterator[tuple[Loop, tuple[str, ...]]]:
    """Yield the loops of a kernel, each with the axes of the loops around it."""
    pending: list[tuple[Tile | Loop, tuple[str, ...]]] = [(item, ()) for item in block.body]
    while pending:
        item, around = pending.pop()
        if isinstance(item, Loop):
            yield item, around
            pending += [(inner, (*around, item.axis)) for inner in item.body]


def known_inside(step: Step, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops inside which the value of a step is known; the step does not accumulate over them."""
    if step.op not in REDUCTIONS:
        return loops
    return loops[: next((at for at, loop in enumerate(loops) if loop.axis in step.axes), len(loops))]


def running_path(graph: Graph, loop: Loop) -> tuple[int, ...]:
    """Return the values from the maxima of a loop, without them, to its running shifts, in order."""
    direct = [item.value for item in loop.body if isinstance(item, Tile)]
    grown = {value for value in direct if reduces(graph, value, loop.axis)}
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


def reduces(graph: Graph, value: int, axis: str) -> bool:
    """Return whether a value is a reduction over an axis."""
    step = graph.step_of(value)
    return step is not None and step.op in REDUCTIONS and axis in step.axes


def begins_with(loops: tuple[Loop, ...], start: tuple[Loop, ...]) -> bool:
    """Return whether some loops begin with other loops: with the very same loops, not with equal ones."""
    return len(loops) >= len(start) and all(a is b for a, b in zip(loops, start, strict=False))


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
                (i for i, loop in enumerate(around) if not begins_with(loops, around[: i + 1])), len(around)
            )
            body += [
                f"{'  ' * (i + 1)}{_print_loop(loop, names)}" for i, loop in enumerate(loops) if i >= shared
            ]
            around = loops
            step = graph.step_at(tile.value)
            again = "again " if tile.recomputed else ""
            sign = sign_of(step, [loop.axis for loop in loops])
            body.append(
                f"{'  ' * (len(loops) + 1)}{again}{names[tile.value]} {sign} {print_step(step, names)}"
            )
    ports = 2 + len(graph.inputs)
    splits = [f"split {split.axis} into {split.outer} {split.inner}" for split in mugraph.splits]
    rounded = [f"round {names[value]} to {dtype}" for value, dtype in mugraph.rounded]
    return (
        "\n".join([*lines[:ports], *splits, *rounded, *body, *lines[len(lines) - len(graph.outputs) :]])
        + "\n"
    )


def _print_loop(loop: Loop, names: Sequence[str]) -> str:
    running = ", ".join(names[value] for value in loop.running)
    return f"loop[{loop.axis}]{' running ' if running else ''}{running}"


def sign_of(step: Step, around: Sequence[str]) -> str:
    """Return how a step inside loops over these axes is written."""
    if step.op not in REDUCTIONS or not set(step.axes) & set(around):
        return "="
    return "max=" if step.op == "max" else "+="


def seen_through(axes: tuple[str, ...], step: Step) -> tuple[str, ...]:
    """Return axes as a view shows them; a window has taps and then windows in the place of what it reads."""
    seen: dict[str, Sequence[str]] = {
        axis: [new] if isinstance(new, str) else [] for axis, new in step.mapping
    }
    for place in step.places:
        seen |= dict.fromkeys(place.axes, ())
        seen[place.axes[-1]] = [axis for axis, _ in reversed(place.terms)]
    return tuple(dict.fromkeys(new for axis in axes for new in seen.get(axis, (axis,))))
