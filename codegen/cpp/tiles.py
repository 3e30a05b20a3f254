"""Tiles: the lines of one kernel, the loops that are open, and where its values lie."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from superopt.codegen.cpp.config import CppConfig
from superopt.codegen.cpp.names import Names
from superopt.codegen.cpp.plan import VIEWS, make_plan
from superopt.codegen.cpp.source import CPP_FLOATS, CPP_TYPES, Guard, Place, times
from superopt.codegen.cpp.sums import SumLimit, most_without_rest
from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import Compute, KernelProgram, Move, Tensor
from superopt.ir import Graph, Step, print_step, value_axes, value_names, window_axes
from superopt.ir.windows.place import reads_outside

__all__ = ["Tiles", "inside", "read_number", "read_vector", "reads_window"]

_TILES = "    " * 3  # the indentation at which tiles of scratch memory are declared


class Tiles:
    """What all printers of one kernel share: its lines so far, names, open loops, and places of values.

    Sums may be as long as axes are where the graph was made, or else as `lengths` say.
    """

    def __init__(
        self, program: KernelProgram, config: CppConfig, lengths: Mapping[str, int] | None = None
    ) -> None:
        self.program = program
        self.graph = program.graph
        self.lengths = lengths or self.graph.sizes
        self.sums: set[SumLimit] = set()
        self.config = config
        self.axes = value_axes(self.graph)
        self.texts = value_names(self.graph)
        self.names = Names(self.graph)
        self.grid = config.order or program.grid
        if sorted(self.grid) != sorted(program.grid):
            raise UnsupportedError(f"{program.name}: the order {self.grid} is not one of {program.grid}")
        self.single = frozenset(axis for axis in self.grid if config.tile(axis) == 1)
        self.tiled = {axis: config.tile(axis) for axis in self.grid if axis not in self.single}
        self.tiled |= {axis: max(2, config.tile(axis)) for axis in program.looped}
        self.parted = {split.inner: split for split in program.splits if split.inner in program.axes}
        for split in self.parted.values():
            assert split.outer in self.single, "programs in different parts end at different places"
        self.plan = make_plan(program, self.single)
        self.rank = {axis: i for i, axis in enumerate(self.plan.order)}
        self.lines: list[str] = []
        self.scratch: list[str] = []
        self.made_tiles: set[str] = set()
        self.depth = 0
        self.walked: list[str] = []
        self.places: dict[int, Place] = {}
        self.pointers: list[dict[tuple[int, frozenset[str]], str]] = [{}]
        self.fetched_ahead: dict[int, bool] = {}  # for each value that nests have read, whether it is
        self.fixed = window_axes(self.graph)
        self.sized: set[str] = set()
        # The strides along which vectors run, of tensors and of scratch memory.
        self.unit_strides: set[str] = set()
        moves = [one for one, _ in program.flat() if isinstance(one, Move)]
        self.rescaled = {value for move in moves for value, _ in move.rescales}
        for tensor in (*program.loads, *program.stores):
            if tensor.dtype not in CPP_TYPES or (tensor in program.stores and tensor.dtype not in CPP_FLOATS):
                known = ", ".join(sorted(CPP_FLOATS if tensor in program.stores else CPP_TYPES))
                raise UnsupportedError(
                    f"{program.name}: no C++ for {tensor.name!r} of dtype {tensor.dtype}; known: {known}"
                )

    # -- text

    def line(self, text: str) -> None:
        """Add a line at this depth."""
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def block(self, head: str, *, end: str = "") -> Iterator[None]:
        """Open braces, and a scope for pointers; close them at the end."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        self.pointers.append({})
        yield
        self.pointers.pop()
        self.depth -= 1
        self.line(f"}}{end}")

    def size(self, axis: str) -> str:
        """Return the extent of an axis: a field of the kernel, or a number where it never changes."""
        if axis in self.fixed:
            return str(self.graph.sizes[axis])
        self.sized.add(axis)
        return f"{self.names.axes[axis]}_size"

    def count(self, axis: str) -> str:
        """Return how many positions of an axis there are here."""
        return f"{self.names.axes[axis]}_count" if axis in self.walked else self.end(axis)

    def end(self, axis: str) -> str:
        """Return where an axis ends here: within a part of a split axis, that may be before its extent."""
        return f"{self.names.axes[axis]}_end" if axis in self.parted else self.size(axis)

    def base(self, axis: str) -> str | None:
        """Return the first position of an axis here, or None where that is 0."""
        if axis not in self.walked:
            return None
        return self.names.axes[axis] if axis in self.single else f"{self.names.axes[axis]}_base"

    def extent(self, axis: str) -> str:
        """Return how long a tile made here is along an axis."""
        return f"{self.names.axes[axis]}_tile" if axis in self.walked else self.size(axis)

    def in_order(self, axes: frozenset[str]) -> list[str]:
        """Return axes in the order in which tiles are laid out."""
        return sorted(axes, key=self.rank.__getitem__)

    def stride(self, tensor: Tensor, axis: str, *, stored: bool = False) -> str:
        """Return the stride of an axis of a tensor, a field of the kernel."""
        name = self.names.outputs[tensor.name] if stored and tensor.port else self.names.values[tensor.value]
        return f"{name}_stride_{self.names.axes[axis]}"

    def stored_name(self, tensor: Tensor) -> str:
        """Return the name of a tensor that the kernel writes."""
        return self.names.outputs[tensor.name] if tensor.port else self.names.values[tensor.value]

    def enter(self, axis: str, end: str) -> None:
        """Note that a loop over the tiles of an axis begins, which ends at some position."""
        self.walked.append(axis)
        if axis in self.tiled:
            name = self.names.axes[axis]
            self.line(f"const index_t {name}_count = least({name}_tile, {end} - {name}_base);")

    def allocate(self, name: str, count: str) -> None:
        """Declare a tile of scratch memory, once."""
        if name not in self.made_tiles:
            self.made_tiles.add(name)
            self.scratch = self.scratch or [f"{_TILES}Scratch scratch;"]
            self.scratch.append(f"{_TILES}float* const {name} = scratch.floats({count});")

    @contextmanager
    def loops(self, axes: list[str], turns: Mapping[str, str] | None = None) -> Iterator[None]:
        """Open loops over axes of a tile, one position at a time, as many as there are or as `turns` says."""
        for axis in axes:
            name, count = self.names.axes[axis], (turns or {}).get(axis) or self.count(axis)
            self.line(f"for (index_t {name} = 0; {name} < {count}; ++{name}) {{")
            self.depth += 1
        yield
        for _ in axes:
            self.depth -= 1
            self.line("}")

    # -- where values lie

    def place(self, value: int) -> Place:
        """Return where a value lies; a computed one gets a tile of scratch memory when first asked for."""
        if value in self.places:
            return self.places[value]
        step = self.graph.step_at(value)
        if step.op in VIEWS:
            return self.view(step)
        strides: dict[str, str] = {}
        length: list[str] = []
        for axis in reversed(self.in_order(self.axes[value] - self.single)):
            strides[axis] = " * ".join(reversed(length)) or "1"
            length.append(self.extent(axis))
        pointer = f"{self.names.values[value]}_tile"
        count = " * ".join(reversed(length)) or "1"
        self.allocate(pointer, count)
        whole = frozenset(axis for axis in strides if axis not in self.walked)
        self.places[value] = Place(pointer, "float", strides, whole, count=count)
        return self.places[value]

    def stored_place(self, tensor: Tensor) -> Place:
        """Return where a tensor that the kernel writes lies."""
        strides = {axis: self.stride(tensor, axis, stored=True) for axis in tensor.axes}
        name = f"{self.stored_name(tensor)}_data"
        return Place(name, CPP_TYPES[tensor.dtype], strides, frozenset(strides))

    def view(self, step: Step) -> Place:
        """Return where other places of a value lie."""
        source = self.place(step.inputs[0])
        if step.places:
            return self.window(step, source)
        strides: dict[str, list[str]] = {}
        offset = list(source.offset)
        mapping = dict(step.mapping)
        for axis, stride in source.strides.items():
            target = mapping.get(axis, axis)
            if isinstance(target, int):
                offset.append(times(str(target), stride))
            else:
                strides.setdefault(target, []).append(stride)
        joined = {
            axis: found[0] if len(found) == 1 else f"({' + '.join(found)})" for axis, found in strides.items()
        }
        whole = frozenset(
            axis
            for axis in joined
            if any(mapping.get(old, old) == axis and old in source.whole for old in source.strides)
        )
        offset = [one for one in offset if one != "0"]
        guards = tuple(_seen_through(guard, mapping) for guard in source.guards)
        return replace(source, strides=joined, whole=whole, offset=tuple(offset), guards=guards)

    def window(self, step: Step, source: Place) -> Place:
        """Return where what a window shows of a tensor lies."""
        read = {axis for place in step.places for axis in place.axes}
        strides = {axis: stride for axis, stride in source.strides.items() if axis not in read}
        offset, guards = list(source.offset), list(source.guards)
        for place in step.places:
            if not self.are_one(place.axes, step.inputs[0]):
                raise UnsupportedError(f"{self.program.name}: a window reads axes that memory has apart")
            stride = source.strides[place.axes[-1]]
            for axis, factor in place.terms:  # the value may have the axis as well, and is read there
                moved = times(str(factor), stride)
                strides[axis] = f"({strides[axis]} + {moved})" if axis in strides else moved
            if place.offset:
                offset.append(times(str(place.offset), stride))
            if reads_outside(place, self.graph.sizes):
                size = prod(self.graph.sizes[axis] for axis in place.axes)
                guards.append(Guard(dict(place.terms), place.offset, size))
        whole = (source.whole - read) | {axis for place in step.places for axis, _ in place.terms}
        return replace(
            source, strides=strides, whole=frozenset(whole), offset=tuple(offset), guards=tuple(guards)
        )

    def are_one(self, axes: tuple[str, ...], value: int) -> bool:
        """Whether axes of a loaded tensor are one index of its memory, as the parts of a dimension are."""
        tensor = next((one for one in self.program.loads if one.value == value), None)
        if tensor is None or len(axes) == 1:
            return tensor is not None
        # An input that is contiguous where the program was traced is made so where it is called.
        is_contiguous = tensor.port is None or tensor.port.strides is None
        dims = [tensor.axes] if is_contiguous or tensor.port is None else tensor.port.dims
        runs = (dim[at : at + len(axes)] for dim in dims for at in range(len(dim)))
        return axes in runs

    def position(self, guard: Guard, instead: Mapping[str, str] | None = None) -> str:
        """Return the place that a window reads here, as text; some axes may be at other positions."""
        terms = [str(guard.offset)] if guard.offset else []
        for axis, factor in guard.factors.items():
            base = self.base(axis)
            name = (instead or {}).get(axis, self.names.axes[axis])
            at = name if base in (None, name) else f"({base} + {name})"
            terms.append(times(str(factor), at) if factor != 1 else at)
        return " + ".join(terms) or "0"

    def pointer(self, value: int, place: Place) -> str:
        """Return a pointer to the tile of a value, declared here where none is in scope."""
        terms = self.offsets(place)
        if not terms:
            return place.pointer
        key = (value, frozenset(terms))
        for scope in reversed(self.pointers):
            if key in scope:
                return scope[key]
        name = f"{self.names.values[value]}_tile"
        while name in self.made_tiles or any(name in scope.values() for scope in self.pointers):
            name += "_"
        self.line(f"const {place.type}* const {name} = {' + '.join([place.pointer, *terms])};")
        self.pointers[-1][key] = name
        return name

    def stored_pointer(self, tensor: Tensor, place: Place) -> str:
        """Return a pointer to the tile of a tensor that the kernel writes, declared here."""
        terms = self.offsets(place)
        if not terms:
            return place.pointer
        name = f"{self.stored_name(tensor)}_tile"
        while name in self.made_tiles or any(name in scope.values() for scope in self.pointers):
            name += "_"
        self.line(f"{place.type}* const {name} = {' + '.join([place.pointer, *terms])};")
        self.pointers[-1][-1, frozenset({name})] = name
        return name

    def offsets(self, place: Place) -> list[str]:
        """Return what leads from the start of a place to the tile here."""
        terms = list(place.offset)
        for axis in place.strides:
            base = self.base(axis) if axis in place.whole else None
            if base is not None:
                terms.append(times(base, place.strides[axis]))
        return terms

    # -- steps

    def fill(self, value: int) -> None:
        """Print how an accumulator starts."""
        place = self.place(value)
        step = self.graph.step_at(value)
        neutral = "-infinity" if step.op == "max" else "0.0f"
        self.line(f"fill({place.pointer}, {place.count}, {neutral});")
        if self.has_rest(value):
            rest = self.rest(value)
            self.allocate(rest, place.count)
            self.line(f"fill({rest}, {place.count}, 0.0f);")

    def has_more_terms(self, step: Step, most: int) -> bool:
        """Whether a sum has more than so many terms; that the kernel depends on it is noted."""
        self.sums.add((step.axes, most))
        return prod(self.lengths[axis] for axis in step.axes) > most

    def has_rest(self, value: int) -> bool:
        """Whether what rounding takes from a sum, as it grows, is kept in a tile beside it."""
        step = self.graph.step_at(value)
        if step.op == "max" or value not in self.plan.added or value in self.rescaled:
            return False
        at_once = prod(self.tiled.get(axis, self.lengths[axis]) for axis in step.axes)
        return self.has_more_terms(step, most_without_rest(at_once))

    def rest(self, value: int) -> str:
        """Return the tile of what rounding took from a sum."""
        return f"{self.names.values[value]}_rest"

    def comment(self, one: Compute) -> str:
        """Return the text of a step, for a comment."""
        sign = ("max=" if one.step.op == "max" else "+=") if one.accumulates else "="
        return f"{self.texts[one.value]} {sign} {print_step(one.step, self.texts)}"


