"""Kept: which values of a forward pass are kept for the backward pass, and which are made again from these.

Keeping a value costs its bytes, making it again costs time. For any price of a byte, the cheapest choice for
the whole graph is a minimum cut:

    start --time to make v again x price--> v --bytes of v--> v, kept --> whoever reads v

Where the cut lies before a value and its readers lie behind it, the value is kept; what lies wholly behind it
is made again in the backward pass. A low price of a byte keeps nearly all, a high one what cannot be remade.

What is made again lies in memory again while the backward pass reads it. If nothing is kept in between, as of
what one layer hands to the next, all layers are made again before the first gradient, and lie there together.
So the graph is also divided into parts (`parts`): what one hands to the next is never made again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from superopt.backend.joint.memory.flow import Network
from superopt.backend.joint.memory.parts import handed_on
from superopt.backend.joint.memory.values import (
    is_pure,
    is_view,
    kept_bytes,
    makes_several,
    readers_of,
    seconds_of,
    source_of,
    writes,
)
from superopt.backend.joint.piece import is_tangent
from superopt.backend.joint.scaled import leaves_scaled
from superopt.cost.device import Device
from superopt.rivals.aten import tensor_bytes, tensors_in, value_of

__all__ = ["KeepOptions", "KeptValues", "MinimumCut", "Passes", "keep_readers_of_changed", "tags", "untag"]

_RANGE = 1e3  # prices reach from the middle one divided by this to the middle one times this
_SPREAD = 0.5  # the last value counts as this much dearer to make, which tells equal layers apart
_ALIKE = 0.01  # two choices differ by at least this share of all bytes
_MOST_CUTS, _FEWEST_CUTS = 24, 4  # cuts for each division into parts
_MOST_WORK = 200_000  # operators in all cuts together
_PARTS = (1, 2, 4, 8, 16)
_ROUNDING = 1e-9  # costs that differ by this share of the whole are equal
_SAVE = CheckpointPolicy.MUST_SAVE
_REMAKE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Values that are kept, those that are remade, the bytes of the former and the seconds of the latter."""

    kept: frozenset[fx.Node]
    remade: frozenset[fx.Node]
    bytes: int
    seconds: float

    def tag(self, moved: Mapping[fx.Node, fx.Node]) -> None:
        """Tell PyTorch's partitioner, of this graph or of one that nodes moved to.

        Views of what is kept may be kept in its place.
        """
        for nodes, policy in ((self.kept, _SAVE), (self.remade, _REMAKE[0])):
            for node in nodes:
                if not is_view(node) or makes_several(node):
                    moved.get(node, node).meta["recompute"] = policy


@dataclass(frozen=True, slots=True)
class MinimumCut:
    """What a minimum cut keeps, and what that costs: bytes, and seconds as they are weighted."""

    kept: frozenset[fx.Node]
    bytes: float
    seconds: float

    def cost(self, price: float) -> float:
        """Return what it costs in all where a byte costs so many seconds."""
        return self.seconds + price * self.bytes


def untag(graph: fx.Graph, before: Mapping[fx.Node, Any]) -> None:
    """Take back what PyTorch's partitioner was told."""
    for node in graph.nodes:
        node.meta.pop("recompute", None)
        if node in before:
            node.meta["recompute"] = before[node]


def keep_readers_of_changed(graph: fx.Graph) -> None:
    """Tell PyTorch's partitioner not to make again what reads a tensor that the step writes into."""
    for node in readers_of_changed(graph):
        if not is_view(node):
            node.meta.setdefault("recompute", _SAVE)


