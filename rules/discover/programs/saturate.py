"""Saturation: an e-graph of all programs that rules make of one, as plain data.

Rules of two outputs, as two products that become one, apply to every pair of tensors; each of them may make
many more pairs. So they are applied in the first rounds alone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from superopt.rules.discover.apply import Program
from superopt.rules.discover.language.constants import CONSTANTS
from superopt.rules.discover.language.expressions import Apply, Expression, Input
from superopt.rules.discover.language.operators import OPERATORS, operators_named
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word, computed
from superopt.rules.discover.proof.axioms import called
from superopt.rules.discover.proof.rewrites import (
    ground,
    input_facts,
    joint_rewrite,
    language_text,
    rewrites,
)

__all__ = ["Choices", "Node", "Saturation", "choices_of"]


@dataclass(frozen=True, slots=True)
class Saturation:
    """How far an e-graph may grow."""

    rounds: int = 6
    joint_rounds: int = 2  # of these, with rules of two outputs
    nodes: int = 20_000


_DEFAULT = Saturation()


@dataclass(frozen=True, slots=True)
class Node:
    """One way to make the tensors of a class: an operator with the classes of its operands, or an input."""

    made: int
    name: str  # of the operator or of the input
    operands: tuple[int, ...]
    part: int = 0
    words: tuple[Word, ...] = ()  # the two parts of a split, or the dimensions of a constant

    @property
    def is_input(self) -> bool:
        """Whether this is an input or a constant."""
        return self.name not in OPERATORS


@dataclass(frozen=True, slots=True)
class Choices:
    """Classes of equal tensors, all ways to make each, and the classes of the outputs."""

    nodes: tuple[Node, ...]
    shapes: dict[int, Shape]
    outputs: tuple[int, ...]
    complete: bool  # whether no limit ended the saturation

    def expression(self, chosen: dict[int, Node], made: int) -> Expression:
        """Return a class as an expression, by the node that is chosen for each class."""

        @cache
        def built(one: int) -> Expression:
            node = chosen[one]
            if node.is_input:
                return Input(node.name)
            at = node.words[0] if node.words else ()
            return Apply(node.name, tuple(map(built, node.operands)), node.part, at)

        return built(made)


def choices_of(program: Program, rules: Sequence[Rule], limits: Saturation = _DEFAULT) -> Choices:
    """Return all that rules make of a program, until nothing changes or a limit is reached."""
    from egglog.bindings import EGraph

    logger = logging.getLogger("egglog")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    egraph = EGraph()
    single = list(dict.fromkeys(text for rule in rules for text in rewrites(rule)))
    joint = [text for rule in rules if len(rule.left) == 2 and (text := joint_rewrite(rule)) is not None]
    names = set().union(*(rule.names for rule in rules)) | program.names
    lines = [language_text(names), "(ruleset pairs)", *single]
    lines += [text.replace(":ruleset laws", ":ruleset pairs") for text in dict.fromkeys(joint)]
    lines += input_facts(program.inputs)
    shapes = dict(program.inputs)
    lines += [f"(let $o{at} {ground(one, shapes)})" for at, one in enumerate(program.outputs)]
    _run(egraph, "\n".join(lines))
    complete = False
    for at in range(limits.rounds):
        _run(egraph, "(run-schedule (saturate (run shapes)))")
        changed = _run(egraph, "(run laws 1)")
        if at < limits.joint_rounds and joint:
            changed |= _run(egraph, "(run pairs 1)")
        if not changed:
            complete = True
            break
        if sum(len(one.rows) for one in egraph.freeze().functions.values()) > limits.nodes:
            break
    _run(egraph, "(run-schedule (saturate (run shapes)))")
    return _exported(egraph, program, names, complete=complete)


def _run(egraph: Any, text: str) -> bool:
    outputs = egraph.run_program(*egraph.parse_program(text))
    report = getattr(outputs[-1], "report", None) if outputs else None
    return bool(getattr(report, "updated", False))


def _exported(egraph: Any, program: Program, names: Collection[str], *, complete: bool) -> Choices:
    """Return an e-graph as data, its classes numbered in the order in which they are met."""
    functions = egraph.freeze().functions
    numbers: dict[Any, int] = {}

    def number(value: Any) -> int:
        return numbers.setdefault(value, len(numbers))

    def word(value: Any) -> Word:
        return tuple(map(_size, egraph.value_to_string(value).split()))

    nodes = []
    for row in functions["Leaf"].rows:
        nodes.append(Node(number(row.output), egraph.value_to_string(row.inputs[0]), ()))
    for row in functions["Const"].rows:
        name, *sizes = row.inputs
        constant = CONSTANTS[egraph.value_to_string(name)]
        words = tuple(map(word, sizes[: constant.rank]))
        nodes.append(Node(number(row.output), constant.name, (), words=words))
    for operator in operators_named(names):
        for row in functions[called(operator.name)].rows:
            part, words, operands = 0, tuple[Word, ...](), row.inputs
            if operator.results > 1:
                part = egraph.value_to_i64(operands[0])
                words, operands = tuple(map(word, operands[1:3])), operands[3:]
            nodes.append(Node(number(row.output), operator.name, tuple(map(number, operands)), part, words))
    dimensions: dict[int, dict[int, Word]] = {}
    for row in functions["dim"].rows:
        tensor, at = row.inputs
        dimensions.setdefault(number(tensor), {})[egraph.value_to_i64(at)] = word(row.output)
    shapes = {made: tuple(some[at] for at in sorted(some)) for made, some in dimensions.items()}
    outputs = tuple(number(functions[f"$o{at}"].rows[0].output) for at in range(len(program.outputs)))
    distinct = sorted(
        set(nodes), key=lambda node: (node.made, node.name, node.operands, node.part, node.words)
    )
    return Choices(tuple(distinct), shapes, outputs, complete)


def _size(symbol: str) -> str:
    """Return a size as a number where all that it is computed from are numbers."""
    function, bracket, inside = symbol.partition("(")
    if not bracket:
        return symbol
    parts = inside[:-1].split(",")
    return computed(function, *map(_size, parts)) if all(part.isdigit() for part in parts) else symbol
