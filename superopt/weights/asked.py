"""Asked: whether weights are those that they were, by one call of compiled code.

Every call of every region asks this, and in Python it takes half a microsecond for each weight. The code is
compiled once on a machine. It calls Python by its stable interface only, and PyTorch by the function that
finds the address of a tensor for code that Inductor compiles. Where either is missing, Python asks.
"""

import ctypes
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from superopt.codegen.cpp.calls import functions
from superopt.codegen.errors import CompileError
from superopt.errors import first_line

__all__ = ["Known", "Sample", "asked"]

log = logging.getLogger("superopt")

_CODE = """
struct Weight {
    PyObject* tensor;
    long long version;
    void* address;
    PyObject* noted;  // a list of writes that PyTorch does not count: none so far
};
struct Sample {
    const char* from;
    long long step, count, bytes;  // so many numbers, of so many bytes, so far apart
    const char* held;
};
struct Known {
    void* (*address_of)(PyObject*);
    PyObject *version, *yes, *no;
    long long weights, samples;
};

static bool is_same(PyObject* given, const Weight* weights, const Known& known) {
    for (long i = 0; i < known.weights; ++i) {
        const Weight& one = weights[i];
        PyObject* const tensor = PySequence_GetItem(given, i);
        if (tensor) Py_DecRef(tensor);
        if (tensor != one.tensor) return false;
        PyObject* const version = PyObject_GetAttr(tensor, known.version);
        if (!version) return false;
        const long long count = PyLong_AsLongLong(version);
        Py_DecRef(version);
        if (count != one.version || known.address_of(tensor) != one.address) return false;
        if (PyList_Size(one.noted)) return false;
    }
    return true;
}

template <class Number>
static bool are_held(const Sample& one) {
    constexpr int bytes = sizeof(Number);
    for (long long i = 0; i < one.count; ++i)
        if (__builtin_memcmp(one.from + i * one.step, one.held + i * bytes, bytes)) return false;
    return true;
}

static bool is_held(const Sample& one) {
    if (one.step == one.bytes) return !__builtin_memcmp(one.from, one.held, one.count * one.bytes);
    switch (one.bytes) {
        case 1: return are_held<char>(one);
        case 2: return are_held<short>(one);
        case 4: return are_held<int>(one);
        default: return are_held<long long>(one);
    }
}

// The record has what is known, then the weights, then the samples.
static PyObject* is_known(PyObject* record, PyObject* given) {
    const Known& known = *reinterpret_cast<const Known*>(PyBytes_AsString(record));
    const Weight* const weights = reinterpret_cast<const Weight*>(&known + 1);
    const Sample* const samples = reinterpret_cast<const Sample*>(weights + known.weights);
    bool same = is_same(given, weights, known);
    for (long long i = 0; same && i < known.samples; ++i) same = is_held(samples[i]);
    if (!same) PyErr_Clear();
    PyObject* const answer = same ? known.yes : known.no;
    Py_IncRef(answer);
    return answer;
}
"""

_VERSION = "_version"


@dataclass(frozen=True, slots=True)
class Known:
    """A weight as it was: itself, the count of its writes, its address, and the list of other writes."""

    tensor: Tensor
    version: int
    address: int
    noted: list[Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of a weight as they were: where the first one is, and how many bytes on the next one."""

    address: int
    step: int
    count: int
    size: int  # bytes of a number
    held: bytes


def asked(known: Sequence[Known], samples: Sequence[Sample]) -> Callable[[Sequence[Tensor]], bool] | None:
    """Return a function that says whether given tensors are these; None where there is no compiled code.

    Whoever keeps it also keeps what it looks at: the memory of the samples, and the lists of writes.
    """
    made = _compiled()
    if made is None:
        return None
    function, address_of = made
    fields = [address_of, id(_VERSION), id(True), id(False), len(known), len(samples)]
    for one in known:
        fields += [id(one.tensor), one.version, one.address, id(one.noted)]
    for sample in samples:
        fields += [sample.address, sample.step, sample.count, sample.size, _address_of(sample.held)]
    record = bytes((ctypes.c_longlong * len(fields))(*fields))
    found: Callable[[Sequence[Tensor]], bool] = function(record)
    return found


def _address_of(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


@functools.cache
def _compiled() -> tuple[Callable[[bytes], Any], int] | None:
    """Return what makes a function of a record, and where PyTorch's function is that finds addresses."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    address_of = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    if address_of is None:
        return None
    try:
        return functions("is_known", _CODE, many=False), address_of
    except CompileError as error:
        log.info("whether weights are the same is asked in Python: %s", first_line(error))
        return None
