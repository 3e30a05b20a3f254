"""Compile: C++ source to a shared library in the cache, by the compiler that the system has."""

import atexit
import contextlib
import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from superopt.cache import cache_folder
from superopt.codegen.children import Children, LateError, LostError, exit_text
from superopt.codegen.cpp.source import CPP_CONTRACTED, CPP_TYPES, CppSource
from superopt.codegen.errors import CompileError, NoCompilerError
from superopt.errors import reason_of

__all__ = [
    "FLAGS",
    "RUNTIME",
    "Compiler",
    "compile_shared",
    "compile_source",
    "compiler_ends",
    "find_compiler",
    "runtime_text",
]

log = logging.getLogger("superopt")

RUNTIME = "runtime.hpp"
"""The name of the header that every kernel includes."""

_PARTS = (
    *("vectors", "formats", "functions", "lanes", "windows/windows", "scratch", "sums", "blocks"),
    *("panels", "contraction", "pairs", "squares", "tiles", "in_place", "products"),
    *("windows/gathered", "windows/filtered"),
)

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fopenmp",
    "-w",
)
"""What every kernel is compiled with."""
_NAMES = ("g++", "clang++", "c++")
_ANSWER_S = 5.0  # seconds that a compiler has to say its version, or to compile nothing
_TIMEOUT_S = 60.0
_COMMENT = re.compile(r"^\s*//.*\n", re.MULTILINE)
_CALL = re.compile(r"\b(contract|contract_pairs|contract_gathered|contract_filtered)(?:<[^>]*>)?\(([^;]*);")
_OF_WINDOWS = re.compile(r"\bcontract_(gathered|filtered)<([^>]*)>\(")
_FORMAT = re.compile(r"\b(?:Matrix|Gathered|Image|Filters)<(\w+)\b")
# Formats whose contractions are compiled on their own.
_FORMATS = frozenset(CPP_TYPES[name] for name in CPP_CONTRACTED)
_PANELS = "panels"  # the part that contractions of all formats share
_PAIRS = "pairs"  # contractions in bf16
_INCLUDED = f'#include "{RUNTIME}"\n'
_SHARED = {
    _PANELS: ("PANELS", "PANEL_ROWS(false)", "PANEL_ROWS(true)", "PANEL_PACKING", "PACKING(float)"),
    "float": ("CONTRACTION(float)",),
    _PAIRS: ("PAIRS(float, bf16)", "PAIRS(bf16, bf16)", "PAIRS(bf16, float)", "PAIRS(float, float)"),
}
_APART = "-DCONTRACTIONS_APART"
_UNIT_STRIDES = "-DUNIT_STRIDES_ONLY"
_LOCKS: dict[Path, threading.Lock] = {}  # held while what many kernels share is compiled: others wait


@functools.cache
def runtime_text() -> str:
    """Return the text of the header that every kernel includes: its parts in order."""
    folder = Path(__file__).with_name("runtime")
    return "\n".join(folder.joinpath(f"{part}.hpp").read_text() for part in _PARTS)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its path, what it says of its version, and what CXX says to call it with."""

    path: str
    version: str
    arguments: tuple[str, ...] = ()  # the arguments in CXX, such as those of CXX="ccache g++"

    @property
    def command(self) -> tuple[str, ...]:
        """The first arguments of every call of the compiler."""
        return self.path, *self.arguments

    @property
    def link(self) -> tuple[str, ...]:
        """What links a library: without an OpenMP library of its own, that of the process serves."""
        return ("-shared", "-fopenmp") if "clang" in self.version else ("-shared",)


_ENDED: set[Compiler] = set()  # compilers that ended in time at least once in this process
_HANGING: set[Compiler] = set()  # compilers that do not even end an empty program, and are not tried again


def find_compiler() -> Compiler:
    """Return the system's compiler: what CXX names, perhaps with arguments, else g++, clang++ or c++."""
    return _found(os.environ.get("CXX"), os.environ.get("PATH"))


