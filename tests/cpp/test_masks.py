"""Products with masks: what a mask hides adds nothing, infinities included."""

import pytest
import torch
from masks import CHOSEN

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import fuse, parse_graph
from superopt.trace import run_graph


@pytest.mark.parametrize("text", CHOSEN.values(), ids=CHOSEN.keys())
def test_masks_hide_infinities(text: str) -> None:
    graph = parse_graph(text)
    torch.manual_seed(0)
    inputs = {port.name: 90 + 100 * torch.rand(graph.shape(port)) for port in graph.inputs}
    inputs["seen"] = inputs["seen"] > 140
    found = CppMuGraph(fuse(graph), flags=("-O1",))(**inputs)["o"]
    wanted = run_graph(graph, inputs, torch.float32)["o"]
    assert wanted.isfinite().all()
    assert torch.equal(found, wanted)
