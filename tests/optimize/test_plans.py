"""Plans for devices that are not here, tuning them, and programs that a search cuts in parts."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import superopt
import superopt.driver.run
from superopt import InputError, OptimizeOptions, SearchOptions
from superopt.cli import main
from superopt.fate import Kind
from superopt.ir import fuse
from superopt.optimizer import tune
from superopt.rivals.rivals import RIVALS
from superopt.rivals.stand_in import stand_in
from superopt.targets import KernelReport, pick_target
from superopt.targets.cpu import CpuTarget
from superopt.targets.cuda import CudaTarget
from superopt.targets.products import rounded_products, rounding_products
from superopt.targets.tf32 import is_tf32, tf32_products
from superopt.trace import trace
from superopt.tune.measure import Times

PLAN = OptimizeOptions(target="cpu", measure=False, graphs=2, cache=False)
FEW = replace(PLAN, search=SearchOptions(max_graphs=4))


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


def two_layers(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ v).relu() @ w).softmax(-1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that says at once that everything fits, but not four warps."""
    names: list[str] = []

    def answer(self, jobs, *, seconds, on_done) -> None:
        for at, (mugraph, number, config) in enumerate(jobs):
            names.append(f"{mugraph.graph.name}_{number}")
            spills = 64 if config.num_warps == 4 else 0
            on_done(at, KernelReport(names[-1], shared_bytes=1024, registers=99, spill_bytes=spills))

    monkeypatch.setattr(CudaTarget, "compile_ahead", answer)
    return names


def half(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)


def test_a_plan_for_a_device_that_is_not_here(compiled, tmp_path: Path) -> None:
    options = replace(FEW, target="cuda:90", measure=True)
    best = superopt.optimize(norm_linear, *half((16, 512), (512,), (512, 256)), options=options)
    assert best.winner is None
    assert best.speedup is None
    assert best.fused is None
    assert best.predicted_us is not None
    assert best.predicted_us >= best.floor_us > 0
    assert "a plan for cuda:90" in best.explain()
    assert "nothing was measured" in best.explain()
    [plan] = best.regions
    assert compiled
    reports = [one for one in plan.chosen.kernels if one.registers]
    assert all(one.spill_bytes == 0 for one in reports) or len(reports) == 0
    assert all("@triton.jit" in source for source in best.sources)
    x, g, w = (torch.randn(shape) for shape in ((3, 8), (8,), (8, 4)))
    torch.testing.assert_close(best(x, g, w), norm_linear(x, g, w))  # the original function runs
    best.save(tmp_path / "plan.json")
    loaded = superopt.load(tmp_path / "plan.json")
    assert loaded.sources == best.sources
    with pytest.raises(InputError, match="made for cuda:90, which is not on this machine"):
        tune(tmp_path / "plan.json")


