"""Regions: cuts the algebra of a tape at its opaque calls and writes each part as a Graph."""

from dataclasses import dataclass, field
from itertools import count

import torch

from superopt.dtypes import dtype_text
from superopt.ir import (
    Axis,
    Graph,
    Opaque,
    Output,
    Port,
    Program,
    Region,
    Step,
    check_graph,
    check_program,
    plain_name,
)
from superopt.ir.windows.place import Place
from superopt.trace.algebra import Algebra, OpaqueCall
from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Node, Sym, Window
from superopt.trace.capture.tape import is_view, refs
from superopt.trace.naming import name_axes
from superopt.trace.run import dtype_name

__all__ = ["Cut", "cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A program, and which of its tensors each tape position and each opaque call is."""

    program: Program
    names: dict[int, str]  # tape position of a result or an opaque argument -> tensor name
    calls: dict[str, OpaqueCall]
    memory: dict[int, int]  # results -> in which memory each lies, where the program may not give it its own


_MOVES = frozenset({"rename", "select", "window"})
"""Operators that torch may compute as views."""


@dataclass(slots=True)
class _Part:
    """One region while it is collected: the tensors it must make, by name."""

    exports: dict[str, Sym] = field(default_factory=dict)


def cut(algebra: Algebra) -> Cut:
    """Return the program of a tape's algebra."""
    return _Cutter(algebra).run()


class _Cutter:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.builder: Builder = algebra.builder
        self.nodes: list[Node] = algebra.builder.nodes
        self.parts: dict[int, _Part] = {}
        self.names: dict[int, str] = {}
        self.raw_names: dict[int, str] = {}  # input node -> tensor
        self.taken: set[str] = set()
        self.calls: dict[str, OpaqueCall] = {}
        self.crossing: dict[int, str] = {}  # value made in an earlier region -> tensor
        self.titles: dict[str, str] = {}
        self.seen: set[int] = set()
        self.live: set[int] = set()

    def run(self) -> Cut:
        tape = self.algebra.tape
        results = list(dict.fromkeys(refs(tape.result)))
        sources = (*tape.inputs, *tape.constants)
        for source in sources:
            self.raw_names[self.algebra.tensors[source.index].value] = self._unique(source.name)
        for opaque in self._live_calls(results):
            self._name_call(opaque)
        syms = {index: self.builder.settle(self.algebra.tensors[index]) for index in results}
        made = [index for index, sym in syms.items() if not self.algebra.is_raw(sym)]
        for index, sym in syms.items():
            title = "out" if len(made) == 1 else f"out_{made.index(index)}" if index in made else ""
            self.names[index] = self._export(sym, title)
        for value in sorted(self.seen):
            self._cross(value)
        self.axis_names = self._name_axes()
        nodes: list[Region | Opaque] = []
        levels = {*self.parts, *(opaque.level for opaque in self.calls.values())}
        count_regions = len(self.parts)
        for level in sorted(levels):
            nodes += [self._opaque(name, call) for name, call in self.calls.items() if call.level == level]
            if level in self.parts:
                title = tape.name if count_regions == 1 else f"{tape.name}_{sorted(self.parts).index(level)}"
                nodes.append(Region(self._graph(title, level)))
        ports = tuple(self._raw_port(self.algebra.tensors[source.index].value) for source in sources)
        outputs = tuple(self.names[index] for index in refs(tape.result))
        program = check_program(Program(tape.name, ports, tuple(nodes), outputs))
        return Cut(program, self.names, self.calls, self._memory(syms))

    def _memory(self, syms: dict[int, Sym]) -> dict[int, int]:
        """Return the memory of each result in PyTorch, or nothing where it is sure to be the same here.

        The algebra knows no copies: a copy may be the same tensor here, or a view of it.
        """
        memory = self.algebra.tape.memory
        roots = {index: self._root(sym.value) for index, sym in syms.items()}
        shared: dict[int, set[int]] = {}
        for index, root in roots.items():
            shared.setdefault(root, set()).add(memory[index])
        for index, root in roots.items():
            if memory[index] and (len(shared[root]) > 1 or self._is_outside(root)):
                return memory
        return {}

    def _root(self, value: int) -> int:
        """Return the value of which another one has elements."""
        while self.nodes[value].op in _MOVES:
            (value,) = self.nodes[value].inputs
        return value

    def _is_outside(self, value: int) -> bool:
        """Whether a value may lie in memory that the program did not make."""
        if self.nodes[value].op != "input":
            return False
        opaque = self.algebra.maker.get(value)
        return opaque is None or is_view(opaque.call.function)

    def _unique(self, name: str) -> str:
        found = name
        number = count(2)
        while found in self.taken:
            found = f"{name}_{next(number)}"
        self.taken.add(found)
        return found

    def _live_calls(self, results: list[int]) -> list[OpaqueCall]:
        """Return the opaque calls that some result needs, in order, and note every value needed."""
        live: set[int] = set()
        stack = [self.builder.settle(self.algebra.tensors[index]).value for index in results]
        while stack:
            value = stack.pop()
            if value in self.seen:
                continue
            self.seen.add(value)
            stack.extend(self.nodes[value].inputs)
            opaque = self.algebra.maker.get(value)
            if opaque is not None and id(opaque) not in live:
                live.add(id(opaque))
                stack.extend(sym.value for _, sym in opaque.inputs)
        return [opaque for opaque in self.algebra.opaque if id(opaque) in live]

    def _name_call(self, opaque: OpaqueCall) -> None:
        parts = opaque.call.target.split(".")
        short = plain_name(parts[0] if len(parts) == 1 else parts[1]).strip("_")
        name = next(f"{short}_{i}" for i in count(1) if f"{short}_{i}" not in self.calls)
        self.calls[name] = opaque
        for index, sym in opaque.inputs:
            self.names[index] = self._export(sym, f"{name}_in")
        for number, (index, sym) in enumerate(opaque.outputs):
            suffix = "out" if len(opaque.outputs) == 1 else f"out{number}"
            self.raw_names[sym.value] = self.names[index] = self._unique(f"{name}_{suffix}")

    def _export(self, sym: Sym, title: str) -> str:
        """Return the name of a tensor, which its region makes unless it enters as it is."""
        if self.algebra.is_raw(sym):
            return self.raw_names[sym.value]
        part = self.parts.setdefault(max(self.nodes[sym.value].level, 0), _Part())
        for name, other in part.exports.items():
            same = other.value == sym.value and other.dtype == sym.dtype
            if same and self.builder.dims(other) == self.builder.dims(sym):
                return name
        name = self._unique(title)
        part.exports[name] = sym
        return name

    def _cross(self, value: int) -> None:
        """Export what a value reads from earlier regions."""
        level = self.nodes[value].level
        for read in self.nodes[value].inputs:
            node = self.nodes[read]
            if node.op == "input" or node.level in (-1, level) or read in self.crossing:
                continue
            dims = tuple((axis,) for axis in self.builder.axes.leaves(node.covers))
            dtype = self.algebra.dtypes.get(read, torch.float32)
            self.crossing[read] = self._export(Sym(read, dims, dtype), f"t{read}")

    def _name_axes(self) -> dict[int, str]:
        axes = self.builder.axes
        tensors = [dims for dims, _ in self.algebra.raw.values()]
        exported = [sym.dims for part in self.parts.values() for sym in part.exports.values()]
        inner = [
            axis
            for value in sorted(self.seen)
            for axis in axes.leaves((*self.nodes[value].axes, *self.nodes[value].covers))
        ]
        others = [axis for dims in exported for dim in dims for axis in axes.leaves(dim)]
        renamed = [
            axis
            for value in sorted(self.seen)
            for pair in self.nodes[value].mapping
            if self.nodes[value].op == "rename"
            for axis in axes.leaves(pair)
        ]
        return name_axes(axes, tensors, [*inner, *renamed, *others])

    def _dims(self, dims: tuple[Dim, ...]) -> tuple[tuple[str, ...], ...]:
        leaves = self.builder.axes.leaves
        return tuple(tuple(self.axis_names[axis] for axis in leaves(dim)) for dim in dims)

    def _raw_port(self, value: int) -> Port:
        dims, dtype = self.algebra.raw[value]
        strides, constant = None, False
        tape = self.algebra.tape
        for source in (*tape.inputs, *tape.constants):
            if self.algebra.tensors[source.index].value == value:
                constant = any(source is one for one in tape.constants)
                if not tape.metas[source.index].contiguous:
                    strides = tape.metas[source.index].strides
        name = dtype_text(dtype)
        return Port(self.raw_names[value], name, self._dims(dims), strides, constant)

    def _opaque(self, name: str, opaque: OpaqueCall) -> Opaque:
        inputs = tuple(dict.fromkeys(self.names[index] for index, _ in opaque.inputs))
        outputs = tuple(self.names[index] for index, _ in opaque.outputs)
        return Opaque(name, opaque.call.target, opaque.reason, inputs, outputs)

    def _graph(self, title: str, level: int) -> Graph:
        exports = self.parts[level].exports
        ports: dict[int, Port] = {}
        needed: set[int] = set()
        stack = [sym.value for sym in exports.values()]
        while stack:
            value = stack.pop()
            if value in needed:
                continue
            needed.add(value)
            node = self.nodes[value]
            if node.op == "input":
                ports[value] = self._raw_port(value)
            elif node.level not in (-1, level):
                name = self.crossing[value]
                sym = self.parts[node.level].exports[name]
                dtype = dtype_name(sym.dtype)
                assert dtype is not None
                ports[value] = Port(name, dtype, self._dims(sym.dims))
            else:
                stack.extend(node.inputs)
        writer = _Writer(self.builder, self.axis_names, dict(sorted(ports.items())))
        for value in sorted(needed):
            writer.write(value)
        outputs = []
        for name, sym in exports.items():
            dtype = dtype_name(sym.dtype)
            assert dtype is not None
            outputs.append(Output(Port(name, dtype, self._dims(sym.dims)), writer.position[sym.value]))
        return check_graph(writer.graph(title, tuple(outputs)))


class _Writer:
    """The steps of one graph, equal ones once, on named leaf axes."""

    def __init__(self, builder: Builder, names: dict[int, str], ports: dict[int, Port]) -> None:
        self.builder = builder
        self.names = names
        self.ports = tuple(ports.values())
        self.steps: dict[Step, int] = {}
        self.position = {value: i for i, value in enumerate(ports)}

    def step(self, step: Step) -> int:
        return self.steps.setdefault(step, len(self.ports) + len(self.steps))

    def leaves(self, dim: Dim) -> tuple[str, ...]:
        return tuple(self.names[axis] for axis in self.builder.axes.leaves(dim))

    def write(self, value: int) -> None:
        """Write a node whose inputs are written."""
        if value in self.position:
            return
        node = self.builder.nodes[value]
        inputs = tuple(self.position[i] for i in node.inputs)
        match node.op:
            case "const":
                made = self.step(Step("const", value=node.value))
            case "index":
                made = self._index(self.leaves(node.axes))
            case "size":
                made = self._size(self.leaves(node.axes))
            case "rename":
                made = self._rename(node, inputs)
            case "select":
                made = self._select(node, inputs)
            case "window":
                made = self.step(Step("window", inputs, places=tuple(map(self._place, node.places))))
            case "sum" | "max" | "contract":
                made = self.step(Step(node.op, inputs, axes=self.leaves(node.axes)))
            case _:
                made = self.step(Step(node.op, inputs))
        self.position[value] = made

    def _size(self, axes: tuple[str, ...]) -> int:
        made = [self.step(Step("size", axes=(axis,))) for axis in axes]
        found = made[0]
        for other in made[1:]:
            found = self.step(Step("mul", (found, other)))
        return found

    def _index(self, axes: tuple[str, ...]) -> int:
        """Return the index of an axis that has split: ((i * size[j]) + j) * size[k] + k and so on."""
        found = self.step(Step("index", axes=axes[:1]))
        for axis in axes[1:]:
            found = self.step(Step("mul", (found, self._size((axis,)))))
            found = self.step(Step("add", (found, self.step(Step("index", axes=(axis,))))))
        return found

    def _rename(self, node: Node, inputs: tuple[int, ...]) -> int:
        pairs = [
            pair
            for old, new in node.mapping
            for pair in zip(self.leaves((old,)), self.leaves((new,)), strict=True)
            if pair[0] != pair[1]
        ]
        return self.step(Step("rename", inputs, mapping=tuple(sorted(pairs)))) if pairs else inputs[0]

    def _select(self, node: Node, inputs: tuple[int, ...]) -> int:
        pairs = []
        for axis, at in node.mapping:
            places = self.builder.axes.position((axis,), at)
            pairs += [(self.names[leaf], places[leaf]) for leaf in self.builder.axes.leaves((axis,))]
        return self.step(Step("select", inputs, mapping=tuple(sorted(pairs))))

    def _place(self, window: Window) -> Place:
        axes = self.builder.axes
        terms = [
            (self.names[axis], factor * axes.extent(inner))
            for one, factor in window.terms
            for axis, inner in axes.grid((one,))
        ]
        return Place(self.leaves(window.read), tuple(terms), window.offset)

    def graph(self, name: str, outputs: tuple[Output, ...]) -> Graph:
        """Return the graph with the axes that occur in it, in order."""
        used: dict[str, None] = {}
        for port in (*self.ports, *(output.port for output in outputs)):
            used.update(dict.fromkeys(port.axes))
        for step in self.steps:
            used.update(dict.fromkeys(step.axes))
            for old, new in step.mapping:
                used.update(dict.fromkeys((old, new) if isinstance(new, str) else (old,)))
            used.update(dict.fromkeys(axis for place in step.places for axis in place.named))
        sizes = {self.names[axis]: self.builder.axes.sizes[axis] for axis in self.names}
        axes = tuple(Axis(axis, sizes[axis]) for axis in used)
        return Graph(name, axes, self.ports, tuple(self.steps), outputs)
