"""Arguments and results that are more than tensors: they keep their kinds, or are refused in one line."""

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from superopt import InputError, TraceError, equivalent
from superopt.trace import trace
from superopt.verify.floats.samples import sample, typical

X, Y = torch.randn(4, 4), torch.randn(4, 4)
Pair = namedtuple("Pair", "a b")


class Output(OrderedDict):
    """A dict whose items are attributes, as the results of some libraries are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Doubled(dict):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) * 2


class Pages(list):
    pass


class Row(tuple):
    __slots__ = ()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    _pytree.register_pytree_node(
        Output,
        lambda one: (list(one.values()), list(one)),
        lambda items, names: Output(zip(names, items, strict=True)),
    )
    yield
    _pytree.SUPPORTED_NODES.pop(Output, None)


KEPT = {
    "OrderedDict": OrderedDict(a=X, b=Y),
    "defaultdict": defaultdict(list, a=X, b=Y),
    "namedtuple": Pair(X, Y),
    "registered": Output(a=X, b=Y),
    "within others": [Output(a=X, b=(Y, Pair(X, Y)))],
}


@pytest.mark.parametrize("given", KEPT.values(), ids=KEPT)
def test_a_structure_comes_as_what_it_is(given: Any) -> None:
    """Before: as a plain dict, without its methods."""
    met: list[str] = []

    def kinds(value: Any) -> str:
        if isinstance(value, dict):
            return f"{type(value)} {[(name, kinds(one)) for name, one in value.items()]}"
        if isinstance(value, tuple | list):
            return f"{type(value)} {[*map(kinds, value)]}"
        return "tensor"

    def function(value: Any) -> Tensor:
        met.append(kinds(value))
        return X * 2

    trace(function, given)
    for drawn in (sample("normal", (given,)), typical((given,))):
        function(*drawn)
    assert {*met} == {kinds(given)}


@pytest.mark.parametrize("given", [Doubled(a=X), Pages([X]), Row((X,))], ids=["dict", "list", "tuple"])
def test_a_structure_of_an_unknown_kind_is_refused(given: Any) -> None:
    """Before: it came as a plain one, and its own methods were not run."""
    with pytest.raises(InputError, match=f"is a {type(given).__name__}, another kind of"):
        trace(lambda value: X, given)


def test_attributes_of_a_registered_dict() -> None:
    given = Output(a=X, b=Y)
    assert equivalent(lambda one: one.a + one.b, lambda one: one["b"] + one["a"], given).equal
    assert equivalent(lambda one: one.a + one.b, lambda one: one["b"] - one["a"], given).different


def _grown(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x.detach().requires_grad_() * 2


WANTING = {
    "made with gradients on": _grown,
    "told to": lambda x: (x * 2).detach().requires_grad_(),
    "a parameter": lambda x: nn.Parameter(x * 2),
    "beside others": lambda x: [x * 2, {"a": torch.zeros(3, requires_grad=True)}],
}


@pytest.mark.parametrize("function", WANTING.values(), ids=WANTING)
def test_results_that_require_gradients_of_their_own_are_refused(function: Any) -> None:
    """Before: kernels returned them without."""
    with pytest.raises(TraceError, match="requires gradients of its own"):
        trace(function, X)
    trace(function, X, for_proof=True)  # which asks for numbers alone


def test_gradients_within_a_function_are_its_own() -> None:
    assert not trace(lambda x: _grown(x).detach(), X).program.opaque


COUNT: ContextVar[int] = ContextVar("count", default=0)
LAST: ContextVar[Any] = ContextVar("last", default=None)


def _counting(x: Tensor) -> Tensor:
    COUNT.set(COUNT.get() + 1)
    return x * COUNT.get()


def test_a_context_variable_is_as_it_was_after_a_trace() -> None:
    """Before: it kept what it was set to."""
    trace(_counting, X)
    assert COUNT.get() == 0


def test_a_tensor_in_a_context_variable_is_refused() -> None:
    def storing(x: Tensor) -> Tensor:
        LAST.set({"x": x * 2})
        return x

    def resetting(x: Tensor) -> Tensor:
        token = LAST.set(x * 2)
        made = LAST.get() + 1
        LAST.reset(token)
        return made

    with pytest.raises(TraceError, match="stores a tensor in 'last'"):
        trace(storing, X)
    assert LAST.get() is None
    assert not trace(resetting, X).program.opaque