@pytest.mark.slow
def test_a_plan_is_kept_with_what_the_compiler_said(
    compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    options = replace(PLAN, target="cuda:90", cache=True)
    inputs = half((16, 512), (512,), (512, 256))
    first = superopt.optimize(norm_linear, *inputs, options=options)
    compiled.clear()
    again = superopt.optimize(norm_linear, *inputs, options=options)
    assert not compiled
    assert again.search is None
    assert again.sources == first.sources
    assert again.regions[0].chosen.kernels == first.regions[0].chosen.kernels
    [made], [recalled] = first.regions, again.regions
    assert len(made.candidates) > 3
    assert made.dropped
    assert recalled.dropped == made.dropped
    for one, earlier in zip(made.candidates, recalled.candidates, strict=True):
        assert (earlier.id, earlier.name, earlier.mugraph) == (one.id, one.name, one.mugraph)
        assert earlier.configs == one.configs
        assert (earlier.fate, earlier.predicted_us) == (one.fate, one.predicted_us)
    for changed, other in (
        (replace(options, target="cuda:80"), inputs),
        (replace(options, graphs=3), inputs),
        (options, half((16, 512), (512,), (512, 255))),
    ):
        compiled.clear()
        superopt.optimize(norm_linear, *other, options=changed)
        assert compiled


@pytest.mark.slow
def test_a_plan_that_was_measured_keeps_the_best_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    options = replace(PLAN, cache=True, measure=True, seconds=0.4, torch_compile=False, guarded=False)
    inputs = tuple(torch.randn(shape) for shape in ((5, 64), (64,), (64, 96)))
    first = superopt.optimize(norm_linear, *inputs, options=options)
    again = superopt.optimize(norm_linear, *inputs, options=options)
    assert len(first.regions[0].candidates) > 3
    assert again.search is None
    assert again.regions[0].recalled
    assert {one.id for one in again.regions[0].candidates} <= {one.id for one in first.regions[0].candidates}
    assert len(again.regions[0].candidates) <= 3
    assert again.regions[0].dropped == ()


@pytest.mark.slow
def test_what_cannot_be_compiled_stays_so_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(self, jobs, *, seconds, on_done) -> None:
        for at, (mugraph, number, _) in enumerate(jobs):
            fine = len(mugraph.kernels) > 1
            on_done(at, KernelReport(f"{number}", registers=9, spill_bytes=0) if fine else "out of registers")

    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(CudaTarget, "compile_ahead", answer)
    options = replace(PLAN, target="cuda:90", graphs=3, cache=True)
    inputs = half((16, 512), (512,), (512, 256))
    fates = []
    for _ in range(2):
        [plan] = superopt.optimize(norm_linear, *inputs, options=options).regions
        fates.append([(one.id, one.fate) for one in plan.candidates])
        assert plan.chosen.fate.is_sound
    assert fates[0] == fates[1]
    assert "out of registers" in {fate.reason for _, fate in fates[0] if fate.kind is Kind.FAILED}


@pytest.mark.slow
def test_what_cannot_be_compiled_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self, jobs, *, seconds, on_done) -> None:
        for at in range(len(jobs)):
            on_done(at, "the compiler stopped: ended by SIGSEGV")

    monkeypatch.setattr(CudaTarget, "compile_ahead", fail)
    options = replace(FEW, target="cuda:90")
    best = superopt.optimize(norm_linear, *half((16, 512), (512,), (512, 256)), options=options)
    refused = [one for one in best.regions[0].candidates if not one.fate.is_sound]
    assert refused
    assert "ended by SIGSEGV" in best.explain()
    assert best.regions[0].chosen not in refused


@pytest.mark.slow
def test_a_plan_by_the_real_compiler() -> None:
    pytest.importorskip("triton")
    options = replace(PLAN, target="cuda:90")
    best = superopt.optimize(norm_linear, *half((16, 512), (512,), (512, 256)), options=options)
    assert any(one.registers for plan in best.regions for one in plan.chosen.kernels)


@pytest.mark.parametrize("name", ["cuda:x", "cuda:", "rocm", "", "cuda:9", 7])
def test_unknown_targets_are_listed(name) -> None:
    with pytest.raises(InputError, match=r"valid are auto, cpu, cuda .*cuda:80.*H100"):
        pick_target(name)


@pytest.mark.parametrize(
    ("name", "found"), [("cpu", "cpu"), ("cuda:80", "cuda:80"), ("H100", "cuda:90"), ("rtx 4090", "cuda:89")]
)
def test_targets_by_name(name: str, found: str) -> None:
    assert pick_target(name).name == found


def tf32_is_tried() -> bool:
    mugraph = fuse(trace(torch.matmul, torch.empty(64, 64), torch.empty(64, 64)).graph)
    return "tf32" in {one.precision for one in CudaTarget(90).configs(mugraph, 0)}


@pytest.fixture
def told() -> Iterator[Callable[[str, str], None]]:
    """Tells torch by its newer names how exact products of fp32 are to be."""
    matmul = torch.backends.cuda.matmul
    before = torch.backends.fp32_precision, matmul.fp32_precision

    def tell(everywhere: str, products: str) -> None:
        torch.backends.fp32_precision = everywhere
        matmul.fp32_precision = products

    yield tell
    tell(*before)


@pytest.mark.parametrize(
    ("everywhere", "products", "tried"),
    [("none", "none", False), ("tf32", "tf32", True), ("none", "tf32", True), ("tf32", "ieee", False)],
)
def test_tf32_as_torch_was_told(told, everywhere: str, products: str, tried: bool) -> None:
    told(everywhere, products)
    assert tf32_is_tried() is tried


def test_a_key_says_whether_tf32_is_tried(told) -> None:
    """Before: kernels in tf32 were recalled where torch's own products are exact."""
    keys = []
    for products in ("ieee", "tf32", "none"):
        told("none", products)
        keys.append(CudaTarget(90).key_parts())
    assert keys[0] == keys[2] != keys[1]


