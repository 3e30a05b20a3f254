"""Exported modules run without superopt and compute what their reference does."""

import ast
import runpy
from dataclasses import replace

import pytest
import torch

from superopt.errors import InputError
from superopt.export import export_module
from superopt.fate import Fate, Kind
from superopt.ir import parse_graph, parse_mugraph
from superopt.result import Result

CPU, CUDA = ("cpu", "f32"), ("cuda:90", "f16")

TWO_OUTPUTS = """
graph two
axes m=6 k=40 n=24
in x: {dtype}[m, k]
in w: {dtype}[k, n] strides(1, 40)
kernel grid[m]
  loop[k]
    t2 += contract[k](x, x)
  t3 = sqrt(t2)
kernel call
  t4 = contract[k](x, w)
kernel grid[m, n]
  t5 = div(t4, t3)
out norm: {dtype}[m] = t3
out y: {dtype}[m, n] = t5
out same: {dtype}[k, m] = x
"""


def with_goal(result: Result, text: str) -> Result:
    """Return a result of one region with another goal."""
    [region] = result.regions
    return replace(result, regions=(replace(region, goal=parse_graph(text)),))


def with_candidate(result: Result, **changes: object) -> Result:
    """Return a result of one region with its first candidate changed."""
    [region] = result.regions
    first, *others = region.candidates
    return replace(result, regions=(replace(region, candidates=(replace(first, **changes), *others)),))


@pytest.mark.parametrize(
    ("target", "dtype", "candidate"),
    [
        (*CPU, "fused"),
        pytest.param(*CUDA, "fused", marks=pytest.mark.slow),
        pytest.param(*CUDA, "library", marks=pytest.mark.slow),
        pytest.param(*CPU, "library", marks=pytest.mark.slow),
        pytest.param("cuda:90", "f32", "fused", marks=pytest.mark.slow),
        pytest.param("cuda:90", "f32", "library", marks=pytest.mark.slow),
    ],
)
def test_rmsnorm_linear(searched, runs, target, dtype, candidate) -> None:
    result = searched("rmsnorm-linear", target, dtype, M=5, K=96, N=80)
    text = export_module(result, candidate=candidate)
    printed = runs(text, {}, {"m": 3, "n": 48}) if candidate == "fused" and target == "cpu" else runs(text)
    assert "out: largest error" in printed
    assert "fine" in printed


@pytest.mark.parametrize(("target", "dtype"), [CPU, CUDA])
@pytest.mark.slow
def test_causal_attention_of_groups(searched, runs, target, dtype) -> None:
    result = searched("gqa", target, dtype, H=4, G=2, S=40, D=16)
    text = export_module(result)
    assert "h * g" in text
    assert "fine" in runs(text)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype"), [CPU, CUDA])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gqa-decode", {"B": 2, "H": 4, "G": 2, "T": 70, "D": 16}),
        ("layernorm-linear-gelu", {"M": 5, "K": 96, "N": 80}),
        ("linear-cross-entropy", {"M": 5, "K": 64, "V": 100}),
        ("rmsnorm-mlp", {"M": 5, "K": 64, "N": 96}),
        ("lora", {"M": 5, "K": 64, "N": 96, "R": 4}),
        ("mla", {"B": 2, "H": 3, "T": 40, "L": 32, "R": 16}),
        ("llama-layer", {"S": 20, "E": 64, "D": 16, "Q": 64, "P": 32, "N": 96}),
    ],
)
def test_workloads(searched, runs, name, sizes, target, dtype) -> None:
    result = searched(name, target, dtype, **sizes)
    for region in range(1, len(result.regions) + 1):
        for candidate in ("fused", "library"):
            assert "fine" in runs(export_module(result, region=region, candidate=candidate))


@pytest.mark.parametrize(("target", "dtype"), [CPU, pytest.param(*CUDA, marks=pytest.mark.slow)])
def test_several_kernels_a_call_and_several_outputs(written, runs, target, dtype) -> None:
    text = export_module(written(TWO_OUTPUTS.format(dtype=dtype), target))
    printed = runs(text)
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["norm", "y", "same"]
    assert "torch.randn(n, k)" in text  # w lies transposed, as it was


