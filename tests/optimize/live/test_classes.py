"""What classes hold whose objects a function makes, or whose methods and attributes it takes."""

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

SCALE = 2.0


class Made:
    def __init__(self, x: Tensor) -> None:
        self.x = x * SCALE


class Heir(Made):
    """A class that has its `__init__` of another one."""


class Returning:
    def __new__(cls, x: Tensor) -> Any:
        return x * SCALE


class Calling(type):
    def __call__(cls, x: Tensor) -> Any:
        return x * SCALE


class Called(metaclass=Calling):
    """A class whose calls are those of its own class."""


def makes_another(x: Tensor) -> Tensor:
    return Heir(x).x.tanh()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Made(x).x.tanh(),
        makes_another,
        lambda x: Returning(x).tanh(),
        lambda x: Called(x).tanh(),
    ],
    ids=["init", "inherited", "new", "metaclass"],
)
def test_what_runs_where_an_object_is_made(build, monkeypatch, function: Callable[[Tensor], Tensor]) -> None:
    """Before: what `__init__` and `__new__` read was not watched."""
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    watched.theirs(x)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    watched.ours(x)


class Base:
    def by(self, x: Tensor) -> Tensor:
        return (x * 2).tanh()


class Derived(Base):
    def __init__(self) -> None:
        self.unused = SCALE

    def by(self, x: Tensor) -> Tensor:
        return super().by(x)


def test_what_made_the_objects_that_are_there_is_not_looked_at(build, monkeypatch, caplog) -> None:
    x = torch.randn(4, 8)
    watched = build(Derived().by, x)
    watched.ours(x)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with caplog.at_level("INFO", "superopt"):
        watched.ours(x)
    assert not caplog.messages


class Kind(type):
    """A class of classes with attributes, which its classes have, too."""

    scale = 2.0

    @property
    def shift(cls) -> float:
        return cls.scale / 4


class OfKind(metaclass=Kind):
    pass


def test_attributes_of_the_class_of_a_class(build, monkeypatch) -> None:
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * OfKind.scale + OfKind.shift).tanh(), x)
    watched.ours(x)
    monkeypatch.setattr(Kind, "scale", 3.0)
    watched.theirs(x)
    monkeypatch.setattr(Kind, "scale", 2.0)
    watched.ours(x)


class Ways:
    """An object whose methods are no functions."""

    def __init__(self) -> None:
        self.scale = 2.0

    def _times(self, x: Tensor, by: float) -> Tensor:
        return (x * self.scale * by).tanh()

    partly = functools.partialmethod(_times, by=1.0)
    __call__ = functools.partialmethod(_times, by=1.0)

    @functools.singledispatchmethod
    def by_kind(self, x: Any) -> Any:
        return x

    @by_kind.register(Tensor)
    def _(self, x: Tensor) -> Tensor:
        return self._times(x, 1.0)


@functools.singledispatch
def by_kind(x: Any) -> Any:
    return x


@by_kind.register(Tensor)
def _(x: Tensor) -> Tensor:
    return (x * WAYS.scale).tanh()


WAYS = Ways()


class Plain:
    """An object with one attribute and one method, neither of which code names."""

    def __init__(self) -> None:
        self.size = 2.0

    def by(self, times: float) -> float:
        return self.size * times


PLAIN = Plain()
get = operator.attrgetter("size")
get_deeper = operator.attrgetter("plain.size")
call = operator.methodcaller("by", 1.0)
call_by_name = operator.methodcaller("by", times=1.0)
HOLDER = types.SimpleNamespace(plain=PLAIN)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: WAYS.partly(x),
        WAYS,
        lambda x: WAYS.by_kind(x),
        by_kind,
        lambda x: (x * get(PLAIN)).tanh(),
        lambda x: (x * get_deeper(HOLDER)).tanh(),
        lambda x: (x * call(PLAIN)).tanh(),
        lambda x: (x * call_by_name(PLAIN)).tanh(),
    ],
    ids=["partial", "call", "dispatched", "function", "getter", "deep", "caller", "by name"],
)
def test_methods_and_attributes_that_no_code_names(build, function: Callable[..., Any]) -> None:
    """Before: objects of `functools` and `operator` were not looked into."""
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    WAYS.scale = PLAIN.size = 3.0
    watched.theirs(x)
    WAYS.scale = PLAIN.size = 2.0
    watched.ours(x)


def test_a_kind_that_comes_to_a_dispatched_function(build) -> None:
    @functools.singledispatch
    def chosen(x: Any) -> Any:
        return (x * 2.0).tanh()

    x = torch.randn(4, 8)
    watched = build(lambda x: chosen(x), x)
    watched.ours(x)
    chosen.register(Tensor)(lambda x: x - 1)
    watched.theirs(x)


class Slotted:
    """An object with a private slot, and one that is filled late."""

    __slots__ = ("__scale", "shift")

    def __init__(self) -> None:
        self.__scale = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        y = x * self.__scale
        return (y + self.shift if hasattr(self, "shift") else y).tanh()


def test_slots_that_are_private_or_empty(build) -> None:
    """Before: neither was watched."""
    one, x = Slotted(), torch.randn(4, 8)
    watched = build(one, x)
    watched.ours(x)
    one._Slotted__scale = 3.0
    watched.theirs(x)
    one._Slotted__scale = 2.0
    watched.ours(x)
    one.shift = 1.0
    watched.theirs(x)
    del one.shift
    watched.ours(x)
