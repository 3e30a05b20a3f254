"""A user's Python file: run under a private name, and one function picked from it."""

import contextlib
import difflib
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from superopt.errors import InputError, kind_and_line, reason_of
from superopt.frontier.interrupts import Ended

__all__ = ["load_function", "run_file", "signature_text", "to_stderr"]


@contextlib.contextmanager
def to_stderr() -> Iterator[None]:
    """Send what a user's file or function prints to stderr: stdout carries results only."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def signature_text(program: Callable[..., Any]) -> str:
    """Return the parameters of a function or module as `(x, w)`."""
    target = getattr(program, "forward", program)
    try:
        return f"({', '.join(inspect.signature(target).parameters)})"
    except (TypeError, ValueError):
        return "(...)"


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Return what a file defines under a name: a function, an nn.Module, or a class of one made here."""
    return _pick(run_file(path), path, name)


def run_file(path: Path) -> ModuleType:
    """Return the module that a file makes, under a private name."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {reason_of(error)}") from error
    full = path.resolve()
    try:
        code = compile(source, str(full), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise InputError(f"{path}:{error.lineno}: syntax error: {error.msg}") from error
    except ValueError as error:  # a null byte
        raise InputError(f"{path}: {error}") from error
    digest = hashlib.sha256(str(full).encode(errors="surrogateescape")).hexdigest()[:12]
    module = ModuleType(f"_superopt_user_{digest}")
    module.__file__ = str(full)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    folder = str(full.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: the file may import its neighbours, but they replace nothing
    try:
        with to_stderr():
            exec(code, module.__dict__)
    except (KeyboardInterrupt, Ended, MemoryError):
        raise
    except SystemExit as error:
        raise InputError(
            f'{path} ends the program when imported; put its last lines under if __name__ == "__main__":'
        ) from error
    except BaseException as error:
        raise InputError(f"{path}{_line(error, full)}: {kind_and_line(error)}") from error
    return module


def _pick(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    offered = _offered(module)
    listing = f"it has: {', '.join(offered)}" if offered else "it defines no function"
    if not name:
        raise InputError(
            f"{str(path)!r} needs a function, as in {path}:{(offered or ['function'])[0]}; {listing}"
        )
    if name not in vars(module):
        near = difflib.get_close_matches(name, offered, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise InputError(f"{path} has no function {name!r}{hint} ({listing})")
    value = vars(module)[name]
    if inspect.isclass(value):
        return _instance(value, f"{path}:{name}")
    if not callable(value):
        raise InputError(
            f"{path}:{name} is a {type(value).__name__}, not a function or nn.Module ({listing})"
        )
    return value  # type: ignore[no-any-return]


def _instance(kind: type[Any], name: str) -> Callable[..., Any]:
    """Return a module made without arguments, where its class can be."""
    if not callable(getattr(kind, "forward", None)):
        raise InputError(f"{name} is a class, not a function or nn.Module")
    needed = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise InputError(
            f"{name} is a class whose constructor needs ({', '.join(needed)});"
            f" make one in the file, as in model = {kind.__name__}(...), and name that"
        )
    try:
        with to_stderr():
            made = kind()
    except Exception as error:
        raise InputError(f"{name}() fails: {kind_and_line(error)}") from error
    return made  # type: ignore[no-any-return]


def _offered(module: ModuleType) -> list[str]:
    """Return the names of what the file itself defines and a command can work on."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and (
            getattr(value, "__module__", None) == module.__name__
            if inspect.isroutine(value) or inspect.isclass(value)
            else hasattr(value, "forward")
        )
        and (not inspect.isclass(value) or hasattr(value, "forward"))
    ]


def _line(error: BaseException, path: Path) -> str:
    """Return `:12`, the deepest line of this file that the error went through."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f":{lines[-1]}" if lines else ""
