"""Uses: what programs do with a training step besides training, with chunks or without."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from superopt.backend.decision import Decision

from .steps import Model, plain, step, words

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("noted")]

OPTIONS = {"budget_s": 600}


def compiled(model: nn.Module) -> nn.Module:
    made = torch.compile(model, backend="superopt", options=OPTIONS)
    assert isinstance(made, nn.Module)
    return made


def gradients(
    model: nn.Module, backward: Callable[[nn.Module], object], of: nn.Module
) -> list[Tensor | None]:
    """Return what a backward pass of a model leaves in the parameters of another, whose weights it shares."""
    for one in of.parameters():
        one.grad = None
    backward(model)
    return [None if one.grad is None else one.grad.clone() for one in of.parameters()]


def same(
    found: list[Tensor | None], wanted: list[Tensor | None], *, noted: list[Decision], taken: bool | None
) -> None:
    if taken is not None:
        joint = [one for one in noted if one.graph == "joint graph"]  # a pass alone may have chunks as well
        assert any(one.taken for one in joint) == taken, noted
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def accumulated(model: nn.Module) -> None:
    for by in (1.0, -0.5, 2.0):
        (by * model(*words())).backward()


def run_twice(model: nn.Module) -> None:
    loss = model(*words())
    loss.backward(retain_graph=True)
    (3 * loss).backward()


def ignored(model: nn.Module) -> None:
    read, wanted = words()
    model(read, torch.full_like(wanted, -100)).backward()


def strided(model: nn.Module) -> None:
    read, wanted = words()
    model(read.t().contiguous().t(), wanted.t().contiguous().t()).backward()


def in_several_shapes(model: nn.Module) -> None:
    read, wanted = words()
    for size in (9, 5, 1):
        model(read[:, :size], wanted[:, :size]).backward()


@pytest.mark.parametrize("backward", [accumulated, run_twice, ignored, strided, in_several_shapes])
def test_backward_passes_are_eagers(backward: Callable[[nn.Module], None], noted: list[Decision]) -> None:
    model = Model(plain, tied=True)
    with torch._functorch.config.patch(donated_buffer=False):  # else no graph may be run twice
        found = gradients(compiled(model), backward, model)
    same(found, gradients(model, backward, model), noted=noted, taken=True)


def test_an_activation_budget(noted: list[Decision]) -> None:
    model = Model(plain, tied=True)
    with torch._functorch.config.patch(activation_memory_budget=0.3):
        found = gradients(compiled(model), accumulated, model)
    same(found, gradients(model, accumulated, model), noted=noted, taken=True)


class Twice(Model):
    """The logits are used twice, and both uses leave."""

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        logits = self.head(self.words(read)).flatten(0, 1)
        return torch.stack([plain(logits, wanted.flatten()), logits.square().mean()])


class Checkpointed(Model):
    """The user says what is made again."""

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            return plain(self.head(x).flatten(0, 1), wanted.flatten())

        made = checkpoint(loss, self.words(read), use_reentrant=False)
        assert isinstance(made, Tensor)
        return made


class Hooked(Model):
    """A hook changes the gradient of the logits."""

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        logits = self.head(self.words(read)).flatten(0, 1)
        logits.register_hook(lambda gradient: 2 * gradient)
        return plain(logits, wanted.flatten())


class Two(Model):
    """Two losses of the same logits."""

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        logits = self.head(self.words(read)).flatten(0, 1)
        other = F.mse_loss(torch.tanh(logits), torch.zeros_like(logits))
        return plain(logits, wanted.flatten()) + 0.3 * other


@pytest.mark.parametrize(
    ("kind", "taken"), [(Twice, False), (Checkpointed, False), (Hooked, None), (Two, True)]
)
def test_models_of_other_kinds(kind: type[Model], taken: bool | None, noted: list[Decision]) -> None:
    model = kind(plain)

    def backward(program: nn.Module) -> None:
        made = program(*words())
        (made * torch.arange(1.0, made.numel() + 1).view_as(made)).sum().backward()

    found = gradients(compiled(model), backward, model)
    wanted = gradients(model, backward, model)
    same(found, wanted, noted=noted, taken=taken)


def test_second_gradients(noted: list[Decision]) -> None:
    model = Model(plain)
    program, weights = compiled(model), model.head.weight

    def second(given: nn.Module) -> Tensor:
        [first] = torch.autograd.grad(given(*words()), [weights], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [weights])[0]

    step(program, list(model.parameters()), 1.0)  # compiles the backward pass
    torch.testing.assert_close(second(program), second(model), rtol=1e-4, atol=1e-6)


def apart(model: Model) -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
    """Return the parameters of a model, and its loss as a function of them."""

    def loss(given: dict[str, Tensor], read: Tensor, wanted: Tensor) -> Tensor:
        made = torch.func.functional_call(model, given, (read, wanted))
        assert isinstance(made, Tensor)
        return made

    return {name: one.detach() for name, one in model.named_parameters()}, loss


@pytest.mark.parametrize("memory", ["fast", "balanced", 9000])
def test_functional_gradients(memory: str | int, noted: list[Decision]) -> None:
    """Before: only a graph that PyTorch splits into passes had chunks, whatever memory was asked for."""
    parameters, loss = apart(Model(plain))
    gradient = torch.func.grad(loss)
    options = {**OPTIONS, "memory": memory}
    found = torch.compile(gradient, backend="superopt", options=options)(parameters, *words())
    assert any(one.taken for one in noted) == (memory != "fast")
    for name, one in gradient(parameters, *words()).items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("memory", ["fast", "balanced"])
def test_a_loss_alone(memory: str, context: Callable[[], object], noted: list[Decision]) -> None:
    model = Model(plain)
    program = torch.compile(model, backend="superopt", options={**OPTIONS, "memory": memory})
    with context():  # type: ignore[attr-defined]
        torch.testing.assert_close(program(*words()), model(*words()))
    assert memory != "fast" or not any(one.taken for one in noted)


@pytest.mark.parametrize("memory", ["fast", "balanced", 9000])
def test_memory_as_an_option(memory: str | int, noted: list[Decision]) -> None:
    model = Model(plain, tied=True)
    program = torch.compile(model, backend="superopt", options={**OPTIONS, "memory": memory})
    parameters = list(model.parameters())
    for found, wanted in zip(step(program, parameters, 2.0), step(model, parameters, 2.0), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert all(one.taken for one in noted), noted
    titles = [one.graph for one in noted]
    # With less memory, what is kept is chosen as well, and parts of the passes may be computed in chunks.
    assert titles == ["joint graph"] if memory == "fast" else titles[:1] == ["joint graph"]


def trained(
    model: nn.Module, program: Callable[..., Tensor], update: Callable[[torch.optim.Optimizer], object]
) -> list[Tensor]:
    """Return the parameters after some steps of an optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        program(*words()).backward()
        update(optimizer)
    return [one.detach() for one in model.parameters()]


