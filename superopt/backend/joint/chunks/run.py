"""Run: a tiled graph, one chunk after another.

PyTorch computes products, and Inductor's code what lies between, or kernels of ours either.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint.chunks.own import OwnStage, own_between, own_product
from superopt.backend.joint.chunks.products import Matrices
from superopt.backend.joint.chunks.skipped import counted_positions
from superopt.backend.joint.chunks.stages import Between, Multiply, staged
from superopt.backend.joint.chunks.tiling import Tiling
from superopt.backend.joint.limits import limits
from superopt.candidates.sizes import resized
from superopt.ir import REDUCTIONS, Graph, Port, Step, print_graph, value_axes
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.trace.run import TORCH_DTYPES, Evaluation, Value
from superopt.tune.measure import shortest_call_us

__all__ = ["TiledKernel", "seconds_together"]

_TIMES, _LONG_S = 6, 0.1  # how often a stage is timed that takes fewer seconds
_FEW_CHUNKS = 2  # with so few chunks, no copy of an operand is kept in the dtype of products
_MOST_CODE = 32
_FACTOR = "factor "  # before the name of an input, as products read it

_Place = range | Tensor
"""The positions of a chunk: one after another, or here and there."""

_CODE: dict[object, Callable[..., Any]] = {}
"""What Inductor made of graphs between products, by all that it depends on."""


class TiledKernel:
    """The results of a tiled graph by name, for tensors by name; `rows` positions of the axis at a chunk.

    Matrices are multiplied in a dtype, in which their products lie in memory; all else is computed, and added
    up, in float32.
    """

    def __init__(
        self,
        tiling: Tiling,
        rows: int,
        *,
        last: bool = False,
        own: Collection[str] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.tiling, self.rows, self.dtype = tiling, rows, dtype
        self.stages = staged(tiling, last=last)
        self._code = dict[tuple[Any, ...], Callable[..., Any]]()
        self._own = frozenset(own)  # stages by kernels of ours
        self._made = dict[tuple[object, ...], OwnStage | None]()  # by name and dtypes

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute all results, each contiguous and in memory of its own."""
        tiling, goal = self.tiling, self.tiling.goal
        known = self._factored({**given, **_computed(tiling.before, given)})
        leaving = [one.port for one in goal.outputs if one.port.name in tiling.rows]
        leaving += [one.port for one in tiling.products]
        whole = {port.name: _empty(goal, port, given) for port in leaving}
        for one in tiling.sums:
            neutral = -inf if one.op == "maximum" else 0.0
            whole[one.port.name] = _empty(goal, one.port, given).fill_(neutral)
        shared = self._shared()
        for number, place in enumerate(self._places(known, whole)):
            tensors = self._tensors(place, {**known, **whole}, shared)
            self._compute_chunk(len(place), tensors, whole, again=number > 0)
            self._put_back(place, tensors, whole)
        del shared
        return {**_computed(tiling.after, {**known, **whole}), **{name: whole[name] for name in tiling.rows}}

    def chunk_tensors(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what chunks read and write, beside what they share, by name."""
        tiling, goal = self.tiling, self.tiling.goal
        known = {**given, **_computed(tiling.before, given)}
        wholes = [one.port for one in goal.outputs if one.port.name in tiling.rows]
        known |= {port.name: _empty(goal, port, given) for port in wholes}
        return known | {one.port.name: _empty(goal, one.port, given).zero_() for one in tiling.products}

    def timed_stages(self, tensors: Mapping[str, Tensor]) -> dict[str, Callable[[], object]]:
        """Return what a chunk runs to make its products, and all that kernels of ours compute, by name.

        Each has run once, so that its code is there. Kernels that differ in their order and in what is ours
        may be given the same tensors.
        """
        known, tiling, goal = self._factored(tensors), self.tiling, self.tiling.goal
        place = range(min(self.rows, goal.sizes[tiling.axis]))
        places = self._tensors(place, known, [one.fill_(1.0) for one in self._shared()])
        found = dict[str, Callable[[], object]]()
        for step in self.stages.steps:
            own = step.name in self._own
            if isinstance(step, Between) and not (own and places.keys() >= set(step.reads)):
                continue
            run = partial(self._run, step, len(place), places)
            places |= run()
            if not own or self._is_made(step.name):
                found[step.name] = run
        return found

    def _is_made(self, name: str) -> bool:
        """Whether kernels of ours compute a stage that came before."""
        return any(key[0] == name and one is not None for key, one in self._made.items())

    def flops(self) -> dict[str, int]:
        """Return about how many operations each stage of a chunk takes, by name."""
        sizes = {**self.tiling.chunk.sizes, self.tiling.axis: self.rows}
        found = dict[str, int]()
        for step in self.stages.steps:
            if isinstance(step, Multiply):
                found[step.name] = 2 * prod(sizes[axis] for axis in {*step.left.axes, *step.right.axes})
            else:
                largest = max(prod(sizes[axis] for axis in axes) for axes in value_axes(step.graph))
                found[step.name] = len(step.graph.steps) * largest
        return found

    @property
    def reduces(self) -> bool:
        """Whether what lies between products is reduced along other axes than that of the chunks."""
        steps = (
            one for stage in self.stages.steps if isinstance(stage, Between) for one in stage.graph.steps
        )
        return any(one.op in REDUCTIONS and self.tiling.axis not in one.axes for one in steps)

    def shared_bytes(self, rows: int) -> int:
        """Return the bytes that chunks of so many positions share."""
        sizes = {**self.tiling.chunk.sizes, self.tiling.axis: rows}
        return self.dtype.itemsize * sum(self.stages.sizes_at(sizes))

    def _factored(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors, with those that products read also in the dtype of products, under other names.

        Of few chunks each converts what it reads itself, a part at a time.
        """
        if self.tiling.goal.sizes[self.tiling.axis] <= _FEW_CHUNKS * self.rows:
            return dict(known)
        entering = {port.name for port in self.tiling.chunk.inputs}
        factors = {
            one.name
            for step in self.stages.steps
            if isinstance(step, Multiply)
            for one in (step.left, step.right)
            if one.name in entering and known[one.name].dtype != self.dtype
        }
        return {**known, **{f"{_FACTOR}{name}": known[name].to(self.dtype) for name in factors}}

    def _shared(self) -> list[Tensor]:
        """Return the memory that chunks share."""
        rows = min(self.rows, self.tiling.goal.sizes[self.tiling.axis])
        sizes = {**self.tiling.chunk.sizes, self.tiling.axis: rows}  # a chunk's are those of the whole
        return [torch.empty(count, dtype=self.dtype, device="cpu") for count in self.stages.sizes_at(sizes)]

    @cached_property
    def _counted(self) -> Graph | None:
        """The graph that makes the mask of the positions that count; None where all of them may."""
        return counted_positions(self.tiling)

    def _places(self, known: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> list[_Place]:
        """Return the positions of each chunk; where some need none, the results hold their zeros."""
        size, rows = self.tiling.goal.sizes[self.tiling.axis], self.rows
        all_of_them: list[_Place] = [range(at, min(at + rows, size)) for at in range(0, size, rows)]
        if self._counted is None:
            return all_of_them
        [counts] = _computed(self._counted, known).values()
        first, rest = (counts != 0).nonzero().flatten(), (counts == 0).nonzero().flatten()
        chunks = -(-len(first) // rows)
        if chunks >= len(all_of_them):
            return all_of_them
        for name in (*self.tiling.rows, *(one.port.name for one in self.tiling.products if not chunks)):
            whole[name].zero_()
        order = torch.cat([first, rest])  # others fill the last chunk, so that its code is that of all chunks
        return [order[at : at + rows] for at in range(0, chunks * rows, rows)]

    def _put_back(self, place: _Place, tensors: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> None:
        """Put the rows that a chunk made of positions here and there where they belong."""
        if isinstance(place, range):  # it wrote them there
            return
        for one in self.tiling.chunk.outputs:
            if (name := one.port.name) in self.tiling.rows:
                self._apart(one.port, whole[name]).index_copy_(
                    one.port.axes.index(self.tiling.axis), place, tensors[name]
                )

    def _tensors(
        self, place: _Place, known: Mapping[str, Tensor], shared: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors of a chunk, with a dimension for each axis."""
        tiling, stages = self.tiling, self.stages
        sizes = {**tiling.chunk.sizes, tiling.axis: len(place)}
        ports = [*tiling.chunk.inputs, *(one.port for one in tiling.products)]
        ports += [one.port for one in tiling.chunk.outputs if one.port.name in tiling.rows]
        tensors = {port.name: self._part(port, known[port.name], place) for port in ports}
        for port in tiling.chunk.inputs:
            if (name := f"{_FACTOR}{port.name}") in known:
                tensors[name] = self._part(port, known[name], place)
        for name, number in stages.places.items():
            shape = [sizes[axis] for axis in stages.axes[name]]
            tensors[name] = shared[number][: prod(shape)].view(shape)
        return tensors

    def _compute_chunk(
        self, rows: int, tensors: dict[str, Tensor], whole: Mapping[str, Tensor], *, again: bool
    ) -> None:
        """Compute what is made of some positions, and put it where it belongs."""
        sums = {one.port.name: one for one in self.tiling.sums}
        for step in self.stages.steps:
            for name, made in self._run(step, rows, tensors, again=again).items():
                if name in self.tiling.rows:
                    tensors[name].copy_(made.reshape(tensors[name].shape))
                elif name in sums:
                    add = torch.add if sums[name].op == "add" else torch.maximum
                    add(whole[name], made, out=whole[name])
                else:
                    tensors[name] = made

    def _run(
        self,
        step: Multiply | Between,
        rows: int,
        tensors: Mapping[str, Tensor],
        *,
        again: bool = True,
    ) -> dict[str, Tensor]:
        """Compute a stage of a chunk, the first one or one `again`; return what has no place of its own."""
        if isinstance(step, Between):
            return self._between(step, rows, tensors)
        left, right = (
            tensors.get(f"{_FACTOR}{one.name}", tensors.get(one.name)) for one in (step.left, step.right)
        )
        assert left is not None
        assert right is not None
        made = tensors[step.name]
        if step.name in self._own:
            sizes = {**self.tiling.chunk.sizes, self.tiling.axis: rows}
            operands = left, right, made
            own = self._own_stage(step.name, operands, lambda: own_product(step, sizes, operands))
            if own is not None:
                if step.adds and not again:
                    made.zero_()
                own(operands if step.adds else operands[:2], (made,))
                return {}
        Matrices(step, left, right, made, self.dtype).multiply(again=step.adds and again)
        return {}

    def _own_stage(
        self, name: str, tensors: Iterable[Tensor], make: Callable[[], OwnStage | None]
    ) -> OwnStage | None:
        """Return the kernels of ours for a stage of such tensors, made once, None where they cannot be."""
        key = name, *(one.dtype for one in tensors)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _part(self, port: Port, tensor: Tensor, place: _Place) -> Tensor:
        """Return the part of a tensor that one chunk reads or writes, a dimension for each axis."""
        apart = self._apart(port, tensor)
        if self.tiling.axis not in port.axes:
            return apart
        axis = port.axes.index(self.tiling.axis)
        if isinstance(place, range):
            return apart.narrow(axis, place.start, len(place))
        return apart.index_select(axis, place)

    def _apart(self, port: Port, tensor: Tensor) -> Tensor:
        """Return a tensor with a dimension for each axis."""
        return tensor.reshape([self.tiling.goal.sizes[one] for one in port.axes])

    def _between(self, step: Between, rows: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute what lies between products; return what does not lie in shared memory."""
        graph = step.graph
        sizes = {**self.tiling.chunk.sizes, self.tiling.axis: rows}
        entering = {port.name: port for port in graph.inputs}
        inputs = [tensors[name].reshape(_shape(port, sizes)) for name, port in entering.items()]
        if step.name in self._own:
            kept = {name: tensors[name] for name in step.kept}
            told = *inputs, *kept.values()
            own = self._own_stage(step.name, told, lambda: own_between(step, sizes, inputs, kept))
            if own is not None:
                left = {one.port.name: one.port for one in graph.outputs if one.port.name not in kept}
                made = {name: _floats(_shape(port, sizes)) for name, port in left.items()}
                own(inputs, [{**kept, **made}[one.port.name] for one in graph.outputs])
                return made
        # What is written where something is read is one tensor, so that the compiler knows of it.
        places = [self.stages.places.get(name) for name in entering]
        held = {name: self.stages.places[name] for name in step.kept}
        spare = [name for name, place in held.items() if place not in places]
        inputs += [tensors[name] for name in spare]
        at = {
            name: len(entering) + spare.index(name) if name in spare else places.index(place)
            for name, place in held.items()
        }
        key = graph.name, rows, *((one.dtype, one.stride()) for one in inputs)
        code = self._code.get(key)
        if code is None:
            code = self._code[key] = _code_of(resized(graph, {self.tiling.axis: rows}), inputs, at)
        names = [one.port.name for one in graph.outputs if one.port.name not in held]
        return dict(zip(names, code(*inputs), strict=True))


def seconds_together(kernels: Sequence[TiledKernel], given: Mapping[str, Tensor]) -> list[dict[str, float]]:
    """Return how long each timed stage takes of kernels of one tiling, in any order of axes, by name.

    The stages run one after another, as in a chunk, and the kernels in rounds, so that all meet the same
    caches and the same neighbors; the shortest time of each counts. What takes long is timed once.
    """
    tensors = kernels[0].chunk_tensors(given)
    several = [one.timed_stages(tensors) for one in kernels]
    taken: list[dict[str, float]] = [dict.fromkeys(stages, inf) for stages in several]
    for _ in range(_TIMES):
        for stages, found in zip(several, taken, strict=True):
            for name, run in stages.items():
                if found[name] == inf or found[name] < _LONG_S:
                    found[name] = min(found[name], shortest_call_us(run, (), 1, lambda: None) / 1e6)
    return taken


def _floats(shape: Sequence[int]) -> Tensor:
    """Return memory for what kernels of ours compute; users may have another default dtype or device."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _code_of(graph: Graph, inputs: list[Tensor], at: Mapping[str, int]) -> Callable[..., Any]:
    """Return code of a graph, made now or earlier."""
    key = print_graph(graph), tuple(at.items()), tuple((one.dtype, one.stride()) for one in inputs)
    code = _CODE.get(key)
    if code is None:
        code = _CODE[key] = alone(lambda: _compiled(graph, inputs, at))
        for old in tuple(_CODE)[:-_MOST_CODE]:
            _CODE.pop(old, None)  # another thread may have let it go
    return code


def _compiled(graph: Graph, inputs: list[Tensor], at: Mapping[str, int]) -> Callable[..., Any]:
    """Return code of a graph that writes what is kept over the inputs at these numbers."""
    names = [port.name for port in graph.inputs]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(names, given, strict=False))
        made = _Fused(graph, torch.float32, given[0].device, finite=True).outputs(known)
        for name, place in at.items():
            given[place].copy_(made.pop(name))
        return tuple(made.values())

    traced = make_fx(run, tracing_mode="fake")(*inputs)  # nothing is computed
    return compiled_by_inductor(traced, inputs, {}) if limits().fused else traced


class _Fused(Evaluation):
    """An evaluation that reads no number, so that it can be traced."""

    def contract(self, a: Value, b: Value, axes: tuple[str, ...]) -> Value:
        """Return the product of two values, summed over axes; a mask selects even from infinities."""
        if a.mask == b.mask:
            return super().contract(a, b, axes)
        return self._reduce(Step("sum", (0,), axes), self.elementwise("mul", [a, b]))


def _shape(port: Port, sizes: Mapping[str, int]) -> list[int]:
    return [prod(sizes[axis] for axis in dim) for dim in port.dims]


def _computed(graph: Graph, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what PyTorch computes of a graph, operator by operator: little, before the chunks or after."""
    if not graph.outputs:
        return {}
    device = next(iter(known.values())).device
    made = _Fused(graph, torch.float32, device, finite=True).outputs(known)
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in graph.outputs}
    return {
        name: tensor.to(torch.float32 if dtypes[name] == torch.bool else dtypes[name])
        for name, tensor in made.items()
    }


def _empty(graph: Graph, port: Port, given: Mapping[str, Tensor]) -> Tensor:
    one = next(iter(given.values()))
    dtype = torch.float32 if port.dtype == "bool" else TORCH_DTYPES[port.dtype]
    return one.new_empty(graph.shape(port), dtype=dtype)
