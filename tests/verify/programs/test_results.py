"""Results that are no tensors: structure and plain values are part of what a program computes."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from superopt.verify.equivalent import equivalent

X = torch.randn(3, 4)
Pair = namedtuple("Pair", "left right")


@dataclass
class Made:
    tensor: Any
    number: Any


EQUAL = {
    "a number": (lambda x: (x * 2, 3), lambda x: (x + x, 3)),
    "nothing": (lambda x: (x * 2, None), lambda x: (x + x, None)),
    "not a number": (lambda x: (x * 2, float("nan")), lambda x: (x + x, float("nan"))),
    "keys in another order": (lambda x: {"a": x * 2, "b": x}, lambda x: {"b": x, "a": x + x}),
    "a dataclass": (lambda x: Made(x * 2, "s"), lambda x: Made(x + x, "s")),
    "a named tuple": (lambda x: Pair(x * 2, x), lambda x: Pair(x + x, x)),
    "a structure within": (lambda x: [{"a": (x * 2, 1)}], lambda x: [{"a": (x + x, 1)}]),
}

DIFFERENT = {
    "another number": (lambda x: (x * 2, 3), lambda x: (x * 2, 4), "result[1]: 3 against 4"),
    "another type of number": (lambda x: (x, 3), lambda x: (x, 3.0), "result[1]: 3 against 3.0"),
    "nothing and something": (lambda x: (x, None), lambda x: (x, 0), "result[1]: None against 0"),
    "a tensor and a number": (lambda x: x.sum(), lambda x: 0.0, "result: f32[] against 0.0"),
    "other keys": (lambda x: {"a": x}, lambda x: {"b": x}, "result: the keys ['a'] against ['b']"),
    "another nesting": (
        lambda x: (x, (x,)),
        lambda x: ((x,), x),
        "result[0]: f32[3, 4] against a tuple of 1",
    ),
    "one item more": (lambda x: (x,), lambda x: (x, x), "result: 1 items against 2"),
    "a list": (lambda x: (x,), lambda x: [x], "result: a tuple of 1 against a list of 1"),
    "another kind of dict": (
        lambda x: {"a": x},
        lambda x: OrderedDict(a=x),
        "result: a dict of 1 against a OrderedDict of 1",
    ),
    "a field": (lambda x: Made(x, 1), lambda x: Made(x, 2), "result.number: 1 against 2"),
    "a named field": (lambda x: Pair(x, 1), lambda x: Pair(x, 2), "result.right: 1 against 2"),
    "a dtype": (lambda x: {"a": x}, lambda x: {"a": x.double()}, "result['a']: f32[3, 4] against f64[3, 4]"),
}


@pytest.mark.parametrize(("f", "g"), EQUAL.values(), ids=EQUAL)
def test_equal(f, g):
    verdict = equivalent(f, g, X)
    assert verdict.equal, str(verdict)


@pytest.mark.parametrize(("f", "g", "text"), DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("floats", [True, False])
def test_different(f, g, text, floats):
    verdict = equivalent(f, g, X, floats=floats)
    assert verdict.different
    assert text in str(verdict)


def test_tensors_are_matched_by_key():
    assert equivalent(lambda x: {"b": x, "a": 2 * x}, lambda x: {"a": 2 * x, "b": x}, X).equal
    assert equivalent(lambda x: {"b": x, "a": 2 * x}, lambda x: {"a": x, "b": 2 * x}, X).different


def test_objects_that_cannot_be_compared_are_unknown():
    class Strange:
        """Equal to nothing but itself."""

    verdict = equivalent(lambda x: (x, Strange()), lambda x: (x, Strange()), X)
    assert verdict.unknown
    assert "result[1]: two objects of Strange cannot be compared" in str(verdict)
    one = Strange()
    assert equivalent(lambda x: (x, one), lambda x: (x, one), X).equal