def _seen_through(guard: Guard, mapping: Mapping[str, str | int]) -> Guard:
    """Return a guard after a renaming or a selection of its axes."""
    factors: dict[str, int] = {}
    offset = guard.offset
    for axis, factor in guard.factors.items():
        seen = mapping.get(axis, axis)
        if isinstance(seen, int):
            offset += factor * seen
        else:
            factors[seen] = factors.get(seen, 0) + factor
    return Guard(factors, offset, guard.size)


# -- what is read through windows


def reads_window(graph: Graph, value: int) -> bool:
    """Return whether a value is a window, or a view of one."""
    step = graph.step_of(value)
    while step is not None and step.op in VIEWS:
        if step.op == "window":
            return True
        step = graph.step_of(step.inputs[0])
    return False


def read_number(tiles: Tiles, place: Place, at: str) -> str:
    """Return what is read at one position: 0 where the place lies outside."""
    there = inside(tiles, place.guards)
    pointer, _, rest = at.partition(" + ")
    return f"read_inside({at}, {there})" if there else f"read({pointer}[{rest or 0}])"


def read_vector(tiles: Tiles, place: Place, at: str, vector: str, whole: str | None) -> str:
    """Return what is read along an axis: 0 in lanes outside. `whole` names the flag that no lane is."""
    along = [one for one in place.guards if vector in one.factors]
    if len(along) > 1:
        raise UnsupportedError(f"{tiles.program.name}: a vector runs along two places of a window")
    first, step, size = "0", "1", "no_end"
    if along:
        first, size = tiles.position(along[0]), str(along[0].size)
        step = str(along[0].factors[vector])
    lanes = f"{tiles.names.axes[vector]}_lanes"
    code = f"load_window({whole or 'false'}, {at}, {place.strides[vector]}, {lanes}, {first}, {step}, {size})"
    there = inside(tiles, [one for one in place.guards if one not in along])
    if not there:
        return code
    return f"{f'{whole} || ({there})' if whole else there} ? {code} : Vec{{}}"


def inside(tiles: Tiles, guards: Collection[Guard]) -> str:
    """Return whether places lie inside their tensors here, as text; nothing where there are none."""
    return " && ".join(f"inside({tiles.position(one)}, {one.size})" for one in guards)
