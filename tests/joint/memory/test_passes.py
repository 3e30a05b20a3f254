"""Passes: attention by hand in chunks, in the forward and in the backward pass, has eager's gradients."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table

from superopt.backend.joint.limits import small

from .test_kept import Loss, Seen

TOKENS, WIDTH, HEADS = 24, 6, 2
LARGE = 4 * HEADS * TOKENS * TOKENS


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[None]:
    """Take chunks whatever a race says, of operators that run one by one."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    with small(kept_bytes=1, fewer_bytes=LARGE - 1, fused=False):
        yield


def attention(x: Tensor, w: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (one.view(-1, HEADS, WIDTH).transpose(0, 1) for one in (x @ w).chunk(3, -1))
    scores = q @ k.mT / math.sqrt(WIDTH)
    if causal:
        ones = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        scores = scores.masked_fill(~ones, -torch.inf)
    return (scores.softmax(-1) @ v).square().sum()


def causal(x: Tensor, w: Tensor) -> Tensor:
    return attention(x, w, causal=True)


def capped(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (one.view(-1, HEADS, WIDTH).transpose(0, 1) for one in (x @ w).chunk(3, -1))
    return ((2 * torch.tanh(q @ k.mT / 2)).softmax(-1) @ v).square().sum()


SLOW = [pytest.param(one, marks=pytest.mark.slow, id=one.__name__) for one in (causal, capped)]


@pytest.mark.parametrize("loss", [attention, *SLOW])
def test_attention_in_chunks(loss: Loss) -> None:
    torch.manual_seed(0)
    given = torch.randn(TOKENS, 2 * WIDTH), torch.randn(2 * WIDTH, 3 * HEADS * WIDTH) / 4
    seen = Seen(loss, LARGE - 1, *given, table=select_decomp_table())
    assert max(seen.sizes(), default=0) < HEADS * TOKENS * TOKENS  # no probability is kept
    parts = {one.graph: one for one in seen.ledger.decisions if one.graph != "joint graph"}
    assert set(parts) == {"forward pass", "backward pass"}
    assert all(one.taken for one in parts.values()), [one.why for one in parts.values()]
