"""Inputs that regions are raced and checked with: of the strides that the model's own have."""

import pytest
import torch
from torch import Tensor

from superopt.backend.checks import inputs
from superopt.backend.decision import Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import region_of
from superopt.backend.subgraph import subgraph_of
from superopt.rivals.kinds import kinds_of
from superopt.targets import pick_target

from .test_pieces import functional

WIDE = torch.randn(4, 6)


class Positive:
    """A domain of positive numbers, which are made anew, one after another in memory."""

    def keep(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(one.abs().contiguous() for one in tensors)


@pytest.mark.parametrize("domain", [None, Positive()])
@pytest.mark.parametrize(
    "layout",
    [WIDE, WIDE[:, ::2], WIDE.T, WIDE[:, :4], WIDE[1:], WIDE[:1].expand(4, 6), WIDE[:, :1].expand(4, 6)],
)
def test_copies_have_the_layout_of_the_example(
    layout: Tensor, domain: Positive | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that Inductor compiles checks strides; a clone has others where memory has gaps."""
    monkeypatch.setattr(inputs, "positive_domain", lambda *unused: domain)
    graph = functional(lambda x: x.softmax(-1) * x, WIDE)
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    target = pick_target("cpu")
    region = region_of(subgraph_of(piece, kinds), target, Ledger(BackendOptions()))
    example = torch.empty_strided(layout.shape, layout.stride(), device="meta")
    first, *others = inputs.RegionInputs(region, target, 0).copies((example,))
    assert others
    for copied in (first, *others):
        assert [one.stride() for one in copied] == [layout.stride()]
        assert torch.equal(copied[0], first[0])
        assert domain is None or bool((copied[0] >= 0).all())
    places = {one.untyped_storage().data_ptr() for [one] in (first, *others)}
    assert len(places) == 1 + len(others)
