"""What graphs mean in float64, for tests that compare them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.ir import Graph
from superopt.trace.run import run_graph

Evaluate = Callable[[Graph], dict[str, Tensor]]


@pytest.fixture
def evaluate() -> Evaluate:
    """Return the outputs of a graph on inputs drawn for their names: the same for every graph."""

    def outputs(graph: Graph) -> dict[str, Tensor]:
        tensors = {}
        for port in graph.inputs:
            draw = torch.Generator().manual_seed(sum(map(ord, port.name)))
            tensors[port.name] = torch.rand(graph.shape(port), generator=draw, dtype=torch.float64) + 0.5
        return run_graph(graph, tensors)

    return outputs
