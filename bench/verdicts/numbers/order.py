"""Idioms of order: relu and its kin, clamps, maxima."""

from functools import partial

import torch
import torch.nn.functional as F

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="order")
wrong = partial(Pair, equal=False, family="order")

where, maximum, minimum = torch.where, torch.maximum, torch.minimum


IDIOMS = (
    equal(
        "a maximum gathered by its place",
        lambda x: x.gather(1, x.argmax(1, keepdim=True)),
        lambda x: x.amax(1, keepdim=True),
        "f32[4,6]",
    ),
    equal("the place in softmax", lambda x: x.softmax(-1).argmax(-1), lambda x: x.argmax(-1), "f32[4,6]"),
    equal("the place of the least", lambda x: (-x).argmax(0), lambda x: x.argmin(0), "f32[4,6]"),
    equal("the least of one", lambda x: x.topk(1, largest=False)[0], lambda x: x.amin(-1, True), "f32[4,6]"),
    equal("relu of a scaled number", lambda x: (2 * x).relu(), lambda x: 2 * x.relu(), "f32[4,6]"),
    equal("relu as where", torch.relu, lambda x: where(x > 0, x, 0.0), "f32[4,6]"),
    equal("relu as where, equality kept", torch.relu, lambda x: where(x >= 0, x, 0.0), "f32[4,6]"),
    equal("relu as clamp", torch.relu, lambda x: x.clamp(min=0), "f32[4,6]"),
    equal("relu as a product", torch.relu, lambda x: x * (x > 0), "f32[4,6]"),
    equal("relu by abs", torch.relu, lambda x: (x + x.abs()) / 2, "f32[4,6]"),
    equal("relu of relu", lambda x: x.relu().relu(), torch.relu, "f32[6]"),
    equal("relu less its mirror", lambda x: x.relu() - (-x).relu(), lambda x: x * 1, "f32[6]"),
    equal("relu plus its mirror", lambda x: x.relu() + (-x).relu(), torch.abs, "f32[6]"),
    equal("relu squared", lambda x: x.relu().square(), lambda x: x.relu() * x, "f32[6]"),
    equal("relu of exp", lambda x: x.exp().relu(), torch.exp, "f32[6]"),
    equal("relu of a square", lambda x: (x * x).relu(), torch.square, "f32[6]"),
    equal(
        "relu of a maximum",
        lambda a, b: maximum(a, b).relu(),
        lambda a, b: maximum(a.relu(), b.relu()),
        "f32[5] f32[5]",
    ),
    equal("leaky relu", lambda x: F.leaky_relu(x, 0.1), lambda x: where(x > 0, x, 0.1 * x), "f32[6]"),
    equal("leaky relu as a maximum", lambda x: F.leaky_relu(x, 0.1), lambda x: maximum(x, 0.1 * x), "f32[6]"),
    equal(
        "leaky relu by relus",
        lambda x: F.leaky_relu(x, 0.2),
        lambda x: x.relu() - 0.2 * (-x).relu(),
        "f32[6]",
    ),
    equal("relu6", F.relu6, lambda x: x.clamp(0, 6), "f32[6]"),
    equal("relu6 by minimum", F.relu6, lambda x: x.relu().clamp(max=6.0), "f32[6]"),
    equal("hard tanh", F.hardtanh, lambda x: x.clamp(-1, 1), "f32[6]"),
    equal("hard tanh by relus", F.hardtanh, lambda x: (x + 1).relu() - (x - 1).relu() - 1, "f32[6]"),
    equal("hard sigmoid", F.hardsigmoid, lambda x: (x + 3).clamp(0, 6) / 6, "f32[6]"),
    equal("hard swish", F.hardswish, lambda x: x * (x + 3).clamp(0, 6) / 6, "f32[6]"),
    equal("elu", F.elu, lambda x: where(x > 0, x, x.exp() - 1), "f32[6]"),
    equal("a threshold", lambda x: F.threshold(x, 0.5, -1.0), lambda x: where(x > 0.5, x, -1.0), "f32[6]"),
    equal("hard shrink", lambda x: F.hardshrink(x, 0.5), lambda x: where(x.abs() > 0.5, x, 0.0), "f32[6]"),
    equal(
        "soft shrink",
        lambda x: F.softshrink(x, 0.5),
        lambda x: (x - 0.5).relu() - (-x - 0.5).relu(),
        "f32[6]",
    ),
    equal(
        "clamps in either order",
        lambda x: x.clamp(min=-1).clamp(max=6),
        lambda x: x.clamp(max=6).clamp(min=-1),
        "f32[6]",
    ),
    equal("a clamp in two", lambda x: x.clamp(-1, 6), lambda x: x.clamp(min=-1).clamp(max=6), "f32[6]"),
    equal("a clamp of a clamp", lambda x: x.clamp(-2, 2).clamp(-1, 1), lambda x: x.clamp(-1, 1), "f32[6]"),
    equal("a clamp of minus", lambda x: (-x).clamp(-1, 2), lambda x: -(x.clamp(-2, 1)), "f32[6]"),
    equal("a clamp shifted", lambda x: (x + 1).clamp(0, 2), lambda x: x.clamp(-1, 1) + 1, "f32[6]"),
    equal("a clamp scaled", lambda x: (3 * x).clamp(-3, 3), lambda x: 3 * x.clamp(-1, 1), "f32[6]"),
    equal(
        "a clamp as where",
        lambda x: x.clamp(-1, 1),
        lambda x: where(x < -1, -1.0, where(x > 1, 1.0, x)),
        "f32[6]",
    ),
    equal("a clamp that does nothing", lambda x: x.sigmoid().clamp(0, 1), torch.sigmoid, "f32[6]"),
    equal(
        "a maximum shifted",
        lambda a, b, c: maximum(a + c, b + c),
        lambda a, b, c: maximum(a, b) + c,
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "a maximum scaled",
        lambda a, b: maximum(2 * a, 2 * b),
        lambda a, b: 2 * maximum(a, b),
        "f32[5] f32[5]",
    ),
    equal("a maximum of minus", lambda a, b: maximum(-a, -b), lambda a, b: -minimum(a, b), "f32[5] f32[5]"),
    equal("a maximum by relu", maximum, lambda a, b: b + (a - b).relu(), "f32[5] f32[5]"),
    equal("a maximum by abs", maximum, lambda a, b: (a + b + (a - b).abs()) / 2, "f32[5] f32[5]"),
    equal("a maximum as where", maximum, lambda a, b: where(a > b, a, b), "f32[5] f32[5]"),
    equal("a maximum turned", maximum, lambda a, b: maximum(b, a), "f32[5] f32[5]"),
    equal(
        "maximum and minimum add up",
        lambda a, b: maximum(a, b) + minimum(a, b),
        lambda a, b: a + b,
        "f32[5] f32[5]",
    ),
    equal(
        "maximum and minimum multiply",
        lambda a, b: maximum(a, b) * minimum(a, b),
        lambda a, b: a * b,
        "f32[5] f32[5]",
    ),
    equal(
        "maximum less minimum",
        lambda a, b: maximum(a, b) - minimum(a, b),
        lambda a, b: (a - b).abs(),
        "f32[5] f32[5]",
    ),
    equal(
        "maxima of three",
        lambda a, b, c: maximum(maximum(a, b), c),
        lambda a, b, c: maximum(a, maximum(c, b)),
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "maximum over minimum",
        lambda a, b, c: minimum(maximum(a, b), c),
        lambda a, b, c: maximum(minimum(a, c), minimum(b, c)),
        "f32[5] f32[5] f32[5]",
    ),
    equal("a maximum absorbed", lambda a, b: maximum(a, minimum(a, b)), lambda a, b: a * 1, "f32[5] f32[5]"),
    equal(
        "a maximum of exps",
        lambda a, b: maximum(a.exp(), b.exp()),
        lambda a, b: maximum(a, b).exp(),
        "f32[5] f32[5]",
    ),
    equal("abs as a maximum", torch.abs, lambda x: maximum(x, -x), "f32[5]"),
    equal("abs as where", torch.abs, lambda x: where(x < 0, -x, x), "f32[5]"),
    equal("a maximum of a row shifted", lambda x: (x + 3).amax(-1), lambda x: x.amax(-1) + 3, "f32[4,6]"),
    equal("a minimum by maximum of minus", lambda x: x.amin(-1), lambda x: -(-x).amax(-1), "f32[4,6]"),
    equal("a maximum of all", lambda x: x.amax(), lambda x: x.amax(0).amax(), "f32[4,6]"),
    equal(
        "a maximum of abs", lambda x: x.abs().amax(-1), lambda x: maximum(x.amax(-1), -x.amin(-1)), "f32[4,6]"
    ),
    equal("relu of a row's maximum", lambda x: x.amax(-1).relu(), lambda x: x.relu().amax(-1), "f32[4,6]"),
)

