"""Calls: worked out once for each signature; then launches, on whatever device and stream are current."""

import threading
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
from triton.compiler import CompiledKernel

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.signature import sizes_of
from superopt.codegen.triton import TritonMuGraph
from superopt.codegen.triton.run import launch, prepared
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph, parse_mugraph
from superopt.targets.cuda import CudaTarget

GOLDEN = Path(__file__).with_name("golden")


class Compiled(CompiledKernel):
    """A compiled kernel that notes how it is launched."""

    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Jitted:
    """A kernel that was not compiled yet."""

    def __init__(self, compiles, launches, *, direct=True):
        self.compiles, self.launches, self.direct = compiles, launches, direct

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.compiles.append((grid, arguments, options))
            return Compiled(self.launches) if self.direct else None

        return run


@pytest.fixture
def recorded(monkeypatch):
    """Return lists of first launches, through the compiler, and of later ones."""
    compiles, launches = [], []
    monkeypatch.setattr(launch, "load_kernel", lambda text, name: Jitted(compiles, launches))
    return compiles, launches


def attention():
    built = TritonMuGraph(parse_mugraph((GOLDEN / "gqa_decode.txt").read_text()))
    graph = built.graph
    return built, {port.name: torch.zeros(graph.shape(port), dtype=torch.bfloat16) for port in graph.inputs}


def test_the_first_launch_compiles_and_later_ones_do_not(recorded):
    compiles, launches = recorded
    built, tensors = attention()
    built(**tensors)
    assert [grid for grid, _, _ in compiles] == [(launched,) for launched in (built_grids(built))]
    assert all(options["num_warps"] for _, _, options in compiles)
    assert launches == []
    made = built(**tensors)
    assert len(compiles) == 2
    assert [grid for grid, _ in launches] == [(one, 1, 1) for one in built_grids(built)]
    for (_, first, _), (_, later) in zip(compiles, launches, strict=True):
        assert [one for one in first if isinstance(one, int)] == [
            one for one in later if isinstance(one, int)
        ]
        assert [type(one) for one in first] == [type(one) for one in later]
    assert launches[0][1][0] is tensors["q"]
    assert launches[1][1][3] is made["out"]
    assert launches[0][1][3] is launches[1][1][0]  # what one kernel leaves, the next one reads


def test_a_later_kernel_reads_a_result_where_it_lies(recorded):
    _, launches = recorded
    text = """
graph left
axes m=16 k=16 n=32
in x: f16[m, k]
in w: f16[k, n]
round t2 to f16
kernel grid[m, n]
  loop[k]
    t2 += contract[k](x, w)
kernel grid[m, n]
  t3 = relu(t2)
out hidden: f16[m, n] = t2
out y: f16[m, n] = t3
"""
    built = TritonMuGraph(parse_mugraph(text))
    tensors = {"x": torch.zeros(16, 16).half(), "w": torch.zeros(16, 32).half()}
    built(**tensors)
    made = built(**tensors)
    given = [[one for one in arguments if isinstance(one, torch.Tensor)] for _, arguments in launches]
    assert [len(one) for one in given] == [3, 2]
    assert given[0][2] is given[1][0] is made["hidden"]


def built_grids(built):
    sizes = built.extents(built.graph.sizes)
    return [built.source(at, sizes).programs(sizes) for at in range(len(built.programs))]


def test_kernels_without_a_compiled_form_are_launched_through_the_compiler(monkeypatch):
    compiles = []
    monkeypatch.setattr(launch, "load_kernel", lambda text, name: Jitted(compiles, [], direct=False))
    built, tensors = attention()
    built(**tensors)
    built(**tensors)
    assert len(compiles) == 4
    assert compiles[0][2] == compiles[2][2]


def test_what_was_made_of_a_kernel_is_known_once_it_ran(recorded, monkeypatch):
    built, tensors = attention()
    assert CudaTarget(90).compiled(built) == {}
    built(**tensors)
    for number, one in built.compiled.items():
        one.metadata = SimpleNamespace(shared=1024 * (number + 1))
        one.n_regs, one.n_spills = 168, 16 * number
    reports = CudaTarget(90).compiled(built)
    assert [(at, one.shared_bytes, one.registers, one.spill_bytes) for at, one in reports.items()] == [
        (0, 1024, 168, 0),
        (1, 2048, 168, 64),
    ]
    assert CudaTarget(90).compiled(lambda **tensors: {}) == {}


def test_nothing_is_made_by_an_interpreter(monkeypatch):
    monkeypatch.setattr(launch, "load_kernel", lambda text, name: Jitted([], [], direct=False))
    built, tensors = attention()
    built(**tensors)
    assert built.compiled == {}


