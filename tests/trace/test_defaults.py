"""Defaults: a call comes without the arguments that are as PyTorch has them; lowerings must add the same."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import superopt.trace  # noqa: F401 (it fills the tables)
from superopt.trace.lowering.table import LOWERINGS, PROOF_LOWERINGS

TABLES = {"run": LOWERINGS, "proof": PROOF_LOWERINGS}
NOTHING = (None, [], False)  # which every lowering can tell from what was given


def differing(lowering: Any, schema: Any) -> Iterator[str]:
    """Yield the arguments in order that a lowering and a schema fill in differently."""
    named = list(inspect.signature(lowering).parameters.values())[1:]
    mine = [one for one in named if one.kind is one.POSITIONAL_OR_KEYWORD]
    theirs = [one for one in schema.arguments if not one.kwarg_only]
    for parameter, argument in zip(mine, theirs, strict=False):
        if argument.default_value in NOTHING or parameter.default is parameter.empty:
            continue
        if numbers(parameter.default) != numbers(argument.default_value):
            yield f"{schema.name}: {argument.name} is {argument.default_value}, here {parameter.default}"


def numbers(default: Any) -> list[Any]:
    """Return a default as a list, of one number where all dimensions have the same."""
    listed = list(default) if isinstance(default, list | tuple) else [default]
    return listed[:1] if len(set(listed)) == 1 else listed


def schemas(name: str) -> Iterator[Any]:
    """Yield the forms of an operator that arrive as they are."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        operator = getattr(packet, overload)
        if torch._C._dispatch_has_kernel(operator.name()) and not operator._can_decompose():
            yield operator._schema


@pytest.mark.parametrize("kind", TABLES)
def test_what_a_call_leaves_out_is_what_pytorch_takes(kind: str) -> None:
    found = [(one, lowering) for name, lowering in TABLES[kind].items() for one in schemas(name)]
    assert len(found) > 50
    assert [line for schema, lowering in found for line in differing(lowering, schema)] == []


def test_a_difference_is_seen() -> None:
    def hardtanh(b: Any, x: Any, low: Any = None, high: Any = 1) -> None: ...

    [line] = differing(hardtanh, torch.ops.aten.hardtanh.default._schema)
    assert line.endswith("min_val is -1, here None")
