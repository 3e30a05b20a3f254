"""Training steps: losses computed in turns have eager's results and gradients."""

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superopt.backend.decision import Decision, Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint import choice, joint_pass, run, stages

with warnings.catch_warnings():  # Inductor warns of parts of PyTorch as it is imported
    warnings.simplefilter("ignore")
    import torch._functorch.config
    import torch._inductor.compile_fx

WORDS, WIDTH = 90, 12

Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def noted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Decision]]:
    """Take small turns whatever a race says, and nothing else; return what was decided."""
    made: list[Decision] = []
    note = Ledger.note

    def noting(self: Ledger, decision: Decision, title: str) -> None:
        made.append(decision)
        note(self, decision, title)

    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "superopt"))
    monkeypatch.setattr(Ledger, "note", noting)
    monkeypatch.setattr(RegionPass, "_run", lambda *given: None)
    monkeypatch.setattr(joint_pass, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(choice, "_TURN_BYTES", 4 * WORDS * 10)
    monkeypatch.setattr(choice, "_MORE", (1,))
    monkeypatch.setattr(stages, "_LEAST_FLOPS", 1)
    monkeypatch.setattr(joint_pass, "_RACE_S", 0.05)
    monkeypatch.setattr(joint_pass, "_MOST_RACE_S", 0.05)
    monkeypatch.setattr(joint_pass, "even", lambda: 0.0)
    if request.node.get_closest_marker("slow") is None:  # turns by PyTorch's operators, for speed
        for module in (run, joint_pass):
            monkeypatch.setattr(module, "compiled_by_inductor", lambda graph, *given: graph)
    torch._dynamo.reset()
    # Each test compiles its graph.
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield made
    torch._dynamo.reset()


class Model(nn.Module):
    """Words, a layer, a norm, and a loss of the words that follow."""

    def __init__(self, loss: Loss, *, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss = loss
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        x = self.words(read)
        logits = self.head(self.norm(x + torch.relu(self.layer(x))))
        return self.loss(logits.flatten(0, 1), wanted.flatten())


def plain(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted)


def summed(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted, reduction="sum")


def smooth(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted, label_smoothing=0.1)


def capped(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(30 * torch.tanh(logits / 30), wanted)


def with_z(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted) + 1e-2 * logits.logsumexp(-1).square().mean()


def squared(logits: Tensor, wanted: Tensor) -> Tensor:
    """The gradient that enters depends on the loss."""
    return F.cross_entropy(logits, wanted) ** 2


def words(last: int = WORDS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    read, wanted = torch.randint(0, WORDS, (3, 9)), torch.randint(0, last, (3, 9))
    wanted[0, 3] = -100
    return read, wanted


def step(model: nn.Module, parameters: list[nn.Parameter], by: float) -> list[Tensor]:
    for one in parameters:
        one.grad = None
    loss = model(*words())
    (by * loss).backward()
    return [loss.detach(), *(one.grad.clone() for one in parameters if one.grad is not None)]


SLOW = pytest.mark.slow
MODELS = [
    pytest.param(lambda: Model(plain, tied=True), True, id="tied"),
    pytest.param(lambda: Model(plain, tied=True), True, id="tied, compiled", marks=SLOW),
    pytest.param(lambda: Model(plain, bias=True), True, id="bias", marks=SLOW),
    pytest.param(lambda: Model(summed), True, id="summed", marks=SLOW),
    pytest.param(lambda: Model(capped), True, id="capped", marks=SLOW),
    pytest.param(lambda: Model(with_z), True, id="z", marks=SLOW),
    # Where rounding decides whether a gradient cancels, turns may be refused for their errors.
    pytest.param(lambda: Model(smooth), None, id="smooth", marks=SLOW),
    # What enters the backward pass is no gradient of a loss that counts once: it depends on the loss.
    pytest.param(lambda: Model(squared), False, id="squared", marks=SLOW),
]


@pytest.mark.parametrize(("made", "taken"), MODELS)
def test_gradients_are_eagers(made: Callable[[], Model], taken: bool | None, noted: list[Decision]) -> None:
    model = made()
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 60})
    for by in (1.0, -2.5, 0.0):
        for found, wanted in zip(step(compiled, parameters, by), step(model, parameters, by), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if taken is not None:
        assert any(one.taken for one in noted) == taken, noted


@SLOW
def test_a_label_out_of_range_raises(noted: list[Decision]) -> None:
    model = Model(plain)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 60})
    compiled(*words())
    read, wanted = words()
    wanted[1, 1] = WORDS
    assert [one.taken for one in noted] == [True]
    with pytest.raises(IndexError):
        compiled(read, wanted)


@SLOW
def test_without_gradients_nothing_is_kept_for_them(noted: list[Decision]) -> None:
    model = Model(plain)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 60})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*words()), model(*words()))
    assert noted == []


@SLOW
def test_no_budget_is_no_race(noted: list[Decision], caplog: pytest.LogCaptureFixture) -> None:
    model = Model(plain)
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 0})
    with caplog.at_level(logging.WARNING, "superopt"):
        for found, wanted in zip(step(compiled, parameters, 1.0), step(model, parameters, 1.0), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert [one.taken for one in noted] == [False]
    assert not caplog.records
