"""Optimized: a function that computes what the original does, by the fastest correct program found."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from superopt.clock import Clock
from superopt.codegen.signature import form_of
from superopt.errors import InputError, SuperoptError
from superopt.ir import Graph, Program, Region
from superopt.plans.arguments import bound, check_arguments, in_built_order, only_plain, signature
from superopt.plans.assembly import Alone, assemble, in_parts
from superopt.plans.contest import Contest
from superopt.plans.course import Course
from superopt.plans.peers import PEERS
from superopt.plans.plan import Candidate, OptimizeOptions, RegionPlan, all_summed
from superopt.plans.ranking import RankedBy
from superopt.plans.sizes import (
    bucket,
    built_at,
    described,
    mugraph_for,
    read_sizes,
    resized,
    same_at_one,
    same_program,
)
from superopt.targets import Kernel, Target
from superopt.tune import Measurement
from superopt.verify.report import FloatReport

if TYPE_CHECKING:
    from superopt.driver import Search
    from superopt.trace.traced import Traced
    from superopt.verify.verdict import Verdict

__all__ = ["Optimized"]

log = logging.getLogger("superopt")

Function = Callable[..., Any]

_AUTOCAST = "autocast is on"
_GRADIENTS = "gradients are wanted (they are not under torch.no_grad())"
_CALLS = 256  # for so many combinations of shapes, strides and dtypes, calls are prepared


class Optimized:
    """A function that computes what the original does, by the fastest correct program found.

    Call it like the original. Sizes may differ from those it was made for: the same muGraphs serve
    them, by the default configuration of each range of sizes (`OptimizeOptions.retune` races some), and
    where the program is another one at such sizes the original computes. So it does where a tensor was 1
    long and no longer is. Other ranks, dtypes, devices or numbers are an InputError.

    The kernels compute no gradients and know nothing of autocast: where those are wanted the original
    computes, and so it does for tensors that have no memory of their own, as under torch.func.
    """

    def __init__(
        self,
        function: Function | None,
        *,
        traced: "Traced",
        target: Target,
        options: OptimizeOptions,
        inputs: tuple[Any, ...],
        regions: Sequence[RegionPlan],
        winner: str | None,
        kernels: Mapping[str, Kernel],
        compiled: Function | None = None,
        measurements: Mapping[str, Measurement] | None = None,
        floats: FloatReport | None = None,
        phases_ms: Mapping[str, float] | None = None,
        device: str | None = None,
        source: Mapping[str, Any] | None = None,
        search: "Search | None" = None,
        open_axes: frozenset[str] | None = None,
        ranked_by: RankedBy | None = None,
        interrupted: bool = False,
        stood_in: bool = False,
    ) -> None:
        self.function = function  # None: the program itself is the original
        self.traced = traced  # in the parts that were searched
        self.target = target
        self.options = options
        self.inputs = inputs  # what it was made for, without data
        self.regions = tuple(regions)
        self.winner = winner  # None: a plan, nothing was measured
        self.measurements = dict(measurements or {})
        self.floats = floats
        self.phases_ms = dict(phases_ms or {})
        self.device = device  # on which it was measured
        self.source = source
        self.search = search
        self.open_axes = open_axes  # that may change, where there is no function to trace again
        self.ranked_by = ranked_by  # the model that ordered configurations, where any were raced
        self.interrupted = interrupted
        self.stood_in = stood_in  # PyTorch raced with a stand-in: the original was not known
        self.fused = (
            assemble(traced, kernels) if kernels else None
        )  # with our kernels, whether they won or not
        self._compiled = compiled
        self._kernels = dict(kernels)
        self._programs: dict[object, Function] = {signature(inputs, target.torch_device): self._chosen()}
        self._whole: Program | None = None  # as it was traced, not in parts
        self._made: dict[object, Kernel] = {}
        self._calls: dict[object, Function] = {}
        self._modes = _Modes()
        self._theirs = None if self._is_ours or function is None else self._chosen()
        self._trained = any(tensor.requires_grad for tensor in traced.constants.values())
        self._told = False  # that the original computes, and why
        self.elsewhere: dict[str, str] = {}  # inputs of other sizes that the original computes, and why

    @property
    def original(self) -> Function:
        """The function as it was given, or the program as it was traced where there is none."""
        return self.function or assemble(self.traced, {})

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute what the original does."""
        if self._theirs is not None:
            return self._theirs(*inputs, **named)
        if named:
            inputs = bound(self.function, self._name, inputs, named)
        modes = self._modes
        try:
            key = modes.threads(), form_of(inputs)
        except (AttributeError, RuntimeError):  # not tensors alone, or such as have no strides
            return self._call_anything(in_built_order(self.inputs, inputs))
        if modes.autocast():
            return self._original(inputs, _AUTOCAST)
        if modes.gradients():
            if self._trained:
                return self._original(inputs, _GRADIENTS)
            for one in inputs:
                if one.requires_grad:
                    return self._original(inputs, _GRADIENTS)
        try:
            run = self._calls.get(key)
            if run is None:
                run = self._call_for(key, inputs)
            return run(*inputs)
        except RuntimeError:
            if only_plain(inputs):
                raise
            return self.original(*inputs)

    def _call_anything(self, inputs: tuple[Any, ...]) -> Any:
        """Compute what the original does on arguments of any form."""
        from superopt.verify.floats import tensors_of

        tensors = tensors_of(inputs)
        if self._modes.autocast():
            return self._original(inputs, _AUTOCAST)
        if self._modes.gradients() and (self._trained or any(one.requires_grad for one in tensors)):
            return self._original(inputs, _GRADIENTS)
        if not only_plain(tensors):
            return self.original(*inputs)
        return self._program(inputs)(*inputs)

    def _original(self, inputs: tuple[Any, ...], why: str) -> Any:
        """Compute by the original, and say why once."""
        if not self._told and self._is_ours:
            self._told = True
            computes = "the original computes" if self.function else "the kernels have none to give"
            log.warning("%s: %s, %s", self._name, why, computes)
        return self.original(*inputs)

    def _call_for(self, key: object, inputs: tuple[Any, ...]) -> Function:
        """Return what computes inputs like these, and note it."""
        if not only_plain(inputs):
            return self.original
        program = self._program(inputs)
        run = program.prepared(inputs) if isinstance(program, Alone) else program
        if len(self._calls) >= _CALLS:
            self._calls.clear()
        self._calls[key] = run
        return run

    def _program(self, inputs: tuple[Any, ...]) -> Function:
        """Return the program for inputs of these sizes."""
        key = signature(inputs)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._program_for(inputs)
        return program

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it holds compiled kernels, and a function that may be any."""
        raise InputError(
            f"{self._name}: an optimized program is not pickled or copied;"
            " write it with its save(path), and read it with superopt.load(path, function)"
        )

    @property
    def speedup(self) -> float | None:
        """How much faster it is than the best of PyTorch; 1 where it is PyTorch's, None for a plan.

        Where `stood_in`, PyTorch computed a stand-in for the original.
        """
        if self.winner is None:
            return None
        times = [one.median_us for name, one in self.measurements.items() if name in PEERS]
        if self.winner != "superopt" or not times:
            return 1.0
        return min(times) / self.measurements["superopt"].median_us

    @property
    def predicted_us(self) -> float | None:
        """The predicted time of all chosen kernels, where there is one for each region."""
        return all_summed(plan.chosen.predicted_us if plan.chosen else None for plan in self.regions)

    @property
    def floor_us(self) -> float | None:
        """The least time the bytes and the arithmetic of all regions can take."""
        return all_summed(plan.floor_us for plan in self.regions)

    @property
    def graph(self) -> Graph | Program:
        """The graph that now runs, where the function is one, else the program with one in each region."""
        program = self.traced.program
        graphs = dict(zip((plan.goal.name for plan in self.regions), self.graphs, strict=True))
        nodes = tuple(
            Region(graphs[node.graph.name]) if isinstance(node, Region) else node for node in program.nodes
        )
        only = nodes[0] if len(nodes) == 1 else None
        return only.graph if isinstance(only, Region) else replace(program, nodes=nodes)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every region, as it now runs."""
        return tuple(plan.chosen.graph if plan.chosen else plan.goal for plan in self.regions)

    @property
    def verdict(self) -> "Verdict | None":
        """How sure it is that the chosen kernels compute what their regions do; None where none is chosen.

        The chances of error of all regions add up. The floats are those of the whole, where it was run.
        """
        from superopt.verify.verdict import combined

        found = [plan.chosen.verdict for plan in self.regions if plan.chosen is not None]
        return combined(found, self.floats) if found and None not in found else None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source of every kernel that is chosen."""
        return tuple(source for plan in self.regions if plan.chosen for source in plan.chosen.sources)

    def explain(self) -> str:
        """Return, in plain text, what was tried and why each candidate was or was not taken."""
        from superopt.plans.explain import explained

        return "\n".join(explained(self))

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, as `save` writes it."""
        from superopt.plans.saved import result_json

        return result_json(self)

    def save(self, path: str | Path) -> None:
        """Write the result to a file, from which `superopt.load` makes it again; data only, no code."""
        from superopt.plans.saved import save

        save(self, Path(path))

    # -- other sizes

    @property
    def _is_ours(self) -> bool:
        """Whether kernels of ours are what runs."""
        return self.winner == "superopt" and self.fused is not None

    def _chosen(self) -> Function:
        if self._is_ours:
            assert self.fused is not None
            return self.fused
        if self.winner in PEERS[1:] and self._compiled is not None:
            return self._compiled
        return self.original

    def _program_for(self, inputs: tuple[Any, ...]) -> Function:
        """Return what computes inputs of sizes that did not come before."""
        check_arguments(self.inputs, inputs, self.target.torch_device, self._name)
        traced, compared = self._traced_at(inputs)
        if not self._is_ours and traced is not None:
            return assemble(traced, {})
        if traced is None:
            return self._left(inputs, "another program")
        made: list[str] = []
        try:
            kernels = {
                plan.goal.name: self._kernel(plan.goal.name, plan.chosen, traced, inputs, made)
                for plan in self.regions
                if plan.chosen is not None
            }
            program = assemble(traced, kernels)
            program(*inputs)
            if compared:
                self._check_floats(program, inputs)
        except Exception as error:  # whatever a compiler or a driver raises, the original still computes
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            log.warning("%s: the original computes %s: %s", self._name, described(inputs), reason)
            self.elsewhere[described(inputs)] = reason
            return self.original if self.function else assemble(traced, {})
        if made:
            log.info("%s: kernels for %s: %s", self._name, described(inputs), ", ".join(made))
        return program

    def _left(self, inputs: tuple[Any, ...], why: str) -> Function:
        """Return the original for inputs that kernels do not serve; say so, aloud the first time."""
        level = logging.INFO if self.elsewhere or not self._is_ours else logging.WARNING
        self.elsewhere[described(inputs)] = why
        log.log(level, "%s: %s at %s; the original computes it", self._name, why, described(inputs))
        return self.original

    def _check_floats(self, program: Function, inputs: tuple[Any, ...]) -> None:
        """Raise InputError where kernels err more than PyTorch at sizes that no axis was traced for."""
        from superopt.verify.floats import compare_floats

        report = compare_floats(
            self.original, program, inputs, distributions=("normal",), seed=self.options.seed
        )
        if not report.ok:
            raise InputError(str(report))

    @property
    def _name(self) -> str:
        return self.traced.program.name

    def _traced_at(self, inputs: tuple[Any, ...]) -> "tuple[Traced | None, bool]":
        """Return the program at other sizes, in the same parts, or None where it is another program.

        True says that it is the same as algebra only: an axis that is 1 long is none when traced.
        """
        if self.function is None:
            return built_at(
                self.traced, read_sizes(self.traced, inputs, self.open_axes or frozenset())
            ), False
        from superopt.trace import trace

        try:
            found = trace(self.function, *inputs, name=self._name)
        except SuperoptError as error:
            log.info("%s: %s", self._name, error)
            return None, False
        if self._whole is None:
            self._whole = trace(self.function, *self.inputs, name=self._name).program
        if not same_program(found.program, self._whole):
            return (same_at_one(self.traced, found, inputs), True) if self._is_ours else (None, False)
        sizes = {region.graph.name: region.graph.sizes for region in found.program.regions}
        parts = [resized(plan.goal, sizes[plan.goal.name.partition(".")[0]]) for plan in self.regions]
        return in_parts(found, parts), False

    def _kernel(
        self, name: str, chosen: Candidate, traced: "Traced", inputs: tuple[Any, ...], made: list[str]
    ) -> Kernel:
        """Return the kernel of a region for the sizes of a program, made where there is none yet."""
        goal = next(one.graph for one in traced.program.regions if one.graph.name == name)
        mugraph = mugraph_for(chosen.mugraph, goal)
        place = bucket(mugraph)
        if place == bucket(chosen.mugraph):
            return self._kernels[name]
        key = name, place
        if key not in self._made:
            configs = self.target.default_configs(mugraph)
            made.append(f"{name} by {'tuned' if self.options.retune else 'default'} configurations")
            self._made[key] = self.target.make(mugraph, configs)
            if self.options.retune:
                fresh = Candidate("these sizes", chosen.graph, mugraph, configs)
                course = Course(self.target, self.options, Clock(), lambda message: None)
                best = Contest(course, self.original, traced, inputs).tuned(
                    goal, fresh, self.options.seconds / 2
                )
                self._made[key] = best or self._made[key]
        return self._made[key]


class _Modes:
    """What PyTorch is told besides the arguments of a call."""

    def __init__(self) -> None:
        import torch

        self.threads: Callable[[], int] = torch.get_num_threads
        self.gradients: Callable[[], bool] = torch.is_grad_enabled
        self.autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
