"""Int8: a model whose projections keep their weights in eight bits, each output with a scale of its own."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from superopt.errors import InputError

__all__ = ["Int8Linear", "with_int8_weights", "with_whole_weights"]


class Int8Linear(nn.Module):
    """A projection of which only the weights are rounded, in plain PyTorch."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = whole.weight.shape
        weight = whole.weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp_min(1e-9)
        rounded = (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("weight", rounded)
        self.register_buffer("scale", scale.to(whole.weight.dtype))
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weights as floats, then by the scales."""
        weight: Tensor = self.get_buffer("weight")
        made = functional.linear(x, weight.to(x.dtype)) * self.get_buffer("scale")
        return made if self.bias is None else made + self.bias


def with_int8_weights(model: nn.Module) -> nn.Module:
    """Replace the projections of a model, also those whose weights are tied to an embedding."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
    return model


def with_whole_weights(model: nn.Module) -> nn.Module:
    """Replace the projections of a model of eight bits by plain ones of the same numbers."""
    rounded = [one for one in model.modules() if any(type(child) is Int8Linear for child in one.children())]
    if not rounded:
        raise InputError("the model has no weights of eight bits: give a case with :int8")
    for module in rounded:
        for name, child in list(module.named_children()):
            if type(child) is Int8Linear:
                scale, weight = child.get_buffer("scale"), child.get_buffer("weight")
                plain = nn.Linear(child.in_features, child.out_features, bias=False)
                plain.weight = nn.Parameter(weight.to(scale.dtype) * scale[:, None], requires_grad=False)
                plain.bias = child.bias
                setattr(module, name, plain)
    return model
