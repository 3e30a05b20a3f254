"""The shardings that people found by hand are found unaided, each proven; limits and pins are kept."""

from collections.abc import Callable
from typing import Any

import pytest
from shard.cases import (
    LARGE,
    attention,
    gradient,
    graph_of,
    layer,
    log_softmax,
    merged_attention,
    mlp,
    norm,
    norm_mlp,
)

from superopt.errors import InputError
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
    memory = 200e6 if function is norm_mlp else None  # else each device would have all weights
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