def test_a_signature_is_worked_out_once(recorded, monkeypatch):
    built, tensors = attention()
    counts = dict.fromkeys(("sizes_of", "emit", "make_plan"), 0)
    for name in counts:
        whole = getattr(launch, name)

        def counted(*args, name=name, whole=whole, **more):
            counts[name] += 1
            return whole(*args, **more)

        monkeypatch.setattr(launch, name, counted)
    built(**tensors)
    once = dict(counts)
    assert once["emit"] == 2
    for _ in range(3):
        built(**{name: one.clone() for name, one in tensors.items()})
    assert counts == once


def test_other_shapes_strides_and_alignments_are_other_calls(recorded):
    compiles, launches = recorded
    built, tensors = attention()
    built(**tensors)
    assert len(compiles) == 2
    moved = torch.zeros(tensors["q"].numel() + 1, dtype=torch.bfloat16)[1:].view(tensors["q"].shape)
    built(**{**tensors, "q": moved})
    assert len(compiles) == 4
    built(**{**tensors, "k": tensors["k"].transpose(2, 3).contiguous().transpose(2, 3)})
    assert len(compiles) == 6
    short = {name: one[:, :, :77] if name in "kv" else one for name, one in tensors.items()}
    built(**short)
    assert len(compiles) == 8
    assert launches == []


def test_a_prepared_call_looks_only_at_where_tensors_start(recorded):
    compiles, launches = recorded
    built, tensors = attention()
    given = [tensors[name] for name in built.inputs]
    run = built.prepared(given)
    assert [one.shape for one in run(given)] == [one.shape for one in built.in_order(given)]
    assert (len(compiles), len(launches)) == (2, 2)
    at = built.inputs.index("q")
    moved = torch.zeros(tensors["q"].numel() + 1, dtype=torch.bfloat16)[1:].view(tensors["q"].shape)
    run([*given[:at], moved, *given[at + 1 :]])
    assert len(compiles) == 4  # Triton's kernel for aligned tensors would read elsewhere
    run(given)
    assert (len(compiles), len(launches)) == (4, 4)


def test_tensors_whose_numbers_no_memory_holds(recorded):
    _, launches = recorded
    built = TritonMuGraph(
        fuse(parse_graph("graph g\naxes m=4\nin x: f32[m]\nt = exp(x)\nout o: f32[m] = t\n"))
    )
    negative = torch.complex(torch.ones(4), torch.arange(4.0)).conj().imag
    assert negative.is_neg()
    zeros = torch._efficientzerotensor((4,))
    assert zeros.data_ptr() == 0
    for given in (negative, zeros):
        for run in (built.in_order, built.prepared([given])):
            run([given])
            run([given])
            read = launches[-1][1][0]
            assert not read.is_neg()
            assert read.data_ptr() != 0
            assert torch.equal(read, given + 0)


def test_what_is_kept_ready_is_bounded(recorded, monkeypatch):
    monkeypatch.setattr(launch, "MOST_PREPARED", 3)
    built = TritonMuGraph(
        fuse(parse_graph("graph g\naxes m=4\nin x: f32[m]\nt = exp(x)\nout o: f32[m] = t\n"))
    )
    for size in range(1, 9):
        assert built(x=torch.zeros(size))["o"].shape == (size,)
        assert len(built._prepared) <= 3


def test_sizes_that_need_the_same_masks_share_one_source(monkeypatch):
    """Before: each size had a source of its own, printed anew and kept for good."""
    printed = []
    whole = launch.emit
    monkeypatch.setattr(launch, "emit", lambda *args: printed.append(1) or whole(*args))
    built = TritonMuGraph(
        fuse(parse_graph("graph g\naxes m=4\nin x: f32[m]\nt = exp(x)\nout o: f32[m] = t\n"))
    )
    sources = {id(built.source(0, {"m": size})) for size in (2049, 2050, 3072, 4095, 4096)}
    assert len(sources) == len(printed) == 2  # with a mask, and without one


def test_threads_share_one_preparation(recorded, monkeypatch):
    compiles, launches = recorded
    emitted = []
    whole = launch.emit
    monkeypatch.setattr(launch, "emit", lambda *args: emitted.append(1) or whole(*args))
    built, tensors = attention()
    ready = threading.Barrier(8)

    def call():
        ready.wait()
        for _ in range(20):
            built(**tensors)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(emitted) == 2
    assert len(compiles) + len(launches) == 8 * 20 * 2


def test_tensors_of_several_devices_are_refused():
    built, tensors = attention()
    with pytest.raises(InputError, match="'k' is on meta, but 'q' is on cpu; move them to one device"):
        built(**{**tensors, "k": tensors["k"].to("meta")})


def test_another_current_device_is_changed_for_the_call(monkeypatch):
    around = []

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            around.append(self.index)

        def __exit__(self, *error):
            around.append("left")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    assert prepared.Prepared((), (0,), 1)([torch.ones(1)]) == [1]
    assert around == [1, "left"]
    prepared.Prepared((), (0,), 0)([torch.ones(1)])
    assert around == [1, "left"]


