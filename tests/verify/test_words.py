"""What a user reads of a verdict: plain words, and no names of the algebra's own."""

import pytest
import torch

from superopt import equivalent
from superopt.verify.words import called, functions, knows_in_part, only_in_one, too_likely

X = torch.randn(4, 6)
EYE = torch.eye(6)

_UNKNOWN = {
    "a sort": (
        lambda x: x.sort(-1).values[:, -1],
        lambda x: x.amax(-1),
        "only one of the programs calls sort",
    ),
    "an order": (
        lambda x: torch.where(x.abs() + x > 3 + x.sin(), x, 0),
        lambda x: torch.where(x.abs() + x > 3 + x.sin(), x, x * (x.square() < -1)),
        "no proof",
    ),
    "constants": (
        lambda x: x * EYE[0] * EYE[0],
        lambda x: x * EYE[0],
        "constants are taken as any numbers",
    ),
}
_RIDDLES = ("guard", "aten.", "oracle", "field", "bound", "witness", "gt ", "None")


@pytest.mark.parametrize(("f", "g", "said"), _UNKNOWN.values(), ids=_UNKNOWN)
def test_what_is_unknown_is_said_in_plain_words(f, g, said):
    verdict = equivalent(f, g, X, seed=0)
    assert verdict.unknown, str(verdict)
    assert said in str(verdict)
    assert not [word for word in _RIDDLES if word in str(verdict)], str(verdict)


def test_an_equality_names_no_function_of_the_algebra():
    index = torch.tensor([1, 3])
    verdict = equivalent(lambda x, i: x[i] * 2, lambda x, i: (2 * x)[i], X, index, seed=0)
    assert verdict.equal
    assert "guard" not in str(verdict)


def test_sentences():
    assert called(["aten.sort.default", "aten.add_.Tensor", "mine.op", "gt"]) == "sort, add, mine.op, >"
    assert called(f"aten.op{i}.default" for i in range(8)).endswith("op5 and 2 more")
    assert functions({"log", "guard"}) == ("log",)
    assert "comparisons and maxima, erf" in knows_in_part(
        ordered=True, integers=False, names={"erf", "guard"}
    )
    assert "integers" in knows_in_part(ordered=False, integers=True, names=())
    assert "2^-3 only" in too_likely(2**-3.5)
    assert "2^" not in too_likely(1.5)
    assert "calls topk" in only_in_one(["aten.topk.default"])
