"""Calls: a compiled kernel as a function of the addresses of what it reads and writes.

Python calls a few lines of C++, which call the kernel: that takes some 0.4 microseconds less than by ctypes.
What they use of Python is declared as its stable ABI has it, so that no headers of Python are needed. Where
they cannot be compiled, kernels are called by ctypes.
"""

import ctypes
import logging
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from superopt.codegen.cpp.compile import compile_source
from superopt.codegen.cpp.source import CppSource
from superopt.codegen.errors import CompileError

__all__ = ["Call", "bound", "functions", "load_kernel"]

log = logging.getLogger("superopt")

Call = Callable[..., object]
"""A kernel with all of its fields but the addresses, which are given as integers."""

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
// The bytes that are bound: the kernel, how many fields follow the addresses, and these fields.
struct Bound {
    void (*kernel)(const void*);
    word count;
    word fields[1];
};

static PyObject* call(PyObject* self, PyObject* const* given, word count) {
    const Bound* const bound = reinterpret_cast<const Bound*>(PyBytes_AsString(self));
    word* const record = static_cast<word*>(__builtin_alloca((count + bound->count) * sizeof(word)));
    for (word one = 0; one < count; ++one) record[one] = reinterpret_cast<word>(PyLong_AsVoidPtr(given[one]));
    if (PyErr_Occurred()) return nullptr;
    for (word one = 0; one < bound->count; ++one) record[count + one] = bound->fields[one];
    void* const thread = PyEval_SaveThread();  // other threads of Python run meanwhile
    bound->kernel(record);
    PyEval_RestoreThread(thread);
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}
"""


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


def bound(kernel: "ctypes._FuncPointer", addresses: int, fields: bytes) -> Call:
    """Return a kernel as a function of so many addresses; the fields after them are known."""
    direct = _direct()
    if direct is not None:
        return direct(kernel, fields)
    pack = Struct(f"{addresses}Q").pack
    return lambda *given: kernel(pack(*given) + fields)


@cache
def _direct() -> "Callable[[ctypes._FuncPointer, bytes], Call] | None":
    """Return what makes functions of kernels that Python calls directly, where that can be had."""
    try:
        made = functions("call", _CALL, many=True)
    except CompileError as error:
        log.info("kernels are called by ctypes: %s", error)
        return None
    head = Struct("QQ").pack

    def direct(kernel: "ctypes._FuncPointer", fields: bytes) -> Call:
        address = ctypes.cast(kernel, ctypes.c_void_p).value or 0
        return made(head(address, len(fields) // _WORD) + fields)

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
