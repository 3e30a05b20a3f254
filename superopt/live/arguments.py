"""Arguments: what a caller passes, against what a program was built for, and against earlier calls."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_flatten, tree_map

from superopt.codegen.forms import Forms, Ready
from superopt.codegen.signature import form_of
from superopt.dtypes import tensor_text
from superopt.errors import InputError
from superopt.live.sizes import described
from superopt.trace.capture.parameters import parameters_of
from superopt.trace.capture.tape import repeats_of
from superopt.verify.floats.compare import tensors_of

__all__ = [
    "ArgumentForms",
    "Calls",
    "arguments_in_order",
    "call_key",
    "check_arguments",
    "class_that_calls",
    "failing_with",
    "half_without_data",
    "in_built_order",
    "in_other_order",
    "is_same",
    "only_plain",
    "signature",
    "without_data",
]

_Program = TypeVar("_Program")
_SHOWN = (int, float, bool, str, type(None))
_IN_ORDER = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arguments_in_order(
    function: Callable[..., Any] | None,
    name: str,
    built: tuple[Any, ...],
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[Any, ...] | None:
    """Return all arguments in order, as many as a program was built for, or None where they are others.

    Arguments that are given by name come to their places, and defaults are filled in or left out.
    """
    if function is None:
        if not named:
            return inputs
        raise InputError(f"{name}: it was loaded without its function; pass arguments in order, not by name")
    try:
        form, sure = parameters_of(getattr(function, "forward", function))
    except (TypeError, ValueError):  # a builtin: it has no names to offer
        return None if named else inputs
    try:
        found = form.bind(*inputs, **named)
    except TypeError as error:
        if not sure:
            return None
        built_for = f"it was built for {described(built)}, as {len(built)} arguments"
        raise InputError(f"{name}: {error}; {built_for}") from error
    if not all(sure and is_same(value, form.parameters[key].default) for key, value in _by_name(found)):
        return None
    given, count = found.args, len(built)
    defaults = tuple(one.default for one in form.parameters.values() if one.kind in _IN_ORDER) if sure else ()
    defaults += (inspect.Parameter.empty,) * (max(count, len(given)) - len(defaults))
    filled = defaults[len(given) : count]
    if all(map(is_same, given[count:], defaults[count:])) and not any(
        one is inspect.Parameter.empty for one in filled
    ):
        return (*given[:count], *filled)
    return None


def _by_name(found: inspect.BoundArguments) -> list[tuple[str, Any]]:
    """Return the arguments that can only be given by name."""
    kinds = found.signature.parameters
    return [
        (key, value)
        for key, value in found.arguments.items()
        if kinds[key].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    ]


def is_same(mine: Any, its: Any) -> bool:
    """Whether two arguments other than tensors are the same to a program; 2 and 2.0 are not."""
    if mine is its:
        return True
    kind = type(mine)
    has_value = kind in _SHOWN or (
        kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "Size")
    )
    return has_value and kind is type(its) and repr(mine) == repr(its)  # NaN does not equal itself


def in_built_order(built: Any, given: Any) -> Any:
    """Return arguments with the keys of each dict in the order for which a program was built."""
    if type(built) is dict and type(given) is dict and built.keys() == given.keys():
        return {key: in_built_order(value, given[key]) for key, value in built.items()}
    if type(built) in (tuple, list) and type(given) is type(built) and len(given) == len(built):
        return type(built)(in_built_order(mine, its) for mine, its in zip(built, given, strict=True))
    return given


def in_other_order(built: Any, given: Any) -> bool:
    """Whether the keys of some dict come in another order than those for which a program was built."""
    if type(built) is dict and type(given) is dict and built.keys() == given.keys():
        return [*built] != [*given] or any(in_other_order(one, given[key]) for key, one in built.items())
    if type(built) in (tuple, list) and type(given) is type(built) and len(given) == len(built):
        return any(map(in_other_order, built, given))
    return False


def without_data(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs with their tensors on the meta device."""

    def bare(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return tuple(tree_map(bare, inputs))


def failing_with(function: Callable[..., Any], error: InputError) -> Callable[..., Any]:
    """Return a function that raises this error where it fails on what it is given."""

    def tried(*inputs: Any, **named: Any) -> Any:
        try:
            return function(*inputs, **named)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as failure:
            raise error from failure

    return tried


def only_plain(tensors: Iterable[Any]) -> bool:
    """Whether kernels can read tensors: plain tensors and parameters, with memory of their own."""
    return all(type(one) in (Tensor, Parameter) and _in_memory(one) for one in tensors)


def _in_memory(tensor: Any) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # while a function is transformed, the tensor stands for another one
        return False
    return True


def half_without_data(inputs: tuple[Any, ...]) -> bool:
    """Whether some tensors have no data and others do: what PyTorch makes of that is arbitrary."""
    return len({one.is_meta for one in tensors_of(inputs)}) == 2


def check_arguments(built: tuple[Any, ...], given: tuple[Any, ...], device: str, name: str) -> None:
    """Refuse arguments of another structure, rank, dtype, device or number."""
    wanted, structure = tree_flatten(built)
    leaves, other = tree_flatten(given)
    if structure != other:
        raise InputError(f"{name}: it was built for {described(built)}, as {len(built)} arguments")
    for number, (mine, its) in enumerate(zip(wanted, leaves, strict=True), 1):
        if not isinstance(mine, Tensor) or not isinstance(its, Tensor):
            if not is_same(mine, its):
                raise InputError(f"{name}: input {number} is {_said(its)}; it was built for {_said(mine)}")
            continue
        same = (mine.dim(), mine.dtype) == (its.dim(), its.dtype)
        if not same or its.device.type != device:
            raise InputError(
                f"{name}: input {number} is {_said(its)} on {its.device};"
                f" it was built for {_said(mine)} on {device}, of any sizes"
            )


def signature(inputs: tuple[Any, ...], device: str | None = None) -> object:
    """Return what must agree for a program to be used: structure, shapes, strides, dtypes, devices, numbers.

    So must the tensors that are several arguments.
    """
    if all(isinstance(one, Tensor) for one in inputs):
        forms = [(one.shape, one.dtype, device or one.device.type, _steps(one)) for one in inputs]
        return *forms, repeats_of(inputs)
    leaves, structure = tree_flatten(inputs)
    repeats = repeats_of([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    return (
        str(structure),
        repeats,
        tuple(
            (leaf.shape, leaf.dtype, device or leaf.device.type, _steps(leaf))
            if isinstance(leaf, Tensor)
            else (type(leaf), repr(leaf))
            for leaf in leaves
        ),
    )


def _steps(tensor: Tensor) -> tuple[object, ...]:
    """Return the strides of a tensor; of an axis that is 1 long, only which others it lies outside of.

    By that PyTorch tells whether an image of one channel has its channels last.
    """
    steps, shape = tensor.stride(), tensor.shape
    if 1 not in shape:
        return steps
    ends = [end for step, size in zip(steps, shape, strict=True) for end in (step, step * size)]
    return tuple(
        step if size > 1 else tuple(step >= end for end in ends)
        for step, size in zip(steps, shape, strict=True)
    )


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return tensor_text(value)
    return repr(value) if type(value) in _SHOWN else f"a {type(value).__module__}.{type(value).__name__}"


# -- calls like earlier ones


class Calls:
    """What serves calls of each form, while the function reads the same tensors."""

    __slots__ = ("latest", "ready")

    def __init__(self) -> None:
        self.ready: dict[object, Ready] = {}
        self.latest: Ready | None = None  # what served the latest call


class ArgumentForms(Forms):
    """The forms of arguments, and which of them are one tensor; functions may compare them by `is`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self._repeats = repeats_of(tensors)

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no form has changed, and no other arguments are one tensor."""
        # A guard never holds where one tensor comes twice, and none is made for such arguments.
        return self.alike(*tensors) or (repeats_of(tensors) == self._repeats and self._same_here(tensors))


def call_key(inputs: Sequence[Tensor], threads: int) -> object:
    """Return what must agree for the preparation of another call to serve these arguments."""
    return threads, form_of(inputs), repeats_of(inputs)


def class_that_calls(kind: type[_Program], function: Callable[..., Any]) -> type[_Program]:
    """Return a class like another one, whose objects call a function directly when they are called."""
    own = {"__call__": staticmethod(function), "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
