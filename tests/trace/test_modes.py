"""Where a function is called: in modes of autograd, within transforms, and on devices.

Inference mode is traced as no_grad; functions that take gradients have them on. A function is told the device
of its inputs, though it is traced on tensors without data.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import superopt
from superopt.errors import TraceError
from superopt.ir import print_program
from superopt.trace import trace


class Attention(nn.Module):
    """Composite operators of several kinds, some of which read nothing but parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.matmul(q, k.transpose(-2, -1)).softmax(-1)
        mixed = torch.matmul(self.out.weight, torch.diag(self.scale).t())
        return F.linear(weights @ v, mixed, self.out.bias).flatten(0, 1).view_as(x)


@torch.inference_mode()
def decorated(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(x, w).reshape(-1, 4).contiguous().softmax(-1)


def plain(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(x, w).reshape(-1, 4).contiguous().softmax(-1)


def made(inside: bool) -> tuple[nn.Module, Tensor]:
    """Return the same module and input, made in inference mode or not."""
    with torch.inference_mode(inside):
        torch.manual_seed(0)
        return Attention().eval(), torch.randn(2, 8, 16)


@pytest.mark.parametrize("traced_inside", [False, True])
@pytest.mark.parametrize("module_inside", [False, True])
@pytest.mark.parametrize("input_inside", [False, True])
def test_modules_are_traced_as_without(traced_inside: bool, module_inside: bool, input_inside: bool) -> None:
    module, x = made(False)
    with torch.no_grad():
        wanted = trace(module, x)
        value = module(x)
    module, _ = made(module_inside)
    _, x = made(input_inside)
    with torch.inference_mode(traced_inside), torch.no_grad():
        found = trace(module, x)
        assert print_program(found.program) == print_program(wanted.program)
        assert found.constants.keys() == wanted.constants.keys()
        torch.testing.assert_close(found.run(x), value)


@pytest.mark.parametrize("inside", [False, True])
def test_a_function_that_enters_inference_mode_itself(inside: bool) -> None:
    wanted = trace(plain, torch.randn(2, 4, 8), torch.randn(8, 4), name="one")
    with torch.inference_mode(inside):
        found = trace(decorated, torch.randn(2, 4, 8), torch.randn(8, 4), name="one")
    assert print_program(found.program) == print_program(wanted.program)


def test_no_composite_operator_is_left() -> None:
    with torch.inference_mode():
        weight = torch.randn(8, 8)
        found = trace(lambda x: x + torch.matmul(weight, weight.t()).reshape(64), torch.randn(3, 64))
    assert not found.program.opaque


def test_inputs_alone_are_still_refused_where_they_are_written() -> None:
    with torch.inference_mode(), pytest.raises(superopt.errors.TraceError, match="writes into an input"):
        trace(lambda x: x.add_(1), torch.randn(4))


def test_equivalent_and_search_agree() -> None:
    inputs = torch.randn(4, 8), torch.randn(8, 6), torch.ones(4, 1)
    options = superopt.SearchOptions(max_graphs=4)

    def first(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch.matmul(x / s, w)

    def second(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch.matmul(x, w) / s

    def third(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch.matmul(x, w) * s

    wanted = superopt.search(first, *inputs, options=options)
    with torch.inference_mode():
        inside = tuple(one.clone() for one in inputs)
        for given in (inputs, inside):
            assert superopt.equivalent(first, second, *given).equal
            assert not superopt.equivalent(first, third, *given).equal
            found = superopt.search(first, *given, options=options)
            assert [len(one.found) for one in found.regions] == [len(one.found) for one in wanted.regions]
    assert superopt.equivalent(first, second, *inside).equal


def step(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Return a step of gradient descent and its loss, with no word about the mode of gradients."""
    weight = w.detach().requires_grad_()
    loss = ((x @ weight).tanh() - target).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    return w - 0.1 * gradient, loss.detach()


def draw(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def test_a_step_is_traced_with_gradients() -> None:
    x, w, target = draw(3, 5), draw(5, 4), draw(3, 4)
    for made, wanted in zip(trace(step, x, w, target).run(x, w, target), step(x, w, target), strict=True):
        torch.testing.assert_close(made.float(), wanted)


def test_nothing_asks_for_gradients_where_the_caller_has_none() -> None:
    x, w, target = draw(3, 5), draw(5, 4), draw(3, 4)
    with torch.no_grad(), pytest.raises(TraceError, match=r"autograd\.grad is called .*gradients are off"):
        trace(step, x, w, target)


def test_other_functions_are_traced_without_gradients() -> None:
    seen = []

    def product(x: Tensor, w: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x @ w

    trace(product, draw(3, 5), draw(5, 4))
    assert seen == [False]


TABLE = torch.ones(8)


def by_type(x: Tensor) -> Tensor:
    return x * (2 if x.device.type == "cpu" else 3)


def by_flags(x: Tensor) -> Tensor:
    return x * (2 if x.is_cpu else 3) + (5 if x.is_cuda or x.is_meta else 1)


def by_index(x: Tensor) -> Tensor:
    return x * (2 if x.get_device() < 0 and x.device.index is None else 3)


def by_text(x: Tensor) -> Tensor:
    return x * (2 if "cpu" in str(x.device) else 3)


def of_what_it_made(x: Tensor) -> Tensor:
    y = x * 2
    return y * (2 if y.device == torch.device("cpu") else 3)


def of_a_constant(x: Tensor) -> Tensor:
    return x * (TABLE if TABLE.device == x.device else TABLE.to(x.device) * 5)


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast(device_type=x.device.type, enabled=False):
        return x * 2


BRANCHES = [by_type, by_flags, by_index, by_text, of_what_it_made, of_a_constant, under_autocast]


def made_there(x: Tensor) -> Tensor:
    return x + torch.zeros(8, device=x.device) + torch.tensor([1.0] * 8, device=x.device)


def moved_there(x: Tensor) -> Tensor:
    return x + torch.ones(8).to(x.device) + torch.arange(8).to(device=x.device)


def made_in_a_context(x: Tensor) -> Tensor:
    with torch.device(x.device):
        return x + torch.ones(8)


@pytest.mark.parametrize("live", [None, "cpu"])
@pytest.mark.parametrize("function", [*BRANCHES, made_there, moved_there, made_in_a_context])
def test_a_function_takes_the_branch_of_its_device(function: Callable[..., Tensor], live: str | None) -> None:
    x = torch.randn(4, 8)
    traced = trace(function, x, live=live)
    torch.testing.assert_close(traced.run(x, dtype=torch.float32), function(x))


@pytest.mark.parametrize("function", BRANCHES)
def test_inputs_without_data_stand_for_those_of_the_run(function: Callable[..., Tensor]) -> None:
    x = torch.randn(4, 8)
    found = [trace(function, one, live="cpu").program for one in (x, x.to("meta"))]
    assert print_program(found[0]) == print_program(found[1])


def test_a_program_for_a_device_that_is_not_here() -> None:
    x = torch.empty(4, 8, device="meta")
    here, there = (print_program(trace(by_type, x, live=one).program) for one in ("cpu", "cuda"))
    assert here != there
    assert there == print_program(trace(by_type, torch.randn(4, 8), live="cuda").program)


@pytest.mark.parametrize(("by", "equal"), [(2, True), (3, False)])
def test_a_proof_is_of_the_branch_of_the_device(by: int, equal: bool) -> None:
    assert superopt.equivalent(by_type, lambda x: x * by, torch.randn(4, 8)).equal == equal


def norms(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda row: F.rms_norm(row, (8,), w))(x)


def attentions(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda k: F.scaled_dot_product_attention(x, k, k + w, is_causal=True))(
        x.sin()[None] * 2
    )


def masked_attentions(x: Tensor, w: Tensor) -> Tensor:
    mask = (x @ x.t() > 0) | torch.eye(6, dtype=torch.bool)
    return torch.vmap(F.scaled_dot_product_attention, in_dims=(0, None, None, 0))(
        x[:, None], x, x * w, mask[:, None]
    )


@pytest.mark.parametrize("function", [norms, attentions, masked_attentions])
def test_a_function_that_is_kept_whole_within_vmap(function: Callable[..., Tensor]) -> None:
    """Before: none of them could be traced."""
    x, w = torch.randn(6, 8), torch.randn(8)
    torch.testing.assert_close(trace(function, x, w).run(x, w, dtype=torch.float32), function(x, w))
