"""Region plan: a region's kernels, or operators of PyTorch, and the operator by which graphs call them.

The operator, `superopt::region`, is opaque to Inductor. Its results are fresh and contiguous. All it needs is
a plan's text, which travels in the graph that Inductor compiles and caches, so that such a graph runs in
another process. The text is data: there kernels are written anew from muGraphs and configurations. Where
they cannot be, the goal itself is computed by torch.
"""

import json
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.operators import Operators
from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.codec import candidate_from_json, checked_graph, member, runnable_json
from superopt.candidates.parts import find_parts
from superopt.candidates.proof import prove, prove_by_graph
from superopt.codegen.forms import Forms, Ready, is_plain
from superopt.errors import InputError, first_line
from superopt.funnel.assembly import InTorch, as_kernel
from superopt.ir import Graph, extents, kernels_apart, print_graph, release_shifts
from superopt.lifetimes import last_reads
from superopt.targets import Kernel, OrderedKernel, Target, pick_target
from superopt.trace.own_operators import define_operator
from superopt.trace.run import TORCH_DTYPES, in_own_memory
from superopt.weights.kept import KeptKernel

if TYPE_CHECKING:
    from superopt.backend.region import Region

__all__ = [
    "REGION",
    "RegionPlan",
    "calling",
    "calls_directly",
    "drop_plan",
    "kept_plan",
    "plan_of",
]

log = logging.getLogger("superopt")

VERSION = 2

_NO_MEMORY = "DefaultCPUAllocator"  # PyTorch's allocator, whose name is in its errors where memory is short


