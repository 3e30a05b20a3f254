"""Ranges: a result without its function serves the sizes at which the program was seen to stay the same."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import superopt
from superopt import InputError, OptimizeOptions, SearchOptions
from superopt.live.ranges import open_axes
from superopt.trace import trace

Shapes = tuple[tuple[int, ...], ...]

PLAN = OptimizeOptions(target="cpu", measure=False, graphs=1, cache=False, search=SearchOptions(max_graphs=2))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v


def heads(x: Tensor, w: Tensor) -> Tensor:
    return (x.unflatten(-1, (4, x.shape[-1] // 4)) * w).sum(-1)


def groups(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, x.shape[-1] // 4)).softmax(-1).sum(-1)


def begins(x: Tensor) -> Tensor:
    return x[:, :512].softmax(-1)


def few(x: Tensor) -> Tensor:
    return x.mean(-1) if x.shape[1] < 256 else x.sum(-1)


def many(x: Tensor) -> Tensor:
    return x.mean(-1) if x.shape[1] > 50 else x.sum(-1)


def together(x: Tensor) -> Tensor:
    return x.mean(-1) if x.numel() < 20_000 else x.sum(-1)


def wide(x: Tensor) -> Tensor:
    return x.softmax(-1) if x.shape[0] < x.shape[1] else x.softmax(0)


def even(x: Tensor) -> Tensor:
    return x.mean(-1) if x.shape[1] % 4 else x.sum(-1)


def beside(x: Tensor) -> Tensor:
    return x[:, 1:] * x[:, :-1]


def repeated(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True).expand(x.shape[0], x.shape[1]) + 1


def ones(x: Tensor) -> Tensor:
    return x @ torch.ones(x.shape[1], x.shape[1])


def squares(x: Tensor) -> Tensor:
    return (x @ x.T).relu().sum(-1)


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return (x @ x.T) * y


def counts(x: Tensor) -> tuple[Tensor, int]:
    return (x * x).sum(-1), x.shape[0]


SERVED: list[tuple[Callable[..., Any], Shapes, list[Shapes]]] = [
    (
        attention,
        ((8, 16), (24, 16), (24, 16)),
        [((9, 16), (40, 16), (40, 16)), ((100, 16), (7, 16), (7, 30))],
    ),
    (groups, ((6, 32),), [((6, 56),), ((7, 64),)]),
    (squares, ((6, 32),), [((9, 32),), ((9, 40),)]),
    (weighted, ((6, 32), (6, 6)), [((9, 8), (9, 9))]),
    (begins, ((8, 100),), [((8, 200),), ((2, 2),), ((300, 512),), ((0, 100),)]),
    (few, ((8, 100),), [((8, 128),), ((700, 3),)]),
    (beside, ((6, 32),), [((7, 32),)]),
    (counts, ((6, 32),), [((6, 33),)]),
    (together, ((8, 100),), [((9, 101),)]),
]

REFUSED: list[tuple[Callable[..., Any], Shapes, list[Shapes]]] = [
    (attention, ((8, 16), (24, 16), (24, 16)), [((8, 32), (24, 32), (24, 16))]),
    (begins, ((8, 100),), [((8, 600),), ((8, 513),)]),
    (begins, ((8, 600),), [((8, 100),)]),
    (few, ((8, 100),), [((8, 256),), ((8, 600),)]),
    (many, ((8, 100),), [((8, 50),), ((8, 2),)]),
    (together, ((8, 100),), [((180, 180),), ((300, 100),)]),
    (wide, ((8, 100),), [((200, 100),), ((100, 50),)]),
    (even, ((8, 100),), [((8, 101),)]),
    (even, ((8, 101),), [((8, 200),)]),
    (beside, ((6, 32),), [((6, 40),)]),
    (repeated, ((6, 32),), [((7, 32),), ((0, 32),)]),
    (ones, ((6, 32),), [((6, 40),)]),
    (counts, ((6, 32),), [((7, 32),), ((0, 32),)]),
]


@cache
def planned(function: Callable[..., Any], shapes: Shapes) -> superopt.Optimized:
    return superopt.optimize(function, *(torch.randn(shape) for shape in shapes), options=PLAN)


def saved(function: Callable[..., Any], shapes: Shapes, path: Path) -> Path:
    planned(function, shapes).save(path / "plan.json")
    return path / "plan.json"


@pytest.mark.parametrize(("function", "built", "called"), SERVED)
def test_sizes_that_are_served(
    function: Callable[..., Any], built: Shapes, called: list[Shapes], tmp_path: Path
) -> None:
    loaded = superopt.load(saved(function, built, tmp_path))
    for shapes in (built, *called):
        inputs = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(loaded(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("function", "built", "called"), REFUSED)
def test_sizes_at_which_the_program_is_another_one(
    function: Callable[..., Any], built: Shapes, called: list[Shapes], tmp_path: Path
) -> None:
    path = saved(function, built, tmp_path)
    loaded, given = superopt.load(path), superopt.load(path, function)
    for shapes in called:
        inputs = [torch.randn(shape) for shape in shapes]
        with pytest.raises(InputError, match=r"tried with .*; give the function to load\(\)"):
            loaded(*inputs)
        torch.testing.assert_close(given(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


def test_axes_that_must_agree_do(tmp_path: Path) -> None:
    loaded = superopt.load(saved(weighted, ((6, 32), (6, 6)), tmp_path))
    with pytest.raises((InputError, RuntimeError)):
        loaded(torch.randn(9, 8), torch.randn(9, 8))


def test_older_files_serve_the_sizes_they_were_made_for(tmp_path: Path) -> None:
    """They name the axes that may change, which were tried at one size more."""
    path = saved(begins, ((8, 100),), tmp_path)
    data = json.loads(path.read_text())
    assert data["open_axes"]["k"] == [0, 512]
    data["open_axes"] = ["k", "m"]
    path.write_text(json.dumps(data))
    x = torch.randn(8, 100)
    torch.testing.assert_close(superopt.load(path)(x), begins(x))
    with pytest.raises(InputError, match="no other sizes"):
        superopt.load(path)(torch.randn(8, 200))
    torch.testing.assert_close(superopt.load(path, begins)(x[:, :50]), begins(x[:, :50]))


@pytest.mark.parametrize("damaged", [{"k": 3}, {"k": [2]}, {"k": [2, "9"]}, {"k": [-1, 9]}, 7])
def test_ranges_of_a_file_are_not_believed(damaged: object, tmp_path: Path) -> None:
    path = saved(begins, ((8, 100),), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "open_axes": damaged}))
    with pytest.raises(InputError, match="damaged"):
        superopt.load(path)


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (attention, ((8, 16), (24, 16), (24, 20)), {"m", "n", "r"}),
        (heads, ((6, 32), (8,)), {"m", "n"}),
    ],
)
def test_axes_that_may_change_are_found_by_tracing(
    function: Callable[..., Any], shapes: Shapes, expected: set[str]
) -> None:
    inputs = tuple(torch.empty(shape, device="meta") for shape in shapes)
    traced = trace(function, *inputs)
    found = open_axes(function, traced, inputs)
    if function is attention:
        assert found.keys() == expected
    else:  # the number of heads is written in the program; how long each is is not
        [region] = traced.program.regions
        fixed = {axis for axis, size in region.graph.sizes.items() if size == 4}
        assert found.keys() == set(region.graph.sizes) - fixed


def test_many_axes_reach_far() -> None:
    """Before a limit together, all at once: more elements than any memory has."""
    inputs = (torch.empty(2, 4, 16, 8, device="meta"),)
    found = open_axes(lambda x: x.softmax(-1), trace(lambda x: x.softmax(-1), *inputs), inputs)
    assert len(found) == 4
    assert all(low <= 2 and high >= 1024 for low, high in found.values())
