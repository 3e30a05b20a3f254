"""Double backward: gradients of gradients, which compiled code does not have, by eager PyTorch.

A compiled step has one backward pass, and PyTorch's compiler makes no gradient of that. Where a program asks
for one (`create_graph=True`), the step is run again operator by operator, from the inputs that it had, and
autograd makes a graph of its gradient as of any other. What cannot be run again fails as it does in PyTorch:
a step that draws random numbers or writes into its inputs, and one whose inputs have changed or are gone.
So does one with a `torch.autograd.Function` in it: run again, that keeps what its backward pass needs as
numbers that have no gradient.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.weak import TensorWeakRef

__all__ = ["with_double_backward"]

log = logging.getLogger("superopt")

_CALL = "superopt_call"  # what a node of autograd was called with
_DEVICES = ("cpu", "cuda")
_CHECKPOINT = "tag_activation_checkpoint"  # which calls a program, and autograd follows that

# What PyTorch says of a step that changes its inputs, or whose results share memory with others.
_SHARED = (
    *("num_mutated_inp_runtime_indices", "num_mutated_graph_handled_indices"),
    *("num_outputs_aliased", "num_intermediate_bases"),
)


@dataclass(frozen=True, slots=True)
class _Call:
    """The inputs of one call, and how often each tensor had been written to by then.

    Inputs that autograd computed are noted by weak references, so that this keeps nothing alive.
    """

    inputs: tuple[Any, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> "_Call":
        """Note the inputs of a call."""
        kept = (
            TensorWeakRef(one) if isinstance(one, Tensor) and one.grad_fn is not None else one
            for one in inputs
        )
        return cls(tuple(kept), _versions(inputs))

    def recalled(self) -> list[Any] | None:
        """Return the inputs, or None where one is gone or has changed."""
        pairs = [(one, one() if isinstance(one, TensorWeakRef) else one) for one in self.inputs]
        if any(found is None and kept is not None for kept, found in pairs):
            return None
        inputs = [found for _, found in pairs]
        return inputs if _versions(inputs) == self.versions else None


def _versions(inputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(one._version for one in inputs if isinstance(one, Tensor) and not one.is_inference())


class _Program:
    """A graph of Dynamo's as it is before it is compiled."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.graph = module, fx.Graph()
        self.graph.output(self.graph.graph_copy(module.graph, {}))
        self.autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _DEVICES
        }
        self.said_so = False

    def gradients(self, inputs: Sequence[Any], given: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Return the gradients of the inputs with a graph of their own, or None where they cannot be had."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(_devices(inputs)))
            before = _random_states(inputs)
            stack.enter_context(torch.enable_grad())
            for kind, (enabled, dtype) in self.autocast.items():
                if enabled or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            without: Any = torch._dynamo.disable
            # Gradients end at these views: what made an input, and its hooks, get them when they are
            # returned.
            own = [one.view_as(one) if _wants_gradient(one) else one for one in inputs]
            made = without(fx.GraphModule(self.module, self.graph))(*own)
            if not all(map(torch.equal, before, _random_states(inputs))):
                return None
        several = made if isinstance(made, list | tuple) else (made,)
        if len(several) != len(given):
            return None
        pairs = [
            (one, gradient)
            for one, gradient in zip(several, given, strict=True)
            if gradient is not None and isinstance(one, Tensor) and one.requires_grad
        ]
        wanted = [one for one in own if _wants_gradient(one)]
        found = torch.autograd.grad(
            [one for one, _ in pairs],
            wanted,
            [gradient for _, gradient in pairs],
            create_graph=True,
            allow_unused=True,
        )
        if not self.said_so:
            self.said_so = True
            log.warning("a gradient is differentiated again: eager PyTorch computes the step for it")
        by_input = dict(zip(map(id, wanted), found, strict=True))
        return [by_input.get(id(one)) for one in own]


def _wants_gradient(one: Any) -> bool:
    return isinstance(one, Tensor) and one.requires_grad


def _random_states(inputs: Sequence[Any]) -> list[Tensor]:
    """Return the states of all generators from which a step with these inputs may draw."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, _devices(inputs))]


def _devices(inputs: Sequence[Any]) -> list[torch.device]:
    return sorted({one.device for one in inputs if isinstance(one, Tensor) and one.is_cuda}, key=str)


def with_double_backward(module: fx.GraphModule) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper for the compiled graph of a module that lets its gradients be differentiated."""
    if not _can_be_run_again(module):
        return lambda compiled: compiled
    program = _Program(module)

    def wrapped(compiled: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compiled)
        def call(*inputs: Any) -> Any:
            made = compiled(*inputs)
            if torch.is_grad_enabled():
                _note(made, inputs, program)
            return made

        return call

    return wrapped


def _can_be_run_again(module: fx.GraphModule) -> bool:
    """Whether a graph, and those within it, call no operators with programs of their own but checkpoints."""
    graphs = (one.graph for one in module.modules() if isinstance(one, fx.GraphModule))
    targets = (node.target for graph in graphs for node in graph.nodes)
    called = (one for one in targets if isinstance(one, torch._ops.HigherOrderOperator))
    return all(str(one) == _CHECKPOINT for one in called)


def _note(made: Any, inputs: Sequence[Any], program: _Program) -> None:
    """Note the inputs of a call on the node of autograd that computes its gradients."""
    given = {id(one) for one in inputs}  # what made an input is the node of another call
    for one in made if isinstance(made, list | tuple) else (made,):
        node = one.grad_fn if isinstance(one, Tensor) and id(one) not in given else None
        function = getattr(node, "_forward_cls", None)
        if node is not None and function is not None:
            if _is_ready(function, program):
                setattr(node, _CALL, _Call.of(inputs))
            return


def _is_ready(function: Any, program: _Program) -> bool:
    """Whether a compiled step, if only after this call, can be run again for its gradient."""
    known = function.__dict__.get(_CALL)
    if known is not None:
        return known is program
    about = getattr(function, "metadata", None)
    ready = hasattr(function, "_double_backward") and not any(getattr(about, name, 1) for name in _SHARED)
    setattr(function, _CALL, program if ready else False)
    if ready:
        function.backward = staticmethod(_backward_of(function.backward, program))
    return ready


def _backward_of(compiled: Callable[..., Any], program: _Program) -> Callable[..., Any]:
    """Return a backward pass: the compiled one, or eager PyTorch where a graph of the gradients is wanted."""

    def backward(node: Any, *given: Any) -> Any:
        if torch.is_grad_enabled():
            call = getattr(node, _CALL, None)
            inputs = call.recalled() if isinstance(call, _Call) else None
            if inputs is not None and len(node.needs_input_grad) == len(inputs):
                boxed = len(given) == 1 and isinstance(given[0], list)
                found = program.gradients(inputs, given[0] if boxed else given)
                if found is not None:
                    return tuple(found)
        made = compiled(node, *given)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            with suppress(AttributeError):  # the loss may live longer than what it was computed from
                delattr(node, _CALL)
        return made

    return backward
