"""Scaled: gradients that chunks made are scaled where they lie, and only where nobody else may read them."""

import operator
from typing import Any

import pytest
import torch
from torch import fx

from superopt.backend.decision import Decision
from superopt.backend.joint import partition
from superopt.backend.joint.limits import changed, small
from superopt.backend.joint.scaled import SCALED, scale_in_place, scaled
from superopt.backend.region_plan import REGION

from .steps import Model, plain, step, words


def passes(
    *, returned: bool = False, read: bool = False, is_view: bool = False, rows: str = ""
) -> tuple[fx.GraphModule, ...]:
    """Return a forward pass in which a plan makes a gradient, and a backward pass that scales it."""
    value, number = torch.empty(4, 8, device="meta"), torch.empty((), device="meta")
    forward = fx.Graph()
    x = forward.placeholder("x")
    call = forward.call_function(REGION, ("plan", [x]))
    loss = forward.call_function(operator.getitem, (call, 0))
    made = forward.call_function(operator.getitem, (call, 1))
    saved = forward.call_function(torch.ops.aten.t.default, (made,)) if is_view else made
    forward.output((loss, *[made] * returned, saved))
    backward = fx.Graph()
    gradient, tangent = backward.placeholder(saved.name), backward.placeholder("tangents_1")
    by = backward.call_function(torch.ops.aten.mul.Tensor, (gradient, tangent))
    more = [backward.call_function(torch.ops.aten.neg.default, (gradient,))] if read else []
    if rows:
        others = (backward.placeholder("other"), [backward.placeholder("at")])
        given = (by, others[1], others[0]) if rows == "added to it" else (others[0], others[1], by)
        put = backward.call_function(torch.ops.aten._unsafe_index_put.default, (*given, True))
        put.meta["val"] = value
    backward.output((put if rows else by, *more))
    for node in (gradient, by, *more):
        node.meta["val"] = value
    tangent.meta["val"] = number
    return tuple(fx.GraphModule(torch.nn.Module(), graph) for graph in (forward, backward))


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({}, 1),
        ({"returned": True}, 0),
        ({"read": True}, 0),
        ({"is_view": True}, 0),
        ({"rows": "added to it"}, 1),
        ({"rows": "it is added"}, 0),
    ],
    ids=["alone", "returned", "read", "view", "rows", "as rows"],
)
def test_what_nobody_else_reads_is_scaled(told: dict[str, Any], count: int) -> None:
    forward, backward = passes(**told)
    with small(least_bytes=1):
        assert scale_in_place(forward, backward, 1 + told.get("returned", False)) == count
    assert len(backward.graph.find_nodes(op="call_function", target=SCALED)) == count


def test_small_gradients_are_fused_instead() -> None:
    assert scale_in_place(*passes(), 1) == 0


def test_nothing_is_changed_where_a_pass_may_run_twice() -> None:
    with small(least_bytes=1), torch._functorch.config.patch(donated_buffer=False):
        assert scale_in_place(*passes(), 1) == 0


_KEEPS = "_get_current_graph_task_keep_graph"


def test_a_pass_that_may_run_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._autograd, _KEEPS, lambda: True)
    gradient = torch.ones(3)
    for by in (1.0, -2.0):
        found = scaled(gradient, torch.tensor(by))
        assert found is not gradient
        assert found.tolist() == [by] * 3
    assert gradient.tolist() == [1.0] * 3


def test_a_loss_that_counts_once_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._autograd, _KEEPS, lambda: False)
    gradient = torch.ones(3)
    assert scaled(gradient, torch.tensor(1.0)) is gradient
    assert scaled(gradient, torch.tensor(-2.0)).tolist() == [-2.0] * 3


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("by", [float("inf"), float("nan")])
def test_what_is_0_stays_0(by: float, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a batch without labels whose loss was divided by their number made all gradients NaN."""
    monkeypatch.setattr(torch._C._autograd, _KEEPS, lambda: again)
    gradient = torch.tensor([0.0, 2.0])
    found = scaled(gradient.clone(), torch.tensor(by))
    torch.testing.assert_close(found, torch.tensor([0.0, by]), equal_nan=True)
    forward, backward = passes(returned=True)
    assert scale_in_place(forward, backward, 2) == 0
    [found] = backward(gradient, torch.tensor(by))
    torch.testing.assert_close(found, torch.tensor([0.0, by]), equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("donated", [True, False])
def test_gradients_of_steps(donated: bool, noted: list[Decision], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(*given: Any) -> int:
        counts.append(scale_in_place(*given))
        return counts[-1]

    monkeypatch.setattr(partition, "scale_in_place", counted)
    model = Model(plain, short=True)
    own = list(model.parameters())
    with changed(scaled_bytes=1 << 10, fused=False), torch._functorch.config.patch(donated_buffer=donated):
        program = torch.compile(model, backend="superopt", options={"memory": "balanced"})
        for by in (1.0, -3.0, 0.0):
            for found, wanted in zip(step(program, own, by), step(model, own, by), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
        assert any(one.taken for one in noted)
        assert counts[-1] == donated
        if not donated:  # the same pass twice
            loss = program(*words())
            loss.backward(retain_graph=True)
            first = [one.grad.clone() for one in own if one.grad is not None]
            model.zero_grad(set_to_none=True)
            loss.backward()
            for one, before in zip((one.grad for one in own if one.grad is not None), first, strict=True):
                torch.testing.assert_close(one, before)
