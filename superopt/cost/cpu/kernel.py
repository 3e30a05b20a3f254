"""Kernel: what one kernel takes on a processor in one configuration.

The arithmetic of its loops and the bytes that they fetch from each cache are added up for all programs of
the grid. The busiest thread sets the time. Bytes are fetched while a core computes, but not all of the
shorter time is hidden beneath the longer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log, prod

from superopt.codegen.cpp.config import FEW, CppConfig
from superopt.codegen.cpp.plan import Contraction, Fill, Item, Nest, Shift, Walk
from superopt.codegen.cpp.tiles import reads_window
from superopt.codegen.cpp.windows.filtering import filtering_of
from superopt.codegen.cpp.windows.rows import keeps_edges
from superopt.codegen.statements import Compute, KernelProgram, Store
from superopt.cost.cpu import rates
from superopt.cost.cpu.contraction import Shape, contraction_time, filtered_time, gathered_time
from superopt.cost.cpu.layout import Layout
from superopt.cost.cpu.rates import Core, core_of, operation
from superopt.cost.cpu.traffic import Loop, Touch, distinct, missed
from superopt.cost.device import Device
from superopt.cost.work import find_masks, kept_share
from superopt.dtypes import DTYPES
from superopt.ir import REDUCTIONS, tensorless_values, window_axes
from superopt.precision import operand_dtypes, product_dtype

__all__ = ["KernelTime", "kernel_time"]

_UNHIDDEN = 0.4  # the share of the shorter time, arithmetic's or memory's, that adds to the longer time
_ALONE = 0.4  # the share of a call's overhead that remains where no other thread is woken
# A processor reads ahead within a page. Where a tile ends sooner, the core waits for the next part: a sum of
# squares took 2.2 times as long over halves of rows as over whole rows, and over columns of weights 3 times.
_PAGE = 4096.0  # bytes
_APART = 2.0
_FEW_ROWS = _PAGE  # bytes of B read along memory, in effect, where few rows of A use a part of each row of B
_PREFETCHED = 4 * _PAGE  # likewise for one row of A, and for many rows, for which B is packed and prefetched
_COLUMNS = 1.35  # times as long, where several columns far apart are read at once: 4096 of 4096, one thread
_PANEL = 64  # columns that are read as they lie, if they lie in one piece: `panel_columns` in the runtime
_EVERY_OTHER = 2  # the stride of a window that reads every other number of a row
_WRITTEN = 0.7  # the time to write a byte to memory, over the time to read one


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of a kernel, and its parts: seconds of the busiest thread."""

    us: float
    compute_s: float
    second_s: float  # for what comes from the second cache
    last_s: float
    memory_s: float


def kernel_time(program: KernelProgram, config: CppConfig, device: Device) -> KernelTime:
    """Return the time of a kernel in one configuration on all cores of a processor."""
    return _Model(program, config, device).time()


@dataclass(slots=True)
class _Row:
    """What the rows of a nest take, in multiply-adds of vectors."""

    vector: float = 0.0  # each vector
    start: float = 0.0  # each row besides
    last: float = 0.0  # a last vector that is not full, besides
    result: float = 0.0  # each sum whose terms lie along the vectors, once it is complete


def _read_by(one: Compute | Store) -> tuple[int, ...]:
    """Return the values that a statement reads."""
    return (one.value,) if isinstance(one, Store) else one.step.inputs


