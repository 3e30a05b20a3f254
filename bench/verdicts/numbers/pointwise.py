"""Idioms of single numbers: exponentials, logarithms, roots, gates, and the constants in them."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="pointwise")
wrong = partial(Pair, equal=False, family="pointwise")

_ROOT_HALF = math.sqrt(0.5)
_LOG2_E = math.log2(math.e)
_TANH = math.sqrt(2 / math.pi)


IDIOMS = (
    # exponentials and logarithms
    equal("log of exp", lambda x: x.exp().log(), lambda x: x * 1, "f32[4,6]"),
    equal("exp of log", lambda x: x.log().exp(), lambda x: x * 1, "f32[4,6]"),
    equal("log of a product", lambda a, b: a.log() + b.log(), lambda a, b: (a * b).log(), "f32[5] f32[5]"),
    equal("log of a quotient", lambda a, b: a.log() - b.log(), lambda a, b: (a / b).log(), "f32[5] f32[5]"),
    equal("log of a reciprocal", lambda x: -x.log(), lambda x: (1 / x).log(), "f32[7]"),
    equal("log of a square", lambda x: 2 * x.log(), lambda x: x.square().log(), "f32[7]"),
    equal("log of a root", lambda x: x.sqrt().log(), lambda x: 0.5 * x.log(), "f32[7]"),
    equal("exp of a sum", lambda a, b: (a + b).exp(), lambda a, b: a.exp() * b.exp(), "f32[4,6] f32[4,6]"),
    equal("exp of a difference", lambda a, b: (a - b).exp(), lambda a, b: a.exp() / b.exp(), "f32[5] f32[5]"),
    equal("exp of a double", lambda x: (2 * x).exp(), lambda x: x.exp().square(), "f32[4,6]"),
    equal("exp of a half", lambda x: (0.5 * x).exp(), lambda x: x.exp().sqrt(), "f32[4,6]"),
    equal("exp of minus", lambda x: (-x).exp(), lambda x: 1 / x.exp(), "f32[4,6]"),
    equal("exp2 by exp", lambda x: x.exp2(), lambda x: (x * math.log(2)).exp(), "f32[4,6]"),
    equal("exp by exp2", lambda x: x.exp(), lambda x: (x * _LOG2_E).exp2(), "f32[4,6]"),
    equal("log2 by log", lambda x: x.log2(), lambda x: x.log() / math.log(2), "f32[6]"),
    equal("log1p", lambda x: x.log1p(), lambda x: (1 + x).log(), "f32[6]"),
    equal("expm1", lambda x: x.expm1(), lambda x: x.exp() - 1, "f32[6]"),
    equal("log1p of expm1", lambda x: x.expm1().log1p(), lambda x: x + 0, "f32[6]"),
    equal("a power by exp and log", lambda x: (3 * x.log()).exp(), lambda x: x * x * x, "f32[6]"),
    equal("a power as products", lambda x: x**3, lambda x: x * x * x, "f32[6]"),
    equal("a power of a power", lambda x: (x**2) ** 3, lambda x: x**6, "f32[6]"),
    equal("a fourth power", lambda x: x**4, lambda x: x.square().square(), "f32[6]"),
    equal("a power of minus one", lambda x: x**-1, lambda x: x.reciprocal(), "f32[6]"),
    equal("a power of a half", lambda x: x**0.5, torch.sqrt, "f32[6]"),
    # roots and signs
    equal("the root of a square", lambda x: (x * x).sqrt(), torch.abs, "f32[4,6]"),
    equal("the square of a root", lambda x: x.sqrt().square(), lambda x: x + 0, "f32[6]"),
    equal(
        "a product of roots", lambda a, b: a.sqrt() * b.sqrt(), lambda a, b: (a * b).sqrt(), "f32[5] f32[5]"
    ),
    equal("rsqrt", lambda x: x.rsqrt(), lambda x: 1 / x.sqrt(), "f32[6]"),
    equal("division by a root", lambda x, s: x * s.rsqrt(), lambda x, s: x / s.sqrt(), "f32[5] f32[5]"),
    equal("a root of a scaled number", lambda x: (4 * x).sqrt(), lambda x: 2 * x.sqrt(), "f32[6]"),
    equal(
        "abs of a product", lambda x, y: (x * y).abs(), lambda x, y: x.abs() * y.abs(), "f32[4,6] f32[4,6]"
    ),
    equal("abs of a quotient", lambda x, y: (x / y).abs(), lambda x, y: x.abs() / y.abs(), "f32[5] f32[5]"),
    equal("abs of minus", lambda x: (-x).abs(), torch.abs, "f32[5]"),
    equal("abs of abs", lambda x: x.abs().abs(), torch.abs, "f32[5]"),
    equal("abs squared", lambda x: x.abs().square(), torch.square, "f32[5]"),
    equal("abs of a scaled number", lambda x: (-3 * x).abs(), lambda x: 3 * x.abs(), "f32[5]"),
    equal("sign times abs", lambda x: x.sign() * x.abs(), lambda x: x * 1, "f32[5]"),
    equal("x times its sign", lambda x: x * x.sign(), torch.abs, "f32[5]"),
    # odd and even functions, angles
    equal("cos of minus", lambda x: (-x).cos(), torch.cos, "f32[5]"),
    equal("sin of minus", lambda x: (-x).sin(), lambda x: -x.sin(), "f32[5]"),
    equal("tanh of minus", lambda x: (-x).tanh(), lambda x: -x.tanh(), "f32[5]"),
    equal("erf of minus", lambda x: (-x).erf(), lambda x: -x.erf(), "f32[5]"),
    equal(
        "cos of a difference turned", lambda a, b: (a - b).cos(), lambda a, b: (b - a).cos(), "f32[5] f32[5]"
    ),
    # gates
    equal("sigmoid", torch.sigmoid, lambda x: 1 / (1 + (-x).exp()), "f32[4,6]"),
    equal("sigmoid the other way", torch.sigmoid, lambda x: x.exp() / (1 + x.exp()), "f32[4,6]"),
    equal("sigmoid of minus", lambda x: (-x).sigmoid(), lambda x: 1 - x.sigmoid(), "f32[4,6]"),
    equal("sigmoid by tanh", torch.sigmoid, lambda x: 0.5 * (x / 2).tanh() + 0.5, "f32[4,6]"),
    equal("tanh by sigmoid", torch.tanh, lambda x: 2 * (2 * x).sigmoid() - 1, "f32[4,6]"),
    equal("tanh by exp", torch.tanh, lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()), "f32[4,6]"),
    equal("logit of sigmoid", lambda x: x.sigmoid().logit(), lambda x: x + 0, "f32[6]"),
    equal(
        "the derivative of sigmoid",
        lambda x: x.sigmoid() * (1 - x.sigmoid()),
        lambda x: x.sigmoid() * (-x).sigmoid(),
        "f32[6]",
    ),
    equal("silu", F.silu, lambda x: x * x.sigmoid(), "f32[4,6]"),
    equal("silu as a quotient", F.silu, lambda x: x / (1 + (-x).exp()), "f32[4,6]"),
    equal("swish with a factor", lambda x: x * (2 * x).sigmoid(), lambda x: F.silu(2 * x) / 2, "f32[6]"),
    equal("softplus", F.softplus, lambda x: (1 + x.exp()).log(), "f32[6]"),
    equal("softplus by log1p", F.softplus, lambda x: x.exp().log1p(), "f32[6]"),
    equal("softplus less its mirror", lambda x: F.softplus(x) - F.softplus(-x), lambda x: x * 1, "f32[6]"),
    equal("softplus by relu", F.softplus, lambda x: x.relu() + (-x.abs()).exp().log1p(), "f32[6]"),
    equal("logsigmoid", F.logsigmoid, lambda x: -F.softplus(-x), "f32[6]"),
    equal("logsigmoid as it says", F.logsigmoid, lambda x: x.sigmoid().log(), "f32[6]"),
    equal("mish", F.mish, lambda x: x * F.softplus(x).tanh(), "f32[6]"),
    equal("gelu", F.gelu, lambda x: 0.5 * x * (1 + (x * _ROOT_HALF).erf()), "f32[4,6]"),
    equal("gelu by a quotient", F.gelu, lambda x: x / 2 * (1 + (x / math.sqrt(2)).erf()), "f32[4,6]"),
    equal(
        "gelu with a bias",
        lambda x, b: F.gelu(x + b),
        lambda x, b: (x + b) * 0.5 * (((x + b) / 2**0.5).erf() + 1),
        "f32[4,6] f32[6]",
    ),
    equal(
        "gelu by tanh",
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + (_TANH * (x + 0.044715 * x**3)).tanh()),
        "f32[6]",
    ),
    equal(
        "gelu by sigmoid",
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: x * (2 * _TANH * (x + 0.044715 * x * x * x)).sigmoid(),
        "f32[6]",
    ),
    equal("erfc", lambda x: x.erfc(), lambda x: 1 - x.erf(), "f32[6]"),
    # constants
    equal(
        "a sign moved to a constant",
        lambda x: x * (-math.sqrt(0.5)),
        lambda x: -(x * math.sqrt(0.5)),
        "f32[6]",
    ),
    equal("a root as a power", lambda x: x / math.sqrt(88), lambda x: x * 88**-0.5, "f32[6]"),
    equal("a root of 128", lambda x: x / math.sqrt(128), lambda x: x * 0.08838834764831843, "f32[6]"),
    equal("constants added", lambda x: x * 0.5 + x, lambda x: x * 1.5, "f32[6]"),
    equal("constants multiplied", lambda x: 0.1 * (10 * x), lambda x: x + 0, "f32[6]"),
    equal("decimals added", lambda x: x * 0.1 + x * 0.2, lambda x: x * 0.3, "f64[6]"),
    equal("thirds added", lambda x: x / 3 + x / 3, lambda x: x * (2 / 3), "f32[6]"),
    equal("x less x", lambda x, y: x - x + y, lambda x, y: y * 1, "f32[5] f32[5]"),
    equal("x over x", lambda x, y: x / x * y, lambda x, y: y * 1, "f32[5] f32[5]"),
    equal("times zero", lambda x, y: x * 0 + y, lambda x, y: y + 0, "f32[5] f32[5]"),
    equal("minus minus", lambda x: torch.neg(-x), lambda x: x * 1, "f32[5]"),
    equal(
        "a quotient of quotients",
        lambda a, b, c: a / (b / c),
        lambda a, b, c: a * c / b,
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "a common denominator",
        lambda a, b, c: a / c + b / c,
        lambda a, b, c: (a + b) / c,
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "a square of a sum",
        lambda a, b: (a + b) ** 2,
        lambda a, b: a * a + 2 * a * b + b * b,
        "f32[5] f32[5]",
    ),
    equal(
        "a difference of squares", lambda a, b: a * a - b * b, lambda a, b: (a + b) * (a - b), "f32[5] f32[5]"
    ),
    equal("lerp", lambda a, b: a + 0.25 * (b - a), lambda a, b: torch.lerp(a, b, 0.25), "f32[5] f32[5]"),
    equal(
        "addcmul",
        lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
        lambda a, b, c: a + b * c / 2,
        "f32[5] f32[5] f32[5]",
    ),
    equal("degrees", lambda x: (x * (math.pi / 180)).cos(), lambda x: (x / 180 * math.pi).cos(), "f32[5]"),
    equal("a temperature", lambda x: (x / 0.7).exp(), lambda x: (x * (1 / 0.7)).exp(), "f32[5]"),
    equal("a soft cap", lambda x: 30 * (x / 30).tanh(), lambda x: (x * (1 / 30)).tanh() * 30.0, "f32[6]"),
)

WRONG = (
    wrong("log of a sum", lambda a, b: (a + b).log(), lambda a, b: a.log() + b.log(), "f32[5] f32[5]"),
    wrong("log of a square at minus", lambda x: x.square().log(), lambda x: 2 * x.log(), "f32[6]"),
    wrong("log2 for log", torch.log2, torch.log, "f32[6]"),
    wrong("exp2 for exp", torch.exp2, torch.exp, "f32[6]"),
    wrong("exp of a product", lambda a, b: (a * b).exp(), lambda a, b: a.exp() * b.exp(), "f32[5] f32[5]"),
    wrong("expm1 without the one", torch.expm1, torch.exp, "f32[6]"),
    wrong("the root of a square without its sign", lambda x: (x * x).sqrt(), lambda x: x * 1, "f32[6]"),
    wrong("abs of a sum", lambda x, y: (x + y).abs(), lambda x, y: x.abs() + y.abs(), "f32[5] f32[5]"),
    wrong("abs of a scaled number without abs", lambda x: (-3 * x).abs(), lambda x: -3 * x.abs(), "f32[5]"),
    wrong("sign at zero", lambda x: x.sign(), lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype), "f32[5]"),
    wrong("sign times abs for abs", lambda x: x.sign() * x, lambda x: x.sign() * x.abs(), "f32[5]"),
    wrong("erfc for its mirror", torch.erfc, lambda x: 1 + x.erf(), "f32[5]"),
    wrong("logit of sigmoid turned", lambda x: x.sigmoid().logit(), lambda x: -x, "f32[5]"),
    wrong("sin of minus without a sign", lambda x: (-x).sin(), torch.sin, "f32[5]"),
    wrong("cos of minus with a sign", lambda x: (-x).cos(), lambda x: -x.cos(), "f32[5]"),
    wrong("sigmoid of minus, unmirrored", lambda x: (-x).sigmoid(), lambda x: -x.sigmoid(), "f32[5]"),
    wrong("tanh by sigmoid without the two", torch.tanh, lambda x: 2 * x.sigmoid() - 1, "f32[5]"),
    wrong("silu of a factor", lambda x: x * (2 * x).sigmoid(), lambda x: F.silu(2 * x), "f32[5]"),
    wrong(
        "softplus less its mirror, plus", lambda x: F.softplus(x) + F.softplus(-x), lambda x: x * 1, "f32[5]"
    ),
    wrong(
        "softplus with a low threshold",
        lambda x: F.softplus(x, threshold=3),
        lambda x: x.exp().log1p(),
        "f32[5]",
    ),
    wrong("softplus with beta", lambda x: F.softplus(x, beta=2), F.softplus, "f32[5]"),
    wrong("gelu for its approximation", F.gelu, lambda x: F.gelu(x, approximate="tanh"), "f32[5]"),
    wrong(
        "gelu with another constant",
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + (_TANH * (x + 0.0447 * x**3)).tanh()),
        "f32[5]",
    ),
    wrong("gelu without the root", F.gelu, lambda x: 0.5 * x * (1 + x.erf()), "f32[5]"),
    wrong("a gate for the other", F.silu, F.gelu, "f32[5]"),
    wrong("a tenth as float32 in float64", lambda x: x * 0.1, lambda x: x * 0.10000000149011612, "f64[5]"),
    wrong("a third to seven digits", lambda x: x / 3, lambda x: x * 0.3333333, "f64[5]"),
    wrong("a root to six digits", lambda x: x * 88**-0.5, lambda x: x * 0.106600, "f64[5]"),
    wrong("a constant of the size of a prime", lambda x: x.sin() + 2444789759.0, torch.sin, "f64[5]"),
    wrong(
        "a constant of the size of a prime, inside",
        lambda x: (x + 2444789759.0) * 1e-9,
        lambda x: x * 1e-9,
        "f64[5]",
    ),
    wrong("a factor that is one more than a prime", lambda x: x * 2147483648.0, lambda x: x * 1.0, "f64[5]"),
    wrong("a constant of two to 31 less one", lambda x: x.tanh() + 2147483647.0, torch.tanh, "f64[5]"),
    wrong(
        "an epsilon inside or outside of a root",
        lambda x: (x.square() + 1e-6).sqrt(),
        lambda x: x.abs() + 1e-6,
        "f32[5]",
    ),
    wrong(
        "lerp the other way",
        lambda a, b: torch.lerp(a, b, 0.25),
        lambda a, b: torch.lerp(b, a, 0.25),
        "f32[5] f32[5]",
    ),
    wrong(
        "a square of a sum without its middle",
        lambda a, b: (a + b) ** 2,
        lambda a, b: a * a + b * b,
        "f32[5] f32[5]",
    ),
    wrong("a soft cap of one side", lambda x: 30 * (x / 30).tanh(), lambda x: (x / 30).tanh(), "f32[5]"),
    wrong(
        "precedence of a quotient",
        lambda a, b, c: a / (b / c),
        lambda a, b, c: a / b / c,
        "f32[5] f32[5] f32[5]",
    ),
    wrong("swapped operands of minus", lambda a, b: a - b, lambda a, b: b - a, "f32[5] f32[5]"),
    wrong("a fmod for a remainder", torch.remainder, torch.fmod, "f32[5] f32[5]"),
    wrong("floor for trunc", torch.floor, torch.trunc, "f32[5]", pool=(0.5, -0.5, 1.5, -1.5)),
    wrong(
        "round for floor of half more", torch.round, lambda x: (x + 0.5).floor(), "f32[5]", pool=(0.5, 2.5)
    ),
)
