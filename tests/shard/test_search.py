"""The shardings that people found by hand are found unaided, each proven; limits and pins are kept."""

from collections.abc import Callable
from typing import Any

import pytest
from shard.cases import (
    LARGE,
    attention,
    experts,
    gradient,
    gradients,
    graph_of,
    layer,
    log_softmax,
    merged_attention,
    mlp,
    norm,
    norm_mlp,
    routed,
)

from superopt.errors import InputError
from superopt.shard.costs import Costs
from superopt.shard.machine import parse_machine
from superopt.shard.proof import prove_sharded
from superopt.shard.search import plan_shardings
from superopt.shard.sharded import Placement

FOUR = "gpu=4 @ 200 GB/s"
Pins = dict[str, Placement]

# function, pins, placements of inputs in the best plan, moves of the best plan in order
FOUND: tuple[tuple[Callable[..., Any], Pins, dict[str, str | None], tuple[str, ...]], ...] = (
    # Megatron's MLP: columns, then rows, then one reduction.
    (mlp, {"x": (None,), "out": (None,)}, {"w1": "n", "w2": "n"}, ("all-reduce",)),
    # Megatron's attention: heads, then rows, then one reduction.
    (
        attention,
        {"x": (None,), "out": (None,)},
        {"wq": "h", "wk": "h", "wv": "h", "wo": "h"},
        ("all-reduce",),
    ),
    # Sequence parallelism: the norm on a share of the tokens.
    (
        norm_mlp,
        {"x": ("m",), "out": ("m",)},
        {"g": None, "w1": "n", "w2": "n"},
        ("all-gather", "reduce-scatter"),
    ),
    (norm, {"x": ("m",)}, {"g": None}, ()),
    # Data parallelism: the gradients of all shares of the batch are added up.
    (gradient, {"x": ("m",), "out": (None,)}, {"w": None, "target": "m"}, ("all-reduce",)),
    # The same with the gradients of a share of the weights on each device.
    (gradient, {"x": ("m",), "out": ("k",)}, {"w": None, "target": "m"}, ("reduce-scatter",)),
    # Experts in shares, all on all tokens: one reduction adds up what they give.
    (experts, {"x": (None,), "out": (None,)}, {"w1": "n", "w2": "n"}, ("all-reduce",)),
    # Groups of tokens and experts in shares: tokens go to their experts and come back.
    (
        routed,
        {"x": ("b",), "dispatch": ("b",), "combine": ("b",), "out": ("b",)},
        {"w1": "s", "w2": "s"},
        ("all-to-all", "all-to-all"),
    ),
    # A vocabulary in shares: the maximum and the sum over all of it.
    (log_softmax, {"x": (None,), "out": ("n",)}, {"w": "n"}, ("all-reduce", "all-reduce")),
    # Long contexts in shares: maximum, denominator and numerator are merged.
    (
        merged_attention,
        {"q": (None,), "out": (None,)},
        {"k": "n", "v": "n"},
        ("all-reduce", "all-reduce", "all-reduce"),
    ),
)


@pytest.mark.parametrize(("function", "pins", "placed", "moves"), FOUND)
def test_shardings_found_by_hand_are_found_unaided(
    function: Callable[..., Any], pins: Pins, placed: dict[str, str | None], moves: tuple[str, ...]
) -> None:
    graph = graph_of(function, *LARGE[function])
    # Else each device would have all weights.
    memory = {norm_mlp: 200e6, experts: 60e6, routed: 40e6}.get(function)
    best = plan_shardings(graph, parse_machine(FOUR), pins=pins, memory=memory).best.sharded
    assert {name: best.placement_of(name)[0] for name in placed} == placed, str(best)
    assert tuple(one.kind for one in best.moves) == moves, str(best)
    verdict = prove_sharded(best, original=graph)
    assert verdict, str(verdict.verdict)


@pytest.mark.parametrize("function", list(LARGE))
def test_every_plan_is_proven_on_two_levels(function: Callable[..., Any]) -> None:
    graph = graph_of(function, *LARGE[function])
    plans = plan_shardings(
        graph, parse_machine("node=2 @ 20 GB/s, gpu=2 @ 200 GB/s"), alternatives=1, states=8
    )
    assert list(plans.found) == sorted(plans.found, key=lambda plan: plan.seconds)
    for plan in plans.found:
        assert prove_sharded(plan.sharded), str(plan.sharded)


@pytest.mark.slow
def test_a_whole_layer_is_sharded_and_proven() -> None:
    wide = [(512, 512)] * 4
    graph = graph_of(layer, (256, 512), (512,), *wide, (512,), (512, 1024), (512, 1024), (1024, 512))
    plans = plan_shardings(
        graph, parse_machine("gpu=4 @ 200 GB/s"), pins={"x": ("m",), "out": ("m",)}, memory=8e6
    )
    assert plans.best.bytes <= 8e6
    assert prove_sharded(plans.best.sharded, original=graph)


