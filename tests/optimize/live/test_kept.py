"""What is made of weights once, against an adversary that changes the weights in every way there is."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from superopt.weights.kept import KeptKernel

from .conftest import Watched


class Scores(nn.Module):
    """A norm, a projection and a sum, all of which are one vector of weights; the weights are not small."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.l = nn.Linear(64, 48)
        self.register_buffer("shift", torch.randn(48))

    def forward(self, x: Tensor) -> Tensor:
        return (self.l(self.norm(x)) * self.shift).sum(-1)


@pytest.fixture
def scores(build) -> tuple[Scores, Watched, Tensor]:
    torch.manual_seed(0)
    module, x = Scores().eval(), torch.randn(8, 64)
    for one in module.parameters():
        one.uniform_(0.5, 1.5)
    watched = build(module, x, weights="default")
    for _ in range(10):
        watched.ours(x)
    return module, watched, x


def in_place(module: Scores) -> None:
    module.l.weight.mul_(2)


def one_number(module: Scores) -> None:
    module.l.weight[3, 5] = 100.0


def replaced(module: Scores) -> None:
    module.l.weight = nn.Parameter(torch.randn(48, 64))


def data_replaced(module: Scores) -> None:
    module.l.weight.data = torch.randn(48, 64)


def data_in_place(module: Scores) -> None:
    module.l.weight.data.mul_(3)


def one_number_of_data(module: Scores) -> None:
    module.l.weight.data[7, 9] = -100.0


def one_row_of_data(module: Scores) -> None:
    row = module.l.weight.data[5]
    row.zero_()


def data_replaced_twice(module: Scores) -> None:
    module.l.weight.data = torch.randn(48, 64)
    module.l.weight.data = torch.randn(48, 64)


def detached(module: Scores) -> None:
    module.l.weight.detach()[0, 0] = 50.0


def by_numpy(module: Scores) -> None:
    module.l.weight.detach().numpy()[...] += 1


def loaded(module: Scores) -> None:
    module.load_state_dict({name: torch.randn_like(one) for name, one in module.state_dict().items()})


