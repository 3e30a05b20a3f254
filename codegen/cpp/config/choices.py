"""Choices: configurations worth a try, which differ from the default one in one choice or two."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from superopt.codegen.cpp.config.config import CppConfig
from superopt.codegen.cpp.config.default import default_config
from superopt.codegen.cpp.config.kernel import part_axes
from superopt.codegen.cpp.config.scratch import MOST_SCRATCH, Scratch
from superopt.codegen.cpp.windows.filtering import is_filterable
from superopt.codegen.statements import KernelProgram

__all__ = ["configs"]

_MOST_CONFIGS = 24  # configurations that are tried


def configs(
    program: KernelProgram, sizes: Mapping[str, int], *, cores: int = 2, vectors: str = "avx512"
) -> Iterator[CppConfig]:
    """Yield configurations worth a try, the default one first, at most `_MOST_CONFIGS` of them.

    Each differs from the default in one choice, the later ones in two.
    """
    scratch = Scratch(program, sizes)
    first = default_config(program, sizes, cores=cores, vectors=vectors, scratch=scratch)
    found: dict[CppConfig, None] = {first: None}
    single = list(_other_choices(program, first, sizes, scratch))
    if is_filterable(program, dict(first.tiles), first.whole):
        both = ((one, replace(one, filtered=True)) for one in single)
        single = [replace(first, filtered=True), *chain.from_iterable(both)]
    found |= dict.fromkeys(single)
    for one in single:
        if len(found) >= _MOST_CONFIGS:
            break
        others = _other_choices(program, one, sizes, scratch)
        found |= dict.fromkeys(two for two in others if _distance(first, two) == 2)
    yield from list(found)[:_MOST_CONFIGS]


def _other_choices(
    program: KernelProgram, first: CppConfig, sizes: Mapping[str, int], scratch: Scratch
) -> Iterator[CppConfig]:
    """Yield configurations that make one choice otherwise."""
    parts = part_axes(program)
    tiles = dict(first.tiles)
    for factor in (2, 0.5, 4, 0.25):
        for axis, tile in first.tiles:
            length = max(1, min(int(tile * factor), max(1, sizes[axis])))
            if length != tile and axis not in parts and axis not in first.whole:
                other = replace(first, tiles=tuple({**tiles, axis: length}.items()))
                if scratch.floats(other) <= MOST_SCRATCH:
                    yield other
    if program.grid:
        yield replace(first, schedule="dynamic" if first.schedule == "static" else "static")
        yield replace(first, threads=0 if first.threads else 1)
    if len(program.grid) > 1:
        yield replace(first, order=() if first.order else tuple(reversed(program.grid)))
    looped = program.looped
    for whole in dict.fromkeys([(), looped, *((axis,) for axis in looped)]):
        other = replace(first, whole=whole)
        if other != first and scratch.floats(other) <= MOST_SCRATCH:
            yield other


def _distance(a: CppConfig, b: CppConfig) -> int:
    """Return how many choices differ."""
    rest = (a.schedule != b.schedule) + (a.whole != b.whole) + (a.order != b.order) + (a.threads != b.threads)
    rest += a.filtered != b.filtered
    return rest + sum(one != two for one, two in zip(a.tiles, b.tiles, strict=True))
