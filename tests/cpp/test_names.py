"""Names: no axis and no value is called what a kernel calls something else."""

import re
from pathlib import Path

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.cpp import names as names_module
from superopt.codegen.cpp.names import Names
from superopt.ir import fuse, parse_graph

FOLDER = Path(names_module.__file__).parent


def scaled_by(port: str) -> str:
    """Return a program that multiplies a vector by a number of this name."""
    return f"graph scaled\naxes k=16\nin x: f32[k]\nin {port}: f32[]\nt = mul(x, {port})\nout o: f32[k] = t"


def test_every_ending_that_is_added_to_a_name_is_kept_free() -> None:
    text = "".join(path.read_text() for path in FOLDER.rglob("*.py"))
    added = {f"_{ending}" for ending in re.findall(r"\}_([a-z_]+)", text)}
    assert len(added) > 20
    assert added <= {*names_module._DERIVED, "_stride_", "_joins_"}


@pytest.mark.parametrize("port", ["x_stride_k", "x_joins_k", "x_last", "x_sums", "Sums", "along_blocks"])
def test_a_tensor_may_be_called_what_a_kernel_calls_something_else(port: str) -> None:
    """Before: `x_stride_k`, a number, was read as the stride of x."""
    kernel = CppMuGraph(fuse(parse_graph(scaled_by(port))), flags=("-O1",))
    x, by = torch.rand(16), torch.tensor(5.7)
    torch.testing.assert_close(kernel(**{"x": x, port: by})["o"], x * by)


@pytest.mark.parametrize("name", ["x", "rows", "m_count", "scores", "t2"])
def test_other_names_stay(name: str) -> None:
    text = scaled_by("number").replace("in x:", f"in {name}:").replace("mul(x", f"mul({name}")
    assert Names(parse_graph(text)).values[0] == name
