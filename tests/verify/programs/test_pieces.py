"""Deep models: proven layer by layer, with a bound on the whole, and the layer that differs named."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superopt.trace import trace
from superopt.verify.equivalent import equivalent
from superopt.verify.programs.pieces import Ordered, Target, canonical, cut_port, piece, with_same_inputs
from superopt.verify.programs.whole import Whole

WIDTH, HEADS, HIDDEN = 32, 4, 64


class Layer(nn.Module):
    """The parameters of one decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)


class Llama(nn.Module):
    """A decoder as it is written."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.head = nn.Linear(WIDTH, 50, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        for number, layer in enumerate(self.layers):
            y = self.rms(x, layer.norm1)
            q, k, v = (
                one(y).view(batch, length, HEADS, -1).transpose(1, 2) for one in (layer.q, layer.k, layer.v)
            )
            mixed = self.attend(rotated(q), rotated(k), v)
            x = x + layer.o(mixed.transpose(1, 2).reshape(batch, length, -1))
            y = self.rms(x, layer.norm2)
            x = x + layer.down(self.gated(layer.gate(y), layer.up(y), number))
        return self.head(self.rms(x, self.norm))

    def rms(self, x, weight):
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def gated(self, gate, up, number):
        return F.silu(gate) * up


class Rewritten(Llama):
    """The same decoder in other words; `faulty` is a layer that is a little off."""

    faulty = -1

    def rms(self, x, weight):
        return weight * (x / torch.sqrt(x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6))

    def attend(self, q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return (e @ v) / e.sum(-1, keepdim=True)

    def gated(self, gate, up, number):
        return up * (gate / (1 + torch.exp(-gate))) * (1.01 if number == self.faulty else 1)


def rotated(x):
    length, width = x.shape[-2:]
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    cos, sin = (torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
    turned = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1)
    return x * cos + turned * sin


def models(layers, faulty=-1):
    torch.manual_seed(0)
    model, other = Llama(layers), Rewritten(layers)
    other.load_state_dict(model.state_dict())
    other.faulty = faulty
    return model.eval(), other.eval(), torch.randn(2, 6, WIDTH)


def test_layers_are_proven_one_by_one():
    model, other, x = models(2)
    said: list[str] = []
    verdict = equivalent(model, other, x, floats=False, progress=said.append)
    assert verdict.equal, str(verdict)
    assert verdict.error_bound < 2.0**-60
    assert any(text.startswith("algebra: piece 2 of") for text in said)


def test_a_refutation_names_the_layer():
    verdict = equivalent(*models(3, faulty=1))
    assert verdict.different, str(verdict)
    assert verdict.counterexample is not None
    assert "layers.1.down.weight" in verdict.place
    assert "layers.0." not in verdict.place
    assert "layers.2." not in verdict.place


@pytest.mark.slow
def test_thirty_two_layers():
    verdict = equivalent(*models(32), floats=False)
    assert verdict.equal, str(verdict)
    assert verdict.error_bound < 2.0**-60
    assert verdict.seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [0, 17, 31])
def test_an_error_in_one_of_thirty_two_layers(faulty):
    verdict = equivalent(*models(32, faulty))
    assert verdict.different, str(verdict)
    assert f"layers.{faulty}.down.weight" in verdict.place


def test_a_difference_that_later_layers_hide_is_none():
    # The pieces differ, and the programs do not: what a cut makes arbitrary is no proof of a difference.
    def deep(x, w, factor):
        for _ in range(6):
            x = x + torch.tanh((x * factor) @ w) / factor
        return x - x

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    verdict = equivalent(lambda x, w: deep(x, w, 1), lambda x, w: deep(x, w, 2), x, w)
    assert not verdict.different, str(verdict)


GRAPH = trace(lambda x, w: (2 * x @ w).relu() @ w, torch.randn(4, 8), torch.randn(8, 8)).graph


def test_a_piece_begins_at_its_stops():
    side = Ordered(Whole.of_graph(GRAPH))
    end = side.results[0]
    whole = piece(side, [end], {}, {})
    assert [port.name for port in whole.inputs] == ["x", "w"]
    middle = next(v for v in side.order if side.graph.step_of(v).op == "contract")
    half = piece(side, [end], {middle: cut_port(side, middle, "middle")}, {"w": "w"})
    assert {port.name for port in half.inputs} == {"middle", "w"}
    assert len(half.steps) < len(whole.steps)
    start = piece(side, [Target(cut_port(side, middle, "middle"), middle)], {}, {})
    assert len(start.steps) + len(half.steps) == len(whole.steps)


def test_pieces_that_differ_in_names_alone_are_one_claim():
    first, second = (
        trace(lambda a, b: (2 * a @ b).relu(), torch.randn(4, 8), torch.randn(8, 8)).graph,
        trace(lambda p, q: (2 * p @ q).relu(), torch.randn(4, 8), torch.randn(8, 8)).graph,
    )
    pieces = [
        piece(side, side.results, {}, {})
        for side in (Ordered(Whole.of_graph(one)) for one in (first, second))
    ]
    assert pieces[0] != pieces[1]
    assert canonical(pieces[0], pieces[0]) == canonical(pieces[1], pieces[1])
    other = trace(lambda p, q: (3 * p @ q).relu(), torch.randn(4, 8), torch.randn(8, 8)).graph
    third = piece(Ordered(Whole.of_graph(other)), Ordered(Whole.of_graph(other)).results, {}, {})
    assert canonical(pieces[1], pieces[1]) != canonical(third, third)


def test_pieces_get_each_others_inputs():
    side = Ordered(Whole.of_graph(GRAPH))
    ends = [value for value in side.order if side.graph.step_of(value).op == "contract"]
    targets = [Target(cut_port(side, value, "end"), value) for value in ends]
    a = piece(side, targets[:1], {}, {})
    b = piece(side, targets[1:], {ends[0]: cut_port(side, ends[0], "middle")}, {})
    left, right = with_same_inputs(a, b)
    assert {port.name for port in left.inputs} == {port.name for port in right.inputs} == {"x", "w", "middle"}


def test_programs_of_many_axes_are_evaluated_a_few_at_a_time():
    def tower(x, *weights, factor):
        for weight in weights:  # each product has an axis of its own
            x = torch.tanh(x @ (weight * factor))
        return x

    widths = [3 + i % 5 for i in range(81)]
    weights = [torch.randn(m, n) for m, n in pairwise(widths)]
    x = torch.randn(2, widths[0])
    doubled = equivalent(
        lambda x, *w: tower(x, *w, factor=2),
        lambda x, *w: tower(x, *(v + v for v in w), factor=1),
        x,
        *weights,
    )
    assert doubled.equal, str(doubled)
