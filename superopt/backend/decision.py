"""Decision: whether superopt computes a region and why, and the ledger of all decisions of one model."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from torch import fx

from superopt.backend.inductor_time import NODES, kernels_of, node_seconds
from superopt.backend.options import BackendOptions
from superopt.cache import Key
from superopt.result.codec import write_json

__all__ = ["Decision", "Ledger"]

_SHARE = 0.85  # a search may take this share of the time that Inductor is expected to take
_MOST_S = 60.0  # the largest budget where the user gives none
_PAYING_CALLS = 100  # without a budget, what a region gains in so many calls may be spent on it
_BACKWARD = 0.6  # the share of the time left that a forward pass leaves for its backward pass
_LEAST_KERNEL_S = 0.4  # in less time no kernel was compiled: the cache had it, or there is none
_NEAR_PEAK = 0.75  # a report says so where kernels reach this share of the peak rates


@dataclass(frozen=True, slots=True)
class Decision:
    """A region: what it is, whether superopt computes it, why or why not, and the times of both."""

    operators: str  # such as `mm x3, mul x2`
    inputs: str  # such as `f32[8, 64], f32[64, 64]`
    taken: bool
    why: str
    graph: str = ""  # the number of the compiled graph, and whether it is a forward or a backward one
    before_us: float | None = None  # the time of Inductor's code
    before_is_least: bool = False  # whether `before_us` is only a lower bound, the time of the library calls
    after_us: float | None = None  # the time of superopt's kernels
    floor_us: float | None = None  # the least time that its bytes and its arithmetic take, by the cost model
    verdict: str = ""
    plan: str | None = None  # also where kernels came near Inductor's code, but are not taken
    apart: bool = False  # whether a graph calls the plan's kernels one by one, to let go of memory between
    recalled: bool = False
    open: bool = False  # time ran out: a run with more time may decide otherwise
    final: bool = False  # decided with a large budget of its own, and not tried again
    budget_s: float = 0.0  # the budget of the run that decided
    seconds: float = 0.0
    flops: int = 0  # the operations of the region's matmuls
    bytes: int = 0  # what the region's operators read and write, each by itself

    def to_json(self) -> dict[str, Any]:
        """Return the decision as plain data, for reports."""
        return {
            "graph": self.graph,
            "operators": self.operators,
            "inputs": self.inputs,
            "taken": self.taken,
            "why": self.why,
            "before_us": self.before_us,
            "before_is_least": self.before_is_least,
            "after_us": self.after_us,
            "floor_us": self.floor_us,
            "verdict": self.verdict,
            "recalled": self.recalled,
            "seconds": round(self.seconds, 3),
            "flops": self.flops,
            "bytes": self.bytes,
        }

    def text(self) -> str:
        """Return the decision in words, in a few lines."""
        recalled = " (from the cache)" if self.recalled else ""
        lines = [f"{'taken' if self.taken else 'left to Inductor'}: {self.why}{recalled}"]
        lines.append(f"  {self.operators}")
        if self.inputs:
            lines.append(f"  of {self.inputs}")
        inductor = "Inductor at least" if self.before_is_least else "Inductor"
        times = ((inductor, self.before_us), ("superopt", self.after_us), ("least possible", self.floor_us))
        told = [f"{name} {us:.1f} µs" for name, us in times if us is not None]
        if self.before_us is not None:
            lines.append(f"  {', '.join(told)}")
        if not self.taken and self.flops and self.before_us and self.floor_us:
            share = self.floor_us / self.before_us
            if share >= _NEAR_PEAK:
                lines.append(
                    f"  this is {min(share, 1.0):.0%} of the machine's peak: only a program with less"
                    " arithmetic or fewer bytes is faster"
                )
        if self.verdict:
            lines.append(f"  {self.verdict}")
        return "\n".join(lines)


@dataclass(slots=True)
class Ledger:
    """What one call of torch.compile has decided so far, and the seconds it has left."""

    options: BackendOptions
    spent_s: float = 0.0
    inductor_s: float = 0.0  # the seconds that Inductor is expected to take for the graphs so far
    saved_s: float = 0.0  # the share of these that Inductor saves, as it need not compile what is taken
    granted_s: dict[str, float] = field(default_factory=dict)  # by region: what its gain pays back in time
    end_s: float = inf  # the seconds after which the present graph leaves the rest to its backward pass
    node_s: float = 0.0  # the seconds that Inductor took to prepare each node
    each_s: float = inf  # the fewest seconds that Inductor took for a kernel of a region
    entered: float | None = None  # when Inductor got the present graph, by the clock of this thread
    searched: int = 0  # regions that were searched or tuned, not recalled
    graphs: int = 0
    decisions: list[Decision] = field(default_factory=list)
    uncompiled: list[str] = field(default_factory=list)  # graphs that eager PyTorch runs, and why
    outside: Counter[str] = field(default_factory=Counter)  # operators in no region, each with the reason
    known: dict[str, Decision] = field(default_factory=dict)  # decisions by the keys of their regions
    checked: set[str] = field(default_factory=set)  # the keys of recalled regions that were timed again
    pending: dict[str, Key] = field(default_factory=dict)  # the keys of the regions that wait in the queue
    total_flops: int = 0  # the operations of the matmuls of all graphs
    total_bytes: int = 0  # what all operators of all graphs read and write, each by itself

    @property
    def budget_s(self) -> float:
        """The seconds of search and tuning: the option, or else what Inductor's compiling and gains justify.

        These are a share of what Inductor takes, what it saves, and what the gain of regions pays back.
        """
        if (told := self.options.budget_s) is not None:
            return told
        return min(_SHARE * self.inductor_s + self.saved_s + sum(self.granted_s.values()), _MOST_S)

    @property
    def left_s(self) -> float:
        """The seconds of search and tuning that are left for the present graph."""
        return max(min(self.budget_s, self.end_s) - self.spent_s, 0.0)

    def grant(self, region: str, spent_s: float, gain_us: float) -> None:
        """Grant a region, by its digest, the time that a gain in each call pays back.

        Where no such gain is left, what it has spent of an earlier grant stays granted.
        """
        used_s = min(spent_s, self.granted_s.get(region, 0.0))
        self.granted_s[region] = max(_PAYING_CALLS * gain_us / 1e6, used_s)

    @contextmanager
    def leaving_for_backward(self, role: str) -> Iterator[None]:
        """Leave time for the backward pass, which comes next and has more to compute, in a forward pass."""
        if role == "forward":
            told = self.options.budget_s
            most_s = _MOST_S if told is None else told
            self.end_s = self.spent_s + (1 - _BACKWARD) * max(most_s - self.spent_s, 0.0)
        try:
            yield
        finally:
            self.end_s = inf

    def note_arrival(self, graph: fx.Graph, *, joint: bool, alone: float = 1.0) -> None:
        """Note that Inductor hands over a graph: the seconds that it took, and those of compiling to come."""
        if self.entered is not None:
            prepared_s = time.thread_time() - self.entered
            self.inductor_s += prepared_s
            self.node_s = node_seconds(graph, prepared_s, joint=joint, alone=alone)
            self.entered = None
        self.inductor_s += self.node_s * NODES * kernels_of(graph)

    def note_compiled(self, graph: fx.Graph, seconds: float) -> None:
        """Note how long Inductor took to compile a region, unless its cache had the kernels."""
        each_s = seconds / kernels_of(graph)
        if each_s > _LEAST_KERNEL_S:
            self.each_s = min(self.each_s, each_s)

    @property
    def kernel_s(self) -> float:
        """About how many seconds Inductor takes to compile a kernel; 0 where nothing tells.

        What was seen counts: the first graph of a process takes long to prepare, as Inductor is loaded then.
        """
        return min(self.node_s * NODES, self.each_s)

    def note_saved(self, taken: Collection[fx.Node], before: Collection[fx.Node] = ()) -> None:
        """Note the seconds that Inductor saves, since these nodes are taken and not only those of before."""
        for graph in {node.graph for node in taken}:
            kernels = kernels_of(graph, without=before) - kernels_of(graph, without=taken)
            self.saved_s += self.node_s * NODES * kernels

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the seconds inside as search and tuning."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent_s += time.monotonic() - start

    def note(self, decision: Decision, graph: str) -> None:
        """Add the decision on a region of a graph."""
        self.decisions.append(replace(decision, graph=graph))

    def text(self) -> str:
        """Return all decisions in words."""
        taken = [one for one in self.decisions if one.taken]
        searched = f"{self.searched} searched in {self.spent_s:.1f} of {self.budget_s:.0f} s"
        lines = [f"{len(self.decisions)} regions in {self.graphs} graphs, {len(taken)} taken, {searched}"]
        if self.total_flops:
            share = sum(one.flops for one in taken) / self.total_flops
            lines.append(f"{share:.0%} of the operations of all matmuls are superopt's")
        lines += [f"a graph is {told}" for told in self.uncompiled]
        counted = Counter((one.graph, one.text()) for one in self.decisions)
        shown, number = "", 0
        for (graph, text), count in counted.items():
            if graph != shown:
                shown, number = graph, 0
                lines.append(shown)
            number += 1
            first, *rest = text.splitlines()
            times = f", {count} times" if count > 1 else ""
            lines.append(f"  region {number}{times}: {first}")
            lines += [f"  {line}" for line in rest]
        if self.outside:
            lines.append("outside all regions")
            lines += [f"  {name}, {count} times" for name, count in self.outside.most_common()]
        return "\n".join(lines)

    def to_json(self) -> Mapping[str, Any]:
        """Return all decisions as plain data."""
        return {
            "superopt": "backend report",
            "version": 1,
            "graphs": self.graphs,
            "searched": self.searched,
            "seconds": round(self.spent_s, 3),
            "flops": self.total_flops,
            "bytes": self.total_bytes,
            "regions": [one.to_json() for one in self.decisions],
            "uncompiled": list(self.uncompiled),
            "outside": dict(self.outside.most_common()),
        }

    def write(self) -> None:
        """Write the report, where the options ask for one."""
        if self.options.report is not None:
            write_json(self.to_json(), self.options.report)
