"""The table of lowerings: which function turns a call of each ATen operator into algebra."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

import torch

from superopt.dtypes import dtype_text
from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.integers import check_fits, wrapped

__all__ = [
    "INTEGERS",
    "LOWERINGS",
    "PROOF_INTEGERS",
    "PROOF_LOWERINGS",
    "REASONS",
    "VIEWS",
    "WIDENING",
    "Lowering",
    "as_sym",
    "check_quantizes",
    "check_rounds",
    "held",
    "lower",
    "lower_all",
    "moves",
    "normal_dims",
    "takes_integers",
    "unsupported",
    "widens",
]

Lowering = Callable[..., Sym | Sequence[Sym | None]]

LOWERINGS: dict[str, Lowering] = {}
"""By operator name without overload; a lowering takes the Builder and the call's own arguments."""

PROOF_LOWERINGS: dict[str, Lowering] = {}
"""Those used instead where programs are only compared, whatever they would cost to run."""

INTEGERS: set[str] = set()
"""Operators whose integer tensors are algebra too, since they only compare them with positions."""

PROOF_INTEGERS: set[str] = set()
"""Further ones where programs are only compared."""

WIDENING = frozenset({"_to_copy", "to", "mul", "div", "add", "sub"})
"""Operators that first turn integers into the floats of their result."""

VIEWS = frozenset(
    {
        "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand",
        "select", "slice", "alias", "clone", "split", "split_with_sizes", "unbind", "diagonal", "unfold",
        "detach", "flip",
    }
)  # fmt: skip
"""Operators that only give tensors other dimensions, or take a part."""

_MOVING = frozenset({"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze"})
_EXACT = (torch.int8, torch.uint8)  # integers that every half precision holds exactly

REASONS: dict[str, str] = {}
"""Why an operator without a lowering has none, where there is more to say than that."""


_L = TypeVar("_L", bound=Lowering)


def lower(*names: str, for_proof: bool = False) -> Callable[[_L], _L]:
    """Register a lowering for some operators."""
    table = PROOF_LOWERINGS if for_proof else LOWERINGS

    def register(function: _L) -> _L:
        for name in names:
            assert name not in table, name
            table[name] = function
        return function

    return register


def lower_all(formulas: Mapping[str, Lowering], *, for_proof: bool = False) -> None:
    """Register a lowering for each of some operators."""
    for name, formula in formulas.items():
        lower(name, for_proof=for_proof)(formula)


def takes_integers(*names: str, for_proof: bool = False) -> None:
    """Register operators whose integer tensors are algebra too."""
    (PROOF_INTEGERS if for_proof else INTEGERS).update(names)


def widens(name: str, read: torch.dtype, made: Iterable[torch.dtype]) -> bool:
    """Whether an operator turns the integers that it reads into floats without rounding them."""
    return name in WIDENING and read in _EXACT and all(one.is_floating_point for one in made)


def moves(name: str, read: torch.dtype) -> bool:
    """Whether an operator only gives integers other dimensions, which stay what they are."""
    return name in _MOVING and read in _EXACT


def unsupported(reason: str, *names: str) -> None:
    """Register operators that stay opaque, with their reason."""
    REASONS.update(dict.fromkeys(names, reason))


def as_sym(b: Builder, value: Any, like: Sym) -> Sym:
    """Return an argument that is a tensor or a number as a tensor, which a number does not make narrower."""
    return value if isinstance(value, Sym) else b.scalar(value, _promoted(value, like.dtype))


def _promoted(number: float | int | bool, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of what an operator makes of tensors of a dtype and a number."""
    own = _dtype_of(number)
    if dtype.is_floating_point or own == torch.bool:
        return dtype
    return own if own.is_floating_point or dtype == torch.bool else dtype


def held(b: Builder, value: Any, dtype: torch.dtype | None) -> Sym:
    """Return a number or a tensor as a tensor of a dtype holds it; without a dtype, as it is.

    Numbers are rounded to half types, whose tensors may meet tensors of wider types. Any other float stands
    for the number that was written: so 0.1 is one number, whether it is an argument or fills a tensor.
    """
    if dtype in _HALVES and isinstance(value, (int, float)) and isfinite(value):
        value = torch.tensor(value, dtype=dtype).item()
    found = value if isinstance(value, Sym) else b.scalar(value, _dtype_of(value))
    number = b.constant(found.value)
    if dtype is None or found.dtype == dtype:
        return found
    if dtype.is_floating_point:
        check_quantizes(found, dtype)
        return found
    if number is None:
        check_rounds(found, dtype)
        check_fits(b, found, dtype)
        return found
    if found.mask is not None:
        raise UnsupportedError("infinity as an integer")
    return b.scalar(bool(number) if dtype == torch.bool else wrapped(int(number), dtype), dtype)


_HALVES = (torch.float16, torch.bfloat16)


def _dtype_of(number: float | int | bool) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.int64 if isinstance(number, int) else torch.get_default_dtype()


def check_rounds(x: Sym, dtype: torch.dtype | None) -> None:
    """Refuse a dtype that cannot hold the numbers of a tensor."""
    if dtype is not None and not dtype.is_floating_point:
        if x.dtype.is_floating_point or x.dtype.is_complex:
            raise UnsupportedError("rounds to integers")
        if dtype == torch.bool:
            raise UnsupportedError("makes numbers truth values")


def check_quantizes(x: Sym, dtype: torch.dtype) -> None:
    """Refuse to cast a tensor to a float of 8 bits, whose roundings are too large to be left out."""
    if dtype.is_floating_point and dtype.itemsize == 1 and x.dtype not in (dtype, torch.bool):
        raise UnsupportedError(f"rounds to {dtype_text(dtype)}")


def normal_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the dimensions of a reduction as sorted non-negative numbers; none means all.

    The one dimension that PyTorch lets a number of no dimensions have is none here.
    """
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(dim % rank for dim in listed)) if rank else ()


def flat(dims: Sequence[Dim]) -> Dim:
    """Return all axes of some dimensions."""
    return tuple(axis for dim in dims for axis in dim)


unsupported(
    "gathers by the data of an index tensor",
    "embedding",
    "gather",
    "index_select",
    "take",
    "take_along_dim",
)
unsupported(
    "scatters by the data of an index tensor",
    "scatter",
    "scatter_add",
    "index_add",
    "masked_scatter",
)
unsupported("the order depends on the data", "sort", "topk", "argsort", "kthvalue", "median", "mode")
unsupported("the position of an extremum is no algebra", "argmax", "argmin")
unsupported(
    "random numbers",
    "bernoulli",
    "native_dropout",
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "uniform",
    "normal",
    "multinomial",
)
unsupported("a running product or maximum along an axis", "cumprod", "cummax", "logcumsumexp")
unsupported("a diagonal makes one axis of two", "diagonal", "diag_embed", "trace")
unsupported(
    "rounds to integers",
    "floor",
    "ceil",
    "round",
    "trunc",
    "floor_divide",
    "remainder",
    "fmod",
    "frac",
)
unsupported("needs integer class indices", "nll_loss2d_forward")
unsupported("reads memory by explicit strides", "as_strided")