def test_a_key_says_how_a_cpu_multiplies(told) -> None:
    """Before: a race against products in bf16 was recalled where they are exact."""
    matmul, keys = torch.backends.mkldnn.matmul, []
    before = matmul.fp32_precision
    for products in ("ieee", "bf16", "none", "tf32"):
        matmul.fp32_precision = products
        keys.append(pick_target("cpu").key_parts())
    matmul.fp32_precision = before
    told("tf32", "ieee")
    assert keys[0] == keys[2]
    assert pick_target("cpu").key_parts() not in keys  # convolutions are in tf32 too
    assert len({str(one) for one in keys}) == 3


def test_products_of_a_cpu_are_as_they_were_told_for_a_while() -> None:
    before = torch.get_float32_matmul_precision()
    for precision, found in (("medium", {"matmul": "bf16"}), ("high", {"matmul": "tf32"}), ("highest", {})):
        torch.set_float32_matmul_precision(precision)
        for wanted in ({}, {"conv": "tf32"}, {"matmul": "bf16"}):
            with rounding_products(wanted):
                assert rounded_products() == wanted
            assert rounded_products() == found
    torch.set_float32_matmul_precision(before)


def test_tf32_is_as_it_was_told_for_a_while(told) -> None:
    for before, wanted in ((False, True), (True, False), (True, True)):
        torch.backends.cuda.matmul.allow_tf32 = before
        with tf32_products(wanted):
            assert is_tf32() is wanted
        assert is_tf32() is before


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_as_torch_was_told_by_the_older_name(told, monkeypatch, allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    assert tf32_is_tried() is allowed
    torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=allowed))
    assert tf32_is_tried() is allowed


def test_no_peer_has_cuda_graphs_of_its_own(monkeypatch) -> None:
    modes: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda function, mode: modes.append(mode) or function)
    for one in RIVALS:
        one.make(norm_linear, [], {})
    assert modes == [None, "max-autotune-no-cudagraphs"]
    for mode in filter(None, modes):
        assert not torch._inductor.list_mode_options(mode).get("triton.cudagraphs", False)


def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Has no product: a process that tries the kernel first would compile all contractions."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    inputs = (torch.empty(5, 64), torch.empty(64))
    superopt.optimize(norm, *inputs, options=replace(FEW, graphs=1)).save(path)
    return path