@functools.cache
def _found(named: str | None, search_path: str | None) -> Compiler:
    """Return the compiler of an environment: a change of CXX or PATH leads to another one."""
    wanted = [name for name in (named, *_NAMES) if name]
    for name in wanted:
        program, *arguments = _words(name)
        path = shutil.which(program, path=search_path)
        if path and (version := _version((path, *arguments))):
            if named and name != named:
                log.warning("CXX is %r, which is no compiler here; %s is used", named, name)
            return Compiler(path, version, tuple(arguments))
    raise NoCompilerError(f"no C++ compiler: looked for {', '.join(wanted)}; install one, or set CXX")


def compiler_ends(children: Children) -> bool:
    """Whether the compiler ends: it is given an empty program, unless that is known."""
    return _ends(find_compiler(), children)


def _ends(compiler: Compiler, children: Children) -> bool:
    if not {compiler} & (_ENDED | _HANGING):
        nothing = [*compiler.command, "-x", "c++", "-fsyntax-only", os.devnull]
        with contextlib.suppress(LostError, OSError):  # which tell nothing
            try:
                if children.run(nothing, limit_seconds=_ANSWER_S).code >= 0:  # nobody has killed it
                    _ENDED.add(compiler)
            except LateError:
                _HANGING.add(compiler)
    return compiler not in _HANGING


def _words(command: str) -> list[str]:
    """Return a command and its arguments as a shell reads them; the text itself where it cannot be read."""
    with contextlib.suppress(ValueError):
        if not os.path.exists(command):  # a path with spaces
            return shlex.split(command) or [command]
    return [command]


@functools.cache
def _version(command: tuple[str, ...]) -> str | None:
    """Return the first line of what a compiler says of itself, or None where it does not answer."""
    try:
        with Children() as children:
            answer = children.run([*command, "--version"], limit_seconds=_ANSWER_S)
    except (LateError, OSError):
        return None
    return next(iter(answer.output.splitlines()), "unknown version") if answer.code == 0 else None


def compile_source(
    source: CppSource,
    *,
    unit_strides: bool = False,
    timeout_s: float = _TIMEOUT_S,
    flags: Sequence[str] = (),
    cache: Path | None = None,
    children: Children | None = None,
) -> Path:
    """Return the shared library of a kernel, compiled now or found in the cache.

    With `unit_strides`, it serves only calls in which the source's `unit_strides` are 1, and is made in
    half the time. The compilers run among `children`, whose owner may end them.
    """
    build = _Build(find_compiler(), tuple(flags), timeout_s, cache or _folder())
    defines = (_UNIT_STRIDES,) if unit_strides and source.unit_strides else ()
    # A comment says for which processor the code was tuned.
    code = "\n".join((*defines, _COMMENT.sub("", source.code)))
    path = build.path(source.name, code, "so")
    if _is_whole(path):
        return path
    try:
        build.folder.mkdir(parents=True, exist_ok=True)
        with Children() as own:
            build.library(source, path, children or own, defines)
    except OSError as error:
        raise CompileError(f"{source.name}: cannot write in {build.folder}: {reason_of(error)}") from error
    return path


def compile_shared(formats: Collection[str], children: Children, *, flags: Sequence[str] = ()) -> None:
    """Compile, now, what many kernels share: contractions of tensors in some formats, and their header.

    The formats are those of C++: float, bf16, f16, int8_t. What fails here fails again for the first kernel.
    """
    build = _Build(find_compiler(), tuple(flags), _TIMEOUT_S, _folder())
    with contextlib.suppress(CompileError, OSError):
        build.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            header = pool.submit(build.header, children)
            pairs = (_PAIRS,) if CPP_TYPES["bf16"] in formats else ()
            parts = (_PANELS, *sorted(formats), *pairs)
            objects = [pool.submit(build.contraction, one, children) for one in parts]
        header.result()
        for one in objects:
            one.result()


class _EndedError(CompileError):
    """The compiler was ended, by its time limit or by its owner: that says nothing of what it read."""