class _Model:
    """One kernel in one configuration on one processor."""

    def __init__(self, program: KernelProgram, config: CppConfig, device: Device) -> None:
        self.at = Layout(program, config)
        self.program = self.at.program
        self.graph = self.at.graph
        self.config = config
        self.device = device
        self.core: Core = core_of(device)
        self.masks = find_masks(self.graph, self.at.sizes)
        self.tensorless = tensorless_values(self.graph)
        self.shared = {tensor.value: tensor for tensor in self.program.loads}
        memory = {tensor.value: tensor.dtype for tensor in self.program.loads}
        steps = ((one.value, one.step) for one, _ in self.program.flat() if isinstance(one, Compute))
        self.dtypes = operand_dtypes(self.graph, steps, memory)
        self.again = 0.0  # the share of programs before which the same thread has run one that it is like
        self.walked: list[str] = []  # the axes of the walks around the current statement, the innermost first
        self.apart: dict[str, float] = {}  # for each tensor, how many times as long its scattered bytes take

    def time(self) -> KernelTime:
        at, device, core = self.at, self.device, self.core
        programs = prod(at.count(axis) for axis in at.grid)
        if not programs or not all(at.sizes.values()):
            return KernelTime(device.launch_us, 0.0, 0.0, 0.0, 0.0)
        most = min(self.config.threads or device.cores, device.cores) if at.grid else 1
        threads = max(min(most, programs), 1)
        # Each thread has a run of programs, so the busiest has as many as any.
        busiest = ceil(programs / threads) / programs
        # What programs along the innermost axis have in common is made anew only where others begin.
        begun = max(threads, programs / at.count(at.grid[-1])) if at.grid else 1
        self.again = 1 - begun / programs
        once, each = (at.alike.items, at.alike.rest) if at.alike else ([], at.plan.body)
        work = begun * self._time_of(once) + programs * (rates.PROGRAM * core.cycle + self._time_of(each))
        compute = work * core.fma_s * busiest
        second, last, memory = (size * busiest for size in self._bytes(self._loops(), threads))
        times = (second * core.second_s, last * core.last_s, memory * core.memory_s * threads / device.cores)
        bytes_s = max(sum(times[:2]), times[2]) + _UNHIDDEN * min(sum(times[:2]), times[2])
        total = max(compute, bytes_s) + _UNHIDDEN * min(compute, bytes_s)
        launch = device.launch_us * (1.0 if most > 1 else _ALONE)
        return KernelTime(launch + total * 1e6, compute, *times)

    # -- bytes

    def _loops(self) -> Loop:
        """Return all loops of the kernel, those over the grid outermost."""
        alike = self.at.alike
        body = self._touched(alike.rest if alike else self.at.plan.body)
        for axis in reversed(self.at.grid):
            body = (Loop(axis, self.at.count(axis), body),)
            if alike and axis == self.at.grid[-1]:
                body = (*self._touched(alike.items), *body)
        return Loop("", 1, body)

    def _touched(self, items: Sequence[Item]) -> tuple[Loop | Touch, ...]:
        found: list[Loop | Touch] = []
        for item in items:
            if isinstance(item, Walk):
                turns = self.at.count(item.axis) * self._share(item)
                self.walked.insert(0, item.axis)
                found.append(Loop(item.axis, turns, self._touched(item.body)))
                del self.walked[0]
            else:
                found += self._touches(item)
        return tuple(found)

    def _touches(self, item: Item) -> Iterable[Touch]:
        if isinstance(item, Fill):
            yield self._touch(item.value)
        elif isinstance(item, Contraction):
            yield self._touch(item.a, self._run_of_rows(item), inside=self._inside(item, item.a, item.m))
            apart = _COLUMNS if self._has_dots(item) else 1.0
            yield self._touch(
                item.b, self._run_of_columns(item), inside=self._inside(item, item.b, item.n), apart=apart
            )
            yield self._touch(item.compute.value)
        elif isinstance(item, Shift):
            for value in (*item.move.step.inputs, item.move.value, *(one for one, _ in item.move.rescales)):
                if not self.at.is_written_out(value):
                    yield self._touch(value)
        elif isinstance(item, Nest):
            inside = self.at.loops(item)[::-1]
            for one in (*item.statements, *item.rest):
                if isinstance(one, Store):
                    bytes_ = self.at.volume(one.tensor.axes) * DTYPES[one.tensor.dtype].bytes
                    yield Touch(f"stored {one.tensor.name}", frozenset(one.tensor.axes), bytes_)
                for value in (*_read_by(one), one.value):
                    kept = value in self.at.plan.kept or self.at.source(value) in self.shared
                    if kept and not self.at.is_written_out(value):
                        yield self._touch(value, inside=inside)

    def _inside(self, item: Contraction, value: int, side: str | None) -> list[str]:
        """Return the loops in which a contraction reads an operand, the innermost first."""
        strides = self.at.strides(value)
        own = [axis for axis in (side, item.k) if axis in strides]
        return [*sorted(own, key=strides.__getitem__), *reversed(item.around)]

    def _run_of_rows(self, item: Contraction) -> float | None:
        """Return how many bytes of A are read along memory; None where that follows from its loops.

        Blocks of rows meet columns, so that what follows a row in memory is not read next.
        """
        strides = self.at.strides(item.a)
        many = item.m is not None and self.at.extent(item.m) > FEW
        if not many or item.k is None or strides.get(item.k) != 1 or item.gathered is not None:
            return None
        return self.at.extent(item.k) * self.at.bytes_of(item.a)

    def _run_of_columns(self, item: Contraction) -> float | None:
        """Return how many bytes of B are read along memory; None where that follows from its loops."""
        strides, rows = self.at.strides(item.b), self.at.extent(item.m) if item.m else 1.0
        if strides.get(item.k or "") == 1 and rows > FEW and item.gathered is None:
            return inf  # each row is fetched while others are met
        if strides.get(item.n) != 1 or self._is_panel(item):
            return None
        in_place = self._by_pairs(item) and self.core.half_fma_s < self.core.fma_s  # and prefetched
        return _FEW_ROWS if 1 < rows <= FEW and not in_place else _PREFETCHED

    def _is_panel(self, item: Contraction) -> bool:
        """Whether all columns of a contraction lie in one piece, so that nothing is copied."""
        strides, width = self.at.strides(item.b), self.at.extent(item.n)
        return strides.get(item.n) == 1 and strides.get(item.k or "") == width <= _PANEL

    def _has_dots(self, item: Contraction) -> bool:
        """Whether few rows meet columns that lie along the sum, several of them at a time."""
        strides = self.at.strides(item.b)
        few = item.m is None or self.at.extent(item.m) <= FEW
        return few and item.k is not None and strides.get(item.k) == 1 and strides.get(item.n) != 1

    def _touch(
        self,
        value: int,
        run: float | None = None,
        *,
        inside: Sequence[str] | None = None,
        apart: float = 1.0,
    ) -> Touch:
        """Return the touch of a tile, of which so many bytes lie in one piece; scattered ones take longer."""
        source = self.at.source(value)
        axes = self.at.axes[value]
        size = self.at.positions(value) * self.at.bytes_of(value)
        if source not in self.shared:
            return Touch(str(source), frozenset(), size)
        run = self.at.run(value, self.walked, inside) if run is None else run
        self.apart.setdefault(str(source), apart * (1 + min(_PAGE / run, _APART) if run else 1.0))
        return Touch(str(source), axes, size)

    def _bytes(self, whole: Loop, threads: int) -> tuple[float, float, float]:
        """Return what all programs fetch: from the second cache, from the last one, and from memory."""
        first, second, last = self.core.caches
        part = last * self.device.cores / threads
        lacks = [missed(whole, cache) for cache in (first, second, part)]
        sizes = distinct(whole)
        if sum(sizes.values()) <= last * self.device.cores:  # what one thread has fetched serves all of them
            lacks[2] = dict(sizes)
        for name in sizes:
            if (
                name.isdigit() and int(name) not in self.shared
            ):  # scratch memory stays in the cache from one program to the next
                lacks[2][name] = max(lacks[2][name] - sizes[name], 0.0)
            elif name.startswith("stored "):
                lacks[2][name] *= _WRITTEN
            lacks[2][name] *= self.apart.get(name, 1.0)
        from_second, from_last, from_memory = (sum(one.values()) for one in lacks)
        return from_second, from_last, from_memory

    # -- arithmetic, in multiply-adds of vectors

    def _time_of(self, items: Sequence[Item]) -> float:
        """Return the time of one run through some items."""
        return sum(map(self._time, items))

    def _time(self, item: Item) -> float:
        if isinstance(item, Walk):
            turns = self.at.count(item.axis) * self._share(item)
            return turns * (rates.TURN * self.core.cycle + self._walked(item.body, turns))
        if isinstance(item, Contraction):
            return self._contraction(item)
        if isinstance(item, Fill):
            vectors = self.at.volume(self.at.axes[item.value]) / self.core.lanes
            return rates.ROW * self.core.cycle + vectors * rates.STORE
        if isinstance(item, Shift):
            return self._shift(item, 1.0)
        return self._nest(item)

    def _walked(self, items: Sequence[Item], turns: float) -> float:
        """Return the time of a turn; a running shift moves less and less often."""
        moved = min(1.0, (1 + log(max(turns, 1.0))) / max(turns, 1.0))
        return sum(self._shift(one, moved) if isinstance(one, Shift) else self._time(one) for one in items)

    def _share(self, walk: Walk) -> float:
        """Return the share of a walk's turns that no mask skips."""
        if not walk.reaches:
            return 1.0
        axes = frozenset[str]().union(*(self.at.axes[reach.mask] for reach in walk.reaches))
        # A walk goes as far as the mask lets any position of the other tiles go.
        beyond = sum(self.at.extent(axis) / self.at.sizes[axis] for axis in axes - {walk.axis}) / 2
        return min(kept_share(self.masks, axes) + beyond, 1.0)

    def _shift(self, item: Shift, moved: float) -> float:
        move, at, core = item.move, self.at, self.core
        positions = at.volume(at.axes[move.value])
        time = positions * (2 * rates.SCALAR * core.cycle + operation(move.step.op))
        for value, _ in move.rescales:
            run = at.volume(at.axes[value] - at.axes[move.value]) / core.lanes
            row = rates.ROW * core.cycle + ceil(run) * (rates.LOAD + rates.STORE + 1)
            time += moved * positions * row
        return time + moved * positions * (rates.EXP + rates.CALLED / 2 * core.cycle)

    def _columns_stay(self, item: Contraction) -> bool:
        """Whether columns are packed once for rows that pass."""
        return self.at.stays(item.b, columns=True) and not self.at.stays(item.a)

    def _contraction(self, item: Contraction) -> float:
        at = self.at
        if item.gathered is not None:
            found = filtering_of(self.graph, item, at.tiles) if self.config.filtered else None
            if found is not None:
                slid = [(at.extent(axis), step) for axis, _, step in found.slid]
                each = filtered_time(slid, at.extent(found.filter), at.extent(found.channel), self.core)
                return at.volume(found.around) * each
            rows, columns, summed = map(at.volume, item.gathered)
            b_step = at.strides(item.b).get(item.n, 0)
            a_along_k = at.strides(item.a).get(item.k or "") == 1
            each = gathered_time(rows, columns, summed, self.core, b_step=b_step, a_along_k=a_along_k)
            return at.volume(item.around) * each
        a, b = at.strides(item.a), at.strides(item.b)
        # An outer axis that continues one of the contraction's axes in both operands only lengthens it.
        times = prod(at.extent(axis) for axis in item.around if axis not in at.single)
        shape = Shape(
            at.extent(item.m) if item.m else 1.0,
            at.extent(item.n),
            at.extent(item.k) if item.k else 1.0,
            a_along_k=item.k is None or a.get(item.k) == 1,
            b_along_k=item.k is not None and b.get(item.k) == 1,
            b_along_n=b.get(item.n) == 1,
            a_half=at.bytes_of(item.a) < 4,
            b_half=at.bytes_of(item.b) < 4,
            pairs=self._by_pairs(item),
            b_panel=self._is_panel(item),
            packed_before=self.again if self.at.stays(item.a) else 0.0 if item.walks is None else 0.5,
            columns_before=self.again if self._columns_stay(item) else None,
        )
        return times * contraction_time(shape, self.core)

    def _by_pairs(self, item: Contraction) -> bool:
        """Return whether a contraction multiplies pairs in bf16, where the processor can."""
        return product_dtype(self.graph, item.compute.step, self.dtypes) == "bf16"

    def _nest(self, nest: Nest) -> float:
        """Return the time of fused steps: rows of vectors along the last axis."""
        at, core = self.at, self.core
        order = at.in_order(nest.axes)
        vector = order[-1] if order else None
        rows = prod(at.extent(axis) for axis in order[:-1])
        found = self._row(nest, vector)
        if vector is None:
            single = rates.SCALAR * core.cycle * len(nest.statements)
            return rows * (found.start + found.vector + single)
        if nest.slides_over_windows:
            return self._sliding(nest, vector)
        results = prod(at.extent(axis) for axis in order[:-1] if axis not in nest.reduced)
        extent = at.extent(vector)
        last = found.last if extent % core.lanes else 0.0
        return rows * (found.start + ceil(extent / core.lanes) * found.vector + last) + results * found.result

    def _sliding(self, nest: Nest, vector: str) -> float:
        """Return the time of sums over windows, which stay in registers while all taps are added."""
        at, core = self.at, self.core
        taps, rows = at.volume(nest.reduced), at.volume(nest.axes - nest.reduced - {vector})
        whole = self._row(nest, vector)
        inner = self._row(replace(nest, rest=[]), vector).vector
        vectors, after = ceil(at.extent(vector) / core.lanes), whole.vector - inner
        if self._is_in_rows(nest, vector):  # several vectors share what is read of each tap
            return rows * (whole.start + taps * rates.LOAD + vectors * (taps * inner + after))
        edges = min(vectors, rates.EDGES) * taps * rates.EDGE * core.cycle
        return rows * (whole.start + vectors * (taps * (inner + rates.LOAD) + after) + edges)

    def _is_in_rows(self, nest: Nest, vector: str) -> bool:
        """Whether all that vectors of a nest that slides run along is read through windows."""
        last = next(axis for axis in reversed(self.at.in_order(nest.axes)) if axis in nest.reduced)
        reads = {value for one in nest.statements for value in _read_by(one)} - nest.made
        return (
            vector in window_axes(self.graph)
            and keeps_edges(self.graph.sizes[last], self.at.extent(vector))
            and all(reads_window(self.graph, value) for value in reads if vector in self.at.strides(value))
        )

    def _row(self, nest: Nest, vector: str | None) -> _Row:
        """Return what the rows of a nest take whose vectors lie along an axis."""
        at, core = self.at, self.core
        row = _Row(start=rates.ROW * core.cycle, last=rates.REST * core.cycle)
        pieces = 0.0 if core.masked else rates.PIECES * core.cycle
        known = nest.made
        for one in (*nest.statements, *nest.rest):
            for value in _read_by(one):
                if value in known or at.is_written_out(value):
                    continue
                known.add(value)
                strides = at.strides(value)
                if vector in strides and nest.slides_over_windows and strides[vector] == _EVERY_OTHER:
                    row.vector += rates.ALTERNATE * core.cycle
                elif vector in strides:
                    row.vector += self._moved(strides, vector, at.bytes_of(value), rates.LOAD)
                else:
                    row.start += rates.LOAD
            if isinstance(one, Store):
                strides, size = at.stored_strides(one.tensor), DTYPES[one.tensor.dtype].bytes
                row.vector += self._moved(strides, vector, size, rates.STORE)
                row.last += pieces
                continue
            row.vector += operation(one.step.op)
            if one.step.op not in REDUCTIONS:
                if one.value in at.plan.kept:
                    row.vector += self._moved(at.strides(one.value), vector, 4, rates.STORE)
                    row.last += pieces
            elif vector is not None and vector in nest.reduced:
                lanes = rates.MAX_LANE * core.lanes if one.step.op == "max" else rates.SUM_LANES
                row.result += lanes * core.cycle
            elif not (nest.sums_in_registers or nest.slides_over_windows):
                # The sums lie in memory, and are read and written for each term.
                row.vector += rates.LOAD + rates.STORE
                row.last += pieces
        return row

    def _moved(self, strides: dict[str, int], vector: str | None, size: int, rate: float) -> float:
        """Return the time to read or write a vector."""
        if vector is not None and strides.get(vector, 1) != 1:
            return rates.GATHER * self.core.cycle
        return rate + (rates.CONVERT if size == 2 else 0)
