"""capture: runs a function once on tensors without data and records the ATen calls it makes.

A dispatch mode sees every operator below autograd, where PyTorch has decomposed its composite
ones; a function mode above it keeps whole the few whose decomposition would lose something.
All tensors are on the meta device, so huge sizes cost nothing and a call takes about 0.1 ms.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from superopt.errors import InputError, SuperoptError, TraceError
from superopt.trace.run import TORCH_DTYPES, dtype_name
from superopt.trace.shapes import RULES, attention, rms_norm
from superopt.trace.tape import Call, Meta, Ref, Source, Tape, map_leaves

__all__ = ["capture"]

_META = torch.device("meta")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)

# Decomposed, the scale of attention would come as two square roots and eps rounded to float32.
_WHOLE: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "rms_norm": rms_norm,
}

_NEEDS_DATA = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__"}

_HIDDEN = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


def capture(function: Callable[..., Any] | nn.Module, inputs: tuple[Any, ...], name: str) -> Tape:
    """Return the tape of one run, or raise the one error that says why there is none."""
    parameters = _bind(function, inputs, name)
    recorder = _Recorder(name, function)
    arguments = []
    for parameter, value in zip(parameters, inputs, strict=True):
        arguments.append(recorder.enter(parameter, value))
    try:
        with torch.no_grad(), _Functions(recorder), _Operators(recorder):
            result = function(*arguments)
        return recorder.finish(result)
    except SuperoptError:
        raise
    except Exception as error:
        raise recorder.explain(error) from error


def _bind(function: Callable[..., Any], inputs: tuple[Any, ...], name: str) -> list[str]:
    """Return the parameter name of each input, or raise InputError where they do not fit."""
    if not callable(function):
        raise InputError(f"{name} is a {type(function).__name__}, not a function or nn.Module")
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # a builtin: it has no names to offer
        return [f"x{i}" for i in range(len(inputs))]
    try:
        bound = signature.bind(*inputs)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InputError(f"{name} takes ({takes}) but got {len(inputs)} inputs: {error}") from error
    names: list[str] = []
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter}_{i}" for i in range(len(value))]
        else:
            names.append(parameter)
    return names


def _location() -> str:
    """Return where the traced function is now, as ` (file.py:12)`, or nothing."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HIDDEN):
            return f" ({Path(file).name}:{frame.f_lineno})"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


