"""Nest: fused steps printed as one nest of loops, the innermost one over vectors along one axis."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod

from superopt.codegen.cpp.nests.expressions import Text, apply_op, call, constant, summands
from superopt.codegen.cpp.plan import LEAVES, VIEWS, Nest
from superopt.codegen.cpp.source import Place, times
from superopt.codegen.cpp.sums import BLOCKED, LONG
from superopt.codegen.cpp.tiles import Tiles, read_number, read_vector, reads_window
from superopt.codegen.statements import Compute, Move, Store, Tensor
from superopt.dtypes import HALVES
from superopt.ir import REDUCTIONS, mask_values, selects
from superopt.ops import OPS

__all__ = ["NestPrinter", "print_nest", "print_shift"]

_TURNS = 4  # registers that take turns in a reduction, so that no addition waits for the previous addition
_AHEAD = 1 << 16  # tensors of at most so many numbers are fetched ahead for the next program
_LONG = 8  # with at least so many flops for each addition, a reduction needs no turns


def print_nest(tiles: Tiles, nest: Nest) -> None:
    """Print a nest among the lines of a kernel."""
    NestPrinter(tiles, nest).print()


def print_shift(tiles: Tiles, move: Move) -> None:
    """Print how a running shift moves, position by position."""
    made = Compute(move.value, move.step)
    NestPrinter(tiles, Nest(tiles.axes[move.value], [made])).print_shift(made, move)


class NestPrinter:
    """One nest: its loops in order, the values it reads, and the values known so far."""

    def __init__(self, tiles: Tiles, nest: Nest) -> None:
        self.tiles = tiles
        self.nest = nest
        self.graph = tiles.graph
        axes = [axis for axis in tiles.in_order(nest.axes) if axis not in tiles.single]
        self.vector = axes[-1] if axes else None
        reduced = [axis for axis in axes if axis in nest.reduced and axis != self.vector]
        self.kept = [axis for axis in axes if axis not in nest.reduced and axis != self.vector]
        self.reduced = reduced
        self.in_registers = self.vector is not None and self.vector in nest.reduced
        self.apart = self.in_registers and not any(
            isinstance(one, Compute) and one.step.op in OPS and OPS[one.step.op].flops >= _LONG
            for one in nest.statements
        )
        self.known: dict[int, Text] = {}
        self.by: dict[int, Text] = {}  # numbers to divide vectors by
        self.stored: dict[Tensor, str] = {}
        self.whole: dict[int, str] = {}  # windows -> the flag that says that nothing of them lies outside
        # Sums that are added up in blocks of terms: of several rows in memory, or in registers.
        several = self.vector is not None and bool(reduced) and not self.in_registers
        self.blocked = self._sums_beyond(BLOCKED) if several else []
        self.long = self._sums_beyond(LONG) if self.in_registers else []
        self.divisors = self._divisors()
        self.summands = summands(tiles.graph)

    def _sums_beyond(self, most: int) -> list[Compute]:
        """Return the sums that have more than so many terms."""
        sums = (one for one in self.nest.reductions if one.step.op != "max")
        return [one for one in sums if self.tiles.has_more_terms(one.step, most)]

    def _divisors(self) -> frozenset[int]:
        """Return the values that vectors are divided by, each the same for a whole vector."""
        axes, steps = self.tiles.axes, [one.step for one in self.nest.statements if isinstance(one, Compute)]
        divisions = [step.inputs for step in steps if step.op == "div"]
        return frozenset(b for a, b in divisions if self.vector in axes[a] - axes[b])

    def _is_rounded(self, value: int) -> bool:
        """Whether a value is stored in half types alone, and nothing reads it."""
        flat = [one for one, _ in self.tiles.program.flat()]
        dtypes = {one.tensor.dtype for one in flat if isinstance(one, Store) and one.value == value}
        read = any(value in one.step.inputs for one in flat if isinstance(one, (Compute, Move)))
        return bool(dtypes) and dtypes <= set(HALVES) and not read

    def name(self, axis: str) -> str:
        """Return the name of an axis in C++."""
        return self.tiles.names.axes[axis]

    def print(self) -> None:
        """Print the nest among the lines of its kernel."""
        tiles, reductions = self.tiles, self.nest.reductions
        operands, pointers, targets = self._begun(filled=() if self.in_registers else reductions)
        with tiles.loops(self.kept) if self.kept or not self._declares(operands) else tiles.block(""):
            if self.in_registers:
                for one in reductions:
                    self._start(one)
            for one in self.blocked:
                self._open(one, targets)
            for one in self.long:
                tiles.line(f"LongSum {self._sums(one)};")
            with tiles.loops(self.reduced):
                self._read(operands, pointers, vector=False)
                if self.vector is None:
                    self._statements(targets)
                else:
                    name, count = self.name(self.vector), tiles.count(self.vector)
                    turns, turn = (f"<{_TURNS}>", ", int turn") if self.apart else ("", ", int")
                    walk = "along_blocks" if self.long else "along"
                    head = f"{walk}{turns}({count}, [&](index_t {name}, auto {name}_lanes{turn}) INLINE"
                    with tiles.block(head, end=f"{self._emptied()});"):
                        self._read(operands, pointers, vector=True)
                        self._statements(targets)
                    for one in self.blocked:
                        tiles.line(f"{self._sums(one)}.next();")
            for one in self.blocked:
                tiles.line(f"{self._sums(one)}.end();")
            if self.in_registers:
                for one in reductions:
                    self._finish(one, targets)

    def _begun(self, *, filled: Iterable[Compute]) -> tuple[list[int], dict[int, str], dict[int, Place]]:
        """Print what comes before all loops; return operands, pointers to them, and where results go."""
        for one in filled:
            if not one.accumulates:
                self.tiles.fill(one.value)
        operands = self._operands()
        pointers = {value: self.tiles.pointer(value, self.tiles.place(value)) for value in operands}
        targets = self._targets()
        self._point_to_stores()
        return operands, pointers, targets

    def _point_to_stores(self) -> None:
        for store in (*self.nest.statements, *self.nest.rest):
            if isinstance(store, Store):
                place = self.tiles.stored_place(store.tensor)
                self.stored[store.tensor] = self.tiles.stored_pointer(store.tensor, place)

    def _window(self, value: int, at: str, place: Place, *, vector: bool) -> str:
        if not vector or self.vector is None:
            return read_number(self.tiles, place, at)
        return read_vector(self.tiles, place, at, self.vector, self.whole.get(value))

    def _declares(self, operands: list[int]) -> bool:
        """Whether a nest declares names outside its innermost loop, as another nest may too."""
        return (
            self.vector is None
            or bool(self.blocked)
            or any(self.vector not in self.tiles.place(value).strides for value in operands)
        )

    def print_shift(self, made: Compute, move: Move) -> None:
        """Print a nest that computes a running shift, and rescales wherever it has moved."""
        tiles = self.tiles
        self.kept, self.reduced, self.vector = self._loops, [], None
        operands = self._operands()
        touched = (*operands, move.value, *(value for value, _ in move.rescales))
        pointers = {value: tiles.pointer(value, tiles.place(value)) for value in touched}
        name = tiles.names.values[move.value]
        with tiles.loops(self.kept) if self.kept else tiles.block(""):
            self._read(operands, pointers, vector=False)
            tiles.line(f"// move {tiles.comment(made)}")
            old = _element(self._at(pointers[move.value], tiles.place(move.value).strides, self.kept))
            tiles.line(f"const float {name}_new = {self._computed(made).code};")
            with tiles.block(f"if ({name}_new != {old})"):
                scales: dict[Fraction, str] = {}
                for _, degree in move.rescales:
                    if degree not in scales:
                        scales[degree] = f"{name}_scale{len(scales) or ''}"
                        tiles.line(f"const float {scales[degree]} = exp({_moved(degree, old, name)});")
                for value, degree in move.rescales:
                    self._rescale(value, pointers[value], scales[degree])
                tiles.line(f"{old} = {name}_new;")

    def _rescale(self, value: int, pointer: str, scale: str) -> None:
        """Print the product of an accumulator, at this position of the shift, and a factor."""
        tiles, strides = self.tiles, self.tiles.place(value).strides
        axes = tiles.in_order(tiles.axes[value] - tiles.single)
        rest = [axis for axis in axes if axis not in self.kept]
        run = rest.pop() if rest and rest[-1] == axes[-1] else None
        step = self.graph.step_of(value)
        start = "-infinity" if step is not None and step.op == "max" else "0.0f"
        with tiles.loops(rest):
            at = self._at(pointer, strides, [*self.kept, *rest])
            tiles.line(f"rescale({at}, {tiles.count(run) if run else 1}, {scale}, {start});")

    def _operands(
        self, statements: Sequence[Compute | Store] | None = None, known: Iterable[int] = ()
    ) -> list[int]:
        """Return the values that some statements, or those of the nest, read from memory."""
        found: list[int] = []
        made = set(known)
        for one in self.nest.statements if statements is None else statements:
            inputs = (one.value,) if isinstance(one, Store) else one.step.inputs
            found += [i for i in inputs if i not in made and self._leaf(i) is None]
            if isinstance(one, Compute) and one.step.op not in REDUCTIONS:
                made.add(one.value)
        return list(dict.fromkeys(found))

    def _targets(self) -> dict[int, Place]:
        """Return where each value lies that the nest writes to scratch memory."""
        kept = self.tiles.plan.kept
        statements = (*self.nest.statements, *self.nest.rest)
        made = [one.value for one in statements if isinstance(one, Compute) and one.value in kept]
        return {value: self.tiles.place(value) for value in made}

    def _at(self, pointer: str, strides: dict[str, str], axes: list[str]) -> str:
        terms = [times(self.name(axis), strides[axis]) for axis in axes if axis in strides]
        return " + ".join([pointer, *(term for term in terms if term != "0")])

    @property
    def _loops(self) -> list[str]:
        return [*self.kept, *self.reduced, *([self.vector] if self.vector else [])]

    def _read(self, operands: list[int], pointers: dict[int, str], *, vector: bool) -> None:
        for value in operands:
            place = self.tiles.place(value)
            if vector and self.vector in place.strides:
                self.tiles.unit_strides.add(place.strides[self.vector])
            runs = self.vector is not None and self.vector in place.strides
            if runs != vector:
                continue
            name = self.tiles.names.values[value]
            at = self._at(pointers[value], place.strides, self._loops)
            if reads_window(self.graph, value):
                kind = "Vec" if runs else "float"
                self.tiles.line(f"const {kind} {name} = {self._window(value, at, place, vector=runs)};")
            elif runs:
                assert self.vector is not None
                lanes = f"{self.name(self.vector)}_lanes"
                self._read_ahead(value, at, place)
                self.tiles.line(f"const Vec {name} = load({at}, {place.strides[self.vector]}, {lanes});")
            else:
                self.tiles.line(f"const float {name} = read({_element(at)});")
                if value in self.divisors:
                    self.tiles.line(f"const Divisor {name}_divisor({name});")
                    self.by[value] = Text(f"{name}_divisor", vector=True)
            self.known[value] = Text(name, vector=runs)

    def _read_ahead(self, value: int, at: str, place: Place) -> None:
        """Fetch what the next program reads first, while this one reads again what a cache holds by now."""
        tiles = self.tiles
        tensor = next((one for one in tiles.program.loads if one.value == value), None)
        if tensor is None or value not in tiles.fetched_ahead:
            tiles.fetched_ahead[value] = False
            return
        axis = tiles.grid[-1] if tiles.grid else None
        if axis is None or axis not in tensor.axes or tiles.config.schedule != "static":
            return
        held = prod(tiles.graph.sizes[one] for one in tensor.axes if one not in tiles.grid)
        held *= prod(tiles.tiled.get(one, 1) for one in tensor.axes if one in tiles.grid)
        if not tiles.fetched_ahead[value] and len(tiles.walked) == len(tiles.grid) and held <= _AHEAD:
            tiles.fetched_ahead[value] = True
            step = "" if axis in tiles.single else f"{self.name(axis)}_tile * "
            tiles.line(f"prefetch({at} + {step}{place.strides[axis]});")

    def _leaf(self, value: int) -> Text | None:
        """Return a constant, an extent or a running index as text, seen through renames."""
        mapping: dict[str, str | int] = {}
        step = self.graph.step_of(value)
        chain = []
        while step is not None and step.op in VIEWS:
            chain.append(dict(step.mapping))
            step = self.graph.step_of(step.inputs[0])
        if step is None or step.op not in LEAVES:
            return None
        if step.value is not None:
            return constant(step.value)
        if step.op == "infinity":
            return Text("infinity", vector=False)
        axis: str | int = step.axes[0]
        if step.op == "size":
            return Text(f"float({self.tiles.size(step.axes[0])})", vector=False)
        for mapping in reversed(chain):
            axis = mapping.get(axis, axis) if isinstance(axis, str) else axis
        if isinstance(axis, int):
            return constant(axis)
        base = self.tiles.base(axis)
        if axis in self.tiles.single:
            return Text(f"float({base})", vector=False)
        at = f"{base} + {self.name(axis)}" if base else self.name(axis)
        return (
            Text(f"count_from({at})", vector=True)
            if axis == self.vector
            else Text(f"float({at})", vector=False)
        )

    def _value(self, value: int) -> Text:
        leaf = self._leaf(value)
        return leaf if leaf is not None else self.known[value]

    def _statements(
        self, targets: dict[int, Place], statements: Sequence[Compute | Store] | None = None
    ) -> None:
        for one in self.nest.statements if statements is None else statements:
            if isinstance(one, Store):
                self._store_tensor(one)
                continue
            self.tiles.line(f"// {self.tiles.comment(one)}")
            if one.step.op in REDUCTIONS:
                self._reduce(one, targets)
                continue
            text = self._computed(one)
            name = self.tiles.names.values[one.value]
            code = f"rounded({text.code})" if text.is_product and one.value in self.summands else text.code
            self.tiles.line(f"const {'Vec' if text.vector else 'float'} {name} = {code};")
            self.known[one.value] = Text(name, text.vector)
            if one.value in targets:
                place = targets[one.value]
                pointer = self.tiles.pointer(one.value, place)
                self._store(
                    self._at(pointer, place.strides, self._loops),
                    place.strides,
                    "float",
                    self.known[one.value],
                )

    def _computed(self, one: Compute) -> Text:
        if one.step.op == "mul":
            return self._product(one)
        texts = [self._value(i) for i in one.step.inputs]
        if one.step.op == "div" and one.step.inputs[1] in self.by and texts[0].vector:
            texts[1] = self.by[one.step.inputs[1]]
            if self._is_rounded(one.value):
                return call("rough_quotient", *texts)
        return apply_op(one.step.op, *texts)

    def _product(self, one: Compute) -> Text:
        """Return a product; one with a mask selects, so that 0 times infinity is 0."""
        a, b = one.step.inputs
        if selects(self.graph, one.step):
            mask, other = (a, b) if mask_values(self.graph)[a] else (b, a)
            return call("keep", self._value(mask), self._value(other))
        return apply_op("mul", self._value(a), self._value(b))

    def _register(self, one: Compute) -> str:
        ending = "max" if one.step.op == "max" else "sum"
        return f"{self.tiles.names.values[one.value]}_{ending}"

    def _start(self, one: Compute) -> None:
        """Declare the registers of a reduction; without long steps in between there are several."""
        count = f"[{_TURNS}]" if self.apart else ""
        self.tiles.line(f"Vec {self._register(one)}{count}{{}};")
        if one.step.op == "max":
            self.tiles.line(f"start({self._register(one)}, -infinity);")

    def _sums(self, one: Compute) -> str:
        return f"{self.tiles.names.values[one.value]}_sums"

    def _open(self, one: Compute, targets: dict[int, Place]) -> None:
        """Declare the row of sums to which blocks of terms are added."""
        assert self.vector is not None
        tiles, place, name = self.tiles, targets[one.value], self.tiles.names.values[one.value]
        sums = self._at(tiles.pointer(one.value, place), place.strides, self.kept)
        rests = self._at(tiles.rest(one.value), place.strides, self.kept)
        tiles.allocate(f"{name}_block", tiles.extent(self.vector))
        terms = " * ".join(tiles.count(axis) for axis in self.reduced)
        count = tiles.count(self.vector)
        rests = rests if tiles.has_rest(one.value) else "nullptr"
        tiles.line(f"Sums {self._sums(one)}({sums}, {rests}, {name}_block, {count}, {terms});")

    def _reduce(self, one: Compute, targets: dict[int, Place]) -> None:
        text = self._product(one) if one.step.op == "contract" else self._value(one.step.inputs[0])
        largest = one.step.op == "max"
        if self.in_registers:
            assert self.vector is not None
            lanes = f"{self.name(self.vector)}_lanes"
            vector = text.code if text.vector else f"splat({text.code})"
            part = f"first_lanes({vector}, {lanes}, {'-infinity' if largest else '0.0f'})"
            register = self._register(one) + ("[turn]" if self.apart else "")
            self.tiles.line(
                f"{register} = maximum({part}, {register});" if largest else f"{register} += {part};"
            )
            return
        place = targets[one.value]
        at = self._at(self.tiles.pointer(one.value, place), place.strides, self._loops)
        if self.vector is None:
            element = _element(at)
            before = Text(element, vector=False)
            self.tiles.line(
                f"{element} = {call('maximum', before, text).code};"
                if largest
                else f"{element} += {text.code};"
            )
            return
        lanes, stride = f"{self.name(self.vector)}_lanes", place.strides[self.vector]
        if one in self.blocked:
            at = f"{self._sums(one)}.at + {self.name(self.vector)}"
        before = Text(f"load({at}, {stride}, {lanes})", vector=True)
        after = call("maximum", before, text) if largest else apply_op("add", before, text)
        self._store(at, place.strides, "float", after)

    def _finish(self, one: Compute, targets: dict[int, Place]) -> None:
        """Fold the lanes of an accumulator into its place."""
        place = targets[one.value]
        element = _element(self._at(self.tiles.pointer(one.value, place), place.strides, self.kept))
        register = self._register(one)
        if one.step.op == "max":
            folded = f"largest({register})"
            folded = f"maximum({element}, {folded})" if one.accumulates else folded
            self.tiles.line(f"{element} = {folded};")
        elif one.accumulates and self.tiles.has_rest(one.value):
            rest = _element(self._at(self.tiles.rest(one.value), place.strides, self.kept))
            self.tiles.line(f"add_part({element}, {rest}, {self._folded(one)});")
        else:
            self.tiles.line(f"{element} {'+=' if one.accumulates else '='} {self._folded(one)};")

    def _emptied(self) -> str:
        """Return what empties the registers of long sums, as an argument of `along_blocks`."""
        if not self.long:
            return ""
        calls = " ".join(f"{self._sums(one)}.next({self._register(one)}, count);" for one in self.long)
        return f", [&](index_t count) INLINE {{ {calls} }}"

    def _folded(self, one: Compute) -> str:
        """Return the sum of the lanes of an accumulator."""
        register = self._register(one)
        return f"{self._sums(one)}.end({register})" if one in self.long else f"sum({register})"

    def _store(self, at: str, strides: dict[str, str], type_name: str, text: Text, where: str = "") -> None:
        if self.vector is None:
            value = text.code if type_name == "float" else f"write<{type_name}>({text.code})"
            self.tiles.line(f"{where}{_element(at)} = {value};")
            return
        code = text.code if text.vector else f"splat({text.code})"
        lanes = f"{self.name(self.vector)}_lanes"
        self.tiles.unit_strides.add(strides[self.vector])
        self.tiles.line(f"{where}store({at}, {strides[self.vector]}, {lanes}, {code});")

    def _store_tensor(self, one: Store) -> None:
        place = self.tiles.stored_place(one.tensor)
        at = self._at(self.stored[one.tensor], place.strides, self._loops)
        first = [f"{self.tiles.base(axis)} == 0" for axis in self.tiles.program.repeated(one.value)]
        where = f"if ({' && '.join(first)}) " if first else ""
        self._store(at, place.strides, place.type, self._value(one.value), where)


def _moved(degree: Fraction, old: str, name: str) -> str:
    """Return the exponent of the factor by which sums are rescaled when a shift moves."""
    if abs(degree) == 1:
        return f"{old} - {name}_new" if degree < 0 else f"{name}_new - {old}"
    return f"{constant(degree).within(2)} * ({name}_new - {old})"


def _element(at: str) -> str:
    """Return the element at a pointer expression."""
    pointer, _, rest = at.partition(" + ")
    return f"{pointer}[{rest or 0}]"
