"""Score: how often predictions order times rightly, and what is lost by compiling the best predicted few."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

__all__ = ["Score", "score", "together"]

APART = 1.1  # times that differ by less are no pair
TRIED = 8  # ways of the best predicted times that would be compiled


@dataclass(frozen=True, slots=True)
class Score:
    """The share of pairs that are ordered rightly, and the time lost by trying the best predicted alone."""

    pairs: int
    right: float  # pairs ordered rightly; a tie counts half
    regret: float  # by which share the best of those tried takes longer than the best of all

    @property
    def share(self) -> float:
        """The share of pairs that are ordered rightly."""
        return self.right / self.pairs if self.pairs else 1.0


def score(predicted: Sequence[float], measured: Sequence[Sequence[float]], *, tried: int = TRIED) -> Score:
    """Return how well predictions of ways to run one program agree with their times.

    A way has several times, by each of which a pair must differ alike to count.
    """
    pairs, right = 0, 0.0
    for (guess, times), (other_guess, other_times) in combinations(zip(predicted, measured, strict=True), 2):
        ratios = [us / other for us, other in zip(times, other_times, strict=True)]
        if min(ratios) > APART or max(ratios) < 1 / APART:
            pairs += 1
            right += 0.5 if guess == other_guess else float((guess < other_guess) == (ratios[0] < 1))
    order = sorted(range(len(predicted)), key=predicted.__getitem__)
    least = [min(times) for times in measured]
    best = min(least[at] for at in order[:tried])
    return Score(pairs, right, best / min(least) - 1)


def together(scores: Iterable[Score]) -> Score:
    """Return the score of several programs: all their pairs, and the mean of what is lost."""
    every = list(scores)
    lost = sum(one.regret for one in every) / max(len(every), 1)
    return Score(sum(one.pairs for one in every), sum(one.right for one in every), lost)
