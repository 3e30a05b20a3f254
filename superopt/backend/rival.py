"""Rival: what there is to beat in a region: calls of libraries at the least, PyTorch as it is at the most.

Inductor compiles what is pointwise and what reduces. Products of matrices it leaves to the libraries that
PyTorch calls, so its code of a region takes no less than these calls, and what must be read and written
between them: here by sums and copies of as many bytes. Kernels that are faster than that are faster than
Inductor's code, which then need not be compiled to know it.
"""

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.hosting import compiled_by_inductor
from superopt.backend.nodes import VIEWS, is_attention, operator_name
from superopt.targets import Target

__all__ = ["LibraryCalls", "Rival"]

_LONG_US = 2000.0  # above it one call tells enough
_SHORT_S = 0.05

_PASS_BYTES = 1 << 18  # below which a copy takes no longer than its call

_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
"""Products of matrices, and which arguments are the factors; what is added may be fused elsewhere."""


_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class LibraryCalls:
    """The library calls of a region on what they read there, and the least between them, in order."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        recorder = _Recorder(module)
        with torch.no_grad():
            recorder.run(*inputs)
            self._calls = _with_passes(module.graph, recorder) if recorder.calls else []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __call__(self) -> None:
        """Make all calls; the results are written where they were before, or dropped."""
        for call, arguments, named in self._calls:
            call(*arguments, **named)


class _Recorder(fx.Interpreter):
    """Runs a region, and notes what libraries are called for, and what lies around these calls."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls: dict[fx.Node, _Call] = {}
        self.held: dict[fx.Node, Tensor] = {}  # inputs of the region, and results of libraries
        self.sizes: dict[fx.Node, tuple[int, torch.dtype]] = {}

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        factors = _PRODUCTS.get(operator_name(n) or "")
        if factors is not None:
            first, second = (self.env[n.args[at]] for at in factors)  # type: ignore[index]
            if not _summed_by_inductor(first, second):
                call = torch.mm if first.ndim == 2 else torch.bmm
                self.held[n] = torch.empty_like(made)
                self.calls[n] = (call, (first, second), {"out": self.held[n]})
        elif is_attention(n):
            arguments, named = self.fetch_args_kwargs_from_env(n)
            self.calls[n] = (n.target, arguments, named)  # type: ignore[assignment]
            self.held[n] = made[0]
        elif n.op == "placeholder" and isinstance(made, Tensor):
            self.held[n] = made
        if isinstance(made, Tensor):
            self.sizes[n] = (made.numel(), made.dtype)
        return made


def _with_passes(graph: fx.Graph, seen: _Recorder) -> list[_Call]:
    """Return the calls of libraries, and before those that read what Inductor makes the writing of it.

    With each of what is written goes a reading of up to two tensors that it is made of and that nothing
    has read before: a sum or a copy of as many elements, which Inductor's own code does not undercut.
    """
    written: dict[fx.Node, int] = {}  # and how much of it
    for reader in graph.nodes:
        for read in reader.all_input_nodes if reader.op == "output" or reader in seen.calls else ():
            node = _origin(read)
            shown = min(seen.sizes.get(one, (0,))[0] for one in (node, read))
            written[node] = max(shown, written.get(node, 0))
    unread = {node: tensor.numel() for node, tensor in seen.held.items()}
    calls: list[_Call] = []
    for node in graph.nodes:
        if node in seen.calls:
            calls.append(seen.calls[node])
        elif written.get(node) and node not in seen.held:
            count, dtype = written[node], seen.sizes[node][1]
            parts: list[Tensor] = []
            for source, size in _sources(node, seen):
                tensor = seen.held[source]
                fits = tensor.is_contiguous() and size == count <= unread[source] and tensor.dtype == dtype
                if fits and len(parts) < 2:
                    unread[source] -= count
                    parts.append(tensor.view(-1)[:count])
            if parts and (1 + len(parts)) * count * dtype.itemsize >= _PASS_BYTES:
                made = torch.empty_like(parts[0])
                if len(parts) == 2:
                    calls.append((torch.add, tuple(parts), {"out": made}))
                else:
                    calls.append((made.copy_, tuple(parts), {}))
    return calls


def _origin(node: fx.Node) -> fx.Node:
    """Return what a view shows."""
    while operator_name(node) in VIEWS or node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _sources(node: fx.Node, seen: _Recorder) -> list[tuple[fx.Node, int]]:
    """Return what something is made of, as far as it lies in memory, and how much of each is read."""
    found: dict[fx.Node, int] = {}
    pending, met = [node], {node}
    while pending:
        for read in pending.pop().all_input_nodes:
            source = _origin(read)
            if source in seen.held:
                found.setdefault(source, min(seen.sizes.get(read, (0,))[0], seen.held[source].numel()))
            elif source not in met:
                met.add(source)
                pending.append(source)
    return list(found.items())


def _summed_by_inductor(first: Tensor, second: Tensor) -> bool:
    """Whether Inductor makes a product of a vector its own: on CPUs, many of them at a time."""
    return first.device.type == "cpu" and first.ndim == 3 and 1 in (first.shape[-2], second.shape[-1])


class Rival:
    """What there is to beat in a region, on copies of its inputs, which are kept until they are given up.

    `plain` says that Inductor was told nothing by which it might do without the library calls.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        draw: Callable[[], Sequence[tuple[Tensor, ...]]],
        target: Target,
        *,
        plain: bool,
    ) -> None:
        self.module = module
        self.target = target
        self._draw = draw
        self._copies: list[tuple[tuple[Tensor, ...], LibraryCalls]] = []
        self.has_library = plain and bool(self.copies[0][1])
        self.most_us = self._most_us()  # of PyTorch without a compiler
        self.least_us = self._least_us()  # of the library calls, 0 where there are none
        self.compiled: Callable[..., Any] | None = None

    @property
    def copies(self) -> list[tuple[tuple[Tensor, ...], LibraryCalls]]:
        """Inputs of the region, and the library calls on them; enough that no cache holds all."""
        if not self._copies:
            self._copies = [(tensors, LibraryCalls(self.module, tensors)) for tensors in self._draw()]
        return self._copies

    def give_up_copies(self) -> None:
        """Let go of the memory; what asks for copies later draws them anew."""
        self._copies.clear()

    def _most_us(self) -> float:
        """Return the time of PyTorch as it is: of one call, or of several where it is short."""
        start = time.perf_counter()
        with torch.no_grad():
            self.module(*self.copies[-1][0])
            self.target.synchronize()
        once_us = (time.perf_counter() - start) * 1e6
        if once_us > _LONG_US:
            return once_us
        return self._us(lambda tensors, calls: self.module(*tensors))

    def _least_us(self) -> float:
        return self._us(self.by_library) if self.has_library else 0.0

    def _us(self, contender: Callable[..., Any]) -> float:
        return self.target.measure({"it": contender}, self.copies, seconds=_SHORT_S)["it"].median_us

    def compile(self, patches: Mapping[str, Any]) -> None:
        """Let Inductor compile the region by itself."""
        self.compiled = compiled_by_inductor(self.module, self.copies[0][0], patches)

    def by_inductor(self, tensors: tuple[Tensor, ...], calls: LibraryCalls) -> Any:
        """Run Inductor's code, as a contender on one of the copies."""
        assert self.compiled is not None
        return self.compiled(*tensors)

    @staticmethod
    def by_library(tensors: tuple[Tensor, ...], calls: LibraryCalls) -> None:
        """Make the library calls alone, as a contender on one of the copies."""
        calls()
