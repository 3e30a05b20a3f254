"""Second: gradients of gradients are eager's, or are refused as PyTorch refuses them."""

import logging
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from superopt.backend.joint.double_backward import with_double_backward


def _backend(module: Any, inputs: Any) -> Callable[..., Any]:
    plain = lambda graph, given: make_boxed_func(graph.forward)  # noqa: E731
    second = with_double_backward(module)
    made: Callable[..., Any] = aot_module_simplified(
        module,
        inputs,
        fw_compiler=plain,
        bw_compiler=plain,
        keep_inference_input_mutations=True,  # as Inductor asks
    )
    return second(made)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(6, 8), nn.Linear(8, 2), between

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.last(self.between(self.first(x)))
        return made, made.detach() * 2


def _penalty(program: Callable[..., Any], model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return what a step leaves whose loss has a gradient in it."""
    model.zero_grad()
    made, _ = program(x)
    [first] = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    (first.square().sum() + made.mean()).backward()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def _compiled(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend=_backend)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "superopt"]


def _broken(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return torch.sin(x)  # whose gradient needs x


CASES = [
    pytest.param(torch.tanh, True, id="tanh, trained"),
    pytest.param(F.gelu, False, id="gelu", marks=pytest.mark.slow),
    pytest.param(_broken, False, id="graph break", marks=pytest.mark.slow),
    pytest.param(_broken, True, id="graph break, trained", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("between", "trained"), CASES)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it after a graph break
def test_they_are_eagers(between: Any, trained: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Model(between), torch.randn(5, 6, requires_grad=True)
    program = _compiled(model)
    if trained:
        program(x)[0].sum().backward()
        assert _said(caplog) == []
    wanted = _penalty(model, model, x)
    with caplog.at_level(logging.WARNING, "superopt"):
        for _ in range(2):
            for a, b in zip(_penalty(program, model, x), wanted, strict=True):
                torch.testing.assert_close(a, b)
    lines = _said(caplog)
    assert lines == [lines[0]] * (3 if between is _broken else 1)  # once for each graph
    assert re.match("a gradient is differentiated again: eager PyTorch computes", lines[0])


def _counts(x: Tensor, h: Tensor) -> Tensor:
    return (x * h).exp().sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_inputs_of_which_one_is_made_of_another() -> None:
    """Before: the path through the second one counted twice, and hooks were called twice."""
    program = torch.compile(_counts, backend=_backend)
    found = []
    for one in (program, _counts):
        x, calls = torch.linspace(-1, 1, 5).requires_grad_(), list[Tensor]()
        x.register_hook(calls.append)
        h = x.exp()
        [first] = torch.autograd.grad(one(x, h), x, create_graph=True)
        [second] = torch.autograd.grad(first.sum(), x)
        found.append((first.detach(), second, torch.tensor(len(calls))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_under_autocast() -> None:
    model, x = Model(), torch.randn(5, 6, requires_grad=True)

    def half(program: Callable[..., Any]) -> Callable[..., Any]:
        def run(given: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return program(given)

        return run

    wanted = _penalty(half(model), model, x)
    for a, b in zip(_penalty(half(_compiled(model)), model, x), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_a_product_with_the_second_derivative() -> None:
    model, x = Model(), torch.randn(5, 6)
    parameters, along = list(model.parameters()), [torch.randn_like(one) for one in Model().parameters()]

    def product(program: Callable[..., Any]) -> list[Tensor]:
        first = torch.autograd.grad(program(x)[0].exp().sum(), parameters, create_graph=True)
        inner = torch.stack([(a * b).sum() for a, b in zip(first, along, strict=True)]).sum()
        return [torch.zeros(()) if one is None else one for one in _grad(inner, parameters)]

    for a, b in zip(product(_compiled(model)), product(model), strict=True):
        torch.testing.assert_close(a, b)


def _grad(loss: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def _normed(x: Tensor) -> Tensor:
    return F.batch_norm(x, _MEAN, _VAR, training=True)


_MEAN, _VAR = torch.zeros(8), torch.ones(8)


def _counted(x: Tensor) -> Tensor:
    _MEAN.add_(1)
    return x * _MEAN


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        [x] = ctx.saved_tensors
        return 2 * x * gradient


def _squared(x: Tensor) -> Any:
    return _Squared.apply(x)  # type: ignore[no-untyped-call]


def _squared_twice(x: Tensor) -> Any:
    return checkpoint(_squared, x, use_reentrant=False)


@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")  # which Dynamo does
@pytest.mark.parametrize(
    "between",
    [F.dropout, _normed, _counted, _squared, _squared_twice],
    ids=["drawn", "statistics", "a buffer", "a function of the user's", "one in a checkpoint"],
)
def test_what_cannot_be_run_again_is_refused(between: Any) -> None:
    """A step that writes into a buffer would write into it again.

    Before: what a function of the user's saves counted as a constant, and second gradients were wrong.
    """
    model, x = Model(between), torch.randn(5, 6, requires_grad=True)
    _MEAN.zero_()
    with pytest.raises(RuntimeError, match="double backward"):
        _penalty(_compiled(model), model, x)
    assert between is not _counted or torch.equal(_MEAN, torch.ones(8))


def test_a_step_that_is_refused_draws_nothing() -> None:
    """Before: what it drew before it was refused was gone for the program."""
    model, x = Model(F.dropout), torch.randn(5, 6, requires_grad=True)
    made, _ = _compiled(model)(x)
    before = torch.get_rng_state()
    [first] = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


@pytest.mark.slow
def test_changed_weights_are_refused() -> None:
    model, x = Model(), torch.randn(5, 6, requires_grad=True)
    made, _ = _compiled(model)(x)
    with torch.no_grad():
        model.first.bias.add_(1)
    [first] = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_nothing_else_changes(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Model(), torch.randn(5, 6, requires_grad=True)
    program = _compiled(model)
    for a, b in zip(_first(program, x, model), _first(model, x, model), strict=True):
        torch.testing.assert_close(a, b)
    assert _said(caplog) == []


def _first(program: Callable[..., Any], x: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(program(x)[0].sum(), list(model.parameters()))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it after the first call
def test_a_result_that_is_an_input_belongs_to_the_call_that_made_it() -> None:
    """Before: the second call's inputs were taken for those of the first, and gradients were wrong."""
    torch.manual_seed(0)
    x, *weights = (torch.randn(*size, requires_grad=True) for size in ((4, 8), (8, 8), (8, 8)))

    def first(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w)

    def last(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.contiguous(), torch.tanh(x @ w)

    def gradient(first: Callable[..., Any], last: Callable[..., Any]) -> Tensor:
        same, _ = last(first(x, weights[0]), weights[1])
        return torch.autograd.grad(same.square().sum(), x, create_graph=True)[0]

    compiled = (torch.compile(one, backend=_backend) for one in (first, last))
    torch.testing.assert_close(gradient(*compiled), gradient(first, last))


def test_inputs_are_let_go_after_the_backward_pass() -> None:
    """Before: they lived as long as the loss, which programs collect."""
    model = nn.Linear(6, 1)
    program = torch.compile(lambda x: model(x.mean(0)).sum(), backend=_backend)
    losses, seen = [], []
    for _ in range(3):
        x = torch.randn(5, 6)
        seen.append(weakref.ref(x))
        losses.append(program(x))
        losses[-1].backward()
    del x
    assert [one() for one in seen] == [None] * 3
