"""Whether discovered rules cover those that TASO publishes: each is found, follows, or is wrong.

    python -m bench.discover taso-3 --rules rules.json
    python -m bench.discover.taso graph_subst.pb rules.json

`graph_subst.pb` lies in TASO's repository; `rules.json` are the rules over the same operators and inputs.
An input there has a number that says its shape, so each rule is read with the most general shapes.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt.bench.discover.cases import taso_setting
from superopt.bench.harness.command import Parser
from superopt.rules.discover.language.expressions import Apply, Expression, Input, unit_shape
from superopt.rules.discover.language.match import special_case_of
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.language.shapes import Shape, Symbols
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort
from superopt.rules.discover.proof.prove import prove
from superopt.rules.discover.store import read_rules

# How far derivations go, and how many rules are derived at once.
_EFFORTS = ((Effort(rounds=5, nodes=1_000), 16), (Effort(rounds=6, nodes=8_000), 1))
_CONV, _RELU, _CONCAT, _SPLIT, _ADD, _MUL, _MATMUL = 3, 8, 12, 13, 16, 17, 18
_NAMES = {_RELU: "relu", _ADD: "add", _MUL: "mul", _MATMUL: "matmul"}
_AXIS, _DIMENSIONS, _ACTIVATION, _WITH_RELU = 11, 10, 9, 2
_SQUARE = (-4, -5, -6)  # the inputs that are square matrices

Tensor = tuple[int, int]  # an operator, or an input below zero, and which of its results


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a graph: its type, its operands and its parameters."""

    kind: int
    operands: tuple[Tensor, ...]
    parameters: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Substitution:
    """Two graphs, and which of their results are equal."""

    sides: tuple[tuple[Step, ...], tuple[Step, ...]]
    outputs: tuple[tuple[Tensor, Tensor], ...]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value - (1 << 64) if value >> 63 else value, at


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the fields of a message: the number, and an integer or bytes."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        value, at = _number(data, at)
        if key & 7 == 0:
            yield key >> 3, value, b""
        else:
            yield key >> 3, 0, data[at : at + value]
            at += value


def _numbers(data: bytes) -> dict[int, int]:
    return {field: value for field, value, _ in _fields(data)}


def substitutions(data: bytes) -> Iterator[Substitution]:
    """Yield the rules of a file."""
    for _, _, rule in _fields(data):
        sides: tuple[list[Step], list[Step]] = [], []
        outputs = []
        for field, _, body in _fields(rule):
            if field == 3:
                ends = _numbers(body)
                outputs.append(((ends[1], ends[3]), (ends[2], ends[4])))
                continue
            parts = list(_fields(body))
            operands = tuple((_numbers(one)[1], _numbers(one)[2]) for at, _, one in parts if at == 2)
            pairs = (_numbers(one) for at, _, one in parts if at == 3)
            kind = next(value for at, value, _ in parts if at == 1)
            sides[field - 1].append(Step(kind, operands, {pair[1]: pair[2] for pair in pairs}))
        yield Substitution((tuple(sides[0]), tuple(sides[1])), tuple(outputs))


class _NoCounterpartError(Exception):
    """A graph has an operator or a shape that the language of rules lacks."""


