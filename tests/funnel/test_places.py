"""Places: which candidates of a region are compiled, where only a few may be."""

from types import SimpleNamespace
from typing import Any

import pytest

from superopt.candidates import Candidate
from superopt.clock import Clock
from superopt.funnel.predict import predict
from superopt.funnel.state import Limits
from superopt.ir import fuse, parse_graph
from superopt.targets import KernelReport

MUGRAPH = fuse(parse_graph("graph g\naxes m=4\nin x: f32[m]\nt1 = exp(x)\nout o: f32[m] = t1\n"))


def compiled(times: dict[str, float], guess_us: float, most: int) -> list[str]:
    """Return the candidates that are compiled, of so many as may be, by their predicted times.

    Each is predicted to take `guess_us` in its likeliest configuration.
    """

    class Target:
        def cost_device(self) -> Any:
            return SimpleNamespace(timed=True)

        def default_configs(self, mugraph: Any) -> tuple[str, ...]:
            return ("default",)

        def reports(self, mugraph: Any, configs: tuple[str, ...]) -> tuple[KernelReport, ...]:
            return (KernelReport("k", guess_us),)

    state = SimpleNamespace(
        clock=Clock(),
        measures=True,
        target=Target(),
        limits=Limits(1.0, most=most, tune=False),
        order=SimpleNamespace(ranked=lambda *unused: (("best", 1.0),)),
    )
    context: Any = SimpleNamespace(state=state, recalled=False, new_id=lambda one: f"{one.id}, guessed")
    given = [
        Candidate(id, MUGRAPH.graph, MUGRAPH, configs=("default",), kernels=(KernelReport("k", us),))
        for id, us in times.items()
    ]
    return [one.id for one in predict(given, context) if one.is_kept]


@pytest.mark.parametrize(
    ("times", "guess_us", "most", "expected"),
    [
        ({"ours": 10.0, "library": 11.0}, 20.0, 2, ["ours", "library"]),  # a place is free
        ({"ours": 10.0, "other": 11.5, "library": 11.0}, 20.0, 2, ["ours", "library"]),
        ({"ours": 10.0, "library": 13.0}, 20.0, 2, ["ours"]),  # predictions do not err so much
        ({"ours": 10.0, "library": 11.0}, 8.0, 2, ["ours", "ours, guessed"]),
        ({"ours": 10.0, "library": 9.0}, 20.0, 1, ["library"]),
        ({"ours": 10.0, "other": 10.5, "library": 11.0}, 20.0, 3, ["ours", "other", "library"]),
    ],
)
def test_so_many_candidates_are_compiled_as_may_be(times, guess_us, most, expected) -> None:
    assert compiled(times, guess_us, most) == expected
