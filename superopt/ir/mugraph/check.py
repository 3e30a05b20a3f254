"""The rules that a muGraph must keep, each with an error that names the kernel and the value."""

from superopt.dtypes import HALVES
from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.cut import tensorless_values
from superopt.ir.graph import REDUCTIONS, Step, value_axes, value_names
from superopt.ir.mugraph.kernels import (
    Block,
    Kernel,
    Loop,
    MuGraph,
    Tile,
    begins_with,
    known_inside,
    loops_of,
    reduces,
    running_path,
    walk,
)
from superopt.ir.running import growths, rescaled_by

__all__ = ["check_mugraph"]


def check_mugraph(mugraph: MuGraph) -> MuGraph:
    """Return the muGraph unchanged, or raise GraphError naming the first rule it breaks."""
    check_graph(mugraph.graph)
    checker = _Checker(mugraph)
    checker.check_splits()
    for number, kernel in enumerate(mugraph.kernels):
        checker.check_kernel(number, kernel)
    checker.where = ""
    checker.check_rounded()
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
        self.tensorless = tensorless_values(self.graph)
        self.done: set[int] = set()
        self.path: set[int] = set()  # values on the way to the running shifts of the current kernel
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
                mapped |= {axis for place in step.places for axis in place.named}
                self.require(not parts & mapped, f"{split.axis!r} is split, and read at other places")

    def check_rounded(self) -> None:
        """Require that what is rounded crosses kernels, once, in half precision."""
        read = {value for kernel in self.mugraph.kernels for value in self.mugraph.loads(kernel)}
        values = [value for value, _ in self.mugraph.rounded]
        for value, dtype in self.mugraph.rounded:
            known = len(self.graph.inputs) <= value < len(self.names)
            self.require(known, f"it rounds value {value}, which is no step of the graph")
            name = self.names[value]
            self.require(
                dtype in HALVES, f"it rounds {name} to {dtype}; it is one of {', '.join(sorted(HALVES))}"
            )
            self.require(value in read, f"it rounds {name}, which no kernel reads from another one")
            self.require(values.count(value) == 1, f"it rounds {name} twice")

    def check_kernel(self, number: int, kernel: Kernel) -> None:
        self.where = f"kernel {number}: "
        self.path = set()
        for tile, _ in walk(kernel):
            known = len(self.graph.inputs) <= tile.value < len(self.names)
            self.require(known, f"it computes value {tile.value}, which is no step of the graph")
        self._check_parts(kernel)
        if isinstance(kernel, Block):
            self._check_axes(kernel)
            for loop, around in loops_of(kernel):
                if loop.running:
                    self._check_running(loop, around)
        before = frozenset(self.done)
        seen: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is known
        made: dict[int, tuple[Loop, ...]] = {}  # value -> the loops inside which it is computed
        kept: dict[int, tuple[Loop, ...]] = {}  # as `seen`, without the values that are recomputed
        for tile, loops in walk(kernel):
            step = self.graph.step_at(tile.value)
            self._check_once(tile)
            for i in step.inputs:
                self._check_operand(tile.value, i, loops, before, seen, made)
            if isinstance(kernel, Block):
                self._check_step(tile.value, step, kernel, loops, made)
            made[tile.value] = loops
            seen[tile.value] = loops[:-1] if tile.value in self.path else known_inside(step, loops)
            if not tile.recomputed:
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
        grown = {value for value in direct if reduces(self.graph, value, loop.axis)}
        for value in path:
            step = self.graph.step_at(value)
            name = self.names[value]
            maxima = [self.graph.step_of(i) for i in step.inputs if i in grown]
            self.require(
                all(
                    one is not None and one.op == "max" and not set(one.axes) & set(around) for one in maxima
                ),
                f"{name} runs with what is no maximum over {loop.axis!r} alone",
            )
            self.require(
                all(i in grown or i in path or self.tensorless[i] or i not in direct for i in step.inputs)
                and step.op not in REDUCTIONS
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
                if reduces(self.graph, tile.value, loop.axis):
                    step = self.graph.step_at(tile.value)
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
        for loop, around in loops_of(block):
            self.require(loop.axis in known, f"a loop walks along the undeclared axis {loop.axis!r}")
            self.require(loop.axis not in block.grid, f"axis {loop.axis!r} is looped over and on the grid")
            self.require(loop.axis not in around, f"a loop over {loop.axis!r} stands inside another one")
            self.require(bool(loop.body), f"the loop over {loop.axis!r} does nothing")

    def _check_once(self, tile: Tile) -> None:
        name = self.names[tile.value]
        if self.tensorless[tile.value]:
            return
        if tile.recomputed:
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
                known == len(around) or not begins_with(loops, around[: known + 1]) or runs,
                f"{reader} reads {name} inside the loop that is still adding it up; it needs a second loop",
            )
            self.require(
                begins_with(loops, seen[operand]),
                f"{reader} reads {name}, a tile of a loop that has ended; compute it 'again' where used",
            )
        elif operand >= len(self.graph.inputs):
            self.require(
                operand in before and not self.tensorless[operand],
                f"{reader} reads {name}, which neither this kernel nor an earlier one has computed yet",
            )

    def _check_step(
        self, value: int, step: Step, block: Block, loops: tuple[Loop, ...], made: dict[int, tuple[Loop, ...]]
    ) -> None:
        name = self.names[value]
        if step.op in REDUCTIONS:
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
        if step.op == "window":
            self.require(
                step.inputs[0] not in made,
                f"{name} is a window of {self.names[step.inputs[0]]}, which this kernel computes; store it in"
                " an earlier kernel",
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
