"""Functions that store tensors beyond their call: they are refused, and their objects stay as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from superopt.errors import TraceError
from superopt.trace import trace

LAST: Any = None


class Storing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.last: Any = None
        self.h = torch.zeros(4, 8)
        self.kept: list[Tensor] = []
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        global LAST
        y = x * 2
        if self.how == "attribute":
            self.last = y
        elif self.how == "state":
            self.h = 0.5 * self.h + x
        elif self.how == "buffer":
            self.state = self.state + x
        elif self.how == "new":
            self.fresh = y
        elif self.how == "list":
            self.kept.append(y)
        elif self.how == "global":
            LAST = y
        elif self.how == "number":
            self.last = 3
        return y + 1


@pytest.mark.parametrize("how", ["attribute", "state", "buffer", "new", "list", "global"])
def test_what_is_stored_is_put_back(how: str) -> None:
    module, x = Storing(how), torch.randn(4, 8)
    kept = module.h, module.state
    with pytest.raises(TraceError, match="stores a tensor in"):
        trace(module, x)
    assert (module.h, module.state) == kept or (module.h is kept[0] and module.state is kept[1])
    assert module.last is None
    assert module.kept == []
    assert not hasattr(module, "fresh")
    assert LAST is None
    module(x)


@pytest.mark.parametrize("how", ["nothing", "number"])
def test_other_functions_are_traced(how: str) -> None:
    assert trace(Storing(how), torch.randn(4, 8)).program.regions


def test_variables_around_a_function_are_put_back() -> None:
    last = torch.zeros(3)
    held = last

    def around(x: Tensor) -> Tensor:
        nonlocal last
        last = x * 2
        return last + 1

    with pytest.raises(TraceError, match="a variable around it"):
        trace(around, torch.randn(3))
    assert last is held
