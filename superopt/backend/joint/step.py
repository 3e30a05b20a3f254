"""Step: a training step as two graphs, two such steps raced in rounds, and the memory that one holds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.joint.memory.peak import peak_bytes
from superopt.rivals.aten import value_of
from superopt.rivals.inductor import compiled_by_inductor
from superopt.targets import Target
from superopt.tune import confirm
from superopt.verify.floats.compare import typical

__all__ = ["Step", "copy_module", "inputs_of", "race", "results_of", "saved_names", "split"]

_RACE_S, _MOST_RACE_S = 2.0, 12.0
_ROUNDS = 5

Split = tuple[fx.GraphModule, fx.GraphModule]


def split(module: fx.GraphModule, inputs: Sequence[Any], told: Mapping[str, Any]) -> Split:
    """Return the forward and the backward graph that PyTorch's partitioner makes of a joint graph."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(module, inputs, **{"compiler": "inductor", **told})


def copy_module(module: fx.GraphModule, graph: fx.Graph, moved: dict[fx.Node, fx.Node]) -> fx.GraphModule:
    """Return a module with a copy of a joint graph, and note where its nodes went."""
    copy = fx.Graph()
    output = copy.output(copy.graph_copy(graph, moved))
    [old] = graph.find_nodes(op="output")
    output.meta = dict(old.meta)
    for node in copy.nodes:
        node.meta = dict(node.meta)
    return fx.GraphModule(module, copy)


def saved_names(forward: fx.GraphModule, forward_outputs: int) -> set[str]:
    """Return the names of what a forward graph computes and hands to the backward graph."""
    results = results_of(forward.graph)[forward_outputs:]
    return {one.name for one in results if isinstance(one, fx.Node) and one.op != "placeholder"}


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled step: both graphs one after another, with random inputs and gradients."""

    forward: Callable[..., Sequence[Any]]
    backward: Callable[[list[Any]], Sequence[Any]]  # empties the list that it is given
    inputs: Sequence[Tensor]
    tangents: Mapping[str, Tensor]
    made: tuple[str, ...]  # the names of what the forward graph makes
    read: tuple[str, ...]  # and of what the backward graph reads

    @classmethod
    def of(cls, graphs: Split, inputs: Sequence[Tensor], patches: Mapping[str, Any]) -> "Step":
        """Compile both graphs; called inside `alone`."""
        forward, backward = graphs
        first = compiled_by_inductor(forward, inputs, patches)
        names = tuple(one.name if isinstance(one, fx.Node) else "" for one in results_of(forward.graph))
        results = first(*inputs)
        made = dict(zip(names, results, strict=True))
        read = list(backward.graph.find_nodes(op="placeholder"))
        tangents = {
            node.name: one
            for node, one in zip(read, _drawn([value_of(node) for node in read]), strict=True)
            if node.name not in made
        }
        given = [made[node.name] if node.name in made else tangents[node.name] for node in read]
        own = _in_own_memory(results, inputs) if torch._functorch.config.donated_buffer else set[int]()
        donated = [at for at, node in enumerate(read) if node.name in made and id(made[node.name]) in own]
        last = compiled_by_inductor(backward, given, patches, boxed=True, donated=donated)
        return cls(first, last, inputs, tangents, names, tuple(node.name for node in read))

    def __call__(self) -> Sequence[Any]:
        """Run both graphs; what is kept between them is dropped as eager PyTorch drops it."""
        made = dict(zip(self.made, self.forward(*self.inputs), strict=True)) | dict(self.tangents)
        given = [made[name] for name in self.read]
        made.clear()
        return self.backward(given)

    def peak_bytes(self) -> int | None:
        """Return the most bytes that a step holds beside its inputs, None where they cannot be counted."""
        return peak_bytes(self)


def _in_own_memory(results: Sequence[Any], inputs: Sequence[Tensor]) -> set[int]:
    """Return which results, by identity, have memory of their own: PyTorch donates it to backward passes."""
    tensors = [one for one in (*results, *inputs) if isinstance(one, Tensor)]
    held = Counter(one.untyped_storage()._cdata for one in tensors)
    return {id(one) for one in tensors if held[one.untyped_storage()._cdata] == 1}


def race(ours: Step, theirs: Step, target: Target) -> float:
    """Return the speed of our step in speeds of theirs."""
    raced = confirm(
        {"ours": ours, "theirs": theirs},
        "ours",
        "theirs",
        [()],
        seconds=_RACE_S,
        most_seconds=_MOST_RACE_S,
        times=partial(target.times, least_rounds=_ROUNDS),
    )
    return raced.speed_of("ours")


def inputs_of(module: fx.GraphModule) -> list[Tensor]:
    """Return random inputs of a graph, but for gradients."""
    return _drawn([value_of(node) for node in module.graph.find_nodes(op="placeholder")])


def _drawn(values: Sequence[Tensor]) -> list[Tensor]:
    """Return random tensors like others; integers are 0, which is valid as an index and as a label."""
    blank = [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in values]
    return [
        made if one.dtype.is_floating_point else torch.zeros_like(made)
        for one, made in zip(blank, typical(tuple(blank)), strict=True)
    ]


def results_of(graph: fx.Graph) -> list[Any]:
    """Return what leaves a graph, in order."""
    [output] = graph.find_nodes(op="output")
    return list(torch.utils._pytree.arg_tree_leaves(*output.args))