WRONG = (
    wrong(
        "the last place of a maximum",
        lambda x: x.argmax(-1),
        lambda x: 5 - x.flip(-1).argmax(-1),
        "f32[4,6]",
    ),
    wrong("the place of another maximum", lambda x: x.argmax(-1), lambda x: x.abs().argmax(-1), "f32[4,6]"),
    wrong(
        "a maximum gathered along the other axis",
        lambda x: x.gather(0, x.argmax(0, keepdim=True)),
        lambda x: x.amax(1, keepdim=True).T,
        "f32[4,4]",
    ),
    wrong(
        "a maximum gathered by the place of the least",
        lambda x: x.gather(1, x.argmin(1, keepdim=True)),
        lambda x: x.amax(1, keepdim=True),
        "f32[4,6]",
    ),
    wrong(
        "the place in a scaled row",
        lambda x, y: x.argmax(-1),
        lambda x, y: (x * y).argmax(-1),
        "f32[4,6] f32[4,1]",
    ),
    wrong("a clamp at another bound", lambda x: x.clamp(-1, 6), lambda x: x.clamp(-1, 5), "f32[6]"),
    wrong("a clamp far out", lambda x: x.clamp(-100, 100), lambda x: x.clamp(-100, 101), "f32[6]"),
    wrong("a clamp dropped", lambda x: x.clamp(-50, 50).exp(), torch.exp, "f32[6]"),
    wrong("one bound of a clamp dropped", lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=-1), "f32[6]"),
    wrong(
        "a clamp of minus, bounds kept", lambda x: (-x).clamp(-1, 2), lambda x: -(x.clamp(-1, 2)), "f32[6]"
    ),
    wrong(
        "clamps that cross",
        lambda x: x.clamp(max=-1).clamp(min=1),
        lambda x: x.clamp(min=1).clamp(max=-1),
        "f32[6]",
    ),
    wrong("relu of minus two times", lambda x: (-2 * x).relu(), lambda x: -2 * x.relu(), "f32[6]"),
    wrong("relu of a sum", lambda a, b: (a + b).relu(), lambda a, b: a.relu() + b.relu(), "f32[5] f32[5]"),
    wrong("relu dropped", torch.relu, lambda x: x * 1, "f32[6]"),
    wrong("relu of a shifted number", lambda x: (x + 1).relu(), lambda x: x.relu() + 1, "f32[6]"),
    wrong("another slope", lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.01), "f32[6]"),
    wrong(
        "leaky relu with a slope above one as a maximum",
        lambda x: F.leaky_relu(x, 2.0),
        lambda x: maximum(x, 2.0 * x),
        "f32[6]",
    ),
    wrong(
        "a maximum scaled by minus one",
        lambda a, b: maximum(-a, -b),
        lambda a, b: -maximum(a, b),
        "f32[5] f32[5]",
    ),
    wrong(
        "a maximum of a product",
        lambda a, b, c: maximum(a * c, b * c),
        lambda a, b, c: maximum(a, b) * c,
        "f32[5] f32[5] f32[5]",
    ),
    wrong("minimum for maximum", maximum, minimum, "f32[5] f32[5]"),
    wrong(
        "a maximum of abs without one side",
        lambda x: x.abs().amax(-1),
        lambda x: x.amax(-1).abs(),
        "f32[4,6]",
    ),
    wrong("hard sigmoid with another slope", F.hardsigmoid, lambda x: (0.2 * x + 0.5).clamp(0, 1), "f32[6]"),
    wrong("elu without minus one", F.elu, lambda x: where(x > 0, x, x.exp()), "f32[6]"),
    wrong(
        "soft shrink for hard shrink",
        lambda x: F.softshrink(x, 0.5),
        lambda x: F.hardshrink(x, 0.5),
        "f32[6]",
    ),
    wrong(
        "a threshold that keeps its bound",
        lambda x: F.threshold(x, 0.5, -1.0),
        lambda x: where(x >= 0.5, x, -1.0),
        "f32[6]",
    ),
)
