"""Products: a value as a sum of products of windows of inputs, and where two such values are equal.

What reads inputs through windows, multiplies, adds and sums is a sum of products, in each of which every
tensor is read at one place for each position of the result and of what is summed. Two values are equal at a
position where their products are the same ones there: where they read the same elements, times the same
number. All places are worked out in full, so the answer is exact, and holds for any tensors.

A product that reads outside, or is masked there, is 0 and counts as none. So a program that is equal on a
part of its result only is seen to be, and so is a whole that is put together from parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.ir.cut import tensorless_values
from superopt.ir.graph import COMMUTATIVE, Graph, Port, Step, value_axes
from superopt.ir.windows.place import Place
from superopt.ops import OPS

__all__ = ["Product", "agreement", "products_of", "surely_equal"]

_MOST = 1 << 22  # positions of the largest table
_MOST_PRODUCTS = 32
_MOST_STEPS = 200  # steps of graphs that are compared step by step

Table = NDArray[Any]
Atoms = Mapping[int, Port]
"""Values that are no sums of products, as tensors of their own."""

_NO_ATOMS: Atoms = {}
_NEITHER = (_NO_ATOMS, _NO_ATOMS)


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor that enters, and the windows it is read through, the one that is read last first."""

    port: Port
    chain: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """A number times tensors and masks, each at its own places, summed over some axes."""

    number: Fraction = Fraction(1)
    reads: tuple[Read, ...] = ()
    masks: tuple[int, ...] = ()  # values of the graph that read no tensor
    summed: frozenset[str] = frozenset()
    axes: frozenset[str] = frozenset()  # the axes that its parts have, those that are summed included


@dataclass(frozen=True, slots=True)
class _Laid:
    """What a product reads at each position of some axes, as tables."""

    inside: Table
    places: tuple[Table, ...]  # of each tensor, by name
    weight: Table


def products_of(graph: Graph, value: int, atoms: Atoms = _NO_ATOMS) -> tuple[Product, ...] | None:
    """Return a value as a sum of products of inputs, or None where it is none.

    Values that are none are taken for tensors that enter, as far as `atoms` says under which names.
    """
    axes, tensorless = value_axes(graph), tensorless_values(graph)
    known: dict[int, tuple[Product, ...] | None] = {}
    for at in range(value + 1):
        step = graph.step_of(at)
        if step is None:
            port = graph.inputs[at]
            known[at] = (Product(reads=(Read(port),), axes=axes[at]),)
        elif step.value is not None:
            known[at] = (Product(step.value),) if step.value else ()
        elif tensorless[at]:
            known[at] = (Product(masks=(at,), axes=axes[at]),)
        else:
            operands = [known[i] for i in step.inputs]
            found = None if None in operands else _stepped(step, [one or () for one in operands])
            if at in atoms and (found is None or len(found) > _MOST_PRODUCTS):
                found = (Product(reads=(Read(atoms[at]),), axes=axes[at]),)
            known[at] = None if found is None or len(found) > _MOST_PRODUCTS else found
    return known[value]


def _stepped(step: Step, operands: Sequence[tuple[Product, ...]]) -> tuple[Product, ...] | None:
    if step.op == "add":
        return operands[0] + operands[1]
    if step.op in ("neg", "sub"):
        taken = tuple(replace(one, number=-one.number) for one in operands[-1])
        return taken if step.op == "neg" else operands[0] + taken
    if step.op == "div":
        number = operands[1][0] if len(operands[1]) == 1 else Product(Fraction(0))
        if number != Product(number.number) or not number.number:
            return None
        return tuple(replace(one, number=one.number / number.number) for one in operands[0])
    if step.op in ("mul", "contract"):
        pairs = [_times(a, b) for a in operands[0] for b in operands[1]]
        if any(one is None for one in pairs):
            return None
        made = tuple(one for one in pairs if one is not None)
        return made if step.op == "mul" else _summed(made, step.axes)
    if step.op == "sum":
        return _summed(operands[0], step.axes)
    if step.op == "window":
        seen = [_seen(one, step) for one in operands[0]]
        return None if any(one is None for one in seen) else tuple(one for one in seen if one is not None)
    return None


