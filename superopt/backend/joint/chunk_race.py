"""Chunk race: whether a part of a graph is computed in chunks: if that is accurate, and fast by the clock."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from superopt.backend.decision import Decision, Ledger
from superopt.backend.joint.chunks.choice import Chunks, chosen, least_speed
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.tiling import largest_bytes, tiled, with_undefined
from superopt.backend.joint.in_chunks import APART, InChunks
from superopt.backend.joint.limits import limits
from superopt.backend.joint.scaled import scaled
from superopt.backend.options import Memory
from superopt.backend.region_plan import REGION, kept_plan
from superopt.cache import Cache, Record, key_of, program_text, versions
from superopt.candidates.sizes import resized
from superopt.rivals.aten import flops_of, operators_text
from superopt.rivals.inductor import alone, compiled_by_inductor, settings_text
from superopt.rivals.wide.products import multiply_wide
from superopt.targets import Target
from superopt.trace.run import TORCH_DTYPES, run_graph
from superopt.tune import confirm
from superopt.tune.measure import shortest_call_us
from superopt.verify.floats.compare import compare_floats, typical
from superopt.verify.floats.report import FloatReport

__all__ = ["decide_chunks"]

_LEAST_S = 3.0  # no race begins with fewer seconds of the budget left
_FORM = 8  # the version of a decision's record
_SCALES = 1, 4096  # random inputs are multiplied by these, to see what overflows
_MANY_ROWS = 128  # chunks of more rows are compared over one chunk, and not over two
_LEAST_GAIN_S = 0.1  # a race takes some ten seconds, which calls of less hardly gain
_PRODUCT = 256, 256, 1024  # the sizes of a product that tells how fast PyTorch multiplies
_CLOSE = 2  # times as long a race where chunks may be slower, by little
_LONG_S, _ROUNDS = 0.5, 3  # seconds of a long call, and how often such a call is timed


def decide_chunks(found: InChunks, ledger: Ledger, target: Target) -> tuple[Decision, InChunks]:
    """Return whether a part is computed in chunks and in which, as was decided before or by a race."""
    goal = found.plan.goal
    inputs = ", ".join(f"{port.dtype}{list(goal.shape(port))}".replace(" ", "") for port in goal.inputs)
    draft = Decision(operators_text(found.subgraph.piece.nodes), inputs, False, "")
    memory = ledger.options.memory
    told = {
        "axes": [one.axis for one in found.ways],
        "limit_bytes": found.tiles.limit_bytes,
        "dtype": found.tiles.dtype,
        "memory": memory,
        "least": round(least_speed(memory, found.share), 4),
        "inductor": settings_text(ledger.options.inductor),
    }
    options = {"backend": "joint", "form": _FORM, **told, "results": list(found.names)}
    parts = {**versions(), **target.key_parts()}
    key = key_of("plan", program=program_text(goal), options=options, **parts)
    record = Cache.open().get(key) if ledger.options.cache else None
    if record is not None and isinstance(record.data.get("taken"), bool):
        why, verdict = (str(record.data.get(name, "")) for name in ("why", "verdict"))
        chunks = tuple(Chunks.read(goal, one) for one in record.data.get("chunks", ()))
        if chunks:
            found = found.with_chunks(chunks, target.name)
        taken = record.data["taken"] and bool(chunks)
        return replace(draft, taken=taken, why=why, verdict=verdict, recalled=True), found
    if ledger.options.budget_s is None and memory == "fast" and not limits().any_speed:
        expected = _products_s(found)
        if expected < _LEAST_GAIN_S:
            why = (
                f"its products take about {1e3 * expected:.0f} ms: too little to race chunks without a budget"
            )
            return replace(draft, why=why, open=True), found
    if ledger.options.budget_s is not None and ledger.left_s < _LEAST_S:
        return replace(draft, why="no time to race it in chunks", open=True), found
    with ledger.spending():
        made, found = alone(lambda: _raced_chunks(draft, found, target, ledger))
    if ledger.options.cache:
        kept = {"taken": made.taken, "why": made.why, "verdict": made.verdict}
        chunks = found.chunks if made.taken else ()
        Cache.open().put(key, Record({**kept, "chunks": [one.to_json() for one in chunks]}, made.operators))
    return made, found


def _products_s(found: InChunks) -> float:
    """Return about how long PyTorch's library takes for the products of a part."""
    dtype = found.tiles.kernel.dtype
    return sum(map(flops_of, found.subgraph.piece.nodes)) / alone(lambda: _library_rate(dtype))


