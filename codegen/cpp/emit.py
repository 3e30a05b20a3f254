"""Emit: one block kernel as C++ source: an OpenMP loop over the grid, and in it the planned nests."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from superopt.codegen.cpp.config import FEW, CppConfig, loop_axes
from superopt.codegen.cpp.errors import UnsupportedError
from superopt.codegen.cpp.names import Names
from superopt.codegen.cpp.nest import print_nest, print_shift
from superopt.codegen.cpp.plan import VIEWS, Contraction, Fill, Item, Nest, Shift, Walk, make_plan
from superopt.codegen.cpp.reach import reach_end, reach_start
from superopt.codegen.cpp.source import CPP_TYPES, Argument, CppSource, Place, times
from superopt.codegen.cpp.whole import keep_whole
from superopt.codegen.statements import Compute, KernelProgram, Tensor
from superopt.ir import Step, print_step, value_axes, value_names

__all__ = ["Emitter", "emit"]

_TILES = "    " * 3  # where tiles of scratch memory are declared
_WRITTEN = frozenset({"f32", "f16", "bf16"})


def emit(program: KernelProgram, config: CppConfig) -> CppSource:
    """Return a kernel as C++ source."""
    return Emitter(program, config).source()


class Emitter:
    """The state of emission: lines so far, loops that are open, where values lie."""

    def __init__(self, program: KernelProgram, config: CppConfig) -> None:
        program = keep_whole(program, config.whole)
        self.program = program
        self.graph = program.graph
        self.config = config
        self.axes = value_axes(self.graph)
        self.texts = value_names(self.graph)
        self.names = Names(self.graph)
        self.grid = config.order or program.grid
        if sorted(self.grid) != sorted(program.grid):
            raise UnsupportedError(f"{program.name}: the order {self.grid} is not one of {program.grid}")
        self.single = frozenset(axis for axis in self.grid if config.tile(axis) == 1)
        self.tiled = {axis: config.tile(axis) for axis in self.grid if axis not in self.single}
        self.tiled |= {axis: max(2, config.tile(axis)) for axis in loop_axes(program)}
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
        self.sized: set[str] = set()
        self.lined: set[str] = set()  # strides along which vectors run, of tensors and of scratch memory
        for tensor in (*program.loads, *program.stores):
            if tensor.dtype not in CPP_TYPES or (tensor in program.stores and tensor.dtype not in _WRITTEN):
                known = ", ".join(sorted(_WRITTEN if tensor in program.stores else CPP_TYPES))
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
        """Return the extent of an axis, a field of the kernel."""
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

    # -- the kernel

    def source(self) -> CppSource:
        """Return the whole kernel."""
        program = self.program
        for tensor in program.loads:
            strides = {axis: self.stride(tensor, axis) for axis in tensor.axes}
            name = f"{self.names.values[tensor.value]}_data"
            whole = frozenset(tensor.axes)
            self.places[tensor.value] = Place(name, CPP_TYPES[tensor.dtype], strides, whole)
        self.depth = 2
        self.lines = []
        self.grid_loops()
        body = self.lines
        fields, arguments = self.fields()
        named = zip((field.removeprefix("index_t ") for field in fields), arguments, strict=True)
        lined = {name: one for name, one in named if one.kind == "stride" and name in self.lined}
        lines = [
            '#include "runtime.hpp"',
            "",
            "namespace superopt {",
            "",
            *(f"// {line}" for line in self.steps_text()),
            f"struct {program.name} {{",
            *(f"    {field};" for field in fields),
            "",
            *(
                f"    static constexpr index_t {self.names.axes[axis]}_tile = {tile};"
                for axis, tile in self.tiled.items()
            ),
            *([""] if self.tiled else []),
            *self.functions(body, lined),
            "};",
            "",
            "}  // namespace superopt",
            "",
            f'extern "C" void {program.name}(const superopt::{program.name}* kernel) {{',
            "    kernel->run();",
            "}",
            "",
        ]
        return CppSource(program.name, "\n".join(lines), arguments, tuple(lined.values()))

    def functions(self, body: list[str], strides: Collection[str]) -> list[str]:
        """Return the functions of the kernel; memory that vectors run along usually lies in one piece."""
        if not strides:
            return ["    void run() const {", *body, "    }"]
        at = next((i for i, line in enumerate(body) if line.endswith("{")), 0) + 1
        known = [f"            const index_t {name} = LINED ? 1 : this->{name};" for name in strides]
        return [
            "    void run() const {",
            f"        if ({' && '.join(f'{name} == 1' for name in strides)})",
            "            run<true>();",
            "        else",
            "            STRIDED(run<false>());",
            "    }",
            "",
            "    template <bool LINED>",
            "    void run() const {",
            *body[:at],
            *known,
            *body[at:],
            "    }",
        ]

    def steps_text(self) -> list[str]:
        """Return what stands above the kernel."""
        grid = f"grid[{', '.join(self.grid)}]"
        axes = ", ".join(f"{self.graph.sizes[axis]} {axis}" for axis in self.program.axes)
        return [f"{grid}; tuned for {axes}" if axes else grid]

    def stride(self, tensor: Tensor, axis: str, *, stored: bool = False) -> str:
        """Return the stride of an axis of a tensor, a field of the kernel."""
        name = self.names.outputs[tensor.name] if stored and tensor.port else self.names.values[tensor.value]
        return f"{name}_stride_{self.names.axes[axis]}"

    def fields(self) -> tuple[list[str], tuple[Argument, ...]]:
        """Return the fields of the kernel, and what the caller puts there."""
        fields: list[str] = []
        arguments: list[Argument] = []
        for position, tensor in enumerate(self.program.loads):
            name = self.names.values[tensor.value]
            fields.append(f"const {CPP_TYPES[tensor.dtype]}* {name}_data")
            arguments.append(Argument("load", position))
        for position, tensor in enumerate(self.program.stores):
            fields.append(f"{CPP_TYPES[tensor.dtype]}* {self.stored_name(tensor)}_data")
            arguments.append(Argument("store", position))
        for axis in self.graph.sizes:
            if axis in self.sized:
                fields.append(f"index_t {self.names.axes[axis]}_size")
                arguments.append(Argument("size", axis=axis))
        for stored, tensors in ((False, self.program.loads), (True, self.program.stores)):
            for position, tensor in enumerate(tensors):
                for axis in tensor.axes:
                    fields.append(f"index_t {self.stride(tensor, axis, stored=stored)}")
                    arguments.append(Argument("stride", position, axis, stored))
        if self.grid and self.config.threads != 1:
            fields.append("index_t threads")
            arguments.append(Argument("threads"))
        return fields, tuple(arguments)

    def stored_name(self, tensor: Tensor) -> str:
        """Return the name of a tensor that the kernel writes."""
        return self.names.outputs[tensor.name] if tensor.port else self.names.values[tensor.value]

    def grid_loops(self) -> None:
        """Print the loops over the grid, and the body in them."""
        if self.grid:
            collapse = f" collapse({len(self.grid)})" if len(self.grid) > 1 else ""
            most = self.config.threads
            if most != 1:
                threads = f"least({most}, threads)" if most else "threads"
                schedule = self.config.schedule
                self.line(f"#pragma omp parallel for{collapse} schedule({schedule}) num_threads({threads})")
            for axis in self.grid:
                name, size = self.names.axes[axis], self.size(axis)
                index, tile = (name, "1") if axis in self.single else (f"{name}_base", f"{name}_tile")
                if self.config.schedule == "dynamic" and self.lasts_longer(axis):
                    self.line(f"// What is late in {axis} takes longest, and comes first.")
                    last = (
                        f"{size} - 1" if tile == "1" else f"({size} + {tile} - 1) / {tile} * {tile} - {tile}"
                    )
                    step = f"--{index}" if tile == "1" else f"{index} -= {tile}"
                    self.line(f"for (index_t {index} = {last}; {index} >= 0; {step})")
                    continue
                step = f"++{index}" if tile == "1" else f"{index} += {tile}"
                self.line(f"for (index_t {index} = 0; {index} < {size}; {step})")
        with self.block(""):
            self.ends()
            for axis in self.grid:
                self.enter(axis, self.end(axis))
            at = len(self.lines)
            self.body(self.plan.body)
            self.lines[at:at] = self.scratch
        if self.grid:  # the block belongs to the innermost loop
            opening = next(i for i, line in enumerate(self.lines) if line.strip() == "{")
            self.lines[opening - 1] += " {"
            del self.lines[opening]

    def lasts_longer(self, axis: str) -> bool:
        """Whether programs late along an axis walk further, as a causal mask lets them."""

        def walks(items: list[Item]) -> Iterator[Walk]:
            for item in items:
                if isinstance(item, Walk):
                    yield item
                    yield from walks(item.body)

        forms = [
            (reach.upper, dict(reach.form).get((("index", axis),), 0))
            for walk in walks(self.plan.body)
            for reach in walk.reaches
        ]
        return any(upper and factor > 0 for upper, factor in forms) and all(upper for upper, _ in forms)

    def ends(self) -> None:
        """Print where the axes of parts end; a program beyond that has nothing to do."""
        for axis, split in self.parted.items():
            name = self.names.axes[axis]
            first = f"{self.names.axes[split.outer]} * {self.size(axis)}"
            rest = f"most(0, {self.size(split.axis)} - {first})"
            self.line(f"const index_t {name}_end = least({self.size(axis)}, {rest});")
            if axis in self.grid:
                index = name if axis in self.single else f"{name}_base"
                self.line(f"if ({index} >= {name}_end) continue;")

    def enter(self, axis: str, end: str) -> None:
        """Note that from here on an axis is walked along tile by tile, to some end."""
        self.walked.append(axis)
        if axis in self.tiled:
            name = self.names.axes[axis]
            self.line(f"const index_t {name}_count = least({name}_tile, {end} - {name}_base);")

    def body(self, items: list[Item]) -> None:
        """Print items in order."""
        self.panels(items)
        for item in items:
            if isinstance(item, Walk):
                self.walk(item)
            elif isinstance(item, Fill):
                self.fill(item.value)
            elif isinstance(item, Contraction):
                self.contraction(item)
            elif isinstance(item, Shift):
                print_shift(self, item.move)
            else:
                self.nest(item)

    def panels(self, items: list[Item]) -> None:
        """Declare what is packed once of matrices that do not change from here on, and are met again."""
        walks = len(self.walked) - len(self.grid)

        def found(items: list[Item]) -> Iterator[Contraction]:
            for item in items:
                if isinstance(item, Walk):
                    yield from found(item.body)
                elif isinstance(item, Contraction) and item.walks == walks and self.packs(item):
                    yield item

        for item in {one.a: one for one in found(items)}.values():
            name, packed = self.names.values[item.a], f"{self.names.values[item.a]}_packed"
            rows, columns = (self.extent(axis) if axis else "1" for axis in (item.m, item.k))
            room = f"Panels::room_of({rows}, {columns})"
            self.allocate(packed, room)
            self.line(f"Panels {name}_panels{{{packed}, {room}}};")

    def packs(self, item: Contraction) -> bool:
        """Whether what a contraction packs of its rows is kept for others, or for the next time.

        Of few rows it packs nothing.
        """
        rows = self.tiled.get(item.m, self.graph.sizes[item.m]) if item.m else 1
        return item.walks is not None and rows > FEW and self.place(item.a).type == "float"

    def allocate(self, name: str, count: str) -> None:
        """Declare a tile of scratch memory, once."""
        if name not in self.made_tiles:
            self.made_tiles.add(name)
            self.scratch = self.scratch or [f"{_TILES}Scratch scratch;"]
            self.scratch.append(f"{_TILES}float* const {name} = scratch.floats({count});")

    def walk(self, item: Walk) -> None:
        """Print a loop along an axis, as far as a mask lets anything through."""
        name = self.names.axes[item.axis]
        base, tile = f"{name}_base", f"{name}_tile"
        start, end = "0", self.end(item.axis)
        for reach in item.reaches:
            step = self.graph.step_of(reach.mask)
            assert step is not None
            seen = "Beyond" if reach.upper else "Before"
            self.line(f"// {seen} what is in reach, {print_step(step, self.texts)} holds nowhere.")
            if reach.upper:
                end = reach_end(self, reach, end)
            else:
                first = reach_start(self, reach, tile)
                start = first if start == "0" else f"most({start}, {first})"
        begin = f"index_t {base} = {start}"
        if any(reach.upper for reach in item.reaches):
            begin, end = f"{begin}, {name}_stop = {end}", f"{name}_stop"
        with self.block(f"for ({begin}; {base} < {end}; {base} += {tile})"):
            self.enter(item.axis, end)
            self.body(item.body)
            self.walked.pop()

    # -- where values lie

    def place(self, value: int) -> Place:
        """Return where a value lies; a computed one gets a tile of scratch memory when first asked for."""
        if value in self.places:
            return self.places[value]
        step = self.graph.step_of(value)
        assert step is not None
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
        return Place(source.pointer, source.type, joined, whole, tuple(o for o in offset if o != "0"))

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

    # -- items

    def fill(self, value: int) -> None:
        """Print how an accumulator starts."""
        place = self.place(value)
        step = self.graph.step_of(value)
        assert step is not None
        neutral = "-infinity" if step.op == "max" else "0.0f"
        self.line(f"fill({place.pointer}, {place.count}, {neutral});")

    def comment(self, one: Compute) -> str:
        """Return the text of a step as a comment."""
        sign = ("max=" if one.step.op == "max" else "+=") if one.accumulates else "="
        return f"// {self.texts[one.value]} {sign} {print_step(one.step, self.texts)}"

    def contraction(self, item: Contraction) -> None:
        """Print a call of the micro-kernel."""
        one = item.compute
        self.line(self.comment(one))
        places = {value: self.place(value) for value in (item.a, item.b, one.value)}
        pointers = {value: self.pointer(value, place) for value, place in places.items()}

        def at(value: int, *axes: str | None) -> str:
            terms = [
                times(self.names.axes[axis], places[value].strides[axis])
                for axis in item.around
                if axis in places[value].strides
            ]
            return " + ".join([pointers[value], *terms])

        def matrix(value: int, row: str | None, column: str | None) -> str:
            strides = [places[value].strides.get(axis or "", "0") for axis in (row, column)]
            return f"Matrix<{places[value].type}>{{{at(value)}, {', '.join(strides)}}}"

        counts = [self.count(axis) if axis else "1" for axis in (item.m, item.n, item.k)]
        row = places[one.value].strides.get(item.m or "", "0")
        a, b, c = (places[value].strides for value in (item.a, item.b, one.value))
        turns: dict[str, str] = {}
        for side, (axis, first, second, third) in enumerate(
            ((item.m, a, c, b), (item.n, b, c, a), (item.k, a, b, c))
        ):
            around = [other for other in reversed(item.around) if other in second and other not in third]
            for joined, name in self.joined(self.names.values[one.value], axis, around, first, second):
                turns[joined] = f"({name} ? 1 : {self.count(joined)})"
                counts[side] += f" * ({name} ? {self.count(joined)} : 1)"
        with self.loops(list(item.around), turns):
            self.line(f"contract({', '.join(counts)},")
            self.line(f"         {matrix(item.a, item.m, item.k)},")
            self.line(f"         {matrix(item.b, item.k, item.n)},")
            kept = f", &{self.names.values[item.a]}_panels" if self.packs(item) else ""
            self.line(f"         {at(one.value)}, {row}{kept});")

    def joined(
        self,
        value: str,
        axis: str | None,
        around: list[str],
        first: Mapping[str, str],
        second: Mapping[str, str],
    ) -> list[tuple[str, str]]:
        """Return the axes around a contraction that only make one of its own longer, and when they do.

        That is where their positions follow those of the axes before, in both matrices that have them.
        """
        if axis is None or axis not in first or axis not in second:
            return []
        found: list[tuple[str, str]] = []
        length = self.count(axis)
        for other in around:
            if other not in first:
                continue
            name = f"{value}_joins_{self.names.axes[other]}"
            wanted = [f"{one[other]} == {times(length, one[axis])}" for one in (first, second)]
            before = [found[-1][1]] if found else []
            self.line(f"const bool {name} = {' && '.join([*before, *dict.fromkeys(wanted)])};")
            found.append((other, name))
            length = times(length, self.count(other))
        return found

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

    def nest(self, nest: Nest) -> None:
        """Print a nest."""
        print_nest(self, nest)
