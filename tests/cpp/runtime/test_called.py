"""Kernels as functions of addresses: the direct calls do what calls by ctypes do."""

import gc
from collections.abc import Iterator
from itertools import combinations
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph, CppSource, calls, compile_source
from superopt.codegen.cpp.launches import Made, laid_out
from superopt.codegen.errors import CompileError
from superopt.ir import fuse, parse_graph, parse_mugraph

COPY = """
extern "C" void copy(void** given) {
    const long* const from = (const long*)given[0];
    long* const to = (long*)given[1];
    to[0] = from[0], to[1] = (long)given[2], to[2] = (long)given[3];
}
"""
WAIT = """
extern "C" void wait(void** given) {
    volatile long* const flag = (volatile long*)given[0];
    long* const seen = (long*)given[1];
    for (long turn = 0; turn < (long)given[2] && !*seen; ++turn) *seen = *flag;
}
"""


@pytest.fixture(params=["directly", "by ctypes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by ctypes":
        monkeypatch.setattr(calls, "_direct", lambda: None)
    return str(request.param)


@pytest.fixture
def anew() -> Iterator[None]:
    """Direct calls are looked for anew, and again after the test."""
    calls._direct.cache_clear()
    yield
    calls._direct.cache_clear()


def called(code: str, name: str, *fields: int) -> calls.Call:
    """Return a kernel of two addresses and some fields."""
    kernel = calls.load_kernel(compile_source(CppSource(name, code, ())), name)
    rest = b"".join(one.to_bytes(8, "little") for one in fields)
    return calls.chained([calls.Link(kernel, [(0, 0), (1, 0)], rest)])


def test_addresses_and_fields_arrive(way: str) -> None:
    copy = called(COPY, "copy", 7, 2**40)
    gc.collect()  # nothing but the function keeps the fields
    read, made = torch.tensor([5]), torch.zeros(3, dtype=torch.int64)
    copy(read.data_ptr(), made.data_ptr())
    assert made.tolist() == [5, 7, 2**40]
    assert type(copy).__name__ == ("builtin_function_or_method" if way == "directly" else "function")


def test_kernels_are_called_one_after_the_other(way: str) -> None:
    kernel = calls.load_kernel(compile_source(CppSource("copy", COPY, ())), "copy")
    fields = [b"".join(one.to_bytes(8, "little") for one in pair) for pair in ((1, 2), (3, 4), (5, 6))]
    places = [((0, 0), (1, 0)), ((1, 8), (1, 24)), ((1, 40), (2, 8))]  # each reads what the one before made
    run = calls.chained([calls.Link(kernel, *one) for one in zip(places, fields, strict=True)])
    gc.collect()
    read, between, made = (
        torch.tensor([9]),
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
    )
    run(read.data_ptr(), between.data_ptr(), made.data_ptr())
    assert between.tolist() == [9, 1, 2, 1, 3, 4]
    assert made.tolist() == [0, 4, 5, 6, 0]


def test_what_is_no_address_is_refused(way: str) -> None:
    copy = called(COPY, "copy", 7, 7)
    with pytest.raises(Exception, match=r"integer|argument|str"):
        copy("here", "there")


def test_other_threads_run_meanwhile(way: str) -> None:
    flag, seen = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    thread = Thread(target=flag.fill_, args=(1,))
    wait = called(WAIT, "wait", 10**10)  # some seconds: without the flag, the test fails
    thread.start()
    wait(flag.data_ptr(), seen.data_ptr())
    thread.join()
    assert seen.item() == 1


def test_without_a_compiler_for_them_kernels_are_called_by_ctypes(
    anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise CompileError("no")

    monkeypatch.setattr(calls, "compile_source", fails)
    assert calls._direct() is None


def _launch(reads: list[int], made: dict[int, int], leaves: int) -> Any:
    """Return what a kernel reads and makes, in bytes by value; and a result that leaves."""
    results = [Made((size,), value, None, True, size, torch.Tensor) for value, size in made.items()]
    leaving = Made((4,), leaves, f"out{leaves}", False, 4, torch.Tensor)
    return SimpleNamespace(kernel=SimpleNamespace(reads=tuple(reads)), made=[leaving, *results])


@given(st.data())
def test_values_that_are_needed_at_once_lie_apart(data: st.DataObject) -> None:
    launches, known = [], [0]
    for at in range(data.draw(st.integers(1, 7))):
        reads = data.draw(st.lists(st.sampled_from(known), max_size=4))
        sizes = data.draw(st.lists(st.integers(0, 300), max_size=3))
        made = {10 * at + number + 1: size for number, size in enumerate(sizes)}
        launches.append(_launch(reads, made, 1000 + at))
        known += made
    places, size = laid_out(launches)
    spans = {}
    for at, launch in enumerate(launches):
        for one in launch.made:
            if one.name is None:
                readers = [later for later, other in enumerate(launches) if one.value in other.kernel.reads]
                spans[one.value] = (at, max([at, *readers]), places[one.value], places[one.value] + one.bytes)
    assert set(spans) == set(places)
    assert size >= max((end for _, _, _, end in spans.values()), default=0)
    assert all(begin % 64 == 0 for begin in places.values())
    for one, other in combinations(spans.values(), 2):
        at_once = one[0] <= other[1] and other[0] <= one[1]
        assert not at_once or one[3] <= other[2] or other[3] <= one[2]


def test_a_long_chain_needs_no_more_memory_than_two_of_its_values() -> None:
    launches = [_launch([at - 1] if at else [], {at: 640}, 1000 + at) for at in range(9)]
    assert laid_out(launches)[1] == 2 * 640


def test_nothing_may_lie_between_kernels(way: str) -> None:
    text = """
graph g
axes m=7 k=33
in x: f32[m, k]
kernel grid[m, k]
  t1 = exp(x)
kernel grid[m]
  t2 = sum[k](t1)
out y: f32[m] = t2
"""
    run = CppMuGraph(parse_mugraph(text), flags=("-O1",))
    for m, k in ((7, 33), (7, 0), (0, 5), (3, 1)):
        x = torch.randn(m, k)
        torch.testing.assert_close(run(x=x)["y"], x.exp().sum(1))


def test_kernels_of_several_results(way: str) -> None:
    text = (
        "graph g\naxes n=40\nin x: f32[n]\nt1 = exp(x)\nt2 = neg(x)\nout a: f32[n] = t1\nout b: f32[n] = t2\n"
    )
    run = CppMuGraph(fuse(parse_graph(text)), flags=("-O1",))
    for size in (40, 7, 40):  # another size is another call
        x: Tensor = torch.randn(size)
        found = run(x=x)
        torch.testing.assert_close(found["a"], x.exp())
        torch.testing.assert_close(found["b"], -x)
