"""A compiled module among changes: Dynamo's guards see each, and regions read the tensors of now.

Hooks that are added after a module was compiled are seen with no backend: PyTorch does not guard them
(`torch._dynamo.config.skip_nnmodule_hook_guards`).
"""

import pytest
import torch
from torch import nn

from superopt.backend import region_plan
from superopt.backend.decision import Decision

from .conftest import Host, close
from .test_compile import block, data


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch compute what kernels would, which needs no compiler."""
    monkeypatch.setattr(region_plan.RegionPlan, "by_kernels", lambda self, known: self.by_torch(known))


def linear_of(module: nn.Module) -> nn.Linear:
    return next(one for one in module.modules() if isinstance(one, nn.Linear))


def replaced(module: nn.Module) -> None:
    linear = linear_of(module)
    linear.weight = nn.Parameter(torch.randn_like(linear.weight) / 8)


def other_data(module: nn.Module) -> None:
    linear = linear_of(module)
    linear.weight.data = torch.randn_like(linear.weight) / 8


def in_place(module: nn.Module) -> None:
    linear_of(module).weight.mul_(0.5)


def assigned(module: nn.Module) -> None:
    state = {name: torch.randn_like(one) / 8 for name, one in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(replaced, marks=pytest.mark.slow),
        other_data,
        pytest.param(in_place, marks=pytest.mark.slow),
        assigned,
        nn.Module.train,
    ],
)
def test_changes_of_a_compiled_module(taken: list[Decision], change) -> None:
    module, host = block(), Host()
    compiled = torch.compile(module, backend=host)
    with torch.no_grad():
        close(compiled(data()), module(data()))
        change(module)
        close(compiled(data()), module(data()))
    with torch.inference_mode():
        close(compiled(data()), module(data()))
    assert taken
    assert host.calls > 0
