"""Algebra: turns a tape into values of the algebra and opaque calls, one call after another."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from superopt.dtypes import dtype_text
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.capture.recorder import numbers_of
from superopt.trace.capture.tape import Call, Meta, Ref, Source, Tape, map_leaves, refs
from superopt.trace.integers import check_holds, compares_beyond, with_own_numbers
from superopt.trace.lowering import layout
from superopt.trace.lowering.table import (
    INTEGERS,
    LOWERINGS,
    PROOF_INTEGERS,
    PROOF_LOWERINGS,
    REASONS,
    VIEWS,
    flat,
    moves,
    widens,
)
from superopt.trace.rounding import Roundings
from superopt.trace.run import dtype_name

__all__ = ["Algebra", "OpaqueCall", "build"]


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A call that stays as PyTorch runs it: what it reads and the inputs its results become."""

    call: Call
    reason: str
    inputs: tuple[tuple[int, Sym], ...]  # position on the tape, tensor
    outputs: tuple[tuple[int, Sym], ...]
    level: int
    metas: dict[int, Meta]  # all tensors that the call reads and makes, by position on the tape


@dataclass(frozen=True, slots=True)
class Algebra:
    """A tape as algebra: its tensors by position, and the opaque calls in order."""

    tape: Tape
    builder: Builder
    tensors: dict[int, Sym]
    opaque: tuple[OpaqueCall, ...]
    raw: dict[int, tuple[tuple[tuple[int, ...], ...], torch.dtype]]  # input nodes: dimensions, dtype
    maker: dict[int, OpaqueCall]  # input nodes that an opaque call makes
    dtypes: dict[int, torch.dtype]  # the dtypes of values that some tensor carries

    def is_raw(self, sym: Sym) -> bool:
        """Return whether a tensor is exactly one that enters, not a view of it."""
        return enters(self.builder, self.raw, sym)


_Raw = dict[int, tuple[tuple[tuple[int, ...], ...], torch.dtype]]


def enters(builder: Builder, raw: _Raw, sym: Sym) -> bool:
    """Return whether a tensor is exactly an input node, with its dimensions and dtype."""
    if sym.value not in raw or sym.mask is not None:
        return False
    dims, dtype = raw[sym.value]
    return tuple(builder.axes.leaves(dim) for dim in dims) == builder.dims(sym) and dtype == sym.dtype


def build(tape: Tape, *, for_proof: bool = False) -> Algebra:
    """Return the algebra of a tape: more operators `for_proof`."""
    rounding = frozenset[int]()
    while True:
        translation = _Translation(tape, for_proof, rounding)
        made = translation.run()
        if translation.roundings.met <= rounding:
            return made
        rounding |= translation.roundings.met


