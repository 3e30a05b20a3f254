"""Comparisons, choices, slices and constants: laws that hold are found, near misses never called equal."""

import math

import pytest
import torch
import torch.nn.functional as F
from quick import few

from superopt import equivalent


def f32(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


X = f32(8)
ROWS = f32(4, 8)
MASK = torch.empty(4, 8, dtype=torch.bool, device="meta")
INF = float("inf")


def band(scores, width, *, inclusive):
    steps = torch.arange(64)
    distance = steps[:, None] - steps[None]
    outside = distance >= width if inclusive else distance > width
    return scores.masked_fill(outside, 0.0).sum(-1)


def far_band(scores, width):
    places = torch.arange(1000)
    return scores.masked_fill(places[:, None] - places[None] > width, 0.0).sum(-1)


def turned(x):
    return torch.cat([x[:, 1:], x[:, :1]], 1) * x


def shifted_log_softmax(x):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))


EQUAL = {
    "no jump where inputs are two apart": (
        lambda x, y: torch.where(x - y <= 2, x, y + 2),
        lambda x, y: torch.where(x - y < 2, x, y + 2),
        (X, X),
    ),
    "Huber, ties turned": (
        lambda x, y: F.huber_loss(x, y, delta=1.5),
        lambda x, y: torch.where((x - y).abs() <= 1.5, (x - y) ** 2 / 2, 1.5 * (x - y).abs() - 1.125).mean(),
        (ROWS, ROWS),
    ),
    "a mask and one": (lambda x: x * (1 + (x > 0)), lambda x: torch.where(x > 0, 2 * x, x), (X,)),
    "relu of a multiple": (lambda x: torch.relu(2 * x), lambda x: 2 * torch.relu(x), (X,)),
    "a maximum moved": (
        lambda a, b, c: torch.maximum(a + c, b + c),
        lambda a, b, c: torch.maximum(a, b) + c,
        (X, X, X),
    ),
    "abs of a product": (lambda x, y: (x * y).abs(), lambda x, y: x.abs() * y.abs(), (X, X)),
    "the root of a square": (lambda x: torch.sqrt(x * x), lambda x: x.abs(), (X,)),
    "cos of minus": (lambda x: torch.cos(-x), torch.cos, (X,)),
    "sin of minus": (lambda x: torch.sin(-x), lambda x: -torch.sin(x), (X,)),
    "log of exp": (lambda x: torch.log(torch.exp(x)), lambda x: x, (X,)),
    "log_softmax written out": (
        lambda x: torch.log_softmax(x, -1),
        lambda x: x - torch.log(torch.exp(x).sum(-1, keepdim=True)),
        (ROWS,),
    ),
    "log_softmax shifted": (lambda x: torch.log_softmax(x, -1), shifted_log_softmax, (ROWS,)),
    "log of softmax": (
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.log(torch.softmax(x, -1)),
        (ROWS,),
    ),
    "a sum of logs": (lambda x, y: torch.log(x) + torch.log(y), lambda x, y: torch.log(x * y), (X, X)),
    "two softplus": (
        lambda x: torch.log1p(torch.exp(x)) - torch.log1p(torch.exp(-x)),
        lambda x: x,
        (X,),
    ),
    "relu as a choice": (torch.relu, lambda x: torch.where(x > 0, x, 0.0), (X,)),
    "relu as a choice with the tie": (torch.relu, lambda x: torch.where(x >= 0, x, 0.0), (X,)),
    "relu of a product as a choice": (
        lambda x, w: torch.relu(x @ w),
        lambda x, w: torch.where(x @ w > 0, x @ w, 0.0),
        (ROWS, f32(8, 3)),
    ),
    "abs as a choice": (torch.abs, lambda x: torch.where(x > 0, x, -x), (X,)),
    "clamps in turn": (lambda x: x.clamp(0, 10), lambda x: x.clamp(0, 10).clamp(-5, 20), (X,)),
    "clamp in another order": (
        lambda x: x.clamp(min=-1).clamp(max=1),
        lambda x: x.clamp(max=1).clamp(min=-1),
        (X,),
    ),
    "maxima associate": (
        lambda a, b, c: torch.maximum(a, torch.maximum(b, c)),
        lambda a, b, c: torch.maximum(torch.maximum(a, b), c),
        (X, X, X),
    ),
    "a maximum in parts": (lambda x: x.amax(-1), lambda x: x.view(4, 2, 4).amax(-1).amax(-1), (ROWS,)),
    "relu6 scaled": (F.relu6, lambda x: 6 * (x / 6).clamp(0, 1), (X,)),
    "leaky relu as a maximum": (
        lambda x: F.leaky_relu(x, 0.1),
        lambda x: torch.maximum(x, 0.1 * x),
        (X,),
    ),
    "relu of a sum of squares": (lambda x: torch.relu(x * x + 1), lambda x: x * x + 1, (X,)),
    "maximum and minimum": (
        lambda x, y: torch.maximum(x, y) + torch.minimum(x, y),
        lambda x, y: x + y,
        (X, X),
    ),
    "a masked softmax": (
        lambda s, m: torch.softmax(s.masked_fill(m, -INF), -1),
        lambda s, m: torch.exp(s) * ~m / (torch.exp(s) * ~m).sum(-1, keepdim=True),
        (ROWS, MASK),
    ),
    "a float mask": (
        lambda s, b: s.masked_fill(b == 1, 0.0),
        lambda s, b: torch.where(b == 1, 0.0, s),
        (ROWS, ROWS),
    ),
    "exp by exp2": (lambda x: torch.exp2(x * 1.4426950408889634), torch.exp, (X,)),
    "log2 by log": (torch.log2, lambda x: torch.log(x) * 1.4426950408889634, (X,)),
    "a negative root": (lambda x: x * -math.sqrt(0.5), lambda x: -(x * math.sqrt(0.5)), (X,)),
    "a root of 88": (lambda x: x / math.sqrt(88), lambda x: x * 88**-0.5, (X,)),
    "a fused projection": (
        lambda x, w: (x @ w)[:, :16] * (x @ w)[:, 16:32] + (x @ w)[:, 32:],
        lambda x, w: (x @ w[:, :16]) * (x @ w[:, 16:32]) + x @ w[:, 32:],
        (ROWS, f32(8, 48)),
    ),
    "a causal mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(64, 64, dtype=torch.bool).tril()
        ),
        (f32(2, 64, 8),) * 3,
    ),
    "a window, bounded the other way": (
        lambda s: band(s, 20, inclusive=False),
        lambda s: band(s, 21, inclusive=True),
        (f32(64, 64),),
    ),
}

