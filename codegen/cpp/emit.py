"""Emit: one block kernel as C++ source: an OpenMP loop over the grid, and in it the planned nests."""

from collections.abc import Collection, Iterator, Mapping

from superopt.codegen.cpp.alike import Alike, find_alike
from superopt.codegen.cpp.config import FEW, CppConfig
from superopt.codegen.cpp.loop_bounds import reach_end, reach_start
from superopt.codegen.cpp.nests.nest import print_nest, print_shift
from superopt.codegen.cpp.nests.register_sums import print_register_sums
from superopt.codegen.cpp.plan import Contraction, Fill, Item, Nest, Shift, Walk, viewed
from superopt.codegen.cpp.source import CPP_TYPES, Argument, CppSource, Place, times
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.cpp.windows.filtered import print_filtered
from superopt.codegen.cpp.windows.filtering import filtering_of
from superopt.codegen.cpp.windows.gathered import print_gathered
from superopt.codegen.cpp.windows.sliding import print_sliding
from superopt.codegen.lowering import lower_for_cpp
from superopt.codegen.statements import Compute, KernelProgram, Store, lower_block
from superopt.ir import MuGraph, print_step
from superopt.precision import operand_dtypes, product_dtype

__all__ = ["Emitter", "emit", "lower_kernel"]


def lower_kernel(mugraph: MuGraph, number: int) -> KernelProgram:
    """Return a block kernel as statements; a value between kernels lies as what it is contracted with."""
    return lower_block(mugraph, number, alike=True)


def emit(program: KernelProgram, config: CppConfig, lengths: Mapping[str, int] | None = None) -> CppSource:
    """Return a kernel as C++ source, for sums over axes of the graph's sizes or of other lengths."""
    return Emitter(lower_for_cpp(program, config.whole), config, lengths).source()