class RegionPlan:
    """A region's kernels: tensors in the order of the goal's inputs, results in that of its outputs."""

    def __init__(
        self,
        goal: Graph,
        target: str,
        parts: Mapping[str, Candidate] | None,
        kernels: Mapping[str, Kernel] | None = None,
        data: Any = None,
        operators: Operators | Tiles | None = None,
    ) -> None:
        self.goal = goal
        self.inputs = tuple(port.name for port in goal.inputs)
        self.outputs = tuple(output.port.name for output in goal.outputs)
        self._target = target
        self._known = parts  # the candidate of each part, by the part's name; None: still in the data
        self._data = data
        self._operators = operators  # what computes the region without any kernel of ours
        self._kernels = None if kernels is None else self._in_order(kernels)
        self._only = self._single()
        self._ready: Ready | None = None  # for tensors like those of an earlier call
        self._changes = 0
        self._failed = False
        self._told: set[type] = set()  # the kinds of errors that were told
        self._in_torch = InTorch(goal)
        self._apart: list[RegionPlan] | None = None

    @classmethod
    def of(
        cls, goal: Graph, parts: Sequence[RegionCandidates], target: Target, kernels: Mapping[str, Kernel]
    ) -> "RegionPlan":
        """Return the plan of a region whose parts all have a chosen candidate and a kernel."""
        chosen = {part.goal.name: part.chosen for part in parts if part.chosen is not None}
        return cls(goal, target.name, chosen, kernels)

    @classmethod
    def of_operators(cls, goal: Graph, target: str, operators: Operators | Tiles) -> "RegionPlan":
        """Return the plan of a region that operators of PyTorch compute, or that is computed in chunks."""
        return cls(goal, target, {}, operators=operators)

    @classmethod
    def read(cls, text: str) -> "RegionPlan":
        """Return the plan that a text holds, its parts still to be read, or raise InputError."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"a plan is not valid JSON: {first_line(error)}") from error
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise InputError("a plan was written by another version; clear the caches of torch.compile")
        goal = checked_graph(member(data, "goal", str, "a plan"))
        target = member(data, "target", str, "a plan")
        if "operators" in data:
            return cls.of_operators(goal, target, Operators.read(data["operators"]))
        if "tiles" in data:
            return cls.of_operators(goal, target, Tiles.read(goal, data["tiles"]))
        return cls(goal, target, None, data=member(data, "parts", list, "a plan"))

    @property
    def text(self) -> str:
        """The plan as canonical JSON."""
        data: dict[str, Any] = {
            "version": VERSION,
            "target": self._target,
            "goal": print_graph(self.goal),
        }
        if self._operators is not None:
            kind = "tiles" if isinstance(self._operators, Tiles) else "operators"
            data[kind] = self._operators.to_json()
        else:
            data["parts"] = [{"name": name, **runnable_json(one)} for name, one in self._parts.items()]
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @property
    def _parts(self) -> Mapping[str, Candidate]:
        if self._known is None:
            target = pick_target(self._target)
            self._known = {str(one.get("name")): candidate_from_json(one, target) for one in self._data}
        return self._known

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute a region by its kernels, or by torch where they fail."""
        if not self._failed:
            try:
                if self._only is not None:
                    return list(self._run(self._only, tensors))
                return self.by_kernels(dict(zip(self.inputs, _plain(tensors), strict=True)))
            except (torch.OutOfMemoryError, IndexError):  # PyTorch raises these, too
                raise
            except Exception as error:  # compilers and drivers may raise anything; torch can compute the goal
                self._note_failure(error)
        return self.by_torch(dict(zip(self.inputs, _plain(tensors), strict=True)))

    def _note_failure(self, error: Exception) -> None:
        """Give the kernels up, unless this call alone fails: by its tensors, or for want of memory."""
        ready = self._kernels is not None or self._operators is not None
        is_of_this_call = isinstance(error, InputError | MemoryError) or _NO_MEMORY in str(error)
        self._failed = not (ready and is_of_this_call)
        if self._failed or type(error) not in self._told:
            self._told.add(type(error))
            when = "from now on" if self._failed else "where its kernels cannot"
            log.warning("%s: computed by torch %s: %s", self.goal.name, when, first_line(error))

    def by_kernels(self, known: dict[str, Tensor]) -> list[Tensor]:
        """Compute a region by its kernels, or by operators of PyTorch where these are the plan."""
        if self._operators is not None:
            made = self._operators(known)
            return [made[name] for name in self.outputs]
        if self._kernels is None:
            self._kernels = self.make()
            self._only = self._single()
        for one in self._kernels:
            if one.ordered is None:
                known.update(one.kernel(**{name: known[name] for name in one.reads}))
            else:
                results = one.ordered.in_order([known[name] for name in one.reads])
                known.update(zip(one.ordered.outputs, results, strict=True))
            for name in one.last_reads:
                del known[name]
        return [known[name] for name in self.outputs]

    def _single(self) -> OrderedKernel | None:
        """Return the kernel that takes and makes all, in order, where there is one."""
        if self._kernels is None or len(self._kernels) != 1:
            return None
        kernel = self._kernels[0].ordered
        if kernel is None or (kernel.inputs, kernel.outputs) != (self.inputs, self.outputs):
            return None
        return kernel

    def _run(self, kernel: OrderedKernel, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a kernel; for tensors like those of the latest call, nothing is prepared again."""
        ready, threads = self._ready, torch.get_num_threads()
        alike = ready is not None and ready.threads == threads and ready.forms.alike(*tensors)
        given = tensors if alike else _plain(tensors)
        if ready is not None and (alike or ready.serves(given, threads)):
            found: Sequence[Tensor] = ready.run(given)
            return found
        if self._changes < _CHANGES:
            self._ready = Ready(Forms(given), threads, kernel.prepared(given))
            self._changes += 1
        return kernel.in_order(given)

    def enter_graph(self) -> None:
        """Note that races are over: from now on the plan computes a graph, with the weights of its layers."""
        _drop_restless_weights((one.kernel for one in self._kernels or ()), self.goal.name)

    def apart(self) -> "list[RegionPlan]":
        """Return the plan as several that run in a row, a kernel or a few each; as itself where it is one.

        What is made of weights once is made for all kernels together.
        """
        if self._apart is None:
            self._apart = self._kernels_apart()
        return self._apart if len(self._apart) > 1 and all(one.inputs for one in self._apart) else [self]

    def _kernels_apart(self) -> "list[RegionPlan]":
        found: list[RegionPlan] = []
        if self._operators is not None or any(part.once for part in self._parts.values()):
            return found
        for part in self._parts.values():
            for segment, mugraph in kernels_apart(part.mugraph):
                configs = part.configs[segment.start : segment.stop]
                alone = replace(part, graph=mugraph.graph, mugraph=mugraph, configs=configs, wide=())
                found.append(RegionPlan(mugraph.graph, self._target, {mugraph.graph.name: alone}))
        return found

    def by_torch(self, known: Mapping[str, Tensor]) -> list[Tensor]:
        """Compute a region as its graph says, whatever the kernels are."""
        given = {name: known[name] for name in self.inputs}
        made = in_own_memory(self._in_torch(given), given)
        return [made[name] for name in self.outputs]

    def make(self) -> list["_Part"]:
        """Return the kernels of the parts in order."""
        target = pick_target(self._target)
        kernels = {
            name: as_kernel(one.graph, one, target.make(one.mugraph, one.configs))
            for name, one in self._parts.items()
        }
        _drop_restless_weights(kernels.values(), self.goal.name)
        return self._in_order(kernels)

    def _in_order(self, kernels: Mapping[str, Kernel]) -> list["_Part"]:
        found: list[_Part] = []
        for name, one in self._parts.items():
            kernel = kernels[name]
            graph = one.graph if isinstance(kernel, KeptKernel) else one.mugraph.graph
            reads = tuple(port.name for port in graph.inputs)
            given: Any = kernel
            ordered = isinstance(given, OrderedKernel) and given.inputs == reads
            found.append(_Part(kernel, reads, given if ordered else None))
        ended = last_reads((one.reads for one in found), staying={*self.inputs, *self.outputs})
        return [replace(one, last_reads=tuple(names)) for one, names in zip(found, ended, strict=True)]

    def prove(self) -> None:
        """Raise InputError unless the kernels compute the goal, by its algebra."""
        if self._operators is not None:
            self._operators.prove(self.goal)
            return
        parts = self._parts
        goals = find_parts(release_shifts(self.goal), parts)
        if goals is None or {one.name for one in goals} != set(parts):
            raise InputError(f"{self.goal.name}: the parts of a plan are not those of its goal")
        for one in goals:
            part = parts[one.name]
            if part.once:
                verdict = prove_by_graph(one, part.graph, part.mugraph, part.once)
            else:
                verdict = prove(one, part.mugraph)
            if verdict is None:
                raise InputError(f"{one.name}: a plan computes something else")

    def shapes(self, tensors: Sequence[Tensor]) -> list[tuple[Any, torch.dtype]]:
        """Return shape and dtype of each result, for inputs whose sizes may be symbols."""
        sizes = extents(self.goal, [tensor.shape for tensor in tensors])
        found = []
        for output in self.goal.outputs:
            shape = []
            for dim in output.port.dims:
                size: Any = 1
                for axis in dim:
                    size = size * sizes[axis]
                shape.append(size)
            found.append((shape, TORCH_DTYPES[output.port.dtype]))
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The kernel of a part of a region: what it reads, and itself if it takes that in order."""

    kernel: Kernel
    reads: tuple[str, ...]
    ordered: OrderedKernel | None
    last_reads: tuple[str, ...] = ()  # what neither a later part reads nor the caller


_CHANGES = 8  # so often a plan prepares for tensors of other forms; then it stays with the last ones
_PLAIN = frozenset({Tensor, nn.Parameter})


def _plain(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return tensors, those of the user's classes as plain ones that share their memory.

    Whatever such a class does to an operator, it did while PyTorch made the graph.
    """
    if _PLAIN.issuperset(map(type, tensors)):
        return tensors
    with torch._C.DisableTorchFunctionSubclass():
        return [one if is_plain(one) else one.as_subclass(Tensor) for one in tensors]


def _drop_restless_weights(kernels: Iterable[Kernel], name: str) -> None:
    """Let kernels keep nothing of weights from when on these change with nearly every call."""
    for kernel in kernels:
        if isinstance(kernel, KeptKernel):
            kernel.kept.give_up_with(lambda why: log.warning("%s: %s; torch computes it", name, why))


# -- the operator by which a compiled graph calls a plan

_PLANS: dict[str, RegionPlan] = {}


def plan_of(text: str) -> RegionPlan:
    """Return the one plan of a text in this process; only one that another process made is read."""
    found = _PLANS.get(text)
    if found is None:
        found = _PLANS[text] = RegionPlan.read(text)
    return found


def kept_plan(plan: RegionPlan) -> str:
    """Return the text of a plan, by which the operator finds it from now on."""
    text = plan.text
    _PLANS[text] = plan
    return text


def drop_plan(text: str) -> None:
    """Forget a plan that no graph calls."""
    _PLANS.pop(text, None)


def calling(region: "Region", plan: str) -> fx.GraphModule:
    """Return a module that calls a plan, as a compiled graph does, to race with a region's own."""
    goal = region.goal
    graph = fx.Graph()
    given = [graph.placeholder(f"x{at}") for at in range(len(region.subgraph.inputs))]
    call = _run if calls_directly() else REGION
    made = graph.call_function(call, (plan, region.in_order([port.name for port in goal.inputs], given)))
    places = {output.port.name: at for at, output in enumerate(goal.outputs)}
    graph.output(tuple(graph.call_function(operator.getitem, (made, places[name])) for name in region.names))
    return fx.GraphModule(torch.nn.Module(), graph, "Planned")


def _run(plan: str, inputs: list[Tensor]) -> list[Tensor]:
    return plan_of(plan)(inputs)


def _fake(plan: str, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in plan_of(plan).shapes(inputs)]


REGION = define_operator("region(str plan, Tensor[] inputs) -> Tensor[]", _run, _fake)

# What the code of a compiled graph calls. PyTorch's dispatcher, which takes some ten microseconds to hand a
# list of tensors to Python, has nothing to decide there.
_PACKET: Any = torch.ops.superopt.region
_PACKET.direct = _run
_DIRECT = "torch.ops.superopt.region.direct"


@cache
def calls_directly() -> bool:
    """Let Inductor write calls of plans that go straight to Python; return whether this version can."""
    try:
        from torch._inductor.codegen.custom_extern_kernel_codegen import (
            CUSTOM_EXTERN_KERNEL_CODEGEN,
            CustomCodegen,
        )

        CUSTOM_EXTERN_KERNEL_CODEGEN[f"torch.ops.{REGION}"] = CustomCodegen(python=_write_call)
    except (ImportError, TypeError):  # another version of PyTorch: calls go through the dispatcher
        return False
    return True


def _write_call(node: Any, write: Callable[[str], None]) -> None:
    """Write the call of a plan into the code that Inductor makes of a graph."""
    write(f"{node.get_name()} = {_DIRECT}({', '.join([*node.codegen_args(), *node.codegen_kwargs()])})")
