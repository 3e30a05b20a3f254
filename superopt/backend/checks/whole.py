"""Whole: a graph with its regions' kernels, raced in turns with the same graph without them.

A region that is faster by itself may still cost more than it gains: what Inductor would fuse across its
border has to be written and read. And one that comes only near Inductor's code may still gain: beside another
region nothing has to be laid out anew. So the whole graph has the last word, on all regions together and on
each: one that won alone goes where the graph is faster without it, and one that came near joins where the
graph is surely faster with it. The verdict is kept, by the graph and by the plans in it, and obeyed whenever
the graph is compiled again. Where there is no time to compile the graph both ways, the race waits in the
queue of deferred work; until then a region that won alone stays if it gains more than its border can cost and
more than its kernels lose beside others, and no other joins.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.checks.border import border_us
from superopt.backend.checks.elimination import RACE_S, Changes, Elimination
from superopt.backend.checks.pass_memory import regions_that_fit
from superopt.backend.checks.verdict import Taken, Verdict, keep_verdict, known_verdict, plans_in, verdict_key
from superopt.backend.decision import Decision, Ledger
from superopt.backend.deferred.graph_data import digest_of
from superopt.backend.inductor_time import kernels_of
from superopt.backend.pieces import Piece
from superopt.backend.region import Region
from superopt.backend.region_race import even
from superopt.cache import Cache, Key
from superopt.cost.memory import available_bytes
from superopt.errors import SuperoptError, kind_and_line
from superopt.rivals.aten import hint_of, runs_on_anything, value_of
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.rivals.kinds import kinds_of
from superopt.targets import Target
from superopt.tune.measure import bytes_of
from superopt.verify.floats.compare import typical

__all__ = ["Stay", "WholeRace", "offered_of"]

log = logging.getLogger("superopt")

Replace = Callable[[fx.Graph, Taken], None]

_PATIENCE = 2.0  # deferred work races this many times as long
_MOST_BYTES = 4 << 30  # inputs of more bytes are not drawn beside the model
_FREE = 0.5  # drawn inputs may take this share of the free memory
_COLD_US = 50.0  # what a CPU kernel loses if much other code ran since its last call
_LOWERING = 0.5  # compiling a graph again, with all kernels at hand, takes this share of the time


@dataclass(frozen=True, slots=True)
class Stay:
    """The regions that stay in a graph, why others go, and whether a race of the graph says so."""

    taken: Taken
    lost: Mapping[str, str]  # why regions went, by the digests of their keys
    raced: bool


@dataclass(frozen=True)  # without slots, for the key
class WholeRace:
    """The race of one graph; `put_in` replaces regions of a graph by calls of their plans."""

    graph: fx.Graph
    target: Target
    ledger: Ledger
    put_in: Replace
    weights: Collection[fx.Node] = field(default=frozenset())  # the inputs that are the same in each call

    @cached_property
    def key(self) -> Key:
        """The key of the verdict on the graph as it is when the key is first asked for."""
        return verdict_key(digest_of(self.graph, self.weights), self.target, self.ledger.options)

    def kept(self, offered: Taken) -> Stay:
        """Return which regions stay: as an earlier race says, or a race now, or else a guess.

        Those that are offered won alone or, where they are not taken, came near it.
        """
        with self.ledger.spending():
            offered, holding_more = regions_that_fit(self.graph, offered, self.replaced)
        if not offered or self.is_whole(offered):
            return Stay([one for one in offered if one[1].taken], holding_more, True)
        key, cached = self.key, self.ledger.options.cache
        with Cache.open() as cache:
            known = known_verdict(cache, key) if cached else None
            known = known or Verdict({}, {})
        settled = known.covers(offered) or bool(known.failed)
        found = Changes(known.lost_of(offered), frozenset(known.joined_of(offered)))
        if not settled and self.ledger.options.budget_s != 0:
            raced = self._raced_now(offered)
            if raced is None:
                new = offered if not known.raced else known.new_in(offered)
                found = replace(found, lost={**found.lost, **self._too_costly(new)})
            else:
                known, found, settled = self._verdict(offered, raced), raced, True
        if cached:
            plans = plans_in(offered)  # what is known of regions that have no plan here stays
            without = {*_went(offered, found), *(one for one in known.without if one not in plans)}
            joined = {*found.joined, *(one for one in known.joined if one not in plans)}
            keep_verdict(key, replace(known, without=tuple(sorted(without)), joined=tuple(sorted(joined))))
        return Stay(_staying(offered, found), {**found.lost, **holding_more}, settled)

    def last_word(self, offered: Taken, seconds: float) -> Verdict:
        """Return the verdict on a graph after races of about so many seconds, or raise SuperoptError."""
        end = time.monotonic() + seconds
        offered, _ = regions_that_fit(self.graph, offered, self.replaced)
        found = Changes({})
        if offered and not self.is_whole(offered):
            if not runs_on_anything(self.graph):
                raise SuperoptError("it calls what a race may not call")
            if not self._fits():
                raise SuperoptError("its inputs take too much memory to be drawn once more")
            found = alone(lambda: self._raced(offered, lambda: end - time.monotonic(), _PATIENCE))
        return self._verdict(offered, found)

    def _verdict(self, offered: Taken, found: Changes) -> Verdict:
        went, joined = tuple(sorted(_went(offered, found))), tuple(sorted(found.joined))
        return Verdict(plans_in(offered), found.lost, went, joined, raced=True)

    @property
    def compiling_s(self) -> float:
        """The seconds in which Inductor compiles the graph, about; 0 where nothing tells."""
        return self.ledger.kernel_s * kernels_of(self.graph)

    def _raced_now(self, offered: Taken) -> Changes | None:
        """Return what a race within the budget finds, or None where there is none."""
        if not self._has_time(offered) or not runs_on_anything(self.graph):
            return None
        end = time.monotonic() + self.ledger.left_s
        try:
            with self.ledger.spending():
                return alone(lambda: self._raced(offered, lambda: end - time.monotonic()))
        except Exception as error:  # an operator that Inductor does not compile twice, or no memory
            log.info("the whole graph is not raced: %s", kind_and_line(error))
            return None

    def is_whole(self, taken: Taken) -> bool:
        """Whether one region is all that the graph computes, so that its own race was that of the graph."""
        if len(taken) != 1:
            return False
        members = set(taken[0][0].subgraph.piece.nodes)
        kinds = kinds_of(self.graph, self.target.torch_device)
        return all(
            kinds[node] == "free" or node in members
            for node in self.graph.nodes
            if node.op == "call_function"
        )

    def _has_time(self, taken: Taken) -> bool:
        """Whether the graph can be compiled both ways, and drawn inputs for.

        Inductor compiles the kernels of one of both for the model itself: these are in its cache then.
        """
        nodes = {node for region, _ in taken for node in region.subgraph.piece.nodes}
        kernels = kernels_of(self.graph) + _LOWERING * kernels_of(self.graph, without=nodes)
        seconds = self.ledger.kernel_s * kernels + RACE_S
        known = self.ledger.kernel_s > 0  # else nothing tells how long Inductor takes
        return known and self.ledger.left_s > seconds and self._fits()

    def _fits(self) -> bool:
        """Whether inputs can be drawn beside those of the model."""
        try:
            taken = bytes_of(one for one in self._blank() if isinstance(one, Tensor))
        except (TypeError, AttributeError):  # a size that depends on data
            return False
        return taken < min(_MOST_BYTES, _FREE * _free_bytes(self.target))

    def _too_costly(self, taken: Taken) -> dict[str, str]:
        """Return the regions that may gain less than they cost in a graph, and why.

        They cost what Inductor could fuse across their borders and, once for all regions with the same
        kernels, that these kernels are not in the nearest caches.
        """
        found: dict[str, str] = {}
        if not even():  # tests take all that is raced
            return found
        kinds = kinds_of(self.graph, self.target.torch_device)
        sharing = Counter(one.plan for _, one in taken if one.taken)
        cold_us = _COLD_US if self.target.torch_device == "cpu" else 0.0
        for region, decision in taken:
            if not decision.taken or decision.after_us is None:
                continue
            gain = (decision.before_us or 0.0) - decision.after_us
            lost = border_us(region, kinds, self.target) + cold_us / sharing[decision.plan]
            if gain < lost:
                found[region.key.digest] = (
                    f"alone it gains {gain:.1f} µs; up to {lost:.1f} µs may be lost where it is cut out"
                )
        return found

    def _raced(self, offered: Taken, left_s: Callable[[], float], patience: float = 1.0) -> Changes:
        """Return what races of the graph with more and fewer of its regions find."""
        inputs = self._inputs()

        def compiled(some: Taken) -> Callable[[], Any]:
            made = self._compiled(some, inputs)
            return lambda: made(*inputs)

        return Elimination(offered, compiled, self.target, left_s, patience).changes()

    def _compiled(self, taken: Taken, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what Inductor makes of the graph with some regions replaced."""
        root = self.graph.owning_module or torch.nn.Module()
        module = fx.GraphModule(root, self.replaced(taken))
        return compiled_by_inductor(module, inputs, self.ledger.options.inductor)

    def replaced(self, taken: Taken) -> fx.Graph:
        """Return a copy of the graph with some regions replaced."""
        copied: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, copied))
        if taken:
            self.put_in(graph, [(_moved(region, copied), decision) for region, decision in taken])
        return graph

    def _blank(self) -> list[Any]:
        """Return the inputs of the graph without data, at the sizes that it was traced with."""
        values = [value_of(node) for node in self.graph.nodes if node.op == "placeholder"]
        return [
            torch.empty_strided(
                [*map(hint_of, one.shape)], [*map(hint_of, one.stride())], dtype=one.dtype, device="meta"
            )
            if isinstance(one, Tensor)
            else int(one.node.hint)
            for one in values
        ]

    def _inputs(self) -> list[Any]:
        """Return random inputs of the graph."""
        blank = self._blank()
        drawn = iter(typical(tuple(one for one in blank if isinstance(one, Tensor))))
        return [_placed(one, next(drawn), self.target) if isinstance(one, Tensor) else one for one in blank]