@dataclass(frozen=True, slots=True)
class _Build:
    """How kernels are compiled, and the folder that they are kept in."""

    compiler: Compiler
    flags: tuple[str, ...]
    timeout_s: float
    folder: Path

    def path(self, name: str, code: str, kind: str) -> Path:
        """Return the folder in which the compiled form of some code is kept."""
        key = hashlib.sha256()
        parts = (*FLAGS, *self.flags, _APART, _processor(), runtime_text(), code)
        for part in (*self.compiler.command, self.compiler.version, *parts):
            key.update(part.encode() + b"\0")
        return self.folder / f"{name}-{key.hexdigest()[:24]}.{kind}"

    def library(self, source: CppSource, path: Path, children: Children, defines: Sequence[str]) -> None:
        """Make the library of a kernel."""
        objects = [self.contraction(part, children) for part in _shared_by(source.code)]
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            built = self._object(source.name, source.code, Path(scratch), children, defines)
            library = Path(scratch) / "kernel.so"
            linked = [str(one) for one in (built, *objects)]
            command = [*self.compiler.link, *self.flags, *linked, "-o", str(library)]
            self._run(source.name, command, children, Path(scratch))
            _keep(source.name, library, path)

    def contraction(self, part: str, children: Children) -> Path:
        """Return the object that holds what contractions share: that of a format, or the panels of all.

        A part may also be one contraction of windows, such as `FILTERED(0, 2, float, float)`.
        """
        name = "contract_" + "_".join(re.findall(r"\w+", part)).lower()
        of_format = (f"CONTRACTION({part})", f"PACKING({part})")
        made = (part,) if part.endswith(")") else _SHARED.get(part, of_format)
        templates = [f"template {one};" for one in made]
        if part == _PAIRS:  # without the instructions, this would need the contractions of all formats
            templates = ["#if defined(HAS_PAIRS)", *templates, "#endif"]
        code = _INCLUDED + "\n".join(["namespace superopt {", *templates, "}", ""])
        path = self.path(name, code, "o")
        with _LOCKS.setdefault(path, threading.Lock()):
            if not _is_whole(path):
                with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                    _keep(name, self._object(name, code, Path(scratch), children), path)
        return path

    def header(self, children: Children) -> None:
        """Compile the header that all kernels include, where the compiler can: reading it takes a third."""
        path = self._header_path
        if path is None or path.exists():
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            text, made = Path(scratch) / RUNTIME, Path(scratch) / "header"
            text.write_text(runtime_text())
            flags = (*FLAGS, *self.flags, _APART)
            self._run(
                RUNTIME, [*flags, "-x", "c++-header", str(text), "-o", str(made)], children, Path(scratch)
            )
            made.replace(path)

    @property
    def _header_path(self) -> Path | None:
        """Where the compiled header is kept; of the compilers, GCC finds it by itself, if it fits."""
        known = "g++" in self.compiler.version or "GCC" in self.compiler.version
        return self.path("runtime", "", "gch") if known else None

    def _object(
        self, name: str, code: str, scratch: Path, children: Children, defines: Sequence[str] = ()
    ) -> Path:
        text = scratch / f"{name}.cpp"
        text.write_text(_calling_shared(code))
        (scratch / RUNTIME).write_text(runtime_text())
        built = scratch / "kernel.o"
        command = [*FLAGS, *self.flags, _APART, *defines, "-c", str(text), "-o", str(built)]
        header = self._header_path
        if header is not None and header.exists():
            link = scratch / f"{RUNTIME}.gch"
            link.symlink_to(header)
            try:
                self._run(name, command, children, scratch)
            except _EndedError:
                raise
            except CompileError:  # a damaged file, perhaps
                link.unlink()
                header.unlink(missing_ok=True)
            else:
                return built
        self._run(name, command, children, scratch)
        return built

    def _run(self, name: str, arguments: list[str], children: Children, scratch: Path) -> None:
        """Run the compiler; the files that it makes on the way lie in a folder that goes with them."""
        if self.compiler in _HANGING:
            raise _EndedError(f"{name}: the compiler did not end in time before, and is not tried again")
        environment = {**os.environ, "TMPDIR": str(scratch)}
        command = [*self.compiler.command, *arguments]
        try:
            done = children.run(command, limit_seconds=self.timeout_s, environment=environment)
        except LateError:
            _ends(self.compiler, children)  # the limit may have been short
            limit = f"{self.timeout_s:.0f}" if self.timeout_s >= 10 else f"{self.timeout_s:.1g}"
            raise _EndedError(f"{name}: the compiler took more than {limit} s") from None
        except LostError as error:
            raise _EndedError(f"{name}: {error}") from None
        except OSError as error:
            raise CompileError(f"{name}: cannot run {self.compiler.path}: {reason_of(error)}") from error
        _ENDED.add(self.compiler)
        if done.code != 0:
            lines = done.errors.splitlines()
            silent = f"the compiler says nothing ({exit_text(done.code)})"
            first = next((line for line in lines if "error:" in line or "undefined" in line), silent)
            raise CompileError(f"{name}: {first.strip()}")