class _Recorder:
    """The tape while it is written: which tensor object is which position."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.paused = False
        self.calls: list[Call] = []
        self.metas: list[Meta] = []
        self.scalars: dict[int, float | int | bool] = {}
        self.inputs: list[Source] = []
        self.constants: list[Source] = []
        self.keep: list[Any] = []  # every object whose id is a key below
        self.position: dict[int, int] = {}
        self.twin: dict[int, Tensor] = {}  # a foreign tensor's id -> its meta tensor
        self.storage: dict[int, list[int]] = {}  # storage -> ids of the tensors on it
        self.stale: dict[int, str] = {}  # id -> where one of its views was written
        self.outside: set[int] = set()  # storages of inputs and constants
        self.names: set[str] = set()
        self.titles: dict[int, str] = {}
        self.failure: tuple[BaseException, str] | None = None
        if isinstance(function, nn.Module):
            for title, tensor in (*function.named_parameters(), *function.named_buffers()):
                self.titles[id(tensor)] = title

    def enter(self, name: str, value: Any) -> Any:
        """Return an input with its tensors replaced by meta tensors that are inputs of the tape."""
        if isinstance(value, Tensor):
            return self._enter_tensor(name, value)
        if isinstance(value, dict):
            return {key: self.enter(f"{name}_{key}", item) for key, item in value.items()}
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self.enter(f"{name}_{i}", item) for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list):
            return [self.enter(f"{name}_{i}", item) for i, item in enumerate(value)]
        if not isinstance(value, _PLAIN):
            raise InputError(
                f"{self.name}: argument {name!r} is a {type(value).__name__};"
                " pass tensors, numbers, or tuples, lists and dicts of them"
            )
        return value

    def _enter_tensor(self, name: str, tensor: Tensor) -> Tensor:
        if dtype_name(tensor.dtype) is None or tensor.layout != torch.strided:
            raise InputError(
                f"{self.name}: argument {name!r} is a {tensor.dtype} tensor of layout {tensor.layout};"
                f" supported: strided tensors of {', '.join(TORCH_DTYPES)}"
            )
        meta = _twin(tensor, self.name, name)
        index = self.add(meta)
        self.outside.add(_storage(meta))
        self.inputs.append(Source(self.unique(name), index, tensor))
        return meta

    def unique(self, name: str) -> str:
        """Return the name as an identifier that no other tensor has."""
        base = re.sub(r"\W", "_", name)
        base = base if re.match(r"[A-Za-z_]", base) else f"x{base}"
        found, count = base, 1
        while found in self.names:
            count += 1
            found = f"{base}_{count}"
        self.names.add(found)
        return found

    def add(self, tensor: Tensor) -> int:
        """Record a tensor that now exists (or has new contents) and return its position."""
        index = len(self.metas)
        self.metas.append(Meta(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride())))
        self.keep.append(tensor)
        self.position[id(tensor)] = index
        self.stale.pop(id(tensor), None)
        self.storage.setdefault(_storage(tensor), []).append(id(tensor))
        return index

    def see(self, tensor: Tensor) -> Tensor:
        """Return the meta tensor that stands for a tensor: itself, or a constant's twin."""
        if id(tensor) in self.position:
            if id(tensor) in self.stale:
                raise TraceError(
                    f"{self.name}: a tensor is read after one of its views was written in place"
                    f"{self.stale[id(tensor)]}; build the result with torch.where, cat or stack instead"
                )
            return tensor
        if id(tensor) not in self.twin:
            self.twin[id(tensor)] = self._constant(tensor)
            self.keep.append(tensor)
        return self.twin[id(tensor)]

    def _constant(self, tensor: Tensor) -> Tensor:
        title = self.titles.get(id(tensor))
        meta = _twin(tensor, self.name, title or "a constant")
        index = self.add(meta)
        self.outside.add(_storage(meta))
        if title is None and tensor.dim() == 0 and tensor.device != _META:
            self.scalars[index] = _item(tensor)
        else:
            self.constants.append(Source(self.unique(title or "constant"), index, tensor))
        return meta

    def record(
        self, target: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any, writes: Any = ()
    ) -> None:
        """Append a call whose tensors were all seen."""
        template = map_leaves(self._ref, args), map_leaves(self._ref, kwargs)
        mutated = tuple(self.position[id(tensor)] for tensor in writes)
        for tensor in writes:
            if _storage(tensor) in self.outside:
                raise TraceError(
                    f"{self.name}: {target} writes into an input or a parameter{_location()};"
                    " use the version that returns a new tensor, or .eval() for a module in training"
                )
            self.stale |= dict.fromkeys(self.storage[_storage(tensor)], _location())
        made: Iterable[Any] = result if isinstance(result, tuple | list) else (result,)
        if writes:
            made = writes
        outputs = tuple(self.add(item) if isinstance(item, Tensor) else None for item in made)
        self.calls.append(Call(target, function, *template, outputs, mutated))

    def _ref(self, leaf: Any) -> Any:
        return Ref(self.position[id(leaf)]) if isinstance(leaf, Tensor) else leaf

    def finish(self, result: Any) -> Tape:
        """Return the finished tape of a function that returned this."""
        result = map_leaves(lambda leaf: self.see(leaf) if isinstance(leaf, Tensor) else leaf, result)
        return Tape(
            self.name,
            tuple(self.metas),
            tuple(self.inputs),
            tuple(self.constants),
            self.scalars,
            tuple(self.calls),
            map_leaves(self._ref, result),
        )

    def explain(self, error: Exception) -> TraceError:
        """Return the one line that a user reads when the function itself fails."""
        text = str(error).strip().splitlines()
        message = f"{type(error).__name__}: {text[0]}"[:300] if text else type(error).__name__
        place = ""
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if not file.startswith(_HIDDEN):
                place = f" at {Path(file).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        if self.failure is not None and self.failure[0] is error:
            what = self.failure[1]
            if "data-independent implementation" in message or "data-dependent" in message:
                return TraceError(
                    f"{self.name} fails{place}: {what}: the shape of the result depends on the data;"
                    " keep all elements and use torch.where or a mask"
                )
            return TraceError(
                f"{self.name} fails{place}: {what}: {message}; check the inputs' shapes and dtypes"
            )
        return TraceError(f"{self.name} fails{place}: {message}")


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator; runs it on meta tensors and records it."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

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
            return args[0]
        see = self.recorder.see
        args = tuple(map_leaves(lambda leaf: see(leaf) if isinstance(leaf, Tensor) else leaf, args))
        kwargs = {
            key: map_leaves(lambda leaf: see(leaf) if isinstance(leaf, Tensor) else leaf, item)
            for key, item in kwargs.items()
        }
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = _META
        rule = None if func._schema.is_mutable else RULES.get(func._opname)
        result = rule(*args, **kwargs) if rule is not None else None
        if result is None:
            result = func(*args, **kwargs)
        writes = _written(func, args, kwargs) if func._schema.is_mutable else ()
        if not writes:
            result = map_leaves(_on_meta, result)
        if device is not None:
            kwargs["device"] = device  # the meta device, where that of an input was asked for
        self.recorder.record(str(func), func, args, kwargs, result, writes)
        return result


