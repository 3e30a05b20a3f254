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

from superopt.codegen.cpp.compile import compile_source
from superopt.codegen.cpp.source import CppSource
from superopt.codegen.errors import CompileError

__all__ = ["Call", "bound", "load_kernel"]

log = logging.getLogger("superopt")

Call = Callable[..., object]
"""A kernel with all of its fields but the addresses, which are given as integers."""

_WORD = 8  # bytes of a field
_CODE = """
typedef struct _object PyObject;
typedef __SIZE_TYPE__ word;

extern "C" {
void* PyLong_AsVoidPtr(PyObject*);
char* PyBytes_AsString(PyObject*);
PyObject* PyErr_Occurred();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void Py_IncRef(PyObject*);
extern PyObject _Py_NoneStruct;

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

struct Method {
    const char* name;
    PyObject* (*call)(PyObject*, PyObject* const*, word);
    int flags;
    const char* about;
};
extern Method method;
Method method{"call", call, 0x80, nullptr};  // METH_FASTCALL: arguments come as an array
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
    if sys.implementation.name != "cpython":
        return None
    try:
        library = ctypes.PyDLL(str(compile_source(CppSource("calls", _CODE, ()))))
        method = ctypes.addressof(ctypes.c_char.in_dll(library, "method"))
        made = ctypes.pythonapi.PyCFunction_NewEx
    except (AttributeError, CompileError, OSError, ValueError) as error:
        log.info("kernels are called by ctypes: %s", error)
        return None
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ctypes.cast(made, ctypes.c_void_p).value or 0
    )
    head = Struct("QQ").pack

    def direct(kernel: "ctypes._FuncPointer", fields: bytes) -> Call:
        address = ctypes.cast(kernel, ctypes.c_void_p).value or 0
        found: Call = new(method, head(address, len(fields) // _WORD) + fields, None)
        return found

    return direct
