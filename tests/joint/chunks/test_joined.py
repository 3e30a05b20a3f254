"""Axes that always occur together are one axis of the chunks: ignored words of sentences take none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.backend.decision import Decision
from superopt.backend.joint.chunks.joined import joined
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.joint.limits import changed
from superopt.ir import Graph, parse_graph
from superopt.trace import trace
from superopt.trace.run import TORCH_DTYPES, run_graph

from ..steps import WIDTH, WORDS
from ..test_random import compiled, gradients

B, S, K, N, ROWS = 3, 8, 5, 64, 4
IGNORED = -100

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def graph_of(axes: str, *lines: str) -> Graph:
    return parse_graph("\n".join(["graph g", f"axes {axes}", *lines]))


TOGETHER = {
    "side by side": (
        graph_of(
            "b=2 s=3 k=4",
            *("in x: f32[b, s, k]", "in y: f32[b, s]", "t2 = mul(x, y)", "t3 = sum[b, s](t2)"),
            *("out u: f32[b, s, k] = t2", "out v: f32[k] = t3"),
        ),
        {"b_s": ("b", "s")},
    ),
    "in one dimension": (
        graph_of(
            "b=2 s=3 k=4",
            *("in x: f32[(b s), k]", "in y: f32[b, s]", "t2 = mul(x, y)", "out u: f32[b, s, k] = t2"),
        ),
        {"b_s": ("b", "s")},
    ),
    "in another order": (
        graph_of(
            "b=2 s=3 k=4",
            *("in x: f32[s, b, k]", "in y: f32[b, s]", "t2 = mul(x, y)", "t3 = sum[k](t2)"),
            *("out u: f32[k, s, b] = t2", "out v: f32[b, s] = t3"),
        ),
        {"s_b": ("s", "b")},
    ),
    "apart": (
        graph_of(
            "b=2 s=3 k=4",
            *("in x: f32[b, k, s]", "in w: f32[k]", "t2 = mul(x, w)", "out u: f32[k, b, s] = t2"),
        ),
        {"b_s": ("b", "s")},
    ),
    "their sizes": (
        graph_of(
            "b=2 s=3 k=4",
            *("in x: f32[b, s, k]", "in w: f32[k]", "t2 = mul(x, w)", "t3 = sum[b, s](t2)"),
            *("t4 = size[s]()", "t5 = size[b]()", "t6 = div(t3, t4)", "t7 = div(t6, t5)"),
            "out v: f32[k] = t7",
        ),
        {"b_s": ("b", "s")},
    ),
    "three, and two others": (
        graph_of(
            "a=2 b=2 c=3 k=2 l=3",
            *("in x: f32[a, b, c, k, l]", "in w: f32[k, l]", "t2 = contract[k, l](x, w)"),
            "out u: f32[c, a, b] = t2",
        ),
        {"a_b_c": ("a", "b", "c"), "k_l": ("k", "l")},
    ),
    "a name that is taken": (
        graph_of(
            "b=2 s=3 b_s=4",
            *("in x: f32[b, s, b_s]", "in w: f32[b_s]", "t2 = mul(x, w)", "out u: f32[b, s, b_s] = t2"),
        ),
        {"b_s_": ("b", "s")},
    ),
}


def assert_means_the_same(program: Graph) -> None:
    """Compare a program with its goal, for numbers that enter and leave as the program's do."""
    torch.manual_seed(0)
    given = {
        port.name: torch.randn(program.shape(port)).to(TORCH_DTYPES[port.dtype]) for port in program.inputs
    }
    found = joined(program)
    made = found.leave(run_graph(found.goal, found.enter(given)))
    torch.testing.assert_close(made, run_graph(program, given))


@pytest.mark.parametrize("name", TOGETHER)
def test_axes_that_occur_together_are_joined(name: str) -> None:
    program, parts = TOGETHER[name]
    assert joined(program).parts == parts
    assert set(joined(program).goal.sizes) & {one for group in parts.values() for one in group} == set()
    assert_means_the_same(program)


APART = {
    "one is summed": ("in x: f32[b, s]", "t1 = sum[s](x)", "out u: f32[b] = t1"),
    "one after another": ("in x: f32[b, s]", "t1 = sum[s](x)", "t2 = sum[b](t1)", "out u: f32[] = t2"),
    "a tensor has one": ("in x: f32[b, s]", "in y: f32[s]", "t2 = mul(x, y)", "out u: f32[b, s] = t2"),
    "positions count": ("in x: f32[b, s]", "t1 = index[s]()", "t2 = mul(x, t1)", "out u: f32[b, s] = t2"),
    "one is renamed": ("in x: f32[b, s]", "t1 = rename[s->r](x)", "out u: f32[b, r] = t1"),
    "one is selected": ("in x: f32[b, s]", "t1 = select[s=1](x)", "out u: f32[b] = t1"),
}


