"""Completeness of the pruning: every prefix of what must be found is in the saturated table."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from superopt.frontier.tensors.split import merge_halves, split_reductions
from superopt.ir import Graph, parse_graph, print_step, value_axes, value_names
from superopt.rules.saturate import saturate
from superopt.rules.terms import OPERATORS, Goal, goal_of

from .test_found import EXPECTED, GOALS, expected_graph


def admitted(goal: Goal, graph: Graph, apart: Sequence[str]) -> list[str]:
    """Return the terms of a graph that the goal's table does not have, as text; empty where all are there."""
    table = saturate(goal)
    assert table.truncated is None
    goal = goal.with_constants(table.constants)
    lookup = {(code, attr, args): found for code, attr, args, found in table.entries}
    leaves = {leaf_name(goal, i): table.class_of_leaf[i] for i in range(len(goal.leaves))}
    terms = goal_of(graph, apart)
    classes: list[int] = []
    missing = []
    for node in terms.nodes:
        attr = node.attr
        if node.op == "leaf":
            found = leaves.get(leaf_name(terms, attr), -1)
        else:
            if node.op in ("sum", "max"):
                attr = goal.bit(terms.groups[attr][0])
                assert goal.groups[attr] == terms.groups[node.attr]
            elif node.op.startswith("call"):
                attr = goal.functions.index(terms.functions[attr])
            found = lookup.get((OPERATORS.index(node.op), attr, tuple(classes[arg] for arg in node.args)), -1)
        if found < 0:
            missing.append(f"{node.op}{node.args}")
        classes.append(found)
    return missing


def leaf_name(goal: Goal, number: int) -> str:
    """A name for a leaf that two goals over the same inputs share."""
    leaf = goal.leaves[number]
    if leaf.position is None:
        return f"const {leaf.constant}"
    names = list(value_names(goal.graph))
    for value in range(len(goal.graph.inputs), leaf.position + 1):
        step = goal.graph.step_of(value)
        assert step is not None
        if step.op in ("mul", "add"):
            step = replace(step, inputs=tuple(sorted(step.inputs, key=names.__getitem__)))
        names[value] = print_step(step, names)
    return names[leaf.position]


def admitted_by_goal_of(name: str) -> tuple[Goal, Graph, list[str]]:
    goal_name, _, split, _ = EXPECTED[name]
    refined, halves = split_reductions(parse_graph(GOALS[goal_name]))
    apart = [half for axis in split for half in halves[axis]]
    if not split:
        refined = parse_graph(GOALS[goal_name])
    else:
        refined, _ = merge_halves(refined, {axis: pair for axis, pair in halves.items() if axis not in split})
    return goal_of(refined, apart), expected_graph(name), apart


@pytest.mark.parametrize("name", EXPECTED)
def test_every_prefix_is_admitted(name: str) -> None:
    goal, graph, apart = admitted_by_goal_of(name)
    assert admitted(goal, graph, apart) == []
    assert len(value_axes(graph)) > len(graph.inputs)


def test_every_prefix_of_the_delayed_mean_is_admitted() -> None:
    # With the variance as it was: that of sums over x and x * x is found by an equality that only the
    # field knows, so its terms are not in the table, and need not be.
    goal = goal_of(parse_graph(GOALS["layernorm-linear"]))
    delayed = """t9 = contract[k](x, w)
t10 = sum[k](w)
t11 = neg(t4)
t12 = mul(t10, t11)
t13 = add(t9, t12)
t14 = div(t13, t8)
out out: f16[m, n] = t14"""
    text = GOALS["layernorm-linear"]
    graph = parse_graph(text[: text.index("t9 = ")] + delayed)
    assert admitted(goal, graph, ()) == []


def test_a_prefix_of_something_else_is_not_admitted() -> None:
    goal, graph, apart = admitted_by_goal_of("attention: division delayed")
    other = parse_graph(GOALS["attention"].replace("t7 = sum[s](t6)", "t7 = sum[s](t5)"))
    assert admitted(goal, graph, apart) == []
    assert admitted(goal, other, apart) != []
