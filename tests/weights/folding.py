"""What tests of folds ask of a search: the best graph, what is made of its weights once, and what is left."""

import torch
from torch import nn

from superopt.driver import RegionSearch, SearchOptions, search
from superopt.ir import Graph, value_axes
from superopt.trace import trace
from superopt.weights.division import Divided, Weights, divided, once_values, run_part

__all__ = ["FOLDED", "best", "parts", "products", "reads", "searched", "widest"]

FOLDED = """
graph folded
axes m=8 k=512 n=256
in x: f32[m, k]
in g: f32[k] constant
in w: f32[n, k] constant
t3 = mul(g, w)
t4 = contract[k](x, t3)
out y: f32[m, n] = t4
"""
"""A gain and a matrix, whose product can be made once."""


def searched(module: nn.Module, weights: Weights, *shapes: tuple[int, ...]) -> RegionSearch:
    """Search a module of one region at inputs of these shapes."""
    inputs = [torch.empty(shape, device="meta") for shape in shapes]
    program = trace(module.eval(), *inputs).program
    [region] = search(program, options=SearchOptions(weights=weights, seconds=120)).regions
    return region


def best(module: nn.Module, weights: Weights, *shapes: tuple[int, ...]) -> Graph:
    """Return the best graph that is found, which is proven equal."""
    region = searched(module, weights, *shapes)
    assert region.found[0].verdict.equal
    return region.found[0].graph


def parts(module: nn.Module, *shapes: tuple[int, ...], weights: Weights = "frozen") -> Divided:
    """Return what is made once, and what runs in each call."""
    graph = best(module, weights, *shapes)
    values = once_values(graph, weights)
    return divided(graph, values)


def reads(graph: Graph) -> set[str]:
    """Return the names of the tensors that a graph reads."""
    return {port.name for port in graph.inputs}


def products(graph: Graph) -> int:
    """Return the contractions of a graph that have weights of more than one axis as an operand."""
    matrices = {at for at, port in enumerate(graph.inputs) if port.constant and len(port.axes) > 1}
    return sum(step.op == "contract" and not matrices.isdisjoint(step.inputs) for step in graph.steps)


def widest(graph: Graph, weights: Weights) -> int:
    """Return the numbers in the largest tensor that is computed in a call."""
    run = run_part(graph, weights)
    sizes, largest = run.sizes, 0
    for axes in value_axes(run)[len(run.inputs) :]:
        count = 1
        for axis in axes:
            count *= sizes[axis]
        largest = max(largest, count)
    return largest
