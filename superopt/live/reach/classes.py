"""Classes: which attributes of its objects a class lets count, and which names its methods use."""

import builtins
import functools
import types
from typing import Any

from torch import nn

from superopt.trace.capture.libraries import is_library

__all__ = [
    "AUTOGRAD_NAMES",
    "DYNAMIC_LOOKUPS",
    "METHODS",
    "NEVER_CALLED",
    "OF_EVERY_MODULE",
    "RECORDS",
    "has_own_lookup",
    "is_all_attributes",
    "names_of_methods",
]

RECORDS = ("types", "argparse", "collections", "functools")
"""Modules of the standard library whose objects hold a user's data in attributes."""

_STATELESS = ("typing", "typing_extensions", "abc")  # their classes hold nothing

DYNAMIC_LOOKUPS = frozenset({"getattr", "vars", "__dict__", "attrgetter", "__getattribute__", "__getattr__"})
"""Names in code by which it may look up attributes whose names it puts together itself."""

METHODS = (
    types.FunctionType,
    classmethod,
    staticmethod,
    functools.partialmethod,
    functools.singledispatchmethod,
)
"""The types of what stands for a method in a class."""

NEVER_CALLED = frozenset(
    {"__init__", "__new__", "__repr__", "__str__", "__setstate__", "__getstate__", "__reduce__"}
    | {"__init_subclass__", "__del__", "__dir__", "extra_repr", "reset_parameters"}
)
"""Methods that are not called on an object once it is made, or only to show or copy it."""

AUTOGRAD_NAMES = frozenset({"requires_grad", "is_leaf", "grad_fn"})
"""Attributes that tell whether a tensor requires gradients; what PyTorch computes does not depend on them."""

OF_EVERY_MODULE = frozenset(
    {"_parameters", "_buffers", "_modules"} | {one for one in vars(nn.Module()) if "_hooks" in one}
)
"""The attributes by which nn.Module itself works."""


def is_all_attributes(kind: type) -> bool:
    """Whether the attributes of an object tell all of it; an object of a subclass of int is also a number."""
    return all(
        base is object
        or issubclass(base, nn.Module)
        or base.__module__ in (*RECORDS, *_STATELESS)
        or not is_library(base.__module__)
        for base in kind.__mro__
    )


def has_own_lookup(kind: type) -> bool:
    """Whether a class looks attributes up by code of its own, which may find them under other names."""
    own = [base for base in kind.__mro__ if not is_library(base.__module__)]
    return any(one in vars(base) for base in own for one in ("__getattr__", "__getattribute__"))


@functools.cache
def names_of_methods(kind: Any) -> frozenset[str]:
    """Return the names that the methods of one of PyTorch's modules use."""
    names: set[str] = set()
    for name, method in vars(kind).items():
        if isinstance(method, types.FunctionType) and name not in NEVER_CALLED:
            names.update(method.__code__.co_names)
    return frozenset(names - DYNAMIC_LOOKUPS - AUTOGRAD_NAMES - vars(builtins).keys())
