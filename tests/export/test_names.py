"""The function of an exported module has a name that means nothing else there."""

import symtable
from typing import Any

import pytest
import torch

from superopt.export import export_module
from superopt.export.names import function_name

GRAPH = """
graph {name}
axes own_m=4 own_k=6
in own_x: f32[own_m, own_k]
in own_g: f32[own_k]
kernel grid[own_m, own_k]
  t2 = mul(own_x, own_g)
  t3 = tanh(t2)
out own_y: f32[own_m, own_k] = t3
"""
MASKED = """
graph own
axes own_m=4 own_k=6 own_n=3
in own_x: f32[own_m, own_k]
in own_p: bool[own_k, own_n]
kernel grid[own_m, own_n]
  loop[own_k]
    t2 += contract[own_k](own_x, own_p)
out own_y: f32[own_m, own_n] = t2
"""


def meanings(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a module gives or reads, and the variables of `check`."""
    has_all = table.get_name() in ("top", "check")
    found = {one.get_name() for one in table.get_symbols() if has_all or one.is_global()}
    return found.union(*map(meanings, table.get_children()))


@pytest.mark.parametrize(
    ("text", "target", "among"),
    [
        (GRAPH, "cpu", {"reference", "check", "make_inputs", "torch", "ctypes", "zip", "inputs", "worst"}),
        (GRAPH, "cuda:90", {"reference", "check", "tanh", "tl", "triton"}),
        (MASKED, "cpu", {"masked_sum", "math"}),
    ],
)
def test_no_name_of_a_module_is_its_functions(written, text: str, target: str, among: set[str]) -> None:
    exported = export_module(written(text.format(name="own"), target))
    names = meanings(symtable.symtable(exported, "exported.py", "exec"))
    assert names >= among
    assert {one for one in names if function_name(one) == one and not one.startswith("own")} == set()


@pytest.mark.parametrize("name", ["reference", "check", "make_inputs", "sum", "torch", "inputs", "class"])
def test_the_kernels_are_what_such_a_function_calls(written, name: str) -> None:
    """Before: the reference took the function's place, and `check` compared it with itself."""
    ran: list[Any] = []
    scope: dict[str, Any] = {"__name__": "exported"}
    exec(export_module(written(GRAPH.format(name=name), "cpu")), scope)
    scope["_run"] = lambda *arguments: ran.append(arguments)
    x, g = scope["make_inputs"]()
    torch.testing.assert_close(scope["reference"](x, g), torch.tanh(x * g))
    assert ran == []
    scope[f"program_{name}"](x, g)
    assert len(ran) == 1


def test_other_names_stay() -> None:
    assert [function_name(one) for one in ("softmax", "rms.norm", "a_", "norm_0")] == [
        "softmax", "rms_norm", "a", "norm_0",
    ]  # fmt: skip
    assert [function_name(one) for one in ("", "2", "--", "prepare", "masked_sum", "match")] == [
        "program", "program_2", "program", "program_prepare", "program_masked_sum", "program_match",
    ]  # fmt: skip
