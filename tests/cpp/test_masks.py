"""Products with masks: what a mask hides adds nothing, infinities included."""

import pytest
import torch
from masks import CHOSEN
from quick import few

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import fuse, parse_graph
from superopt.trace import run_graph, trace


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


COMPARED = {
    "at least": lambda x: torch.where(x >= 0, x, 1.0),
    "at most": lambda x: torch.where(x <= 0, x, 1.0),
    "not less": lambda x: torch.where(~(x < 0), 2.0, 1.0),
    "unequal": lambda x: torch.where(x != 0, 2.0, 1.0),
    "itself": lambda x: torch.where(x == x, x, 1.0).sum(-1),
    "all": lambda x: (x <= 9).all(-1).float(),
    "a sum of masks": lambda x: (x >= 0).float() + (x <= 0).float(),
    "a shrunk number": torch.nn.functional.softshrink,
}


@pytest.mark.parametrize("function", COMPARED.values(), ids=COMPARED.keys())
def test_comparisons_of_nan_come_out_as_pytorchs_do(function) -> None:
    x = torch.randn(5, 24)
    x[1, 3] = x[4] = float("nan")
    [region] = trace(function, x).program.regions
    [port] = region.graph.inputs
    found = CppMuGraph(fuse(region.graph), flags=("-O1",))(**{port.name: x})
    [made], wanted = found.values(), function(x)
    assert wanted[1:].isfinite().any()
    assert torch.allclose(made, wanted, equal_nan=True)
    [by_steps] = run_graph(region.graph, {port.name: x}, torch.float32).values()
    assert torch.allclose(by_steps, wanted, equal_nan=True)


@pytest.mark.parametrize("is_mask", [True, False])
def test_a_mask_is_divided_by_a_root_as_pytorch_divides_it(is_mask: bool) -> None:
    """Before: what a mask hides was 0 even where the root is 0 or no number."""

    def divided(m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return m / v.sqrt()

    m, v = torch.arange(40).view(5, 8) % 3 > 0, torch.tensor([0.0, 1.0, -1.0, 4.0, float("nan")])[:, None]
    given = (m if is_mask else m.float()), v
    [region] = trace(divided, *given).program.regions
    names = [port.name for port in region.graph.inputs]
    [made] = CppMuGraph(fuse(region.graph), flags=("-O1",))(**dict(zip(names, given, strict=True))).values()
    wanted = divided(*given)
    assert wanted[0].isnan().any()
    torch.testing.assert_close(made, wanted, equal_nan=True)


TRUTHS = {
    "an average": lambda x, m: (x * m.float()).sum(-1) / m.float().sum(-1),
    "its opposite": lambda x, m: torch.where(~m, x, 0.0),
    "a number": lambda x, m: x + (1 - m.float()) * -4,
    "either": lambda x, m: (m | (x > 0)).float() + x,
    "a product": lambda x, m: m.float() @ x.T,
}


@pytest.mark.parametrize("name", few(TRUTHS, "an average", "its opposite", "a number"))
@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
def test_any_byte_but_0_is_true(name: str, across: bool) -> None:
    """As in PyTorch; before: a byte of 255, as images have it, counted as the number 255."""
    function, x = TRUTHS[name], torch.randn(19, 45)
    m = torch.arange(19 * 45).view(45, 19).T % 3 > 0 if across else torch.arange(19 * 45).view(19, 45) % 3 > 0
    bytes_of = (m.to(torch.uint8) * 255).view(torch.bool)
    assert bytes_of.stride() == m.stride()
    [region] = trace(function, x, m).program.regions
    given = {port.name: bytes_of if port.dtype == "bool" else x for port in region.graph.inputs}
    [made] = CppMuGraph(fuse(region.graph), flags=("-O1",))(**given).values()
    torch.testing.assert_close(made, function(x, m), rtol=1e-4, atol=1e-4)