def assigned(module: Scores) -> None:
    state = {name: torch.randn_like(one) for name, one in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def stepped(module: Scores, **settings: bool) -> None:
    with torch.enable_grad():
        optimizer = torch.optim.AdamW(module.parameters(), 0.1, **settings)
        module(torch.randn(8, 64)).sum().backward()
        optimizer.step()


def stepped_fused(module: Scores) -> None:
    stepped(module, fused=True)


def stepped_one_by_one(module: Scores) -> None:
    stepped(module, foreach=False)


def averaged(module: Scores) -> None:
    """As libraries of moving averages swap weights: kept, copied over, and copied back."""
    kept = [one.data.clone() for one in module.parameters()]
    for one in module.parameters():
        one.data.copy_(torch.randn_like(one))
    module(torch.randn(8, 64))
    for one, old in zip(list(module.parameters())[:2], kept, strict=False):
        one.data.copy_(old)


def tied(module: Scores) -> None:
    module.norm.bias = module.norm.weight


def pruned(module: Scores) -> None:
    prune.l1_unstructured(module.l, "weight", 0.5)
    prune.remove(module.l, "weight")


def pruned_by_hand(module: Scores) -> None:
    module.l.weight.data[module.l.weight.abs() < 1] = 0


def quantized(module: Scores) -> None:
    step = module.l.weight.abs().max() / 7
    module.l.weight.copy_((module.l.weight / step).round() * step)


def there_and_back(module: Scores) -> None:
    module.half()
    module.float()


def transposed_in_place(module: Scores) -> None:
    square = torch.randn(64, 64)
    module.l.weight.data = square[:48]
    module.l.weight.data = square.t()[:48]


def buffer(module: Scores) -> None:
    module.shift = torch.randn(48)


def buffer_in_place(module: Scores) -> None:
    module.shift.neg_()


def another_norm(module: Scores) -> None:
    module.norm = nn.LayerNorm(64)


def set_to(module: Scores) -> None:
    module.l.weight.detach().set_(torch.randn(48, 64))
    module.norm.weight.set_(torch.randn(64))


def swapped(module: Scores) -> None:
    a, b = module.norm.weight, module.norm.bias
    module.norm.weight, module.norm.bias = b, a


def for_inference(module: Scores) -> None:
    with torch.inference_mode():
        module.l.weight.mul_(0.5)


def from_a_file(module: Scores) -> None:
    file = io.BytesIO()
    torch.save({name: one + 1 for name, one in module.state_dict().items()}, file)
    file.seek(0)
    module.load_state_dict(torch.load(file))


OURS = [
    in_place, one_number, replaced, data_replaced, data_in_place, one_number_of_data, one_row_of_data,
    data_replaced_twice, detached, by_numpy, loaded, assigned, stepped, stepped_fused, stepped_one_by_one,
    averaged, tied, pruned, pruned_by_hand, quantized, there_and_back, transposed_in_place, buffer,
    buffer_in_place, another_norm, set_to, swapped, for_inference, from_a_file,
]  # fmt: skip


@pytest.mark.parametrize("change", OURS)
def test_a_change_is_seen(scores, change: Callable[[Scores], None]) -> None:
    module, watched, x = scores
    before = watched.best(x)
    change(module)
    watched.computes(x)
    watched.computes(x)
    watched.computes(torch.randn(8, 64))
    assert change in (there_and_back, tied, swapped) or not torch.allclose(before, watched.best(x))


def test_nothing_is_made_again_without_a_change(scores) -> None:
    module, watched, x = scores
    made = [kernel.kept._made.copy() for kernel in watched.best._kernels.values()]
    assert made
    assert all(made)
    module.state_dict()
    module.l.weight.data.norm()
    copy.deepcopy(module)
    watched.ours(x)
    watched.ours(torch.randn(8, 64))
    for before, kernel in zip(made, watched.best._kernels.values(), strict=True):
        assert isinstance(kernel, KeptKernel)
        assert kernel.kept._made == before


def test_an_alias_that_is_written_later_is_seen(scores) -> None:
    module, watched, x = scores
    alias = module.l.weight.data
    for _ in range(3):
        watched.ours(x)
    alias[11, 13] = 77.0
    watched.ours(x)
    alias.view(-1)[100] = -77.0
    watched.ours(x)


@pytest.mark.parametrize("turn", [
    lambda weight, square: setattr(weight, "data", square.t()[:48]),
    lambda weight, square: weight.set_(square.t()[:48]),
    lambda weight, square: weight.as_strided_((48, 64), (1, 64)),
])  # fmt: skip
def test_the_same_memory_read_in_another_order_is_seen(scores, turn) -> None:
    module, watched, x = scores
    square = torch.rand(64, 64) + 0.5
    module.l.weight.data = square[:48]
    for _ in range(9):
        watched.ours(x)
    before = watched.best(x)
    turn(module.l.weight, square)
    assert module.l.weight.data_ptr() == square.data_ptr()
    watched.computes(x)
    watched.computes(x)
    assert not torch.allclose(before, watched.best(x))


def test_weights_that_change_with_every_call_are_left_to_the_original(scores, caplog) -> None:
    module, watched, x = scores
    for _ in range(8):
        module.l.weight.add_(0.1)
        watched.computes(x)
    watched.theirs(x)
    assert caplog.text.count("change with nearly every call") == 1


def test_weights_that_change_now_and_then_stay_kept(scores) -> None:
    module, watched, x = scores
    for _ in range(6):
        module.l.weight.add_(0.1)
        for _ in range(9):
            watched.ours(x)


def test_a_weight_without_versions_is_left_to_the_original(scores) -> None:
    module, watched, x = scores
    with torch.inference_mode():
        module.l.weight = nn.Parameter(torch.randn(48, 64))
    watched.computes(x)
    with torch.inference_mode():
        module.l.weight.data[0, 0] = 1000.0
    watched.theirs(x)


def test_shared_memory_is_left_to_the_original(scores) -> None:
    module, watched, x = scores
    module.share_memory()
    watched.computes(x)
    watched.theirs(x)


def test_numbers_that_are_not_finite_are_computed_as_by_pytorch(scores) -> None:
    module, watched, x = scores
    module.l.weight[0, 0] = float("inf")
    found, wanted = watched.best(x), module(x)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    module.l.weight[0, 0] = 1.0
    watched.ours(x)


def test_other_sizes_read_the_same_tensors(scores) -> None:
    module, watched, _x = scores
    for rows in (1, 2, 9, 300):
        watched.computes(torch.randn(rows, 64))
    module.l.weight.data.mul_(2)
    for rows in (1, 2, 9, 300):
        watched.computes(torch.randn(rows, 64))


def test_what_is_kept_goes_with_the_weights(scores) -> None:
    module, watched, x = scores
    kept = [kernel.kept for kernel in watched.best._kernels.values()]
    size = sum(one.bytes for one in kept)
    assert size > 0
    for _ in range(3):
        module.l.weight = nn.Parameter(torch.randn(48, 64))
        for _ in range(9):
            watched.ours(x)
        assert sum(one.bytes for one in kept) <= size