DIFFERENT = {
    "inputs two apart": (
        lambda x, y: torch.where(x - y <= 2, x, y),
        lambda x, y: torch.where(x - y < 2, x, y),
        (X, X),
    ),
    "a jump where inputs are one apart": (
        lambda x, y: torch.where((x - y).abs() <= 1, (x - y).square(), 2 * (x - y).abs()),
        lambda x, y: torch.where((x - y).abs() < 1, (x - y).square(), 2 * (x - y).abs()),
        (X, X),
    ),
    "a mask and one for one": (lambda x: x * (1 + (x > 0)), lambda x: x * 1, (X,)),
    "a dropped float mask": (
        lambda s, b, v: torch.softmax(s.masked_fill(b == 1, -INF), -1) @ v,
        lambda s, b, v: torch.softmax(s, -1) @ v,
        (ROWS, ROWS, f32(8, 3)),
    ),
    "a dropped mask of zeros": (
        lambda s, b, v: s.masked_fill(b == 1, 0.0) @ v,
        lambda s, b, v: s @ v,
        (ROWS, ROWS, f32(8, 3)),
    ),
    "a dropped choice": (
        lambda x, c, w: torch.where(c == 1, x, 2 * x) @ w,
        lambda x, c, w: 2 * x @ w,
        (ROWS, ROWS, f32(8, 3)),
    ),
    "another threshold": (
        lambda x, a, b: torch.where(x > 50, a, b),
        lambda x, a, b: torch.where(x > 60, a, b),
        (X, X, X),
    ),
    "half a threshold": (lambda x: (x > 255).float(), lambda x: (x > 127).float(), (X,)),
    "the next threshold": (
        lambda x, a, b: torch.where(x > 9, a, b),
        lambda x, a, b: torch.where(x > 10, a, b),
        (X, X, X),
    ),
    "the tie": (lambda x: (x > 0).float(), lambda x: (x >= 0).float(), (X,)),
    "a guarded division": (lambda x, n: x / torch.where(n == 0, 1.0, n), lambda x, n: x / n, (X, X)),
    "never equal": (lambda x, y: (x == y).float(), lambda x, y: torch.zeros_like(x), (X, X)),
    "sums never equal": (lambda x, y: (x + y == 1).float(), lambda x, y: torch.zeros_like(x), (X, X)),
    "the tie of a product": (
        lambda x, w: (x @ w > 0.3).float(),
        lambda x, w: (x @ w >= 0.3).float(),
        (ROWS, f32(8, 3)),
    ),
    "a tie within a tie": (
        lambda x, y, a, b: torch.where(x == 0, torch.where(y == 0, a, b), b),
        lambda x, y, a, b: b * 1,
        (X,) * 4,
    ),
    "what a guard returns": (
        lambda x, n: torch.where(n == 0, 1.0, x / n),
        lambda x, n: torch.where(n == 0, 2.0, x / n),
        (X, X),
    ),
    "a log of two negative numbers": (
        lambda x, y: torch.log(x * y),
        lambda x, y: torch.log(x) + torch.log(y),
        (X, X),
    ),
    "a factor that is one": (lambda x, y: x * (x * y.exp() != x), lambda x, y: x * 1, (X, X)),
    "a sum that is one": (
        lambda x, y: torch.where(x + y == 1, x * y, 0.0),
        lambda x, y: torch.zeros_like(x),
        (X, X),
    ),
    "another clamp": (lambda x: x.clamp(0, 10), lambda x: x.clamp(0, 11), (X,)),
    "a single point": (lambda x: (x == 3).float() + (x > 2).float(), lambda x: (x > 2).float(), (X,)),
    "the sign of a constant": (
        lambda x, a, b, c: torch.where(x > 0, torch.where(271 * x > 0, a, b), c),
        lambda x, a, b, c: torch.where(x > 0, b, c),
        (X,) * 4,
    ),
    "segments": (lambda x, s: x * (s[:, None] == s[None]), lambda x, s: x * 1, (f32(8, 8), X)),
    "a slice that ends earlier": (
        lambda x: x[:, 6:12].amax(-1),
        lambda x: x[:, 6:11].amax(-1),
        (f32(4, 20),),
    ),
    "a wider window": (
        lambda s: band(s, 20, inclusive=False),
        lambda s: band(s, 21, inclusive=False),
        (f32(64, 64),),
    ),
    "a wider window of many": (
        lambda s: far_band(s, 200),
        lambda s: far_band(s, 201),
        (f32(1000, 1000),),
    ),
    "a constant that is a prime": (
        lambda x: torch.sin(x) + 2444789759.0,
        torch.sin,
        (X,),
    ),
    "a tenth in float32": (
        lambda x: x * 0.1,
        lambda x: x * 0.10000000149011612,
        (f32(8, dtype=torch.float64),),
    ),
}

