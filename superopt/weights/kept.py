"""Kept: tensors that are made of weights once, and again when a weight has changed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from superopt.dtypes import torch_dtypes
from superopt.errors import GraphError, InputError
from superopt.ir import Graph
from superopt.trace.run import run_graph
from superopt.weights.division import Divided
from superopt.weights.sources import Sources, can_be_watched

__all__ = ["Kept", "KeptKernel", "made_once"]

Whole = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]

_DTYPES = torch_dtypes()
_RESTLESS = 8  # calls that tensors should serve at the least
_PATIENCE = 3  # times in a row that they may serve fewer


def made_once(once: Graph, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what a graph makes of weights, computed in float64 and rounded once.

    Raises InputError where a number is not finite: then kernels compute other things than PyTorch does.
    """
    with torch.no_grad(), torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        plain = {port.name: tensors[port.name].detach() for port in once.inputs}
        made = run_graph(once, plain, torch.float64)
        found = []
        for output in once.outputs:
            tensor = made[output.port.name].to(_DTYPES[output.port.dtype]).contiguous()
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(f"{once.name}: {output.port.name} is not finite")
            known = {one.data_ptr() for one in plain.values()}
            found.append(tensor.clone() if tensor.data_ptr() in known else tensor)
    if any(one.is_cuda for one in found):
        torch.cuda.current_stream().synchronize()  # later calls may come on other streams
    return tuple(found)


class Kept:
    """Tensors made of weights, looked after: whoever asks for them gets those of the weights as they are."""

    def __init__(self, once: Graph) -> None:
        self.once = once
        self.sources = tuple(port.name for port in once.inputs)
        self.names = tuple(output.port.name for output in once.outputs)
        self.why = ""  # why no tensors are kept any more
        self.on_end: Callable[[str], None] | None = None  # is told so
        # The weights, and what was made of them; None: nothing that kernels could read.
        self._state: tuple[Sources, tuple[Tensor, ...] | None] | None = None
        self._calls = 0  # since the tensors were made
        self._short = 0  # times in a row that they served a few calls only

    def of(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the tensors that are made of these weights; None where nothing is kept."""
        state = self._state
        if state is not None and state[0].same(given):
            self._calls += 1
            return state[1]
        return None if self.why else self._made(given)

    def _made(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        if self._state is not None:
            self._short = self._short + 1 if self._calls < _RESTLESS else 0
            self._state = None
        if self._short >= _PATIENCE:
            return self._ended("the weights change with nearly every call")
        if not all(map(can_be_watched, given)):
            return self._ended("of some weights it cannot be told when they change")
        sources = Sources(given)  # made first: what is written from here on is seen in the next call
        if not sources.counted:
            return self._ended("too many tensors share the memory of a weight")
        made: tuple[Tensor, ...] | None = None
        with suppress(InputError, GraphError):
            made = made_once(self.once, dict(zip(self.sources, given, strict=True)))
        self._state, self._calls = (sources, made), 0
        return made

    def _ended(self, why: str) -> None:
        self.why = why
        if self.on_end is not None:
            self.on_end(why)


class KeptKernel:
    """The kernel of a region's part that runs in each call, as a kernel of the whole region.

    `whole` computes the region where nothing can be kept.
    """

    def __init__(self, goal: Graph, parts: Divided, kernel: Any, whole: Whole) -> None:
        self.inputs = tuple(port.name for port in goal.inputs)
        self.outputs = tuple(output.port.name for output in goal.outputs)
        self.kernel = kernel
        self.kept = Kept(parts.once)
        self.reads = tuple(port.name for port in parts.run.inputs)
        self._whole = whole
        known = (*self.inputs, *self.kept.names)
        self._from = tuple(known.index(name) for name in self.kept.sources)
        self._order = tuple(known.index(name) for name in self.reads)

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Compute the region."""
        return dict(zip(self.outputs, self.in_order([tensors[name] for name in self.inputs]), strict=True))

    def refusal(self, tensors: Mapping[str, Tensor]) -> str:
        """Return why nothing can be kept of these weights; empty where it can."""
        if self.kept.of([tensors[name] for name in self.kept.sources]) is not None:
            return ""
        return self.kept.why or "what is made of the weights is not finite"

    def in_order(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the region from tensors in the order of its inputs."""
        kept = self.kept.of([given[at] for at in self._from])
        if kept is None:
            return self._computed_whole(given)
        found: Sequence[Tensor] = self.kernel.in_order(self._arranged(given, kept))
        return found

    def prepared(self, given: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Return what computes the region from tensors of these shapes, strides and dtypes."""
        taken, order, of = self._from, self._order, self.kept.of
        kept = of([given[at] for at in taken])
        if kept is None:
            return self.in_order
        run = self.kernel.prepared(self._arranged(given, kept))

        def run_with_kept(given: Sequence[Tensor]) -> Sequence[Tensor]:
            kept = of([given[at] for at in taken])
            if kept is None:
                return self._computed_whole(given)
            known = (*given, *kept)
            found: Sequence[Tensor] = run([known[at] for at in order])
            return found

        return run_with_kept

    def _arranged(self, given: Sequence[Tensor], kept: Sequence[Tensor]) -> list[Tensor]:
        known = (*given, *kept)
        return [known[at] for at in self._order]

    def _computed_whole(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        made = self._whole(dict(zip(self.inputs, given, strict=True)))
        return [made[name] for name in self.outputs]
