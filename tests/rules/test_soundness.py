"""Everything that saturation calls equal is equal in numbers, for random expressions."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.rules.saturate import SaturationLimits, saturate
from superopt.rules.terms import OPERATORS, Goal, Node

LEAVES = {"a": "m", "b": "k", "c": "km", "d": ""}
SIZES = {"k": 2, "m": 3}
AXES = sorted(SIZES)

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def apply(node: Node, args: Sequence[Array]) -> Array:
    """Return a node's value over all axes, those it does not depend on included."""
    table: dict[str, Callable[..., Array]] = {
        "mul": np.multiply,
        "add": np.add,
        "inv": lambda x: 1 / x,
        "neg": np.negative,
        "exp": np.exp,
        "sqrt": np.sqrt,
        "log": np.log,
        "maximum": np.maximum,
    }
    if node.op in ("sum", "max"):
        reduced = getattr(np, node.op)(args[0], axis=node.attr, keepdims=True)
        return np.broadcast_to(reduced, args[0].shape)
    return table[node.op](*args)


def leaf_values(seed: int, goal: Goal | None = None) -> list[Array]:
    random = np.random.default_rng(seed)
    shape = tuple(SIZES[axis] for axis in AXES)
    values = []
    for axes in LEAVES.values():
        own = tuple(SIZES[axis] if axis in axes else 1 for axis in AXES)
        values.append(np.broadcast_to(random.uniform(0.5, 1.5, own), shape))
    constants = [leaf.constant for leaf in goal.leaves[len(LEAVES) :]] if goal else []
    values += [np.full(shape, float(constant)) for constant in constants if constant is not None]
    return values


def close(left: Array, right: Array) -> bool:
    """Compare where both are defined and neither so large that exp has eaten the digits."""
    use = np.isfinite(left) & np.isfinite(right) & (abs(left) < 1e4) & (abs(right) < 1e4)
    return np.allclose(left[use], right[use], rtol=1e-6, atol=1e-6)


expression = st.recursive(
    st.sampled_from([*LEAVES, "2", "0", "-1", "1/2"]),
    lambda part: st.one_of(
        st.tuples(st.sampled_from(["mul", "add", "maximum"]), part, part).map(" ".join),
        st.tuples(st.sampled_from(["inv", "neg", "exp", "sqrt", "log"]), part).map(" ".join),
        st.tuples(st.sampled_from(["sum k", "sum m", "max k", "max m"]), part).map(" ".join),
    ).map("({})".format),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=expression, seed=st.integers(0, 9))
def test_equal_classes_are_equal_numbers(expressions: Callable[..., Goal], text: str, seed: int) -> None:
    goal = expressions(LEAVES, text)
    table = saturate(goal, SaturationLimits(nodes=400, rounds=4))
    leaves = leaf_values(seed, goal.with_constants(table.constants))
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for _ in range(table.classes + 1):
            for op, attr, args, found in table.entries:
                if found not in values and all(arg in values for arg in args):
                    node = Node(OPERATORS[op], args, attr)
                    values[found] = (
                        leaves[attr] if node.op == "leaf" else apply(node, [values[a] for a in args])
                    )
        for op, attr, args, found in table.entries:
            node = Node(OPERATORS[op], args, attr)
            if node.op != "leaf":
                assert close(apply(node, [values[arg] for arg in args]), values[found]), (text, node)


def test_the_comparison_sees_a_difference() -> None:
    a, b, c, _ = leaf_values(0)
    assert close(apply(Node("sum", (0,), 0), [b * c]), apply(Node("sum", (0,), 0), [c * b]))
    assert not close(apply(Node("sum", (0,), 0), [b * c]), b * apply(Node("sum", (0,), 0), [c]))
    assert not close(apply(Node("sum", (0,), 0), [c]), apply(Node("sum", (0,), 1), [c]))
    with pytest.raises(AssertionError):
        assert close(a, b)
