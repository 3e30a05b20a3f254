"""Agreement: what is compiled is about as close to float64 as eager PyTorch is, gradients too."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

FACTOR = 4.0
"""How many times eager's own error is allowed, beside some units in the last place."""

_ULPS = {torch.float32: 64, torch.bfloat16: 2, torch.float16: 4}
_FEW = 8  # numbers: so few may be right by chance, and eager's error of them says little


def as_accurate(found: Tensor, eager: Tensor, exact: Tensor, what: str = "a result") -> None:
    """Check a tensor against float64, by the error that eager PyTorch makes of it."""
    assert found.shape == eager.shape, what
    assert found.dtype == eager.dtype, what
    if not found.is_floating_point():
        assert torch.equal(found, eager), what
        return
    scale = float(exact.abs().amax()) if exact.numel() else 0.0
    errors = [float((one.double() - exact).abs().amax()) if exact.numel() else 0.0 for one in (found, eager)]
    units = _ULPS[found.dtype] * (8 if exact.numel() < _FEW else 1)
    limit = FACTOR * errors[1] + units * torch.finfo(found.dtype).eps * scale
    assert errors[0] <= limit + 1e-30, (
        f"{what}: error {errors[0]:.2e}, eager's is {errors[1]:.2e}, of {scale:.2e}"
    )


def tensors_of(made: Any) -> list[Tensor]:
    """Return the tensors of a result: itself, or those of a tuple, list or dict, in order."""
    if isinstance(made, Tensor):
        return [made]
    items = made.values() if hasattr(made, "values") else made if isinstance(made, tuple | list) else ()
    return [tensor for one in items for tensor in tensors_of(one)]


def to_double(value: Any) -> Any:
    """Return a copy of a module or of inputs whose floats are float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return value


def loss_of(made: Sequence[Tensor]) -> Tensor:
    """Return a number that depends on all floats of some results."""
    terms = [one.float() if one.dtype != torch.float64 else one for one in made if one.requires_grad]
    return torch.stack([one.square().mean() for one in terms]).sum()


class Trio:
    """A module compiled, by eager PyTorch, and in float64, each with parameters and buffers of its own."""

    def __init__(self, module: nn.Module, compile_it: Callable[[nn.Module], Any]) -> None:
        self.modules = [copy.deepcopy(module), copy.deepcopy(module), to_double(module)]
        self.calls = [compile_it(self.modules[0]), *self.modules[1:]]

    def check(self, *arguments: Any, gradients: bool, **named: Any) -> None:
        """Call all three with the same inputs and compare what they return, and the gradients."""
        made, slopes = [], []
        for call, module, exact in zip(self.calls, self.modules, (False, False, True), strict=True):
            given = [to_double(one) if exact else one for one in arguments]
            given = [_leaf(one) if gradients else one for one in given]
            more = {name: to_double(one) if exact else one for name, one in named.items()}
            with torch.set_grad_enabled(gradients):
                results = tensors_of(call(*given, **more))
            made.append([one.detach() for one in results])
            if gradients:
                sources = {f"input {at}": one for at, one in enumerate(given) if _is_float(one)}
                sources |= {f"parameter {name}": one for name, one in module.named_parameters()}
                found = torch.autograd.grad(loss_of(results), list(sources.values()), allow_unused=True)
                slopes.append(dict(zip(sources, found, strict=True)))
        for at, (found, eager, exact) in enumerate(zip(*made, strict=True)):
            as_accurate(found, eager, exact, f"result {at}")
        for name in slopes[0] if slopes else ():
            found, eager, exact = (one[name] for one in slopes)
            assert (found is None) == (eager is None), name
            if found is not None:
                as_accurate(found, eager, exact, f"gradient of {name}")
        for (name, found), (_, eager) in zip(
            self.modules[0].named_buffers(), self.modules[1].named_buffers(), strict=True
        ):
            assert torch.equal(found, eager), f"buffer {name}"


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _leaf(value: Any) -> Any:
    return value.detach().clone().requires_grad_() if _is_float(value) else value
