"""How many bytes schedules hold, and that only those which fit are kept."""

from dataclasses import replace

import pytest
import torch
from programs import TWO_PRODUCTS, gated_backward

from superopt.candidates.schedules import schedules
from superopt.driver import SearchOptions, search
from superopt.ir import Graph, parse_mugraph
from superopt.schedule import Room, explored
from superopt.targets import pick_target
from superopt.trace import trace

X, W, V, OUT, BETWEEN = 4 * 4 * 8, 4 * 8 * 6, 4 * 6 * 5, 4 * 4 * 5, 4 * 4 * 6


@pytest.mark.parametrize(
    ("ending", "rounding", "most"),
    [
        ((), "", BETWEEN + OUT),
        (("x",), "", max(X + BETWEEN, BETWEEN + OUT)),
        (("x", "w"), "", X + W + BETWEEN),
        (("x", "w", "v"), "", X + W + V + BETWEEN),
        (("v",), "", V + BETWEEN + OUT),
    ],
)
def test_most_bytes(ending: tuple[str, ...], rounding: str, most: int) -> None:
    """Inputs that end are held to their last reader, results from when they are made."""
    mugraph = parse_mugraph(TWO_PRODUCTS.format(rounding=rounding))
    room = Room(most, frozenset(ending))
    assert room.most_bytes(mugraph) == most
    assert room.misfit(mugraph) is None
    assert "there is room for" in str(Room(most - 1, frozenset(ending)).misfit(mugraph))
    assert room.least_bytes(mugraph.graph) <= most


def test_values_in_half_precision_take_half() -> None:
    text = TWO_PRODUCTS.replace("f32", "bf16").format(rounding="round t3 to bf16\n")
    assert Room(0).most_bytes(parse_mugraph(text)) == (BETWEEN + OUT) // 2


def test_a_library_copies_operands_in_half_precision() -> None:
    """Operands in another order, and the product in their dtype."""
    text = (
        TWO_PRODUCTS.format(rounding="round t3 to bf16\n")
        .replace("in x: f32", "in x: bf16")
        .replace("w: f32", "w: bf16")
    )
    called = text.replace("kernel grid[m, n]\n  loop[k]\n    t3 += ", "kernel call\n  t3 = ")
    first = BETWEEN // 2 + (X + W + BETWEEN) // 2
    assert Room(0).most_bytes(parse_mugraph(called)) == max(first, BETWEEN // 2 + OUT)
    assert Room(0).most_bytes(parse_mugraph(text)) == BETWEEN // 2 + OUT


def test_a_result_that_is_read_later_lies_in_memory_once() -> None:
    text = TWO_PRODUCTS.format(rounding="") + "out between: f32[m, n] = t3\n"
    assert Room(0).most_bytes(parse_mugraph(text)) == BETWEEN + OUT
    turned = TWO_PRODUCTS.format(rounding="") + "out between: f32[n, m] = t3\n"
    assert Room(0).most_bytes(parse_mugraph(turned)) == 2 * BETWEEN + OUT


def test_parts_have_what_others_leave() -> None:
    first = trace(lambda x, w: x @ w, torch.empty(4, 8), torch.empty(8, 6), name="p.0").graph
    [made] = [output.port.name for output in first.outputs]
    x = first.inputs[0].name
    second = trace(lambda y, v: y @ v, torch.empty(4, 6), torch.empty(6, 5), name="p.1").graph
    names = dict(zip((port.name for port in second.inputs), (made, "v"), strict=True))
    second = _renamed(second, names)
    result = second.outputs[0].port.name
    rooms = Room(10_000, frozenset({x, "v"})).of_parts([first, second], [result])
    assert rooms[0] == Room(10_000 - V, frozenset({x}))  # the second part's input waits
    assert rooms[1] == Room(10_000, frozenset({made, "v"}))
    kept = Room(10_000, frozenset({x, "v"})).of_parts([first, second], [result, made])
    assert kept[1] == Room(10_000 - BETWEEN, frozenset({"v"}))  # a result of the whole does not end


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    inputs = tuple(replace(port, name=names[port.name]) for port in graph.inputs)
    outputs = tuple(replace(one, port=replace(one.port, name="last")) for one in graph.outputs)
    return replace(graph, inputs=inputs, outputs=outputs)


def test_only_what_fits_is_kept() -> None:
    program = trace(gated_backward, *(torch.empty(64, 64) for _ in range(5)), name="g").program
    found = search(program, options=SearchOptions(seconds=5)).regions
    target = pick_target("cpu")
    one = 64 * 64 * 4
    for most in (5 * one, 8 * one, 100 * one):
        room = Room(most)
        ways = [schedules(part.goal, part.found, target, graphs=2, room=room) for part in found[:1]]
        for way in ways:
            assert all(room.most_bytes(kept.mugraph) <= most for kept in way.candidates)
            assert way.candidates or any("there is room for" in lost.fate.reason for lost in way.dropped)
    assert ways[0].candidates


def test_products_that_leave_come_late() -> None:
    """Large results need not wait in memory beside all that they are made of."""
    shapes = ((64, 64), (64, 64), (64, 64), (64, 256), (64, 64))
    program = trace(gated_backward, *map(torch.empty, shapes), name="g").program
    [region] = search(program, options=SearchOptions(seconds=5)).regions
    room = Room(0, frozenset(port.name for port in region.goal.inputs))
    most: dict[bool, list[int]] = {False: [], True: []}
    for one in explored(region.found, pick_target("cpu").cost_device()):
        most[one.recipe.late].append(room.most_bytes(one.mugraph))
    assert min(most[True]) < min(most[False])
