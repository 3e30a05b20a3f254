"""Decide: the last word of floats. What differs in numbers is not equal, whatever the algebra says."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import inf, isfinite
from time import perf_counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from superopt.errors import InputError, SuperoptError, first_line, kind_and_line
from superopt.verify.counterexample import CANCELLED, find_counterexample, refused_by_second
from superopt.verify.evaluation.tiny import is_narrow
from superopt.verify.field.constants import exact_constant
from superopt.verify.floats.compare import DISTRIBUTIONS, compare_floats, in_float64, tensors_of
from superopt.verify.floats.errors import Differing
from superopt.verify.floats.float64 import held_dtype
from superopt.verify.floats.focus import focus_of
from superopt.verify.floats.report import Counterexample, FloatReport
from superopt.verify.floats.samples import PLAIN
from superopt.verify.programs.proof import Proof
from superopt.verify.programs.sides import Side
from superopt.verify.structures import change_leaves, leaves_of
from superopt.verify.verdict import Outcome, Verdict

__all__ = ["CONTRADICTION", "DISAGREEMENT", "REFUSED", "UNDEFINED", "decide"]

_TOO_MANY_OPERATIONS = 60_000_000_000  # a program of more operations is not run in floats
_SECONDS = 4.0  # seconds of each comparison, after which no other distribution is begun
_DRAWS = 8  # draws of each kind of inputs without a proof: some programs agree on many inputs by chance
_DRAWS_S = 0.25  # seconds of one draw of all kinds, after which no other is begun
_REAL = 1e-4  # a float64 difference, as a share of a row, that no order of operations explains
_LAST_DIGITS = 2.0**-46  # a difference that float64 shows
_FLOAT32_BYTES = 4
_OF_NUMBERS = frozenset({"arange", "as_tensor", "full", "linspace", "tensor"})  # round what they are given

CONTRADICTION = (
    "the algebra finds the programs equal, but the numbers below are not:"
    " one of the two is at fault, please report it"
)
"""The note of a verdict where algebra and numbers disagree."""

DISAGREEMENT = "the algebra finds the programs different, but in float64 they agree to the last digits"
"""The note of a verdict where algebra alone sees a difference, smaller than any number shows."""

UNDEFINED = "in float64 the second program makes NaN or infinity where the first has a number"
"""The note of a verdict on programs of which the second is undefined where the first is not."""

REFUSED = "the second program refuses numbers that the first takes"
"""The note of a verdict on programs of which the second raises an error where the first returns."""

_MODERATE = ("normal", "uniform positive", "near-zero rows", "sparse")
"""Distributions on which exponentials keep their digits: a difference there is one of the functions."""


def decide(left: Side, right: Side, proof: Proof, seed: int, progress: Callable[[str], None]) -> Verdict:
    """Return the verdict of algebra after both programs were run on the same numbers."""
    verdict = proof.verdict
    if left.random or right.random:
        return verdict  # two runs of one program would differ as well
    operations = max(left.operations, right.operations)
    if operations > _TOO_MANY_OPERATIONS:
        note = f"floats not compared: a run takes {operations:.1e} operations; give smaller inputs"
        return _noted(verdict, note)
    comparison = _Comparison(left, right, seed, progress)
    try:
        if verdict.equal:
            return _after_equality(verdict, comparison)
        return _after_doubt(verdict, comparison)
    except (SuperoptError, MemoryError):
        raise
    except (IndexError, ValueError, ArithmeticError) as error:
        note = f"floats not compared: a program refuses numbers that were drawn ({first_line(error)})"
    except Exception as error:  # programs, and operators of PyTorch, may insist on the dtypes they were given
        note = f"floats not compared: a program cannot be run in float64 ({kind_and_line(error)})"
    return _after_error(verdict, comparison, note)


def _after_error(verdict: Verdict, comparison: "_Comparison", note: str) -> Verdict:
    """Return what is left of a verdict when a program raised an error in float64.

    An error that both raise, or neither in its own dtypes, says nothing about an equality.
    """
    refused = comparison.refused() if verdict.equal else None
    if refused is None:
        return _noted(verdict, note)
    return replace(_noted(verdict, f"{REFUSED} ({refused})"), outcome="unknown")


def _after_doubt(verdict: Verdict, comparison: "_Comparison") -> Verdict:
    """Return the verdict on programs without a proof: numbers that differ are one."""
    found = comparison.counterexample(tolerance=None, draws=_DRAWS)
    if found is not None:
        # Notes say what kept the algebra from a proof, which is no news any more.
        return replace(verdict, outcome="different", notes=(), counterexample=found)
    if verdict.different and comparison.counterexample(tolerance=_LAST_DIGITS) is None:
        verdict = replace(_noted(verdict, DISAGREEMENT), outcome="unknown")
    doubtful = comparison.doubtful()
    if doubtful is not None:
        note = (
            "in float64 they differ only where one program makes NaN or infinity and the other does not,"
            " or another infinity, or where numbers overflow or underflow"
        )
        return replace(_noted(verdict, note, *comparison.notes), counterexample=doubtful)
    return _noted(verdict, "in float64 they agree on all inputs that were tried", *comparison.notes)


def _after_equality(verdict: Verdict, comparison: "_Comparison") -> Verdict:
    """Return what is left of an equality when floats have spoken."""
    found = comparison.counterexample(tolerance=CANCELLED)
    if found is not None:
        outcome: Outcome = (
            "different" if comparison.counterexample(tolerance=_REAL) is not None else "unknown"
        )
        return replace(_noted(verdict, CONTRADICTION), outcome=outcome, counterexample=found)
    undefined = comparison.undefined()
    if undefined is not None:
        return replace(_noted(verdict, UNDEFINED), outcome="unknown", counterexample=undefined)
    report = comparison.report()
    verdict = _noted(replace(verdict, floats=report), *comparison.notes)
    if report is None:
        return verdict
    worst = _worst_error(report)
    if worst is not None:
        note = (
            f"equal as algebra, and not in floats: the second program errs by {worst:.1e} of a row's largest"
            " number"
        )
        return replace(_noted(verdict, note), outcome="unknown")
    if any(item.nonfinite for item in report.distributions):
        return _noted(
            verdict, "equal where both are finite: the second program overflows before the first does"
        )
    return verdict


def _worst_error(report: FloatReport) -> float | None:
    """Return an error in the programs' own dtype that rounding does not explain, or None.

    Cancellation costs half of the digits in programs that people write; who loses more has lost the result.
    """
    failed = [item for item in report.distributions if item.name in _MODERATE and item.ratio > 1]
    failed = [item for item in failed if not item.skipped and not item.nonfinite]
    worst = max((inf if item.ratio == inf else item.lost for item in failed), default=0.0)
    return worst or None


def _noted(verdict: Verdict, *notes: str) -> Verdict:
    return replace(verdict, notes=tuple(dict.fromkeys((*verdict.notes, *notes))))


class _Comparison:
    """Both programs, run on one distribution of inputs after the other for as long as there is time."""

    def __init__(self, left: Side, right: Side, seed: int, progress: Callable[[str], None]) -> None:
        self.left, self.right = left, right
        self.focus = focus_of(left.program, right.program)
        self.narrow = _are_narrow(left, right)
        self.seed = seed
        self.progress = progress
        self.notes: list[str] = []
        self.seconds = 0.0  # the longest time that one distribution took
        if not tensors_of(left.inputs) and left.names:
            raise InputError("no input tensors to compare floats on")
        progress("getting ready to compare floats")
        _warm_up()

    def counterexample(self, *, tolerance: float | None, draws: int = 1) -> Counterexample | None:
        """Return moderate inputs on which the programs differ in float64, if found.

        A NaN or infinity of one side is no difference: functions are equal that are so wherever both
        are defined. Without a tolerance, it is what their dtypes round.
        """
        return self._several(_MODERATE, tolerance=tolerance, differing="numbers", draws=draws)

    def undefined(self) -> Counterexample | None:
        """Return inputs on which the second program alone makes NaN or infinity in float64, if found.

        What overflows, or divides by a zero where nothing is compared, is undefined by accident alone: so
        inputs are moderate, and zeros come only where inputs are aimed at comparisons.
        """
        return self._several(PLAIN, tolerance=None, differing="undefined", draws=_DRAWS)

    def refused(self) -> str | None:
        """Return the error that the second program alone raises in its own dtypes, if found."""
        functions = self.left.function, self.right.function
        return refused_by_second(*functions, self.left.inputs, seed=self.seed, draws=_DRAWS)

    def doubtful(self) -> Counterexample | None:
        """Return inputs of any kind on which the programs differ in float64 in any way, if found."""
        return self._found(tuple(DISTRIBUTIONS), tolerance=None, differing="in any way")

    def _several(
        self, distributions: tuple[str, ...], *, tolerance: float | None, differing: Differing, draws: int
    ) -> Counterexample | None:
        """Return inputs of several draws on which the programs differ; slow programs get one draw."""
        for draw in range(draws):
            start = perf_counter()
            found = self._found(distributions, tolerance=tolerance, differing=differing, draw=draw)
            if found is not None or perf_counter() - start > _DRAWS_S:
                return found
        return None

    def _found(
        self,
        distributions: tuple[str, ...],
        *,
        tolerance: float | None,
        differing: Differing,
        draw: int = 0,
    ) -> Counterexample | None:
        settings: dict[str, Any] = {"seed": self.seed + draw, "tolerance": tolerance, "differing": differing}
        programs = *self._functions, self.left.inputs
        if not self.focus.is_empty:
            self.progress("looking for a difference where comparisons turn")
            found = find_counterexample(*programs, distributions=(), focus=self.focus, **settings)
            if found is not None:
                return found
        # Where there are comparisons, integers were drawn above.
        focus = self.focus if self.focus.is_empty else None
        for name in self._in_time(distributions):
            start = perf_counter()
            try:
                found = find_counterexample(*programs, distributions=(name,), focus=focus, **settings)
            except IndexError:  # integers that were drawn may be no valid indices
                if focus is None:
                    raise
                focus = None
                found = find_counterexample(*programs, distributions=(name,), **settings)
            self.seconds = max(self.seconds, perf_counter() - start)
            if found is not None:
                return found
        return None

    @property
    def _functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both programs, with the constants that the algebra reads in them."""
        return _mixing(self.left.function, self.narrow), _mixing(self.right.function, self.narrow)

    def report(self) -> FloatReport | None:
        """Return how the second program rounds, compared with the first."""
        # Half floats take a CPU several times as long as doubles, and an unlucky draw is judged over several.
        count = len(DISTRIBUTIONS) if self.seconds <= 0 else int(_SECONDS / (4 * self.seconds))
        if count < 1:
            self.notes.append("rounding not compared: a run takes too long")
            return None
        names = tuple(DISTRIBUTIONS)[:count]
        self.progress("comparing how both round")
        programs = *self._functions, self.left.inputs
        return compare_floats(*programs, distributions=names, seed=self.seed)

    def _in_time(self, distributions: tuple[str, ...]) -> Iterator[str]:
        """Yield distributions until time is up; says in a note where some were left out."""
        start = perf_counter()
        for number, name in enumerate(distributions):
            if number and perf_counter() - start > _SECONDS:
                note = f"only {number} of {len(distributions)} kinds of inputs were tried in {_SECONDS:.0f} s"
                self.notes.append(note)
                return
            self.progress(f"looking for a difference in float64: {name}")
            yield name