@pytest.mark.parametrize(("target", "dtype"), [("cpu", "f32"), ("cpu", "bf16"), ("cuda:90", "f32")])
def test_a_result_that_a_later_kernel_reads_is_stored_once(written, runs, target, dtype) -> None:
    text = TWO_OUTPUTS.format(dtype=dtype)
    if dtype == "bf16":
        text = text.replace("kernel grid[m]\n", "round t3 to bf16\nkernel grid[m]\n")
    module = export_module(written(text, target))
    assert module.count("torch.empty(") == 2
    assert "fine" in runs(module)


SPLIT = """
graph split
axes m=4 k_part=4 k_at=18 n=48 k=70
in x: f32[m, (k_part k_at)]
in w: f32[(k_part k_at), n]
split k into k_part k_at
kernel grid[m, k_part, n]
  loop[k_at]
    t2 += contract[k_at](x, w)
kernel grid[m, n]
  loop[k_part]
    t3 += sum[k_part](t2)
  t4 = size[k]()
  t5 = div(t3, t4)
out y: f32[m, n] = t5
"""

WHOLE = """
graph split
axes m=4 k=70 n=48
in x: f32[m, k]
in w: f32[k, n]
t2 = contract[k](x, w)
t3 = size[k]()
t4 = div(t2, t3)
out y: f32[m, n] = t4
"""


@pytest.mark.parametrize("target", [pytest.param("cpu", marks=pytest.mark.slow), "cuda:90"])
def test_an_axis_in_parts_the_last_of_which_is_shorter(written, runs, target) -> None:
    result = written(SPLIT, target)
    result = with_goal(result, WHOLE)
    text = export_module(result)
    assert "k_at = -(-k // k_part)" in text
    assert "fine" in runs(text)
    result = with_goal(result, WHOLE.replace("div(t2, t3)", "mul(t2, t3)"))
    with pytest.raises(InputError, match="is not equal to its region"):
        export_module(result)


def test_masks_and_integers(written, runs) -> None:
    text = """
graph masked
axes i=9 j=7
in x: f32[i, j]
in keep: bool[i, j]
in number: i64[j]
kernel grid[i]
  t3 = index[i]()
  t4 = index[j]()
  t5 = ge(t3, t4)
  t6 = and(keep, t5)
  t7 = mul(t6, x)
  t8 = add(t7, number)
  t9 = sum[j](t8)
out y: f32[i] = t9
"""
    assert "fine" in runs(export_module(written(text, "cpu")))


def test_the_same_result_gives_the_same_module(searched) -> None:
    result = searched("softmax", *CPU, M=4, N=300)
    text = export_module(result)
    assert text == export_module(result)
    ast.parse(text)
    assert "superopt" not in text.replace("exported by superopt", "").replace("superopt::", "").replace(
        "namespace superopt", ""
    )


def test_names_that_mean_something_in_python(written, runs) -> None:
    text = """
graph class
axes torch=5 lambda=6
in max: f32[torch, lambda]
in launch.1: f32[lambda]
kernel grid[torch, lambda]
  t2 = mul(max, launch.1)
out def: f32[torch, lambda] = t2
"""
    text = export_module(written(text, "cuda:90"))
    assert "def program_class(max_, launch_1):" in text
    assert "fine" in runs(text)


def test_configurations_of_the_result_are_used(searched) -> None:
    result = searched("rmsnorm-linear", *CUDA, M=16, K=128, N=128)
    tiles = [["m", 16], ["k", 32], ["n", 64]]
    config = {"tiles": tiles, "exact": ["m", "k", "n"], "num_warps": 8, "num_stages": 2}
    result = with_candidate(result, configs=(result.target.config_from_json(config),))
    text = export_module(result)
    assert "BLOCK_M=16, BLOCK_K=32, BLOCK_N=64, num_warps=8, num_stages=2" in text
    assert "if not k % 32 == 0:" in text


