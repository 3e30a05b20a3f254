"""Changes of weights in many ways, after some calls, in memory and in files, in and out of modes."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from superopt.weights.away import is_away

from .test_calls import RIGHT, kernel, right

Change = Callable[[Tensor, Tensor], object]


def stepped(optimizer: type[torch.optim.Optimizer], **settings: object) -> Change:
    def change(g: Tensor, w: Tensor) -> None:
        g.grad, w.grad = torch.randn_like(g), torch.randn_like(w)
        optimizer([g, w], 0.1, **settings).step()
        g.grad = w.grad = None

    return change


def swapped_with_an_average(g: Tensor, w: Tensor) -> None:
    """As libraries of moving averages do for an evaluation."""
    average = w.data * 0.9
    kept = w.data.clone()
    w.data.copy_(average)
    w.data.copy_(kept)
    w.data.copy_(average)


def swapped_back(g: Tensor, w: Tensor) -> None:
    """Other memory for a while, then the first again, which somebody has written to meanwhile."""
    mine = w.data
    w.data = torch.randn_like(w)
    mine.mul_(-1)
    w.data = mine


def by_a_view_of_a_view(g: Tensor, w: Tensor) -> None:
    w.detach().view(-1)[5:70].view(5, 13).t()[2].fill_(30.0)


def in_parts(g: Tensor, w: Tensor) -> None:
    for part in w.detach().split(64):
        part.add_(0.5)


def from_a_vector(g: Tensor, w: Tensor) -> None:
    nn.utils.vector_to_parameters(torch.randn(g.numel() + w.numel()), [g, w])


def into_a_result(g: Tensor, w: Tensor) -> None:
    torch.mul(g.detach(), 3, out=g.detach())
    torch.neg(w.detach(), out=w.detach())


def by_a_storage(g: Tensor, w: Tensor) -> None:
    other = torch.randn_like(w)
    w.untyped_storage().copy_(other.untyped_storage())


def pruned(g: Tensor, w: Tensor) -> None:
    w.data[w.data.abs() < 0.5] = 0


def quantized(g: Tensor, w: Tensor) -> None:
    step = w.detach().abs().max() / 7
    w.copy_((w.detach() / step).round() * step)


CHANGES: dict[str, Change] = {
    "in place": lambda g, w: w.mul_(2),
    "one number": lambda g, w: w[3].narrow(0, 5, 1).fill_(50),
    "one of the gain": lambda g, w: g.data.__setitem__(7, 9.0),
    "by its data": lambda g, w: w.data.mul_(-1),
    "the data of a row": lambda g, w: w[9].data.fill_(40.0),
    "the data of a view": lambda g, w: w.view(-1).data.__setitem__(9, 40.0),
    "what is detached of its data": lambda g, w: w.detach().data.__setitem__((9, 9), 40.0),
    "the data of its data": lambda g, w: w.data.data.__setitem__((9, 9), 40.0),
    "one of its data": lambda g, w: w.data.__setitem__((9, 9), 40.0),
    "other data": lambda g, w: setattr(w, "data", torch.randn_like(w)),
    "memory set": lambda g, w: w.set_(torch.randn_like(w)),
    "loaded": lambda g, w: w.copy_(torch.randn_like(w)),
    "several at once": lambda g, w: torch._foreach_mul_([g, w], 3.0),
    "drawn": lambda g, w: nn.init.normal_(w),
    "masked": lambda g, w: w.masked_fill_(w > 1, 0.0),
    "by numpy": lambda g, w: w.detach().numpy().__imul__(3),
    "the gain by numpy": lambda g, w: g.detach().numpy().__setitem__(100, 5.0),
    "there and back": lambda g, w: setattr(w, "data", w.data.half().float()),
    "shared": lambda g, w: w.share_memory_().mul_(2),  # type: ignore[no-untyped-call]
    "a step": stepped(torch.optim.SGD),
    "a step of Adam": stepped(torch.optim.Adam, foreach=True),
    "a fused step": stepped(torch.optim.AdamW, fused=True),
    "a step one by one": stepped(torch.optim.AdamW, foreach=False),
    "swapped with an average": swapped_with_an_average,
    "swapped back": swapped_back,
    "by a view": by_a_view_of_a_view,
    "in parts": in_parts,
    "from a vector": from_a_vector,
    "into a result": into_a_result,
    "by a storage": by_a_storage,
    "pruned": pruned,
    "quantized": quantized,
}


@pytest.mark.parametrize("calls", [3, 20])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_the_next_call_sees_it(
    change: Change, mode: Callable[[], AbstractContextManager], calls: int
) -> None:
    torch.manual_seed(0)
    g, w = nn.Parameter(torch.rand(512), False), nn.Parameter(torch.randn(256, 512), False)
    found, given = kernel(ends=True), [torch.randn(2, 512), g, w]
    with mode():
        run = found.prepared(given)
        for _ in range(calls):
            before = run(given)[0]
        assert is_away(w) is (calls > 8)
    with torch.no_grad():
        change(g, w)
    with mode():
        for turn in range(calls):
            after = run(given)[0]
            torch.testing.assert_close(after, right(given), **RIGHT)
            assert turn or not torch.equal(before, after)
    with torch.inference_mode():  # the change itself is made in a mode
        if not w.is_shared():  # type: ignore[no-untyped-call]
            w.add_(0.25)
        torch.testing.assert_close(run(given)[0], right(given), **RIGHT)


def test_tensors_are_not_swapped_behind_our_back() -> None:
    """PyTorch refuses it, since somebody watches the weight."""
    w, found = nn.Parameter(torch.randn(256, 512), False), kernel()
    with torch.no_grad():
        found.prepared([torch.randn(2, 512), torch.rand(512), w])
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(w, nn.Parameter(torch.randn(256, 512), False))