class Emitter(Tiles):
    """Prints one kernel, from its statements to what stands around them."""

    heads: list[str]  # the heads of the loops over the grid
    inside: int  # the depth of the lines inside them
    alike: Alike | None  # what programs along the innermost axis of the grid have in common, if they do
    staying: dict[int, Contraction]  # operands whose packed copies stay for them

    def source(self) -> CppSource:
        """Return the whole kernel."""
        program = self.program
        for tensor in program.loads:
            strides = {axis: self.stride(tensor, axis) for axis in tensor.axes}
            name = f"{self.names.values[tensor.value]}_data"
            whole = frozenset(tensor.axes)
            self.places[tensor.value] = Place(name, CPP_TYPES[tensor.dtype], strides, whole)
        self.alike = find_alike(program, self.plan.body, self.grid, dict(self.config.tiles))
        self.staying = self.found_staying()
        if self.alike and not self.alike.items and not self.staying:
            self.alike = None
        self.depth = self.inside = 4 if self.alike else 3
        self.program_body()
        body, self.lines = self.lines, []
        self.depth = 2
        self.grid_loops()
        self.heads, self.lines = self.lines, body
        fields, arguments = self.fields()
        named = zip((field.removeprefix("index_t ") for field in fields), arguments, strict=True)
        unit_strides = {
            name: one for name, one in named if one.kind == "stride" and name in self.unit_strides
        }
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
            *self.functions(unit_strides),
            "};",
            "",
            "}  // namespace superopt",
            "",
            f'extern "C" void {program.name}(const superopt::{program.name}* kernel) {{',
            "    kernel->run();",
            "}",
            "",
        ]
        sums = tuple(sorted(self.sums))
        return CppSource(program.name, "\n".join(lines), arguments, tuple(unit_strides.values()), sums)

    def functions(self, strides: Collection[str]) -> list[str]:
        """Return the functions of the kernel; memory that vectors run along usually lies in one piece.

        What reads and writes other memory is compiled when it is called for.
        """
        ends = ["    " * depth + "}" for depth in range(self.inside - 1, 0, -1)]
        if not strides:
            return ["    void run() const {", *self.heads, *self.lines, *ends]
        margin = "    " * self.inside
        known = [f"{margin}const index_t {name} = UNIT_STRIDES ? 1 : this->{name};" for name in strides]
        return [
            "    void run() const {",
            f"        if ({' && '.join(f'{name} == 1' for name in strides)})",
            "            run<true>();",
            "        else",
            "#ifdef UNIT_STRIDES_ONLY",
            "            __builtin_trap();",
            "#else",
            "            run<false>();",
            "#endif",
            "    }",
            "",
            "    template <bool UNIT_STRIDES>",
            "    void run() const {",
            *self.heads,
            *known,
            *self.lines,
            *ends,
        ]

    def steps_text(self) -> list[str]:
        """Return what stands above the kernel."""
        grid = f"grid[{', '.join(self.grid)}]"
        axes = ", ".join(f"{self.graph.sizes[axis]} {axis}" for axis in self.program.axes)
        return [f"{grid}; tuned for {axes}" if axes else grid]

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

    def grid_loops(self) -> None:
        """Print the heads of the loops over the grid, the last of which opens the block of a program."""
        if not self.grid:
            self.line("{")
            return
        self.open_threads()
        for axis in self.grid:
            opening = " {" if axis == self.grid[-1] else ""
            name, size = self.names.axes[axis], self.size(axis)
            index, tile = (name, "1") if axis in self.single else (f"{name}_base", f"{name}_tile")
            if self.config.schedule == "dynamic" and self.lasts_longer(axis) and not self.starts_common(axis):
                self.line(f"// What is late in {axis} takes longest, and comes first.")
                last = f"{size} - 1" if tile == "1" else f"({size} + {tile} - 1) / {tile} * {tile} - {tile}"
                step = f"--{index}" if tile == "1" else f"{index} -= {tile}"
                self.line(f"for (index_t {index} = {last}; {index} >= 0; {step}){opening}")
                continue
            step = f"++{index}" if tile == "1" else f"{index} += {tile}"
            self.line(f"for (index_t {index} = 0; {index} < {size}; {step}){opening}")

    def open_threads(self) -> None:
        """Print how threads share the loops over the grid, each with memory for what its programs share."""
        collapse = f" collapse({len(self.grid)})" if len(self.grid) > 1 else ""
        schedule = f"schedule({self.config.schedule})"
        most = self.config.threads
        threads = f"num_threads({f'least({most}, threads)' if most else 'threads'})"
        if self.alike is None:
            if most != 1:
                self.line(f"#pragma omp parallel for{collapse} {schedule} {threads}")
            return
        if most != 1:
            self.line(f"#pragma omp parallel {threads}")
        self.line("{")
        self.depth += 1
        declared = [self.packed(item, value) for value, item in self.staying.items()]
        if self.alike.items:
            before = [f"index_t {self.before(axis)} = -1;" for axis in self.grid[:-1]]
            declared += before or ["bool begun = false;"]
        self.lines += self.scratch
        for line in declared:
            self.line(line)
        if most != 1:
            # The first of a row's programs stores what is made once: a thread takes them in order.
            schedule = schedule.replace("(dynamic", "(monotonic: dynamic")
            self.line(f"#pragma omp for nowait{collapse} {schedule}")

    def program_body(self) -> None:
        """Print what one program does; the tiles that it needs on the way are declared first."""
        self.ends()
        for axis in self.grid:
            self.enter(axis, self.end(axis))
        before, self.lines = self.lines, []
        if self.alike is None:
            self.body(self.plan.body)
        else:
            if self.alike.items:
                self.print_alike(self.alike.items)
            self.body(self.alike.rest)
        self.lines = [*before, *([] if self.alike else self.scratch), *self.lines]

    def print_alike(self, items: list[Item]) -> None:
        """Print what is made once for the programs along the innermost axis of the grid."""
        outer = self.grid[:-1]
        moved = " || ".join(f"{self.base(axis)} != {self.before(axis)}" for axis in outer)
        with self.block(f"if ({moved or '!begun'})"):
            for value in self.staying:  # its place stays the same where it is made here
                self.line(f"{self.names.values[value]}_panels.forget();")
            self.body(items)
            for axis in outer:
                self.line(f"{self.before(axis)} = {self.base(axis)};")
            if not outer:
                self.line("begun = true;")

    def before(self, axis: str) -> str:
        """Return the name of where the program before was along an axis of the grid."""
        return f"{self.names.axes[axis]}_before"

    def starts_common(self, axis: str) -> bool:
        """Whether the first program along an axis stores what is made once for all along it."""
        if self.alike is None or axis != self.grid[-1]:
            return False
        left = [*self.alike.items]
        while left:
            item = left.pop()
            left += item.body if isinstance(item, Walk) else []
            for one in (*item.statements, *item.rest) if isinstance(item, Nest) else ():
                if isinstance(one, Store) and axis in self.program.repeated(one.value):
                    return True
        return False

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

    def body(self, items: list[Item]) -> None:
        """Print items in order."""
        self.panels(items)
        for item in items:
            if isinstance(item, Walk):
                self.walk(item)
            elif isinstance(item, Fill):
                self.fill(item.value)
            elif isinstance(item, Contraction):
                if item.gathered is None:
                    self.contraction(item)
                elif self.config.filtered and (filtering := filtering_of(self.graph, item, self.tiled)):
                    print_filtered(self, item, filtering)
                else:
                    print_gathered(self, item)
            elif isinstance(item, Shift):
                print_shift(self, item.move)
            elif item.slides_over_windows:
                print_sliding(self, item)
            elif item.sums_in_registers:
                print_register_sums(self, item)
            else:
                self.nest(item)

    def panels(self, items: list[Item]) -> None:
        """Declare the packed copies of matrices that do not change from here on and are read again."""
        walks = len(self.walked) - len(self.grid)

        def found(items: list[Item]) -> Iterator[Contraction]:
            for item in items:
                if isinstance(item, Walk):
                    yield from found(item.body)
                elif isinstance(item, Contraction) and item.walks == walks and self.packs(item):
                    yield item

        for item in {one.a: one for one in found(items) if one.a not in self.staying}.values():
            self.line(self.packed(item, item.a))

    def found_staying(self) -> dict[int, Contraction]:
        """Return operands whose packed copies stay for programs along the innermost axis, and contractions.

        Where rows stay, columns are read where they lie.
        """
        if self.alike is None:
            return {}
        rows = {value: item for value, item in self.alike.rows.items() if self.packs_rows(item)}
        met = {id(item) for item in rows.values()}
        columns = self.alike.columns.items()
        return rows | {
            value: item for value, item in columns if id(item) not in met and self.packs_columns(item)
        }

    def packed(self, item: Contraction, value: int) -> str:
        """Return what declares the packed copy of an operand of a contraction, for which there is memory."""
        name = self.names.values[value]
        axes = (item.m if value == item.a else item.n, item.k)
        packed = "_".join((name, *(self.names.axes[axis] for axis in axes if axis), "packed"))
        rows, columns = (self.extent(axis) if axis else "1" for axis in axes)
        room = f"Panels::room_of({rows}, {columns})"
        self.allocate(packed, room)
        return f"Panels {name}_panels{{{packed}, {room}{'' if value == item.a else ', true'}}};"

    def packs(self, item: Contraction) -> bool:
        """Whether what a contraction packs of its rows is kept for others, or for the next time.

        Of few rows it packs nothing. Rows in bf16 are packed so quickly that nothing is kept of them.
        """
        return (item.walks is not None or item.a in self.staying) and self.packs_rows(item)

    def packs_columns(self, item: Contraction) -> bool:
        """Whether a contraction may pack its columns once for many rows."""
        rows = self.tiled.get(item.m, self.graph.sizes[item.m]) if item.m else 1
        return rows > FEW and not self.pairs(item.compute)

    def packs_rows(self, item: Contraction) -> bool:
        """Whether a contraction packs its rows."""
        if not self.packs_columns(item):
            return False
        place = self.places.get(viewed(self.graph, item.a))  # none where it is made on the way, in fp32
        return place is None or place.type == "float"

    def walk(self, item: Walk) -> None:
        """Print a loop along an axis, which ends where a mask hides the rest."""
        name = self.names.axes[item.axis]
        base, tile = f"{name}_base", f"{name}_tile"
        start, end = "0", self.end(item.axis)
        for reach in item.reaches:
            step = self.graph.step_at(reach.mask)
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

    def contraction(self, item: Contraction) -> None:
        """Print a call of the micro-kernel."""
        one = item.compute
        self.line(f"// {self.comment(one)}")
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
            call = "contract_pairs(" if self.pairs(one) else "contract("
            rest = " " * len(call)
            self.line(f"{call}{', '.join(counts)},")
            self.line(f"{rest}{matrix(item.a, item.m, item.k)},")
            self.line(f"{rest}{matrix(item.b, item.k, item.n)},")
            kept = next((value for value in (item.a, item.b) if value in self.staying), None)
            kept = item.a if kept is None and self.packs(item) else kept
            panels = "" if kept is None else f", &{self.names.values[kept]}_panels"
            self.line(f"{rest}{at(one.value)}, {row}{panels});")

    def pairs(self, one: Compute) -> bool:
        """Whether a contraction multiplies in bf16, on processors that multiply pairs of numbers."""
        memory = {tensor.value: tensor.dtype for tensor in self.program.loads}
        steps = ((found.value, found.step) for found, _ in self.program.flat() if isinstance(found, Compute))
        return product_dtype(self.graph, one.step, operand_dtypes(self.graph, steps, memory)) == "bf16"

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

    def nest(self, nest: Nest) -> None:
        """Print a nest."""
        print_nest(self, nest)
