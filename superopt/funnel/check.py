"""Check: the fastest candidates in floats, inside the whole program, until one is as accurate as PyTorch."""

import logging
from collections.abc import Mapping, Sequence

from superopt.candidates.candidate import Candidate
from superopt.fate import Kind
from superopt.funnel.assembly import assemble
from superopt.funnel.state import Context, State, fail
from superopt.targets import Kernel
from superopt.trace import trace
from superopt.verify.floats.compare import compare_floats
from superopt.verify.floats.focus import Focus, focus_of
from superopt.verify.floats.report import FloatReport

__all__ = ["check"]

log = logging.getLogger("superopt")

_MOST_CHECKS = 8  # muGraphs of a region that are checked in floats


def check(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Check the candidates in floats, the fastest first, until one passes: that one is in the program now."""
    state, goal = context.state, context.goal
    state.tell(f"checking {goal.name} in floats")
    with state.clock.phase("check"):
        focus = _focus(state)
        judged: list[Candidate] = []
        # A muGraph in a configuration that rounds alike fails alike.
        faults: dict[object, tuple[Kind, str]] = {}
        untested = ""  # why no candidate can be told from a wrong one
        for one in candidates:
            rounding = one.mugraph, tuple(config and config.rounding for config in one.configs)
            if not one.is_kept or one.measurement is None:
                pass
            elif one.us > state.limits.beat_us:
                one = one.ended("check", Kind.SLOWER, "slower than what there is to beat")
            elif context.checked is not None:
                pass
            elif untested or rounding in faults:
                kind, why = faults.get(rounding, (Kind.REFUSED, untested))
                one = one.ended("check", kind, why)
            elif state.lost or len(faults) >= _MOST_CHECKS:
                why = f"not checked in floats: {len(faults)} faster ones failed"
                one = one.ended("check", Kind.NO_TIME, why)
            else:
                trial = {**state.kernels, goal.name: context.kernels[one.id]}
                report = _compared(trial, focus, context)
                if isinstance(report, str):  # a candidate that cannot be checked is not chosen
                    log.warning("%s: skip %s: %s", goal.name, one.name, report)
                    faults[rounding] = Kind.FAILED, report
                    one = fail(one, "check", report)
                    state.interrupted |= state.lost
                elif report.ok:
                    context.checked, state.kernels, state.floats = one.id, trial, report
                else:
                    faults[rounding] = Kind.REFUSED, str(report)
                    untested = str(report) if report.uncovered else ""
                    one = one.ended("check", Kind.REFUSED, str(report))
            judged.append(one)
    return judged


def _focus(state: State) -> Focus:
    """Return the focus of the program: what float comparisons must reach, for inputs within its domain."""
    if state.domain is None:
        return focus_of(state.traced)
    kept = state.domain.keeping(state.function)
    return focus_of(
        trace(kept, *state.inputs, name=state.traced.program.name, live=state.target.torch_device)
    )


def _compared(kernels: Mapping[str, Kernel], focus: Focus, context: Context) -> FloatReport | str:
    """Return how the program with some kernels compares with the function, or why that is not known."""
    state = context.state
    functions = [state.function, assemble(state.traced, kernels), state.eager or state.function]
    if state.domain is not None:
        functions = list(map(state.domain.keeping, functions))
    function, program, eager = functions
    try:
        return compare_floats(
            function,
            program,
            state.inputs,
            eager=eager,
            seed=state.options.seed,
            focus=focus,
            turned=state.turned,
        )
    except Exception as error:  # the device or the function may raise anything
        return f"it could not be checked in floats: {state.fault(error)}"