def test_tuning_measures_a_plan(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.json"
    arguments = ["tune", str(plan), "--seconds", "0.4", "-o", str(out), "--no-torch-compile", "--json"]
    assert main(arguments) in (0, 1)
    shown = json.loads(capsys.readouterr().out)
    data = json.loads(out.read_text(encoding="utf-8"))
    assert shown["winner"] == data["winner"]
    assert set(data["measurements"]) == {"eager", "superopt"}
    assert data["device"]
    assert data["floats"]["ok"]
    inputs = tuple(torch.randn(shape) for shape in ((5, 64), (64,)))
    found = superopt.load(out)(*inputs)
    torch.testing.assert_close(found, norm(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_tuning_says_what_pytorch_raced_with(plan: Path, tmp_path: Path, monkeypatch) -> None:
    measured: list[Callable] = []
    real = CpuTarget.times

    def measure(self, contenders, *arguments: object, **named: object):
        if "eager" in contenders and contenders["eager"] not in measured:
            measured.append(contenders["eager"])
        return real(self, contenders, *arguments, **named)

    monkeypatch.setattr(CpuTarget, "times", measure)
    inputs = tuple(torch.randn(shape) for shape in ((5, 64), (64,)))
    told: list[str] = []
    stood = tune(plan, seconds=0.2, torch_compile=False, on_progress=told.append)
    given = tune(plan, norm, seconds=0.2, torch_compile=False, on_progress=told.append)
    assert [isinstance(one, torch.fx.GraphModule) for one in measured] == [True, False]
    assert measured[1] is norm
    assert sum("a stand-in" in line for line in told) == 1
    for best, stood_in in ((stood, True), (given, False)):
        best.save(tmp_path / "out.json")
        for one in (best, superopt.load(tmp_path / "out.json", norm)):
            assert one.stood_in is stood_in
            assert ("stand-in" in one.explain().splitlines()[0]) is stood_in
            torch.testing.assert_close(one(*inputs), norm(*inputs), rtol=1e-4, atol=1e-4)


def test_a_stand_in_that_wins_is_not_what_runs(plan: Path, monkeypatch) -> None:
    def measure(self, contenders, *_: object, **__: object) -> dict[str, Times]:
        return {name: Times([1.0 if name == "eager" else 9.0] * 9) for name in contenders}

    monkeypatch.setattr(CpuTarget, "times", measure)
    monkeypatch.setattr("superopt.rivals.final.stand_in", lambda traced, inputs: pytest.fail)
    best = tune(plan, seconds=0.2, torch_compile=False)
    assert best.winner == "eager"
    inputs = tuple(torch.randn(shape) for shape in ((5, 64), (64,)))
    torch.testing.assert_close(best(*inputs), norm(*inputs), rtol=1e-4, atol=1e-4)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def in_structure(pair: list[torch.Tensor], scale: dict[str, float]) -> dict[str, object]:
    return {"made": (pair[0] * scale["by"]) @ pair[1], "both": (pair[0].sum(-1), None)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [(norm_linear, [(5, 64), (64,), (64, 96)]), (attention, 3 * [(2, 9, 16)])],
)
def test_a_stand_in_computes_in_the_dtypes_of_the_tensors(function, shapes, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape).to(dtype) for shape in shapes)
    found = stand_in(trace(function, *inputs), inputs)
    torch.testing.assert_close(found(*inputs), function(*inputs), rtol=0.05, atol=0.05)
    made = {node.target: node.meta["tensor_meta"].dtype for node in found.graph.nodes if node.args[1:]}
    assert {made[one] for one in made if one in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)} == {
        dtype
    }
    assert torch.ops.aten._local_scalar_dense.default not in made  # no CUDA graph could hold it


def test_a_stand_in_takes_what_the_original_takes() -> None:
    torch.manual_seed(0)
    inputs = ([torch.randn(4, 8), torch.randn(8, 6)], {"by": 0.5})
    found = stand_in(trace(in_structure, *inputs), inputs)
    for given in (inputs, ([torch.randn(4, 8), torch.randn(8, 6)], {"by": 0.5})):
        torch.testing.assert_close(found(*given), in_structure(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # what is imported at once is asked in tests/tune
def test_tuning_needs_neither_egglog_nor_z3(plan: Path, tmp_path: Path, kernels_folder: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "sys.modules['egglog'] = sys.modules['z3'] = None  # importing either fails\n"
        "from superopt.optimizer import tune\n"
        "from superopt.codegen.cpp import compile\n"
        f"compile._folder = lambda: pathlib.Path({str(kernels_folder)!r})\n"
        f"best = tune({str(plan)!r}, seconds=0.2, torch_compile=False)\n"
        f"best.save({str(tmp_path / 'out.json')!r})\n"
        "assert sys.modules['egglog'] is None and sys.modules['z3'] is None\n"
        "print(best.winner)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() in ("superopt", "eager")


def test_a_command_tells_what_is_wrong_with_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["tune", str(tmp_path / "none.json")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_command_writes_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "plan.json"
    sizes = ["--size", "M=4", "K=64", "N=64", "--dtype", "f32"]
    assert (
        main(["optimize", "gated-mlp", *sizes, "--device", "cpu", "--plan", "-o", str(out), "--quiet"]) == 0
    )
    assert "a plan for cpu" in capsys.readouterr().out
    data = json.loads(out.read_text(encoding="utf-8"))
    assert data["winner"] is None
    assert data["device"] is None
    assert data["source"] == {"workload": "gated-mlp", "sizes": {"M": 4, "K": 64, "N": 64}}


@pytest.mark.slow
def test_programs_cut_in_parts(quick, random, in_use, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(superopt.driver.run, "_TOO_MANY_REDUCTIONS", 1)
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    inputs = random((6, 32), (32, 48), (48, 20))
    best = superopt.optimize(two_layers, *inputs, options=replace(quick, cache=True))
    names = [plan.goal.name for plan in best.regions]
    assert len(names) > 1
    assert all(name.startswith("two_layers.") for name in names)
    served = in_use(best)
    torch.testing.assert_close(served(*inputs), two_layers(*inputs), rtol=1e-4, atol=1e-4)
    other = random((9, 40), (40, 33), (33, 20))
    torch.testing.assert_close(served(*other), two_layers(*other), rtol=1e-4, atol=1e-4)
    alone = random((1, 32), (32, 48), (48, 20))
    torch.testing.assert_close(served(*alone), two_layers(*alone), rtol=1e-4, atol=1e-4)
    assert not served.elsewhere
    assert best.verdict.equal
    served.save(tmp_path / "best.json")
    for function in (None, two_layers):
        loaded = superopt.load(tmp_path / "best.json", function)
        torch.testing.assert_close(loaded(*inputs), two_layers(*inputs), rtol=1e-4, atol=1e-4)
    if all(plan.chosen for plan in best.regions):
        again = superopt.optimize(two_layers, *inputs, options=replace(quick, cache=True))
        assert again.search is None
        assert [plan.goal.name for plan in again.regions] == names
