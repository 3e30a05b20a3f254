"""Dispatch: runs a function once on tensors without data and records the ATen calls it makes.

A dispatch mode sees every operator below autograd, where PyTorch has decomposed its composite
ones; a function mode above it keeps whole the few whose decomposition would lose something.
All tensors are on the meta device, so huge sizes cost nothing and a call takes about 0.1 ms.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from superopt.errors import InputError, SuperoptError, TraceError
from superopt.trace.capture.decomposed import decomposition_of, is_decomposed
from superopt.trace.capture.devices import META
from superopt.trace.capture.differentiable import WRITTEN_OUT
from superopt.trace.capture.parameters import parameters_of
from superopt.trace.capture.places import lacks_data
from superopt.trace.capture.recorder import Recorder, StaleError, location
from superopt.trace.capture.shapes import RULES, attention, rms_norm
from superopt.trace.capture.stores import Stores, contents_of, within_context
from superopt.trace.capture.tape import Meta, Ref, Tape, leaves, map_leaves, repeats_of

__all__ = ["capture"]


# PyTorch's decompositions would make two square roots of attention's scale, and round eps to float32.
_WHOLE: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "rms_norm": rms_norm,
}

# Of these PyTorch looks at the devices of all tensors before any operator runs.
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

# Taken apart, what proofs look into would refuse no number that PyTorch refuses.
_REFUSING = frozenset({"one_hot"})

_COMPARED = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_NEEDS_DATA = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__"}


def capture(
    function: Callable[..., Any] | nn.Module,
    inputs: tuple[Any, ...],
    name: str,
    live: str | None = None,
    *,
    for_proof: bool = False,
) -> Tape:
    """Return the tape of one run, or raise the one error that says why there is none.

    With `live`, 0-d tensors of real numbers on such a device are constants like others, not inlined;
    `for_proof`, operators that also write their arguments are taken apart where PyTorch knows how, and
    short tensors that the function makes of numbers are kept as what they hold.

    Gradients are off, so that operators are those of inference. A function that asks for gradients itself
    is run again with the mode of its caller.
    """

    def tape_of(form: Callable[..., Any]) -> Tape:
        tape = _captured(function, form, inputs, name, live, for_proof=for_proof)
        places = repeats_of([source.tensor for source in tape.inputs])
        if places:
            other = _captured(function, form, inputs, name, live, for_proof=for_proof, shared=True)
            _check_repeats(tape, other, places)
        return tape

    def run(*arguments: Any) -> Any:
        before = contents_of(arguments)
        result = function(*arguments)
        if contents_of(arguments) != before:
            raise TraceError(
                f"{name} changes a list or a dict that it is given, which kernels would not do;"
                " work on a copy, and return what is new"
            )
        return result

    try:
        return _functional(run, tape_of)
    except _GradientsError:
        if not torch.is_grad_enabled():
            raise

        return _functional(torch.enable_grad()(run), tape_of)


class _GradientsError(TraceError):
    """The function calls torch.autograd.grad while gradients are off."""


def _functional(run: Callable[..., Any], tape_of: Callable[[Callable[..., Any]], Tape]) -> Tape:
    """Return the tape of a form of the function in which nothing reads a view that a write made stale."""
    try:
        return tape_of(run)
    except StaleError as stale:
        # Writes to views become operators on the tensors that the views are of.
        try:
            return replace(tape_of(torch.func.functionalize(run)), rewritten=True)
        except TraceError:
            raise stale from None


def _captured(
    function: Callable[..., Any] | nn.Module,
    run: Callable[..., Any],
    inputs: tuple[Any, ...],
    name: str,
    live: str | None,
    *,
    for_proof: bool,
    shared: bool = False,
) -> Tape:
    """Return the tape of a run of a function, in a form that computes the same.

    With `shared`, a tensor that is several arguments is one object for the function, too.
    """
    parameters = _bind(function, inputs, name)
    recorder = Recorder(name, function, live, for_proof=for_proof, shared=shared)
    stores = Stores(function)
    with torch.inference_mode(False), torch.no_grad():  # in inference mode nothing would be decomposed
        arguments = []
        for parameter, value in zip(parameters, inputs, strict=True):
            arguments.append(recorder.enter(parameter, value))
        try:
            return _recorded(recorder, run, arguments, stores)
        except SuperoptError:
            raise
        except Exception as error:
            raise recorder.explain(error) from error


def _recorded(recorder: Recorder, run: Callable[..., Any], arguments: list[Any], stores: Stores) -> Tape:
    """Return the tape of one run; what it stored on the way is put back, and refused."""
    variables: dict[str, Any] = {}
    try:
        with _Functions(recorder), _Operators(recorder, for_proof=recorder.for_proof):
            result, variables = within_context(run, arguments)
        tape = recorder.finish(result)
    finally:
        stored = stores.put_back()
    stored = stored or next((name for name, value in variables.items() if lacks_data(value)), "")
    if stored:
        raise TraceError(
            f"{recorder.name} stores a tensor in {stored!r}, which kernels would not do;"
            " return it instead, or, where it is made once, call the function once before"
        )
    return tape


def _check_repeats(tape: Tape, shared: Tape, places: tuple[int, ...]) -> None:
    """Refuse a function that does something else where one tensor is several of its arguments."""
    first = {source.index: tape.inputs[at].index for source, at in zip(tape.inputs, places, strict=True)}

    def leaf(value: Any) -> object:
        if isinstance(value, Ref):
            return Ref(first.get(value.index, value.index))
        return repr(value) if isinstance(value, _COMPARED) else type(value)

    def leaves_of(tree: Any) -> list[object]:
        return [leaf(one) for one in leaves(tree)]

    def calls(tape: Tape) -> object:
        made = [(one.target, one.outputs, leaves_of((one.args, one.kwargs))) for one in tape.calls]
        return made, leaves_of(tape.result)

    if calls(tape) != calls(shared):
        names = [one.name for one, at in zip(tape.inputs, places, strict=True) if places.count(at) > 1]
        raise TraceError(
            f"{tape.name}: {' and '.join(names)} are one tensor, and the function asks whether they are;"
            " pass a tensor of its own for each, as by .clone()"
        )


def _bind(function: Callable[..., Any], inputs: tuple[Any, ...], name: str) -> list[str]:
    """Return the parameter name of each input, or raise InputError where they do not fit."""
    if not callable(function):
        raise InputError(f"{name} is a {type(function).__name__}, not a function or nn.Module")
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        signature, sure = parameters_of(target)
    except (TypeError, ValueError):  # a builtin: it has no names to offer
        return [f"x{i}" for i in range(len(inputs))]
    try:
        bound = signature.bind(*inputs)
    except TypeError as error:
        if not sure:
            return [f"x{i}" for i in range(len(inputs))]
        takes = ", ".join(signature.parameters) or "nothing"
        given = "1 input" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise InputError(f"{name} takes ({takes}) but got {given}: {error}") from error
    names: list[str] = []
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter}_{i}" for i in range(len(value))]
        else:
            names.append(parameter)
    return names


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator; runs it on meta tensors and records it."""

    def __init__(self, recorder: Recorder, *, for_proof: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.for_proof = for_proof
        self.apart = 0  # how many operators are being taken apart, each within another one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first call of this mode imports all of Dynamo, for over a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.recorder.paused:
            return func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:
            return self.recorder.make(args[0])
        if func._can_decompose():  # autograd does so elsewhere, but is off in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        taken_apart = self.for_proof or self.apart or not func._schema.is_mutable
        if taken_apart and is_decomposed(func, args):
            if not self.apart:
                self.recorder.part_of = len(self.recorder.calls)
            self.apart += 1
            try:
                with self:
                    made = decomposition_of(func)(*args, **kwargs)
            finally:
                self.apart -= 1
                if not self.apart:
                    self.recorder.part_of = None
            if made is not NotImplemented:
                return made
        see = self.recorder.see
        args = tuple(map_leaves(lambda leaf: see(leaf) if isinstance(leaf, Tensor) else leaf, args))
        kwargs = {
            key: map_leaves(lambda leaf: see(leaf) if isinstance(leaf, Tensor) else leaf, item)
            for key, item in kwargs.items()
        }
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = META
        rule = None if func._schema.is_mutable else RULES.get(func._opname)
        result = rule(*args, **kwargs) if rule is not None else None
        if result is None:
            result = func(*args, **kwargs)
        writes = _written(func, args, kwargs) if func._schema.is_mutable else ()
        if not writes:
            result = map_leaves(_on_meta, result)
        if device is not None:
            kwargs["device"] = device  # a request for the device of an input
        self.recorder.record(str(func), func, args, kwargs, result, writes)
        return result


class _Functions(TorchFunctionMode):
    """Sees every torch function: keeps a few whole, and knows what failed and where."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _NEEDS_DATA and args and isinstance(args[0], Tensor):
            return self._data(name, func, args, kwargs)
        if torch._C._is_any_autocast_enabled():
            raise TraceError(
                f"{self.recorder.name}: autocast is on{location()}: it changes dtypes out of sight;"
                " turn it off and cast with .to(dtype) where lower precision is wanted"
            )
        if func is torch.autograd.grad and not torch.is_grad_enabled():
            raise _GradientsError(
                f"{self.recorder.name}: torch.autograd.grad is called{location()}, and gradients are off;"
                " call it where they are on, or within torch.enable_grad()"
            )
        devices = self.recorder.devices
        self.recorder.gradients.note_question(func, args)
        told = devices.answer(func, args)
        if told is not NotImplemented:
            return told
        if name == "storage_offset":
            raise TraceError(
                f"{self.recorder.name}: storage_offset() is asked for{location()}:"
                " it may be another one in each call"
            )
        args, kwargs = _with_data(name, devices.for_run(args), devices.for_run(kwargs))
        if name == "new_tensor" and not isinstance(kwargs.get("data", args[-1]), Tensor):
            func, args, kwargs = _tensor_of_numbers(*args, **kwargs)
        try:
            target = name.partition(".")[0]
            stays = (
                target in _WHOLE
                or target in _RECURRENT
                or (target in _REFUSING and self.recorder.for_proof)
                or (target == "pad" and _is_circular(*args, **kwargs))
            )
            if stays and not _is_looked_into((args, kwargs)):
                return self._whole(target, func, args, kwargs)
            made = WRITTEN_OUT[target](*args, **kwargs) if target in WRITTEN_OUT else NotImplemented
            return func(*args, **kwargs) if made is NotImplemented else made
        except SuperoptError:
            raise
        except Exception as error:
            if self.recorder.failure is None or self.recorder.failure[0] is not error:
                self.recorder.failure = error, _describe(name, args, kwargs)
            raise

    def _data(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        known = id(tensor) in self.recorder.position or id(tensor) in self.recorder.titles
        if known or tensor.device == META or self.recorder.is_written(tensor):
            raise TraceError(
                f"{self.recorder.name}: {_plain(name)} needs the values of a tensor"
                f"{location()}, so the program depends on its data; use torch.where for a choice,"
                " or pass the number as a Python scalar"
            )
        self.recorder.note(tensor)
        self.recorder.paused = True
        try:
            return func(*args, **kwargs)
        finally:
            self.recorder.paused = False

    def _whole(self, target: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        see = self.recorder.see
        args = tuple(map_leaves(lambda leaf: see(leaf) if isinstance(leaf, Tensor) else leaf, args))
        kwargs = {key: see(item) if isinstance(item, Tensor) else item for key, item in kwargs.items()}
        self.recorder.paused = True
        try:
            rule = _WHOLE.get(target)
            result = None if rule is None else rule(*args, **kwargs)
            if result is None:
                result = func(*args, **kwargs)
        finally:
            self.recorder.paused = False
        self.recorder.record(target, func, args, kwargs, result)
        return result


def _is_circular(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> bool:
    """Return whether a padding is circular, which PyTorch makes by writing into views."""
    return mode == "circular"


def _is_looked_into(tree: Any) -> bool:
    """Return whether autograd, or a transform of torch.func, looks into what is made of some tensors."""
    tensors = [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _with_data(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return arguments with which a tensor of known numbers is made where it keeps them: on the CPU."""
    if name in ("tensor", "as_tensor") and kwargs.get("device") == META:
        return args, kwargs | {"device": torch.device("cpu")}
    if name not in ("__getitem__", "__setitem__") or len(args) < 2:
        return args, kwargs
    index = args[1]
    made = tuple(map(_index, index)) if isinstance(index, tuple) else _index(index)
    return (args[0], made, *args[2:]), kwargs


def _tensor_of_numbers(
    like: Tensor, data: Any, **options: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return `like.new_tensor(data)` as a call that makes it where it keeps its numbers."""
    return torch.tensor, (data,), {"dtype": like.dtype, **options, "device": torch.device("cpu")}


def _index(index: Any) -> Any:
    """Return numbers within an index as a tensor of them."""
    with torch._C.DisableTorchFunction():
        return torch.tensor([*index]) if isinstance(index, list | tuple | range) and index else index


def _plain(name: str) -> str:
    words = {"__bool__": "a branch on a tensor", "__index__": "an index", "__float__": "float()"}
    return words.get(name, f"{name.strip('_')}()")


def _describe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return `name(f16[16, 4096], 2)`, for errors."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            return str(Meta(tuple(value.shape), value.dtype, ()))
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)

    items = [*map(text, args), *(f"{key}={text(value)}" for key, value in kwargs.items())]
    return f"{name}({', '.join(items)})"


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.device != META:
        return torch.empty_strided(tuple(leaf.shape), tuple(leaf.stride()), dtype=leaf.dtype, device=META)
    return leaf


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors among the arguments that an operator writes into."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found += [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]
    return tuple(found)
