"""What a function reads out of modules that it imports, keys of dicts, and objects of C code."""

import array
import contextvars
import functools
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt import Optimized

MODULE = "settings_of_this_test"


@pytest.fixture
def module(monkeypatch) -> types.ModuleType:
    """Return a module that functions import while they run, with a submodule."""
    made, inner = types.ModuleType(MODULE), types.ModuleType(f"{MODULE}.inner")
    made.scale, made.unused, made.inner = 2.0, 1.0, inner
    inner.scale = 2.0
    monkeypatch.setitem(sys.modules, MODULE, made)
    monkeypatch.setitem(sys.modules, f"{MODULE}.inner", inner)
    return made


def whole(x: Tensor) -> Tensor:
    import settings_of_this_test

    return (x * settings_of_this_test.scale).tanh()


def renamed(x: Tensor) -> Tensor:
    import settings_of_this_test as other

    return (lambda: x * other.scale)().tanh()


def one_name(x: Tensor) -> Tensor:
    from settings_of_this_test import scale as other

    return (x * other).tanh()


def nested(x: Tensor) -> Tensor:
    def scaled() -> Tensor:
        import settings_of_this_test

        return x * settings_of_this_test.scale

    return scaled().tanh()


def by_text(x: Tensor) -> Tensor:
    return (x * sys.modules["settings_of_this_test"].scale).tanh()


def by_its_name(x: Tensor) -> Tensor:
    return (x * importlib.import_module("settings_of_this_test").scale).tanh()


@pytest.mark.parametrize("function", [whole, renamed, one_name, nested, by_text, by_its_name])
def test_a_module_that_is_imported_inside(build, module, function) -> None:
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    module.unused = 3.0
    watched.ours(x)
    module.scale = 5.0
    watched.theirs(x)
    module.scale = 2.0
    watched.ours(x)


def of_a_submodule(x: Tensor) -> Tensor:
    import settings_of_this_test.inner

    return (x * settings_of_this_test.inner.scale).tanh()


def submodule_renamed(x: Tensor) -> Tensor:
    import settings_of_this_test.inner as other

    return (x * other.scale).tanh()


def submodule_by_name(x: Tensor) -> Tensor:
    from settings_of_this_test.inner import scale

    return (x * scale).tanh()


@pytest.mark.parametrize("function", [of_a_submodule, submodule_renamed, submodule_by_name])
def test_a_submodule_that_is_imported_inside(build, module, function) -> None:
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    module.inner.scale = 5.0
    watched.theirs(x)
    module.inner.scale = 2.0
    watched.ours(x)


def test_an_import_relative_to_a_package(build, module) -> None:
    places: dict[str, Any] = {"__package__": MODULE, "__name__": f"{MODULE}.code"}
    exec("def function(x):\n    from . import inner as other\n    return (x * other.scale).tanh()", places)
    x = torch.randn(4, 8)
    watched = build(places["function"], x)
    watched.ours(x)
    module.inner.scale = 5.0
    watched.theirs(x)


def test_a_module_that_takes_the_place_of_an_imported_one(build, module, monkeypatch) -> None:
    x = torch.randn(4, 8)
    watched = build(whole, x)
    watched.ours(x)
    other = types.ModuleType(MODULE)
    other.scale = 4.0
    monkeypatch.setitem(sys.modules, MODULE, other)
    watched.theirs(x)


def test_a_module_that_a_later_trace_imports(build, module, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE)
    settings = types.SimpleNamespace(plain=True)

    def function(x: Tensor) -> Tensor:
        if settings.plain:
            return (x * 2.0).tanh()
        import settings_of_this_test

        return (x * settings_of_this_test.scale).tanh()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    monkeypatch.setitem(sys.modules, MODULE, module)
    settings.plain = False
    watched.ours(x)
    module.scale = 5.0
    watched.theirs(x)


def test_keys_of_a_dict(build) -> None:
    settings, flags = {"a": True}, {1: True}

    def function(x: Tensor) -> Tensor:
        return (x * (2 if settings.get("a") else 3) + (1 if 1 in flags else 0)).tanh()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    del settings["a"]
    settings["b"] = True
    watched.theirs(x)
    del settings["b"]
    settings["".join(["a"])] = True  # an equal text
    watched.ours(x)
    del flags[1]
    flags[2] = True
    watched.theirs(x)


def test_an_item_that_moves_to_the_next_list(build) -> None:
    first, second = [2.0, 3.0], [4.0]

    def function(x: Tensor) -> Tensor:
        for by in first:
            x = x * by
        for by in second:
            x = x + by
        return x.tanh()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    second.insert(0, first.pop())
    watched.theirs(x)


def of_a_bound_method(held: dict[str, float]) -> Any:
    get = held.get
    return lambda x: (x * get("by")).tanh()


def of_a_wrapped_method(held: dict[str, float]) -> Any:
    length = held.__len__
    return lambda x: (x * (2 if length() == 1 else 3)).tanh()


def of_a_proxy(held: dict[str, float]) -> Any:
    proxy = types.MappingProxyType(held)
    return lambda x: (x * proxy["by"]).tanh()


