"""What the float comparison reports: errors by input distribution, and a concrete counterexample."""

from dataclasses import dataclass

__all__ = ["Counterexample", "DistributionReport", "FloatReport"]

_PRINTED = 3  # comparisons that are named of those that were not seen both ways


@dataclass(frozen=True, slots=True)
class DistributionReport:
    """Largest errors against float64 for one input distribution, each as a share of the output's scale."""

    name: str
    eager_error: float
    candidate_error: float
    ratio: float  # candidate's error over what is allowed; above 1 is a failure
    nonfinite: bool = False  # the candidate makes NaN or infinity that eager does not
    skipped: str = ""
    doubtful: int = 0  # elements that hang on a comparison which rounding may turn, and are not judged
    lost: float = 0.0  # the largest error of a result that is left with less than half of its digits

    @property
    def ok(self) -> bool:
        """Whether the candidate is accepted on this distribution."""
        return bool(self.skipped) or (self.ratio <= 1 and not self.nonfinite)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.name}: skipped, {self.skipped}"
        text = f"{self.name}: error {self.candidate_error:.1e}, PyTorch's {self.eager_error:.1e}"
        if self.nonfinite:
            return text + ", NaN or infinity where PyTorch has none"
        if self.doubtful:
            text += f" ({self.doubtful} numbers at the edge of a comparison not judged)"
        return text if self.ok else text + f", {self.ratio:.1f} times what is allowed"


@dataclass(frozen=True, slots=True)
class FloatReport:
    """The verdict of floats: no worse than PyTorch itself by more than `factor`, on every distribution."""

    dtype: str
    factor: float
    distributions: tuple[DistributionReport, ...]
    uncovered: tuple[str, ...] = ()  # the outcomes of the program's comparisons that no test showed

    @property
    def accurate(self) -> bool:
        """Whether the candidate is accepted on all distributions, and at least one was compared."""
        compared = any(not item.skipped for item in self.distributions)
        return compared and all(item.ok for item in self.distributions)

    @property
    def ok(self) -> bool:
        """Whether the candidate is accepted, and the inputs showed both sides of every comparison."""
        return self.accurate and not self.uncovered

    @property
    def worst(self) -> DistributionReport:
        """The distribution nearest to failing, or failing most."""
        return max(self.distributions, key=lambda item: (not item.ok, not item.skipped, item.ratio))

    def __str__(self) -> str:
        done = sum(not item.skipped for item in self.distributions)
        skipped = "".join(f"; {item}" for item in self.distributions if item.skipped)
        if not done:
            return f"floats ({self.dtype}): nothing to compare{skipped}"
        if self.accurate:
            kinds = "kind" if done == 1 else "kinds"
            fine = f"fine on {done} {kinds} of inputs; nearest: {self.worst}{skipped}"
            missing = "; ".join(self.uncovered[:_PRINTED])
            more = len(self.uncovered) - _PRINTED
            missing += f"; and {more} more" if more > 0 else ""
            untested = f"not tested enough: {missing}; otherwise " if missing else ""
            return f"floats ({self.dtype}): {untested}{fine}"
        failed = "; ".join(str(item) for item in self.distributions if not item.ok)
        return f"floats ({self.dtype}): {failed}{skipped}"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Concrete inputs on which two functions differ, and both outputs at the first differing place."""

    distribution: str
    inputs: tuple[str, ...]  # printed tensors, large ones abridged
    output: str
    position: tuple[int, ...]
    left: float
    right: float

    def __str__(self) -> str:
        place = ", ".join(map(str, self.position))
        lines = [
            f"{self.output}[{place}] = {self.left!r} against {self.right!r}, inputs {self.distribution}:"
        ]
        lines += [f"  {text}" for text in self.inputs]
        return "\n".join(lines)