def test_sources_of_the_file_are_never_used(searched) -> None:
    result = searched("rmsnorm-linear", *CPU, M=5, K=32, N=16)
    result = with_candidate(result, sources=("import os; os.abort()",))
    assert "abort" not in export_module(result)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda result: replace(result, regions=()), "nothing was optimized"),
        (lambda result: replace(result, regions=result.regions * 2), "choose one with --region"),
        (
            lambda result: with_candidate(result, fate=Fate("choose", Kind.SLOWER)),
            r"name one with --candidate: fused \(fused\), library \(library\)",
        ),
    ],
)
def test_results_that_cannot_be_exported(searched, change, said) -> None:
    result = searched("rmsnorm-linear", *CPU, M=5, K=32, N=16)
    with pytest.raises(InputError, match=said):
        export_module(change(result))


@pytest.mark.parametrize(
    ("which", "said"),
    [({"region": 2}, "there is no region 2"), ({"candidate": "magic"}, "region 1 has no candidate 'magic'")],
)
def test_what_is_not_there_cannot_be_exported(searched, which, said) -> None:
    with pytest.raises(InputError, match=said):
        export_module(searched("rmsnorm-linear", *CPU, M=5, K=32, N=16), **which)


def test_a_candidate_that_computes_something_else(searched) -> None:
    result = searched("rmsnorm-linear", *CPU, M=5, K=32, N=16)
    text = str(result.regions[0].candidates[0].mugraph).replace("sqrt(", "neg(")
    result = with_candidate(result, mugraph=parse_mugraph(text))
    with pytest.raises(InputError, match="is not equal to its region"):
        export_module(result)


def test_names_become_no_code(searched) -> None:
    result = searched("softmax", *CPU, M=4, N=32)
    result = with_candidate(result, schedule='"""\nimport os\n')
    assert ast.get_docstring(ast.parse(export_module(result))) is not None
    result = with_goal(result, str(result.regions[0].goal).replace("m=4", "m=4 os.abort()=4"))
    with pytest.raises(InputError, match="no plain name"):
        export_module(result)


def test_wrong_inputs_are_refused(searched, tmp_path) -> None:
    path = tmp_path / "exported.py"
    path.write_text(export_module(searched("softmax", *CPU, M=4, N=32)))
    softmax = runpy.run_path(str(path))["softmax"]
    for wrong in (torch.zeros(4, 32, dtype=torch.float64), torch.zeros(0, 32), torch.zeros(4)):
        with pytest.raises(ValueError, match=r"the kernels take|to unpack"):
            softmax(wrong)


def described(searched, name, **sizes):
    """Return a module whose kernels take tensor descriptors."""
    result = searched(name, *CUDA, **sizes)
    configs = result.target.default_configs(result.regions[0].candidates[0].mugraph)
    given = tuple(replace(config, descriptors=True) for config in configs)
    return export_module(with_candidate(result, configs=given))


@pytest.mark.parametrize(
    ("name", "sizes", "axis"),
    [
        ("rmsnorm-linear", {"M": 17, "K": 96, "N": 80}, "m"),
        ("gqa", {"H": 4, "G": 2, "S": 40, "D": 24}, "s"),
    ],
)
@pytest.mark.slow
def test_tensor_descriptors(searched, runs, name, sizes, axis) -> None:
    text = described(searched, name, **sizes)
    kernel = name.replace("-", "_") + "_0"
    with_them = text.replace(f"{kernel}_plain[", "not_called[")
    assert with_them != text
    assert "fine" in runs(with_them, {}, {axis: 7}, {axis: 129})
    for change in (
        ('if device.type == "cpu":\n        return True', 'if device.type == "cpu":\n        return False'),
        ("tensor.data_ptr() % 16 == 0", "tensor.data_ptr() % 2**62 == 0"),
    ):
        without = text.replace(*change).replace(f"{kernel}[", "not_called[")
        assert change[0] in text
        assert "fine" in runs(without, {}, {axis: 7})


