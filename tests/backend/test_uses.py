"""What programs do with compiled modules: threads, copies, files, checkpointing, export, attention."""

import copy
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from superopt.backend import region_plan
from superopt.backend.decision import Decision

from .conftest import Host, close, troubles
from .modules import WIDTH, Attention, Gated, Mlp, Norm, Residual
from .test_compile import block, data


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch compute what kernels would, which needs no compiler."""
    monkeypatch.setattr(region_plan.RegionPlan, "by_kernels", lambda self, known: self.by_torch(known))


def test_threads(taken: list[Decision]) -> None:
    module, host = block(), Host()
    compiled = torch.compile(module, backend=host)
    wrong: list[int] = []

    def work(number: int) -> None:
        x = data() + number
        with torch.no_grad():
            for _ in range(3):
                if not torch.allclose(compiled(x), module(x), rtol=2e-4, atol=2e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert host.calls > 0


def test_a_copy_of_a_compiled_module(taken: list[Decision]) -> None:
    module, host = block(), Host()
    compiled = torch.compile(module, backend=host)
    with torch.no_grad():
        expected = compiled(data())
        close(copy.deepcopy(compiled)(data()), expected)
    close(expected, module(data()))


def test_a_compiled_module_in_a_file(tmp_path: Path) -> None:
    """As with any backend, the module is kept, and is compiled anew where it is read."""
    module = Mlp(torch.relu, bias=False)
    compiled = torch.compile(module, backend="superopt", options={"budget_s": 0})
    again = pickle.loads(pickle.dumps(compiled))
    torch.save(compiled.state_dict(), tmp_path / "state.pt")
    with torch.no_grad():
        close(again(data()), module(data()))
        compiled.load_state_dict(torch.load(tmp_path / "state.pt"))
        close(compiled(data()), module(data()))


def test_activation_checkpointing(taken: list[Decision]) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Residual(Gated(F.silu, merged=False), Norm("rms"))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    torch.manual_seed(0)
    module, host = Checkpointed(), Host()
    compiled = torch.compile(module, backend=host)
    x, y = (data().requires_grad_() for _ in range(2))
    compiled(x).square().sum().backward()
    found = [x.grad, *(one.grad for one in module.parameters())]
    module.zero_grad()
    module(y).square().sum().backward()
    for a, b in zip(found, [y.grad, *(one.grad for one in module.parameters())], strict=True):
        assert a is not None
        assert b is not None
        close(a, b)
    assert host.calls > 0


def test_a_module_exported_with_other_lengths(taken: list[Decision]) -> None:
    module, host = block().eval(), Host()
    length = torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(module, (data(),), dynamic_shapes=({1: length},)).module()
    compiled = torch.compile(exported, backend=host, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 9):
            close(compiled(data(tokens)), module(data(tokens)))
    assert host.calls > 0


def names_of(host: Host) -> list[str]:
    return [one.operators for one in host.ledger.decisions]


def attention() -> nn.Module:
    torch.manual_seed(0)
    return Residual(Attention(causal=True, whole=True, grouped=False), Norm("rms"))


def test_attention_is_part_of_a_region_in_inference(taken: list[Decision]) -> None:
    module, host = attention(), Host()
    with torch.no_grad():
        close(torch.compile(module, backend=host)(data()), module(data()))
    assert any("flash_attention_for_cpu" in name for name in names_of(host))
    calls = [node for graph in host.graphs for node in graph.nodes if "flash_attention" in str(node.target)]
    assert not calls


def test_attention_stays_where_a_backward_pass_needs_its_sums(taken: list[Decision]) -> None:
    module, host = attention(), Host()
    x = data().requires_grad_()
    torch.compile(module, backend=host)(x).sum().backward()
    assert not any("flash_attention_for_cpu.default" in name for name in names_of(host))
    calls = [node for graph in host.graphs for node in graph.nodes if "flash_attention" in str(node.target)]
    assert len(calls) == 2


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_a_mask_and_shared_heads(kind: str, taken: list[Decision]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        shown = mask > 0 if kind == "bool" else mask
        return F.scaled_dot_product_attention(q, k, v, shown, enable_gqa=True).transpose(1, 2).flatten(2)

    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, length, 8, generator=random) for heads, length in ((4, 1), (2, 9), (2, 9))
    )
    mask = torch.randn(1, 1, 1, 9, generator=random)
    host = Host()
    with torch.no_grad():
        close(torch.compile(attend, backend=host)(q, k, v, mask), attend(q, k, v, mask))
    assert host.calls == 1


def test_sizes_that_depend_on_data_leave_the_other_regions(
    taken: list[Decision], warnings_logged: pytest.LogCaptureFixture
) -> None:
    first, second = Mlp(torch.relu, bias=False), torch.nn.Linear(WIDTH, 4)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        made = first(x).flatten(0, 1)
        return made, second(made[(made[:, 0] > 0).nonzero().squeeze(1)])

    host = Host()
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for a, b in zip(torch.compile(both, backend=host, fullgraph=True)(data()), both(data()), strict=True):
            close(a, b)
    assert host.calls == 1
    assert not troubles(warnings_logged)


@pytest.mark.parametrize("place", ["first", "last", "everywhere"])
def test_a_number_that_is_a_symbol_leaves_the_rest_of_a_region(place: str, taken: list[Decision]) -> None:
    inner = Mlp(torch.tanh, bias=False)

    def shifted(x: Tensor, number: int) -> Tensor:
        made = inner(x + number if place != "last" else x)
        return made / number if place != "first" else made

    host = Host()
    compiled = torch.compile(shifted, backend=host, dynamic=True)
    with torch.no_grad():
        for number in (3, 4, 7):
            close(compiled(data(number), number), shifted(data(number), number))
    assert names_of(host) == ["aten.mm.default, aten.tanh.default, aten.mm.default"]
    assert len(host.graphs) == host.calls == 1


@pytest.mark.parametrize("kind", ["a row", "a number", "all of it"])
def test_a_size_that_is_a_sum_with_a_symbol_is_no_fixed_size(kind: str, taken: list[Decision]) -> None:
    """No input of the region has the symbol by itself as its size."""
    inner, prefix = Mlp(torch.tanh, bias=False), torch.randn(1, 10, WIDTH)

    def prompted(x: Tensor) -> Tensor:
        found = torch.cat([prefix, x], 1).sort(1).values
        if kind == "a row":
            return inner(found[:, -1])
        return inner(found) / (found.shape[1] if kind == "a number" else 1)

    compiled = torch.compile(prompted, backend=Host(), dynamic=True)
    with torch.no_grad():
        for rows in (20, 33, 5):
            x = torch.randn(1, rows, WIDTH)
            close(compiled(x), prompted(x))
    assert kind != "all of it" or taken