class _Reader:
    """Graphs of TASO as expressions over the inputs of the same setting."""

    def __init__(self) -> None:
        units = taso_setting().inputs
        self.shapes: dict[str, Shape] = dict(units)
        self._known: Mapping[int, str] = {}
        named = [name for name in self.shapes if name not in ("eye", "full", "dirac", "boxes")]
        self._inputs = {-at: name for at, name in enumerate(named, 1)}
        # Some rules use the numbers of matrices for weights.
        self._weights = {number: f"{name}4" for number, name in self._inputs.items() if name in "efg"}
        self.shapes |= dict.fromkeys(self._weights.values(), self.shapes["u"])

    def rule(self, given: Substitution) -> Rule | None:
        """Return a substitution as a rule, None where the language of rules has no such graph."""
        try:
            self._known = self._inputs | (self._weights if _joins_weights(given) else {})
            left = [self._expression(given.sides[0], one) for one, _ in given.outputs]
            right = [self._expression(given.sides[1], other) for _, other in given.outputs]
        except _NoCounterpartError:
            return None
        return rule_of("", left, right, self.shapes)

    def _expression(self, steps: Sequence[Step], tensor: Tensor) -> Expression:
        at, part = tensor
        if at < 0:
            return Input(self._known[at])
        step = steps[at]
        args = tuple(self._expression(steps, operand) for operand in step.operands)
        return Apply(self._name(step, args), args, part)

    def _name(self, step: Step, args: Sequence[Expression]) -> str:
        if step.kind in _NAMES:
            return _NAMES[step.kind]
        if step.kind in (_CONCAT, _SPLIT):
            way = "rows" if step.parameters[_AXIS] == 0 else "cols"
            return f"{'concat' if step.kind == _CONCAT else 'split'}_{way}"
        if step.kind != _CONV:
            raise _NoCounterpartError
        image, weight = (unit_shape(arg, self.shapes, Symbols(), {}) for arg in args)
        if image is None or weight is None:  # as where a split has parts of different sizes
            raise _NoCounterpartError
        if weight[1] == image[1]:
            name = "conv_same"
        elif 2 * weight[1] == image[1]:
            name = "conv_groups"
        else:
            name = "conv_depth"
        relu = step.parameters.get(_ACTIVATION) == _WITH_RELU
        return name if not relu else f"{name}_relu"


def _joins_weights(given: Substitution) -> bool:
    """Return whether a concatenation of four dimensions takes what is a matrix elsewhere."""
    return any(
        step.kind == _CONCAT and step.parameters.get(_DIMENSIONS) == 4 and at in _SQUARE
        for side in given.sides
        for step in side
        for at, _ in step.operands
    )


def answers_for(
    published: Sequence[Rule | None], rules: Sequence[Rule], deriver: Deriver, seed: int
) -> list[str]:
    """Return what discovered rules say of each that is published."""
    answers = dict[int, str]()
    for at, rule in enumerate(published):
        if rule is None:
            answers[at] = "without a counterpart"
        elif counterexample(rule, seed) is not None:
            answers[at] = "wrong"
        elif special_case_of(rule, rules) is not None:
            answers[at] = "found"
    for effort, together in _EFFORTS:
        left = [(at, rule) for at, rule in enumerate(published) if rule is not None and at not in answers]
        for start in range(0, len(left), together):
            some = left[start : start + together]
            follows = deriver.derives_each([rule for _, rule in some], effort)
            answers |= {at: "follows" for (at, _), one in zip(some, follows, strict=True) if one}
    for at, rule in enumerate(published):
        if rule is not None and at not in answers:
            answers[at] = "proven, not derived" if prove(rule, seed).status == "proven" else "open"
    return [answers[at] for at in range(len(published))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; return the exit code, 1 where a right rule neither is found nor follows."""
    parser = Parser("taso", __doc__)
    parser.add_argument("published", type=Path, metavar="PB", help="TASO's graph_subst.pb")
    parser.add_argument("rules", type=Path, metavar="FILE", help="discovered rules")
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    rules = [rule for rule, proof in read_rules(options.rules).rules if proof.status == "proven"]
    reader, deriver = _Reader(), Deriver(rules)
    given = list(substitutions(options.published.read_bytes()))
    published = [reader.rule(one) for one in given]
    answers = answers_for(published, rules, deriver, seed=1)
    for at, (answer, rule) in enumerate(zip(answers, published, strict=True)):
        if answer not in ("found", "follows"):
            print(f"{at}: {answer}: {given[at].sides if rule is None else rule_text(rule)}")
    counts = Counter(answers)
    print(f"{counts.total()} rules: {', '.join(f'{count} {answer}' for answer, count in counts.items())}")
    return 1 if counts["open"] + counts["proven, not derived"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
