"""Final: whole programs against PyTorch: eager, and compiled."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superopt.ir import Region
from superopt.plans.assembly import assemble
from superopt.plans.course import LOST, Course
from superopt.plans.outcome import Outcome
from superopt.plans.peers import PEERS, peers
from superopt.plans.racing import SURELY, least_us
from superopt.plans.standin import stand_in
from superopt.tune import Measurement
from superopt.tune.errors import MeasurementError

if TYPE_CHECKING:
    from superopt.trace.traced import Traced

__all__ = ["Final"]

log = logging.getLogger("superopt")

_HASTE_S = 1.0  # of the last race, once Ctrl-C asked to stop


class Final:
    """The race of a program with our kernels and PyTorch's ways to compute the function.

    `known` says whether the function is the original, not the program as it was traced.
    """

    def __init__(
        self, course: Course, function: Callable[..., Any], traced: "Traced", *, known: bool
    ) -> None:
        self.course = course
        self.target = course.target
        self.options = course.options
        self.function = function
        self.traced = traced
        self.known = known

    def race(self, copies: Sequence[tuple[Any, ...]], outcome: Outcome) -> None:
        """Measure all contenders; whatever goes wrong leaves the original as the winner."""
        if self.course.lost:
            outcome.withdraw(LOST)
            return
        wanted = self.options.torch_compile and not self.course.interrupted
        with self.course.clock.phase("torch.compile"), self.course.stoppable():
            raced = self.function if self.known else self._stand_in(copies[0])
            found = peers(raced, copies[0], self.target, compiled=wanted, tell=self.course.tell)
            outcome.contenders |= found
        outcome.contenders.setdefault("eager", self.function)
        if outcome.kernels:
            outcome.contenders["superopt"] = assemble(self.traced, outcome.kernels)
        elif self.course.interrupted:
            return
        self.course.tell("racing against PyTorch")
        seconds = (
            min(_HASTE_S, self.options.seconds / 2) if self.course.interrupted else self.options.seconds / 2
        )
        with self.course.clock.phase("race"), self.course.stoppable():
            try:
                self._race_with(copies, outcome, seconds)
            except Exception as error:  # whatever a program or the device raises, the original computes
                why = f"the race against PyTorch failed: {self.course.fault(error)}"
                log.warning("%s: the original is what comes back: %s", self.traced.program.name, why)
                outcome.withdraw(why)
                self.course.interrupted |= self.course.lost

    def _stand_in(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        try:
            return stand_in(self.traced, inputs)
        except RuntimeError as error:  # torch lacks an operator in some dtype
            log.warning("%s: PyTorch races in fp32: %s", self.traced.program.name, self.course.fault(error))
            return self.function

    def _race_with(self, copies: Sequence[tuple[Any, ...]], outcome: Outcome, seconds: float) -> None:
        """Measure all contenders, and ours once more against the best of PyTorch, where it is faster."""
        floor = self._floor_us(outcome)
        outcome.measurements = self.target.measure(outcome.contenders, copies, seconds=seconds * 0.7)
        _check_floor(outcome.measurements, floor)
        if outcome.winner == "superopt":
            rivals = [name for name in outcome.measurements if name in PEERS]
            best = min(rivals, key=lambda name: outcome.measurements[name].median_us)
            confirmed = self.target.confirm(
                outcome.contenders, "superopt", best, copies, seconds=seconds * 0.3
            )
            _check_floor(confirmed.measurements, floor)
            outcome.confirmed = confirmed

    def _floor_us(self, outcome: Outcome) -> float:
        """Return the least time of the whole program, 0 where nothing is known.

        A region that reads what came before it may find it in the cache: only the others count.
        """
        plans = {plan.goal.name: plan for plan in outcome.regions}
        seen: set[str] = set()
        total = 0.0
        for node in self.traced.program.nodes:
            plan = plans.get(node.graph.name) if isinstance(node, Region) else None
            if plan is not None and seen.isdisjoint(node.inputs):
                found = plan.chosen.graph if plan.chosen else plan.goal
                total += least_us(self.target, plan.goal, found) or 0.0
            seen.update(node.inputs, node.outputs)
        return total


def _check_floor(measurements: Mapping[str, Measurement], floor: float) -> None:
    """Refuse a time of ours that cannot be right."""
    ours = measurements.get("superopt")
    if ours is not None and ours.median_us < SURELY * floor:
        raise MeasurementError(f"{ours.median_us:.2f} µs, but the program's data takes {floor:.2f} µs")