def tags(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Return what PyTorch's partitioner is told by the user."""
    return {node: node.meta["recompute"] for node in graph.nodes if "recompute" in node.meta}


class Passes:
    """Which nodes of a joint graph belong to which pass, and what the backward pass needs of the other."""

    def __init__(self, graph: fx.Graph, forward_outputs: int) -> None:
        self.graph = graph
        [output] = graph.find_nodes(op="output")
        leaves = torch.utils._pytree.arg_tree_leaves(*output.args)
        results = [one if isinstance(one, fx.Node) else None for one in leaves]
        self._place = {node: at for at, node in enumerate(graph.nodes)}
        self._tangents = [node for node in graph.nodes if is_tangent(node)]
        # Where no result is a loss, another graph goes on from this one.
        given = [one for node in self._tangents for one in tensors_in(value_of(node))]
        self.is_part = bool(given) and all(prod(one.shape) > 1 for one in given)
        self.late = _after([*self._tangents, *filter(_is_last, graph.nodes)])
        self.early = [node for node in graph.nodes if node.op == "call_function" and node not in self.late]
        wanted = [one for one in results[:forward_outputs] if one is not None]
        early = set(self.early)
        # What the forward pass computes for its own results, and for what it writes.
        self.required = _before([*wanted, *filter(writes, early)])
        self.leaving = set(wanted)
        self.gradients = [one for one in results[forward_outputs:] if one is not None]
        # What the backward pass reads of the forward pass.
        self.needed = {
            *(one for one in self.gradients if one not in self.late),
            *(read for node in self.late for read in node.all_input_nodes if read not in self.late),
        }

    def first(self, kept: Collection[fx.Node]) -> list[fx.Node]:
        """Return what the forward pass computes, in order, if it hands on some values."""
        members = self.required | _before(kept)
        return [node for node in self.early if node in members]

    def last(self, remade: Collection[fx.Node]) -> list[fx.Node]:
        """Return what the backward pass computes, in order, if it makes some values again.

        As PyTorch orders it, what is made again comes just before its first reader.
        """
        members = {*remade, *(node for node in self.late if node.op == "call_function")}
        place = self._place
        begun = min((place[user] for node in self._tangents for user in node.users), default=0)
        ordered = sorted(members, key=place.__getitem__)
        done, found = set[fx.Node](), list[fx.Node]()
        for node in (*(one for one in ordered if place[one] >= begun), *ordered):
            group, left = list[fx.Node](), [node]
            while left:
                one = left.pop()
                if one in members and one not in done:
                    done.add(one)
                    group.append(one)
                    left += one.all_input_nodes
            found += sorted(group, key=place.__getitem__)
        return found


def readers_of_changed(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that read a tensor which the step writes into: made again, they read other numbers.

    PyTorch 2.13 makes them again, so that gradients are wrong.
    """
    changed = (node.args[0] for node in graph.nodes if writes(node) and node.args)
    return readers_of({*(one for one in changed if isinstance(one, fx.Node)), *_written_afterwards(graph)})


def _written_afterwards(graph: fx.Graph) -> set[fx.Node]:
    """Return the inputs into which PyTorch writes results of the forward pass, as it describes them."""
    [output] = graph.find_nodes(op="output")
    written = [getattr(one, "mutated_input", None) for one in output.meta.get("desc") or ()]
    inputs = graph.find_nodes(op="placeholder")
    return {node for node in inputs if (told := node.meta.get("desc")) is not None and told in written}


class KeepOptions:
    """The values that a forward pass may keep, what each costs, and the cheapest ways to choose."""

    def __init__(self, passes: Passes, device: Device) -> None:
        self.passes = passes
        every = {node: seconds_of(node, device) for node in passes.graph.nodes if node.op == "call_function"}
        self.step_s = sum(every.values())  # the seconds of a step that makes nothing again
        self.bytes = {node: kept_bytes(node) for node in passes.early}
        changed = readers_of_changed(passes.graph)
        # What the forward pass itself does not need is made once anyway, in one pass or the other.
        self.times = {node: every[node] if node in passes.required else 0.0 for node in passes.early}
        self.seconds = {
            node: inf if _is_user_kept(node) or not is_pure(node) or node in changed else self.times[node]
            for node in passes.early
        }
        # Of values that cost the same for each byte, earlier ones are made again rather than later ones.
        self.weights = {node: 1 + _SPREAD * at / len(self.seconds) for at, node in enumerate(self.seconds)}
        self.total_s = sum(one for one in self.seconds.values() if one < inf)
        self.total_bytes = sum(one for one in self.bytes.values() if one < inf)
        self._user_remade = frozenset(filter(_is_user_remade, passes.early))

    def cheapest(self) -> list[KeptValues]:
        """Return values to keep, each the cheapest at some price of a byte, for some division into parts."""
        if self.total_s == 0.0 or self.total_bytes == 0:
            return []
        order = [node for node in self.passes.early if node in self.passes.required]
        most = _MOST_WORK // (len(_PARTS) * len(self.passes.early))
        found, divided = dict[frozenset[fx.Node], KeptValues](), set[frozenset[fx.Node]]()
        for count in _PARTS:
            handed = handed_on(order, self.bytes, self.seconds, count) - self._user_remade
            if handed not in divided:
                divided.add(handed)
                made = self._at_all_prices(handed, min(max(most, _FEWEST_CUTS), _MOST_CUTS))
                found.update((one.kept, one) for one in made)
        return list(found.values())

    def _at_all_prices(self, handed: frozenset[fx.Node], cuts: int) -> list[KeptValues]:
        """Return the cheapest choices at several prices; each new price makes two of them cost the same."""
        middle = self.total_s / self.total_bytes
        ends = [self.cut(price, handed) for price in (middle / _RANGE, middle * _RANGE)]
        found = [one for one in ends if one is not None]
        left = [(found[0], found[1])] if len(found) == 2 else []
        for _ in range(cuts):
            if not left:
                break
            more, fewer = left.pop(0)
            spared, longer = more.bytes - fewer.bytes, fewer.seconds - more.seconds
            if spared < _ALIKE * self.total_bytes or longer <= 0.0:
                continue
            made = self.cut(longer / spared, handed)
            if made is None or made.cost(longer / spared) >= more.cost(longer / spared) * (1 - _ROUNDING):
                continue
            found.append(made)
            left += [(more, made), (made, fewer)]
            left.sort(key=lambda pair: pair[1].bytes - pair[0].bytes)
        return [self.of(one.kept) for one in found]

    def cut(self, price: float, handed: Collection[fx.Node] = ()) -> MinimumCut | None:
        """Return the cheapest choice at a price of a byte in seconds, or None where there is none.

        What is handed on is not made again.
        """
        nodes = self.passes.early
        # Two vertices for each node: what makes it, and behind that its value.
        place = {node: 2 * at + 2 for at, node in enumerate(nodes)}
        net = Network(2 * len(nodes) + 2)
        start, end = 0, 1
        for node, at in place.items():
            net.add(at, at + 1, self.bytes[node] * price)
            if node in self._user_remade:
                net.add(at, end)
            elif node in handed:
                net.add(start, at)
            elif self.seconds[node]:
                net.add(start, at, self.seconds[node] * self.weights[node])
            if node in self.passes.needed:
                net.add(at + 1, end)
            for user in node.users:
                if user in place:
                    net.add(at + 1, place[user])
        first = net.cut(start, end, self.total_s * _ROUNDING)
        if first is None:
            return None
        kept = frozenset(node for node, at in place.items() if at in first and at + 1 not in first)
        again = (node for node, at in place.items() if at not in first)
        return MinimumCut(
            kept,
            sum(self.bytes[node] for node in kept),
            sum(self.seconds[node] * self.weights[node] for node in again if self.seconds[node] < inf),
        )

    def of_names(self, names: Collection[str]) -> KeptValues:
        """Return the values of some names as values that are kept."""
        return self.of({node for node in self.passes.early if node.name in names})

    def of(self, kept: Collection[fx.Node]) -> KeptValues:
        """Return some nodes as values that are kept."""
        remade = {node for node in self.remade(kept) if node in self.passes.required}
        held = set(map(source_of, kept)) - set(map(source_of, self.passes.leaving))
        return KeptValues(
            frozenset(kept),
            frozenset(remade),
            # A gradient that leaves the step is no activation, however early it is made.
            sum(
                tensor_bytes(one)
                for node in held
                if node.op == "call_function" and not leaves_scaled(node)
                for one in tensors_in(value_of(node))
            ),
            sum(self.times[node] for node in remade),
        )

    def remade(self, kept: Collection[fx.Node]) -> set[fx.Node]:
        """Return what the backward pass makes itself, where some values are kept."""
        early, found = set(self.passes.early), set[fx.Node]()
        left = [node for node in self.passes.needed if node in early and node not in kept]
        while left:
            node = left.pop()
            if node not in found:
                found.add(node)
                left += [one for one in node.all_input_nodes if one in early and one not in kept]
        return found


def _is_user_remade(node: fx.Node) -> bool:
    return node.meta.get("recompute") in _REMAKE


def _is_user_kept(node: fx.Node) -> bool:
    return node.meta.get("recompute") == _SAVE


def _is_last(node: fx.Node) -> bool:
    """Whether PyTorch computes a node in the backward pass, though that may need no gradient for it."""
    tag = node.meta.get("partitioner_tag")
    return tag == "must_be_in_backward" or (tag == "is_backward" and writes(node))


def _after(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    return _reached(nodes, lambda node: node.users)


def _before(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    return _reached(nodes, lambda node: node.all_input_nodes)


def _reached(start: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    found, left = set[fx.Node](), list(start)
    while left:
        node = left.pop()
        if node not in found and node.op != "output":
            found.add(node)
            left += step(node)
    return found
