"""Tensor descriptors: where tiles go by them, what refuses them, and that results stay the same."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compiling import compile_ahead
from quick import few
from triton.tools.tensor_descriptor import TensorDescriptor

from superopt.codegen.errors import CompileError
from superopt.codegen.statements import lower_block
from superopt.codegen.triton import TritonMuGraph, configs, emit
from superopt.codegen.triton.descriptors import Descriptor, describe, layout_refusal
from superopt.codegen.triton.plan import make_plan
from superopt.codegen.triton.run import launch
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph, parse_mugraph
from superopt.targets import config_json, pick_target
from superopt.workloads import WORKLOADS

GOLDEN = Path(__file__).with_name("golden")

MATMUL = """
graph matmul
axes m={m} k={k} n={n}
in x: {dtype}[m, k]
in w: {dtype}[k, n]
t2 = contract[k](x, w)
out o: {dtype}[m, n] = t2
"""


def matmul(m=129, k=72, n=40, dtype="f16"):
    return MATMUL.format(m=m, k=k, n=n, dtype=dtype)


def described_sources(text, **changed):
    mugraph = parse_mugraph(text) if "\nkernel" in text else fuse(parse_graph(text))
    configs = [built.config for built in sources_by_default(mugraph)]
    built = TritonMuGraph(mugraph, [replace(one, descriptors=True, **changed) for one in configs])
    return [built.source(at, mugraph.graph.sizes) for at in range(len(mugraph.kernels))]


def sources_by_default(mugraph):
    built = TritonMuGraph(mugraph)
    return [built.source(at, mugraph.graph.sizes) for at in range(len(mugraph.kernels))]


@pytest.mark.parametrize("name", ["gated_mlp", "gqa_prefill"])
def test_golden(name, update_golden):
    [source] = described_sources((GOLDEN / f"{name}.txt").read_text())
    path = GOLDEN / f"{name}_described.py"
    if update_golden:
        path.write_text(source.text)
    assert source.text == path.read_text(), "run `pytest tests/triton --update-golden` where this is meant"
    assert "tl.load(" not in source.text
    assert "tl.store(" not in source.text


def test_golden_of_few_rows(update_golden):
    text = (GOLDEN / "rmsnorm_linear.txt").read_text().replace("m=16", "m=8")
    mugraph = parse_mugraph(text)
    program = lower_block(mugraph, 0)
    found = configs(program, mugraph.graph.sizes)
    few = next(one for one in found if one.blocks == {"m": 8, "k": 256, "n": 64} and one.num_stages == 3)
    source = emit(program, replace(few, descriptors=True))
    path = GOLDEN / "rmsnorm_linear_few_described.py"
    if update_golden:
        path.write_text(source.text)
    assert source.text == path.read_text(), "run `pytest tests/triton --update-golden` where this is meant"
    assert "tl.dot(w, t3_half)" in source.text  # the eight rows are its columns


@pytest.mark.parametrize("dtype", few(["f16", "f32", "bf16"], "f16", "bf16"))
@pytest.mark.parametrize("m", [1, 7, 129, 4097])
def test_rows_of_any_number(m, dtype, agrees):
    answer = agrees("text", text=matmul(m, dtype=dtype), domain=[-1.0, 1.0], configs="descriptors")
    assert answer["descriptors"] == (1 if m == 1 else 3)  # of one row only w is a matrix


def test_programs_that_do_several_tiles_and_wide_offsets(agrees):
    answer = agrees("text", text=matmul(), domain=[-1.0, 1.0], configs="descriptors otherwise")
    assert answer["descriptors"] == 3


@pytest.mark.parametrize("size", [7, 17, 4097])
@pytest.mark.parametrize("axis", ["k", "n"])
def test_rows_of_odd_length_are_read_plainly(axis, size, agrees):
    text = matmul(**{"m": 17, axis: size})
    answer = agrees("text", text=text, domain=[-1.0, 1.0], configs="descriptors")
    assert answer["descriptors"] == {"k": 2, "n": 1}[axis]  # rows of x; rows of w and of the result


# How inputs lie, and whether they have descriptors then.
LAYOUTS = {
    "contiguous": True,
    "padded": True,
    "a row of odd length": False,
    "an odd start": False,
    "every other element": False,
    "columns": False,
    "one row": False,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_that_lie_otherwise(layout, agrees):
    answer = agrees("text", text=matmul(), domain=[-1.0, 1.0], configs="descriptors", layout=layout)
    assert answer["descriptors"] == (3 if LAYOUTS[layout] else 1)  # the result always has one


def test_a_transposed_input_of_the_trace_is_described_as_it_lies(agrees):
    text = matmul().replace("in w: f16[k, n]", "in w: f16[k, n] strides(1, 72)")
    answer = agrees("text", text=text, domain=[-1.0, 1.0], configs="descriptors", layout="columns")
    assert answer["descriptors"] == 2  # x is not as it was
    [source] = described_sources(text)
    assert [one.seen for one in source.descriptors if one.tensor == "w"] == [(("n", 64), ("k", 64))]
    assert "tl.trans(w_desc.load([pid_n * BLOCK_N, k0]))" in source.text


ATTENTION = {"B": 1, "H": 4, "G": 2, "T": 64, "D": 16}


@pytest.mark.parametrize(
    ("name", "built", "sizes", "more"),
    [
        ("matmul", {"M": 64, "K": 64, "N": 64}, {"M": 1, "K": 72, "N": 40}, {}),
        ("rmsnorm-linear", {"M": 16, "K": 128, "N": 64}, {"M": 7, "K": 136, "N": 72}, {}),
        ("gated-mlp", {"M": 16, "K": 128, "N": 64}, {"M": 129, "K": 136, "N": 72}, {}),
        ("gqa", {"H": 4, "G": 2, "S": 64, "D": 16}, {"H": 4, "G": 2, "S": 77, "D": 16}, {}),
        ("gqa-decode", ATTENTION, {**ATTENTION, "T": 77}, {}),
        ("gqa-decode", ATTENTION, {**ATTENTION, "T": 512}, {"split": "k.T", "parts": 4}),
        ("gqa-decode", ATTENTION, {**ATTENTION, "T": 301}, {"split": "k.T", "parts": 4}),
    ],
)
def test_workloads(name, built, sizes, more, agrees):
    request = {"name": name, "kind": "found", "dtype": "f16", "built": built, "sizes": sizes}
    answer = agrees("stable", **request, **more, configs="descriptors")
    # A tile may reach from a part of 301 positions into the next one: what reads these has no descriptor.
    assert answer["descriptors"] >= 1


REFUSED = {
    "contiguous": ({}, None),
    "an odd start": ({"aligned": False}, "x does not start at a multiple of 16 bytes"),
    "empty": ({"sizes": {"m": 0, "k": 64}}, "axis 'm' of x is empty"),
    "too long": ({"sizes": {"m": 2**31, "k": 64}}, "axis 'm' of x is too long"),
    "every other": ({"strides": {"m": 128, "k": 2}}, "elements of x along 'k' are 2 apart, not neighbours"),
    "odd rows": ({"strides": {"m": 65, "k": 1}}, "the stride of x along 'm' is 130 bytes, no multiple of 16"),
    "repeated": ({"strides": {"m": 0, "k": 1}}, "the stride of x along 'm' is 0 bytes"),
    "backwards": ({"strides": {"m": -64, "k": 1}}, "the stride of x along 'm' is -128 bytes"),
    "one row of any stride": ({"sizes": {"m": 1, "k": 64}, "strides": {"m": 7, "k": 1}}, None),
    "one column": ({"sizes": {"m": 4, "k": 1}, "strides": {"m": 8, "k": 3}}, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_layouts(case):
    changed, said = REFUSED[case]
    known = {"sizes": {"m": 4, "k": 64}, "strides": {"m": 64, "k": 1}, "aligned": True}
    reason = layout_refusal("x", "f16", axes=("m", "k"), **(known | changed))
    assert reason is said is None or (said is not None and reason.startswith(said))


TILES = {
    "a matrix": ("f16[m, k]", {}, None),
    "bytes": ("i8[m, k]", {}, "x holds i8; descriptors are for floating point"),
    "too many axes": ("f16[a, b, c, d, m, k]", {}, "x has 6 axes; a descriptor has at most 5"),
    "a vector": ("f16[m, k]", {"m": 1}, "the tile of x is no matrix"),
    "a long tile": ("f16[m, k]", {"m": 1024}, "the tile of x is 1024 long; a side has at most 512"),
    "a narrow tile": ("f16[m, k]", {"k": 4}, "rows of the tile of x have less than 16 bytes"),
}


@pytest.mark.parametrize("case", TILES)
def test_tiles(case):
    kind, tiles, said = TILES[case]
    text = f"graph g\naxes a=2 b=2 c=2 d=2 m=512 k=64\nin x: {kind}\nt1 = exp(x)\nout o: {kind} = t1\n"
    mugraph = fuse(parse_graph(text.replace("out o: i8", "out o: f32")))
    program = lower_block(mugraph, 0)
    [default] = [source.config for source in sources_by_default(mugraph)]
    blocks = {axis: 16 if axis in "mk" else 1 for axis in default.blocks} | tiles
    config = replace(default, tiles=tuple(blocks.items()), whole=frozenset(), exact=frozenset(blocks))
    tensor = program.loads[0]
    seen = describe(program, make_plan(program, config), config, tensor, {axis: axis for axis in tensor.axes})
    assert seen == said or (said is None and isinstance(seen, Descriptor))
    assert ("x_desc" in emit(program, replace(config, descriptors=True)).text) == (said is None)


def test_other_places_of_a_tensor():
    text = "graph g\naxes i=64 j=64 k=64\nin x: f16[i, k, j]\nt1 = {}(x)\nt2 = exp(t1)\nout o: f16[{}] = t2\n"
    [source] = described_sources(text.format("select[i=3]", "k, j"))
    assert next(one.seen for one in source.descriptors if one.tensor == "x")[0] == ("i", 1)
    assert "x_desc.load([3, " in source.text
    text = "graph g\naxes m=64 n=64 k=64\nin x: f16[m, k]\nt1 = rename[m->n](x)\nt2 = contract[k](x, t1)\n"
    text += "out o: f16[m, n] = t2\n"
    [source] = described_sources(text)
    assert [one.seen for one in source.descriptors if one.tensor == "x"] == [(("m", 64), ("k", 64))]
    assert "tl.trans(x_desc.load([pid_n * BLOCK_N, k0]))" in source.text


def test_parts_that_may_be_short_are_read_plainly():
    text = (GOLDEN / "gqa_decode.txt").read_text()
    size = parse_mugraph(text).graph.sizes["s"]
    [source, _] = described_sources(text)
    assert {one.tensor for one in source.descriptors} >= {"k", "v"}
    mugraph = parse_mugraph(text)
    built = TritonMuGraph(
        mugraph, [replace(one.config, descriptors=True) for one in sources_by_default(mugraph)]
    )
    ragged = built.source(0, {**mugraph.graph.sizes, "s": size - 1})
    assert not {one.tensor for one in ragged.descriptors} & {"k", "v"}


@pytest.mark.parametrize("name", ["matmul", "gated_mlp", "rmsnorm_linear", "gqa_prefill"])
def test_they_compile_to_copies_of_tiles_without_spills(name):
    text = matmul(512, 512, 512) if name == "matmul" else (GOLDEN / f"{name}.txt").read_text()
    [source] = described_sources(text)
    report = compile_ahead(source)
    assert report.spill_bytes == 0
    assert report.shared_bytes <= 227 << 10
    assert report.tensor_copies >= len(source.descriptors)


def test_plain_tiles_are_copied_without():
    assert compile_ahead(sources_by_default(fuse(parse_graph(matmul())))[0]).tensor_copies == 0


def test_older_devices_are_refused():
    [source] = described_sources(matmul())
    with pytest.raises(
        CompileError, match="matmul_0: not for cuda:80: x_desc is a tensor descriptor, for cuda:90"
    ):
        compile_ahead(source, target="cuda:80")


class Jitted:
    """A kernel that notes what it is launched with."""

    def __init__(self, text, launches):
        self.text, self.launches = text, launches

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launches.append((self.text, arguments))


@pytest.fixture
def launched(monkeypatch):
    """Return what a matmul with descriptors is launched with: its text and its arguments."""
    launches = []
    monkeypatch.setattr(launch, "load_kernel", lambda text, name: Jitted(text, launches))
    mugraph = fuse(parse_graph(matmul(64, 64, 64)))
    configs = [replace(source.config, descriptors=True) for source in sources_by_default(mugraph)]
    built = TritonMuGraph(mugraph, configs)

    def call(x, w):
        launches.clear()
        built(x=x, w=w)
        [one] = launches
        return one

    return call


def test_descriptors_are_arguments(launched):
    x, w = torch.zeros(7, 64, dtype=torch.float16), torch.zeros(64, 80, dtype=torch.float16)[:, :64]
    _, arguments = launched(x, w)
    first, second, made = arguments[:3]
    assert all(isinstance(one, TensorDescriptor) for one in (first, second, made))
    assert first.base is x
    assert second.base is w
    assert (first.shape, first.strides, first.block_shape) == ([7, 64], [64, 1], [64, 64])
    assert (second.shape, second.strides, second.block_shape) == ([64, 64], [80, 1], [64, 64])
    assert made.shape == [7, 64]
    other = x.clone()
    later = launched(other, w)[1][0]
    assert later.base is other
    assert isinstance(later, TensorDescriptor)
    assert later == replace(first, base=other)


@pytest.mark.parametrize(
    ("capability", "hip", "has"),
    [((9, 0), None, True), ((8, 0), None, False), ((12, 0), None, True), ((9, 4), "6.2", False)],
)
def test_devices_that_have_them(capability, hip, has, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert launch._has_descriptors(SimpleNamespace(type="cuda")) == has


def test_a_device_without_them_runs_the_plain_kernel(launched, monkeypatch, caplog):
    monkeypatch.setattr(launch, "_has_descriptors", lambda device: False)
    x, w = (torch.zeros(64, 64, dtype=torch.float16) for _ in range(2))
    with caplog.at_level(logging.INFO, "superopt"):
        text, arguments = launched(x, w)
    assert "desc" not in text
    assert arguments[0] is x
    said = "matmul_0: no tensor descriptor of w: cpu has none; they need compute capability 9.0"
    assert said in caplog.text


def test_the_reason_for_the_plain_kernel_is_logged(launched, caplog):
    x, w = torch.zeros(64, 65, dtype=torch.float16)[:, :64], torch.zeros(64, 64, dtype=torch.float16)
    with caplog.at_level(logging.INFO, "superopt"):
        assert launched(x, w)[1][0] is x
    assert "the stride of x along 'm' is 130 bytes, no multiple of 16" in caplog.text


def test_the_tuner_tries_large_tiles_by_descriptors_too():
    mugraph = fuse(parse_graph(matmul(2048, 4096, 4096)))
    plain = list(pick_target("cuda:80").configs(mugraph, 0))
    found = list(pick_target("cuda:90").configs(mugraph, 0))
    described = [one for one in found if one.descriptors]
    assert not any(one.descriptors for one in plain)
    assert 0 < len(described) < len(found) / 4
    assert all(replace(one, descriptors=False) in found for one in described)
    assert not found[0].descriptors
    odd = fuse(parse_graph(matmul(2048, 4097, 4095)))
    assert not any(one.descriptors for one in pick_target("cuda:90").configs(odd, 0))


def test_configurations_as_data():
    config = replace(sources_by_default(fuse(parse_graph(matmul())))[0].config, descriptors=True)
    data = json.loads(json.dumps(config_json(config)))
    assert pick_target("cuda:90").config_from_json(data) == config
    before = {name: value for name, value in data.items() if name != "descriptors"}
    assert not pick_target("cuda:90").config_from_json(before).descriptors
    with pytest.raises(InputError, match="tensor descriptors; cuda:80 has none, cuda:90 has"):
        pick_target("cuda:80").config_from_json(data)
    with pytest.raises(InputError, match="descriptors of a configuration is wrong: 'yes'"):
        pick_target("cuda:90").config_from_json({**data, "descriptors": "yes"})


# Rows are multiples of 16 bytes long; all else is odd.
EVEN_ROWS = {
    "B": 2, "M": 17, "K": 40, "N": 72, "R": 24, "S": 33, "T": 77, "H": 4, "G": 2, "D": 16, "L": 32, "V": 88,
    "E": 32, "Q": 64, "P": 32,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", pytest.param("f32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "llama-layer"])
def test_all_workloads(name, dtype, agrees):
    sizes = {size: EVEN_ROWS[size] for size in WORKLOADS[name].sizes}
    sizes |= {"S": 1} if name.endswith("-decode") else {}
    sizes |= {"T": 80} if name == "mla" else {}  # along which scores lie that one kernel leaves to another
    sizes |= {"K": 512, "N": 128} if name == "matmul-rowsum" else {}  # too much for one program
    request = {"name": name, "kind": "found", "dtype": dtype, "built": sizes, "sizes": sizes}
    assert agrees("stable", **request, configs="descriptors")["descriptors"]