@pytest.mark.slow
def test_tensors_without_descriptors_are_read_plainly(searched, runs) -> None:
    text = described(searched, "rmsnorm-linear", M=17, K=96, N=81)  # rows of w have 162 bytes
    assert "fine" in runs(text.replace("rmsnorm_linear_0[", "not_called["))


@pytest.mark.slow
def test_parts_hold_whole_tiles(written, runs) -> None:
    """Before: the launcher made parts of 24, of which no tile of 32 is a whole part."""
    sizes = SPLIT.replace("k_at=18", "k_at=24").replace("k=70", "k=96")
    tiles = [["m", 1], ["k_part", 1], ["k_at", 32], ["n", 16]]
    result = written(sizes, "cuda:90")
    config = result.target.config_from_json({"tiles": tiles})
    _, other = result.target.default_configs(result.regions[0].candidates[0].mugraph)
    result = with_candidate(with_goal(result, WHOLE.replace("k=70", "k=96")), configs=(config, other))
    text = export_module(result)
    assert "k_at = -(-k_at // 32) * 32" in text
    assert "fine" in runs(text, {}, {"k": 128})
    with pytest.raises(AssertionError, match=r"k is 50; these kernels need k == k_part \* k_at"):
        runs(text, {"k": 50})


EVEN = SPLIT.replace("k_at=18", "k_at=16").replace("k=70", "k=64")


@pytest.mark.slow
def test_even_parts_need_even_sizes(written, runs) -> None:
    result = with_goal(written(EVEN, "cuda:90"), WHOLE.replace("k=70", "k=64"))
    text = export_module(result)
    assert "fine" in runs(text)
    assert "k == k_part * k_at" in text
    with pytest.raises(AssertionError, match=r"k is 62; these kernels need k == k_part \* k_at"):
        runs(text, {"k": 62})


EIGHT_BITS = """
graph eight
axes m=17 k=80 n=48
in x: f16[m, k]
in w: f8e4m3[k, n]
{kernel}
out y: f32[m, n] = t2
"""
FUSED = "kernel grid[m, n]\n  loop[k]\n    t2 += contract[k](x, w)"
CALLED = "kernel call\n  t2 = contract[k](x, w)"


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
@pytest.mark.parametrize("kernel", [FUSED, CALLED])
@pytest.mark.slow
def test_inputs_of_eight_bits(written, runs, target, kernel) -> None:
    assert "fine" in runs(export_module(written(EIGHT_BITS.format(kernel=kernel), target)))


def test_what_the_target_cannot_read_is_not_exported(written) -> None:
    text = EIGHT_BITS.format(kernel=FUSED)
    with pytest.raises(InputError, match="w holds float8_e4m3fn, which Triton reads on cuda:89 and later"):
        export_module(written(text, "cuda:80"))


CONVOLUTION = """
graph conv
axes b=2 c=6 h=9 w=7 f=8 i=5 j=7 r=3 s=3
in x: {dtype}[b, c, h, w]{lies}
in k: {dtype}[f, c, r, s]
kernel call
  t2 = window[h = 2*i + r - 1, w = j {sign} s {by} 1](x)
  t3 = contract[c, r, s](t2, k)
kernel grid[b, f, i, j]
  t4 = relu(t3)
out y: {dtype}[b, f, i, j] = t4
"""


@pytest.mark.parametrize(
    ("target", "dtype", "lies", "sign", "by"),
    [
        pytest.param(*CPU, "", "+", "-", marks=pytest.mark.slow),
        (*CPU, " strides(378, 1, 42, 6)", "-", "+"),  # channels last, and taps backward
        (*CUDA, "", "-", "-"),
    ],
)
def test_convolutions_of_a_library(written, runs, target, dtype, lies, sign, by) -> None:
    text = CONVOLUTION.format(dtype=dtype, lies=lies, sign=sign, by=by)
    exported = export_module(written(text, target))
    assert "torch.convolution(" in exported
    assert "fine" in runs(exported, {}, {"b": 4, "f": 16})
