"""Results that lie where an input does: whatever may lie there is what it is in memory of its own."""

import random
from dataclasses import replace

import pytest
import torch
from quick import few

from superopt.codegen.cpp import CppMuGraph, default_config
from superopt.codegen.cpp.emit import lower_kernel
from superopt.ir import Graph, fuse, parse_graph
from superopt.ir.mugraph import Block

M, N = 20, 50
SHORT = 16  # the longest tile, so that there are several along each axis


def kernels_of(graph: Graph) -> CppMuGraph:
    """Return kernels in short tiles."""
    mugraph, configs = fuse(graph), {}
    for number, kernel in enumerate(mugraph.kernels):
        assert isinstance(kernel, Block)
        program = lower_kernel(mugraph, number)
        config = default_config(program, graph.sizes)
        tiles = tuple((axis, min(tile, SHORT)) for axis, tile in config.tiles)
        configs[number] = replace(config, tiles=tiles, whole=())
    return CppMuGraph(mugraph, configs)


def random_text(seed: int) -> str:
    """Return a graph that reads x, some of it several times, and makes y, of the same axes, and more."""
    draw = random.Random(seed)
    axes = {"x": "mn", "b": "n"}
    lines = []

    def add(text: str, of: str) -> None:
        name = f"t{len(lines) + 2}"
        lines.append(f"{name} = {text}")
        axes[name] = of

    for _ in range(draw.randint(3, 9)):
        names = list(axes)
        a, b = draw.choice(names), draw.choice(names)
        kind = draw.random()
        if kind < 0.35:
            add(f"{draw.choice(('tanh', 'neg', 'abs'))}({a})", axes[a])
        elif kind < 0.65:
            both = "".join(sorted({*axes[a], *axes[b]}))
            add(f"{draw.choice(('add', 'mul', 'sub'))}({a}, {b})", both)
        elif axes[a]:
            over = draw.choice(axes[a]) if kind < 0.95 else axes[a]
            rest = "".join(one for one in axes[a] if one not in over)
            add(f"{draw.choice(('sum', 'max'))}[{', '.join(over)}]({a})", rest)
    whole = [name for name in axes if axes[name] == "mn" and name != "x"]
    if not whole:
        add("tanh(x)", "mn")
        whole = [f"t{len(lines) + 1}"]
    leaving = [draw.choice(whole[-2:])]
    leaving += [one for one in draw.sample(list(axes), min(3, len(axes))) if one not in (*leaving, "x", "b")]
    outs = [
        f"out y{number}: f32[{', '.join(axes[name])}] = {name}" for number, name in enumerate(leaving[:3])
    ]
    head = [f"graph g{seed}", f"axes m={M} n={N}", "in x: f32[m, n]", "in b: f32[n]"]
    return "\n".join([*head, *lines, *outs, ""])


@pytest.mark.parametrize("seed", few(range(120), 2, 3, 30))
def test_what_may_lie_over_an_input_is_the_same_there(seed: int) -> None:
    graph = parse_graph(random_text(seed))
    kernels = kernels_of(graph)
    torch.manual_seed(seed)
    x, b = torch.randn(M, N), torch.randn(N)
    given = {"x": x, "b": b}
    apart = kernels(**given)
    for output in graph.outputs:
        name = output.port.name
        if apart[name].shape != x.shape or not kernels.may_lie_over(name, "x"):
            continue
        place = x.clone()
        results = [place if one == name else torch.empty_like(apart[one]) for one in kernels.outputs]
        kernels.into([{**given, "x": place}[one] for one in kernels.inputs], results)
        for one, made in zip(kernels.outputs, results, strict=True):
            assert torch.equal(made, apart[one]), f"{one} with {name} over x, of\n{graph}"


@pytest.mark.parametrize(
    ("steps", "may"),
    [
        (["t1 = tanh(x)"], True),
        (["t1 = max[n](x)", "t2 = sub(x, t1)"], True),
        (["t1 = max[m](x)", "t2 = sub(x, t1)"], True),
        # Before the last loop along n, or in it, all are read.
        (["t1 = sum[n](x)", "t2 = tanh(x)", "t3 = sub(t2, t1)"], True),
        (["t1 = rename[m->n, n->m](x)", "t2 = add(x, t1)"], False),
        (["t1 = select[m=0](x)", "t2 = add(x, t1)"], False),
    ],
)
def test_what_may_lie_over_an_input(steps: list[str], may: bool) -> None:
    last = steps[-1].split()[0]
    head = ["graph g", "axes m=20 n=20", "in x: f32[m, n]"]
    text = "\n".join([*head, *steps, f"out y: f32[m, n] = {last}", ""])
    assert kernels_of(parse_graph(text)).may_lie_over("y", "x") is may


def test_memory_in_another_order_is_other_memory() -> None:
    text = "graph g\naxes m=20 n=20\nin x: f32[m, n]\nt1 = tanh(x)\nout y: f32[n, m] = t1\n"
    assert not kernels_of(parse_graph(text)).may_lie_over("y", "x")


def test_numbers_of_another_width_are_other_memory() -> None:
    text = "graph g\naxes m=20 n=20\nin x: bf16[m, n]\nt1 = tanh(x)\nout y: f32[m, n] = t1\n"
    assert not kernels_of(parse_graph(text)).may_lie_over("y", "x")


def test_negated_memory_is_read_as_it_counts() -> None:
    text = "graph g\naxes m=20\nin x: f32[m]\nt1 = exp(x)\nout y: f32[m] = t1\n"
    x, made = torch.randn(20), torch.empty(20)
    kernels_of(parse_graph(text)).into([x._neg_view()], [made])
    torch.testing.assert_close(made, (-x).exp())
