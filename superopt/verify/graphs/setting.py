"""Setting: the tiny sizes and the field that two graphs are compared in, and the bound that holds there."""

from dataclasses import replace
from fractions import Fraction
from math import inf, log2
from time import perf_counter

from superopt.ir import Graph
from superopt.verify.bounds.bound import Bound, error_bound
from superopt.verify.bounds.ranks import rank_bits
from superopt.verify.evaluation.classes import draws_for, value_classes
from superopt.verify.evaluation.draws import Roots, batch_size, elements
from superopt.verify.evaluation.levels import first_levels, levels_of
from superopt.verify.evaluation.tensorless import constants_of
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.constants import exact_constant
from superopt.verify.field.factors import compared_factors
from superopt.verify.field.primes import HIGHEST, choose_tower
from superopt.verify.field.residues import mix_seed
from superopt.verify.graphs.facts import Facts
from superopt.verify.graphs.fixed_orders import FIXED_TRIALS, has_wrong_orders
from superopt.verify.graphs.judge import Judge
from superopt.verify.verdict import ENOUGH

__all__ = ["OutOfTimeError", "Setting"]

_LEAST_TRIALS = 8
_DOUBTFUL_TRIALS = 256  # trials where equality is out of reach, and only a difference can be found
_MOST_TRIALS = 1 << 15
_MOST_WORK = 1 << 24  # trials times the elements of the largest value, at most
_MOST_ELEMENTS = 1 << 23  # elements that one value may have
_CHEAP_TRIALS = 1 << 10  # where more trials are needed, less certainty is asked for
_FEWEST_BITS = 44
_CLASS_ROUND = 1000  # the number of the draw by which equal values are grouped
_FIXED_ROUND = 4000  # the number of the draw that tells fixed orders


class OutOfTimeError(Exception):
    """The time for a proof was over before it ended."""


