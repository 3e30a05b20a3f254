"""Room: how many bytes a region may hold at once where the peak memory of its program must not grow."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from superopt.dtypes import DTYPES, HALVES
from superopt.ir import Call, Graph, MuGraph, Port, value_axes

__all__ = ["Room"]


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a region may hold: inputs that nobody reads later, results, and all between these.

    Of the inputs only those are counted that are `ending`, which may be let go after their last reader.
    """

    bytes: int
    ending: frozenset[str] = frozenset()  # the names of these inputs

    def least_bytes(self, goal: Graph) -> int:
        """Return the bytes that any kernels of a goal hold: all its ending inputs first, its results last."""
        first = sum(_bytes(goal, port) for port in goal.inputs if port.name in self.ending)
        return max(first, sum(_bytes(goal, output.port) for output in goal.outputs))

    def too_small_for(self, goal: Graph) -> str | None:
        """Return why no kernels of a goal have room, or None where some may have."""
        least = self.least_bytes(goal)
        return (
            None
            if least <= self.bytes
            else f"it holds {least / 2**20:.1f} MB, for which its pass has no room"
        )

    def misfit(self, mugraph: MuGraph) -> str | None:
        """Return why the kernels of a muGraph have no room, or None where they have.

        They may be called one by one, so that memory is let go between them.
        """
        most = self.most_bytes(mugraph)
        if most <= self.bytes:
            return None
        return f"it would hold {most / 2**20:.1f} MB where there is room for {self.bytes / 2**20:.1f}"

    def most_bytes(self, mugraph: MuGraph) -> int:
        """Return the most bytes that the kernels of a muGraph hold at once."""
        graph, kernels = mugraph.graph, mugraph.kernels
        loads = [mugraph.loads(kernel) for kernel in kernels]
        last = {value: at for at, values in enumerate(loads) for value in values}
        rounded, axes, sizes = dict(mugraph.rounded), value_axes(graph), graph.sizes
        order = [[axis.name for axis in graph.axes if axis.name in found] for found in axes]
        changes = [0] * (len(kernels) + 1)  # bytes that each kernel holds more than the one before
        for value, port in enumerate(graph.inputs):
            if port.name in self.ending:
                changes[0] += _bytes(graph, port)
                changes[last.get(value, 0) + 1] -= _bytes(graph, port)
        for at, kernel in enumerate(kernels):
            for value in mugraph.stores(kernel):
                dtype = rounded.get(value, "f32")
                leaving = [output.port for output in graph.outputs if output.value == value]
                changes[at] += sum(_bytes(graph, port) for port in leaving)
                if value in last and not any(_is_plain(port, dtype, order[value]) for port in leaving):
                    size = prod(sizes[axis] for axis in axes[value]) * DTYPES[dtype].bytes
                    changes[at] += size
                    changes[last[value] + 1] -= size
            copies = _bytes_of_copies(mugraph, kernel) if isinstance(kernel, Call) else 0
            changes[at] += copies
            changes[at + 1] -= copies
        held = most = 0
        for change in changes[:-1]:
            held += change
            most = max(most, held)
        return most

    def of_parts(self, goals: Sequence[Graph], results: Collection[str]) -> "list[Room]":
        """Return the room of each part of a region, without what lies in memory for other parts meanwhile."""
        reads = [{port.name for port in goal.inputs} for goal in goals]
        sizes = {port.name: _bytes(goal, port) for goal in goals for port in _ports(goal)}
        found, made = list[Room](), set[str]()
        for at, goal in enumerate(goals):
            later = set[str]().union(*reads[at + 1 :])
            going = (self.ending | made) - {*results}
            waiting = (going & later) | (made & {*results})
            taken = sum(sizes[name] for name in waiting)
            found.append(Room(self.bytes - taken, frozenset(going & reads[at] - later)))
            made |= {output.port.name for output in goal.outputs}
        return found


def _bytes_of_copies(mugraph: MuGraph, call: Call) -> int:
    """Return the bytes that a library takes while it multiplies in half precision.

    It may copy operands in another order, and makes results in their dtype, which are widened then.
    """
    graph, rounded = mugraph.graph, dict(mugraph.rounded)
    axes, sizes, inputs = value_axes(graph), graph.sizes, graph.inputs
    dtypes = {i: inputs[i].dtype if i < len(inputs) else rounded.get(i, "f32") for i in mugraph.loads(call)}
    halves = [i for i, dtype in dtypes.items() if dtype in HALVES]
    made = mugraph.stores(call) if halves else ()
    return sum(2 * prod(sizes[axis] for axis in axes[i]) for i in (*halves, *made))


def _ports(goal: Graph) -> Iterable[Port]:
    yield from goal.inputs
    yield from (output.port for output in goal.outputs)


def _bytes(graph: Graph, port: Port) -> int:
    return prod(graph.shape(port)) * DTYPES[port.dtype].bytes


def _is_plain(port: Port, dtype: str, order: Sequence[str]) -> bool:
    """Whether later kernels read a result as it leaves: its axes lie in this order, too."""
    return port.dtype == dtype and port.strides is None and port.dims == tuple((axis,) for axis in order)
