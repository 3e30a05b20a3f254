"""C++ of convolutions and pools against float64."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from quick import few
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph, compile_source, configs, emit, lower_kernel
from superopt.errors import GraphError, InputError
from superopt.ir import fuse, parse_mugraph
from superopt.precision import with_rounding
from superopt.trace import trace
from tests.windows.convolutions import Case, random_case
from tests.windows.filtered import CASES, case_of, filtered, near, random_setting

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
_DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def _kernels(case: Case, random: Random | None = None) -> tuple[CppMuGraph, list[Tensor]]:
    traced = trace(case.function, *case.inputs)
    [region] = traced.program.regions
    mugraph = with_rounding(fuse(region.graph))
    chosen = {}
    for number in range(len(mugraph.kernels)) if random else ():
        found = list(configs(lower_kernel(mugraph, number), region.graph.sizes))
        chosen[number] = random.choice(found)
    known = dict(zip((port.name for port in traced.program.inputs), case.inputs, strict=True))
    return CppMuGraph(mugraph, chosen), [known[port.name] for port in region.graph.inputs]


def _check(seed: int) -> None:
    dtype = _DTYPES[seed % 4]
    case = random_case(seed, dtype)
    program = trace(case.function, *case.inputs).program
    if program.opaque or not program.regions:
        return
    kernels, given = _kernels(case, Random(seed) if seed % 2 else None)
    [found] = kernels.in_order(given)
    expected = case.function(*(one.double() for one in case.inputs))
    assert found.shape == expected.shape, case.text
    error = (found.double() - expected).abs() / (1 + expected.abs())
    assert not error.numel() or float(error.max()) < _TOLERANCE[dtype], case.text


@pytest.mark.parametrize("seed", [2, 4, 7, 13])
def test_kernels_compute_convolutions(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 260))
def test_kernels_compute_many_convolutions(seed: int) -> None:
    _check(seed)


_PLAIN, _LAST = torch.contiguous_format, torch.channels_last
_DENSE = {
    "contiguous": ((2, 5, 9, 11), (7, 5, 3, 3), {"padding": 1}, _PLAIN, torch.float32),
    "strided": ((1, 6, 12, 33), (20, 6, 3, 5), {"padding": (1, 2), "stride": 2}, _PLAIN, torch.bfloat16),
    "channels_last": ((2, 40, 9, 7), (10, 20, 3, 3), {"groups": 2, "dilation": 2}, _LAST, torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", _DENSE)
def test_dense_convolutions_gather_windows(name: str) -> None:
    shape, kernel, settings, layout, dtype = _DENSE[name]
    x, w = (torch.randn(one).to(dtype).contiguous(memory_format=layout) for one in (shape, kernel))

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, **settings))  # type: ignore[arg-type]

    kernels, given = _kernels(Case(function, (x, w), name))
    assert "contract_gathered<" in "".join(kernels.sources)
    [found] = kernels.in_order(given)
    expected = function(x.double(), w.double())
    error = (found.double() - expected).abs() / (1 + expected.abs())
    assert float(error.max()) < _TOLERANCE[dtype]


# To compile a case takes seconds.
_FEW = ("one axis",)
_CASES = [one if one in _FEW else pytest.param(one, marks=pytest.mark.slow) for one in CASES]


@pytest.mark.parametrize("name", _CASES)
def test_convolutions_of_three_taps_take_fewer_products(name: str) -> None:
    kernels, given, expected = filtered(name)
    assert near(kernels.in_order(given)[0], expected)


@pytest.mark.parametrize("kind", ["infinite", "great"])
@pytest.mark.parametrize("name", _CASES)
def test_fewer_products_make_no_nan_of_infinite_images(name: str, kind: str) -> None:
    """Differences of infinite numbers are NaN, and sums of great ones overflow before their products do."""
    shape, kernel, _, _, dtype = CASES[name]
    kernels, given, _ = filtered(name)
    of = {tuple(one.shape): one for one in given}
    of[kernel] *= 0.01
    value = float("inf") if kind == "infinite" else 0.4 * torch.finfo(dtype).max
    some = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < (
        0.01 if kind == "infinite" else 0.1
    )
    of[shape][some] = of[shape][some].sign() * value
    found = kernels.in_order(given)[0]
    exact = case_of(name).function(*(of[one].double() for one in (shape, kernel, kernel[:1])))
    torch.testing.assert_close(
        found, exact.to(dtype), rtol=0.02, atol=0.01 if kind == "infinite" else value * 1e-5, equal_nan=True
    )
    assert bool(exact.isinf().any()) == (kind == "infinite")


@pytest.mark.slow
def test_what_contracts_windows_is_compiled_once_for_all_tiles(tmp_path: Path) -> None:
    """Compiling it takes most of the time that a kernel takes, and tuning compiles many kernels."""
    case = case_of("one axis")
    region = trace(case.function, *case.inputs).program.regions[0]
    program = lower_kernel(with_rounding(fuse(region.graph)), 0)
    found = list(configs(program, region.graph.sizes))
    for count, kind in enumerate(("gathered", "filtered"), 1):
        for config in [one for one in found if one.filtered == (kind == "filtered")][:2]:
            compile_source(emit(program, config), cache=tmp_path)
        assert len(list(tmp_path.glob("function_0*.so"))) == 2 * count
        [shared] = tmp_path.glob(f"contract_{kind}_*.o")
        assert "f16" in shared.name


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 200, 20))
def test_random_convolutions_of_three_taps_take_fewer_products(start: int) -> None:
    taken = 0
    for seed in range(start, start + 20):
        random = Random(seed)
        setting = random_setting(random)
        try:
            kernels, given, expected = filtered(setting, random=random)
        except IndexError:  # so few channels or places that they are not multiplied as matrices
            continue
        assert near(kernels.in_order(given)[0], expected), (seed, setting)
        taken += 1
    assert taken > 8


@pytest.mark.parametrize("settings", [{"stride": 3}, {"dilation": 2}, {}], ids=lambda one: "".join(one))
def test_other_convolutions_take_all_products(settings: dict[str, int]) -> None:
    w = torch.randn(8, 8, 3, 3 if settings else 5)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, **settings)  # type: ignore[arg-type]

    case = Case(function, (torch.randn(1, 8, 12, 12), w), "")
    region = trace(case.function, *case.inputs).program.regions[0]
    found = configs(lower_kernel(with_rounding(fuse(region.graph)), 0), region.graph.sizes)
    assert not any(config.filtered for config in found)


def _depthwise(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, w, padding=1, groups=3))


_AROUND = {
    "beside": lambda x, w: F.conv2d(x, w, padding=1, groups=2),
    "every other": lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=2),
    "apart": lambda x, w: F.conv2d(x, w, padding=9, dilation=(1, 9), groups=2),
    "far outside": lambda x, w: F.conv2d(x, w, padding=(1, 20), groups=2),
    "two sizes": lambda x, w: F.avg_pool2d(x, 3, 1, 1) + F.avg_pool2d(x, 5, 1, 2),
    "summed twice": lambda x, w: F.conv2d(x, w, padding=1, groups=2) + F.avg_pool2d(x, 3, 1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few(_AROUND, "every other", "apart", "far outside"))
def test_rows_of_any_length_are_summed(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for width in (1, 17, 64, 130):
        inputs = torch.randn(1, 2, 5, width, dtype=dtype), torch.randn(2, 1, 3, 3, dtype=dtype)
        kernels, given = _kernels(Case(_AROUND[name], inputs, name))
        [found] = kernels.in_order(given)
        expected = _AROUND[name](*(one.double() for one in inputs))
        tolerance = _TOLERANCE[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_long_rows_are_summed() -> None:
    def causal(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(x, w, padding=3, groups=2)[..., :-3]

    inputs = torch.randn(1, 2, 70_001), torch.randn(2, 1, 4)
    kernels, given = _kernels(Case(causal, inputs, ""))
    torch.testing.assert_close(kernels.in_order(given)[0], causal(*inputs), rtol=1e-4, atol=1e-4)


_TWO_KERNELS = """graph one
axes h=8 ho=8 r=3
in x: f32[h]
kernel grid[h]
  t1 = relu(x)
