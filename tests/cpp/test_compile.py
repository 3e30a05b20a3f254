"""The compiler: found or missed, its errors and limits, its cache, the time of a call, free names."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from superopt.codegen.children import Children
from superopt.codegen.cpp import (
    CppMuGraph,
    CppSource,
    compile_shared,
    compile_source,
    default_config,
    emit,
    find_compiler,
    lower_kernel,
    names,
)
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.cpp.calls import load_kernel
from superopt.codegen.errors import CompileError, NoCompilerError, UnsupportedError
from superopt.ir import fuse, parse_graph

ADD = """
graph add
axes n=8
in x: {0}[n]
t1 = add(x, x)
out y: {0}[n] = t1
"""


def test_a_second_time_comes_from_the_cache(tmp_path: Path) -> None:
    source = CppSource("nothing", 'extern "C" void nothing(void*) {}\n', ())
    first = compile_source(source, cache=tmp_path)
    written = first.stat().st_mtime_ns
    assert compile_source(source, cache=tmp_path) == first
    assert first.stat().st_mtime_ns == written
    other = CppSource("nothing", f"// tuned for 8 n\n{source.code}", ())
    assert compile_source(other, cache=tmp_path) == first
    assert compile_source(source, cache=tmp_path, flags=("-O0",)) != first
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".so", ".so"]


PRODUCT = """
#include "runtime.hpp"
using namespace superopt;
extern "C" void {0}(void** p) {{
    contract(2, 2, 2, Matrix<float>{{(float*)p[0], 2, 1}},
             Matrix<{1}>{{({1}*)p[1], 2, 1}}, (float*)p[2], 2);
}}
"""


@pytest.mark.slow
def test_kernels_share_compiled_contractions(tmp_path: Path) -> None:
    names = [("one", "float"), ("other", "float"), ("bytes", "uint8_t"), ("weights", "int8_t")]
    built = [
        compile_source(CppSource(name, PRODUCT.format(name, kind), ()), cache=tmp_path, flags=("-O0",))
        for name, kind in names
    ]
    shared = sorted(path.name.partition("-")[0] for path in tmp_path.glob("*.o"))
    assert shared == ["contract_float", "contract_int8_t", "contract_panels"]
    x, c = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2)
    for path, (name, _) in zip(built, names, strict=True):
        y = {"bytes": x.byte(), "weights": x.char()}.get(name, x)
        addresses = torch.tensor([x.data_ptr(), y.data_ptr(), c.data_ptr()])
        load_kernel(path, name)(addresses.data_ptr())
    assert torch.equal(c, 4 * (x @ x))


def test_an_error_names_the_first_line(tmp_path: Path) -> None:
    source = CppSource("broken", "int f() { return missing; }\n", ())
    with pytest.raises(CompileError, match=r"broken: .*missing.*"):
        compile_source(source, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_time_limit(tmp_path: Path) -> None:
    source = CppSource("slow", '#include "runtime.hpp"\n', ())
    with pytest.raises(CompileError, match=r"slow: the compiler took more than 0\.001 s"):
        compile_source(source, cache=tmp_path, timeout_s=0.001)
    assert list(tmp_path.iterdir()) == []


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompilerError, match=r"g\+\+, clang\+\+, c\+\+"):
        find_compiler()


def test_a_dtype_without_kernels() -> None:
    with pytest.raises(UnsupportedError, match="'x' of dtype f64"):
        CppMuGraph(fuse(parse_graph(ADD.format("f64"))))


def test_names_that_cpp_has_taken() -> None:
    text = """
graph names
axes auto=3 n=2 sum=4
in float: f32[auto, n]
in n: f32[n, sum]
t2 = contract[n](float, n)
t3 = exp(t2)
out exp: f32[auto, sum] = t3
"""
    x, w = torch.randn(3, 2), torch.randn(2, 4)
    got = CppMuGraph(fuse(parse_graph(text)), flags=("-O1",))(float=x, n=w)["exp"]
    torch.testing.assert_close(got, (x @ w).exp())


def test_a_number_that_two_nests_read() -> None:
    """How many elements two axes have is read outside two loops over vectors, in one scope."""
    text = """
