"""The smallest form of a goal that an e-graph knows; saturation begins again from it where terms cancel.

Where terms cancel, the e-graph contains `t = (t - e) + e`, and the axioms would go on to `t - e - e` and so
on without end. In its smallest form the goal has no terms left that cancel.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from superopt.rules.terms import Goal, Leaf, Node

__all__ = ["Row", "made_by", "smaller_goal"]


class Row(NamedTuple):
    """One e-node: its class and the classes of its operands; a leaf has none and stands for itself."""

    op: str
    attr: int
    args: tuple[object, ...]
    found: object
    leaf: Leaf | None = None


def made_by(rows: Iterable[Row]) -> set[object]:
    """Return the classes that can be made from leaves by the rows."""
    made: set[object] = set()
    pending = list(rows)
    size = -1
    while size != len(made):
        size = len(made)
        made |= {row.found for row in pending if made.issuperset(row.args)}
        pending = [row for row in pending if row.found not in made]
    return made


def smaller_goal(goal: Goal, rows: Iterable[Row], class_of: Mapping[int, object]) -> Goal | None:
    """Return the goal in its smallest form, None where it has that form already."""
    rows = tuple(rows)
    sizes = _sizes(rows)
    smallest: dict[object, Row] = {}
    for row in (*_own_rows(goal, class_of), *rows):  # among equally small e-nodes the goal's own comes first
        size = _size(row, sizes)
        if size is not None and size <= sizes[row.found]:
            smallest.setdefault(row.found, row)
    own: list[int] = []
    for node in goal.nodes:
        own.append(1 + sum(own[arg] for arg in node.args) if node.args else 0)
    if sum(sizes[class_of[root]] for root in goal.roots) >= sum(own[root] for root in goal.roots):
        return None
    return _rebuilt(goal, smallest, [class_of[root] for root in goal.roots])


def _own_rows(goal: Goal, class_of: Mapping[int, object]) -> Iterable[Row]:
    for number, node in enumerate(goal.nodes):
        leaf = goal.leaves[node.attr] if node.op == "leaf" else None
        yield Row(node.op, node.attr, tuple(class_of[arg] for arg in node.args), class_of[number], leaf)


def _sizes(rows: tuple[Row, ...]) -> dict[object, int]:
    """Return the number of operators in the smallest term of each class."""
    sizes: dict[object, int] = {}
    changed = True
    while changed:
        changed = False
        for row in rows:
            size = _size(row, sizes)
            if size is not None and size < sizes.get(row.found, size + 1):
                sizes[row.found] = size
                changed = True
    return sizes


def _size(row: Row, sizes: Mapping[object, int]) -> int | None:
    if not row.args:
        return 0
    if any(arg not in sizes for arg in row.args):
        return None
    return 1 + sum(sizes[arg] for arg in row.args)


def _rebuilt(goal: Goal, smallest: Mapping[object, Row], roots: list[object]) -> Goal:
    leaves = list(goal.leaves)
    nodes: list[Node] = []
    placed: dict[object, int] = {}
    pending = list(roots)
    while pending:
        found = pending[-1]
        row = smallest[found]
        missing = [arg for arg in row.args if arg not in placed]
        if found in placed or not missing:
            pending.pop()
        if found in placed:
            continue
        pending.extend(missing)
        if not missing:
            attr = row.attr
            if row.leaf is not None:
                if row.leaf not in leaves:
                    leaves.append(row.leaf)
                attr = leaves.index(row.leaf)
            placed[found] = len(nodes)
            nodes.append(Node(row.op, tuple(placed[arg] for arg in row.args), attr))
    return replace(
        goal, nodes=tuple(nodes), leaves=tuple(leaves), roots=tuple(placed[root] for root in roots)
    )