@cache
def _library_rate(dtype: torch.dtype) -> float:
    """Return the operations per second of a product, in its dtype or in float32 where that is faster."""
    rows, length, columns = _PRODUCT
    left, right = torch.ones(rows, length, dtype=dtype), torch.ones(length, columns, dtype=dtype)
    made, times = torch.empty(rows, columns, dtype=dtype), list[float]()
    for multiply in (lambda: torch.mm(left, right, out=made), lambda: multiply_wide(left, right, made)):
        multiply()
        times.append(shortest_call_us(multiply, (), 1, lambda: None))
    return 2 * rows * length * columns / (min(times) / 1e6)


def _raced_chunks(
    draft: Decision, found: InChunks, target: Target, ledger: Ledger
) -> tuple[Decision, InChunks]:
    """Decide for all chunks that are accurate, and fast enough beside Inductor's code of the part."""
    begun, options = time.monotonic(), ledger.options
    inputs = _drawn(found.subgraph.example())
    given = dict(zip(found.plan.inputs, found.given(inputs), strict=True))
    inductor: _Inductor | None = None
    made, chunks, each = list[Decision](), list[Chunks](), 0.0
    # The fastest comes first, since time may be short.
    for tiles in reversed(chosen(found.ways, given, options.memory)):
        start = time.monotonic()
        if made and options.budget_s is not None and start - begun + each > ledger.left_s:
            break
        found = found.with_tiles(tiles, target.name)
        report = _compared(found)
        decision = replace(draft, verdict=str(report), why="not as accurate as PyTorch in chunks")
        if report.ok:
            inductor = inductor or _Inductor(found, inputs, options.inductor)
            decision, speed = _raced(decision, found, inductor, target, options.memory)
            if decision.taken:
                chunks.append(Chunks(tiles, tiles.kernel.shared_bytes(tiles.rows), speed))
        made.append(decision)
        each = time.monotonic() - start
    if not chunks:
        return (
            made[-1] if made else replace(draft, why="computing it in chunks would save no memory")
        ), found
    several = list(zip([one for one in made if one.taken], chunks, strict=True))
    if isinstance(options.memory, int):  # none holds more than is told
        several.sort(key=lambda pair: -pair[1].speed)
    else:
        several.sort(key=lambda pair: pair[1].bytes)
    return several[0][0], found.with_chunks(tuple(one for _, one in several), target.name)


class _Inductor:
    """Inductor's code of a part, with random inputs, and what it makes of them at each scale."""

    def __init__(self, found: InChunks, inputs: Sequence[Tensor], patches: Mapping[str, Any]) -> None:
        self.inputs = inputs
        module = found.subgraph.module
        self.code = compiled_by_inductor(module, inputs, patches) if limits().fused else module
        self.made = {scale: self.code(*self.scaled(scale)) for scale in _SCALES}
        start = time.perf_counter()
        self.code(*inputs)
        self.is_long = time.perf_counter() - start > _LONG_S

    def scaled(self, scale: int) -> list[Tensor]:
        """Return the inputs times a number."""
        return [one * scale if one.dtype.is_floating_point and one.dim() else one for one in self.inputs]


