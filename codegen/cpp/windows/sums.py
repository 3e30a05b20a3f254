"""Sums: what all nests share that add up the short axes of windows, each sum in a register."""

from abc import abstractmethod
from math import prod

from superopt.codegen.cpp.nests.expressions import Text
from superopt.codegen.cpp.nests.nest import NestPrinter
from superopt.codegen.cpp.source import Place
from superopt.codegen.statements import Compute

__all__ = ["TURNS", "UNROLLED", "SumsPrinter"]

TURNS = 4
"""Registers that take turns in a sum, so that no addition waits for the previous addition."""

UNROLLED = 8
"""Positions of the innermost axis of a window, up to which no loop is left."""

_SEVERAL = 16  # over so many positions of a window or more, registers take turns


class SumsPrinter(NestPrinter):
    """One nest over windows: its sums are known before the next vectors, and so are steps made of them."""

    summed = False  # whether what is printed comes after the sums

    def _inner_and_outer(self) -> tuple[list[int], list[int]]:
        """Return what is read at each tap, and what is read after the sums; put the outer loops in order."""
        # Neighbouring windows share what they read, so their axes are walked along last.
        self.kept.sort(key=lambda axis: axis in self.tiles.fixed)
        return self._operands(), self._operands(self.nest.rest, [one.value for one in self.nest.reductions])

    @property
    def takes_turns(self) -> bool:
        """Whether several registers have a part of a sum."""
        taps = [self.graph.sizes[axis] for axis in self.reduced]
        return prod(taps) >= _SEVERAL and taps[-1] <= UNROLLED

    @abstractmethod
    def _term_register(self, one: Compute) -> str:
        """Return the register to which a reduction adds what is read at the taps here."""

    @abstractmethod
    def _joined(self, one: Compute) -> str:
        """Return a reduction, of which several registers may each have a part."""

    def _reduce(self, one: Compute, targets: dict[int, Place]) -> None:
        text = self._product(one) if one.step.op == "contract" else self._value(one.step.inputs[0])
        self._add(self._term_register(one), text.code if text.vector else f"splat({text.code})", one)

    def _add(self, register: str, part: str, one: Compute) -> None:
        """Print how a part comes to what a register holds of a reduction."""
        largest = one.step.op == "max"
        self.tiles.line(f"{register} = maximum({part}, {register});" if largest else f"{register} += {part};")

    def _end_sums(self, targets: dict[int, Place]) -> None:
        """Print what the sums are, and where they go."""
        self.summed = True
        self.whole.clear()  # those flags are told within the loops over taps
        for one in self.nest.reductions:
            self.known[one.value] = Text(self._joined(one), vector=True)
            if one.value in targets:
                place = targets[one.value]
                at = self._at(self.tiles.pointer(one.value, place), place.strides, self._loops)
                self._store(at, place.strides, "float", self.known[one.value])
