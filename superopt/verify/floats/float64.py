"""Float64: functions carried out in float64, against which errors are measured.

A function that asks for the dtype of a tensor is told the one that the tensor would have on the function's
own inputs. So it takes the same way, with the same numbers, as it does on those.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from superopt.verify.floats.memory import Memory
from superopt.verify.structures import change_leaves, leaves_of

__all__ = ["Float64", "held_dtype", "in_float64", "largest_number"]

Function: TypeAlias = Callable[..., Any]

_ENDLESS = 2.0**60  # larger numbers stand for infinity, as they do in masks
_ASKS_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]
_CASTS = {
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "to": None,
    "type": None,
    "type_as": None,
}
"""Functions that cast a tensor, and to which dtype; None where an argument says so."""


def in_float64(function: Function) -> Function:
    """Return the function with every operator carried out in float64, casts within it included."""
    widened = _Widened()

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            wide = widened(inputs)
            with Float64(Dtypes(inputs, wide)):
                return widened.apart(function(*wide))

    return run


def held_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype that a tensor has, whatever the function that is carried out is told."""
    with torch._C.DisableTorchFunction():
        return tensor.dtype


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


class Dtypes:
    """The dtypes that tensors would have, of those that are float64 instead."""

    def __init__(self, inputs: Any = (), wide: Any = ()) -> None:
        self._meant = WeakTensorKeyDictionary()
        for one, other in zip(tree_flatten(inputs)[0], tree_flatten(wide)[0], strict=True):
            if isinstance(one, Tensor):
                self.note(other, one.dtype)

    def of(self, tensor: Tensor) -> torch.dtype:
        """Return the dtype that a tensor would have."""
        found: torch.dtype = self._meant.get(tensor, tensor.dtype)  # type: ignore[no-untyped-call]
        return found

    def note(self, made: Any, dtype: torch.dtype) -> None:
        """Note the dtype that a new tensor of floats would have."""
        if isinstance(made, Tensor) and made.dtype == torch.float64 != dtype and made not in self._meant:
            self._meant[made] = dtype

    def made_of(self, leaves: Sequence[Any]) -> torch.dtype:
        """Return the dtype of floats that an operator would make: the one it is given, or the widest."""
        asked = [one for one in leaves if isinstance(one, torch.dtype)]
        floats = [one for one in leaves if isinstance(one, Tensor) and one.is_floating_point()]
        floats = [one for one in floats if one.dim()] or floats  # 0-d tensors count for less
        found = asked or [self.of(one) for one in floats] or [torch.get_default_dtype()]
        return reduce(torch.promote_types, found)


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Widens whatever tensors an operator reads or makes, parameters and closed-over ones too."""

    def __init__(self, dtypes: Dtypes | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtypes = dtypes or Dtypes()
        self._alike = _Alike(self._dtypes)

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
        with torch._C.DisableTorchFunction():
            kwargs = kwargs or {}
            dtype = self._dtypes.made_of([*leaves_of((args, kwargs))])
            made = func(*change_leaves(_double, args), **change_leaves(_double, kwargs))
            return change_leaves(partial(self._made, dtype=dtype), made)

    def _made(self, value: Any, dtype: torch.dtype) -> Any:
        """Return what an operator made in float64, which the function is told to be of some dtype."""
        wide = _double(value)
        self._dtypes.note(wide, dtype)
        return wide


class _Alike(TorchFunctionMode):
    """Widens tensors that a function reads beside wide ones, and tells the dtypes that they would have.

    Convolutions, attention and other functions that PyTorch makes of several operators refuse tensors of
    different dtypes before any operator runs.
    """

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function on tensors that are all wide, unless it writes to one of them."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func == _ASKS_DTYPE:
            return self._dtypes.of(args[0])
        if name in _CASTS and (made := self._cast(name, args, kwargs)) is not None:
            return made
        if name == "rms_norm":
            args, kwargs = self._with_eps(*args, **kwargs), {}
        if name == "tensor" and kwargs.get("dtype") is not None:  # it rounds before any operator
            made = func(*args, **change_leaves(_double, kwargs))
            self._dtypes.note(made, kwargs["dtype"])
            return made
        writes = (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None
        if not writes:
            dtypes = {one.dtype for one in leaves_of((args, kwargs)) if isinstance(one, Tensor)}
            if len(dtypes) > 1 and torch.float64 in dtypes:
                args, kwargs = change_leaves(self._widened, (args, kwargs))
        return func(*args, **kwargs)

    def _widened(self, value: Any) -> Any:
        """Return a value in float64, which the function is told to be of its own dtype."""
        wide = _wide(value)
        if isinstance(value, Tensor):
            self._dtypes.note(wide, value.dtype)
        return wide

    def _cast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return a wide tensor as PyTorch casts it: itself where it would have the dtype, else a copy.

        None stands for other casts, which make copies of what is float64.
        """
        tensor: Tensor = args[0]
        given = (*args[1:], *kwargs.values())
        dtypes = [self._dtypes.of(one) if isinstance(one, Tensor) else one for one in given]
        asked = [one for one in (*dtypes, _CASTS[name]) if isinstance(one, torch.dtype)]
        if tensor.dtype != torch.float64 or {*kwargs} & {"copy", "memory_format"} or not asked:
            return None
        if asked[0] == self._dtypes.of(tensor):
            return tensor
        return tensor.to(torch.float64, copy=True) if asked[0] == torch.float64 else None

    def _with_eps(
        self, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> tuple[Any, ...]:
        """Return the arguments of an RMS norm, whose epsilon is that of the dtype where none is given."""
        wide = self._dtypes.of(input) == torch.float64
        own = torch.finfo(torch.float64 if wide else torch.float32).eps
        return input, normalized_shape, weight, own if eps is None else eps


class _Watched(Float64):  # type: ignore[no-untyped-call]
    """Notes the largest number that is made and that does not stand for infinity."""

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__(dtypes)
        self.largest = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator in float64, and look at what it makes."""
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for value in leaves_of(made):
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
        with _Watched(Dtypes(tuple(inputs), wide)) as watched:
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