class Setting:
    """One choice of tiny sizes, levels and primes, with the bound on the error of one trial.

    What is compared in it ends, by an OutOfTimeError, soon after `end`.
    """

    def __init__(
        self,
        facts: Facts,
        variant: int,
        seed: int,
        bits: int,
        *,
        sealed: bool,
        ranked: bool = False,
        end: float = inf,
    ) -> None:
        self.facts = facts
        self.variant = variant
        self.seed = seed
        self.sealed = sealed
        self.ranked = ranked  # whether the field is sealed and its maxima choose by random ranks
        self._bits = bits
        self._end = end
        left, right = facts.graphs
        logarithms = facts.logarithms and not sealed
        limit = 3 if logarithms else len(HIGHEST)
        self.levels = 1 if sealed else levels_of(left, right, limit=limit)
        self.firsts = _first_levels(facts, sealed=sealed)
        self._choose()
        error = self.bound.per_trial()
        if error >= 1 or self._needed(error) > _MOST_TRIALS // 8:
            self._choose(smallest=True)

    def _choose(self, *, smallest: bool = False) -> None:
        self.check_time()
        facts = self.facts
        left, right = facts.graphs
        self.tiny = tiny_sizes(
            left, right, variant=self.variant, links=facts.links, narrow=True, smallest=smallest
        )
        numbers = facts.constants | {abs(one) for one in self.tiny.compared if _is_short(one)}
        numbers |= {Fraction(extent) for extent in self.tiny.extents.values() if extent}
        positive = facts.roots
        if facts.ordered:  # what is made of extents has a sign as well
            made = (constants_of(graph, self.tiny.narrow, self.tiny.extents)[0] for graph in facts.graphs)
            numbers |= {one for several in made for one in several if _is_short(one)}
            known = frozenset(self.tiny.extents.items())
            positive |= compared_factors(left, self.tiny.narrow, known)
            positive |= compared_factors(right, self.tiny.narrow, known)
        self.tower, self.suits = choose_tower(
            mix_seed(self.seed, self.variant),
            self.levels,
            numbers,
            logarithms=facts.logarithms and not self.sealed,
            signs=facts.ordered,
            squares=positive,
            integers=self.tiny.integers,
        )
        start = min(max(self.firsts, default=0), len(self.tower) - 2)
        roots = () if self.sealed else facts.graphs
        self.roots = Roots(roots, self.tiny.sizes, self.levels)
        self.bound = error_bound(
            left,
            right,
            self.tiny.sizes,
            tower=self.tower[start : max(self.levels, start + 2)],
            classes=value_classes(
                facts.graphs,
                self.field(_CLASS_ROUND, draws_for(self.roots)),
                self.roots,
                self.tiny.sizes,
            )
            if self.largest <= _MOST_ELEMENTS
            else None,
            sealed=self.sealed,
            integers=len(self.tiny.integers),
            wide=self.tiny.wide,
            known=(self._known(left), self._known(right)),
        )
        self.judge = Judge(facts, self.tiny)
        self.bound = replace(self.bound, outcomes=self.bound.outcomes + self.judge.bits)
        if self.ranked:
            self.bound = self._by_ranks(self.bound)

    def _known(self, graph: Graph) -> list[bool]:
        return [numbers is not None for numbers in self.tiny.known_numbers(graph)]

    def _by_ranks(self, bound: Bound) -> Bound:
        """Return the bound on a trial whose maxima choose by random ranks."""
        bits, numbers = rank_bits(*self.facts.graphs, self.tiny)
        # Any of the numbers may by accident be the one that another graph chose.
        return replace(bound, leaves=bound.leaves * (numbers + 1), bits=bits, outcomes=bits)

    def check_time(self) -> None:
        """Raise OutOfTimeError where the time is over."""
        if perf_counter() > self._end:
            raise OutOfTimeError

    @property
    def obstacle(self) -> str:
        """Why nothing can be compared in this setting; empty where it can."""
        if self.tiny.missing:
            return self.tiny.missing
        if not self.suits:
            return "no arithmetic was found that keeps all constants of the programs and their signs apart"
        if self.largest > _MOST_ELEMENTS:
            return f"a tensor takes {self.largest} elements to show every outcome of its masks"
        if self.facts.ordered and not self.ranked and self._orders_wrongly():
            return "the order of two numbers that it computes from constants is not known"
        return ""

    def _orders_wrongly(self) -> bool:
        return has_wrong_orders(self.facts, self.tiny, self.field(_FIXED_ROUND, FIXED_TRIALS))

    @property
    def exact(self) -> bool:
        """Whether a difference over the field is one of real numbers."""
        sizes, extents = self.tiny.sizes, self.tiny.extents
        real = self.facts.left.sizes | self.facts.right.sizes
        whole = all(
            sizes[axis] == size or (extents.get(axis) == size and size >= self.bound.degree)
            for axis, size in real.items()
        )
        return self.facts.algebraic and not self.sealed and whole and self.levels < len(self.tower)

    @property
    def largest(self) -> int:
        """The number of elements of the largest value."""
        return max(elements(graph, self.tiny.sizes) for graph in self.facts.graphs)

    @property
    def batch(self) -> int:
        """How many trials are evaluated at once."""
        return batch_size(self.largest, self.levels)

    @property
    def most_trials(self) -> int:
        """How many trials are affordable."""
        return max(1 << 12, min(_MOST_TRIALS, _MOST_WORK // self.largest))

    def field(self, number: int, trials: int, *, pooled: bool = False) -> Field:
        """Return a field of many trials, another for each number."""
        seed = mix_seed(mix_seed(self.seed, self.variant), number)
        return self.tiny.field(
            seed,
            trials=trials,
            levels=self.levels,
            tower=self.tower,
            sealed=self.sealed,
            ranked=self.ranked,
            pooled=pooled,
        )

    def wanted(self, error: float) -> int:
        """Return how many trials it takes when one is wrong with some probability."""
        if error >= 1:
            return _LEAST_TRIALS
        if error > 0 and log2(ENOUGH) / log2(error) > self.most_trials:
            return _DOUBTFUL_TRIALS
        return max(_LEAST_TRIALS, min(self._needed(error), self.most_trials))

    def _needed(self, error: float) -> int:
        if error <= 0:
            return 1
        needed = int(self._bits / -log2(error)) + 1
        return needed if needed <= _CHEAP_TRIALS else int(min(self._bits, _FEWEST_BITS) / -log2(error)) + 1


def _is_short(number: Fraction) -> bool:
    """Return whether a number is no rounded root or multiple of pi."""
    return exact_constant(number).rational == number


def _first_levels(facts: Facts, *, sealed: bool) -> list[int]:
    """Return for each output the first level that it has in both graphs."""
    left, right = facts.graphs
    if sealed:
        return [0] * len(left.outputs)
    one, other = first_levels(left), first_levels(right)
    return [max(one[x.value], other[y.value]) for x, y in zip(left.outputs, right.outputs, strict=True)]
