"""Watch: whether all that a function reads besides its arguments is still what it was."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.nn.modules import module

from superopt.codegen.forms import Forms, form
from superopt.live.reach import Reached, reach
from superopt.live.reach.contents import are_kept

__all__ = ["HookWatch", "Watch", "is_read_again", "value_of"]

Check = Callable[[], bool]
Pick = tuple[Callable[[Any], tuple[Any, ...]], Any]

_FEW = 64  # elements of a tensor on a CPU: so many are looked at in each call
_content = attrgetter("cell_contents")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_hooks = attrgetter(*_HOOKS)
_hooks_of_all = attrgetter(*(f"_global{name}" for name in _HOOKS))


class Watch:
    """What was reached, watched: `same` takes about a microsecond for a module of ten parameters."""

    def __init__(
        self,
        reached: Reached,
        constants: Iterable[Tensor],
        reads: Iterable[tuple[Tensor, str]],
        modes: Mapping[Callable[[], bool], bool],
    ) -> None:
        self.reached = reached
        tensors = {id(one): one for one in (*reached.tensors, *constants) if _has_form(one)}
        checks: list[Check] = []
        if modes:
            asked = tuple(modes.items())
            checks.append(lambda: all(ask() is answer for ask, answer in asked))
        if reached.empty:
            holders = tuple(reached.empty)
            checks.append(lambda: not any(holders))
        if reached.objects:
            checks.append(_same_types(tuple(reached.objects)))
        if reached.sized:
            checks.append(_same_sizes(tuple(reached.sized)))
        if reached.items or reached.picks or reached.cells:
            checks += _same_values(reached)
        if tensors:
            watched = tuple(tensors.values())
            checks.append(partial(Forms(watched).same, watched))
        if reached.arrays:
            checks.append(lambda: all(read() == held for read, held in reached.arrays))
        if reached.caches:
            checks.append(lambda: are_kept(reached.caches))
        values = tuple(reads)
        if values:
            checks.append(lambda: all(value_of(tensor) == held for tensor, held in values))
        self._checks = tuple(checks)

    def same(self) -> bool:
        """Whether nothing has changed; tensors may hold other numbers."""
        try:
            for check in self._checks:
                if not check():
                    return False
        # The object that was looked for is gone.
        except (KeyError, ValueError, AttributeError, TypeError, RuntimeError):
            return False
        return True


class HookWatch:
    """The hooks of the modules that a function calls, which code of torch.compile does not look at again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        modules = [one for one in reach(function).modules if vars(one).keys() >= set(_HOOKS)]
        self._holders = [*_hooks_of_all(module), *chain.from_iterable(map(_hooks, modules))]
        self._held = self._now()

    def same(self) -> bool:
        """Whether no hook has come or gone."""
        return self._now() == self._held

    def _now(self) -> list[tuple[Any, ...]]:
        return [(id(holder), *holder, *holder.values()) for holder in filter(None, self._holders)]


def _has_form(tensor: Tensor) -> bool:
    try:
        form(tensor)
    except RuntimeError:  # a tensor of this kind has no strides
        return False
    return True


def value_of(tensor: Tensor) -> str:
    """Return what says whether a tensor still holds the numbers that it held.

    Those of large tensors, and on other devices, are not read again: PyTorch counts the writes to them,
    though not those through `.data`.
    """
    return repr(tensor.tolist()) if is_read_again(tensor) else f"{tensor.data_ptr()} {tensor._version}"


def is_read_again(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor themselves are looked at in each call."""
    return (tensor.device.type == "cpu" and tensor.numel() <= _FEW) or tensor.is_inference()


# Each check is one walk through C code, as far as it goes: Python's own loops take three times as long.


def _same_types(objects: tuple[Any, ...]) -> Check:
    kinds = list(map(type, objects))
    return lambda: list(map(type, objects)) == kinds


def _same_sizes(holders: tuple[Any, ...]) -> Check:
    sizes = list(map(len, holders))
    return lambda: list(map(len, holders)) == sizes


def _same_values(reached: Reached) -> Iterator[Check]:
    """Yield up to two checks that items, attributes, globals and variables are still the same objects.

    What is equal to nothing but itself is compared as lists are, which takes the least time: items that
    are the same object are not compared further, and of other tensors PyTorch says that there is no
    single truth, which is an error. So are the names by which dicts have their items.
    """
    items = [one for one in reached.items if _has_names(one) or all(map(_is_equal_only_to_itself, one))]
    picks = [(get, one) for get, one in reached.picks if all(map(_is_equal_only_to_itself, get(one)))]
    if items or picks:
        yield _equal(items, picks)
    known = {id(one) for one in items} | {id(get) for get, _ in picks}
    yield from _identical(
        [one for one in reached.items if id(one) not in known],
        [(get, one) for get, one in reached.picks if id(get) not in known],
        reached.cells,
    )


def _has_names(items: Iterable[Any]) -> bool:
    """Whether all keys of a dict are texts, in whose place equal texts do the same."""
    return isinstance(items, dict | MappingProxyType) and all(type(key) is str for key in items)


def _is_equal_only_to_itself(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.numel() > 1
    return item is None or not any("__eq__" in vars(kind) for kind in type(item).__mro__[:-1])


def _equal(items: list[Iterable[Any]], picks: list[Pick]) -> Check:
    held = [*chain.from_iterable(items)]
    picked = [get(holder) for get, holder in picks]
    if not picks:
        return lambda: [*chain.from_iterable(items)] == held
    return lambda: [*chain.from_iterable(items)] == held and [get(holder) for get, holder in picks] == picked


def _identical(items: list[Iterable[Any]], picks: list[Pick], cells: list[Any]) -> Iterator[Check]:
    if cells:
        yield _Objects(lambda: map(_content, cells)).same
    if picks:
        yield _Objects(lambda: chain.from_iterable([get(holder) for get, holder in picks])).same
    if items:
        yield _Objects(lambda: chain.from_iterable(items)).same


class _Objects:
    """Objects, compared by their ids; they are kept alive, so that no new object gets one of these ids."""

    def __init__(self, now: Callable[[], Iterator[Any]]) -> None:
        self._now = now
        self._held = list(now())
        self._ids = list(map(id, self._held))

    def same(self) -> bool:
        return list(map(id, self._now())) == self._ids
