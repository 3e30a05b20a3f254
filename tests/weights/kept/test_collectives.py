"""Collectives write to weights out of PyTorch's sight; what was made of these weights is made anew."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import superopt
from superopt.weights import compiled_check, sources
from superopt.weights.sources import Sources

from .test_calls import RIGHT, kernel, layer, right

Write = Callable[[Tensor, Tensor], object]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compiled code look at weights, or Python."""
    if not request.param:
        monkeypatch.setattr(sources, "compiled_check", lambda *unused: compiled_check.ask_python)


WRITES: dict[str, Write] = {
    "scatter": lambda weight, other: dist.scatter(weight, [other], 0),
    "all to all": lambda weight, other: dist.all_to_all_single(weight, other),
    "a view": lambda weight, other: dist.scatter(weight.view(-1), [other.view(-1)], 0),
    "a part": lambda weight, other: dist.scatter(weight[3:5], [other[3:5].contiguous()], 0),
    "its data": lambda weight, other: dist.scatter(weight.data, [other], 0),
    "a detached alias": lambda weight, other: dist.scatter(weight.detach(), [other], 0),
    "waited for": lambda weight, other: dist.scatter(weight, [other], 0, async_op=True).wait(),
}


def elsewhere(weight: Tensor) -> Tensor:
    """Return other numbers where nothing is sampled: a few of them differ."""
    other = weight.detach().clone()
    other[4, 5] += 100
    return other


@torch.no_grad()
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_what_collectives_write_is_seen(write: Write) -> None:
    found, (x, gain, weight) = kernel(), layer()
    run = found.prepared([x, gain, weight])
    for _ in range(2):
        version = weight._version
        other = elsewhere(weight)
        write(weight, other)
        assert weight._version == version  # which PyTorch does not count
        assert torch.equal(weight, other)
        torch.testing.assert_close(run([x, gain, weight])[0], right([x, gain, weight]), **RIGHT)


@torch.no_grad()
def test_collectives_on_other_tensors_change_nothing() -> None:
    weight, beside = nn.Parameter(torch.randn(64, 512)), torch.randn(64, 512)
    held = Sources([weight])
    dist.all_reduce(beside)
    dist.scatter(beside, [weight.detach()], 0)  # read, not written to
    dist.barrier()
    assert held.same([weight])


@torch.no_grad()
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("named", ["module", "parameter", "view", "all", "another"])
def test_users_say_that_weights_have_changed(named: str) -> None:
    module = nn.Linear(512, 64, bias=False)
    held = Sources([module.weight])
    module.weight.numpy()[4, 5] += 100  # no sample
    assert held.same([module.weight])
    changed: dict[str, list[nn.Module | Tensor]] = {
        "module": [module],
        "parameter": [module.weight],
        "view": [module.weight.view(-1)],
        "all": [],
        "another": [nn.Linear(3, 4), torch.randn(5)],
    }
    superopt.weights_changed(*changed[named])
    assert held.same([module.weight]) == (named == "another")