graph numbers
axes b=2 m=3 k=8
in x: f32[b, m, k]
t1 = sum[b, m](x)
t2 = size[b]()
t3 = size[m]()
t4 = mul(t2, t3)
t5 = div(t1, t4)
t6 = sub(x, t5)
t7 = square(t6)
t8 = sum[b, m](t7)
t9 = div(t8, t4)
out y: f32[k] = t9
"""
    x = torch.randn(2, 3, 8)
    got = CppMuGraph(fuse(parse_graph(text)), flags=("-O1",))(x=x)["y"]
    torch.testing.assert_close(got, x.var((0, 1), unbiased=False))


def test_a_call_costs_microseconds() -> None:
    run = CppMuGraph(fuse(parse_graph(ADD.format("f32"))), flags=("-O1",))
    x = torch.randn(8)
    best = float("inf")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            run(x=x)
        best = min(best, (time.perf_counter() - start) / 100)
    torch.set_num_threads(before)
    assert best < 50e-6  # generous: the machine may be shared


@pytest.mark.slow
def test_the_header_is_compiled_once_and_a_damaged_one_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_compile, "_folder", lambda: tmp_path)
    with Children() as children:
        compile_shared({"float"}, children)
    names = {path.name.partition("-")[0] for path in tmp_path.iterdir()}
    assert {"contract_float", "contract_panels"} <= names
    header = next(tmp_path.glob("*.gch"), None)
    if header is None:
        pytest.skip("the compiler does not compile headers for later")
    mugraph = fuse(parse_graph(ADD.format("f32")))
    program = lower_kernel(mugraph, 0)
    source = emit(program, default_config(program, mugraph.graph.sizes))
    assert source.unit_strides
    compile_source(source, unit_strides=True, cache=tmp_path)
    late = replace(source, code=f"{source.code}\nint late;\n")
    with pytest.raises(CompileError, match="took more than"):  # that is not the header's fault
        compile_source(late, unit_strides=True, cache=tmp_path, timeout_s=0.001)
    assert header.exists()
    header.write_bytes(header.read_bytes()[:100_000])
    other = replace(source, code=f"{source.code}\nint other;\n")
    load_kernel(compile_source(other, unit_strides=True, cache=tmp_path), source.name)
    assert not header.exists()


def scaled_by(port: str) -> str:
    """Return a program that multiplies a vector by a number of this name."""
    return f"graph scaled\naxes k=16\nin x: f32[k]\nin {port}: f32[]\nt = mul(x, {port})\nout o: f32[k] = t"


def test_every_ending_that_is_added_to_a_name_is_kept_free() -> None:
    text = "".join(path.read_text() for path in Path(names.__file__).parent.rglob("*.py"))
    added = {f"_{ending}" for ending in re.findall(r"\}_([a-z_]+)", text)}
    assert len(added) > 20
    assert added <= {*names._DERIVED, "_stride_", "_joins_"}


@pytest.mark.parametrize("port", ["x_stride_k", "x_joins_k", "x_last", "x_sums", "Sums", "along_blocks"])
def test_a_tensor_may_be_called_what_a_kernel_calls_something_else(port: str) -> None:
    """Before: `x_stride_k`, a number, was read as the stride of x."""
    kernel = CppMuGraph(fuse(parse_graph(scaled_by(port))), flags=("-O1",))
    x, by = torch.rand(16), torch.tensor(5.7)
    torch.testing.assert_close(kernel(**{"x": x, port: by})["o"], x * by)


@pytest.mark.parametrize("name", ["x", "rows", "m_count", "scores", "t2"])
def test_other_names_stay(name: str) -> None:
    text = scaled_by("number").replace("in x:", f"in {name}:").replace("mul(x", f"mul({name}")
    assert names.Names(parse_graph(text)).values[0] == name
