"""Optimized: a function that computes what the original does, by the fastest correct program found."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any, NoReturn

from superopt.candidates.candidate import RegionCandidates
from superopt.candidates.order import RankedBy
from superopt.candidates.parts import region_name
from superopt.candidates.sizes import resized
from superopt.codegen.errors import CodegenError
from superopt.codegen.forms import Ready
from superopt.driver import Search
from superopt.errors import InputError, SuperoptError, first_line
from superopt.funnel.assembly import Alone, assemble, in_parts
from superopt.ir import Graph, Program
from superopt.live.arguments import (
    ArgumentForms,
    Calls,
    arguments_in_order,
    call_key,
    check_arguments,
    class_that_calls,
    failing_with,
    half_without_data,
    in_built_order,
    in_other_order,
    only_plain,
    signature,
)
from superopt.live.binding import CHANGING, Binding
from superopt.live.modes import Modes
from superopt.live.other_sizes import Call, OtherSizes, check_floats
from superopt.live.ranges import open_axes
from superopt.live.sizes import built_at, described, read_sizes, same_at_one, same_program
from superopt.live.watch import HookWatch
from superopt.options import OptimizeOptions
from superopt.result.codec import result_json, write_json
from superopt.result.explain import explained
from superopt.result.result import Result
from superopt.rivals.rivals import EAGER, PEERS
from superopt.targets import Kernel
from superopt.targets.tf32 import in_tf32
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.tune import Measurement
from superopt.verify.floats.compare import tensors_of
from superopt.verify.floats.report import FloatReport
from superopt.verify.verdict import Verdict
from superopt.weights.kept import KeptKernel

__all__ = ["Optimized"]

log = logging.getLogger("superopt")

Function = Callable[..., Any]

_AUTOCAST = "autocast is on"
_ORDER = "the keys of a dict come in another order than when it was built"
_KNOWN = frozenset(name for name in dir(Result) if not name.startswith("_"))
_CALLS = 256  # combinations of shapes, strides and dtypes for which calls are prepared


class Optimized:
    """A function that computes what the original does, by the fastest correct program found.

    Call it like the original. Sizes may differ from those it was made for: where the same muGraphs are equal
    there too, they serve them, by the default configuration of each range of sizes (`OptimizeOptions.retune`
    races some). The original function runs where the program is another one: where a tensor was 1 long and no
    longer is, for other numbers, ranks, dtypes and devices. An InputError says that it fails there, too.

    The kernels compute no gradients and know nothing of autocast: where those are wanted the original
    function runs. So it does under transforms (torch.func), while it is traced or compiled by PyTorch, and
    where a mode of dispatch or of functions, or another default device or dtype, is in force, or where
    kernels multiply in tf32 and PyTorch itself may not do so any more.

    What the function reads besides its arguments is looked at in each call: parameters, buffers, hooks,
    attributes, variables of a closure, globals, and what these hold. Other tensors of the same form are
    read from then on; where there is more to it, the function is traced again, which runs its Python code
    once, and the original function runs as long as the program is another one. Not seen are: writes through
    `.data`, or by numpy, to tensors of over 64 elements whose values the function turns into numbers; the
    contents of lists and dicts of over 1,000 items and of arrays of numpy's of over 64 elements; what
    library code other than modules of PyTorch's keeps to itself; files, clocks, the environment, and what
    Python counts or draws anew at each call. What the function does besides computing its result, it does
    not do.

    Where kernels read what was made of weights (`OptimizeOptions.weights`), it is made anew when a weight has
    changed. Not seen are: a few numbers of a weight of over 2 KB that numpy, another language or a tensor of
    the same memory that was there before writes; on a GPU, whatever these write.
    """

    # What its result says.
    regions: tuple[RegionCandidates, ...]
    winner: str | None
    measurements: Mapping[str, Measurement]
    floats: FloatReport | None
    device: str | None
    source: Mapping[str, Any] | None
    phases_ms: Mapping[str, float]
    ranked_by: RankedBy | None
    interrupted: bool
    stood_in: bool
    speedup: float | None
    predicted_us: float | None
    floor_us: float | None
    graph: Graph | Program
    graphs: tuple[Graph, ...]
    verdict: Verdict | None
    sources: tuple[str, ...]

    def __init__(
        self,
        function: Function | None,
        result: Result,
        traced: Traced,
        *,
        kernels: Mapping[str, Kernel],
        options: OptimizeOptions,
        compiled: Function | None = None,
        search: Search | None = None,
    ) -> None:
        self.function = function  # None: the program itself is the original
        self.result = result
        self.traced = traced  # the program, its regions in the parts that were searched
        self.target = result.target
        self.inputs = result.inputs
        self.options = options
        self.search = search  # None: the graphs were known from earlier runs
        # The program with our kernels, whether they won or not.
        self.fused = assemble(traced, kernels) if kernels else None
        self._compiled = compiled
        self._kernels = dict(kernels)
        self._why_nothing_kept = ""  # why nothing made of weights is kept any more; empty while it is
        self._open_axes = result.open_axes
        self._whole: Program | None = None  # the program as it was traced, not in parts
        self._others = OtherSizes(result.regions, self._kernels, result.target, self._listen_to)
        configs = [config for one in result.regions if one.chosen for config in one.chosen.configs]
        self._modes = Modes(tf32=self._is_ours and in_tf32(configs))
        self._forget_calls()
        self._rival = None if self._is_ours or function is None else self._winning_function()
        # The code of torch.compile, if that has won, looks at all that it reads, but for hooks.
        self._hooks = None if function is None or self._rival in (None, function) else HookWatch(function)
        self._lock = RLock()  # held by a thread that looks at the function again
        self._binding: Binding | None = None
        self._runs_original = False  # whether all calls run the original, as the program is another one
        if self._is_ours and function is not None:
            goals = [one.goal for one in result.regions]
            self._binding = Binding(function, traced, goals, self.target.torch_device)
            self._runs_original = self._binding.traced is None
        for kernel in kernels.values():
            self._listen_to(kernel)
        self.recalled: datetime | None = None  # when an identical call measured it; None: this one did
        self._said_why = False  # whether the log says why the original runs
        self.elsewhere: dict[str, str] = {}  # inputs for which the original runs, and why
        if function is not None and self._rival is function:
            self.__class__ = class_that_calls(Optimized, function)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the result, which knows all about the program."""
        if name not in _KNOWN:
            raise AttributeError(f"an optimized program has no {name!r}")
        return getattr(self.result, name)

    def explain(self) -> str:
        """Return, in plain text, what was tried and why each candidate was or was not taken."""
        return "\n".join(explained(self.result, self.elsewhere))

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, as `save` writes it."""
        if self._open_axes is None:  # tried by tracing, once
            assert self.function is not None
            live = self.target.torch_device
            whole = trace(self.function, *self.inputs, name=self._name, live=live)
            self._open_axes = open_axes(self.function, whole, self.inputs, live)
        return result_json(replace(self.result, open_axes=self._open_axes))

    def save(self, path: str | Path) -> None:
        """Write the result to a file, from which `superopt.load` makes it again; data only, no code."""
        write_json(self.to_json(), Path(path))

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it holds compiled kernels, and a function that may be any."""
        raise InputError(
            f"{self._name}: an optimized program is not pickled or copied;"
            " write it with its save(path), and read it with superopt.load(path, function)"
        )

    @property
    def original(self) -> Function:
        """The function as it was given, or the program as it was traced where there is none."""
        return assemble(self.traced, {}) if self.function is None else self.function

    def _forget_calls(self) -> None:
        """Forget all calls but calls like the first one, since the function's tensors have changed."""
        self._modes.look_at_requires_grad(always=self.traced.depends_on_requires_grad)
        built = signature(self.inputs, self.target.torch_device)
        self._programs: dict[object, Function] = {built: self._winning_function()}
        self._calls = Calls()  # set last; other threads that are at work note what they make in the old one

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute what the original does."""
        modes = self._modes
        if modes.compiling():
            return self.original(*inputs, **named)
        ready = self._calls.latest
        if ready is None or named or len(inputs) != len(self.inputs) or not self._serves(ready, inputs):
            return self._call_anew(inputs, named)
        return ready.run(*inputs)

    def _serves(self, ready: Ready, inputs: tuple[Any, ...]) -> bool:
        """Whether a call can be computed like the latest one; it looks at as little as it can."""
        modes, binding = self._modes, self._binding
        return (
            ready.forms.alike(*inputs)
            and modes.unguarded_are_same()
            and modes.threads() == ready.threads
            and not (modes.gradients() and self.wants_gradients(inputs))
            and (binding is None or binding.same())
            and ready is self._calls.latest  # other threads may have found other tensors of the function
            and not self._runs_original
        )

    def _call_anew(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Compute what the original does in a call that is not like the latest one."""
        modes = self._modes
        if modes.forbid_kernels():
            return self.original(*inputs, **named)
        if self._rival is not None:
            theirs = self._rival if self._hooks is None or self._hooks.same() else self.original
            return theirs(*inputs, **named)
        if modes.autocast():
            return self._run_original(inputs, named, _AUTOCAST)
        watch = self._watch()
        if self._runs_original:
            return self.original(*inputs, **named)
        if named or len(inputs) != len(self.inputs):
            arranged = arguments_in_order(self.function, self._name, self.inputs, inputs, named)
            if arranged is None:
                why = f"it was built for {described(self.inputs)}, as {len(self.inputs)} arguments"
                return self._original_or_error(inputs, InputError(f"{self._name}: {why}"))(*inputs, **named)
            inputs = arranged
        try:
            threads, calls = modes.threads(), self._calls
            ready = calls.latest
            if ready is not None and not ready.serves(inputs, threads):
                ready = None
            key = () if ready else call_key(inputs, threads)
        except (AttributeError, RuntimeError, TypeError):  # some arguments are no tensors, or have no strides
            # A function may go by the order of keys; a program without its function goes by their names.
            if self.function is not None and in_other_order(self.inputs, inputs):
                return self._run_original(inputs, {}, _ORDER)
            return self._call_anything(in_built_order(self.inputs, inputs), watch)
        if modes.gradients() and self.wants_gradients(inputs):
            return self._run_original(inputs, {}, self._modes.why_gradients)
        try:
            run = ready.run if ready else self._prepare_call(calls, key, inputs, threads)
            return run(*inputs) if self._is_current(watch) else self.original(*inputs)
        except CodegenError as error:  # kernels for other strides are compiled when these come
            return self._run_original_from_now_on(inputs, error)
        except RuntimeError:
            if only_plain(inputs):
                raise
            return self.original(*inputs)

    def _call_anything(self, inputs: tuple[Any, ...], watch: object) -> Any:
        """Compute what the original does on arguments of any form."""
        tensors = tensors_of(inputs)
        if self._modes.gradients() and self.wants_gradients(tensors):
            return self._run_original(inputs, {}, self._modes.why_gradients)
        if not only_plain(tensors):
            return self.original(*inputs)
        try:
            program = self._program(inputs)
            return program(*inputs) if self._is_current(watch) else self.original(*inputs)
        except CodegenError as error:
            return self._run_original_from_now_on(inputs, error)

    def wants_gradients(self, tensors: Iterable[Any]) -> bool:
        """Whether a tensor among the arguments, or one that the function holds, wants a gradient."""
        for one in tensors:
            if one.requires_grad:
                return True
        held = self.traced.constants
        return bool(held) and any(one.requires_grad for one in held.values())

    def _run_original(self, inputs: tuple[Any, ...], named: Mapping[str, Any], why: str) -> Any:
        """Run the original function, and say why once."""
        if not self._said_why and self._is_ours:
            self._said_why = True
            runs = "the original function runs" if self.function else "the program runs without kernels"
            log.warning("%s: %s; %s", self._name, why, runs)
        return self.original(*inputs, **named)

    def _watch(self) -> object:
        """Return what watches the function, after another look at it where something has changed."""
        if (binding := self._binding) is None:
            return None
        watch = binding.watch
        return watch if watch.same() else self._look_again(binding)

    def _is_current(self, watch: object) -> bool:
        """Whether the watch of when a call began still counts: another thread may have looked again since."""
        return self._binding is None or self._binding.watch is watch

    def _look_again(self, binding: Binding) -> object:
        """Read the tensors that the function has now, or leave it to itself where it is another one."""
        with self._lock:
            if binding.same():  # another thread has looked
                return binding.watch
            binding.watch = CHANGING  # set first: other threads see that what they read may change
            watch = binding.renew(self.inputs, self._name)
            if binding.traced is not None:
                log.info("%s: the function reads other tensors now, and so do its kernels", self._name)
                self.traced = binding.traced
                self.fused = assemble(self.traced, self._kernels)
                self._whole = None
                self._forget_calls()
            elif not self._runs_original:
                log.warning("%s: %s; the original function runs", self._name, binding.why)
            self._runs_original = binding.traced is None or bool(self._why_nothing_kept)
            binding.watch = watch  # set last: other threads read it first
            return watch

    def _listen_to(self, kernel: Kernel) -> None:
        """Be told when a kernel keeps nothing any more that is made of weights."""
        if isinstance(kernel, KeptKernel) and self.function is not None:
            kernel.kept.give_up_with(lambda why: self._keep_nothing(kernel, why))

    def _keep_nothing(self, kernel: KeptKernel, why: str) -> None:
        """Run the original function in all calls after the present one."""
        kernel.kept.let_go()
        if not self._why_nothing_kept:
            log.warning("%s: %s; the original function runs", self._name, why)
        self._why_nothing_kept, self._runs_original = why, True

    def _prepare_call(self, calls: Calls, key: object, inputs: tuple[Any, ...], threads: int) -> Function:
        """Return a function that computes inputs like these, and keep it for the calls that follow."""
        ready = calls.ready.get(key)
        if ready is None:
            if not only_plain(inputs):
                return self.original
            program = self._program(inputs)
            run = program.prepared(inputs) if isinstance(program, Alone) else program
            if len(calls.ready) >= _CALLS:
                calls.ready.clear()
            ready = calls.ready[key] = Ready(ArgumentForms(inputs), threads, run)
        calls.latest = ready
        return ready.run

    def _program(self, inputs: tuple[Any, ...]) -> Function:
        """Return the program for inputs of these sizes."""
        key, programs = signature(inputs), self._programs
        if (program := programs.get(key)) is None:
            program = programs[key] = self._make_program(inputs)
        return program

    # -- other sizes

    @property
    def _is_ours(self) -> bool:
        """Whether kernels of ours are what runs."""
        return self.winner == "superopt" and self.fused is not None

    def _winning_function(self) -> Function:
        if self.winner == "superopt" and self.fused is not None:
            return self.fused
        if self.winner != EAGER.name and self.winner in PEERS and self._compiled is not None:
            return self._compiled
        return self.original

    def _make_program(self, inputs: tuple[Any, ...]) -> Function:
        """Return a function that computes inputs of sizes that did not come before."""
        try:
            check_arguments(self.inputs, inputs, self.target.torch_device, self._name)
        except InputError as error:
            if self.function is None or half_without_data(inputs):
                raise
            return self._original_or_error(inputs, error)
        traced, compared = self._traced_at(inputs)
        if not self._is_ours and traced is not None:
            return assemble(traced, {})
        if traced is None:
            return self._original_because(inputs, "another program")
        try:
            sized = self._others.serve(Call(inputs, traced, self.original, self.options))
            program = assemble(traced, sized.kernels)
            program(*inputs)
            if compared or sized.unsure:
                check_floats(self.original, program, inputs, self.options.seed)
        except Exception as error:  # a compiler or a driver may raise anything
            return self._original_after_error(inputs, error)
        if sized.made:
            log.info("%s: kernels for %s: %s", self._name, described(inputs), ", ".join(sized.made))
        return program

    def _original_after_error(self, inputs: tuple[Any, ...], error: Exception) -> Function:
        """Return the original function for inputs for which no kernels can be made, and say so."""
        reason = first_line(error)
        log.warning("%s: the original function runs for %s: %s", self._name, described(inputs), reason)
        self.elsewhere[described(inputs)] = reason
        if self.function is not None:
            return self.function
        return assemble(self._traced_at(inputs)[0] or self.traced, {})

    def _run_original_from_now_on(self, inputs: tuple[Any, ...], error: CodegenError) -> Any:
        """Run the original function, now and whenever inputs of these sizes and strides come."""
        self._programs[signature(inputs)] = run = self._original_after_error(inputs, error)
        self._calls = Calls()
        return run(*inputs)

    def _original_because(self, inputs: tuple[Any, ...], why: str) -> Function:
        """Return the original function for inputs that kernels do not serve; warn of it the first time."""
        level = logging.INFO if self.elsewhere or not self._is_ours else logging.WARNING
        self.elsewhere[described(inputs)] = why
        log.log(level, "%s: %s at %s; the original function runs", self._name, why, described(inputs))
        return self.original

    def _original_or_error(self, inputs: tuple[Any, ...], error: InputError) -> Function:
        """Return the original for arguments that it was not built for; where it fails, so does this."""
        return failing_with(self._original_because(inputs, str(error).removeprefix(f"{self._name}: ")), error)

    @property
    def _name(self) -> str:
        return self.traced.program.name

    def _traced_at(self, inputs: tuple[Any, ...]) -> tuple[Traced | None, bool]:
        """Return the program at other sizes, in the same parts, or None where it is another program.

        True says that it is the same as algebra only: an axis that is 1 long is none when traced.
        """
        if self.function is None:
            return built_at(self.traced, read_sizes(self.traced, inputs, self._open_axes or {})), False
        try:
            found = trace(self.function, *inputs, name=self._name, live=self.target.torch_device)
        except SuperoptError as error:
            log.info("%s: %s", self._name, error)
            return None, False
        if self._whole is None:
            whole = trace(self.function, *self.inputs, name=self._name, live=self.target.torch_device)
            self._whole = whole.program
        alike = found.depends_on_requires_grad == self.traced.depends_on_requires_grad
        if not alike or not same_program(found.program, self._whole):
            return (same_at_one(self.traced, found, inputs), True) if self._is_ours else (None, False)
        sizes = {region.graph.name: region.graph.sizes for region in found.program.regions}
        parts = [resized(plan.goal, sizes[region_name(plan.goal)]) for plan in self.regions]
        return in_parts(found, parts), False
