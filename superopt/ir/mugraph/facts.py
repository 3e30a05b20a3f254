"""Facts: what all kernels of one graph are made from, and what a schedule of it may choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from superopt.ir.cut import tensorless_values
from superopt.ir.graph import REDUCTIONS, Graph, value_axes
from superopt.ir.mugraph.kernels import Split
from superopt.ir.running import Growth, growths

__all__ = ["Facts", "FusionChoices"]

_HELD = 2048  # positions of whole axes: 16 rows of so many fill the registers of a program


@dataclass(frozen=True, slots=True)
class FusionChoices:
    """What a schedule may decide otherwise than the default does."""

    cuts: frozenset[int] = frozenset()  # values that end a kernel
    joined: bool = False  # a reduction of a reduction stays in its kernel, and combines no parts
    tile: int = 32  # positions: what a program does at least of a grid axis, to weigh repeated work
    looped: frozenset[str] = frozenset()  # axes that are walked along: not on the grid, nor whole in a tile
    whole: frozenset[str] = frozenset()  # axes that stay whole inside a tile where they are short enough
    repeated: bool = False  # programs along an axis may all compute what only the first of them stores
    held: int = _HELD  # positions of whole axes that a tile may have, where a kernel can end earlier
    late: bool = False  # products that leave, and that nothing else reads, come after all else


class Facts:
    """What all kernels of one graph are made from."""

    def __init__(self, graph: Graph, splits: tuple[Split, ...], online: bool, choices: FusionChoices) -> None:
        self.graph = graph
        self.splits = splits
        self.online = online
        self.choices = choices
        self.sizes = graph.sizes
        self.axes = value_axes(graph)
        self.tensorless = tensorless_values(graph)
        self.readers: list[list[int]] = [[] for _ in self.axes]
        for value, step in graph.numbered:
            for i in step.inputs:
                self.readers[i].append(value)
        self.outputs = frozenset(output.value for output in graph.outputs)
        self.spread = {  # axes along which an output repeats its value
            output.value: frozenset(output.port.axes) - self.axes[output.value] for output in graph.outputs
        }
        first = len(graph.inputs)
        self.inputs = (*([()] * first), *(step.inputs for step in graph.steps))
        self.reduced = tuple(
            frozenset(step.axes) if step is not None and step.op in REDUCTIONS else frozenset[str]()
            for step in map(graph.step_of, range(len(self.axes)))
        )
        self.mappings = {  # mappings of the steps that read other places of a value
            value: step.mapping for value, step in enumerate(graph.steps, first) if step.mapping
        }
        self.maxima: list[frozenset[str]] = [frozenset()] * first  # axes of maxima that a value is made from
        for step in graph.steps:
            over = frozenset(step.axes) if step.op == "max" else frozenset[str]()
            passed = step.op not in ("sum", "contract")
            below = (self.maxima[i] for i in step.inputs) if passed else ()
            self.maxima.append(over.union(*below))
        self.shift_growths: dict[int, Mapping[int, Growth | None]] = {}
        self.windows = {value: step.inputs[0] for value, step in graph.numbered if step.op == "window"}
        self.work = tuple(  # the axes along which a step does its work; a window only reads
            axes if value in self.windows else axes.union(*(self.axes[i] for i in inputs))
            for value, (axes, inputs) in enumerate(zip(self.axes, self.inputs, strict=True))
        )
        self.volumes: dict[frozenset[str], int] = {}
        self.constants: list[frozenset[int]] = []  # the tensorless values that a value is made from
        for inputs in self.inputs:
            read = [i for i in inputs if self.tensorless[i]]
            self.constants.append(frozenset(read).union(*(self.constants[i] for i in read)))

    def volume(self, axes: frozenset[str]) -> int:
        """Return how many positions there are along axes."""
        found = self.volumes.get(axes)
        if found is None:
            found = self.volumes[axes] = prod(self.sizes[axis] for axis in axes)
        return found

    def growths(self, shift: int) -> Mapping[int, Growth | None]:
        """Return the growth of every value that is made from a shift."""
        if shift not in self.shift_growths:
            self.shift_growths[shift] = growths(self.graph, shift)
        return self.shift_growths[shift]
