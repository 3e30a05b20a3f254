"""A region as data: read back it is the same region, and what is damaged or hostile is refused."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from superopt.backend.deferred.portable import Unportable, data_of, region_from
from superopt.backend.region import Region
from superopt.errors import CheckpointError
from superopt.targets import pick_target

from .conftest import MLP, Regions, ledger, mlp


def normed(x: Any, scale: Any, weight: Any) -> Any:
    return F.layer_norm(x, (8,), scale, None, 1e-5) @ weight


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-1, -2)) * 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def fused(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def turned(x: Any, up: Any, down: Any) -> Any:
    return (F.gelu(x @ up, approximate="tanh") @ down).transpose(0, 1), (x @ up).sum(-1)


def half(x: Any, up: Any, down: Any) -> Any:
    return (torch.relu(x.bfloat16() @ up.bfloat16()) @ down.bfloat16()).float().softmax(-1)


HEADS = tuple(torch.ones(2, 3, 6, 8) for _ in range(3))
CASES = [
    (mlp, MLP),
    (normed, (torch.ones(4, 8), torch.ones(8), torch.ones(8, 6))),
    (attention, HEADS),
    (fused, HEADS),
    (turned, MLP),
    (half, MLP),
]


@pytest.mark.parametrize(
    ("function", "inputs", "dynamic"),
    [
        pytest.param(*case, dynamic, id=f"{case[0].__name__}-{dynamic}", marks=[pytest.mark.slow] * slow)
        for case in CASES
        for dynamic in (False, True)
        for slow in [dynamic and case[0] is not mlp]
    ],
)
def test_what_is_read_is_the_same_region(
    function: Callable[..., Any], inputs: tuple[Any, ...], dynamic: bool, regions: Regions
) -> None:
    found = regions(function, *inputs, dynamic=dynamic)
    assert found
    for region in found:
        data = json.loads(json.dumps(data_of(region.subgraph)))
        again = region_from(data, pick_target("cpu"), ledger())
        assert again.key == region.key
        assert again.names == region.names
        assert len(again.subgraph.symbols) == len(region.subgraph.symbols)
        assert [str(node.target) for node in again.subgraph.piece.nodes if node.op == "call_function"] == [
            str(node.target).replace("prims.convert_element_type", "aten._to_copy")
            for node in region.subgraph.piece.nodes
        ]


def test_the_data_name_nothing_of_the_users(regions: Regions) -> None:
    def secret_function(secret_input: Any, weight: Any) -> Any:
        secret_value = secret_input @ weight
        return torch.relu(secret_value) @ weight

    [region] = regions(secret_function, torch.ones(4, 4), torch.ones(4, 4))
    assert "secret" not in json.dumps(data_of(region.subgraph))


def changed(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return data with another value in one place."""
    made = copy.deepcopy(data)
    inside: Any = made
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return made


DAMAGE: list[tuple[tuple[Any, ...], Any]] = [
    (("steps",), None),
    (("steps",), []),
    (("steps",), [{}] * 5000),
    (("steps", 0), 7),
    (("steps", 0, "call"), "aten.from_file.default"),
    (("steps", 0, "call"), "aten.add_.Tensor"),
    (("steps", 0, "call"), "aten.mm.out"),
    (("steps", 0, "call"), "os.system"),
    (("steps", 0, "call"), "inductor._alloc_from_pool.default"),
    (("steps", 0, "call"), "aten.mm.__class__"),
    (("steps", 0, "call"), None),
    (("steps", 0, "args"), [{"node": 99}, {"node": 1}]),
    (("steps", 0, "args"), [{"node": -1}, {"node": 1}]),
    (("steps", 0, "args"), [{"code": "print()"}]),
    (("steps", 0, "args"), [{"dtype": "load"}]),
    (("steps", 0, "args"), [{"node": 0}, {"node": 0}]),
    (("steps", 0, "kwargs"), {"nonsense": 1}),
    (("inputs",), []),
    (("inputs", 0, "shape"), ["s0", 8]),
    (("inputs", 0, "shape"), [-4, 8]),
    (("inputs", 0, "shape"), [["exec", 1], 8]),
    (("inputs", 0, "dtype"), "__doc__"),
    (("inputs", 0, "device"), "cuda"),
    (("symbols",), {"s0": "x"}),
    (("results",), [99]),
    (("results",), []),
]


def test_damaged_data_are_refused(region: Region) -> None:
    data = data_of(region.subgraph)
    for path, value in DAMAGE:
        with pytest.raises(CheckpointError, match="it is no region"):
            region_from(changed(data, path, value), pick_target("cpu"), ledger())


def test_what_has_no_form_as_data_is_not_queued(region: Region) -> None:
    node = next(one for one in region.subgraph.module.graph.nodes if one.op == "call_function")
    node.kwargs = {"dtype": object()}
    with pytest.raises(Unportable):
        data_of(region.subgraph)