@pytest.mark.parametrize("name", APART)
def test_axes_that_are_told_apart_stay(name: str) -> None:
    program = graph_of("b=3 s=3 r=3", *APART[name])
    assert joined(program).parts == {}
    assert joined(program).goal == program


def labels(kept: int) -> Tensor:
    """Return labels of sentences, of which so many are not ignored, here and there."""
    y = torch.full((B * S,), IGNORED)
    y[torch.randperm(B * S)[:kept]] = torch.randint(0, N, (kept,))
    return y.view(B, S)


def loss(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A loss and its gradients, where sentences come first."""
    keep = y != IGNORED
    d = (x @ w.t()).softmax(-1) - F.one_hot(torch.where(keep, y, 0), N).float()
    d = torch.where(keep[..., None], d, 0.0)
    return d @ w, d.flatten(0, 1).t() @ x.flatten(0, 1), d.square().sum()


def words_first(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The same of hidden states whose words come first."""
    dx, dw, made = loss(x.transpose(0, 1), w, y)
    return dx.transpose(0, 1), dw, made


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 20, 21, B * S])
@pytest.mark.parametrize(("function", "shape"), [(loss, (B, S, K)), (words_first, (S, B, K))])
def test_ignored_words_take_no_chunk(
    function: Callable[..., Any], shape: tuple[int, ...], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(kept)
    chunks = list[int]()
    chunk = TiledKernel._compute_chunk
    monkeypatch.setattr(
        TiledKernel, "_compute_chunk", lambda *a, **n: (chunks.append(a[1]), chunk(*a, **n))[1]
    )
    given = torch.randn(shape), torch.randn(N, K), labels(kept)
    traced = trace(function, *given, for_proof=True)
    [axis] = [one for one in joined(traced.graph).goal.axes if one.size == B * S]
    known = dict(zip(traced.input_names, given, strict=True))
    with changed(fused=False, product_flops=1):
        made = Tiles(traced.graph, axis.name, ROWS, 4 * B * S * N - 1)(known)
    wanted = {name: one.float() for name, one in run_graph(traced.graph, known).items()}
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    assert all(one.is_contiguous() for one in made.values())
    assert chunks == [ROWS] * -(-kept // ROWS)


def flat(logits: Tensor, y: Tensor, **more: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), **more)


def padded(logits: Tensor, y: Tensor) -> Tensor:
    """Labels are moved by one word, as models of transformers move them."""
    return flat(logits, F.pad(y, (0, 1), value=IGNORED)[..., 1:].contiguous())


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
    share = torch.linspace(0, 1, y.numel()).view(y.shape)
    return (each * share).sum() / share.sum()


def with_z(logits: Tensor, y: Tensor) -> Tensor:
    z = logits.logsumexp(-1).square()
    return flat(logits, y) + 0.01 * torch.where(y != IGNORED, z, 0.0).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": flat,
    "sum": lambda logits, y: flat(logits, y, reduction="sum"),
    "smooth": lambda logits, y: flat(logits, y, label_smoothing=0.1),
    "by classes": lambda logits, y: flat(
        logits, y, weight=torch.linspace(0.5, 2.0, WORDS, dtype=logits.dtype)
    ),
    "classes second": lambda logits, y: F.cross_entropy(logits.transpose(1, 2), y),
    "capped": lambda logits, y: flat(5 * torch.tanh(logits / 5), y),
    "padded": padded,
    "weighted": weighted,
    "z": with_z,
    "z of all": lambda logits, y: flat(logits, y) + 0.01 * logits.logsumexp(-1).square().mean(),
    "shifted": lambda logits, y: flat(logits[:, :-1], y[:, 1:]),
    "each sentence": lambda logits, y: torch.stack(
        [flat(a[None], b[None]) for a, b in zip(logits, y, strict=True)]
    ).sum(),
}


QUICK = ("mean", "padded", "weighted")


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        pytest.param(name, memory, marks=[] if name in QUICK and memory == "balanced" else pytest.mark.slow)
        for name in LOSSES
        for memory in ("fast", "balanced", 9000)
    ],
)
def test_losses_of_sentences(name: str, memory: str | int, noted: list[Decision]) -> None:
    torch.manual_seed(0)

    def step(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return LOSSES[name](x @ w.t(), y)

    given = [torch.randn(3, 9, WIDTH), torch.randn(WORDS, WIDTH)]
    with changed(fused=False):
        ours = compiled(step, memory, noted)
        for kept in (27, 14, 2, 20):
            y = torch.randint(0, WORDS, (27,))
            y[torch.randperm(27)[kept:]] = IGNORED
            y = y.view(3, 9)
            y[:, 1] = 3  # no sentence is ignored
            found, wanted = (
                gradients(ours, given, y, 1.0),
                gradients(step, [one.double() for one in given], y, 1.0),
            )
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    assert any(one.taken for one in noted) or name == "each sentence"
