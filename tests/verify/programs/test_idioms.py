"""Idioms, near misses and random programs: no verdict is ever wrong, and a program equals itself.

The pairs are those of `python -m bench.verdicts`. A part of them is asked about here; the rest is slow.
"""

from collections.abc import Iterable

import pytest
from quick import few

from superopt.bench.verdicts.answers import Answer, ask, ask_random
from superopt.bench.verdicts.idioms import IDIOMS, WRONG
from superopt.bench.verdicts.pairs import Pair
from superopt.bench.verdicts.tensors.equations import EQUATIONS

pytestmark = pytest.mark.filterwarnings("ignore")  # odd programs warn of odd shapes

SEED = 2026

PROVEN = (
    "log softmax written out",
    "log of exp",
    "relu of a scaled number",
    "a maximum shifted",
    "abs of a product",
    "the root of a square",
    "cos of minus",
    "causal attention against a mask",
    "clamps in either order",
    "a sign moved to a constant",
    "exp by exp2",
    "a root as a power",
    "constants added",
    "softmax",
    "attention, delayed division",
    "layer norm in one pass",
    "QKV split",
)
"""Idioms that were once told apart: these are to be found equal, not merely left open."""

ONCE_EQUAL = (
    "a float mask dropped before softmax",
    "a float mask dropped before a product",
    "a branch by equality dropped",
    "a threshold of 50 for one of 60",
    "a threshold of 255 for one of 127",
    "a threshold of 9 for one of 10",
    "greater for greater or equal",
    "safe division made unsafe",
    "equal as false",
    "a slice off by one after a gelu",
    "a slice off by one after a log",
    "a slice off by one before a sine",
    "a slice off by one after an embedding",
    "a slice off by one after a convolution",
    "indices deduplicated",
    "a cat of the wrong one twice",
    "a stack in another order",
    "a maximum over one less",
    "a wide window one wider",
    "a window of 21 for one of 22",
    "a constant of the size of a prime",
    "a tenth as float32 in float64",
    "another number beside",
    "another key",
    "nested otherwise",
    "a buffer of other numbers",
    "a tie at a zero factor or at exp of zero",
    "a tie at a zero factor or at a root of one",
)
"""Near misses that were once called equal."""


def sample(pairs: Iterable[Pair], first: tuple[str, ...], count: int) -> list[Pair]:
    """Return the named pairs and, evenly among the others, as many as there are to be."""
    every = {pair.name: pair for pair in pairs}
    others = [pair for name, pair in every.items() if name not in first]
    step = len(others) / (count - len(first))
    return [every[name] for name in first] + [others[int(at * step)] for at in range(count - len(first))]


QUICK = [*sample(IDIOMS.values(), PROVEN, 20), *sample(WRONG.values(), ONCE_EQUAL, 34)]
QUICK_EQUATIONS = sample(EQUATIONS.values(), (), 8)


def check(answer: Answer) -> None:
    """Check that what was said is true or left open, and that the programs equal themselves."""
    assert not answer.wrong, answer
    assert answer.itself, answer


@pytest.mark.parametrize("pair", QUICK, ids=lambda pair: pair.name)
def test_no_verdict_is_wrong(pair: Pair) -> None:
    answer = ask(pair, SEED)
    check(answer)
    if pair.name in PROVEN:
        assert answer.said == "equal", answer


@pytest.mark.parametrize("pair", QUICK_EQUATIONS, ids=lambda pair: pair.name)
def test_no_published_equation_is_refuted(pair: Pair) -> None:
    check(ask(pair, SEED))


@pytest.mark.parametrize(
    "numbers",
    few([range(15), range(15, 120), range(120, 300)], range(15)),
    ids=lambda one: f"{one[0]}",
)
def test_no_verdict_on_random_programs_is_wrong(numbers: range) -> None:
    for answer in ask_random(numbers, SEED, largest=12):  # about every third
        check(answer)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [IDIOMS, WRONG, EQUATIONS], ids=["idioms", "near misses", "equations"])
def test_no_verdict_of_all_is_wrong(pairs: dict[str, Pair]) -> None:
    answers = [ask(pair, SEED + 1) for pair in pairs.values()]
    assert not [one for one in answers if one.broken]
    if pairs is IDIOMS:
        asked = [one for one in answers if one.family != "inequalities"]  # a field has no order
        assert sum(one.open for one in asked) < 0.05 * len(asked)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, 2000, 100))
def test_no_verdict_on_many_random_programs_is_wrong(at: int) -> None:
    assert not [one for one in ask_random(range(at, at + 100), SEED + 1) if one.broken]