def of_a_view(held: dict[str, float]) -> Any:
    view = held.values()
    return lambda x: (x * sum(view)).tanh()


@pytest.mark.parametrize("way", [of_a_bound_method, of_a_wrapped_method, of_a_proxy, of_a_view])
def test_a_dict_that_an_object_of_c_code_holds(build, way) -> None:
    held = {"by": 2.0}
    x = torch.randn(4, 8)
    watched = build(way(held), x)
    watched.ours(x)
    held["by"] = 5.0
    held["more"] = 1.0
    watched.theirs(x)
    del held["more"]
    held["by"] = 2.0
    watched.ours(x)


@pytest.mark.parametrize("held", [bytearray(b"\2"), array.array("d", [2.0]), memoryview(bytearray(b"\2"))])
def test_the_contents_of_arrays(build, held) -> None:
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * held[0]).tanh(), x)
    watched.ours(x)
    held[0] = 3
    watched.theirs(x)
    held[0] = 2
    watched.ours(x)
    if isinstance(held, bytearray):
        held.append(1)  # it is not locked
        watched.ours(x)


@pytest.mark.parametrize("largest", [None, 1, 128])
def test_the_object_that_a_function_keeps(build, largest: int | None) -> None:
    @functools.lru_cache(maxsize=largest)
    def settings() -> types.SimpleNamespace:
        return types.SimpleNamespace(scale=2.0, unused=1)

    x = torch.randn(4, 8)
    watched = build(lambda x: (x * settings().scale).tanh(), x)
    watched.ours(x)
    settings().unused = 2
    watched.ours(x)
    settings().scale = 3.0
    watched.theirs(x)
    settings.cache_clear()
    watched.ours(x)
    settings().scale = 4.0
    watched.theirs(x)
    settings().scale = 2.0
    watched.ours(x)


def test_results_that_a_function_adds_to_the_kept_ones(build, caplog) -> None:
    @functools.cache
    def table(size: int) -> dict[str, float]:
        return {"by": 2.0, "size": size}

    x = torch.randn(4, 8)
    watched = build(lambda x: (x * table(8)["by"]).tanh(), x)
    with caplog.at_level("INFO", "superopt"):
        for size in range(100):
            table(size)
            watched.ours(x)
    assert not caplog.messages  # it is not traced again


def test_what_a_variable_holds_in_this_context(build) -> None:
    """Before: it was read once."""
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=2.0)
    shift: contextvars.ContextVar[float] = contextvars.ContextVar("shift", default=0.5)
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * scale.get() + shift.get()).tanh(), x)
    watched.ours(x)
    token = scale.set(3.0)
    watched.theirs(x)
    scale.reset(token)
    watched.ours(x)
    shift.set(1.5)
    watched.theirs(x)


def test_what_a_weak_reference_refers_to(build) -> None:
    class Setting:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    first, second = Setting(2.0), Setting(3.0)
    held = types.SimpleNamespace(there=weakref.ref(first))
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * held.there().scale).tanh(), x)
    watched.ours(x)
    first.scale = 4.0
    watched.theirs(x)
    first.scale = 2.0
    watched.ours(x)
    held.there = weakref.ref(second)
    watched.theirs(x)


def in_another_thread(run: Callable[..., Any], *given: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, *given).result()


class Settings(threading.local):
    """Attributes of each thread's own, with a default in the class."""

    shift = 0.5


@pytest.mark.parametrize("kind", [threading.local, Settings])
def test_what_a_thread_holds(build, kind: type[threading.local]) -> None:
    """Before: what another thread held was never looked at."""
    held = kind()
    held.scale = 2.0
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * held.scale + getattr(held, "shift", 1.0)).tanh(), x)
    watched.ours(x)

    def computes(scale: float, **more: float) -> bool:
        vars(held).update(scale=scale, **more)
        return watched.computes(x)

    assert not in_another_thread(computes, 3.0)
    watched.ours(x)
    assert in_another_thread(computes, 2.0)
    assert not in_another_thread(lambda: computes(2.0, shift=1.5))
    watched.ours(x)
    held.scale = 4.0
    watched.theirs(x)


def test_what_a_thread_holds_besides_does_not_matter(build) -> None:
    """Before: the function was traced again for each, and after 32 times the original computed."""
    held = threading.local()
    held.scale, held.request = 2.0, object()
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * held.scale).tanh(), x)
    for _ in range(40):
        held.request = object()
        watched.ours(x)
    held.scale = 3.0
    watched.theirs(x)


def test_another_thread_looks_while_a_call_begins(build, monkeypatch) -> None:
    """Before: this thread's call took the tensors that the other thread holds."""
    held = threading.local()
    held.table = torch.randn(8)
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * held.table).tanh(), x)
    prepare_call = Optimized._prepare_call

    def called() -> None:
        held.table = torch.randn(8)
        watched.ours(x)

    def late(*given: Any) -> Any:
        monkeypatch.undo()
        in_another_thread(called)
        return prepare_call(*given)

    monkeypatch.setattr(Optimized, "_prepare_call", late)
    torch.testing.assert_close(watched.best(x), watched.best.function(x))
    watched.ours(x)
