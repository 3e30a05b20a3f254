"""An optimized program beside its function: what the tests of called programs share.

The adversary changes whatever a function reads besides its arguments, or calls it where something other
than plain PyTorch looks on, and compares with the function itself.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from superopt import Optimized
from superopt.candidates import RegionCandidates
from superopt.candidates.schedules import schedules
from superopt.driver import search
from superopt.fate import Kind
from superopt.funnel.assembly import as_kernel, in_parts
from superopt.ir import Program, print_program
from superopt.live.arguments import without_data
from superopt.result import Result
from superopt.result.codec import returned
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.weights.division import Weights


class Counted:
    """A kernel that counts its runs."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.runs = kernel, 0
        self.inputs, self.outputs = kernel.inputs, kernel.outputs

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        self.runs += 1
        return self.kernel(**tensors)

    def in_order(self, given: Any) -> Any:
        self.runs += 1
        return self.kernel.in_order(given)

    def prepared(self, given: Any) -> Any:
        run = self.kernel.prepared(given)

        def counted(given: Any) -> Any:
            self.runs += 1
            return run(given)

        return counted


class Watched:
    """An optimized program beside its function: `ours` and `theirs` compare, and say who computed."""

    def __init__(self, best: Optimized, kernels: list[Counted]) -> None:
        self.best, self.kernels = best, kernels

    def runs(self) -> int:
        return sum(kernel.runs for kernel in self.kernels)

    def computes(self, *inputs: Any, **named: Any) -> bool:
        """Compare with the function itself; return whether kernels of ours ran."""
        before = self.runs()
        found = self.best(*inputs, **named)
        after = self.runs()
        agree(found, self.best.function(*inputs, **named))
        return after > before

    def ours(self, *inputs: Any, **named: Any) -> None:
        assert self.computes(*inputs, **named)

    def theirs(self, *inputs: Any, **named: Any) -> None:
        assert not self.computes(*inputs, **named)


def agree(found: object, wanted: object) -> None:
    assert type(found) is type(wanted)
    for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert type(a) is type(b) or isinstance(a, Tensor)
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            assert a == b


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def build(quick) -> Callable[..., Watched]:
    """Makes the program as written into kernels, without a race."""
    target, known = pick_target("cpu"), dict[str, list[RegionCandidates]]()

    def planned(program: Program, weights: Weights) -> list[RegionCandidates]:
        plans = []
        for one in search(program, options=replace(quick.search, weights=weights)).regions:
            chosen = schedules(one.goal, one.found, target, graphs=1, weights=weights).candidates[0]
            plans.append(RegionCandidates(one.goal, (chosen.ended("choose", Kind.CHOSEN),)))
        return plans

    def built(function: Callable[..., Any], *inputs: Any, weights: Weights = "live") -> Watched:
        # With one name for all, kernels that are alike are searched and compiled once.
        traced = trace(function, *inputs, name="function", live="cpu")
        text = weights + print_program(traced.program)
        regions = known[text] = known.get(text) or planned(traced.program, weights)
        mugraphs = {one.goal.name: one.chosen.mugraph for one in regions}
        counted = {
            name: Counted(target.make(one, target.default_configs(one))) for name, one in mugraphs.items()
        }
        assert counted
        kernels = {one.goal.name: as_kernel(one.goal, one.chosen, counted[one.goal.name]) for one in regions}
        best = Optimized(
            function,
            Result(
                traced.program,
                target,
                without_data(inputs),
                tuple(regions),
                quick.seed,
                "superopt",
                returns=returned(traced),
                holds=tuple(traced.constants),
            ),
            in_parts(traced, [one.goal for one in regions]),
            kernels=kernels,
            options=quick,
        )
        return Watched(best, list(counted.values()))

    return built


class Gate(nn.Module):
    """A module with one of everything that may change."""

    shift: ClassVar[float] = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("table", torch.randn(8))
        self.register_buffer("heat", torch.tensor(1.5))
        self.scale = 2.0
        self.mode = "plain"
        self.parts = [0.25]

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.l(x)) * self.scale + self.table * self.heat
        if self.mode == "twice":
            y = y * 2
        return y.tanh() + self.shift * self.parts[0]


@pytest.fixture
def gate(build) -> tuple[nn.Module, Watched, Tensor]:
    torch.manual_seed(0)
    module = Gate().eval()
    x = torch.randn(4, 8)
    watched = build(module, x)
    watched.ours(x)
    watched.ours(x)
    return module, watched, x
