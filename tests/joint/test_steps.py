"""Training steps: losses computed in chunks have eager's results and gradients."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from superopt.backend import subgraph
from superopt.backend.decision import Decision

from .steps import WIDTH, WORDS, Model, capped, plain, smooth, squared, step, summed, with_z, words
from .test_random import compiled

SLOW = pytest.mark.slow
MODELS = [
    pytest.param(lambda: Model(plain, tied=True, short=True), True, id="short"),
    pytest.param(lambda: Model(plain, tied=True), True, id="tied, compiled", marks=SLOW),
    pytest.param(lambda: Model(plain, bias=True), True, id="bias", marks=SLOW),
    pytest.param(lambda: Model(summed), True, id="summed", marks=SLOW),
    pytest.param(lambda: Model(capped), True, id="capped", marks=SLOW),
    pytest.param(lambda: Model(with_z), True, id="z", marks=SLOW),
    # Where rounding decides whether a gradient cancels, chunks may be refused for their errors.
    pytest.param(lambda: Model(smooth), None, id="smooth", marks=SLOW),
    # What enters the backward pass depends on the loss itself.
    pytest.param(lambda: Model(squared), True, id="squared", marks=SLOW),
]


@pytest.mark.parametrize(("made", "taken"), MODELS)
def test_gradients_are_eagers(made: Callable[[], Model], taken: bool | None, noted: list[Decision]) -> None:
    model = made()
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})
    for by in (1.0, -2.5, 0.0):
        for found, wanted in zip(step(compiled, parameters, by), step(model, parameters, by), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if taken is not None:
        assert any(one.taken for one in noted) == taken, noted


@pytest.mark.parametrize("known", [True, False])
def test_operators_of_inductors_own_are_no_fault(
    known: bool, noted: list[Decision], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: flipped logits raised KeyError, which was logged as a warning."""

    def flipped(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy((x @ w.t()).flip(-1), y)

    if not known:
        monkeypatch.setattr(subgraph, "_PRIMS", {})
    torch.manual_seed(0)
    given = [torch.randn(27, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()]
    y = torch.randint(0, WORDS, (27,))
    with caplog.at_level(logging.WARNING, "superopt"):
        found = torch.autograd.grad(compiled(flipped, "fast", noted)(*given, y), given)
    for a, b in zip(found, torch.autograd.grad(flipped(*given, y), given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not caplog.records


def test_nodes_may_come_in_any_order(noted: list[Decision]) -> None:
    """Before: a joint graph that a pass of Inductor's had not sorted was left as it was."""

    def unsorted(graph: fx.Graph) -> None:
        [output] = graph.find_nodes(op="output")
        first = next(node for node in graph.nodes if node.op == "call_function" and len(node.users))
        output.prepend(first)

    def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ w.t(), y)

    torch.manual_seed(0)
    given = [torch.randn(27, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()]
    y = torch.randint(0, WORDS, (27,))
    found = torch.autograd.grad(compiled(loss, "fast", noted, unsorted)(*given, y), given)
    for a, b in zip(found, torch.autograd.grad(loss(*given, y), given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert [one.taken for one in noted] == [True]


def test_a_step_without_labels_leaves_no_gradient(noted: list[Decision]) -> None:
    """Before: a loss that the step itself divides by a number of labels, of 0, made all gradients NaN."""

    def divided(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ w.t(), y, reduction="sum") / (y != -100).sum()

    torch.manual_seed(0)
    given = [torch.randn(27, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()]
    program = compiled(divided, "fast", noted)
    for y in (torch.randint(0, WORDS, (27,)), torch.full((27,), -100)):
        found, wanted = (torch.autograd.grad(one(*given, y), given) for one in (program, divided))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert any(one.taken for one in noted), noted


@SLOW
def test_a_label_out_of_range_raises(noted: list[Decision]) -> None:
    model = Model(plain)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})
    compiled(*words())
    read, wanted = words()
    wanted[1, 1] = WORDS
    assert [one.taken for one in noted] == [True]
    with pytest.raises(IndexError):
        compiled(read, wanted)


@SLOW
def test_without_gradients_nothing_is_kept_for_them(noted: list[Decision]) -> None:
    model = Model(plain)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})
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


@SLOW
@pytest.mark.parametrize(
    "made", [lambda: Model(plain, tied=True, short=True), lambda: Model(plain, bias=True)]
)
def test_gradients_under_autocast(made: Callable[[], Model], noted: list[Decision]) -> None:
    model = made()
    parameters = list(model.parameters())
    exact_model = made().double()
    exact = step(exact_model, list(exact_model.parameters()), 1.0)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})

    def autocast(program: Any) -> list[torch.Tensor]:
        def run(*given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return program(*given)

        return step(run, parameters, 1.0)

    for found, wanted, best in zip(autocast(compiled), autocast(model), exact, strict=True):
        assert found.dtype == wanted.dtype
        error, allowed = (float((one - best).abs().max()) for one in (found, wanted))
        assert error <= 2 * allowed + 1e-3 * float(best.abs().max())
    assert [one.taken for one in noted] == [True], noted
