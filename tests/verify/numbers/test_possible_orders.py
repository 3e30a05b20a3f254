"""Differences that are dismissed: only for comparisons that the differing element itself rests on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from quick import few
from torch import Tensor

from superopt import equivalent
from superopt.bench.verdicts.pairs import example, parse
from superopt.bench.verdicts.programs.pairs import random_pair
from superopt.ir import Graph, parse_graph
from superopt.verify.evaluation.interpret import interpret, output_tensor
from superopt.verify.evaluation.needs import needed_elements
from superopt.verify.evaluation.orders import Orders
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import Residues
from superopt.verify.field.signs import Comparison


def _below(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.relu((x.softmax(0).abs() - torch.cat([y, z], 1)).softmax(0))


def _above(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.relu((x.softmax(0).abs() + torch.cat([y, z], 1)).softmax(0))


@pytest.mark.parametrize("seed", few(range(4), 0))
def test_signs_elsewhere_dismiss_no_difference(seed: int) -> None:
    """Each element shows this mistake; in nearly all trials, some other element has an impossible sign."""
    inputs = torch.randn(3, 5), torch.randn(3, 2), torch.randn(3, 3)
    assert not equivalent(_below, _above, *inputs, seed=seed, floats=False).equal


@pytest.mark.slow
def test_choices_elsewhere_dismiss_no_difference() -> None:
    """A softmax is never below -2. Where a trial says so all the same, other elements are -2: not so here."""

    def clamped(x: Tensor) -> Tensor:
        return x.softmax(0).clamp(-2, 0.1)

    for seed in range(12):  # one in ten was called equal
        assert not equivalent(
            clamped, lambda x: clamped(x.T), torch.randn(4, 4), seed=seed, floats=False
        ).equal


@pytest.mark.parametrize("seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))])
def test_algebra_alone_finds_no_mistake_equal(seed: int) -> None:
    asked = 0
    for number in range(1, 60, 2 if seed else 4):
        pair = random_pair(number, seed).pair
        if pair is not None and random_pair(number, seed).size < 20:
            asked += 1
            inputs = example(parse(pair.inputs), seed)
            assert not equivalent(pair.f, pair.g, *inputs, seed=seed, floats=False).equal, pair.name
    assert asked > 2


_GRAPHS = {
    "a maximum of rows": "t1 = max[j](x)\nt2 = add(t1, y)\nout z: f32[i, j] = t2\n",
    "a product": "t2 = contract[j](x, y)\nout z: f32[i] = t2\n",
    "below the diagonal": (
        "t2 = index[i]()\nt3 = index[j]()\nt4 = le(t3, t2)\nt5 = mul(x, t4)\nt6 = sum[j](t5)\n"
        "out z: f32[i] = t6\n"
    ),
    "one of two by place": (
        "t2 = index[j]()\nt3 = const[1]()\nt4 = eq(t2, t3)\nt5 = where(t4, x, y)\nout z: f32[i, j] = t5\n"
    ),
    "a moved axis": "t2 = rename[i->k, j->i](x)\nt3 = sum[k](t2)\nout z: f32[i] = t3\n",
}


def _case(text: str) -> Graph:
    other = "j" if "x, y)\nout z: f32[i]" in text else "i, j"
    return parse_graph(f"graph g\naxes i=3 j=3 k=3\nin x: f32[i, j]\nin y: f32[{other}]\n{text}")


def _values(graph: Graph, field: Field, sizes: dict[str, int], x: Residues) -> Residues:
    made = interpret(graph, field, sizes, leaves={"x": x})
    output = graph.outputs[0]
    found: Residues = output_tensor(graph, output, made[output.value], sizes)[0]
    return found.reshape(field.trials, -1)


@pytest.mark.parametrize("name", _GRAPHS)
def test_what_is_not_needed_changes_nothing(name: str) -> None:
    """Change each element of x alone: only the elements of the output that need it change, and they do."""
    graph = _case(_GRAPHS[name])
    tiny = tiny_sizes(graph, graph, variant=0)
    sizes = tiny.sizes
    field = tiny.field(7, trials=40, levels=1)
    x = field.leaf("x", (sizes["i"], sizes["j"]))
    made = interpret(graph, field, sizes, leaves={"x": x})
    needed = needed_elements(graph, graph.outputs[0], [one.shape[2:] for one in made], tiny)
    assert needed is not None
    own = needed[0]
    assert own is not None
    before = _values(graph, field, sizes, x)
    for i in range(sizes["i"]):
        for j in range(sizes["j"]):
            other = x.copy()
            other[:, :, i, j] = (other[:, :, i, j] + np.uint64(12345)) % np.uint64(int(field.primes[0]))
            changed = (_values(graph, field, sizes, other) != before).any(axis=0)
            mask = own[:, i, j, 0] if own.ndim == 4 else own[:, i, j]
            assert (changed == mask).all(), (i, j)


def test_orders_that_go_round_are_impossible() -> None:
    field = Field(1, trials=2, levels=1)
    prime = int(field.primes[0])
    numbers = np.array([[5, 9, 12], [5, 9, 12]], dtype=np.uint64)
    a, b = numbers, np.roll(numbers, -1, axis=1)
    round_about = np.array([[1, 1, 1], [1, 1, -1]], dtype=np.int8)
    made = Comparison(a, b, round_about, 0, (0, 0))
    whole, two = np.array([[1, 1, 1]], dtype=np.bool_), np.array([[1, 1, 0]], dtype=np.bool_)

    def possible(parts: np.ndarray, trial: int, known: tuple[Residues, ...] = ()) -> bool:
        orders = Orders(field, np.array([trial]))
        orders.compare(made, parts)
        orders.bound([(one, np.ones(1, dtype=np.bool_)) for one in known])
        orders.add_constants()
        return bool(orders.possible()[0])

    assert not possible(whole, 0)
    assert possible(whole, 1)
    assert possible(two, 0)  # what the third comparison says does not matter
    negative = np.array([[[prime - 9], [prime - 9]]], dtype=np.uint64)
    assert possible(two, 0, (numbers[None],))
    assert not possible(two, 0, (numbers[None], negative))


def test_a_large_output_is_looked_at_in_part() -> None:
    """Sixteen of its forty elements in each trial, others in others: a mistake in one of them is found."""

    def turned(x: Tensor) -> Tensor:
        return torch.maximum(x, x.flip(1)) + torch.maximum(x, -x)

    def mistaken(x: Tensor) -> Tensor:
        return turned(x) + torch.cat([x[:, :33] * 0, x[:, 33:34], x[:, 34:] * 0], 1)

    x = torch.randn(1, 40)
    assert equivalent(turned, turned, x, floats=False).equal
    assert not equivalent(turned, mistaken, x, floats=False).equal


@pytest.mark.parametrize("low", few([0.7071067811865476, 0.1, 1.4142135623730951], 0.1))
def test_constants_keep_their_own_order(low: float) -> None:
    """A root keeps its order with other constants in all trials of a field: it must be the true order."""

    def clamped(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).clamp(low, 3)

    inputs = torch.randn(2, 3), torch.randn(2, 3)
    for seed in range(10):  # with a root, one in five was called equal
        assert not equivalent(clamped, lambda x, y: clamped(y, x), *inputs, seed=seed, floats=False).equal
    assert equivalent(clamped, lambda x, y: (x - y).clamp(max=3).clamp(min=low), *inputs, floats=False).equal


def test_an_order_of_computed_constants_is_not_guessed() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(torch.maximum(x, y * 0 + 0.7071067811865476) * 3.3, y * 0 + 2)

    x, y = torch.randn(3), torch.randn(3)
    for seed in range(6):
        assert not equivalent(
            f, lambda x, y: f(x, y) * 1 + 0 * (x > 0), x, y, seed=seed, floats=False
        ).different
        assert not equivalent(
            f, lambda x, y: torch.maximum(x * 3.3, y * 0 + 2), x, y, seed=seed, floats=False
        ).equal


_WAYS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], str]] = {
    # Each comparison is equal in two ways, of which one is hidden by another mask.
    "a magnitude": (
        lambda x, y: torch.where(x >= 1, -1, torch.where(x.abs() == 3, y + x, x)),
        lambda x, y: torch.where(x >= 1, -1, torch.where(x.abs() == 3, y, x)),
        "unknown",
    ),
    "a maximum of two slopes": (
        lambda x, y: torch.where(x >= 1, -1, torch.where(torch.maximum(x, -2 * x) == 3, y, x)),
        lambda x, y: torch.where(x >= 1, -1, x),
        "unknown",
    ),
    "a magnitude of a multiple": (
        lambda x, y: torch.where(x > 0, -1, torch.where((3 * x - 1).abs() == 2, y, x)),
        lambda x, y: torch.where(x > 0, -1, x),
        "unknown",
    ),
    "two magnitudes": (
        lambda x, y: torch.where((x.abs() - 3).abs() == 1, y, x),
        lambda x, y: torch.where((x.abs() == 4) | (x.abs() == 2), y, x),
        "equal",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.slow if one == "a magnitude of a multiple" else ())
        for one in _WAYS
    ],
)
def test_each_way_in_which_numbers_are_equal_is_drawn(name: str) -> None:
    f, g, outcome = _WAYS[name]
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    for seed in range(6):
        assert equivalent(f, g, x, y, floats=False, seed=seed).outcome == outcome
    assert equivalent(f, f, x, y, floats=False).outcome == "equal"


_LATE = ("two magnitudes", "three in order")
_AT_ONCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two numbers in a row": lambda x, y: (x == y + 3) & (y == 5),
    "two magnitudes": lambda x, y: ((x - y).abs() == 3) & (y == 5) & (x < 4),
    "two of the same input": lambda x, y: (
        (x[:, :1] == x[:, 1:2]) & (x[:, 2:3] == x[:, 3:4]) & (x[:, 2:3] > 5)
    ),
    "three in order": lambda x, y: (
        (x[:, :1] == x[:, 1:2])
        & (x[:, 2:3] == x[:, 3:4])
        & (x[:, 4:5] == y)
        & (x[:, :1] > x[:, 2:3])
        & (x[:, 2:3] > y)
        & (y > 5)
    ),
    "two by orders": lambda x, y: (x >= 7) & (y <= -2) & ~((x > 7) | (y < -2)) & (x[:, 1:2] > 5),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in _LATE else ()) for one in _AT_ONCE]
)
def test_several_comparisons_may_have_to_be_equal_at_once(name: str) -> None:
    def plain(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.where(z > 3, z, x)

    def apart(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.where(_AT_ONCE[name](x, y) & ~(z > 3), 0.0, torch.where(z > 3, z, x))

    inputs = [torch.randn(4, 5) for _ in range(3)]
    for seed in range(4):
        assert equivalent(plain, apart, *inputs, floats=False, seed=seed).outcome == "unknown"
    assert equivalent(apart, apart, *inputs, floats=False).outcome == "equal"


def test_masks_that_agree_whatever_they_are_need_no_ties() -> None:
    def nested(*x: Tensor) -> Tensor:
        return torch.where((x[0] == x[1]) & (x[2] == x[3]) & (x[4] == x[5]), x[0] + x[2], x[4])

    def turned(*x: Tensor) -> Tensor:
        inner = torch.where(x[2] != x[3], x[4], torch.where(x[5] == x[4], x[2] + x[0], x[4]))
        return torch.where(x[0] != x[1], x[4], inner)

    inputs = [torch.randn(3) for _ in range(6)]
    assert equivalent(nested, turned, *inputs, floats=False).outcome == "equal"
