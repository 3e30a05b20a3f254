"""The named workloads: each traces to one graph, quickly, and means what PyTorch computes."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from superopt.errors import InputError
from superopt.ir import parse_graph, print_graph
from superopt.trace import trace
from superopt.workloads import WORKLOADS

SMALL = {
    "M": 3, "K": 8, "N": 6, "R": 2, "B": 2, "H": 4, "G": 2, "S": 5, "T": 7, "D": 4, "L": 6, "E": 8,
    "Q": 16, "P": 8, "V": 9,
}  # fmt: skip

LISTED = {
    "softmax", "rmsnorm", "rmsnorm-linear", "layernorm-linear-gelu", "gated-mlp", "rmsnorm-mlp", "lora",
    "mha", "gqa", "mqa", "mha-decode", "gqa-decode", "mqa-decode", "qknorm-attention", "mla", "ntrans",
    "matmul", "matmul-matmul", "matmul-rowsum", "linear-cross-entropy", "llama-layer",
}  # fmt: skip


def test_all_are_there() -> None:
    assert set(WORKLOADS) == LISTED
    assert all(item.summary.endswith(".") for item in WORKLOADS.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_traces_as_eager(name: str) -> None:
    item = WORKLOADS[name]
    sizes = {size: value for size, value in SMALL.items() if size in item.sizes}
    torch.manual_seed(0)
    inputs = item.inputs(dtype="f64", device="cpu", **sizes)
    traced = trace(item.function, *inputs, name=name)
    torch.testing.assert_close(traced.run(*inputs), item.function(*inputs), rtol=1e-9, atol=1e-9)
    assert parse_graph(print_graph(traced.graph)) == traced.graph


@pytest.mark.parametrize("name", WORKLOADS)
def test_traces_quickly_at_full_size(name: str) -> None:
    item = WORKLOADS[name]
    trace(item.function, *item.inputs())
    times = []
    for _ in range(3):
        start = time.process_time()
        assert trace(item.function, *item.inputs()).program.opaque == ()
        times.append(time.process_time() - start)
    assert min(times) < 0.2  # 1-30 ms on an idle machine


@pytest.mark.parametrize("rows", [1, 8, 16, 2048])
def test_rows(rows: int) -> None:
    for item in WORKLOADS.values():
        if "M" in item.sizes:
            assert trace(item.function, *item.inputs(M=rows)).program.opaque == ()


@pytest.mark.parametrize("cached", [4096, 8192])
def test_cached_tokens(cached: int) -> None:
    for name in ("mha-decode", "gqa-decode", "mqa-decode", "mla"):
        item = WORKLOADS[name]
        graph = trace(item.function, *item.inputs(T=cached)).graph
        assert cached in graph.sizes.values()


def test_gqa_does_not_copy_keys() -> None:
    item = WORKLOADS["gqa-decode"]
    graph = trace(item.function, *item.inputs()).graph
    query, key, _ = graph.inputs
    assert query.dims[1][0] == key.dims[1][0]
    assert len(query.dims[1]) == 2


def test_wrong_sizes() -> None:
    item = WORKLOADS["lora"]
    with pytest.raises(InputError, match="lora has no size 'Z'; it has M, K, N, R"):
        item.inputs(Z=3)
    with pytest.raises(InputError, match="size M is -1"):
        item.inputs(M=-1)
    with pytest.raises(InputError, match="dtype 'i32' is not one of"):
        item.inputs(dtype="i32")


def test_listing_needs_no_torch() -> None:
    code = "import sys, superopt.workloads; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def example() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "llama_layer.py"
    spec = importlib.util.spec_from_file_location("llama_layer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_llama_layer_module(example: ModuleType) -> None:
    torch.manual_seed(0)
    layer = example.DecoderLayer(width=16, heads=4, kv_heads=2, head_size=8, hidden=24).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    traced = trace(layer, x)
    assert traced.program.opaque == ()
    # The angles are float32 in the module and float64 here.
    torch.testing.assert_close(traced.run(x), layer(x).detach(), rtol=1e-4, atol=1e-5)


def test_interleaved_rotary() -> None:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 8), (3, 4), (3, 4))]
    traced = trace(rotate, *inputs)
    torch.testing.assert_close(traced.run(*inputs), rotate(*inputs))
    assert traced.program.opaque == ()


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_graph_in_the_file_is_the_one_that_is_traced(name: str) -> None:
    one = WORKLOADS[name]
    traced = trace(one.function, *one.inputs(), name=one.function.__name__).graph
    assert str(one.graph()) == str(traced), "run python docs/generate.py"


def test_a_search_of_a_workload_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None  # an import of it would fail\n"
        "from superopt.cli import main\n"
        "code = main(['search', 'rmsnorm-linear', '--show', '0'])\n"
        "assert 'egglog' not in sys.modules\n"  # nor its language in Python, which is as slow
        "import egglog.bindings\n"
        "egglog.EGraph()\n"
        "raise SystemExit(code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, "complete: no limit" in ended.stdout) == (0, True), ended.stderr
