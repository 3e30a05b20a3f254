"""Operators that are no algebra treat each place by itself along the dimensions that may be split."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt.shard.calls import _ALONG, _splits
from superopt.trace import trace

ARGUMENTS: dict[str, tuple[Any, ...]] = {"kthvalue": (2,), "topk": (2,)}


def made_by(name: str, dim: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        made = getattr(torch, name)(x, *ARGUMENTS.get(name, ()), dim)
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    return function


def split_dims(
    function: Callable[..., Any], *inputs: Tensor
) -> list[tuple[tuple[int | None, ...], list[int]]]:
    """Return the dimensions of the arguments and of the results along which the only call may be split."""
    traced = trace(function, *inputs)
    (node,) = traced.program.opaque
    ports = {port.name: port for port in traced.program.inputs}
    makes = [
        type(ports[node.inputs[0]])(name, "f32", tuple((f"{name}.{at}",) for at in range(len(sym.dims))))
        for name, (_, sym) in zip(node.outputs, traced.calls[node.name].outputs, strict=True)
    ]
    reads = [ports[name] for name in node.inputs]
    found = []
    for before, after in _splits(traced.calls[node.name], reads, makes):
        own = [
            None if axis is None else [dim[0] for dim in port.dims].index(axis)
            for axis, port in zip(before, reads, strict=True)
        ]
        found.append((tuple(own), [int(str(axis).rpartition(".")[2]) for axis in after]))
    return found


@pytest.mark.parametrize("name", sorted(_ALONG))
@pytest.mark.parametrize("dim", [0, -1])
def test_chunks_give_chunks_of_the_whole(name: str, dim: int) -> None:
    x = torch.randn(80, 4, 6).transpose(0, dim).contiguous()
    function = made_by(name, dim)
    whole = function(x)
    splits = split_dims(function, x)
    assert len(splits) == 2
    for (place,), after in splits:
        assert place != dim % 3
        parts = [function(part) for part in x.chunk(2, place)]
        for at, (result, own) in enumerate(zip(whole, after, strict=False)):
            assert torch.equal(torch.cat([part[at] for part in parts], own), result)


def test_an_embedding_is_split_along_tokens_and_features() -> None:
    table, ids = torch.randn(10, 6), torch.randint(10, (4, 5))
    function = torch.nn.functional.embedding
    found = split_dims(lambda ids, table: function(ids, table), ids, table)
    assert found == [((None, 0), [0]), ((None, 1), [1]), ((1, None), [2])]
    halves = [function(ids, half) for half in table.chunk(2, 1)]
    assert torch.equal(torch.cat(halves, 2), function(ids, table))
