"""Floats: a candidate and PyTorch itself against float64, over kind and hostile inputs.

Knows nothing of the finite field. A candidate is accepted on a distribution of inputs if its error
against float64 is at most `FACTOR` times PyTorch's own plus `FLOOR` units in the last place, and if
it makes no NaN or infinity that PyTorch doesn't. Errors are shares of the largest magnitude in the
same row (the last dimension), so a small row counts as much as a large one.

Where there are few rows, one unlucky rounding decides: a logit of a hundred is off by more than the
rest of an attention does. So who errs too much on one draw of the inputs is judged by the largest
errors of both sides over `DRAWS` draws. Kernels of mqa-decode whose errors are three quarters of
PyTorch's fail on 9 of 100 single draws, and on 1 of 150 of these; kernels with eight times the errors
fail on 85 and on 78 of 100.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from superopt.errors import InputError
from superopt.ir import Graph
from superopt.verify.report import Counterexample, DistributionReport, FloatReport

__all__ = [
    "DISTRIBUTIONS",
    "DRAWS",
    "FACTOR",
    "FLOOR",
    "check_trace",
    "compare_floats",
    "compare_many",
    "find_counterexample",
    "in_float64",
    "sample",
    "tensors_of",
    "typical",
]

Function: TypeAlias = Callable[..., Any]

FACTOR = 2.0
"""How many times PyTorch's own error a candidate may make."""

FLOOR = 4.0
"""Units in the last place that a candidate may err in any case."""

DRAWS = 8
"""Draws of the inputs by which a candidate is judged that errs too much on the first one."""

_HOPELESS = 16.0  # times what is allowed: no bad luck makes so much
_CANCELLING = frozenset({"constant rows"})  # where equal functions may differ by rounding alone
_ROUNDING = 64.0  # units in the last place below which two functions count as the same
_LARGE = 2**16  # elements from which memory is used again
_PRINTED = 6  # elements at each end of a long tensor in a counterexample


Draw: TypeAlias = Callable[[Sequence[int], torch.Generator, torch.dtype], Tensor]


def _normal(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), generator=random, dtype=dtype, device=random.device)