class _Translation:
    def __init__(self, tape: Tape, for_proof: bool, rounding: frozenset[int]) -> None:
        self.tape = tape
        self.rounding = rounding  # calls of casts that stay calls, since the program computes what they round
        self.for_proof = for_proof
        self.lowerings = LOWERINGS | PROOF_LOWERINGS if for_proof else LOWERINGS
        self.integers = INTEGERS | PROOF_INTEGERS if for_proof else INTEGERS
        self.builder = Builder(for_proof=for_proof)
        self.roundings = Roundings(self.builder)
        self.rounded = set[int]()  # values that compare whole numbers which a float32 does not hold
        self.tensors: dict[int, Sym] = {}
        self.opaque: list[OpaqueCall] = []
        self.raw: dict[int, tuple[tuple[tuple[int, ...], ...], torch.dtype]] = {}
        self.maker: dict[int, OpaqueCall] = {}
        self.dtypes: dict[int, torch.dtype] = {}
        self.used = set(refs(tape.result))  # tensors that the result is made of
        self.calls: list[Call] = []
        for call in reversed(tape.calls):
            if self.used & {*call.outputs}:
                self.used.update(refs((call.args, call.kwargs)))
                self.calls.insert(0, call)

    def run(self) -> Algebra:
        for source in (*self.tape.inputs, *self.tape.constants):
            self.tensors[source.index] = self._input(source.index, level=0)
        for index, value in self.tape.scalars.items():
            try:
                self.tensors[index] = self.builder.scalar(value, self.tape.metas[index].dtype)
            except UnsupportedError:
                self.tensors[index] = self._input(index, level=0)
        for source in self.tape.tables:
            self.tensors[source.index] = self._table(source)
        for number, call in enumerate(self.calls):
            if number in self.rounding:
                self._leave(call, "the program computes what this cast rounds away")
            else:
                self._call(number, call)
        return Algebra(
            self.tape,
            self.builder,
            self.tensors,
            tuple(self.opaque),
            self.raw,
            self.maker,
            self.dtypes,
        )

    def _input(self, index: int, level: int) -> Sym:
        meta = self.tape.metas[index]
        dims = tuple(self.builder.axes.dim(size) for size in meta.shape)
        value = self.builder.input(dims, level, boolean=meta.dtype == torch.bool)
        self.builder.stored[value] = meta.dtype
        self.raw[value] = dims, meta.dtype
        self.dtypes[value] = meta.dtype
        return Sym(value, dims, meta.dtype)

    def _table(self, source: Source) -> Sym:
        """Return a tensor of known numbers as a function of its indices."""
        meta = self.tape.metas[source.index]
        dims = tuple(self.builder.axes.dim(size) for size in meta.shape)
        self.builder.axes.meet(axis for dim in dims for axis in dim)
        value = self.builder.table(flat(dims), numbers_of(source.tensor))
        if meta.dtype == torch.bool:
            value = self.builder.apply("ne", value, self.builder.const(0))
        return Sym(value, dims, meta.dtype)

    def _call(self, number: int, call: Call) -> None:
        first = len(self.builder.nodes)
        if not call.mutated and all(0 in self.tape.metas[i].shape for i in call.outputs if i is not None):
            made = tuple(None if i is None else self._nothing(i) for i in call.outputs)
        else:
            try:
                made = self._lower(call)
                self._check_shapes(call, made)
            except UnsupportedError as unsupported:
                self._leave(call, str(unsupported))
                return
        found: dict[int, Sym] = {}
        for index, sym in zip(call.outputs, made, strict=True):
            if index is None or sym is None:
                continue
            meta = self.tape.metas[index]
            self.builder.axes.meet(axis for dim in sym.dims for axis in dim)
            self.tensors[index] = found[index] = replace(sym, dtype=meta.dtype)
            self.dtypes.setdefault(sym.value, meta.dtype)
        reads = list(refs((call.args, call.kwargs)))
        views = self._name(call) in VIEWS
        self.roundings.follow(number, reads, found, self.tensors, first, views=views)
        self.roundings.jump(call, self.used, {})
        inner = self._inner_dtype(call)
        for value in range(first, len(self.builder.nodes)):
            self.dtypes.setdefault(value, inner)

    def _check_shapes(self, call: Call, made: tuple[Sym | None, ...]) -> None:
        for index, sym in zip(call.outputs, made, strict=True):
            if index is not None and sym is not None:
                shape, known = self.builder.shape(sym), self.tape.metas[index].shape
                if shape != known:
                    raise UnsupportedError(f"a shape of {list(known)}, where its rule says {list(shape)}")

    def _inner_dtype(self, call: Call) -> torch.dtype:
        """Return the dtype of the values inside a call: that of a float result, else of a float operand."""
        tensors = [*(i for i in call.outputs if i is not None), *refs((call.args, call.kwargs))]
        dtypes = [self.tape.metas[index].dtype for index in tensors]
        return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)

    def _nothing(self, index: int) -> Sym:
        """Return a tensor without elements, for which any value is right."""
        meta = self.tape.metas[index]
        dims = tuple(self.builder.axes.dim(size) for size in meta.shape)
        return Sym(self.builder.const(0), dims, meta.dtype)

    def _name(self, call: Call) -> str:
        """Return the name of an operator by which its rule is known."""
        parts = call.target.split(".")
        name = parts[0] if len(parts) == 1 else parts[1]
        return name.removesuffix("_") if call.mutated and name not in self.lowerings else name

    def _lower(self, call: Call) -> tuple[Sym | None, ...]:
        parts = call.target.split(".")
        if len(parts) > 1 and parts[0] != "aten":
            raise UnsupportedError("a custom operator")
        name = self._name(call)
        if call.mutated and len(call.outputs) > len(call.mutated):
            raise UnsupportedError("writes into its arguments, and makes more besides")
        if name not in self.lowerings:
            raise UnsupportedError(REASONS.get(name, "the algebra has no such operator"))
        lowering = self.lowerings[name]
        args, kwargs = map_leaves(self._sym, (call.args, call.kwargs))
        if self.for_proof:
            self._guard_narrow(name, lowering, call)
        elif name not in self.integers:
            for index in refs((call.args, call.kwargs)):
                self._guard(name, self.tensors[index], call)
        for meta in (self.tape.metas[made] for made in call.outputs if made is not None):
            if dtype_name(meta.dtype) is None:
                raise UnsupportedError(f"no algebra for {meta.dtype}")
        if call.mutated and "out" in kwargs:
            kwargs = self._without_out(lowering, call, kwargs)
        try:
            inspect.signature(lowering).bind(self.builder, *args, **kwargs)
        except TypeError as error:
            raise UnsupportedError(f"no rule for this form of the operator: {error}") from error
        first = len(self.builder.nodes)
        found = lowering(self.builder, *args, **kwargs)
        made: tuple[Sym | None, ...] = (found,) if isinstance(found, Sym) else tuple(found)
        made += (None,) * (len(call.outputs) - len(made))
        if not self.for_proof:
            self._check_positions(made, first)
        results = list[Sym | None]()
        for position, sym in zip(call.outputs, made, strict=False):
            if sym is not None and position is not None:
                sym = with_own_numbers(self.builder, replace(sym, dtype=self.tape.metas[position].dtype))
                if not self.for_proof:
                    check_holds(self.builder, sym)
            if sym is None and position in self.used:
                raise UnsupportedError("the position of an extremum is no algebra")
            results.append(sym)
        return tuple(results)

    def _check_positions(self, made: Sequence[Sym | None], first: int) -> None:
        """Refuse tensors for which kernels would compare what they round; new values are from `first` on."""
        nodes = self.builder.nodes
        self.rounded.update(at for at in range(first, len(nodes)) if compares_beyond(self.builder, at))
        left = [sym.value for sym in made if sym is not None] if self.rounded else []
        seen = set[int]()
        while left:
            value = left.pop()
            if value in self.rounded:
                raise UnsupportedError("compares positions beyond 2^24, which a float32 does not hold")
            if value not in seen:
                seen.add(value)
                left += nodes[value].inputs

    def _without_out(
        self, lowering: Callable[..., Any], call: Call, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a call without the tensor that it writes into.

        PyTorch computes in the dtype of what is read, or in that of the tensor where nothing is.
        """
        left = {name: value for name, value in kwargs.items() if name != "out"}
        written = {self.tape.metas[index].dtype for index in refs(call.kwargs["out"])}
        reads = refs((call.args, {name: one for name, one in call.kwargs.items() if name != "out"}))
        read = {self.tape.metas[index].dtype for index in reads}
        if len(written | read) > 1:
            raise UnsupportedError("writes its result into a tensor of another dtype")
        takes = inspect.signature(lowering).parameters.values()
        if not read and any(one.name == "dtype" or one.kind is one.VAR_KEYWORD for one in takes):
            [left["dtype"]] = written
        return left

    def _sym(self, leaf: Any) -> Any:
        return self.tensors[leaf.index] if isinstance(leaf, Ref) else leaf

    def _guard(self, name: str, sym: Sym, call: Call) -> None:
        if (
            sym.dtype.is_floating_point
            or sym.dtype == torch.bool
            or widens(name, sym.dtype, self._made(call))
            or moves(name, sym.dtype)
        ):
            return
        if sym.value in self.raw:
            raise UnsupportedError(f"works on {dtype_text(sym.dtype)} data")

    def _made(self, call: Call) -> list[torch.dtype]:
        return [self.tape.metas[index].dtype for index in call.outputs if index is not None]

    def _guard_narrow(self, name: str, lowering: Callable[..., Any], call: Call) -> None:
        """Refuse arithmetic with integers that wrap around at a few bits; i64 holds all whole numbers."""
        if name in self.integers or lowering.__module__ == layout.__name__:
            return  # integers that are only moved, or only used as indices
        made = self._made(call)
        read = [self.tensors[index].dtype for index in refs((call.args, call.kwargs))]
        read = [one for one in read if not widens(name, one, made)]
        for dtype in made if name == "_to_copy" else (*read, *made):
            if not (dtype.is_floating_point or dtype in (torch.bool, torch.int64)):
                raise UnsupportedError(f"works on {dtype_text(dtype)} data")

    def _leave(self, call: Call, reason: str) -> None:
        """Record an opaque call; its results are new inputs of later regions."""
        builder = self.builder
        # In kernels, what leaves a region is stored in its dtype.
        read = () if self.for_proof else refs((call.args, call.kwargs))
        self.roundings.jump(call, self.used, {index: self.tape.metas[index].dtype for index in read})
        inputs = []
        level = 0
        for index in dict.fromkeys(refs((call.args, call.kwargs))):
            sym = builder.settle(self.tensors[index])
            inputs.append((index, sym))
            own = builder.nodes[sym.value].level
            level = max(level, own if enters(builder, self.raw, sym) else max(own, 0) + 1)
        outputs = []
        for position in call.outputs:
            if position is not None:
                made = self._input(position, level)
                self.tensors[position] = made
                outputs.append((position, made))
        metas = {position: self.tape.metas[position] for position, _ in (*inputs, *outputs)}
        opaque = OpaqueCall(call, reason, tuple(inputs), tuple(outputs), level, metas)
        self.opaque.append(opaque)
        for _, sym in outputs:
            self.maker[sym.value] = opaque
