"""Options: every setting of `superopt.optimize` and `superopt optimize`, and the presets."""

from dataclasses import dataclass, field, replace
from typing import Literal

from superopt.driver import SearchOptions
from superopt.errors import InputError
from superopt.verify.seeds import fresh_seed
from superopt.weights.division import Weights, check_weights

__all__ = ["PRESETS", "OptimizeOptions", "Preset"]

_SEARCH = SearchOptions()


@dataclass(frozen=True, slots=True)
class Preset:
    """How wide to look for configurations."""

    tuned: int  # candidates of a region whose kernels are raced in other configurations
    configs: int  # configurations tried for each of their kernels
    compile_seconds: float  # seconds of compiling for a device that is not here
    compiled: int  # candidates of a region that are compiled for a device that is not here
    compiled_configs: int  # configurations of each of their kernels that are compiled


PRESETS = {"quick": Preset(1, 6, 15.0, 3, 2), "full": Preset(3, 32, 240.0, 8, 8)}
"""The presets by name."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """How to optimize: every setting of `superopt.optimize` and `superopt optimize`."""

    target: str = "auto"  # "cpu", "cuda" (the device here), "cuda:90", or auto: where the inputs are
    preset: Literal["quick", "full"] = "quick"
    seconds: float = 20.0  # seconds of tuning and racing, in all
    graphs: int = 6  # graphs of each region that are made into kernels
    torch_compile: bool = True
    measure: bool = True  # without it, a plan with predicted times is made, as for a device not here
    retune: bool = False  # race configurations anew where sizes come that none were raced for
    guarded: bool = True  # each kernel runs first in a process of its own, which may crash or hang
    limit_seconds: float = 60.0  # seconds to compile a muGraph and to run it first; infinite: no limit
    cache: bool = True  # use and keep what earlier runs found best
    recall: bool = False  # give back what an identical earlier call measured, and race nothing
    # What may be made of weights ahead of the calls: nothing ("live"), small tensors, or ("frozen") any.
    weights: Weights = "default"
    # Of inputs and of float tests: nobody has used the numbers that it draws.
    seed: int = field(default_factory=fresh_seed, compare=False)
    search: SearchOptions = _SEARCH

    @property
    def searching(self) -> SearchOptions:
        """The settings of the search, with this policy for weights."""
        return replace(self.search, weights=self.weights)

    def check(self) -> None:
        """Refuse settings that make no sense."""
        if not self.seconds > 0:
            raise InputError(f"seconds is {self.seconds!r}; give a time above 0")
        if not self.limit_seconds > 0:
            raise InputError(f"limit_seconds is {self.limit_seconds!r}; give a time above 0")
        check_weights(self.weights)
        if self.graphs < 1:
            raise InputError(f"graphs is {self.graphs!r}; give at least 1")
        if self.preset not in PRESETS:
            raise InputError(f"preset is {self.preset!r}; choose {' or '.join(PRESETS)}")
