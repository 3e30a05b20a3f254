"""Arguments: what a caller passes, against what a program was built for."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from superopt.errors import InputError
from superopt.plans.sizes import described

__all__ = ["bound", "check_arguments", "in_built_order", "only_plain", "signature"]

_SHOWN = (int, float, bool, str, type(None))


def bound(
    function: Callable[..., Any] | None, name: str, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return all arguments in order, those given by name at their places."""
    if function is None:
        raise InputError(f"{name}: it was loaded without its function; pass arguments in order, not by name")
    try:
        found = inspect.signature(getattr(function, "forward", function)).bind(*inputs, **named)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    if found.kwargs:
        raise InputError(f"{name}: it was built for arguments in order; {', '.join(found.kwargs)} is by name")
    return found.args


def in_built_order(built: Any, given: Any) -> Any:
    """Return arguments with the keys of each dict in the order of those that a program was built for."""
    if type(built) is dict and type(given) is dict and built.keys() == given.keys():
        return {key: in_built_order(value, given[key]) for key, value in built.items()}
    if type(built) in (tuple, list) and type(given) is type(built) and len(given) == len(built):
        return type(built)(in_built_order(mine, its) for mine, its in zip(built, given, strict=True))
    return given


def only_plain(tensors: Iterable[Any]) -> bool:
    """Whether kernels can read tensors: not those of other classes, nor without memory of their own."""
    from torch import Tensor
    from torch.nn import Parameter

    return all(type(one) in (Tensor, Parameter) and _in_memory(one) for one in tensors)


def _in_memory(tensor: Any) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # it stands for another one, while a function is transformed
        return False
    return True


def check_arguments(built: tuple[Any, ...], given: tuple[Any, ...], device: str, name: str) -> None:
    """Refuse arguments of another structure, rank, dtype, device or number."""
    from torch import Tensor
    from torch.utils._pytree import tree_flatten

    wanted, structure = tree_flatten(built)
    leaves, other = tree_flatten(given)
    if structure != other:
        raise InputError(f"{name}: it was built for {described(built)}, as {len(built)} arguments")
    for number, (mine, its) in enumerate(zip(wanted, leaves, strict=True), 1):
        if not isinstance(mine, Tensor) or not isinstance(its, Tensor):
            same = mine is its or (type(mine) in _SHOWN and type(its) in _SHOWN and mine == its)
            if not same and repr(mine) != repr(its):  # NaN does not equal itself
                raise InputError(f"{name}: input {number} is {_said(its)}; it was built for {_said(mine)}")
            continue
        same = (mine.dim(), mine.dtype) == (its.dim(), its.dtype)
        if not same or its.device.type != device:
            raise InputError(
                f"{name}: input {number} is {_said(its)} on {its.device};"
                f" it was built for {_said(mine)} on {device}, of any sizes"
            )


def signature(inputs: tuple[Any, ...], device: str | None = None) -> object:
    """Return what must agree for a program to be used: structure, shapes, dtypes, devices, numbers."""
    from torch import Tensor
    from torch.utils._pytree import tree_flatten

    if all(isinstance(one, Tensor) for one in inputs):
        return tuple([(one.shape, one.dtype, device or one.device.type) for one in inputs])
    leaves, structure = tree_flatten(inputs)
    return str(structure), tuple(
        (leaf.shape, leaf.dtype, device or leaf.device.type)
        if isinstance(leaf, Tensor)
        else (type(leaf), repr(leaf))
        for leaf in leaves
    )


def _said(value: Any) -> str:
    from torch import Tensor

    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value) if type(value) in _SHOWN else f"a {type(value).__module__}.{type(value).__name__}"
