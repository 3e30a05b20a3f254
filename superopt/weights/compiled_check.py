"""Compiled check: whether weights are what they were, and what a kernel reads then, told by compiled code.

Every call of every region asks this, and in Python it takes half a microsecond for each weight. The code is
compiled once on a machine. It calls Python by its stable interface only, and PyTorch by the function with
which code that Inductor compiles finds the address of a tensor. Where either is missing, Python is asked.
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
from superopt.weights.writes import Writes

__all__ = ["Check", "Known", "Reads", "Sample", "ask_python", "compiled_check"]

log = logging.getLogger("superopt")

_CODE = """
struct Weight {
    long long place;  // among the tensors that are given
    PyObject* tensor;
    long long version;
    void* address;
    PyObject* noted;           // a list of aliases, whose writes are looked at by Python
    const long long* counted;  // writes that PyTorch does not count
    long long written;         // of them, so far
};
struct Sample {
    const char* from;
    long long step, count, bytes;  // so many numbers, of so many bytes, so far apart
    const char* held;
};
struct Read {
    long long place;  // among the tensors that are given
    PyObject* kept;   // or the tensor that is read in every call
};
struct Known {
    void* (*address_of)(PyObject*);
    PyObject* version;
    long long* calls;  // that may still be served before Python is to look; no limit where it is null
    long long weights, samples, reads;
};

static PyObject* given_at(PyObject* given, long long place) {  // the caller keeps what it gave
    PyObject* const tensor = PySequence_GetItem(given, place);
    if (tensor) Py_DecRef(tensor);
    return tensor;
}

static bool is_same(PyObject* given, const Weight* weights, const Known& known) {
    for (long long i = 0; i < known.weights; ++i) {
        const Weight& one = weights[i];
        PyObject* const tensor = given_at(given, one.place);
        if (tensor != one.tensor) return false;
        PyObject* const version = PyObject_GetAttr(tensor, known.version);
        if (!version) return false;
        const long long count = PyLong_AsLongLong(version);
        Py_DecRef(version);
        if (count != one.version || known.address_of(tensor) != one.address) return false;
        if (*one.counted != one.written || PyList_Size(one.noted)) return false;
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

static PyObject* arranged(PyObject* given, const Read* reads, long long count) {
    PyObject* const found = PyTuple_New(count);
    for (long long i = 0; found && i < count; ++i) {
        PyObject* const tensor = reads[i].kept ? reads[i].kept : given_at(given, reads[i].place);
        if (!tensor) {
            Py_DecRef(found);
            return nullptr;
        }
        Py_IncRef(tensor);
        PyTuple_SetItem(found, i, tensor);
    }
    return found;
}

// The first item that is bound is the record: what is known, then the weights, the samples, and the reads.
static PyObject* if_known(PyObject* bound, PyObject* given) {
    const Known& known = *reinterpret_cast<const Known*>(PyBytes_AsString(PyTuple_GetItem(bound, 0)));
    const Weight* const weights = reinterpret_cast<const Weight*>(&known + 1);
    const Sample* const samples = reinterpret_cast<const Sample*>(weights + known.weights);
    bool same = (!known.calls || *known.calls > 0) && is_same(given, weights, known);
    for (long long i = 0; same && i < known.samples; ++i) same = is_held(samples[i]);
    const Read* const reads = reinterpret_cast<const Read*>(samples + known.samples);
    if (PyObject* const found = same ? arranged(given, reads, known.reads) : nullptr) {
        if (known.calls) --*known.calls;
        return found;
    }
    PyErr_Clear();
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}
"""

_VERSION = "_version"


@dataclass(frozen=True, slots=True)
class Known:
    """A weight as it was: itself, its address, and its writes, as PyTorch counts them and as we do."""

    tensor: Tensor
    version: int
    address: int
    writes: Writes
    written: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of a weight as they were: where the first one is, and how many bytes on the next one."""

    address: int
    step: int
    count: int
    size: int  # bytes of a number
    held: bytes


@dataclass(frozen=True, slots=True)
class Reads:
    """What a kernel reads, which of the tensors that are given are the weights, for how many calls."""

    weights: Sequence[int]  # the places of the weights among the given tensors
    tensors: Sequence[int | Tensor]  # the places of what is read, or the tensors that are read in every call
    calls: ctypes.c_longlong  # how many calls may still be served before Python is to look


Check = Callable[[Sequence[Tensor]], "tuple[Tensor, ...] | None"]
"""Returns what a kernel is to read if the given tensors hold the weights as they were, else None."""


def compiled_check(
    known: Sequence[Known], samples: Sequence[Sample], memory: object, reads: Reads | None = None
) -> Check:
    """Return compiled code that checks whether given tensors are these weights, or else `ask_python`.

    Without `reads` the code is given the weights alone, and a kernel reads nothing. `memory` owns what the
    samples show.
    """
    made = _compiled()
    if made is None:
        return ask_python
    function, address_of = made
    places = range(len(known)) if reads is None else reads.weights
    read = () if reads is None else reads.tensors
    calls = 0 if reads is None else ctypes.addressof(reads.calls)
    fields = [address_of, id(_VERSION), calls, len(known), len(samples), len(read)]
    for place, one in zip(places, known, strict=True):
        fields += [place, id(one.tensor), one.version, one.address]
        fields += [id(one.writes.aliases), ctypes.addressof(one.writes.counted), one.written]
    for sample in samples:
        fields += [sample.address, sample.step, sample.count, sample.size, _address_of(sample.held)]
    for tensor in read:
        fields += [tensor, 0] if isinstance(tensor, int) else [0, id(tensor)]
    record = bytes((ctypes.c_longlong * len(fields))(*fields))
    # The function keeps what the record points to, but not the weights, which may go.
    found: Check = function((record, [one.writes for one in known], list(samples), memory, reads))
    return found


def ask_python(given: Sequence[Tensor]) -> None:
    """Leave the check to Python: this is what stands where there is no compiled code."""


def _address_of(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


@functools.cache
def _compiled() -> tuple[Callable[[tuple[Any, ...]], Any], int] | None:
    """Return what makes a function of a record, and where PyTorch's function is that finds addresses."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    address_of = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    if address_of is None:
        return None
    try:
        return functions("if_known", _CODE, many=False), address_of
    except CompileError as error:
        log.info("whether weights have changed is checked in Python: %s", first_line(error))
        return None