class _Functions(TorchFunctionMode):
    """Sees every torch function: keeps a few whole, and knows what failed and where."""

    def __init__(self, recorder: _Recorder) -> None:
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
                f"{self.recorder.name}: autocast is on{_location()}: it changes dtypes out of sight;"
                " turn it off and cast with .to(dtype) where lower precision is wanted"
            )
        try:
            if name.partition(".")[0] in _WHOLE:
                return self._whole(name.partition(".")[0], func, args, kwargs)
            return func(*args, **kwargs)
        except SuperoptError:
            raise
        except Exception as error:
            if self.recorder.failure is None or self.recorder.failure[0] is not error:
                self.recorder.failure = error, _describe(name, args, kwargs)
            raise

    def _data(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        known = id(tensor) in self.recorder.position or id(tensor) in self.recorder.titles
        if known or tensor.device == _META:
            raise TraceError(
                f"{self.recorder.name}: {_plain(name)} needs the values of a tensor"
                f"{_location()}, so the program depends on its data; use torch.where for a choice,"
                " or pass the number as a Python scalar"
            )
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
            result = _WHOLE[target](*args, **kwargs)
            if result is None:
                result = func(*args, **kwargs)
        finally:
            self.recorder.paused = False
        self.recorder.record(target, func, args, kwargs, result)
        return result


def _plain(name: str) -> str:
    words = {"__bool__": "a branch on a tensor", "__index__": "an index", "__float__": "float()"}
    return words.get(name, f"{name.strip('_')}()")


def _describe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return `name(float16[16, 4096], 2)`, for errors."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            return str(Meta(tuple(value.shape), value.dtype, ()))
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)

    items = [*map(text, args), *(f"{key}={text(value)}" for key, value in kwargs.items())]
    return f"{name}({', '.join(items)})"


def _twin(tensor: Tensor, function: str, name: str) -> Tensor:
    """Return a meta tensor of the same shape, strides and dtype, on a storage of its own."""
    if not all(type(size) is int for size in tensor.shape):
        raise InputError(f"{function}: {name!r} has symbolic sizes {tuple(tensor.shape)}; pass fixed shapes")
    return torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=_META)


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.device != _META:
        return torch.empty_strided(tuple(leaf.shape), tuple(leaf.stride()), dtype=leaf.dtype, device=_META)
    return leaf


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _item(tensor: Tensor) -> float | int | bool:
    """Return the value of a 0-d constant; a plain number, whatever modes are active."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        value = tensor.item()
    assert isinstance(value, float | int | bool)
    return value


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors among the arguments that an operator writes into."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if isinstance(value, Tensor):
            found.append(value)
    return tuple(found)