def _uniform(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(tuple(shape), generator=random, dtype=dtype, device=random.device)


def _large(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal(shape, random, dtype).mul_(16)


def _huge(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal(shape, random, dtype).mul_(4096)


def _near_zero_rows(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    row = _uniform((*shape[:-1], 1) if shape else (), random, dtype)
    return _normal(shape, random, dtype).mul_(torch.where(row < 0.5, 2.0**-12, 1.0))


def _wide(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal(shape, random, dtype).mul_(_uniform(shape, random, dtype).mul_(12).sub_(8).exp2_())


def _sparse(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal(shape, random, dtype).mul_(_uniform(shape, random, dtype) < 0.2)


def _offset(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal(shape, random, dtype).add_(8)


def _constant_rows(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _normal((*shape[:-1], 1) if shape else (), random, dtype).mul_(32).expand(tuple(shape))


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": _normal,
    "uniform positive": _uniform,
    "large": _large,
    "huge": _huge,
    "near-zero rows": _near_zero_rows,
    "wide range": _wide,
    "sparse": _sparse,
    "offset": _offset,
    "constant rows": _constant_rows,
}
"""How input tensors are drawn, as float32 or wider before they are rounded to their own dtype."""

ONLY_FINITE = frozenset({"huge", "constant rows"})
"""Distributions that tell whether NaN or infinity comes up; on them rounding is as large as results."""


def sample(name: str, inputs: Sequence[Any], *, seed: int = 0) -> tuple[Any, ...]:
    """Return inputs like the given ones, floats drawn anew where they are; all else is kept."""
    number = list(DISTRIBUTIONS).index(name)
    randoms: dict[torch.device, torch.Generator] = {}

    def random_on(device: torch.device) -> torch.Generator:
        if device not in randoms:
            randoms[device] = torch.Generator(device).manual_seed((seed * 1009 + number) % 2**63)
        return randoms[device]

    def draw(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(draw(item) for item in value)
        if isinstance(value, dict):
            return {key: draw(item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        random = random_on(_device(value))
        if value.dtype == torch.bool:
            return torch.rand(*value.shape, generator=random, device=random.device) < 0.5
        if not value.dtype.is_floating_point:
            return torch.zeros_like(value, device=_device(value)) if value.is_meta else value
        wide = torch.promote_types(value.dtype, torch.float32) if value.dtype.itemsize > 1 else torch.float32
        drawn = DISTRIBUTIONS[name](value.shape, random, wide).to(value.dtype)
        if 0 in value.stride() or drawn.stride() == value.stride():
            return drawn
        fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_device(value))
        return fresh.copy_(drawn)

    return tuple(draw(value) for value in inputs)


def typical(inputs: Sequence[Any], *, seed: int = 0) -> tuple[Any, ...]:
    """Return inputs like the given ones to measure with: products with matrices stay as large as what is
    multiplied, as in models that are trained. Of much larger numbers some functions, as `tanh`, take longer.
    """

    def scaled(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype.itemsize > 1
        return value.mul_(max(value.shape[-1], 1) ** -0.5) if floats and value.dim() > 1 else value

    return tuple(tree_map(scaled, sample("normal", inputs, seed=seed)))


def in_float64(function: Function) -> Function:
    """Return the function with every operator carried out in float64, casts within it included."""
    widened = _Widened()

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            wide = widened(inputs)
            with _Float64():  # type: ignore[no-untyped-call]
                return widened.apart(function(*wide))

    return run


class _Widened:
    """Inputs as float64, large ones in the same memory each time: fresh memory takes longer than a matmul."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}

    def __call__(self, inputs: Any) -> Any:
        leaves, tree = tree_flatten(inputs)
        return tree_unflatten([self._wide(at, value) for at, value in enumerate(leaves)], tree)

    def apart(self, made: Any) -> Any:
        """Return what a function makes, copied where it lies in what is used again."""
        held = {tensor.untyped_storage().data_ptr() for tensor in self._held.values()}

        def own(value: Any) -> Any:
            shared = isinstance(value, Tensor) and value.untyped_storage().data_ptr() in held
            return value.clone() if shared else value

        return tree_map(own, made)

    def _wide(self, at: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.numel() < _LARGE:
            return _double(value)
        held = self._held.get(at)
        if held is None or held.shape != value.shape or held.device != value.device:
            held = self._held[at] = torch.empty_like(value, dtype=torch.float64)
        return held.copy_(value)


class _Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Widens whatever tensors an operator reads or makes, parameters and closed-over ones too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator in float64."""
        args, kwargs = tree_map(_double, (args, kwargs or {}))
        return tree_map(_double, func(*args, **kwargs))


def compare_floats(
    reference: Function,
    candidate: Function,
    inputs: Sequence[Any],
    *,
    eager: Function | None = None,
    factor: float = FACTOR,
    floor: float = FLOOR,
    distributions: Iterable[str] = tuple(DISTRIBUTIONS),
    seed: int = 0,
) -> FloatReport:
    """Return how the candidate's errors compare with PyTorch's, each against float64.

    `reference` is the program as written: it runs in float64 for the truth, and as it is for
    PyTorch's own error, unless `eager` does that.
    """
    [report] = compare_many(
        in_float64(reference),
        eager or reference,
        [candidate],
        inputs,
        factor=factor,
        floor=floor,
        distributions=distributions,
        seed=seed,
    )
    return report


def compare_many(
    exact: Function,
    eager: Function,
    candidates: Sequence[Function],
    inputs: Sequence[Any],
    *,
    factor: float = FACTOR,
    floor: float = FLOOR,
    distributions: Iterable[str] = tuple(DISTRIBUTIONS),
    seed: int = 0,
) -> list[FloatReport]:
    """Return how the errors of each candidate compare with those of `eager`; `exact` computes the truth."""
    reports: list[list[DistributionReport]] = [[] for _ in candidates]
    dtype = "no floats"
    for name in distributions:
        errors: list[list[_Errors]] = [[] for _ in candidates]
        left = list(range(len(candidates)))  # those that are not judged yet
        for draw in range(DRAWS):
            drawn = sample(name, inputs, seed=seed + draw)
            with torch.no_grad():
                truth, own = (_made(run, drawn, seed + draw) for run in (exact, eager))
            floating = [i for i, value in enumerate(own) if value.dtype.is_floating_point]
            if floating:
                dtype = str(own[floating[0]].dtype).removeprefix("torch.")
            for at in left:
                with torch.no_grad():
                    found = _made(candidates[at], drawn, seed + draw)
                _check_shapes(own, found)
                errors[at].append(_errors(truth, own, found))
            if draw == 0:
                first = [_judged(name, errors[at], factor, floor) for at in left]
                left = [at for at in left if 1 < first[at].ratio < _HOPELESS and not first[at].nonfinite]
            if not left:
                break
        for at, several in enumerate(errors):
            reports[at].append(_judged(name, several, factor, floor))
    return [FloatReport(dtype, factor, tuple(found)) for found in reports]


def find_counterexample(
    f: Function,
    g: Function,
    inputs: Sequence[Any],
    *,
    distributions: Iterable[str] = tuple(DISTRIBUTIONS),
    tolerance: float | None = None,
    finite: bool = False,
    seed: int = 0,
) -> Counterexample | None:
    """Return inputs on which two functions differ in float64, if found: by more than their dtype rounds.

    `tolerance` is another share of a row's largest magnitude to tell them apart by; with `finite`, a
    NaN or infinity on one side does not.
    """
    left, right = in_float64(f), in_float64(g)
    if tolerance is None:
        tolerance = _ROUNDING * max((_unit(value) for value in tensors_of(inputs)), default=2.0**-52)
    for name in (one for one in distributions if one not in _CANCELLING):
        drawn = sample(name, inputs, seed=seed)
        with torch.no_grad():
            made, other = tensors_of(left(*drawn)), tensors_of(right(*drawn))
        _check_shapes(made, other)
        for number, (a, b) in enumerate(zip(made, other, strict=True)):
            a, b = a.double(), b.double()
            differ = (a - b).abs() > tolerance * _scale(a)
            differ &= a.isfinite() & b.isfinite()
            if not finite:
                differ |= a.isfinite() != b.isfinite()
            if not bool(differ.any()):
                continue
            place = tuple(int(i) for i in differ.nonzero()[0])
            return Counterexample(
                name,
                tuple(_show(i, value) for i, value in enumerate(tensors_of(drawn))),
                f"output {number}",
                place,
                float(a[place]),
                float(b[place]),
            )
    return None


def check_trace(
    graph: Graph,
    function: Function,
    inputs: Sequence[Tensor],
    *,
    distributions: Iterable[str] = tuple(DISTRIBUTIONS),
    tolerance: float = 1e-8,
    seed: int = 0,
) -> FloatReport:
    """Return how far a graph, evaluated in float64, is from the function that it was traced from.

    `inputs` are the tensors of the graph's inputs, in order. The algebra takes exponentials without
    first subtracting a maximum, which code generation adds later; so a distribution on which the
    graph overflows where the function doesn't is skipped, and said to be.
    """
    from superopt.trace.run import run_graph

    exact = in_float64(function)
    names = [port.name for port in graph.inputs]
    reports = []
    for name in distributions:
        drawn = sample(name, inputs, seed=seed)
        with torch.no_grad():
            truth = tensors_of(exact(*drawn))
            outputs = run_graph(graph, dict(zip(names, drawn, strict=True)), torch.float64)
        found = [outputs[output.port.name] for output in graph.outputs]
        if any(bool((~b.isfinite() & a.isfinite()).any()) for a, b in zip(truth, found, strict=True)):
            skipped = "exponentials without a maximum overflow even in float64"
            reports.append(DistributionReport(name, 0.0, 0.0, 0.0, skipped=skipped))
            continue
        error = max((_error(a.double(), b) for a, b in zip(truth, found, strict=True)), default=0.0)
        reports.append(DistributionReport(name, 0.0, error, error / tolerance))
    return FloatReport("float64", 1.0, tuple(reports))


def _made(function: Function, inputs: Sequence[Any], seed: int) -> list[Tensor]:
    """Return the tensors that a function makes; random numbers that it draws are the same for all."""
    devices = {tensor.device for tensor in tensors_of(inputs) if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        torch.manual_seed(seed)
        return tensors_of(function(*inputs))


def _check_shapes(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    shapes = [[list(value.shape) for value in values] for values in (a, b)]
    if shapes[0] != shapes[1]:
        raise InputError(f"the functions return tensors of different shapes: {shapes[0]} and {shapes[1]}")


@dataclass(frozen=True, slots=True)
class _Errors:
    """What one draw of the inputs shows: PyTorch's error and the candidate's, and a unit, by output."""

    outputs: tuple[tuple[float, float, float], ...]
    equal: bool  # what are no floats
    nonfinite: bool
    compared: bool


def _errors(truth: Sequence[Tensor], own: Sequence[Tensor], found: Sequence[Tensor]) -> _Errors:
    outputs: list[tuple[float, float, float]] = []
    nonfinite = compared = False
    equal = True
    for exact, eager, made in zip(truth, own, found, strict=True):
        if not eager.dtype.is_floating_point:
            equal &= torch.equal(eager, made)
            compared = True
            continue
        # An infinity is no fault where the exact result rounds to just that one: PyTorch's number is wrong
        # there, by chance of its own roundings. A NaN, or the other infinity, is one.
        rounded = exact.to(eager.dtype)
        nonfinite |= bool((eager.isfinite() & ~made.isfinite() & (made != rounded)).any())
        usable = exact.isfinite() & eager.isfinite()
        compared |= bool(usable.any()) or usable.numel() == 0
        unit = torch.finfo(eager.dtype).eps
        exact, eager, made = (
            torch.where(usable & made.isfinite(), value.double(), 0.0) for value in (exact, eager, made)
        )
        outputs.append((_error(exact, eager), _error(exact, made), unit))
    return _Errors(tuple(outputs), equal, nonfinite, compared)


def _judged(name: str, draws: Sequence[_Errors], factor: float, floor: float) -> DistributionReport:
    """Return the verdict on the largest errors over all draws."""
    if not any(one.compared for one in draws):
        return DistributionReport(
            name, 0.0, 0.0, 0.0, draws[0].nonfinite, "PyTorch's own result is not finite"
        )
    ratio = 0.0 if all(one.equal for one in draws) else float("inf")
    eager_error = candidate_error = 0.0
    for output in zip(*(one.outputs for one in draws), strict=True):
        eager, made = max(one[0] for one in output), max(one[1] for one in output)
        eager_error, candidate_error = max(eager_error, eager), max(candidate_error, made)
        ratio = max(ratio, made / (factor * eager + floor * output[0][2]))
    if name in ONLY_FINITE and ratio != float("inf"):
        ratio = 0.0
    nonfinite = any(one.nonfinite for one in draws)
    return DistributionReport(name, eager_error, candidate_error, ratio, nonfinite)


def _error(exact: Tensor, found: Tensor) -> float:
    """Return the largest error as a share of its row's largest magnitude."""
    if exact.numel() == 0:
        return 0.0
    share = (found - exact).abs() / _scale(exact)
    return float(torch.where(share.isnan(), 0.0, share).max())


def _scale(exact: Tensor) -> Tensor:
    finite = torch.where(exact.isfinite(), exact, 0.0).abs()
    row = finite.amax(-1, keepdim=True) if finite.ndim and finite.numel() else finite
    # A row of exact zeros is judged by the whole tensor.
    whole = finite.max() if finite.numel() else finite.sum()
    return torch.where(row == 0, torch.where(whole == 0, 1.0, whole), row)


def _unit(value: Tensor) -> float:
    return float(torch.finfo(value.dtype).eps) if value.dtype.is_floating_point else 2.0**-52


def _double(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        if value.dtype.itemsize == 2:  # by way of float32 it takes a third of the time
            value = value.float()
        return value if value.dtype == torch.float64 else value.to(torch.float64)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _device(value: Tensor) -> torch.device:
    return torch.device("cpu") if value.is_meta else value.device


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a result, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    if hasattr(tree, "__iter__") and not isinstance(tree, (str, bytes)):  # texts hold texts
        return [tensor for item in tree for tensor in tensors_of(item)]
    return []


def _show(number: int, value: Tensor) -> str:
    shape = ", ".join(map(str, value.shape))
    dtype = str(value.dtype).removeprefix("torch.")
    numbers = [f"{x:.6g}" for x in value.flatten()[: 2 * _PRINTED + 1].tolist()]
    if value.numel() > 2 * _PRINTED:
        last = [f"{x:.6g}" for x in value.flatten()[-_PRINTED:].tolist()]
        numbers = [*numbers[:_PRINTED], "...", *last]
    return f"input {number}: {dtype}[{shape}] = {' '.join(numbers)}"