def _raced(
    draft: Decision, found: InChunks, inductor: _Inductor, target: Target, memory: Memory
) -> tuple[Decision, float]:
    """Decide for chunks that agree with Inductor's code, and are fast enough beside it; return the speed."""
    text, inputs = kept_plan(found.plan), list(inductor.inputs)
    if found.tangent is not None:  # most losses count once
        at = found.subgraph.inputs.index(found.tangent)
        inputs[at] = torch.ones_like(inputs[at])
    given = found.given(inputs)
    if not _agrees(found, text, inductor):
        why = "in chunks it differs from Inductor's code, or overflows where that does not"
        return replace(draft, why=why), 0.0

    def chunks() -> list[Tensor]:  # with what the backward pass then does
        made = zip(found.plan.outputs, REGION(text, given), strict=True)
        return [found.scale(name, one, inputs, scaled) for name, one in made]

    raced = confirm(
        {"chunks": chunks, "whole": lambda: inductor.code(*inputs)},
        "chunks",
        "whole",
        [()],
        seconds=limits().race_s * (_CLOSE if memory == "balanced" else 1),
        most_seconds=0.0 if inductor.is_long else limits().most_race_s,
        times=partial(target.times, least_rounds=_ROUNDS) if inductor.is_long else target.times,
    )
    speed = raced.speed_of("chunks")
    tiles = found.tiles
    size, chunk = largest_bytes(found.plan.goal), tiles.kernel.shared_bytes(tiles.rows)
    needed = isinstance(memory, int) and chunk <= memory < size
    taken = needed or speed >= least_speed(memory, found.share)
    short = f"{chunk / 2**20:.0f} MB instead of {size / 2**20:.0f}"
    why = f"in chunks it runs at {speed:.2f} times Inductor's speed, with {short}"
    whole_us, chunks_us = (raced.measurements[name].median_us for name in ("whole", "chunks"))
    return replace(draft, taken=taken, why=why, before_us=whole_us, after_us=chunks_us), speed


def _compared(found: InChunks) -> FloatReport:
    """Return how the errors of chunks compare with PyTorch's, of one or two whole chunks and the last one."""
    tiles, goal = found.tiles, found.tiles.goal
    whole = goal.sizes[tiles.axis]
    size = min(whole, tiles.rows * (1 if tiles.rows > _MANY_ROWS else 2) + whole % tiles.rows)
    small = resized(goal, {tiles.axis: size})
    tiling = tiled(with_undefined(small), tiles.axis, tiles.limit_bytes, whole=whole)
    assert tiling is not None
    kernel = TiledKernel(tiling, tiles.rows, last=tiles.last, own=tiles.own, dtype=tiles.kernel.dtype)
    # In one chunk, a program is rounded where PyTorch rounds it; `_agrees` compares with Inductor's code.
    whole_kernel = TiledKernel(tiling, size, dtype=tiles.kernel.dtype)
    names = [port.name for port in small.inputs]
    results = [one.port.name for one in small.outputs]

    def theirs(*tensors: Tensor) -> list[Tensor]:
        dtypes = {one.dtype for one in tensors if one.dtype.is_floating_point}
        widest = max(dtypes, key=lambda one: one.itemsize)
        made = run_graph(small, dict(zip(names, tensors, strict=True)), widest)
        return [made[name] for name in results]

    def by(kernel: TiledKernel) -> Callable[..., list[Tensor]]:
        def run(*tensors: Tensor) -> list[Tensor]:
            made = kernel(dict(zip(names, tensors, strict=True)))
            return [made[name] for name in results]

        return run

    blank = [
        torch.empty(small.shape(port), dtype=TORCH_DTYPES[port.dtype], device="meta") for port in small.inputs
    ]
    # For the truth, operators are carried out in float64; compiled code would read what it does not know.
    eager = None if kernel.dtype == torch.float32 else by(whole_kernel)
    drawn = _drawn(tuple(blank))
    return compare_floats(theirs, by(kernel), drawn, eager=eager, seed=1, distributions=("normal",))


def _agrees(found: InChunks, text: str, inductor: _Inductor) -> bool:
    """Whether chunks compute what Inductor's code of the whole does, and are finite where that is."""
    for scale, theirs in inductor.made.items():
        given = inductor.scaled(scale)
        made = dict(zip(found.plan.outputs, REGION(text, found.given(given)), strict=True))
        for name, wanted in zip(found.names, theirs, strict=True):
            ours = found.scale(name, made[name], inductor.inputs)
            if bool((wanted.isfinite() & ~ours.isfinite()).any()):
                return False
            apart = APART[found.tiles.kernel.dtype] * wanted.abs().max()
            if scale == 1 and not bool(((ours - wanted).abs() <= apart).all()):
                return False
    return True


def _drawn(example: tuple[Tensor, ...]) -> list[Tensor]:
    """Return random tensors like an example; integers are 0 or 1, which are valid as indices and labels."""
    return [
        made if one.dtype.is_floating_point else torch.randint(0, 2, one.shape).to(one.dtype)
        for one, made in zip(example, typical(example), strict=True)
    ]
