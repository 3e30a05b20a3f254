"""Random programs through the whole chain: whatever is found computes what the program computes."""

import random
from collections.abc import Callable

import pytest
import torch
from quick import few

from superopt.driver import SearchOptions, search
from superopt.trace import trace
from superopt.trace.run import run_graph

UNARY = (
    "torch.exp({} * 0.3)",
    "torch.sigmoid({})",
    "torch.tanh({})",
    "torch.sqrt({}.square() + 1)",
    "torch.rsqrt({}.square() + 0.5)",
    "torch.relu({})",
    "{}.abs()",
    "-{}",
    "1 / ({}.square() + 1)",
    "{} * 0.5 + 1",
    "({} * 0.2).softmax(-1)",
    "({} * 0.2).softmax(0)",
)
BINARY = ("{} + {}", "{} - {}", "{} * {}", "{} / ({}.square() + 1)", "torch.maximum({}, {})")
REDUCED = ("{}.sum({}, keepdim=True)", "{}.mean({}, keepdim=True)", "{}.amax({}, keepdim=True)")


def program(seed: int) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the source of a random function, and its inputs."""
    choose = random.Random(seed)
    m, k, n = choose.sample([2, 3, 4, 6, 8], 3)
    shapes = {"x": (m, k), "w": (k, n), "g": (k,), "u": (m, k), "z": (m, n), "c": (m, 1)}
    torch.manual_seed(seed)
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    values = dict(inputs)
    lines = []
    while len(lines) < choose.randint(2, 7):
        a, b = choose.choice(list(values)), choose.choice(list(values))
        text = choose.choice(
            (
                choose.choice(UNARY).format(a),
                choose.choice(BINARY).format(a, b),
                f"{a} @ {b}",
                f"{a}.mT",
                choose.choice(REDUCED).format(a, choose.choice((0, -1))),
                f"{a} * torch.rsqrt({a}.square().mean(-1, keepdim=True) + 1e-5)",
            )
        )
        try:
            value = eval(text, {"torch": torch, **values})
        except (RuntimeError, IndexError):  # shapes that do not fit
            continue
        values[f"t{len(lines)}"] = value
        lines.append(f"    t{len(lines)} = {text}")
    last = len(lines) - 1
    result = f"t{last}" if choose.random() < 0.7 else f"t{last - 1}, t{last}"
    return "\n".join([f"def random_{seed}({', '.join(inputs)}):", *lines, f"    return {result}"]), inputs


@pytest.mark.parametrize("seed", few(range(40), *range(20)))
def test_all_that_is_found_computes_the_same(seed: int) -> None:
    source, inputs = program(seed)
    namespace: dict[str, Callable[..., object]] = {}
    exec(source, {"torch": torch}, namespace)
    function = namespace[f"random_{seed}"]
    traced = trace(function, *inputs.values())
    found = search(traced.program, options=SearchOptions(max_graphs=8))
    known = dict(inputs)
    for region in found.regions:  # one is fed by the one before it
        expected = run_graph(region.goal, known, torch.float64)
        assert any(one.is_original for one in region.found), source
        for one in region.found:
            assert one.verdict.equal
            made = run_graph(one.graph, known, torch.float64)
            for name, tensor in expected.items():
                torch.testing.assert_close(
                    made[name], tensor, rtol=1e-7, atol=1e-9, equal_nan=True, msg=source
                )
        known |= expected