kernel grid[ho]
  loop[r]
    t2 = window[h = ho + r - 1](t1)
    t3 += sum[r](t2)
out y: f32[ho] = t3
"""


def test_a_kernel_reads_no_windows_of_what_it_computes() -> None:
    assert str(parse_mugraph(_TWO_KERNELS)) == _TWO_KERNELS
    joined = _TWO_KERNELS.replace("kernel grid[ho]\n", "").replace("grid[h]", "grid[]")
    with pytest.raises(GraphError, match="t2 is a window of t1, which this kernel computes"):
        parse_mugraph(joined)


def test_windows_fix_the_sizes_of_their_axes() -> None:
    case = Case(_depthwise, (torch.randn(2, 3, 6, 6), torch.randn(3, 1, 3, 3)), "")
    kernels, given = _kernels(case)
    more = [torch.randn(5, 3, 6, 6), given[1]]
    torch.testing.assert_close(kernels.in_order(more)[0], _depthwise(*more))
    with pytest.raises(InputError, match="are read apart"):
        kernels.in_order([torch.randn(2, 3, 8, 6), given[1]])


def test_numbers_that_an_operand_repeats_are_gathered() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(x, w[:, :, None].expand(-1, -1, 3))

    inputs = torch.randn(4, 8, 64), torch.randn(16, 8)
    kernels, given = _kernels(Case(function, inputs, ""))
    assert "contract_gathered<" in "".join(kernels.sources)
    torch.testing.assert_close(kernels.in_order(given)[0], function(*inputs), rtol=1e-4, atol=1e-4)


def test_a_kernel_reads_tensors_that_repeat_numbers_in_memory() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv1d(x, w))

    whole = torch.randn(4, 8, 64), torch.randn(16, 8, 3)
    kernels, _ = _kernels(Case(function, whole, ""))
    assert "contract_gathered<" in "".join(kernels.sources)
    x, w = whole
    for inputs in (
        (x[:, :, :1].expand_as(x), w),
        (x[:, :1, :1].expand_as(x), w),
        (x[:1].expand_as(x), w[:, :, :1].expand_as(w)),
        (x[:, :1].expand_as(x), w[:, :1].expand_as(w)),
        (x[:1, :1, :1].expand_as(x), w[:1, :1, :1].expand_as(w)),
        whole,
    ):
        torch.testing.assert_close(kernels.in_order(inputs)[0], function(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pool", [F.avg_pool1d, F.max_pool1d])
def test_a_vector_of_every_other_number_ends_with_its_row(pool: Callable[..., Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        return pool(x, 9, 2, 4).softmax(-1)

    x = torch.randn(1, 4, 63)
    kernels, given = _kernels(Case(function, (x,), ""))
    assert "load_window(" in "".join(kernels.sources)
    torch.testing.assert_close(kernels.in_order(given)[0], function(x), rtol=1e-4, atol=1e-4)


def _earlier(x: Tensor) -> Tensor:
    return F.pad(x, (3, 0))[..., :62]


_AFTER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "after a row": lambda x, z: F.avg_pool1d(x, 3, 1, 1) - F.pad(x, (1, 0))[..., :-1],
    "within a row and after it": lambda x, z: (
        (x.unfold(-1, 3, 1) * _earlier(x)[..., None]).sum(-1) + _earlier(x)
    ),
    "after vectors": lambda x, z: (x.unfold(-1, 3, 1) * z[..., None]).sum(-1) + _earlier(x),
    "within vectors and after them": lambda x, z: (
        (x.unfold(-1, 3, 1) * _earlier(x)[..., None] * z[..., None]).sum(-1) + _earlier(x)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _AFTER)
def test_windows_are_read_after_sums_over_windows(name: str) -> None:
    x, z = torch.randn(1, 4, 64), torch.randn(1, 4, 62)
    kernels, given = _kernels(Case(_AFTER[name], (x, z), name))
    torch.testing.assert_close(kernels.in_order(given)[0], _AFTER[name](x, z), rtol=1e-4, atol=1e-4)