def _times(a: Product, b: Product) -> Product | None:
    if a.summed & b.axes or b.summed & a.axes:
        return None  # an axis of one name is summed in one factor, and is another axis in the other one
    return Product(
        a.number * b.number, a.reads + b.reads, a.masks + b.masks, a.summed | b.summed, a.axes | b.axes
    )


def _summed(products: Iterable[Product], axes: Sequence[str]) -> tuple[Product, ...] | None:
    found = tuple(products)
    if any(one.summed & {*axes} for one in found):
        return None
    return tuple(replace(one, summed=one.summed | {*axes}) for one in found)


def _seen(product: Product, step: Step) -> Product | None:
    """Return a product as a window shows it: all that it reads along the axes is read through the window."""
    read = {axis for place in step.places for axis in place.axes}
    made = {axis for place in step.places for axis, _ in place.terms}
    if product.masks or product.summed & (read | made) or not product.reads:
        return None
    reads: list[Read] = []
    moved = False
    for one in product.reads:
        through = tuple(place for place in step.places if _axes_of(one) & {*place.axes})
        if any(not {*place.axes} <= _axes_of(one) for place in through):
            return None
        moved |= len(through) == len(step.places)
        reads.append(replace(one, chain=through + one.chain))
    if not moved:
        return None  # the window is 0 outside, which no factor would say
    return replace(product, reads=tuple(reads), axes=(product.axes - read) | made)


def _axes_of(read: Read) -> frozenset[str]:
    axes = set(read.port.axes)
    for place in reversed(read.chain):
        axes -= set(place.axes)
        axes |= {axis for axis, _ in place.terms}
    return frozenset(axes)


def agreement(
    a: Graph, value: int, b: Graph, other: int, leaving: Sequence[str], atoms: tuple[Atoms, Atoms] = _NEITHER
) -> tuple[tuple[str, ...], NDArray[np.bool_]] | None:
    """Return at which positions two values are surely equal, and along which axes of what leaves.

    Along all other axes of what leaves they are so everywhere. Inputs and axes are matched by name. None
    where a value is no sum of products, or its tables would be too large.
    """
    sides = [(a, products_of(a, value, atoms[0])), (b, products_of(b, other, atoms[1]))]
    moving: dict[str, None] = {}
    for graph, products in sides:
        if products is None:
            return None
        for one in products:
            if len({read.port.name for read in one.reads}) < len(one.reads):
                return None  # which of the two reads is which would have to be found out
            moving |= dict.fromkeys(axis for axis in _table_axes(graph, one) if axis not in one.summed)
    outer = tuple(axis for axis in leaving if axis in moving)
    if set(outer) != set(moving) or any(a.sizes[axis] != b.sizes.get(axis) for axis in outer):
        return None
    laid: list[list[tuple[Product, tuple[str, ...], _Laid]]] = []
    for graph, products in sides:
        laid.append([])
        for one in products or ():
            inner = tuple(sorted(axis for axis in _table_axes(graph, one) if axis in one.summed))
            if {*inner} & {*outer}:
                return None
            tables = _laid(graph, one, (*outer, *inner))
            if tables is None:
                return None
            laid[-1].append((one, inner, tables))
    shape = [a.sizes[axis] for axis in outer]
    return outer, _matched(a, b, laid[0], laid[1], outer, shape)