CALLED = {
    "two batches": ("in x: f32[a, b, m, k]", "in y: f32[b, k, n, a]", "contract[k]", "f32[n, a, b, m]"),
    "a grouped dimension": ("in x: f32[m, (a k)]", "in y: f32[n, a, k]", "contract[a, k]", "f32[m, n]"),
    "rows of two axes": ("in x: f32[a, m, k]", "in y: f32[k, n, b]", "contract[k]", "f32[(a m), (n b)]"),
    "a vector": ("in x: f32[k]", "in y: f32[k, n]", "contract[k]", "f32[n]"),
    "a sum of one side": ("in x: f32[m, k]", "in y: f32[a, n]", "contract[a, k]", "f32[n, m]"),
}


@pytest.mark.parametrize("case", CALLED)
def test_library_calls(case):
    x, y, op, out = CALLED[case]
    letters = [line.split("f32")[1] for line in (x, y, f"o: {out}")]
    text = "\n".join(
        [
            "graph g",
            "axes a=2 b=3 m=4 n=5 k=6",
            x,
            y,
            "kernel call",
            f"  t2 = {op}(x, y)",
            f"out o: {out} = t2",
        ]
    )
    mugraph = parse_mugraph(text + "\n")
    torch.manual_seed(0)
    tensors = {port.name: torch.randn(mugraph.graph.shape(port)) for port in mugraph.graph.inputs}
    made = TritonMuGraph(mugraph)(**tensors)["o"]
    sizes = mugraph.graph.sizes
    spelled = ["".join(axis for axis in one if axis in sizes) for one in letters]
    open_shapes = [[sizes[axis] for axis in one] for one in spelled]
    found = torch.einsum(
        f"{spelled[0]},{spelled[1]}->{spelled[2]}",
        *(one.reshape(shape) for one, shape in zip(tensors.values(), open_shapes[:2], strict=True)),
    )
    assert torch.allclose(made, found.reshape(made.shape), atol=1e-5)


def test_a_library_call_of_something_else():
    text = "graph g\naxes m=4\nin x: f32[m]\nkernel call\n  t1 = neg(x)\nout o: f32[m] = t1\n"
    with pytest.raises(UnsupportedError, match="a library call of neg; known: contract"):
        TritonMuGraph(parse_mugraph(text))(x=torch.randn(4))


@pytest.mark.slow
def test_a_launch_costs_little(recorded):
    _, launches = recorded
    built, tensors = attention()
    tensors = {name: one[:, :, :64] if name in "kv" else one for name, one in tensors.items()}
    built(**tensors)

    def spent(count=2000):
        launches.clear()
        start = perf_counter()
        for _ in range(count):
            built(**tensors)
        return (perf_counter() - start) / count * 1e6

    least = min(spent() for _ in range(5))
    print(f"{least / 2:.1f} us a kernel")
    assert least / 2 < 500  # most of it to allocate


def test_an_axis_that_stands_for_another_is_as_long():
    text = (
        "graph gram\naxes m=2048 k=64 m2=2048\nin x: f32[m, k]\nt1 = rename[m->m2](x)\n"
        "t2 = contract[k](x, t1)\nout o: f32[m, m2] = t2\n"
    )
    found = sizes_of(fuse(parse_graph(text)), [torch.empty(5, 64)])
    assert found == {"m": 5, "k": 64, "m2": 5}


def test_slots_that_nothing_reads_any_more_are_let_go():
    f32, cpu = torch.float32, torch.device("cpu")
    left = []

    class Reads(prepared.View):
        def __call__(self, slots):
            left.append([at for at, one in enumerate(slots) if one is not None])
            super().__call__(slots)

    actions = (
        prepared.Allocate((2,), f32, cpu),
        Reads(1, torch.neg),
        Reads(2, torch.neg),
        Reads(0, torch.neg),
    )
    made = prepared.Prepared(actions, (3, 4), None)([torch.ones(2)])
    assert left == [[0, 1], [0, 2], [0, 3]]
    assert [one.shape for one in made] == [(2,), (2,)]


def test_results_are_no_views():
    """Before: a result in another form could not be changed in place where gradients are made."""
    weight = torch.nn.Parameter(torch.ones(24))
    for tensor in (torch.ones(4, 6), torch.ones(4, 6).t(), torch.ones(4, 1).expand(4, 6)):
        found = launch.as_result(tensor, (24,), torch.float32, copy=False)
        assert found.add_(weight).requires_grad


def test_a_product_that_leaves_twice_is_copied_once():
    """Before: both results had the same memory."""
    text = """
graph twice
axes m=4 k=8 n=6
in x: f32[m, k]
in w: f32[k, n]
kernel call
  t2 = contract[k](x, w)
out p: f32[m, n] = t2
out q: f32[(m n)] = t2
"""
    made = TritonMuGraph(parse_mugraph(text))(x=torch.ones(4, 8), w=torch.ones(8, 6))
    assert torch.equal(made["p"].flatten(), made["q"])
    assert made["p"].data_ptr() != made["q"].data_ptr()