THEMSELVES = {
    "a slice": (lambda x: x[:, :7].sum(-1), (f32(4, 20),)),
    "a turned row": (turned, (f32(4, 12),)),
    "a window": (lambda s: band(s, 20, inclusive=False), (f32(64, 64),)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_laws_are_found(name):
    f, g, inputs = EQUAL[name]
    verdict = equivalent(f, g, *inputs, floats=False)
    assert verdict.equal, verdict
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2.0**-40


@pytest.mark.parametrize("seed", few([0, 1, None], 0))
@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses_are_not_equal(name, seed):
    f, g, inputs = DIFFERENT[name]
    assert not equivalent(f, g, *inputs, floats=False, seed=seed).equal


@pytest.mark.parametrize("name", [*EQUAL, *DIFFERENT, *THEMSELVES])
def test_a_program_is_equal_to_itself(name):
    known = {**THEMSELVES, **{key: (f, inputs) for key, (f, _, inputs) in (EQUAL | DIFFERENT).items()}}
    f, inputs = known[name]
    assert equivalent(f, f, *inputs, floats=False).equal, name


def test_a_function_of_a_number_whose_value_is_not_known() -> None:
    def bounded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x.clamp(min=0.5))

    def chosen(x: torch.Tensor) -> torch.Tensor:
        least = torch.nn.functional.gelu(torch.full((), 0.5).expand_as(x))
        return torch.where(x >= 0.5, torch.nn.functional.gelu(x), least)

    assert equivalent(bounded, chosen, torch.randn(4, 5)).outcome != "different"


def test_an_identity_that_loses_some_digits_stays_one() -> None:
    def by_sigmoid(x):
        return 2 * torch.sigmoid(2 * x) - 1

    for dtype in (torch.float32, torch.float64):
        # The digits that are lost are near what is allowed: for one seed in twelve they are above it.
        outcomes = {
            equivalent(torch.tanh, by_sigmoid, f32(4, 8, dtype=dtype), seed=at).outcome for at in (1, 2)
        }
        assert "equal" in outcomes
        assert "different" not in outcomes
    assert (
        equivalent(torch.tanh, lambda x: by_sigmoid(x + 1e4) - 1 + torch.tanh(x), f32(4, 8)).outcome
        != "equal"
    )


COUNTED = {
    "a number as large as the places that are looked at": (
        lambda x: x.mean(-1) + x[:, 0],
        lambda x: x.sum(-1) / 3 + x[:, 0],
    ),
    "another one": (lambda x: x.mean(-1) + x[:, 0], lambda x: x.sum(-1) / 4 + x[:, 0]),
    "positions up to some place": (
        lambda x: x * torch.arange(100).clamp(max=50),
        lambda x: x * torch.arange(100),
    ),
    "positions from some place": (
        lambda x: x * torch.relu(torch.arange(100.0) - 60),
        lambda x: x * 0.0,
    ),
    "a root of 11": (lambda x: x * 11**0.5 * 11**0.5, lambda x: -11 * x),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", COUNTED)
def test_numbers_stand_for_themselves(name: str, seed: int) -> None:
    """Before: each of these was equal, some for one seed in four."""
    first, second = COUNTED[name]
    x = torch.randn(4, 100)
    assert not equivalent(first, second, x, floats=False, seed=seed).equal
    assert equivalent(first, first, x, floats=False, seed=seed).equal
