"""Proof: the programs of all devices, evaluated together over finite fields, equal the original program.

What the devices hold is one value with an axis for each dimension of the mesh along which it differs. So
the steps of all devices are one step, an all-reduce is a sum over such an axis, and moving chunks from the
devices into memory or back renames axes. The proof goes instruction by instruction: given any operands that
lie on the devices as their placements say, what it makes must lie as its own placement says. The verifier
compares both, with its bound on the chance of error, and the bounds add up. An instruction that fails names
a device and a tensor; then the outputs are compared as well, since only they decide that it is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from superopt.errors import GraphError
from superopt.ir import (
    REDUCTIONS,
    Axis,
    Graph,
    Output,
    Port,
    Step,
    StepWriter,
    check_graph,
    live_graph,
    mask_values,
    value_names,
)
from superopt.shard.sharded import SUM, Instruction, Layout, Placement, Sharded, call_rules, is_partial
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.programs.proof import prove
from superopt.verify.programs.whole import Whole
from superopt.verify.seeds import fresh_seed, generator_seed
from superopt.verify.verdict import Outcome, Verdict, combined

__all__ = ["Fault", "ShardVerdict", "prove_sharded"]

_MOST_AXES = 28  # of a graph that is evaluated as one: an array of numpy has 32 dimensions
_SHORT = 3  # places of an axis where programs are compared in numbers


@dataclass(frozen=True, slots=True)
class Fault:
    """The first value that some device gets wrong: its device by places in the mesh, and its instruction."""

    device: tuple[int, ...]
    tensor: str
    instruction: int

    def text(self, names: tuple[str, ...]) -> str:
        """Return the fault in words."""
        places = ", ".join(f"{name} {at}" for name, at in zip(names, self.device, strict=True))
        return f"device ({places}) has a wrong {self.tensor} after instruction %{self.instruction}"


@dataclass(frozen=True, slots=True)
class ShardVerdict:
    """The verdict on a sharded program, and where it first goes wrong."""

    verdict: Verdict
    fault: Fault | None = None

    def __bool__(self) -> bool:
        return self.verdict.equal


def prove_sharded(
    sharded: Sharded, *, original: Graph | None = None, seed: int | None = None
) -> ShardVerdict:
    """Return whether all devices together compute what the graph does.

    `original` is the graph that the sharded one was made of, if its exponentials were shifted since.
    """
    seed = fresh_seed() if seed is None else seed
    verdicts: list[Verdict] = []
    for at, one in enumerate(sharded.instructions):
        own, fault = _checked(sharded, at, seed)
        if not own.equal:
            tensor = value_names(sharded.layout.graph)[one.value]
            place = f"{tensor} after instruction %{at}"
            if own.different and not _differs(sharded, seed):
                own = replace(
                    own, outcome="unknown", notes=(*own.notes, "the outputs may be right all the same")
                )
            return ShardVerdict(replace(own, place=place), fault)
        verdicts.append(own)
    for output, at in zip(sharded.layout.graph.outputs, sharded.outputs, strict=True):
        one = sharded.instructions[at]
        if one.value != output.value or any(map(is_partial, one.placement)):
            fault = Fault((0,) * len(one.placement), output.port.name, at)
            differs = _differs(sharded, seed)
            outcome: Outcome = "different" if differs else "unknown"
            note = f"the output {output.port.name} is left in parts, or is another value"
            return ShardVerdict(Verdict(outcome, notes=(note,), seed=seed), fault)
    if original is not None:
        verdicts.append(_same(original, sharded.layout.graph, seed))
    tested = [one for one in verdicts if one.trials]  # without trials: both graphs take the same steps
    found = combined(tested or verdicts)
    notes = dict.fromkeys((*found.notes, *(note for one in verdicts if one.oracles for note in one.notes)))
    oracles = {name for one in verdicts for name in one.oracles}
    return ShardVerdict(replace(found, notes=tuple(notes), oracles=tuple(sorted(oracles))))


def _same(original: Graph, graph: Graph, seed: int) -> Verdict:
    """Return whether a graph equals the one that it was made of, in pieces where it is long."""
    if max(len(original.axes), len(graph.axes)) <= _MOST_AXES:
        return equal_graphs(original, graph, seed=seed)
    sides = Whole.of_graph(original), Whole.of_graph(graph)
    nothing = frozenset[str]()
    found = prove(*sides, (nothing, nothing), trials=None, seed=seed, titles={}, progress=lambda line: None)
    return found.verdict


def _checked(sharded: Sharded, at: int, seed: int) -> tuple[Verdict, Fault | None]:
    """Return the verdict on one instruction, given operands that lie as they should, and what is wrong."""
    one = sharded.instructions[at]
    tensor = value_names(sharded.layout.graph)[one.value]
    if _is_call(sharded, one):
        if _call_fits(sharded, one):
            call, _ = sharded.layout.made_by[one.value]
            note = f"{call.target} is trusted to take each place along the split axes by itself"
            notes = (note,) if any(one.placement) else ()
            return Verdict("equal", error_bound=0.0, oracles=(call.target,), notes=notes, seed=seed), None
        note = f"{tensor} is not made by its operator, of what that reads"
        return Verdict("different", notes=(note,), seed=seed), Fault((0,) * len(one.placement), tensor, at)
    try:
        devices, found, target = _alone(sharded, at)
        pairs = devices.compared(found, target, one.placement)
    except GraphError as error:
        fault = Fault((0,) * len(one.placement), tensor, at)
        return Verdict("different", notes=(str(error),), seed=seed), fault
    verdict = devices.verdict(pairs, seed)
    if verdict.equal or not (verdict.different or devices.differ_in_numbers(pairs, seed)):
        return verdict, None
    verdict = replace(verdict, outcome="different")
    for device in product(*map(range, sharded.layout.mesh.sizes)):
        if devices.differ_in_numbers(devices.compared(found, target, one.placement, device), seed):
            return verdict, Fault(device, tensor, at)
    return verdict, None


def _is_call(sharded: Sharded, one: Instruction) -> bool:
    """Return whether an instruction is a call, or stands where only a call may stand."""
    return one.kind == "call" or (one.kind == "enter" and one.value in sharded.layout.made_by)


def _call_fits(sharded: Sharded, one: Instruction) -> bool:
    """Return whether a call reads its own arguments, and all of them and its result lie as they may."""
    layout = sharded.layout
    made_by = layout.made_by
    if one.kind != "call" or one.value not in made_by:
        return False
    call, place = made_by[one.value]
    operands = [sharded.instructions[i] for i in one.inputs]
    if tuple(operand.value for operand in operands) != layout.read_by(call):
        return False
    return all(
        any(
            tags == tuple(operand.placement[dim] for operand in operands)
            and made[place] == one.placement[dim]
            for tags, made in call_rules(layout, call, dim)
        )
        for dim in range(len(layout.mesh.sizes))
    )


def _alone(sharded: Sharded, at: int) -> tuple[_Devices, int, int]:
    """Return the graph of one instruction on well placed operands: what it makes, and what it should make."""
    layout, one = sharded.layout, sharded.instructions[at]
    masks = mask_values(layout.graph)
    operands = [sharded.instructions[i] for i in one.inputs]
    if one.kind == "enter":
        operands = [replace(one, placement=(None,) * len(one.placement))]
    ports: list[Port] = []
    for operand in operands:
        parts = [layout.mesh_axis(dim) for dim, tag in enumerate(operand.placement) if is_partial(tag)]
        axes = [*parts, *layout.pieces_of(operand.value)]
        dtype = "bool" if masks[operand.value] and not parts else "f32"
        ports.append(Port(f"value{operand.value}", dtype, tuple((axis,) for axis in axes)))
    # A value that is read in parts and as a whole counts as two values, which proves a stronger statement.
    names = [port.name for port in ports]
    ports = [
        replace(port, name=f"{name}_{k}") for k, (name, port) in enumerate(zip(names, ports, strict=True))
    ]
    same: dict[tuple[int, Placement], int] = {}
    places = [same.setdefault((operand.value, operand.placement), k) for k, operand in enumerate(operands)]
    devices = _Devices(layout, tuple(ports))
    wholes = [devices.whole(k, operands[k].placement) for k in places]
    held = [devices.rename(k, devices.onto(operands[k].placement)) for k in places]
    if one.kind == "enter":
        return devices, devices.rename(0, devices.onto(one.placement)), 0
    if one.kind == "step":
        step = layout.graph.step_at(one.value)
        if step.inputs != tuple(operand.value for operand in operands):
            raise GraphError(f"{step.op} reads other values than in the graph")
        target = devices.step(step, tuple(wholes), (None,) * len(one.placement))
        return devices, devices.step(step, tuple(held), one.placement), target
    if operands[0].value != one.value:
        raise GraphError(f"{one.kind} moves another value")
    return devices, devices.move(one, held[0]), wholes[0]


def _differs(sharded: Sharded, seed: int) -> bool:
    """Return whether the outputs of all devices surely differ from those of the graph."""
    layout = sharded.layout
    devices = _Devices(layout, layout.refined().inputs)
    originals = [*range(len(layout.graph.inputs))]
    whole: Placement = (None,) * len(layout.mesh.sizes)
    for _, step in layout.graph.numbered:
        originals.append(devices.step(step, tuple(originals[i] for i in step.inputs), whole))
    made: list[int] = []
    pairs: list[tuple[int, int]] = []
    try:
        for one in sharded.instructions:
            inputs = tuple(made[i] for i in one.inputs)
            if one.kind in ("enter", "call"):
                if _is_call(sharded, one) and not _call_fits(sharded, one):
                    return True  # the operator would make something else of what it reads
                made.append(devices.rename(one.value, devices.onto(one.placement)))
            elif one.kind == "step":
                made.append(devices.step(layout.graph.step_at(one.value), inputs, one.placement))
            else:
                made.append(devices.move(one, inputs[0]))
        for output, at in zip(layout.graph.outputs, sharded.outputs, strict=True):
            placement = tuple(None if is_partial(tag) else tag for tag in sharded.instructions[at].placement)
            pairs += devices.compared(made[at], originals[output.value], placement)
    except GraphError:
        return True  # some device would read data that it does not have
    few = len(devices.axes) <= _MOST_AXES
    return (few and devices.verdict(pairs, seed).different) or devices.differ_in_numbers(pairs, seed)


class _Devices:
    """A graph of what all devices hold, beside what the original has; it keeps the axes of each value."""

    def __init__(self, layout: Layout, inputs: tuple[Port, ...]) -> None:
        self.layout = layout
        self.inputs = inputs
        self.mesh_axes = [layout.mesh_axis(dim) for dim in range(len(layout.mesh.sizes))]
        devices = zip(self.mesh_axes, layout.mesh.sizes, strict=True)
        self.axes = (*layout.refined().axes, *(Axis(name, size) for name, size in devices))
        self.written = StepWriter(frozenset(port.axes) for port in inputs)
        self.held = self.written.axes

    def whole(self, value: int, placement: Placement) -> int:
        """Return a value with its parts on the devices put together."""
        for dim, tag in enumerate(placement):
            if is_partial(tag):
                assert tag is not None
                value = self._reduced(value, self.mesh_axes[dim], tag)
        return value

    def emit(self, op: str, *inputs: int, axes: tuple[str, ...] = (), **more: Any) -> int:
        """Add a step and return its value."""
        return self.written.add(Step(op, inputs, axes, **more))

    def onto(self, placement: Placement) -> dict[str, str]:
        """Return the chunks that a placement leaves to the devices, each with its axis of the mesh."""
        return {
            self.layout.chunk(tag, dim): self.mesh_axes[dim]
            for dim, tag in enumerate(placement)
            if tag is not None and not is_partial(tag)
        }

    def rename(self, value: int, mapping: dict[str, str]) -> int:
        """Return a value with some of its axes under other names."""
        pairs = tuple((old, new) for old, new in mapping.items() if old in self.held[value])
        if not pairs:
            return value
        kept = self.held[value] - {old for old, _ in pairs}
        for _, new in pairs:
            if new in kept:
                raise GraphError(f"devices along {new} would need to have different parts of what they have")
        return self.emit("rename", value, mapping=pairs)

    def step(self, step: Step, inputs: tuple[int, ...], placement: Placement) -> int:
        """Return a step of the graph as each device takes it, on the pieces of axes that it has."""
        pieces = {axis.name: self.layout.pieces(axis.name) for axis in self.layout.graph.axes}
        if step.op in ("size", "index"):
            return self._position(step, placement)
        held = frozenset[str]().union(*(self.held[i] for i in inputs))
        if step.op in REDUCTIONS:
            axes = tuple(one.name for axis in step.axes for one in pieces[axis] if one.name in held)
            return self.emit(step.op, *inputs, axes=axes)
        if step.op == "rename":
            mapping = {
                one.name: other.name
                for old, new in step.mapping
                for one, other in zip(pieces[old], pieces[str(new)], strict=True)
            }
            return self.rename(inputs[0], mapping)
        if step.op == "select":
            pairs: list[tuple[str, str | int]] = []
            for axis, place in step.mapping:
                rest = int(place)
                for one in reversed(pieces[axis]):
                    rest, own = divmod(rest, one.size)
                    pairs.append((one.name, own))
            if not {axis for axis, _ in pairs} <= held:
                raise GraphError("a position is selected on an axis of which each device has a chunk only")
            return self.emit("select", inputs[0], mapping=tuple(pairs))
        if step.op == "window":
            slid = tuple(map(self.layout.place_of, step.places))
            if not {axis for place in slid for axis in place.axes} <= held:
                raise GraphError("a window reads along an axis of which each device has a chunk only")
            return self.emit("window", inputs[0], places=slid)
        return self.emit(step.op, *inputs, value=step.value)

    def _position(self, step: Step, placement: Placement) -> int:
        """Return the size of an axis, or the places along it that each device has."""
        onto = self.onto(placement)
        first, *rest = (one.name for one in self.layout.pieces(step.axes[0]))
        value = self.emit(step.op, axes=(onto.get(first, first) if step.op == "index" else first,))
        for name in rest:
            value = self.emit("mul", value, self.emit("size", axes=(name,)))
            if step.op == "index":
                value = self.emit("add", value, self.emit("index", axes=(onto.get(name, name),)))
        return value

    def move(self, one: Instruction, value: int) -> int:
        """Return what a collective leaves on all devices."""
        if one.kind in ("all-reduce", "reduce-scatter"):
            for dim in one.dims:
                value = self._reduced(value, self.mesh_axes[dim], one.how)
        if one.kind in ("reduce-scatter", "slice"):
            return self.rename(
                value, {self.layout.chunk(one.axis, dim): self.mesh_axes[dim] for dim in one.dims}
            )
        if one.kind == "all-gather":
            return self.rename(
                value, {self.mesh_axes[dim]: self.layout.chunk(one.axis, dim) for dim in one.dims}
            )
        if one.kind == "all-to-all":
            (dim,) = one.dims
            device = self.mesh_axes[dim]
            return self.rename(
                value, {device: self.layout.chunk(one.axis, dim), self.layout.chunk(one.onto, dim): device}
            )
        assert one.kind == "all-reduce", one.kind
        return value

    def _reduced(self, value: int, device: str, how: str) -> int:
        if device in self.held[value]:
            return self.emit("sum" if how == SUM else "max", value, axes=(device,))
        # All devices have the same value, so the sum over devices counts it once for each of them.
        return self.emit("mul", value, self.emit("size", axes=(device,))) if how == SUM else value

    def compared(
        self, found: int, target: int, placement: Placement, device: tuple[int, ...] | None = None
    ) -> list[tuple[int, int]]:
        """Return pairs of values that are equal if the devices' data lie as the placement says.

        The first of a pair is of the original, the second of all devices, or of one only.
        """
        found = self.whole(found, placement)
        pairs = [(target, found)]
        for dim, tag in enumerate(placement):
            if is_partial(tag):
                continue
            name = self.mesh_axes[dim]
            places = range(self.layout.mesh.sizes[dim]) if device is None else (device[dim],)
            made = []
            for one, other in pairs:
                if tag is not None and device is None:
                    made.append((one, self.rename(other, {name: self.layout.chunk(tag, dim)})))
                elif name in self.held[other] or tag is not None:
                    for place in places:
                        left = one
                        if tag is not None and self.layout.chunk(tag, dim) in self.held[one]:
                            left = self.emit("select", one, mapping=((self.layout.chunk(tag, dim), place),))
                        right = other
                        if name in self.held[other]:
                            right = self.emit("select", other, mapping=((name, place),))
                        made.append((left, right))
                else:
                    made.append((one, other))
            pairs = made
        return pairs

    def verdict(self, pairs: list[tuple[int, int]], seed: int) -> Verdict:
        """Return whether the values of all pairs are equal, as exact algebra."""
        first, second = self._graphs(pairs)
        return equal_graphs(first, second, seed=seed)

    def differ_in_numbers(self, pairs: list[tuple[int, int]], seed: int) -> bool:
        """Return whether the values of some pair differ in float64, on shorter axes."""
        import torch

        from superopt.trace import run_graph

        selected = {axis for step in self.written.steps if step.op == "select" for axis, _ in step.mapping}
        fixed = {*selected, *self.mesh_axes} | {
            self.layout.chunk(axis, dim) for axis, dims in self.layout.splits.items() for dim in dims
        }
        first, second = (
            replace(
                graph,
                axes=tuple(
                    one if one.name in fixed else Axis(one.name, min(one.size, _SHORT)) for one in graph.axes
                ),
            )
            for graph in self._graphs(pairs)
        )
        random = torch.Generator().manual_seed(generator_seed(seed))
        tensors = {
            port.name: torch.randn(first.shape(port), generator=random, dtype=torch.float64)
            for port in first.inputs
        }
        left, right = (run_graph(graph, tensors) for graph in (first, second))
        return any(
            not torch.allclose(left[name], right[name], rtol=1e-6, atol=1e-9, equal_nan=True) for name in left
        )

    def _graphs(self, pairs: list[tuple[int, int]]) -> tuple[Graph, Graph]:
        """Return the first and the second values of pairs as the outputs of two graphs."""
        ports = [
            Port(f"out{at}", "f32", tuple((axis,) for axis in sorted(self.held[a] | self.held[b])))
            for at, (a, b) in enumerate(pairs)
        ]
        first, second = (
            live_graph(
                check_graph(
                    Graph(
                        self.layout.graph.name,
                        self._read_axes(ports),
                        self.inputs,
                        tuple(self.written.steps),
                        tuple(Output(port, pair[side]) for port, pair in zip(ports, pairs, strict=True)),
                    )
                )
            )
            for side in (0, 1)
        )
        return first, second

    def _read_axes(self, outputs: list[Port]) -> tuple[Axis, ...]:
        """Return the axes that occur, so that arrays have no dimension without need."""
        found = {axis for port in (*self.inputs, *outputs) for axis in port.axes}
        for step in self.written.steps:
            found |= {*step.axes, *(name for pair in step.mapping for name in pair if isinstance(name, str))}
            found |= {axis for place in step.places for axis in place.named}
        return tuple(axis for axis in self.axes if axis.name in found.union(*self.held))
