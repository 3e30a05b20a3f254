"""Precision: in which dtype a program multiplies, and what its values are rounded to between kernels.

PyTorch rounds every tensor of a half-precision program and adds up products in fp32. Kernels do the same: a
contraction multiplies operands in the program's half type into fp32, and a value that crosses kernels has the
half type where the program rounds a tensor of that role: an operand or a result of a matrix product, unless
it is one of a tensor in fp32, or a tensor shaped like one of its own. Sums, statistics and parts of split
reductions stay in fp32, as PyTorch's kernels keep them.

Numbers in bf16 reach as far as those in fp32. Those in fp16 do not. A static bound says that some values fit:
exponentials less their maxima, and numbers over the norm of their row. To round others to fp16 as they are is
a choice, which the check in floats judges on hostile inputs. Instead, an operand of a product can be scaled:
each of its rows is divided by a power of two that brings its largest number below 2^15, and the product of
the row is multiplied by it. Of the other numbers of the row nothing is lost that fp16 would hold of them
beside that one. Between kernels there is a candidate that keeps fp32.

On CPUs a contraction multiplies bf16 where the processor has instructions for it, and in fp32 elsewhere;
fp16 is always converted to fp32. These instructions take subnormal numbers as zero: operands below 2^-126
count as nothing, and so do products and sums of that size. PyTorch's own products in bf16 do the same on such
a processor, so the check in floats, which compares with PyTorch's error, judges both alike.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, prod

from superopt.dtypes import FLOATS, FP8, HALVES
from superopt.ir import Block, Call, Graph, MuGraph, Step, value_axes
from superopt.ir.cut import Roles, half_of
from superopt.ir.mugraph import shown_to, walk
from superopt.ops import OPS

__all__ = [
    "OperandRounding",
    "fits_f16",
    "half_of",
    "is_wide",
    "library_dtype",
    "mixed_product",
    "multiplied_in",
    "operand_dtypes",
    "product_dtype",
    "wide_values",
    "with_rounding",
]

LARGEST_F16 = 65504.0
_LARGEST = {"bool": 1.0, "f16": LARGEST_F16, "f8e4m3": 448.0, "f8e5m2": 57344.0, "u8": 255.0, "i8": 128.0}
_LONGEST = 2.0**31  # positions of an axis: bounds hold at all sizes that a kernel may serve
_MOST_FACTORS = 16  # the most factors of a product whose range is worked out
_VIEWS = ("rename", "select", "window")
_SAME_SIZE = frozenset({"neg", "abs", "relu", *_VIEWS, "max", "silu", "gelu", "gelu_tanh"})


@dataclass(frozen=True, slots=True)
class OperandRounding:
    """How the operands of a contraction are rounded."""

    dtype: str
    scaled: frozenset[int] = frozenset()  # the operands whose rows are divided by powers of two first


def product_dtype(graph: Graph, step: Step, memory: Mapping[int, str]) -> str:
    """Return the dtype in which the operands of a contraction are multiplied: a half precision, or fp32.

    `memory` has the dtypes of the program's tensors and of what was rounded; all else is computed in fp32,
    and is rounded here. A tensor that the program itself has in fp32 is rounded beside a half: a program
    that casts such a weight to multiply it with halves has no cast here. The check in floats decides on it.
    """
    known = {memory[i] for i in step.inputs if i in memory}
    halves = known & HALVES
    if halves:
        return next(iter(halves)) if len(halves) == 1 else "f32"
    if known & FLOATS:
        return "f32"
    if known <= FP8 and all(i in memory for i in step.inputs):
        return "f16"  # holds every number of eight bits
    return half_of(graph) or "f32"


def library_dtype(dtypes: frozenset[str] | set[str]) -> str:
    """Return the dtype in which a library multiplies operands of some dtypes, and of its result."""
    if len(dtypes) == 1 and not dtypes & FP8:
        return next(iter(dtypes))
    wider = dtypes - FP8  # a library does not multiply eight bits
    return next(iter(wider)) if len(wider) == 1 else "f32"


def is_wide(graph: Graph, value: int, memory: Mapping[int, str]) -> bool:
    """Return whether an operand of a product in fp16 is computed, and may be of any size."""
    return memory.get(value) not in {"f16", *FP8} and not fits_f16(graph, value)


def multiplied_in(mugraph: MuGraph, rounds: Sequence[bool]) -> dict[int, OperandRounding]:
    """Return how the operands of each contraction are rounded that rounds any.

    `rounds` says of each kernel whether it rounds operands to fp16 as they are that may not fit.
    """
    graph = mugraph.graph
    first = len(graph.inputs)
    memory = {i: port.dtype for i, port in enumerate(graph.inputs)} | dict(mugraph.rounded)
    axes = value_axes(graph)
    found: dict[int, OperandRounding] = {}
    for kernel, rounding in zip(mugraph.kernels, rounds, strict=True):
        steps = {tile.value: graph.steps[tile.value - first] for tile, _ in walk(kernel)}
        known = operand_dtypes(graph, steps.items(), memory)
        for value, step in steps.items() if isinstance(kernel, Block) else ():
            a, b = (axes[i] for i in step.inputs) if step.op == "contract" else (frozenset(), frozenset())
            dtype = product_dtype(graph, step, known) if a - b and b - a else "f32"
            if dtype in HALVES:
                scaled = () if rounding or dtype != "f16" else step.inputs
                found[value] = OperandRounding(
                    dtype, frozenset(i for i in scaled if is_wide(graph, i, known))
                )
    return found


# -- what lies between kernels


def with_rounding(mugraph: MuGraph, *, wide: bool = False) -> MuGraph:
    """Return a muGraph whose values between kernels have the dtypes of the policy.

    With `wide` they stay in fp32, but for the products of a library, which are what the library makes, and
    for what leaves in half precision: it is read as it leaves, and lies in memory once.
    """
    half = half_of(mugraph.graph)
    if half is None or len(mugraph.kernels) < 2:
        return replace(mugraph, rounded=())
    roles = Roles(mugraph.graph, {split.outer for split in mugraph.splits})
    read_later = {value for kernel in mugraph.kernels for value in mugraph.loads(kernel)}
    leaving = {one.value for one in mugraph.graph.outputs if one.port.dtype == half}
    memory = {i: port.dtype for i, port in enumerate(mugraph.graph.inputs)}
    for kernel in mugraph.kernels:
        if isinstance(kernel, Call):
            memory |= _called(mugraph.graph, kernel, memory)
        else:
            for value in mugraph.stores(kernel):
                rounds = roles.is_rounded(value) and (value in leaving or not wide)
                memory[value] = half if rounds else "f32"
    rounded = sorted((i, dtype) for i, dtype in memory.items() if i in read_later and dtype in HALVES)
    first = len(mugraph.graph.inputs)
    return replace(mugraph, rounded=tuple((i, dtype) for i, dtype in rounded if i >= first))


def operand_dtypes(
    graph: Graph, steps: Iterable[tuple[int, Step]], memory: Mapping[int, str]
) -> dict[int, str]:
    """Return the dtypes of what a kernel reads, and reads at other places, but of its own fp32 numbers."""
    first = len(graph.inputs)
    known = {i: dtype for i, dtype in memory.items() if i < first or dtype not in ("f32", "f64")}
    for value, step in steps:
        if (step.mapping or step.places) and step.inputs[0] in known:
            known[value] = known[step.inputs[0]]
    return known


def wide_values(mugraph: MuGraph) -> frozenset[int]:
    """Return the values that kernels of ours round to fp16 between them, and that may be too large for it."""
    made = {i for kernel in mugraph.kernels if isinstance(kernel, Block) for i in mugraph.stores(kernel)}
    return frozenset(
        value
        for value, dtype in mugraph.rounded
        if dtype == "f16" and value in made and not fits_f16(mugraph.graph, value)
    )


def mixed_product(mugraph: MuGraph) -> bool:
    """Return whether a library would multiply a half precision by fp32, which it does by upcasting both."""
    graph, between = mugraph.graph, dict(mugraph.rounded)
    for kernel in (one for one in mugraph.kernels if isinstance(one, Call)):
        for tile in kernel.body:
            step = graph.step_of(tile.value)
            if step is None or step.op != "contract":
                continue
            read = [shown_to(graph, kernel, i) for i in step.inputs]
            dtypes = [graph.inputs[i].dtype if i < len(graph.inputs) else between.get(i, "f32") for i in read]
            computed = [dtype for i, dtype in zip(read, dtypes, strict=True) if i >= len(graph.inputs)]
            if "f32" in computed and HALVES & set(dtypes):
                return True
    return False


def _called(graph: Graph, call: Call, memory: Mapping[int, str]) -> dict[int, str]:
    """Return the dtypes of what a library makes."""
    known = dict(memory)
    made: dict[int, str] = {}
    for tile, _ in walk(call):
        step = graph.step_at(tile.value)
        dtypes = {known.get(i, "f32") for i in step.inputs}
        dtype = library_dtype(dtypes) if step.op == "contract" or step.mapping or step.places else "f32"
        made[tile.value] = known[tile.value] = dtype if dtype in FLOATS else "f32"
    return made


# -- the range of fp16


def fits_f16(graph: Graph, value: int) -> bool:
    """Return whether a value is surely no larger than the largest number of fp16, by the sizes of inputs."""
    return _largest(graph, value, {}) <= LARGEST_F16


def _largest(graph: Graph, value: int, known: dict[int, float]) -> float:
    """Return a bound of the magnitude of a value where finite inputs are as large as they can be."""
    if value not in known:
        step = graph.step_of(value)
        known[value] = (
            _LARGEST.get(graph.inputs[value].dtype, inf) if step is None else _made(graph, step, known)
        )
    return known[value]


def _made(graph: Graph, step: Step, known: dict[int, float]) -> float:
    if step.value is not None:
        return abs(float(step.value))
    if step.op in ("exp", "exp2"):
        return 1.0 if _is_shifted(graph, step) else inf
    if step.op in OPS and (OPS[step.op].bounded or OPS[step.op].mask):
        return 1.0
    if step.op == "where":
        return max(_largest(graph, i, known) for i in step.inputs[1:])
    if step.op in ("mul", "div") and (normed := _normed(graph, step, known)) < inf:
        return normed
    if step.op not in {"mul", "add", "sub", "square", "maximum", "minimum", *_SAME_SIZE}:
        return inf
    sizes = [_largest(graph, i, known) for i in step.inputs]
    if step.op == "mul":
        return 0.0 if 0.0 in sizes else sizes[0] * sizes[1]
    if step.op == "square":
        return sizes[0] * sizes[0]
    return sum(sizes) if step.op in ("add", "sub") else max(sizes)


def _normed(graph: Graph, step: Step, known: dict[int, float]) -> float:
    """Return a bound of a product with a number over the norm of its row, x / sqrt(mean(x * x) + c), or inf.

    The number is at most the root of how many there are, whatever their sizes.
    """
    factors = list(islice(_factors(graph, step), _MOST_FACTORS + 1))
    if len(factors) > _MOST_FACTORS:
        return inf
    for at, (below, power) in enumerate(factors):
        root = graph.step_of(below)
        if root is None or (root.op, power) not in {("sqrt", -1), ("rsqrt", 1)}:
            continue
        for other, (value, sign) in enumerate(factors):
            share = _share_of_squares(graph, root.inputs[0], value, {}) if sign > 0 and other != at else 0.0
            rest = [one for place, one in enumerate(factors) if place not in (at, other)]
            if share and all(sign > 0 for _, sign in rest):
                sizes = [_largest(graph, i, known) for i, _ in rest]
                return 0.0 if 0.0 in sizes else share**-0.5 * prod(sizes)
    return inf


def _factors(graph: Graph, step: Step, power: int = 1) -> Iterator[tuple[int, int]]:
    """Yield what a product multiplies, and divides by, with the powers 1 and -1."""
    for at, i in enumerate(step.inputs):
        sign = -power if step.op == "reciprocal" or (step.op == "div" and at == 1) else power
        inner = graph.step_of(i)
        if inner is not None and inner.op in ("mul", "div", "reciprocal"):
            yield from _factors(graph, inner, sign)
        else:
            yield i, sign


def _share_of_squares(graph: Graph, value: int, x: int, known: dict[int, float]) -> float:
    """Return a c where a value is surely c times the square of each x of a row, or more; 0 for none."""
    if value not in known:
        step = graph.step_of(value)
        known[value] = 0.0 if step is None else _share_of(graph, step, x, known)
    return known[value]


def _share_of(graph: Graph, step: Step, x: int, known: dict[int, float]) -> float:
    if step.op in ("square", "mul", "contract") and set(step.inputs) == {x}:
        return 1.0
    if step.op not in ("sum", "div", "mul", "maximum", "add"):
        return 0.0
    shares = [_share_of_squares(graph, i, x, known) for i in step.inputs]
    match step.op:
        case "div":
            size = _size(graph, step.inputs[1])
            return shares[0] / size if size else 0.0
        case "mul":
            (a, b), (share_a, share_b) = (_least(graph, i) for i in step.inputs), shares
            return max(share_a * b, share_b * a)
        case "add":  # a sum is no smaller only if nothing added is negative
            pairs = zip(step.inputs, shares, strict=True)
            return min((share for i, share in pairs if not _is_added(graph, i)), default=0.0)
    return max(shares)


def _is_added(graph: Graph, value: int) -> bool:
    """Return whether a value is a constant that is not negative."""
    number = graph.constant(value)
    return number is not None and number >= 0


def _least(graph: Graph, value: int) -> float:
    """Return a positive constant, or the inverse of a constant or of an extent; 0 for all else."""
    step = graph.step_of(value)
    if step is None or step.op not in ("const", "reciprocal"):
        return 0.0
    inverse = step.op == "reciprocal"
    size = _size(graph, step.inputs[0] if inverse else value)
    return 1 / size if inverse and size else size


def _size(graph: Graph, value: int) -> float:
    """Return a positive constant, or the longest extent that there is; 0 for all else."""
    step = graph.step_of(value)
    if step is not None and step.value is not None:
        return max(float(step.value), 0.0)
    return _LONGEST if step is not None and step.op == "size" else 0.0


def _is_shifted(graph: Graph, step: Step) -> bool:
    """Return whether an exponential is of x - c with c the largest x: it is at most 1."""
    inner = graph.step_of(step.inputs[0])
    if inner is None or inner.op != "sub":
        return False
    x, pending = inner.inputs[0], [inner.inputs[1]]
    while pending:
        shift = graph.step_of(pending.pop())
        if shift is not None and shift.op in ("max", "maximum"):
            if x in shift.inputs:
                return True
            pending += shift.inputs
    return False