def surely_equal(a: Graph, b: Graph) -> bool:
    """Return whether two graphs are equal, as far as it can be seen without drawing numbers.

    What leaves is equal where the same steps are taken of equal values, or where it is the same products. A
    value that is no sum of products, as of an activation, is a tensor like those that enter, the same one in
    both graphs where it is equal.
    """
    ports = [{port.name: (port.dims, port.dtype) for port in graph.inputs} for graph in (a, b)]
    shared = ports[0].keys() & ports[1].keys()
    if any(ports[0][name] != ports[1][name] for name in shared) or len(a.outputs) != len(b.outputs):
        return False
    if max(len(a.steps), len(b.steps)) > _MOST_STEPS:
        return False
    axes = value_axes(a)
    used = {axis for known in axes for axis in known} & b.sizes.keys()
    if any(a.sizes[axis] != b.sizes[axis] for axis in used):
        return False
    known: dict[tuple[int, int], bool] = {}
    atoms: tuple[dict[int, Port], dict[int, Port]] = {}, {}

    def are_equal(one: int, other: int) -> bool:
        if (one, other) not in known:
            known[one, other] = compared(one, other)
        return known[one, other]

    def compared(one: int, other: int) -> bool:
        step, same = a.step_of(one), b.step_of(other)
        if step is None or same is None:
            return step is same and a.inputs[one].name == b.inputs[other].name
        found = agreement(a, one, b, other, sorted(axes[one]), atoms)
        if found is not None and axes[one] == value_axes(b)[other] and bool(found[1].all()):
            return True
        if step.reading(()) != same.reading(()) or len(step.inputs) != len(same.inputs):
            return False
        orders = [same.inputs, same.inputs[::-1]] if step.op in COMMUTATIVE else [same.inputs]
        return any(all(map(are_equal, step.inputs, order)) for order in orders)

    for value, _ in a.numbered:
        if products_of(a, value, atoms[0]) is None:
            dims = tuple((axis,) for axis in sorted(axes[value]))
            atoms[0][value] = Port(f"value {value}", "f32", dims)
    for value, _ in b.numbered:
        if products_of(b, value, atoms[1]) is None:
            same = (port for one, port in atoms[0].items() if are_equal(one, value))
            dims = tuple((axis,) for axis in sorted(value_axes(b)[value]))
            atoms[1][value] = next(same, Port(f"other value {value}", "f32", dims))
    pairs = zip(a.outputs, b.outputs, strict=True)
    return all(one.port.dims == other.port.dims and are_equal(one.value, other.value) for one, other in pairs)


def _matched(
    a: Graph,
    b: Graph,
    ours: Sequence[tuple[Product, tuple[str, ...], _Laid]],
    theirs: Sequence[tuple[Product, tuple[str, ...], _Laid]],
    outer_axes: tuple[str, ...],
    shape: Sequence[int],
) -> NDArray[np.bool_]:
    """Return where the products of both sides that are not 0 are the same ones, one by one."""
    outer = len(outer_axes)

    def is_there(laid: _Laid) -> Table:
        return np.broadcast_to(laid.inside.any(axis=tuple(range(outer, laid.inside.ndim))), shape).copy()

    left = [is_there(laid) for _, _, laid in theirs]
    equal = np.ones(shape, dtype=bool)
    for one, inner, laid in ours:
        wanted = is_there(laid)
        for number, (other, others, tables) in enumerate(theirs):
            kinds = _kind(a, one, {*outer_axes, *inner}), _kind(b, other, {*outer_axes, *others})
            if inner != others or one.number != other.number or kinds[0] != kinds[1]:
                continue
            same = _same(laid, tables, outer)
            met = wanted & left[number] & np.broadcast_to(same, shape)
            wanted &= ~met
            left[number] &= ~met
        equal &= ~wanted
    for rest in left:
        equal &= ~rest
    return equal


def _kind(graph: Graph, product: Product, laid: set[str]) -> object:
    """Return what two products must have in common besides their places along the axes of their tables.

    Those are the tensors, the axes at whose own positions they are read, and all that is summed.
    """
    sizes = graph.sizes
    reads = []
    for one in sorted(product.reads, key=lambda read: read.port.name):
        placed = {axis for place in one.chain for axis in place.axes} | laid
        axes = [("" if axis in placed else axis, sizes[axis]) for axis in one.port.axes]
        reads.append((one.port.name, axes))
    return reads, sorted((axis, sizes[axis]) for axis in product.summed)


