"""Functions that store tensors beyond their call: they are refused, and their objects stay as they were."""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

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


TABLES: dict[int, Tensor] = {}


class Slotted:
    __slots__ = ("last",)
    last: Tensor


class Tables(nn.Module):
    """A module whose methods store in other places than the module."""

    of_all: dict[int, Tensor] = {}  # noqa: RUF012
    latest: Any = None

    def __init__(self, store: Callable[["Tables", Tensor], object]) -> None:
        super().__init__()
        self.store = store
        self.slotted, self.recent, self.distinct = Slotted(), deque[Tensor](maxlen=2), set[Tensor]()
        self.state: Any = None

    def to_global(self, y: Tensor) -> None:
        TABLES[len(y)] = y

    def to_class(self, y: Tensor) -> None:
        Tables.latest = y

    def to_slot(self, y: Tensor) -> None:
        self.slotted.last = y

    def to_object(self, y: Tensor) -> None:
        self.state = SimpleNamespace(pair=[y, y])

    def forward(self, x: Tensor) -> Tensor:
        self.store(self, x * 2)
        return x + 1

    def everything(self) -> tuple[Any, ...]:
        kept = {**TABLES}, {**Tables.of_all}, Tables.latest, hasattr(self.slotted, "last"), self.state
        return *kept, [*self.recent], [*self.distinct], vars(Tables.to_class)


@pytest.mark.parametrize(
    "store",
    [
        Tables.to_global,
        Tables.to_class,
        Tables.to_slot,
        Tables.to_object,
        lambda module, y: module.recent.append(y),
        lambda module, y: module.distinct.add(y),
        lambda module, y: module.of_all.update({0: y}),
        lambda module, y: vars(Tables.to_class).update(last=y),
    ],
)
def test_places_beyond_a_module_are_put_back(store: Callable[[Tables, Tensor], object]) -> None:
    module = Tables(store)
    before = module.everything()
    with pytest.raises(TraceError, match="stores a tensor in"):
        trace(module, torch.randn(4, 8))
    assert module.everything() == before


@pytest.mark.parametrize("kept", [[None] * 3, deque([0, 0, 0])])
def test_items_that_are_there_several_times_are_put_back(kept: Any) -> None:
    def storing(x: Tensor) -> Tensor:
        kept[1] = x * 2
        return x + 1

    before = [*kept]
    with pytest.raises(TraceError, match="stores a tensor in"):
        trace(storing, torch.randn(4))
    assert [*kept] == before


@pytest.mark.parametrize("most", [None, 8])
def test_kept_results_are_none_without_data(most: int | None) -> None:
    @lru_cache(maxsize=most)
    def mask(size: int) -> Tensor:
        return torch.ones(size, size).tril()

    assert trace(lambda x: x @ mask(8), torch.randn(4, 8)).program.regions
    assert not mask(8).is_meta


@pytest.mark.parametrize(
    "change",
    [
        lambda x, given: given["items"].append(x * 2),
        lambda x, given: given.update(y=x),
        lambda x, given: given.pop("y"),
    ],
)
def test_arguments_are_not_changed(change: Callable[[Tensor, dict[str, Any]], object]) -> None:
    def changing(x: Tensor, given: dict[str, Any]) -> Tensor:
        change(x, given)
        return x + 1

    x = torch.randn(4, 8)
    with pytest.raises(TraceError, match="changes a list or a dict that it is given"):
        trace(changing, x, {"y": torch.randn(4), "items": [x]})


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + weight.T


def test_cached_parametrizations_are_none_without_data() -> None:
    layer = nn.Linear(8, 8).requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    with parametrize.cached():
        assert trace(layer, torch.randn(4, 8)).program.regions
        assert not layer.weight.is_meta
