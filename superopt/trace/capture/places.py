"""Places: what may hold a tensor beyond a call, with what it holds now, so that this can be put back."""

import functools
import gc
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from torch import Tensor

__all__ = [
    "InCache",
    "InCell",
    "InClass",
    "InDict",
    "InGroup",
    "InMemo",
    "InSlots",
    "Place",
    "lacks_data",
    "slots_of",
]

_MOST = 1_000  # objects of one value among which a tensor without data is looked for
_NO_HOLDERS = (int, float, complex, str, bytes, type(None), type, ModuleType, FunctionType)
_AROUND = "a variable around it"

Held = Mapping[Any, Any]


class Place:
    """What holds objects by name; by their ids where they have no names."""

    __slots__ = ("before", "holder")

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.before: Held = dict(self._now())

    def _now(self) -> Held:
        """Return what it holds."""
        raise NotImplementedError

    def _set(self, name: Any, value: Any) -> None:
        """Let it hold an object by a name."""
        raise NotImplementedError

    def _remove(self, name: Any) -> None:
        """Let it hold nothing by a name."""
        raise NotImplementedError

    def _put_back(self, names: list[Any]) -> None:
        """Let it hold by these names what it held before."""
        for name in names:
            if name in self.before:
                self._set(name, self.before[name])
            else:
                self._remove(name)

    def _titles(self, names: list[Any]) -> list[str]:
        """Return what errors call these names."""
        return list(map(str, names))

    def stored(self) -> list[str]:
        """Return where tensors without data have come, once what was there is put back."""
        before = self.before
        new = [one for one in [*self._now().items()] if one[0] not in before or before[one[0]] is not one[1]]
        names = [name for name, value in new if lacks_data(value)]
        if names:
            self._put_back(names)
        return self._titles(names)


class InDict(Place):
    """The items of a dict, or those of them that are named; more may be named later."""

    __slots__ = ("_named",)

    def __init__(self, holder: dict[Any, Any], named: Collection[Any] | None = None) -> None:
        self.holder, self.before, self._named = holder, dict(holder), named

    def _now(self) -> Held:
        holder, named = self.holder, self._named
        return holder if named is None else {name: holder[name] for name in named if name in holder}

    def _set(self, name: Any, value: Any) -> None:
        self.holder[name] = value

    def _remove(self, name: Any) -> None:
        del self.holder[name]


class InMemo(InDict):
    """The items of a dict that only keeps what can be made again."""

    __slots__ = ()

    def _titles(self, names: list[Any]) -> list[str]:
        return []


class InGroup(Place):
    """The items of a list, a deque or a set."""

    __slots__ = ("_items",)

    def __init__(self, holder: Any) -> None:
        super().__init__(holder)
        self._items = [*holder]  # one object may be there several times

    def _now(self) -> Held:
        return {id(one): one for one in [*self.holder]}

    def _put_back(self, names: list[Any]) -> None:
        self.holder.clear()
        (self.holder.update if isinstance(self.holder, set) else self.holder.extend)(self._items)

    def _titles(self, names: list[Any]) -> list[str]:
        return [f"a {type(self.holder).__name__}" for _ in names]


class InCell(Place):
    """A variable around a function."""

    __slots__ = ()

    def _now(self) -> Held:
        try:
            return {_AROUND: self.holder.cell_contents}
        except ValueError:  # the cell is still empty
            return {}

    def _set(self, name: Any, value: Any) -> None:
        self.holder.cell_contents = value

    def _remove(self, name: Any) -> None:
        del self.holder.cell_contents


class InClass(Place):
    """The attributes of a class."""

    __slots__ = ()

    def _now(self) -> Held:
        held: Held = vars(self.holder)
        return held

    def _set(self, name: Any, value: Any) -> None:
        setattr(self.holder, name, value)

    def _remove(self, name: Any) -> None:
        delattr(self.holder, name)


class InSlots(Place):
    """The attributes that an object has in slots."""

    __slots__ = ()

    @property
    def _kind(self) -> Any:
        return type(self.holder)

    def _now(self) -> Held:
        return dict(_filled(self.holder))

    def _set(self, name: Any, value: Any) -> None:
        slots_of(self._kind)[name].__set__(self.holder, value)

    def _remove(self, name: Any) -> None:
        slots_of(self._kind)[name].__delete__(self.holder)


class InCache(Place):
    """The results that `functools.lru_cache` keeps; they can be made again, so all of them go together."""

    __slots__ = ()

    def _now(self) -> Held:
        own = (self.holder.__wrapped__, vars(self.holder))
        held = [one for one in gc.get_referents(self.holder) if not any(one is other for other in own)]
        values = [value for one in held for value in (one.values() if type(one) is dict else (one,))]
        return {id(one): one for one in values}

    def _put_back(self, names: list[Any]) -> None:
        self.holder.cache_clear()

    def _titles(self, names: list[Any]) -> list[str]:
        return []


@functools.cache
def slots_of(kind: Any) -> dict[str, MemberDescriptorType]:
    """Return the slots of the objects of a class that has `__slots__`."""
    slotted = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    found = [(name, one) for held in slotted for name, one in held.items()]
    return {name: one for name, one in found if isinstance(one, MemberDescriptorType)}


def _filled(holder: Any) -> Iterator[tuple[str, Any]]:
    kind: Any = type(holder)
    for name, slot in slots_of(kind).items():
        try:
            yield name, slot.__get__(holder)
        except AttributeError:  # it holds nothing
            continue


def lacks_data(value: Any) -> bool:
    """Whether a value is a tensor without data, or holds one."""
    left, seen = [value], dict[int, Any]()
    while left and len(seen) < _MOST:
        one = left.pop()
        if id(one) in seen or isinstance(one, _NO_HOLDERS):
            continue
        seen[id(one)] = one
        if isinstance(one, Tensor):
            if one.is_meta:
                return True
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset | deque):
            left += one
        else:
            attributes = getattr(one, "__dict__", None)
            left += attributes.values() if isinstance(attributes, dict) else ()
            left += dict(_filled(one)).values()
    return False