def _warm_up() -> None:
    """Load what PyTorch loads at the first operator in a mode, so that no program is timed with it."""

    in_float64(lambda x: x + x)(torch.zeros(1))


def _are_narrow(left: Side, right: Side) -> bool:
    """Whether the algebra reads what float32 makes of a short decimal as that decimal."""
    wholes = [side.whole for side in (left, right)]
    if any(whole is None for whole in wholes):
        both = [(*tensors_of(side.inputs), *side.constants.values()) for side in (left, right)]
        return all(one.dtype != torch.float64 for tensors in both for one in tensors)
    return is_narrow(*(whole.graph for whole in wholes if whole is not None))


def _meant(value: float) -> float:
    """Return the number that a constant stands for in a program without float64."""
    if not isfinite(value):
        return value
    meant = exact_constant(Fraction(value), narrow=True).rational
    return value if meant is None else float(meant)


def _mixing(function: Callable[..., Any], narrow: bool) -> Callable[..., Any]:
    """Return the function, whose operators take float64 inputs together with parameters of other floats.

    Most operators promote; convolutions and others refuse before any dispatch mode could widen them. In
    `narrow` programs a constant is the number that it stands for: 0.1 and what float32 makes of it are one.
    """

    def is_double(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and held_dtype(value) == torch.float64

    def widened(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        size = held_dtype(value).itemsize
        is_constant = value.ndim == 0 and value.grad_fn is None and size >= _FLOAT32_BYTES
        if narrow and is_constant:
            with contextlib.suppress(RuntimeError):  # one of a batch has no number of its own
                number = float(value)
                if (meant := _meant(number)) != number:
                    return value.double() + (meant - number)
        return value  # one that is no constant is widened where the function is carried out in float64

    def as_meant(value: Any) -> Any:
        return _meant(value) if isinstance(value, float) else value

    def unrounded(made: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a tensor of numbers with those that its dtype by default rounds as float64 holds them."""
        if kwargs.get("dtype") is None and is_double(made):
            with torch.no_grad():
                made.copy_(func(*args, **kwargs | {"dtype": torch.float64}))
        return made

    class Mixing(TorchFunctionMode):
        """Widens what an operator reads together with a float64 tensor, unless it writes there."""

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            """Call one operator."""
            kwargs = kwargs or {}
            if narrow:
                args, kwargs = change_leaves(as_meant, (args, kwargs))
            name = getattr(func, "__name__", "")
            writes = (
                "out" in kwargs or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
            )
            if not writes and any(map(is_double, leaves_of((args, kwargs)))):
                args, kwargs = change_leaves(widened, (args, kwargs))
            made = func(*args, **kwargs)
            return unrounded(made, func, args, kwargs) if narrow and name in _OF_NUMBERS else made

    def run(*inputs: Any) -> Any:
        with Mixing():
            return function(*inputs)

    return run
