"""Masks: what the search finds of attention some of whose rows may see nothing."""

import pytest
import torch

from superopt.driver import SearchOptions, run, search
from superopt.ir import fuse, parse_graph, stabilize
from superopt.trace import trace


def test_attention_that_may_see_nothing_is_split_too() -> None:
    """What hides undefined rows stays, and what it hides is searched; all that is found is proven."""
    masked = """graph masked
axes h=4 g=4 s=1032 d=64 e=64 m=1024
in q: f32[(h g), d]
in k: f32[h, s, d]
in v: f32[h, s, e]
in seen: bool[s]
in w: i8[m, (h g e)]
t5 = contract[d](q, k)
t6 = exp(t5)
t7 = mul(seen, t6)
t8 = contract[s](t7, v)
t9 = sum[s](t7)
t10 = div(t8, t9)
t11 = max[s](seen)
t12 = guard(t11, t10)
t13 = contract[h, g, e](t12, w)
out out: f32[m] = t13
"""
    [region] = search(parse_graph(masked)).regions
    assert len(region.found) > 8
    assert not region.notes
    assert all("guard" in [step.op for step in one.graph.steps] for one in region.found)
    assert any("s" in one.split_axes for one in region.found)


@pytest.mark.parametrize("mask", [torch.empty(9, 12), torch.empty(9, 12, dtype=torch.bool)])
def test_what_hides_rows_before_a_product_leaves_it(mask: torch.Tensor) -> None:
    """Weights of rows that may see nothing are divided by their sum after the product, in one kernel."""

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT
        scores = torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else scores + mask
        made: torch.Tensor = torch.ops.aten._safe_softmax(scores, -1) @ v
        return made

    inputs = *(torch.empty(shape) for shape in ((9, 4), (12, 4), (12, 5))), mask
    [region] = search(trace(masked, *inputs).program).regions
    fused = [fuse(stabilize(one.graph), online=True) for one in region.found]
    assert any(len(one.kernels) == 1 for one in fused)


@pytest.mark.parametrize("seed", [0, 1, 38])
def test_masks_on_masks_merge_nothing_that_differs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax of one score is 1, whatever the score: draws in which each row sees one key tell nothing."""
    monkeypatch.setattr(run, "prove_found", lambda goal, found, *rest: (found, False))
    text = """graph masked
axes h=16 s=128 d=64 t=128 e=64 m=1024
in q: f32[1, h, s, d]
in k: f32[1, h, t, d]
in v: f32[1, h, t, e]
in m: bool[1, 1, 1, t]
in w: f32[m, (h e)]
t5 = index[s]()
t6 = index[t]()
t7 = ge(t5, t6)
t8 = and(m, t7)
t9 = contract[d](q, k)
t10 = const[0.125]()
t11 = mul(t9, t10)
t12 = exp(t11)
t13 = mul(t8, t12)
t14 = contract[t](t13, v)
t15 = sum[t](t13)
t16 = div(t14, t15)
t17 = max[t](t8)
t18 = guard(t17, t16)
t19 = contract[h, e](t18, w)
out out: f32[1, s, m] = t19
"""
    [region] = search(parse_graph(text), options=SearchOptions(seed=seed)).regions
    assert all("exp" in [step.op for step in one.graph.steps] for one in region.found)