def test_more_memory_is_never_slower() -> None:
    graph = graph_of(mlp, *LARGE[mlp])
    machine = parse_machine("node=2 @ 20 GB/s, gpu=4 @ 200 GB/s")
    tight, loose = (plan_shardings(graph, machine, memory=memory).best for memory in (75e6, 1e9))
    assert tight.bytes <= 75e6 < loose.bytes
    assert loose.seconds <= tight.seconds


def test_too_little_memory_says_what_is_enough() -> None:
    graph = graph_of(mlp, *LARGE[mlp])
    with pytest.raises(InputError, match="the nearest choice that works") as error:
        plan_shardings(graph, parse_machine(FOUR), memory=1e6)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"w1": ("z",)}, "w1 has no axis 'z'"),
        ({"x": ("m",)}, "axis 'm' of x has size 6, which gpu=4 does not divide.*works: gpu=3, or split k"),
        ({"y": (None,)}, "no tensor 'y'"),
        ({"x": (None, None)}, "a placement for each of gpu"),
    ],
)
def test_pins_that_cannot_be_kept_name_what_can(pins: Pins, said: str) -> None:
    graph = graph_of(mlp, (6, 16), (16, 32), (32, 16))
    with pytest.raises(InputError, match=said):
        plan_shardings(graph, parse_machine(FOUR), pins=pins)


LAYER = ((256, 512), (512,), *((512, 512),) * 4, (512,), (512, 1024), (512, 1024), (1024, 512))


@pytest.mark.slow
def test_no_plan_by_hand_is_faster() -> None:
    """Where some ends of a layer are fixed by hand, the search never does better than without."""
    graph = graph_of(layer, *LAYER)
    machine = parse_machine("node=2 @ 20 GB/s, gpu=4 @ 200 GB/s")
    free = plan_shardings(graph, machine).best.seconds
    by_hand: tuple[Pins, ...] = (
        # Megatron's: heads and hidden features over gpu, the batch over node.
        {"x": ("m", None)}
        | dict.fromkeys(("wq", "wk", "wv", "wo"), (None, "h"))
        | dict.fromkeys(("w1", "w3", "w2"), (None, "n")),
        {"x": ("m", "m"), "wq": (None, None), "w1": (None, None)},  # tokens alone
        {"wq": ("h", "h"), "wo": ("h", "h")},
    )
    for pins in by_hand:
        assert free <= plan_shardings(graph, machine, pins=pins).best.seconds * (1 + 1e-9), pins


def test_moves_beside_computing_take_less_time_and_no_more_memory_than_given() -> None:
    graph = graph_of(gradients(mlp), (4096, 1024), (1024, 4096), (4096, 1024))
    machine = parse_machine("gpu=4 @ 20 GB/s, device 20 TFLOP/s 1 TB/s")
    best = plan_shardings(graph, machine, pins={"inputs_0": ("m",)}).best
    costs = Costs(best.sharded.layout, machine)
    spans = costs.timed(best.sharded).spans
    steps = sum(
        end - start
        for one, (start, end) in zip(best.sharded.instructions, spans, strict=True)
        if not one.moves
    )
    assert best.moving_s > 0
    assert max(steps, best.moving_s) <= best.seconds < 0.95 * (steps + best.moving_s)
    assert costs.peak(best.sharded) <= best.bytes
    assert prove_sharded(best.sharded, original=graph)


def test_tensors_that_enter_late_count_from_the_beginning() -> None:
    """The large product is gone when the last weights are read, but they lay there all along."""

    def narrowing(x: Any, w: Any, late: Any) -> Any:
        return (x @ w).sum(-1, keepdim=True) * late

    graph = graph_of(narrowing, (1024, 64), (64, 4096), (1024, 1024))
    plan = plan_shardings(graph, parse_machine("gpu=1"), alternatives=1).best
    assert plan.bytes >= 4 * (1024 * 4096 + 1024 * 1024)


def test_outputs_count_where_they_are_gathered() -> None:
    graph = graph_of(norm, *LARGE[norm])
    pins: Pins = {"x": ("m",), "out": (None,)}
    best = plan_shardings(graph, parse_machine(FOUR), pins=pins).best
    assert best.bytes >= 4 * 4096 * 4096 * (1 + 1 / 4)
    with pytest.raises(InputError, match="the nearest choice that works"):
        plan_shardings(graph, parse_machine(FOUR), pins=pins, memory=60e6)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("gpu=5", "gpu=5 divides no axis .* 'n' of size 32; .* works: gpu=4"),
        ("node=64, gpu=2", "works: node=16"),
    ],
)
def test_a_mesh_that_divides_nothing_names_the_nearest_that_does(machine: str, said: str) -> None:
    graph = graph_of(mlp, (8, 16), (16, 32), (32, 16))
    with pytest.raises(InputError, match=said) as error:
        plan_shardings(graph, parse_machine(machine))
    assert "\n" not in str(error.value)
