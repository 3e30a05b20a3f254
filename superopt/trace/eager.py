"""Eager: what PyTorch itself does for a traced function, counted and told apart."""

import hashlib
import re
from math import prod

from superopt.ir import Eager
from superopt.trace.capture.tape import Meta, Tape, is_view, refs

__all__ = ["digest_of", "eager_of"]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digest_of(tape: Tape) -> str:
    """Return what tells the calls of a tape from those of others that compute the same."""
    calls = [(one.target, one.args, one.kwargs, one.outputs) for one in tape.calls]
    text = _ADDRESS.sub("", repr((calls, tape.metas)))
    return hashlib.sha256(text.encode()).hexdigest()


def eager_of(tape: Tape) -> Eager | None:
    """Return what the operators of a tape do; None where the tape holds others than the function calls."""
    if tape.rewritten:
        return None
    root = {source.index: source.name for source in (*tape.inputs, *tape.constants)}
    moved, reads, seen = 0, dict.fromkeys(root.values(), 0), set()
    for at, call in enumerate(tape.calls):
        operands = set(refs((call.args, call.kwargs)))
        made = [index for index in call.outputs if index is not None]
        if (
            is_view(call.function) or "_unsafe_view" in call.target
        ):  # a view, though its schema does not say so
            names = {root[index] for index in operands if index in root}
            root |= dict.fromkeys(made, names.pop()) if len(names) == 1 else {}
            continue
        whole = at if call.part_of is None else call.part_of
        if not operands or whole in seen:
            continue
        seen.add(whole)
        moved += sum(_bytes(tape.metas[index]) for index in (*operands, *made))
        for name in {root[index] for index in operands if index in root}:
            reads[name] += 1
    return Eager(len(seen), moved, {name: count for name, count in reads.items() if count})


def _bytes(meta: Meta) -> int:
    """Return the bytes of memory that a tensor covers: what is spread over a dimension lies there once."""
    spread = zip(meta.shape, meta.strides, strict=True)
    return prod(size for size, stride in spread if stride or not size) * meta.dtype.itemsize