def test_a_compiled_optimizer(noted: list[Decision]) -> None:
    ours, theirs = Model(plain, tied=True), Model(plain, tied=True)
    compiled_step = torch.compile(lambda optimizer: optimizer.step(), backend="superopt", options=OPTIONS)
    found = trained(ours, compiled(ours), compiled_step)
    same(list(found), list(trained(theirs, theirs, lambda one: one.step())), noted=noted, taken=True)


@pytest.mark.parametrize("memory", ["fast", "balanced"])
def test_an_optimizer_in_the_graph_of_the_step(memory: str, noted: list[Decision]) -> None:
    parameters, loss = apart(Model(plain))
    drawn = words()  # here, since compiled code draws other numbers

    def update(given: dict[str, Tensor], speeds: dict[str, Tensor]) -> tuple[dict[str, Tensor], ...]:
        gradients = torch.func.grad(loss)(given, *drawn)
        moved = {name: 0.9 * speed + gradients[name] for name, speed in speeds.items()}
        return {name: one - 0.1 * moved[name] for name, one in given.items()}, moved

    ours = torch.compile(update, backend="superopt", options={**OPTIONS, "memory": memory})
    found = wanted = parameters, {name: torch.zeros_like(one) for name, one in parameters.items()}
    for _ in range(3):
        found, wanted = ours(*found), update(*wanted)
    assert any(one.taken for one in noted) == (memory != "fast")
    for name, one in wanted[0].items():
        torch.testing.assert_close(found[0][name], one, rtol=1e-4, atol=1e-5)


def test_what_is_computed_in_float64_stays_so(noted: list[Decision]) -> None:
    """Before: a cast between two others was the identity of the algebra, and chunks computed in float32."""
    x, w = torch.randn(128, 8, requires_grad=True), torch.randn(256, 8, requires_grad=True)

    def variance(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w.t() + 1e5).double()
        return (y.square().mean(-1) - y.mean(-1).square()).mean().float()

    found = torch.compile(variance, backend="superopt")(x, w)
    torch.testing.assert_close(found, variance(x, w), rtol=1e-4, atol=0)
    assert not any(one.taken for one in noted)
