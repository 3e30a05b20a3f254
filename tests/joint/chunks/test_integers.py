"""Integers in training steps: what float32 does not hold of them is no part that chunks compute."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.backend.decision import Decision
from superopt.backend.joint.chunks.integers import holds_integers
from superopt.ir import parse_graph

from ..steps import WIDTH, WORDS
from ..test_random import compiled

HELD = {
    "a label": "eq(y, i)",
    "a label that a mask chooses": "eq(mul(ne(y, c), y), i)",
    "one of two labels": "eq(where(eq(y, c), c, z), i)",
    "a label that is not negative": "eq(maximum(y, c), i)",
    "a weight": "mul(x, y)",
    "a weight of floats": "add(x, y)",
    "arithmetic of positions": "eq(add(i, mul(i, c)), y)",
}
ROUNDED = {
    "two integers": "eq(y, z)",
    "a large constant": "eq(y, large)",
    "a difference": "mul(x, sub(y, large))",
    "a sum": "mul(x, add(y, z))",
    "a product": "eq(mul(y, z), i)",
    "a multiple": "lt(mul(y, c), i)",
    "a quotient": "floor(div(y, c))",
    "a square": "square(y)",
    "integers that are counted": "sum[m](y)",
    "positions that float32 does not hold": "eq(y, mul(i, large))",
}


def graph_of(text: str) -> str:
    """Return a graph that computes a term, a step for each operator."""
    known = {"c": "const[3]()", "large": "const[16777216]()", "i": "index[n]()"}
    steps = dict[str, str]()

    def name_of(term: str) -> str:
        if term in ("x", "y", "z"):
            return term
        inner = known.get(term)
        if inner is None:
            operator, _, rest = term[:-1].partition("(")
            parts, depth = [""], 0
            for letter in rest:
                depth += (letter == "(") - (letter == ")")
                if letter == "," and not depth:
                    parts.append("")
                else:
                    parts[-1] += letter
            inner = f"{operator}({', '.join(name_of(one.strip()) for one in parts)})"
        return steps.setdefault(inner, f"t{3 + len(steps)}")

    name_of(text)
    lines = [f"{name} = {step}" for step, name in steps.items()]
    last = lines[-1].partition(" ")[0]
    dims = "" if "sum[m]" in text else "m, n" if "index" in "".join(lines) else "m"
    inputs = "in x: f32[m]\nin y: i64[m]\nin z: i64[m]\n"
    return f"graph g\naxes m=4 n=5\n{inputs}" + "\n".join(lines) + f"\nout o: f32[{dims}] = {last}\n"


@pytest.mark.parametrize(
    ("text", "held"), [(one, True) for one in HELD.values()] + [(one, False) for one in ROUNDED.values()]
)
def test_what_float32_holds(text: str, held: bool) -> None:
    assert holds_integers(parse_graph(graph_of(text))) == held


def offset(x: Tensor, w: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    return (F.cross_entropy(x @ w.t(), y, reduction="none") * (ids - 2**24).float()).sum()


def left_out(x: Tensor, w: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), torch.where(ids == 2**24 + 1, -100, y))


def within(x: Tensor, w: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    words = torch.arange(WORDS) + 2**24
    return F.cross_entropy((x @ w.t()).masked_fill(ids[:, None] == words, -10.0), y)


def weighted(x: Tensor, w: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    return (F.cross_entropy(x @ w.t(), y, reduction="none") * ids).sum() / 2**24


@pytest.mark.parametrize(
    ("loss", "taken"), [(offset, False), (left_out, False), (within, False), (weighted, True)]
)
def test_steps_with_large_integers(
    loss: Callable[..., Tensor], taken: bool, noted: list[Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: ids were rounded to float32 before they were compared or subtracted."""
    torch.manual_seed(0)
    x, w = torch.randn(27, WIDTH), torch.randn(WORDS, WIDTH)
    y, ids = torch.randint(0, WORDS, (27,)), torch.arange(27) + 2**24
    found, wanted = ([one.clone().requires_grad_() for one in (x, w)] for _ in range(2))
    compiled(loss, "fast", noted)(*found, y, ids).backward()
    loss(*wanted, y, ids).backward()
    assert any(one.taken for one in noted) == taken
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