def _shared_by(code: str) -> list[str]:
    """Return the parts with a kernel's contractions that are compiled apart; none for other formats of B."""
    found = _CALL.findall(code)
    calls = [_FORMAT.findall(operands) for _, operands in found]
    formats = {b for _, b in calls} | {a for a, _ in calls if a != "float"}
    copies = {"contract_gathered", "contract_filtered"} & {name for name, _ in found}
    formats |= {"float"} if copies else set()
    pairs = any(name == "contract_pairs" for name, _ in found)
    parts = [*([_PANELS] if calls else []), *sorted(formats & _FORMATS), *([_PAIRS] if pairs else [])]
    return parts + _windows_in(code)


def _windows_in(code: str) -> list[str]:
    """Return the contractions of windows that a kernel calls, as macros of the header name them."""
    found = {f"{name.upper()}({numbers})" for name, numbers in _OF_WINDOWS.findall(code)}
    return sorted(found)


def _calling_shared(code: str) -> str:
    """Return a kernel's code that calls the contractions of windows that were compiled before."""
    calls = [f"extern template {one};" for one in _windows_in(code)]
    declared = "\n".join(["namespace superopt {", *calls, "}", ""]) if calls else ""
    return code.replace(_INCLUDED, _INCLUDED + declared, 1)


def _keep(name: str, made: Path, path: Path) -> None:
    """Move what a compiler made to where it is kept."""
    if not _is_whole(made):
        raise CompileError(f"{name}: the compiler made no {path.suffix} file, and says it did")
    made.replace(path)


def _is_whole(path: Path) -> bool:
    """Whether there is such a file, and it ends where it says, as one that was cut off does not."""
    try:
        with path.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if sys.platform != "linux":
        return size > 0
    if len(head) < 64 or not head.startswith(b"\x7fELF"):
        return False
    (table,), (length, count) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
    return bool(size >= table + length * count)


def _folder() -> Path:
    """Return where kernels are kept: in the cache, or where that cannot be written, for this process only."""
    try:
        folder = cache_folder() / "cpp"
        # Files in these folders are run, so only their owner may write there.
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := _open_to_others(folder):
            reason = f"{why}, so others could put code there"
        elif not os.access(folder, os.W_OK):
            reason = f"cannot write in {folder}"
        elif os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            reason = f"{folder} is mounted such that no program there may run"
        else:
            return folder
    except OSError as error:
        reason = f"there is no folder for compiled kernels: {reason_of(error)}"
    return _scratch(reason)


def _open_to_others(folder: Path) -> str | None:
    """Return why another user may have made, or may replace, what is in a folder; None where none can."""
    if not hasattr(os, "getuid"):
        return None
    for place, others in ((folder, stat.S_IWGRP | stat.S_IWOTH), (folder.parent, stat.S_IWOTH)):
        found = place.lstat() if place == folder else place.stat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{place} is no folder of its own"
        if found.st_uid not in (os.getuid(), 0):
            return f"{place} belongs to another user"
        if place == folder and found.st_uid != os.getuid():
            return f"{place} belongs to another user"
        if found.st_mode & others and not (place != folder and found.st_mode & stat.S_ISVTX):
            return f"{place} can be written by others"
    return None


@functools.cache
def _scratch(reason: str) -> Path:
    """Return a folder that ends with the process."""
    log.warning("%s; kernels of this run are not kept", reason)
    folder = Path(tempfile.mkdtemp(prefix="superopt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _processor() -> str:
    """Return what -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        import platform

        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