def offered_of(decided: Iterable[tuple[Region, Decision | None]]) -> Taken:
    """Return the regions with kernels that race in their graph.

    Kernels that only came near Inductor's code were not raced at other sizes: they are for fixed ones.
    """
    return [
        (region, found)
        for region, found in decided
        if found is not None and found.plan and (found.taken or not region.subgraph.symbols)
    ]


def _placed(blank: Tensor, drawn: Tensor, target: Target) -> Tensor:
    """Return a drawn input on a device; integers are 0, which is an index of any tensor."""
    made = drawn if blank.dtype.is_floating_point else torch.zeros_like(drawn)
    return made.to(target.torch_device)


def _free_bytes(target: Target) -> int:
    """Return the memory of a device that nobody uses."""
    if target.torch_device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free = available_bytes()
    return 2 * _MOST_BYTES if free is None else free  # a system that does not tell


def _went(offered: Taken, found: Changes) -> set[str]:
    """Return the regions that won alone and go all the same."""
    return {region.key.digest for region, one in offered if one.taken and region.key.digest in found.lost}


def _staying(offered: Taken, found: Changes) -> list[tuple[Region, Decision]]:
    """Return the regions that stay, each with the decision to take it."""
    stays = []
    for region, one in offered:
        if one.taken and region.key.digest not in found.lost:
            stays.append((region, one))
        elif region.key.digest in found.joined:
            why = f"{one.why} alone, but the whole graph is faster with it"
            stays.append((region, replace(one, taken=True, why=why)))
    return stays


def _moved(region: Region, copied: Mapping[fx.Node, fx.Node]) -> Region:
    """Return a region of a copy of its graph."""
    subgraph = region.subgraph
    moved = replace(
        subgraph,
        piece=Piece(tuple(copied[node] for node in subgraph.piece.nodes)),
        inputs=tuple(copied[node] for node in subgraph.inputs),
        results=tuple(replace(one, node=copied[one.node]) for one in subgraph.results),
    )
    return replace(region, subgraph=moved)
