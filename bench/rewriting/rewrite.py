"""The cheapest program that rules make of one, on costs measured here, and how long both take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from superopt.bench.rewriting.measured import MeasuredCosts, compiled
from superopt.errors import InputError
from superopt.rules.discover.apply import Program
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.programs.extract import Extraction, cheapest, cheapest_trees
from superopt.rules.discover.programs.saturate import Choices, Saturation, choices_of

__all__ = ["Rewriting", "checked_sizes", "raced", "rewriting_of"]

_LIMITS = Saturation(rounds=5, joint_rounds=2, nodes=30_000)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A program, the cheapest one by trees and the cheapest of all, with their costs in microseconds."""

    programs: Mapping[str, Program]  # "given", "trees" and "exact"
    cost_us: Mapping[str, float]
    nodes: int
    complete: bool  # whether no limit ended the saturation
    optimal: bool  # whether nothing in the e-graph is cheaper
    saturated_s: float
    extracted_s: float


def checked_sizes(program: Program, weights: Sequence[str]) -> None:
    """Raise InputError where a size is no number, or a weight is no input: then nothing can be measured."""
    names = [name for name, _ in program.inputs]
    for weight in weights:
        if weight not in names:
            raise InputError(f"the program has no input {weight!r}; there are {', '.join(names)}")
    for name, shape in program.inputs:
        for word in shape:
            if not all(size.isdigit() for size in word):
                raise InputError(
                    f"costs are measured on real sizes: give {name} numbers in place of {'+'.join(word)}"
                )


def rewriting_of(
    program: Program, weights: Sequence[str], rules: Sequence[Rule], *, seconds: float
) -> Rewriting:
    """Return what rules make of a program; what is made of weights alone costs nothing when it runs."""
    checked_sizes(program, weights)
    began = time.perf_counter()
    choices = choices_of(program, rules, _LIMITS)
    saturated_s = time.perf_counter() - began
    cost = MeasuredCosts(choices, weights)
    alone = choices_of(program, [])
    own = MeasuredCosts(alone, weights)
    own.share(cost)
    given, trees = cheapest(alone, own), cheapest_trees(choices, cost)
    began = time.perf_counter()
    best = cheapest(choices, cost, seconds=seconds)
    return Rewriting(
        programs={
            "given": program,
            "trees": _program_of(program, choices, trees),
            "exact": _program_of(program, choices, best),
        },
        cost_us={"given": given.cost, "trees": trees.cost, "exact": best.cost},
        nodes=len(choices.nodes),
        complete=choices.complete,
        optimal=best.exact,
        saturated_s=saturated_s,
        extracted_s=time.perf_counter() - began,
    )


def _program_of(given: Program, choices: Choices, chosen: Extraction) -> Program:
    """Return an extracted program; a constant that a rule has brought in is one more input."""
    nodes = dict(chosen.chosen)
    outputs = tuple(choices.expression(nodes, made) for made in choices.outputs)
    known = dict(given.inputs)
    fresh = {node.name: node.words for node in nodes.values() if node.is_input and node.name not in known}
    return Program((*given.inputs, *fresh.items()), outputs)


def _tensors(program: Program) -> dict[str, Any]:
    """Return random inputs of a program, and what its constants hold."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, shape in program.inputs:
        sizes = tuple(sum(map(int, word)) for word in shape)
        constant = constant_named(name)
        if constant is None:
            made[name] = torch.randn(sizes, generator=generator) * 0.05
        else:
            made[name] = torch.tensor(constant.holds(sizes) * float(constant.share), dtype=torch.float32)
    return made


def raced(rewriting: Rewriting, weights: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the median time of each program in microseconds; they run in turns, and must agree."""
    import torch

    given = _tensors(rewriting.programs["given"])
    functions: dict[str, Callable[[], Any]] = {}
    outputs = {}
    with torch.no_grad():
        for kind, program in rewriting.programs.items():
            held = {name: given[name] for name in weights}
            held |= {name: tensor for name, tensor in _tensors(program).items() if constant_named(name)}
            free = {name: tensor for name, tensor in given.items() if name not in held}
            functions[kind] = partial(compiled(program, held), **free)
            outputs[kind] = functions[kind]()
        for kind in ("trees", "exact"):
            for one, other in zip(outputs["given"], outputs[kind], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        times: dict[str, list[float]] = {kind: [] for kind in functions}
        for _ in range(rounds):
            for kind, function in functions.items():
                started = time.perf_counter()
                function()
                times[kind].append(time.perf_counter() - started)
    return {kind: sorted(some)[len(some) // 2] * 1e6 for kind, some in times.items()}
