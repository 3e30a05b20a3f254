"""Random small programs: the traced program computes what PyTorch computes."""

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from superopt.ir import parse_graph, print_graph
from superopt.trace import trace

Rule = Callable[[Tensor, Tensor], Tensor]

N = 4  # every tensor is N x N, so that every axis could be taken for any other

RULES: dict[str, Rule] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y.square() + 1),
    "matmul": lambda x, y: x @ y / N,
    "transpose": lambda x, y: x.T,
    "transposed sum": lambda x, y: x + y.T,
    "maximum": lambda x, y: torch.maximum(x, y.T),
    "tanh": lambda x, y: x.tanh(),
    "softmax": lambda x, y: x.softmax(0),
    "row sums": lambda x, y: x.sum(1, keepdim=True) / N + y,
    "column means": lambda x, y: x.mean(0) - y,
    "amax": lambda x, y: x - x.amax(1, keepdim=True),
    "row outer": lambda x, y: x[0][:, None] * y[0],
    "column": lambda x, y: x[:, 1] + y,
    "halves": lambda x, y: torch.cat([x[:, N // 2 :], y[:, : N // 2]], 1),
    "rows": lambda x, y: torch.cat([x[: N // 2], y[N // 2 :]], 0),
    "shuffle": lambda x, y: x.view(N, 2, N // 2).transpose(1, 2).reshape(N, N),
    "blocks": lambda x, y: x.view(2, N // 2, N).transpose(0, 1).reshape(N, N) + y,
    "causal": lambda x, y: x.masked_fill(torch.ones(N, N).tril() == 0, -torch.inf).softmax(1),
    "tril": lambda x, y: x.tril() + y.triu(1),
    "where": lambda x, y: torch.where(x > y.T, x, y),
    "index": lambda x, y: x * torch.arange(N) / N + y,
    "stack": lambda x, y: torch.stack([x, y.T], 1).mean(1),
    "gram": lambda x, y: x @ x.T / N - y,
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, (N,)),
    "sort": lambda x, y: x.sort(1).values + y,
    "square outer": lambda x, y: (x[:, None] - y[None]).square().mean(2),
    "expand": lambda x, y: x[1].expand(N, N).T * y,
}

Program = list[tuple[str, int, int]]


def build(program: Program) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        values = [a, b]
        for rule, i, j in program:
            values.append(RULES[rule](values[i % len(values)], values[j % len(values)]))
        return values[-1], values[len(values) // 2]

    return function


step = st.tuples(st.sampled_from(sorted(RULES)), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(step, min_size=1, max_size=8))
def test_random_programs(program: Program) -> None:
    function = build(program)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(N, N, dtype=torch.float64, generator=generator) for _ in range(2))
    traced = trace(function, a, b)
    torch.testing.assert_close(traced.run(a, b), function(a, b), rtol=1e-9, atol=1e-9)
    for region in traced.program.regions:
        assert parse_graph(print_graph(region.graph)) == region.graph
