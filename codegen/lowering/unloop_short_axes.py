"""Unloop short axes: no loop along an axis that is short enough to be whole inside a tile.

    loop k { t1 max= max[k](x) }                       t1 = max[k](x)
    loop k { t2 = exp(x - t1); t3 += sum[k](t2) }  ->  t2 = exp(x - t1); t3 = sum[k](t2)
    loop k { t2 again; t4 = t2 / t3 }                  t4 = t2 / t3

Values that a second pass would compute again are then still at hand, and a running shift is known at once.
"""

from collections.abc import Container
from dataclasses import replace

from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    LoopStatement,
    Move,
    Start,
    Statement,
    Store,
)

__all__ = ["unloop_short_axes"]


def unloop_short_axes(program: KernelProgram, axes: Container[str]) -> KernelProgram:
    """Return the program without its loops over these axes."""
    flat = replace(program, statements=_without_loops(program.statements, axes))
    return replace(flat, statements=_once(flat.statements, flat, set()))


def _without_loops(statements: tuple[Statement, ...], axes: Container[str]) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for one in statements:
        if isinstance(one, LoopStatement):
            body = _without_loops(one.body, axes)
            if one.axis not in axes:
                found.append(LoopStatement(one.axis, body))
            else:  # without the loop, a shift's maxima are complete before the shift
                found += [Compute(s.value, s.step) if isinstance(s, Move) else s for s in body]
        elif isinstance(one, Compute):
            kept = tuple(axis for axis in one.accumulates if axis not in axes)
            inside = (*one.inside, *(axis for axis in one.accumulates if axis in axes))
            found.append(replace(one, accumulates=kept, inside=inside))
        else:
            found.append(one)
    return tuple(found)


def _once(statements: tuple[Statement, ...], flat: KernelProgram, known: set[int]) -> tuple[Statement, ...]:
    """Return the statements of a body; each value is computed once, where all its operands are known."""
    made = {one.value for one, _ in flat.flat() if isinstance(one, (Compute, Move))}
    started = {one.value for one, _ in flat.flat() if isinstance(one, Compute) and one.accumulates}
    found: list[Statement] = []
    here: set[int] = set()
    for one in statements:
        if isinstance(one, LoopStatement):
            found.append(LoopStatement(one.axis, _once(one.body, flat, set(known))))
            continue
        if isinstance(one, (Move, Store)) or (isinstance(one, Compute) and one.accumulates):
            found.append(one)
            continue
        if isinstance(one, Start):
            ready = one.value in started
        elif isinstance(one, Compute):
            ready = one.value not in here and all(i in known or i not in made for i in one.step.inputs)
        else:
            ready = one.value not in here
        if ready:
            found.append(one)
            here.add(one.value)
            known.add(one.value)
    return tuple(found)
