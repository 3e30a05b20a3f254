"""What a function reads besides its arguments: globals, closures, objects however reached."""

import collections
import functools
import sys
import types
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

GLOBAL = 1.5


def helper(x: Tensor) -> Tensor:
    return x * GLOBAL


def test_a_global_and_a_function_of_it(build, monkeypatch) -> None:
    x = torch.randn(4, 8)
    watched = build(lambda x: helper(x).tanh(), x)
    watched.ours(x)
    monkeypatch.setitem(globals(), "GLOBAL", 4.0)
    watched.theirs(x)
    monkeypatch.setitem(globals(), "GLOBAL", 1.5)
    watched.ours(x)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    watched.theirs(x)


def test_variables_of_a_closure(build) -> None:
    scale, table, heat, low = 2.0, torch.randn(8), torch.tensor(0.5), torch.tensor(float("-inf"))
    settings = types.SimpleNamespace(by=3.0, deep={"add": 1.0}, unused=1)

    def function(x: Tensor) -> Tensor:
        mask = torch.where(x > 0, 0.0, low)
        return (x * scale + table * heat + settings.by * settings.deep["add"] + mask).exp()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    table = torch.randn(8)
    watched.ours(x)
    heat = torch.tensor(-3.0)
    watched.ours(x)
    heat.mul_(2)
    heat.data.add_(1)
    watched.ours(x)
    settings.unused = 2
    watched.ours(x)
    for change in (
        lambda: setattr(settings, "by", -1.0),
        lambda: settings.deep.update(add=4.0),
        lambda: low.fill_(-1.0),
    ):
        change()
        watched.theirs(x)
    settings.by, settings.deep["add"] = 3.0, 1.0
    low.data.fill_(float("-inf"))
    watched.ours(x)
    scale = 5.0
    watched.theirs(x)
    scale = 2.0
    watched.ours(x)


def test_numbers_read_off_a_tensor(build) -> None:
    steps, flag = torch.tensor([2, 3]), torch.tensor(True)

    def function(x: Tensor) -> Tensor:
        first, second = steps.tolist()
        return (x * first + second).exp() if flag else x

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    steps[1] = 5
    watched.theirs(x)
    steps.data[1] = 3
    watched.ours(x)
    flag.fill_(False)
    watched.theirs(x)


class Scaler:
    """A callable object that is no module."""

    __slots__ = ("by", "table")

    def __init__(self) -> None:
        self.by, self.table = 2.0, torch.randn(8)

    def method(self, x: Tensor) -> Tensor:
        return (x * self.by + self.table).tanh()

    def __call__(self, x: Tensor) -> Tensor:
        return self.method(x)

    @property
    def twice(self) -> float:
        return 2 * self.by


@pytest.mark.parametrize("how", ["object", "method", "partial", "closure", "default"])
def test_an_object_however_it_is_reached(build, how: str) -> None:
    one = Scaler()

    def closure(x: Tensor, by: Scaler = one) -> Tensor:
        return by(x)

    function = {
        "object": one,
        "method": one.method,
        "partial": functools.partial(lambda scaler, x: scaler.method(x), one),
        "closure": lambda x: one(x),
        "default": closure,
    }[how]
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    one.table = torch.randn(8)
    watched.ours(x)
    one.by = 3.0
    watched.theirs(x)
    one.by = 2.0
    watched.ours(x)


def test_what_a_decorator_hides(build) -> None:
    scale = 2.0

    @torch.inference_mode()
    def function(x: Tensor) -> Tensor:
        return torch.matmul(x, x.t()) * scale

    x = torch.randn(8, 8)
    watched = build(function, x)
    watched.ours(x)
    scale = 3.0
    watched.theirs(x)


def test_a_property_and_names_made_of_texts(build) -> None:
    one = Scaler()
    names = types.SimpleNamespace(scale0=1.0, scale1=2.0)

    def function(x: Tensor) -> Tensor:
        for number in range(2):
            x = x * getattr(names, f"scale{number}") + one.twice
        return x

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    names.scale1 = 3.0
    watched.theirs(x)
    names.scale1 = 2.0
    watched.ours(x)
    one.by = 9.0
    watched.theirs(x)


class Finder:
    """An object that finds attributes under other names."""

    aliases: ClassVar[dict[str, str]] = {"by": "_amount"}

    def __init__(self) -> None:
        self._amount = 2.0

    def __getattr__(self, name: str) -> Any:
        return self.__dict__[type(self).aliases[name]]


def test_arrays_and_attributes_by_other_names(build) -> None:
    array, finder = np.array([2.0, 3.0]), Finder()

    @functools.cache
    def both() -> int:
        return 2

    x = torch.randn(4, 8)
    watched = build(lambda x: (x * float(array[0]) + finder.by).tanh() * both(), x)
    watched.ours(x)
    array[0] = 4.0
    watched.theirs(x)
    array[0] = 2.0
    watched.ours(x)
    finder._amount = 5.0
    watched.theirs(x)


class Number(float):
    """A number of a class of the user's."""


class Settings(dict[str, Any]):
    """A dict with attributes beside its items."""

    more = 1.0


class Held(collections.UserDict[str, float]):
    pass


def test_objects_that_are_more_than_their_attributes(build) -> None:
    number, settings, held = Number(2.0), Settings(by=1.5), Held(add=0.5)

    def function(x: Tensor) -> Tensor:
        return (x * number * settings["by"] + held["add"] * settings.more).tanh()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    settings.more = 3.0
    watched.theirs(x)
    settings.more = 1.0
    watched.ours(x)
    held["add"] = 2.0
    watched.theirs(x)
    held["add"] = 0.5
    watched.ours(x)
    number = Number(3.0)
    watched.theirs(x)
    number = Number(2.0)
    watched.ours(x)


def test_what_changes_at_each_call_ends_at_the_original(build) -> None:
    box = types.SimpleNamespace(at=0)
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * box.at).tanh(), x)
    watched.ours(x)
    for box.at in range(1, 200):
        watched.theirs(x)
    box.at = 0
    watched.ours(x)


@pytest.mark.parametrize(
    "taken",
    [
        'globals()["scale"]',
        'globals().get("scale", 1.0)',
        '(lambda: globals()["scale"])()',
        'globals()["".join(("sc", "ale"))]',
        'globals()[f"sc{end}"]',
        'eval("scale + 0.0")',
        'eval("settings.by")',
        "vars(sys.modules[__name__])['scale']",
    ],
)
def test_globals_by_texts(build, monkeypatch, taken: str) -> None:
    """Before: globals were watched where code names them, not where its texts do."""
    settings = types.SimpleNamespace(by=2.0)
    made = types.ModuleType("made_for_this_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    vars(made).update(scale=2.0, end="ale", settings=settings, sys=sys)
    exec(f"def function(x):\n    return (x * {taken}).tanh()", vars(made))
    x = torch.randn(4, 8)
    watched = build(made.function, x)
    watched.ours(x)
    made.scale = settings.by = 3.0
    watched.theirs(x)
    made.scale = settings.by = 2.0
    watched.ours(x)


def test_a_global_that_comes_later(build) -> None:
    places: dict[str, Any] = {"__name__": "made_for_this_test"}
    exec('def function(x):\n    return (x * globals().get("scale", 2.0)).tanh()', places)
    x = torch.randn(4, 8)
    watched = build(places["function"], x)
    watched.ours(x)
    places["scale"] = 3.0
    watched.theirs(x)
    del places["scale"]
    watched.ours(x)
