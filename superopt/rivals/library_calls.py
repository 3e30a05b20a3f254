"""Library calls: the least that Inductor's code of a region takes.

Inductor compiles what is pointwise and what reduces. Products of matrices it leaves to the libraries that
PyTorch calls, so its code of a region takes no less than these calls, and what must be read and written
between them: here by sums and copies of as many bytes. Kernels that are faster than that are faster than
Inductor's code, which then need not be compiled to know it.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from superopt.rivals.aten import VIEWS, is_attention, operator_name
from superopt.rivals.wide.calls import PRODUCTS, WIDE_PRODUCT
from superopt.rivals.wide.products import multiply_wide

__all__ = ["LibraryCalls", "library_calls"]

_PASS_BYTES = 1 << 18  # a copy of fewer bytes takes no longer than its call

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class LibraryCalls:
    """A contender that makes the library calls of a region; it takes the very inputs that it was made for."""

    def __init__(self, module: fx.GraphModule, copies: Sequence[tuple[Tensor, ...]]) -> None:
        self._calls = {id(tensors[0]): library_calls(module, tensors) for tensors in copies}

    def __bool__(self) -> bool:
        return any(self._calls.values())

    def __call__(self, *tensors: Tensor) -> None:
        """Make all calls on one of the copies; the results are written where they were before, or dropped."""
        for call, arguments, named in self._calls[id(tensors[0])]:
            call(*arguments, **named)


def library_calls(module: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Call]:
    """Return the library calls of a region on what they read there, and the least between them, in order."""
    recorder = _Recorder(module)
    with torch.no_grad():
        recorder.run(*inputs)
        return _with_passes(module.graph, recorder) if recorder.calls else []


class _Recorder(fx.Interpreter):
    """Runs a region, and notes what libraries are called for, and what lies around these calls."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls: dict[fx.Node, Call] = {}
        self.held: dict[fx.Node, Tensor] = {}  # inputs of the region, and results of libraries
        self.sizes: dict[fx.Node, tuple[int, torch.dtype]] = {}

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        factors = PRODUCTS.get(operator_name(n) or "")  # a summand may be fused elsewhere
        if factors is not None:
            first, second = (self.env[n.args[at]] for at in factors)  # type: ignore[index]
            if not _summed_by_inductor(first, second):
                call = torch.mm if first.ndim == 2 else torch.bmm
                self.held[n] = torch.empty_like(made)
                self.calls[n] = (call, (first, second), {"out": self.held[n]})
        elif n.target is WIDE_PRODUCT:
            left, right, *_, most_bytes, _ = self.fetch_args_kwargs_from_env(n)[0]
            self.held[n] = torch.empty_like(made)
            self.calls[n] = (multiply_wide, (left, right, self.held[n]), {"most_bytes": most_bytes})
        elif is_attention(n):
            arguments, named = self.fetch_args_kwargs_from_env(n)
            self.calls[n] = (n.target, arguments, named)  # type: ignore[assignment]
            self.held[n] = made[0]
        elif n.op == "placeholder" and isinstance(made, Tensor):
            self.held[n] = made
        if isinstance(made, Tensor):
            self.sizes[n] = (made.numel(), made.dtype)
        return made


def _with_passes(graph: fx.Graph, seen: _Recorder) -> list[Call]:
    """Return the calls of libraries, and before those that read what Inductor makes the writing of it.

    With each of what is written goes a reading of up to two tensors that it is made of and that nothing
    has read before: a sum or a copy of as many elements, which Inductor's own code does not undercut.
    """
    written: dict[fx.Node, int] = {}  # the number of elements written, by node
    for reader in graph.nodes:
        for read in reader.all_input_nodes if reader.op == "output" or reader in seen.calls else ():
            node = _origin(read)
            shown = min(seen.sizes.get(one, (0,))[0] for one in (node, read))
            written[node] = max(shown, written.get(node, 0))
    unread = {node: tensor.numel() for node, tensor in seen.held.items()}
    calls: list[Call] = []
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
    """Return the node that computes what a view shows."""
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
