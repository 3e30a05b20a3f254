"""Programs that are right in part, with a correction: proven, run, and refused where a box is one short."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import Graph, fuse, mask_values, parse_graph
from superopt.ir.windows.apart import read_as_one
from superopt.ir.windows.boxes import boxes_of
from superopt.ir.windows.partly import Corrected, corrected, partly_equal
from superopt.ir.windows.products import agreement
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs
from tests.windows.test_window_derivations import tensors_of
from tests.windows.test_window_search import check_kernels, searched

SEAM = """graph seam
axes b=4 c=3 f=5 w1=9 w=9 s=3
in x: f32[c, b, w1]
in k: f32[f, c, s]
t2 = window[w1 = w + s - 1](x)
t3 = contract[c, s](t2, k)
out y: f32[b, f, w] = t3
"""
IMAGE = """graph image
axes b=2 c=3 f=4 h1={h} w1={w} h={h} w={w} r=3 s=3
in x: f32[b, c, h1, w1]
in k: f32[f, c, r, s]
in z: f32[f]
t3 = window[h1 = h + r - 1, w1 = w + s - 1](x)
t4 = contract[c, r, s](t3, k)
t5 = add(t4, z)
t6 = relu(t5)
out y: f32[b, f, h, w] = t6
"""


def named(graph: Graph, name: str) -> Corrected:
    """Return the corrected program of one mutation."""
    [found] = [one for one in corrected(graph) if one.name == name]
    return found


def test_images_are_joined_to_one_and_the_seam_is_corrected() -> None:
    """The case that PET begins with: images side by side, convolved as one image."""
    graph = parse_graph(SEAM)
    found = named(graph, "b and w joined")
    # Where an image ends the next one is read, but for the outer ends of all.
    assert found.boxes == (
        {"b": range(3), "w": range(8, 9)},
        {"b": range(1, 4), "w": range(1)},
    )
    assert equal_graphs(graph, found.graph, seed=1).equal
    torch.manual_seed(0)
    tensors = {"x": torch.randn(3, 4, 9), "k": torch.randn(5, 3, 3)}
    image = tensors["x"].double().transpose(0, 1)
    check_kernels(found.graph, tensors, F.conv1d(image, tensors["k"].double(), padding=1))


def test_an_infinity_where_images_are_joined_stays_in_its_own() -> None:
    graph = parse_graph(SEAM)
    found = named(graph, "b and w joined")
    assert all(mask_values(found.graph)[at] for at, step in found.graph.numbered if step.op == "or")
    tensors = tensors_of(graph)
    tensors["x"][:, 1, 0] = torch.inf
    expected = run_graph(graph, tensors)["y"]
    assert expected[0].isfinite().all()
    torch.testing.assert_close(run_graph(found.graph, tensors)["y"], expected, equal_nan=True)


@pytest.mark.parametrize(("h", "w"), [(7, 7), (1, 8), (5, 2), (14, 11)])
def test_rows_are_joined(h: int, w: int) -> None:
    graph = parse_graph(IMAGE.format(h=h, w=w))
    tensors = tensors_of(graph)
    expected = run_graph(graph, tensors)["y"]
    made = list(corrected(graph))
    assert made or h == 1
    for one in made:
        torch.testing.assert_close(run_graph(one.graph, tensors)["y"], expected)
        assert equal_graphs(graph, one.graph, seed=1).equal


def test_long_images_are_proven_and_run() -> None:
    graph = parse_graph(IMAGE.format(h=60, w=70))
    found = named(graph, "h and w joined")
    assert [sorted(box) for box in found.boxes] == [["h", "w"], ["h", "w"]]
    assert equal_graphs(graph, found.graph, seed=1).error_bound == 0
    torch.manual_seed(0)
    tensors = {port.name: torch.randn(graph.shape(port)) for port in graph.inputs}
    doubles = {name: one.double() for name, one in tensors.items()}
    expected = F.relu(F.conv2d(doubles["x"], doubles["k"], doubles["z"], padding=1))
    check_kernels(found.graph, tensors, expected)
    turned = tensors["x"].transpose(2, 3).contiguous()
    tensors["x"] = turned.transpose(2, 3)  # now its rows do not follow each other in memory
    check_kernels(found.graph, tensors, expected)


def _changed(text: str) -> Iterator[str]:
    """Yield a corrected program with one number of a place, or of a mask, that is off by one."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if "window[" in line:
            head, _, tail = line.rpartition("]")
            yield "\n".join([*lines[:at], f"{head} + 1]{tail}", *lines[at + 1 :]])
        if "const[" in line:
            number = int(line.partition("[")[2].partition("]")[0])
            for other in (number - 1, number + 1):
                wrong = line.replace(f"const[{number}]", f"const[{other}]")
                yield "\n".join([*lines[:at], wrong, *lines[at + 1 :]])
        if " ge(" in line:
            yield "\n".join([*lines[:at], line.replace(" ge(", " gt("), *lines[at + 1 :]])


@pytest.mark.parametrize("name", [pytest.param("b and w joined", marks=pytest.mark.slow), "the inside apart"])
def test_a_correction_that_is_a_little_off_is_refused(name: str) -> None:
    graph = parse_graph(SEAM)
    tensors = tensors_of(graph)
    expected = run_graph(graph, tensors)["y"]
    refused = 0
    for text in _changed(str(named(graph, name).graph)):
        wrong = parse_graph(text + "\n")
        differs = not torch.allclose(run_graph(wrong, tensors)["y"], expected)
        assert not (differs and equal_graphs(graph, wrong, seed=1).equal), text
        refused += differs
    assert refused > 4


def test_a_box_one_short_is_refused() -> None:
    graph = parse_graph(SEAM)
    text = str(named(graph, "b and w joined").graph)
    for size in ("b_part=3", "b_part_=3"):
        assert size in text
        short = parse_graph(text.replace(size, size.replace("3", "2")))
        assert not equal_graphs(graph, short, seed=1).equal


def test_where_a_mutant_is_right_it_is_so_in_numbers() -> None:
    for h, w in ((7, 7), (3, 5), (8, 2)):
        graph = parse_graph(IMAGE.format(h=h, w=w))
        for mutant in partly_equal(graph):
            axes = ["b", "f", "h", "w"]
            found = agreement(mutant.graph, mutant.value, mutant.graph, mutant.other, axes)
            assert found is not None
            numbers = []
            for value in (mutant.value, mutant.other):
                out = f"out y: f32[b, f, h, w] = t{value}\n"
                text = "\n".join(str(mutant.graph).splitlines()[:-1]) + "\n" + out
                numbers.append(run_graph(parse_graph(text), tensors_of(graph))["y"])
            near = torch.isclose(*numbers, atol=1e-9).all(1).all(0).numpy()
            moving, right = found
            if moving == ("h", "w"):
                assert (near == right).all()


def test_boxes_cover_what_is_true_once() -> None:
    draw = random.Random(0)
    for _ in range(200):
        shape = [draw.choice((1, 2, 5)) for _ in range(draw.choice((1, 2, 3)))]
        share = draw.choice((0.0, 0.2, 0.8, 1.0))
        where = np.array([draw.random() < share for _ in range(int(np.prod(shape)))]).reshape(shape)
        names = ("i", "j", "k")[: len(shape)]
        counts = np.zeros(shape, dtype=int)
        for box in boxes_of(names, where):
            counts[tuple(slice(box[name].start, box[name].stop) for name in names)] += 1
        assert (counts == where).all()


def test_what_has_no_positions_is_not_corrected() -> None:
    assert list(corrected(parse_graph(SEAM.replace("b=4", "b=0")))) == []
    assert list(corrected(parse_graph(IMAGE.format(h=0, w=8)))) == []


def test_the_search_has_corrected_programs() -> None:
    region = searched(SEAM)
    found = [one.correction for one in region.found if one.correction]
    assert "b and w joined; again at b 0:3, w 8:9 and b 1:4, w 0:1" in found


def test_inputs_that_are_read_as_one_line_are_known() -> None:
    graph = named(parse_graph(SEAM), "b and w joined").graph
    assert read_as_one(graph) == {0}
    assert read_as_one(parse_graph(SEAM)) == frozenset()


def test_inputs_that_are_read_as_one_line_may_lie_apart() -> None:
    """Before: where the results had a place, they were read as if they lay in one line."""
    graph = named(parse_graph(SEAM), "b and w joined").graph
    kernels = CppMuGraph(fuse(graph))
    torch.manual_seed(0)
    lying = [torch.randn(graph.shape(port)) for port in graph.inputs]
    apart = [one.mT.contiguous().mT if one.dim() > 1 else one for one in lying]
    wanted = kernels.in_order(lying)
    found = [torch.empty_like(one) for one in wanted]
    kernels.into(apart, found)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
