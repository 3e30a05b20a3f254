"""Lower: a derivation becomes a Graph again, written in the operators that people write."""

from dataclasses import replace

from superopt.frontier.derive import Arc, Derivation
from superopt.ir import Graph, Output, Step, check_graph, live_graph
from superopt.ir.compose import compose, contract_products
from superopt.rules.terms import Goal

__all__ = ["lower"]

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


def lower(goal: Goal, roots: tuple[int, ...], derivation: Derivation) -> Graph:
    """Return the graph of a derivation, with the goal's own ports."""
    source = goal.graph
    arcs = dict(derivation.arcs)
    first = len(source.inputs)
    steps: list[Step] = []
    copied: dict[int, int] = {}
    placed: dict[int, int] = {}

    def emit(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    def copy(value: int) -> int:
        """Copy a closed expression of the source graph."""
        if value < first:
            return value
        if value not in copied:
            step = source.steps[value - first]
            copied[value] = emit(replace(step, inputs=tuple(copy(i) for i in step.inputs)))
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
            axes = tuple(
                axis for bit, group in enumerate(goal.groups) if arc.reduced >> bit & 1 for axis in group
            )
            return emit(Step(arc.op, args, axes=axes))
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
    graph = live_graph(replace(source, steps=tuple(steps), outputs=outputs))
    return check_graph(contract_products(compose(graph)))
