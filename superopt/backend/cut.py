"""Cut: a functional graph as regions of algebra, around the operators that no region will have."""

import logging
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import fx

from superopt.backend.decision import Decision, Ledger
from superopt.backend.pieces import Piece, pieces_of, why_no_search
from superopt.backend.region import CopyError, OpaqueError, Region, region_of
from superopt.backend.subgraph import NumberError, Subgraph, masks_leaving, subgraph_of, weight_bytes_of
from superopt.errors import SuperoptError, first_line, kind_and_line
from superopt.rivals.aten import operator_name, operators_text, tensors_in, value_of
from superopt.rivals.images import channels_last
from superopt.rivals.kinds import Kind, kinds_of, reasons_of
from superopt.targets import Target

__all__ = ["Cut", "device_of"]

log = logging.getLogger("superopt")

_ROUNDS = 4  # how often a piece is cut anew without the operators that turned out to be opaque


class Cut:
    """The regions of one graph, of whose inputs some are weights; what stays outside goes to the ledger."""

    def __init__(
        self,
        graph: fx.Graph,
        target: Target,
        ledger: Ledger,
        weights: Collection[fx.Node] = (),
        title: str = "",
    ) -> None:
        self.graph = graph
        self.target = target
        self.ledger = ledger
        self.weights = weights
        self.title = title
        self.kinds = kinds_of(graph, target.torch_device)
        self.weight_bytes = weight_bytes_of(graph, self.kinds)
        self.images = channels_last(graph)
        self._note_outside(reasons_of(graph, target.torch_device).items())

    def regions(self) -> Iterator[Region]:
        """Yield the regions, in the order of the graph, each as soon as it is traced."""
        for piece in pieces_of(self.graph, self.kinds):
            with self.ledger.spending():
                several = self._regions(piece)
            yield from several

    def _regions(self, piece: Piece, rounds: int = _ROUNDS) -> list[Region]:
        """Return a piece as one region, or as several regions around operators that are not algebra."""
        why = why_no_search(piece) or _why_no_plan(piece)
        if why is not None:
            if piece.heavy:
                self._note(piece, why)
            return []
        bad = dict.fromkeys(masks_leaving(piece, self.kinds), "it makes truth values that are read elsewhere")
        try:
            if not bad:
                return [region_of(self._subgraph(piece), self.target, self.ledger)]
        except (OpaqueError, NumberError, CopyError) as error:
            if isinstance(error, OpaqueError):
                bad = _nodes_without_rule(piece, self.kinds, error.reasons)
            else:
                bad = dict.fromkeys(error.nodes, str(error))
            if not bad or not rounds:
                self._note(piece, str(error))
                return []
        except SuperoptError as error:
            self._note(piece, first_line(error))
            return []
        except Exception as error:  # the other pieces do not depend on this one
            log.warning("a region is left to Inductor: %s", kind_and_line(error))
            self._note(piece, f"failed: {kind_and_line(error)}")
            return []
        self.kinds.update(dict.fromkeys(bad, "outside"))
        self._note_outside(bad.items())
        left = set(piece.nodes) - set(bad)
        inner: dict[fx.Node, Kind] = {
            node: "outside" if kind == "compute" and node not in left else kind
            for node, kind in self.kinds.items()
        }
        found: list[Region] = []
        for smaller in pieces_of(self.graph, inner):
            found += self._regions(smaller, rounds - 1)
        return found

    def _subgraph(self, piece: Piece) -> Subgraph:
        """Return a piece as a subgraph that knows which of its inputs are weights, unless these stay live."""
        found = replace(subgraph_of(piece, self.kinds, self.images), weight_bytes=self.weight_bytes)
        if self.ledger.options.weights == "live":
            return found
        constant = tuple(at for at, one in enumerate(found.inputs) if one in self.weights)
        return replace(found, constant=constant)

    def _note_outside(self, several: Iterable[tuple[fx.Node, str]]) -> None:
        """Note operators that no region will have, with the reason; only makers of tensors count."""
        made = (one for one in several if one[0].target is not operator.getitem)
        self.ledger.outside.update(
            f"{operator_name(node) or node.target}: {why}"
            for node, why in made
            if node.op == "call_function" and tensors_in(value_of(node))
        )

    def _note(self, piece: Piece, why: str) -> None:
        self.ledger.decisions.append(Decision(operators_text(piece.nodes), "", False, why, graph=self.title))


def _nodes_without_rule(
    piece: Piece, kinds: Mapping[fx.Node, Kind], reasons: Mapping[str, str]
) -> dict[fx.Node, str]:
    """Return the nodes without a rule, of a piece and of the views that it reads through, with the reason."""
    near, left = set(piece.nodes), list(piece.nodes)
    while left:
        views = {one for one in left.pop().all_input_nodes if kinds[one] == "free"} - near
        near |= views
        left += views

    def why(node: fx.Node) -> str | None:
        """Return the reason; operators of `prims` have other names in a region."""
        name = f"aten.{operator_name(node)}."
        renamed = str(node.target).startswith("prims.")
        other = next((one for target, one in reasons.items() if renamed and target.startswith(name)), None)
        return reasons.get(str(node.target), other)

    return {node: found for node in near if (found := why(node)) is not None}


def _why_no_plan(piece: Piece) -> str | None:
    """Return why a piece is never worth a plan; None where it may be."""
    if torch._inductor.config.cpp_wrapper:
        return "Inductor's cpp_wrapper makes wrong code of a call of a plan"
    around = [read for node in piece.nodes for read in (node, *node.all_input_nodes)]
    shapes = [tensor.shape for node in around for tensor in tensors_in(value_of(node))]
    if any(isinstance(size, int) and size == 0 for shape in shapes for size in shape):  # no symbol is 0
        return "it has an empty tensor"
    return None


def device_of(graph: fx.Graph) -> str | None:
    """Return the type of device that a graph's tensors are on and that we have kernels for."""
    found = {tensor.device.type for node in graph.nodes for tensor in tensors_in(value_of(node))}
    return "cuda" if "cuda" in found else "cpu" if "cpu" in found else None
