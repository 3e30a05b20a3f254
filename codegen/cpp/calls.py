"""Calls: compiled kernels as a function of the addresses of what they read and write.

Python calls a few lines of C++, which call the kernels: that takes some 0.4 microseconds less than by ctypes.
What they use of Python is declared as its stable ABI has it, so that no headers of Python are needed. Where
they cannot be compiled, kernels are called by ctypes.
"""

import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any

from superopt.codegen.cpp.compile import compile_source
from superopt.codegen.cpp.source import CppSource
from superopt.codegen.errors import CompileError

__all__ = ["Call", "Link", "chained", "functions", "load_kernel"]

log = logging.getLogger("superopt")

Call = Callable[..., object]
"""Kernels with all of their fields but the addresses, which are given as integers."""

_WORD = 8  # bytes of a field
_LIMIT_S = 20.0  # seconds that the compiler has
_ONE = 0x8  # METH_O: what Python gives is one object
_MANY = 0x80  # METH_FASTCALL: it is an array of objects

_loaded: list[ctypes.PyDLL] = []  # functions of Python point into these libraries

_PYTHON = """
typedef struct _object PyObject;
typedef __SIZE_TYPE__ word;

extern "C" {
void* PyLong_AsVoidPtr(PyObject*);
long long PyLong_AsLongLong(PyObject*);
char* PyBytes_AsString(PyObject*);
PyObject* PyTuple_New(__PTRDIFF_TYPE__);
PyObject* PyTuple_GetItem(PyObject*, __PTRDIFF_TYPE__);
int PyTuple_SetItem(PyObject*, __PTRDIFF_TYPE__, PyObject*);
PyObject* PySequence_GetItem(PyObject*, __PTRDIFF_TYPE__);
__PTRDIFF_TYPE__ PyList_Size(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
extern PyObject _Py_NoneStruct;
}
"""
_METHOD = """
struct Method {{ const char* name; decltype(&::{name}) function; int flags; const char* about; }};
extern "C" {{ extern Method method; Method method{{"{name}", {name}, {flags}, nullptr}}; }}
"""
_CALL = """
// The bytes that are bound: how many kernels there are, and how many fields the longest record has. Then of
// each kernel: its address, how many addresses it takes, how many fields follow these, for each address which
// of the given ones it lies behind, and by how many bytes, and the fields.
static PyObject* call(PyObject* self, PyObject* const* given, word count) {
    const word* at = reinterpret_cast<const word*>(PyBytes_AsString(self));
    const word kernels = *at++, longest = *at++;
    word* const address = static_cast<word*>(__builtin_alloca((count + longest) * sizeof(word)));
    word* const record = address + count;
    for (word one = 0; one < count; ++one)
        address[one] = reinterpret_cast<word>(PyLong_AsVoidPtr(given[one]));
    if (PyErr_Occurred()) return nullptr;
    void* const thread = PyEval_SaveThread();  // other threads of Python run meanwhile
    for (word number = 0; number < kernels; ++number) {
        const auto kernel = reinterpret_cast<void (*)(const void*)>(*at++);
        const word places = *at++, fields = *at++;
        for (word one = 0; one < places; ++one, at += 2) record[one] = address[at[0]] + at[1];
        for (word one = 0; one < fields; ++one) record[places + one] = *at++;
        kernel(record);
    }
    PyEval_RestoreThread(thread);
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}
"""


@dataclass(frozen=True, slots=True)
class Link:
    """A kernel to call: where its tensors are among the given addresses, and the fields after these."""

    kernel: "ctypes._FuncPointer"
    places: Sequence[tuple[int, int]]  # which address, and how many bytes behind it
    fields: bytes


def load_kernel(path: Path, name: str) -> "ctypes._FuncPointer":
    """Return a compiled kernel as a function of one pointer, to its arguments."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # the process has no OpenMP library yet
        if "GOMP" not in str(error):
            path.unlink(missing_ok=True)  # a damaged one is compiled anew the next time
            raise CompileError(f"{name}: the compiled kernel does not load: {error}") from error
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    try:
        kernel = library[name]
    except AttributeError as error:
        path.unlink(missing_ok=True)
        raise CompileError(f"{name}: the compiled kernel has no such function") from error
    kernel.argtypes = (ctypes.c_void_p,)
    kernel.restype = None
    return kernel


def chained(links: Sequence[Link]) -> Call:
    """Return several kernels, called one after the other, as one function of addresses."""
    direct = _direct()
    if direct is not None:
        return direct(links)
    kept = [(one, Struct(f"{len(one.places)}Q").pack) for one in links]

    def call(*given: int) -> None:
        for one, pack in kept:
            one.kernel(pack(*(given[at] + behind for at, behind in one.places)) + one.fields)

    return call


@cache
def _direct() -> "Callable[[Sequence[Link]], Call] | None":
    """Return what makes functions of kernels that Python calls directly, where that can be had."""
    try:
        made = functions("call", _CALL, many=True)
    except CompileError as error:
        log.info("kernels are called by ctypes: %s", error)
        return None

    def direct(links: Sequence[Link]) -> Call:
        words = [len(links), max(len(one.places) + len(one.fields) // _WORD for one in links)]
        for one in links:
            address = ctypes.cast(one.kernel, ctypes.c_void_p).value or 0
            words += [address, len(one.places), len(one.fields) // _WORD, *chain.from_iterable(one.places)]
            words += Struct(f"{len(one.fields) // _WORD}Q").unpack(one.fields)
        return made(Struct(f"{len(words)}Q").pack(*words))

    return direct


def functions(name: str, code: str, *, many: bool) -> Callable[[Any], Call]:
    """Return what makes a function of Python that is bound to an object, or raise CompileError.

    The code defines `name`, which gets that object as its `self`, and one object or an array of `many`.
    """
    if sys.implementation.name != "cpython":
        raise CompileError(f"{name}: {sys.implementation.name} may have another ABI")
    whole = _PYTHON + code + _METHOD.format(name=name, flags=_MANY if many else _ONE)
    try:
        library = ctypes.PyDLL(str(compile_source(CppSource(name, whole, ()), timeout_s=_LIMIT_S)))
        method = ctypes.addressof(ctypes.c_char.in_dll(library, "method"))
        make = ctypes.cast(ctypes.pythonapi.PyCFunction_NewEx, ctypes.c_void_p).value
    except (AttributeError, OSError, ValueError) as error:
        raise CompileError(f"{name}: {error}") from error
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(make or 0)
    _loaded.append(library)
    return lambda bound: new(method, bound, None)
