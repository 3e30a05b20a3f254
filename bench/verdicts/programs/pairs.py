"""Random pairs: programs made equal by laws, or different by a mistake that float64 confirms."""

from functools import cached_property
from random import Random

from superopt.bench.verdicts.judge import Difference, find_difference
from superopt.bench.verdicts.pairs import Pair
from superopt.bench.verdicts.programs.growth import grow
from superopt.bench.verdicts.programs.laws import rewrite
from superopt.bench.verdicts.programs.mutations import mutate
from superopt.bench.verdicts.programs.nodes import ALGEBRA, Node, as_function, nodes

__all__ = ["RandomPair", "random_pair"]

_LARGEST = 300.0  # a constant that is larger is no input


class RandomPair:
    """A random pair and how it was made."""

    def __init__(self, number: int, seed: int) -> None:
        random = Random(f"{seed} {number}")
        self.root, shapes = grow(random)
        self.other: Node = self.root
        self.steps: tuple[str, ...] = ()
        self.truth = number % 2 == 0
        mutated = None if self.truth else mutate(self.root, shapes, random)
        if mutated is not None:
            self.other, name = mutated
            self.steps = (name,)
        self._mistaken = self.other
        if self.truth or random.random() < 0.3:
            self.other, laws = rewrite(self.other, random, random.randrange(1, 6))
            self.steps += laws
        dtype = random.choice(("f32", "f32", "f64"))
        inputs = " ".join(f"{dtype}[{m},{n}]" for m, n in shapes)
        pool = tuple(sorted(_constants(self.root) | _constants(self.other)))
        f, g = as_function(self.root), as_function(self.other)
        self._pair = Pair(f"random {number}", f, g, inputs, self.truth, self.family, pool)
        self._number = number

    @property
    def size(self) -> int:
        """The number of nodes of the larger program."""
        return max(self.root.size, self.other.size)

    @property
    def family(self) -> str:
        """How its programs became equal, or different."""
        if not self.truth:
            return "mutated"
        used = {one.op for root in (self.root, self.other) for _, one in nodes(root)}
        return "pure algebra" if used <= ALGEBRA else "equal by laws"

    @cached_property
    def difference(self) -> Difference | None:
        """What float64 shows. Mistakes are judged without laws, whose rounding may decide a tie."""
        pair = self._pair
        g = pair.g if self.truth else as_function(self._mistaken)
        return find_difference(pair.f, g, pair.inputs, pair.constants, seed=self._number, finite=True)

    @property
    def pair(self) -> Pair | None:
        """The pair, or None where float64 does not confirm its truth."""
        return self._pair if self.truth == (self.difference is None) else None

    def __str__(self) -> str:
        return f"{self.root} against {self.other} ({', '.join(self.steps) or 'nothing changed'})"


def _constants(root: Node) -> set[float]:
    """Return the numbers in a program that its inputs may be, its clamps' bounds included."""
    found = {value for _, one in nodes(root) if one.op in ("constant", "clamp") for value in one.settings}
    return {value for value in found if abs(value) < _LARGEST}


def random_pair(number: int, seed: int) -> RandomPair:
    """Return the pair of this number: even ones are equal by laws, odd ones have a mistake."""
    return RandomPair(number, seed)