def _same(a: _Laid, b: _Laid, outer: int) -> Table:
    same = (a.inside == b.inside) & ((a.weight == b.weight) | ~a.inside)
    for one, two in zip(a.places, b.places, strict=True):
        same = same & ((one == two) | ~a.inside)
    found: Table = same.all(axis=tuple(range(outer, same.ndim)))
    return found


def _table_axes(graph: Graph, product: Product) -> set[str]:
    """Return the axes along which a product reads other than at its own position."""
    found: set[str] = set()
    for one in product.reads:
        unread: set[str] = set()
        for place in reversed(one.chain):
            unread -= set(place.axes)
            unread |= {axis for axis, _ in place.terms}
        found |= unread
    axes = value_axes(graph)
    return found.union(*(axes[mask] for mask in product.masks))


def _laid(graph: Graph, product: Product, axes: tuple[str, ...]) -> _Laid | None:
    """Return what a product reads along some axes; each table has all of them, as they are or of length 1."""
    sizes = graph.sizes
    if prod(sizes[axis] for axis in axes) > _MOST:
        return None
    start = {
        axis: np.arange(sizes[axis], dtype=np.int64).reshape([-1 if one == axis else 1 for one in axes])
        for axis in axes
    }
    weight: Table = np.ones([1] * len(axes))
    for mask in product.masks:
        numbers = _numbers(graph, mask, start, len(axes))
        if numbers is None:
            return None
        weight = weight * numbers
    inside: Table = weight != 0
    places: list[Table] = []
    for one in sorted(product.reads, key=lambda read: read.port.name):
        known: dict[str, Table] = dict(start)
        for place in one.chain:
            at: Table = np.full([1] * len(axes), place.offset, dtype=np.int64)
            for axis, factor in place.terms:
                if axis not in known:
                    return None
                at = at + factor * known[axis]
            there = (at >= 0) & (at < prod(sizes[axis] for axis in place.axes))
            inside, at = inside & there, np.where(there, at, 0)
            for axis in reversed(place.axes):
                known[axis], at = at % sizes[axis], at // sizes[axis]
        through = {axis for place in one.chain for axis in place.axes}
        flat: Table = np.zeros([1] * len(axes), dtype=np.int64)
        for axis in one.port.axes:
            moved = known[axis] if axis in through or axis in start else 0
            flat = flat * sizes[axis] + moved
        places.append(flat)
    whole = np.broadcast_shapes(inside.shape, tuple(sizes[axis] for axis in axes))
    return _Laid(np.broadcast_to(inside, whole), tuple(places), weight)


class _Numbers:
    """The arithmetic of masks and indices: small whole numbers, which floats hold exactly."""

    def const(self, value: Fraction) -> Table:
        return np.asarray(float(value))

    def add(self, a: Table, b: Table) -> Table:
        return a + b

    def mul(self, a: Table, b: Table) -> Table:
        return a * b

    def neg(self, a: Table) -> Table:
        return -a

    def maximum(self, a: Table, b: Table) -> Table:
        return np.maximum(a, b)

    def less(self, a: Table, b: Table) -> Table:
        return (a < b).astype(float)

    def equal(self, a: Table, b: Table) -> Table:
        return np.where(a == b, 1.0, 0.0)

    def where(self, mask: Table, a: Table, b: Table) -> Table:
        return np.where(mask != 0, a, b)


def _numbers(graph: Graph, value: int, start: Mapping[str, Table], dims: int) -> Table | None:
    """Return what reads no tensor along some axes, or None where it is not made of whole numbers alone."""
    step = graph.step_at(value)
    if step.value is not None:
        whole = step.value.denominator == 1 and abs(step.value) < 1 << 24
        return np.full([1] * dims, float(step.value)) if whole else None
    if step.op == "index" and step.axes[0] in start:
        return start[step.axes[0]].astype(float)
    if step.op not in OPS:
        return None
    operands = [_numbers(graph, i, start, dims) for i in step.inputs]
    if any(one is None for one in operands):
        return None
    try:
        found: Table = np.asarray(OPS[step.op].scalar(_Numbers(), *operands))
    except AttributeError:  # a function that makes other than whole numbers
        return None
    return found
