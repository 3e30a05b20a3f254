"""The runtime's functions over the whole range of floats, in units in the last place; conversions exactly."""

import ctypes
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from superopt.codegen.cpp import CppSource, compile_source
from superopt.codegen.cpp.compile import runtime_text

ULP = {
    "exp": 2,
    "exp2": 2,
    "expm1": 2,
    "tanh": 3,
    "erf": 3,
    "log": 2,
    "log2": 3,
    "log1p": 3,
    "sqrt": 1,
    "sin": 1,
    "cos": 1,
}
FLOAT64: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {name: getattr(torch, name) for name in ULP}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    lines = ['#include "runtime.hpp"', "using namespace superopt;"]
    lines += [
        f'extern "C" void on_{name}(const float* from, float* to, index_t count) {{'
        " for (index_t i = 0; i < count; i += lanes)"
        f" store(to + i, 1, count - i, {name}(load(from + i, 1, count - i))); }}"
        for name in ULP
    ]
    for name in DTYPES:
        loop = "for (index_t i = 0; i < count; i += lanes)"
        lines += [
            f'extern "C" void from_{name}(const {name}* from, float* to, index_t count) {{'
            f" {loop} store(to + i, 1, count - i, load(from + i, 1, count - i)); }}",
            f'extern "C" void to_{name}(const float* from, {name}* to, index_t count) {{'
            f" {loop} store(to + i, 1, count - i, load(from + i, 1, count - i)); }}",
            f'extern "C" void one_from_{name}(const {name}* from, float* to, index_t count) {{'
            " for (index_t i = 0; i < count; ++i) to[i] = read(from[i]); }",
            f'extern "C" void one_to_{name}(const float* from, {name}* to, index_t count) {{'
            f" for (index_t i = 0; i < count; ++i) to[i] = write<{name}>(from[i]); }}",
        ]
    path = compile_source(CppSource("vector_math", "\n".join(lines) + "\n", ()))
    return ctypes.CDLL(str(path))


def apply(library: ctypes.CDLL, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = torch.empty(tensor.shape, dtype=dtype)
    library[name](
        ctypes.c_void_p(tensor.data_ptr()),
        ctypes.c_void_p(result.data_ptr()),
        ctypes.c_int64(tensor.numel()),
    )
    return result


def every_float(step: int) -> torch.Tensor:
    """Return floats all over the range: every so many bit patterns, both signs, and the special ones."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    special = np.array(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 88.72284, -87.33655, -103.9, 1e-45], np.float32
    )
    return torch.from_numpy(np.concatenate([bits.view(np.float32), special]))


def check(library: ctypes.CDLL, name: str, x: torch.Tensor) -> None:
    got = apply(library, f"on_{name}", x, torch.float32)
    wanted = FLOAT64[name](x.double())
    rounded = wanted.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    finite = rounded.isfinite()
    assert torch.equal(got[~finite].nan_to_num(nan=7.0), rounded[~finite].nan_to_num(nan=7.0))
    _, exponent = torch.frexp(rounded[finite].double())
    ulp = torch.exp2(exponent.clamp(min=-125).double() - 24)
    errors = (got[finite].double() - wanted[finite]).abs() / ulp
    worst = int(errors.argmax())
    assert errors[worst] <= ULP[name], (
        f"{name}({x[finite][worst].item()!r}) is off by {errors[worst]:.2f} ulp"
    )


@pytest.mark.parametrize("name", ULP)
def test_functions(library: ctypes.CDLL, name: str) -> None:
    x = every_float(16411)
    x = x[x.abs() < 1e5] if name in ("sin", "cos") else x
    check(library, name, x)
    check(library, name, torch.linspace(-160, 160, 50_001))
    check(library, name, torch.linspace(-2, 2, 50_001))


@pytest.mark.parametrize("name", ULP)
def test_zeros_keep_their_signs(library: ctypes.CDLL, name: str) -> None:
    x = torch.tensor([0.0, -0.0])
    made = apply(library, f"on_{name}", x, torch.float32)
    assert made.signbit().tolist() == FLOAT64[name](x).signbit().tolist()


def test_powers_of_two_are_exact(library: ctypes.CDLL) -> None:
    x = torch.arange(-155, 132).float()
    assert torch.equal(apply(library, "on_exp2", x, torch.float32), torch.exp2(x.double()).float())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "exp2", "tanh", "erf", "log"])
def test_functions_on_many_more(library: ctypes.CDLL, name: str) -> None:
    check(library, name, every_float(37))


@pytest.mark.parametrize("one", ["", "one_"])
@pytest.mark.parametrize("name", DTYPES)
def test_conversions(library: ctypes.CDLL, name: str, one: str) -> None:
    dtype = DTYPES[name]
    shorts = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    back = apply(library, f"{one}from_{name}", shorts, torch.float32)
    torch.testing.assert_close(back, shorts.float(), rtol=0, atol=0, equal_nan=True)
    x = torch.cat([every_float(16411), back, torch.nextafter(back, torch.tensor(math.inf))])
    halves = (back[:-1] + back[1:]) / 2  # ties
    x = torch.cat([x, halves])
    got = apply(library, f"{one}to_{name}", x, dtype)
    torch.testing.assert_close(got.float(), x.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


def test_the_header_is_one_text() -> None:
    assert runtime_text().startswith("// What every emitted kernel")
    assert 'include "' not in runtime_text()
