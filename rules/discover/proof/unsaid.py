"""What the operators of a pattern leave unsaid about the shapes of its inputs, which a rule must ask for.

A sum says that its operands have one shape, so a rule of a sum need not ask for that. Each condition that is
left out makes a rewrite faster to match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, inputs_of, shape_of
from superopt.rules.discover.language.images import CONVOLUTIONS
from superopt.rules.discover.language.operators import OPERATORS, Unifier
from superopt.rules.discover.language.shapes import SCALAR, Shape, Symbols, Word, atoms

__all__ = ["unsaid_places", "unsaid_ranks"]

_Place = tuple[str, int]  # an input and one of its dimensions


@dataclass(frozen=True, slots=True)
class _Stated(Unifier):
    """Words of one symbol are made equal, and are cut where the expression says.

    That two sums are equal says nothing of their summands: `m + k = p + q` leaves open whether m is p.
    """

    at: Word
    symbols: Symbols

    def same(self, left: Word, right: Word) -> bool:
        return self.symbols.same(left, right) if len(left) == len(right) == 1 else True

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        count = len(self.at)
        return (word[:count], word[count:]) if 0 < count < len(word) else None


class _Silent(Unifier):
    """Any two words may be equal, and nothing is noted."""

    def same(self, left: Word, right: Word) -> bool:
        return True

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        return None


_GROUPED = {one.name: replace(one, groups="").name for one in CONVOLUTIONS if one.groups == "groups"}


def unsaid_places(pattern: Expression, shapes: Mapping[str, Shape], used: Collection[str]) -> list[_Place]:
    """Return the dimensions that a rule must compare, or must know since it uses their sizes elsewhere."""
    places = [
        (name, at)
        for name in inputs_of(pattern)
        if constant_named(name) is None
        for at in range(len(shapes[name]))
    ]
    symbols, fresh = Symbols(), dict[_Place, str]()
    for place in places:
        if _is_free(shapes[place[0]][place[1]]):
            [fresh[place]] = symbols.fresh(1)
    general = {
        name: tuple(
            (fresh[name, at],) if (name, at) in fresh else word for at, word in enumerate(shapes[name])
        )
        for name in inputs_of(pattern)
    }
    if _typed(pattern, general, symbols) is None:
        return places
    asked = _named_in(pattern, shapes)
    asked |= {atom for name, at in places if (name, at) not in fresh for atom in _atoms(shapes[name][at])}
    found, known = list[_Place](), set[str]()
    for name, at in places:
        word = shapes[name][at]
        if (name, at) not in fresh:
            found.append((name, at))
            continue
        if word[0].isdigit():
            said = symbols.find(fresh[name, at]) == word[0]
        else:
            alike = {symbols.find(fresh[one]) for one in fresh if shapes[one[0]][one[1]] == word}
            said = word[0] not in asked and len(alike) == 1 and (word[0] not in used or word[0] in known)
        if not said:
            found.append((name, at))
            known.add(word[0])
    return found


def _is_free(word: Word) -> bool:
    """Return whether a word is one symbol, which is not computed from others."""
    return len(word) == 1 and "(" not in word[0]


def _atoms(word: Word) -> set[str]:
    return {atom for symbol in word for atom in atoms(symbol)}


def _named_in(expression: Expression, shapes: Mapping[str, Shape]) -> set[str]:
    """Return the sizes by which the splits and the constants of a pattern are told apart."""
    if isinstance(expression, Input):
        constant = constant_named(expression.name) is not None
        return set().union(*map(_atoms, shapes[expression.name])) if constant else set()
    found = set().union(*(_named_in(arg, shapes) for arg in expression.args))
    axis = OPERATORS[expression.op].cuts
    if axis is not None:  # both parts are named
        found |= _atoms(shape_of(expression.args[0], shapes)[axis])
    return found


def _typed(expression: Expression, shapes: Mapping[str, Shape], symbols: Symbols) -> Shape | None:
    """Return the shape of an expression, with all that its operators say noted among the symbols."""
    if isinstance(expression, Input):
        return shapes[expression.name]
    args = [_typed(arg, shapes, symbols) for arg in expression.args]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if expression.op in _GROUPED:  # that channels have halves does not say which tensors are the halves
        results = OPERATORS[_GROUPED[expression.op]].typing(known, _Silent())
    else:
        results = OPERATORS[expression.op].typing(known, _Stated(expression.at, symbols))
    return None if results is None else results[expression.part]


def unsaid_ranks(pattern: Expression, shapes: Mapping[str, Shape]) -> list[str]:
    """Return the inputs whose number of dimensions a rule must ask for.

    All tensors of a pattern have as many dimensions but scalars, and the first operand of `scale` is one.
    """
    scalars = set(_scalar_inputs(pattern, scalar=False))
    names = [name for name in inputs_of(pattern) if constant_named(name) is None]
    found = [name for name in names if shapes[name] == SCALAR and name not in scalars]
    tensors = [name for name in names if shapes[name] != SCALAR]
    return found + ([] if _is_ranked(pattern) else tensors[:1])


def _scalar_inputs(expression: Expression, *, scalar: bool) -> Iterator[str]:
    """Yield the inputs that the operators make scalars."""
    if isinstance(expression, Input):
        if scalar:
            yield expression.name
        return
    for at, arg in enumerate(expression.args):
        yield from _scalar_inputs(arg, scalar=scalar or (expression.op == "scale" and at == 0))


def _is_ranked(expression: Expression) -> bool:
    """Return whether an operator of an expression takes tensors of one number of dimensions alone."""
    return isinstance(expression, Apply) and (
        len(OPERATORS[expression.op].ranks) == 1 or any(map(_is_ranked, expression.args))
    )
