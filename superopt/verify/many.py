"""Equality of many graphs to one: all that share their axes are evaluated together, common steps once."""

from collections.abc import Sequence
from dataclasses import replace

from superopt.ir import Graph, Output, Step, live_graph
from superopt.verify.equality import equal_graphs
from superopt.verify.verdict import Verdict

__all__ = ["equal_to_all"]


def equal_to_all(goal: Graph, graphs: Sequence[Graph], *, seed: int = 0) -> list[Verdict]:
    """Return for each graph whether it computes the same as the goal."""
    families: dict[object, list[int]] = {}
    for i, graph in enumerate(graphs):
        families.setdefault((graph.axes, graph.inputs), []).append(i)
    verdicts: dict[int, Verdict] = {}
    for members in families.values():
        together = equal_graphs(
            _repeated(goal, len(members)), _bundle([graphs[i] for i in members]), seed=seed
        )
        for i in members:
            # A refutation of the family names one of its members: look at each alone.
            verdicts[i] = together if together.equal else equal_graphs(goal, graphs[i], seed=seed)
    return [verdicts[i] for i in range(len(graphs))]


def _repeated(goal: Graph, count: int) -> Graph:
    """Return the goal with its outputs written down once for each graph of a family."""
    return replace(goal, outputs=tuple(_numbered(output, i) for i in range(count) for output in goal.outputs))


def _bundle(graphs: Sequence[Graph]) -> Graph:
    """Return graphs over the same inputs as one, equal steps made one."""
    first = len(graphs[0].inputs)
    steps: list[Step] = []
    outputs: list[Output] = []
    for number, graph in enumerate(graphs):
        shift = len(steps)

        def moved(value: int, shift: int = shift) -> int:
            return value if value < first else value + shift

        steps += [replace(step, inputs=tuple(map(moved, step.inputs))) for step in graph.steps]
        outputs += [replace(_numbered(output, number), value=moved(output.value)) for output in graph.outputs]
    return live_graph(replace(graphs[0], steps=tuple(steps), outputs=tuple(outputs)))


def _numbered(output: Output, number: int) -> Output:
    return replace(output, port=replace(output.port, name=f"{output.port.name}_{number}"))
