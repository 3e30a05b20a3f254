"""The graph of a derivation, and graphs in the operators and the order that people write."""

from collections import Counter
from dataclasses import replace
from hashlib import blake2b

from superopt.frontier.tensors.derive import Arc, Derivation
from superopt.ir import COMMUTATIVE, Graph, Output, Step, check_graph, live_graph, needed_order, step_axes
from superopt.ir.compose import compose, contract_products
from superopt.ir.windows.apart import reads_windows
from superopt.ir.windows.through import windows_joined
from superopt.rules.terms import Goal

__all__ = ["canonical", "graph_of"]


_STEP_OF = {
    "mul": "mul",
    "add": "add",
    "inv": "reciprocal",
    "neg": "neg",
    "exp": "exp",
    "sqrt": "sqrt",
    "maximum": "maximum",
    "less": "lt",
    "equal": "eq",
}


def graph_of(goal: Goal, roots: tuple[int, ...], derivation: Derivation) -> Graph:
    """Return the graph of a derivation, with the goal's own ports, in primitive operators."""
    source = goal.graph
    arcs = dict(derivation.arcs)
    first = len(source.inputs)
    steps: list[Step] = []
    copied: dict[int, int] = {}
    placed: dict[int, int] = {}

    axes = [frozenset(port.axes) for port in source.inputs]

    def emit(step: Step) -> int:
        steps.append(step)
        axes.append(step_axes(step, tuple(axes[i] for i in step.inputs)))
        return first + len(steps) - 1

    def reduce(op: str, args: tuple[int, ...], reduced: tuple[str, ...]) -> int:
        """Reduce over axes; a sum over an axis that the operand lacks is a product with its extent."""
        present = frozenset[str]().union(*(axes[i] for i in args))
        over = tuple(axis for axis in reduced if axis in present)
        value = emit(Step(op, args, axes=over)) if over else args[0]
        missing = [axis for axis in reduced if axis not in present]
        if op == "max" or not missing:
            return value
        extent = emit(Step("size", axes=(missing[0],)))
        for axis in missing[1:]:
            extent = emit(Step("mul", (extent, emit(Step("size", axes=(axis,))))))
        return emit(Step("mul", (value, extent)))

    def copy(value: int) -> int:
        """Copy an expression of the source graph that reads no tensor."""
        if value < first:
            return value
        if value not in copied:
            step = source.steps[value - first]
            copied[value] = emit(step.reading(copy(i) for i in step.inputs))
        return copied[value]

    def leaf(number: int) -> int:
        found = goal.leaves[number]
        if found.position is not None:
            return copy(found.position)
        return emit(Step("const", value=found.constant))

    def make(arc: Arc) -> int:
        args = tuple(placed[arg] for arg in arc.args)
        if arc.op == "leaf":
            return leaf(arc.attr)
        if arc.reduced:
            reduced = (group for bit, group in enumerate(goal.groups) if arc.reduced >> bit & 1)
            return reduce(arc.op, args, tuple(axis for group in reduced for axis in group))
        if arc.op == "window":
            return emit(Step("window", args, places=(goal.windows[arc.attr],)))
        if arc.op == "access":
            op, mapping = goal.accesses[arc.attr]
            return emit(Step(op, args, mapping=mapping))
        name = goal.functions[arc.attr] if arc.op.startswith("call") else arc.op
        if name == "infinity":
            return emit(Step("infinity"))
        return emit(Step(_STEP_OF.get(name, name), args * 2 if name == "mul" and len(args) == 1 else args))

    pending = list(roots)
    while pending:
        tensor = pending[-1]
        missing = [arg for arg in arcs[tensor].args if arg not in placed]
        if tensor not in placed and missing:
            pending.extend(missing)
            continue
        pending.pop()
        if tensor not in placed:
            placed[tensor] = make(arcs[tensor])
    outputs = tuple(
        Output(output.port, placed[root]) for output, root in zip(source.outputs, roots, strict=True)
    )
    return replace(source, steps=tuple(steps), outputs=outputs)


def canonical(graph: Graph, like: Graph | None = None) -> Graph:
    """Return the graph as people write it, with the operands of commutative operators in one fixed order.

    `like` is the program that the search made it of (see `compose`).
    """
    graph = contract_products(compose(live_graph(graph), like))
    if reads_windows(graph):
        graph = _sums_joined(windows_joined(graph))
    first = len(graph.inputs)

    prints = _prints(graph)
    place = {axis.name: i for i, axis in enumerate(graph.axes)}

    def rank(value: int) -> tuple[int, int, str]:
        """Return what orders operands: computed values first, by depth, then inputs, then constants."""
        step = graph.step_of(value)
        depth, text = prints[value]
        return (1 if step is None else 2 if not step.inputs else 0, value if step is None else depth, text)

    steps = tuple(
        replace(
            step,
            inputs=tuple(sorted(step.inputs, key=rank)) if step.op in COMMUTATIVE else step.inputs,
            axes=tuple(sorted(step.axes, key=place.__getitem__)),
        )
        for step in graph.steps
    )
    graph = replace(graph, steps=steps)
    order = needed_order(graph)
    placed = {i: i for i in range(first)} | {value: first + i for i, value in enumerate(order)}
    return check_graph(
        replace(
            graph,
            steps=tuple(
                step.reading(placed[i] for i in step.inputs)
                for step in (steps[value - first] for value in order)
            ),
            outputs=tuple(replace(output, value=placed[output.value]) for output in graph.outputs),
        )
    )


def _sums_joined(graph: Graph) -> Graph:
    """Return the graph with a sum of what is summed for it alone as one sum.

    Windows leave sums over taps in many orders that are one kernel all the same.
    """
    uses = Counter(i for step in graph.steps for i in step.inputs)
    uses.update(output.value for output in graph.outputs)
    steps: list[Step] = []
    for step in graph.steps:
        at = step.inputs[0] - len(graph.inputs) if step.op == "sum" else -1
        if at >= 0 and steps[at].op in ("sum", "contract") and uses[step.inputs[0]] == 1:
            inner = steps[at]
            step = replace(inner, axes=(*inner.axes, *step.axes))
        steps.append(step)
    return live_graph(replace(graph, steps=tuple(steps)))


def _prints(graph: Graph) -> list[tuple[int, str]]:
    """Return the depth of each value's expression, and its digest, which no order of steps changes."""
    prints = [(0, str(i)) for i in range(len(graph.inputs))]
    for step in graph.steps:
        operands = [prints[i] for i in step.inputs]
        if step.op in COMMUTATIVE:
            operands.sort()
        content = repr((step.op, sorted(step.axes), step.mapping, step.value, step.places, operands))
        depth = 1 + max((depth for depth, _ in operands), default=0)
        prints.append((depth, blake2b(content.encode(), digest_size=12).hexdigest()))
    return prints
