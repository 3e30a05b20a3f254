"""Forms: what must stay the same of tensors for kernels to read them: shapes, strides, dtypes and devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Forms", "Ready", "form", "is_plain", "is_stored", "stored"]

_GUARDS = 16  # guards that are made for tensors of one form


def is_stored(tensor: Tensor) -> bool:
    """Whether the memory of a tensor holds its numbers, not negated ones; tensors of zeros may have none."""
    return not (tensor.is_neg() or tensor._is_zerotensor())


def stored(tensor: Tensor) -> Tensor:
    """Return a tensor of the same numbers that kernels can read from memory."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.resolve_neg()


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is PyTorch's own, or a parameter of a class that computes as other ones do."""
    kind: Any = type(tensor)
    if kind is Tensor or not issubclass(kind, nn.Parameter):
        return kind is Tensor
    parts = "__torch_function__", "__torch_dispatch__"
    return all(getattr(kind, part) is getattr(nn.Parameter, part) for part in parts)


def form(tensor: Tensor) -> tuple[object, ...]:
    """Return what must agree for a program to read another tensor in the place of this one."""
    kind = Tensor if is_plain(tensor) else type(tensor)
    return kind, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, is_stored(tensor)


class Forms:
    """The forms of tensors at one time; it keeps none of them alive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._forms = [form(one) for one in tensors]
        self._guards: dict[object, Callable[..., bool]] = {}
        self._left = _GUARDS  # that may still be made
        self.alike: Callable[..., bool] = lambda *tensors: False
        """A quick look: tensors that pass it have the forms; `same` looks again at those that do not."""

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the form of no tensor has changed."""
        return self.alike(*tensors) or self._same_here(tensors)

    def _same_here(self, tensors: Sequence[Tensor]) -> bool:
        """Look by guards of PyTorch's, which see modes too, so that there is one for each mode.

        A guard also tells apart what is the same to kernels, as tensors that want gradients from those that
        do not, and never holds where one tensor comes twice. Making guards for such calls takes longer than
        looking at the tensors' forms.
        """
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        guard = self._guards.get(modes)
        if guard is not None and guard(*tensors):
            self.alike = guard
            return True
        if [form(one) for one in tensors] != self._forms:
            return False
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        are_apart = len(set(map(id, tensors))) == len(tensors) > 0  # a guard of no tensors sees no modes
        if self._left and are_apart and guards is not None and hasattr(guards, "TensorGuards"):
            self._left -= 1
            made = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.alike = self._guards[modes] = made.check
        return True


@dataclass(frozen=True, slots=True)
class Ready:
    """What runs tensors of one form on so many threads, worked out once."""

    forms: Forms
    threads: int
    run: Callable[..., Any]

    def serves(self, given: Sequence[Tensor], threads: int) -> bool:
        """Whether these tensors may be run; it takes a fourth of the time of a look-up by their forms."""
        return self.threads == threads and self.forms.same(given)
