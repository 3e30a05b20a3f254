"""Wide: functions carried out in float64, which is what errors are told against."""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from superopt.verify.floats.memory import Memory

__all__ = ["Float64", "in_float64", "largest_number"]

Function: TypeAlias = Callable[..., Any]

_ENDLESS = 2.0**60  # larger numbers stand for infinity, as they do in masks


def in_float64(function: Function) -> Function:
    """Return the function with every operator carried out in float64, casts within it included."""
    widened = _Widened()

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            wide = widened(inputs)
            with Float64():
                return widened.apart(function(*wide))

    return run


class _Widened:
    """Inputs as float64, large ones in the same memory each time."""

    def __init__(self) -> None:
        self._memory = Memory()

    def __call__(self, inputs: Any) -> Any:
        leaves, tree = tree_flatten(inputs)
        return tree_unflatten([self._wide(at, value) for at, value in enumerate(leaves)], tree)

    def apart(self, made: Any) -> Any:
        """Return what a function makes, copied where it lies in what is used again."""

        def own(value: Any) -> Any:
            return value.clone() if isinstance(value, Tensor) and self._memory.holds(value) else value

        return tree_map(own, made)

    def _wide(self, at: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return _double(value)
        return self._memory.like(at, value, torch.float64).copy_(value)


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Widens whatever tensors an operator reads or makes, parameters and closed-over ones too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alike = _Alike()

    def __enter__(self) -> Self:
        """Widen from now on."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._alike.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Widen no longer."""
        self._alike.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator in float64."""
        args, kwargs = tree_map(_double, (args, kwargs or {}))
        return tree_map(_double, func(*args, **kwargs))


class _Alike(TorchFunctionMode):
    """Widens tensors that a function reads beside wide ones.

    Convolutions, attention and other functions that PyTorch makes of several operators refuse tensors of
    different dtypes before any operator runs.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function on tensors that are all wide, unless it writes to one of them."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        writes = (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None
        if not writes:
            dtypes = {one.dtype for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)}
            if len(dtypes) > 1 and torch.float64 in dtypes:
                args, kwargs = tree_map(_wide, (args, kwargs))
        return func(*args, **kwargs)


class _Watched(Float64):  # type: ignore[no-untyped-call]
    """Notes the largest number that is made and that does not stand for infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator in float64, and look at what it makes."""
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for value in tree_flatten(made)[0]:
            if isinstance(value, Tensor) and value.dtype == torch.float64:
                sizes = value.abs()
                known = sizes[sizes < _ENDLESS]
                self.largest = max(self.largest, float(known.max()) if known.numel() else 0.0)
        return made


def largest_number(function: Function, inputs: Sequence[Any]) -> float:
    """Return the largest magnitude that a function makes on its way in float64, which rounds the rest."""
    widened = _Widened()
    with torch.no_grad():
        wide = widened(tuple(inputs))
        with _Watched() as watched:
            function(*wide)
    return watched.largest


def _double(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return _wide(value)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        if value.dtype.itemsize == 2:  # the way through float32 takes a third of the time
            value = value.float()
        return value if value.dtype == torch.float64 else value.to(torch.float64)
    return value
