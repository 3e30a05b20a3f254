"""PyTorch's whole encoder layers: taken apart they compute the same, and have regions."""

import pickle
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from superopt.backend.entry import ledger_of
from superopt.bench.graphs.host import running
from superopt.rivals.inductor import table_for
from superopt.trace import trace
from superopt.trace.capture.encoders import ENCODERS

WIDTH, HEADS, LENGTH = 16, 4, 6
OPTIONS = {"budget_s": 1.0, "cache": False, "inductor": {"fx_graph_cache": False}}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def weights() -> tuple[Tensor, ...]:
    return drawn(3 * WIDTH, WIDTH), drawn(3 * WIDTH), drawn(WIDTH, WIDTH), drawn(WIDTH)


_LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
_MASKS: tuple[tuple[Tensor | None, int | None], ...] = (
    (None, None),
    (_LATER, 0),
    (torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(_LATER, -torch.inf), 0),
    (torch.tensor([[False] * 4 + [True] * 2, [False] * LENGTH]), 1),
    (torch.rand(2, HEADS, LENGTH, LENGTH) > 0.7, 2),
)


@pytest.mark.parametrize("wanted", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("mask", _MASKS)
@pytest.mark.parametrize("inputs", ["one", "two", "three"])
def test_attention_in_parts(inputs: str, mask: tuple[Any, Any], wanted: tuple[bool, bool]) -> None:
    operator: Any = torch.ops.aten._native_multi_head_attention.default
    x, y, z = (drawn(2, LENGTH, WIDTH) for _ in range(3))
    given = {"one": (x, x, x), "two": (x, y, y), "three": (x, y, z)}[inputs]
    call = (*given, WIDTH, HEADS, *weights(), mask[0], *wanted, mask[1])
    made, expected = ENCODERS[operator](*call), operator(*call)
    torch.testing.assert_close(made[0], expected[0], equal_nan=True)
    if wanted[0]:
        torch.testing.assert_close(made[1], expected[1], equal_nan=True)


def test_what_is_not_known_is_left_whole() -> None:
    operator: Any = torch.ops.aten._native_multi_head_attention.default
    x, none = drawn(2, LENGTH, WIDTH), drawn(2, 0, WIDTH)
    assert ENCODERS[operator](x, x, x, WIDTH, HEADS, *weights(), _LATER, False, True, 7) is NotImplemented
    half = [one.half() for one in (x, x, x, *weights())]
    assert ENCODERS[operator](*half[:3], WIDTH, HEADS, *half[3:]) is NotImplemented
    assert ENCODERS[operator](none, none, none, WIDTH, HEADS, *weights()) is NotImplemented


QUICK = ((False, "relu", True), (True, "gelu", False))
LAYERS = [
    pytest.param(*one, marks=[pytest.mark.slow] * (one not in QUICK))
    for one in product((False, True), ("relu", "gelu"), (False, True))
]


@pytest.mark.parametrize(("norm_first", "activation", "masked"), LAYERS)
def test_an_encoder_layer_has_regions(norm_first: bool, activation: str, masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 2 * WIDTH, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    x = drawn(2, LENGTH, WIDTH).float()
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(_LATER, -torch.inf) if masked else None
    options = dict(OPTIONS)
    compiled = torch.compile(layer, backend="superopt", options=options, fullgraph=True)
    with torch.no_grad(), running("algebra"):
        torch.testing.assert_close(compiled(x, mask), layer(x, mask))
    ledger = ledger_of(options)
    assert sum(one.taken for one in ledger.decisions) >= 2
    assert not [name for name in ledger.outside if "encoder" in name or "attention" in name]


def test_a_traced_encoder_layer_is_algebra() -> None:
    operator: Any = torch.ops.aten._transformer_encoder_layer_fwd.default
    x = drawn(2, LENGTH, WIDTH)
    vectors = [drawn(WIDTH) for _ in range(4)]
    feed = drawn(2 * WIDTH, WIDTH), drawn(2 * WIDTH), drawn(WIDTH, 2 * WIDTH), drawn(WIDTH)
    given = weights()

    def layer(x: Tensor) -> Any:
        return operator(x, WIDTH, HEADS, *given, True, False, 1e-5, *vectors, *feed)

    traced = trace(layer, x)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x), layer(x))


def test_decompositions_make_a_key_of_inductors_cache() -> None:
    """They are pickled by name, and are there only for graphs that call such a layer."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (x,)))
    assert table_for(torch.fx.GraphModule({}, graph), {}) is None
    called = torch.fx.Graph()
    x = called.placeholder("x")
    called.output(called.call_function(torch._native_multi_head_attention, (x, x, x)))  # type: ignore[attr-defined]
    table = table_for(torch.fx.GraphModule({}, called), {})
    assert table is not None
    assert len(pickle.dumps(table)) < 1000
    assert ENCODERS.items() <= pickle.loads(pickle.dumps(table)).items()
