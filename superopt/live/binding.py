"""Binding: which tensors a program reads besides its arguments, kept as its function has them now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.weak import TensorWeakRef

from superopt.candidates.parts import find_parts
from superopt.errors import SuperoptError
from superopt.funnel.assembly import in_parts
from superopt.ir import Graph, Program, print_program, release_shifts
from superopt.live.arguments import only_plain
from superopt.live.reach import Reached, reach
from superopt.live.watch import Watch, is_read_again, value_of
from superopt.trace import trace
from superopt.trace.traced import Traced

__all__ = ["CHANGING", "Binding", "in_same_parts"]


Function = Callable[..., Any]

_MODE = "it asks whether gradients or inference mode are on, and the kernels are for where neither is"
_TRACES = 32  # a function that is another one at each call is not traced for ever


class _Changing:
    """What stands for a watch while the function is looked at again."""

    def same(self) -> bool:
        return False


CHANGING = _Changing()
"""The watch of a function that a thread is just looking at again."""


@dataclass(frozen=True, slots=True)
class _State:
    """A state that a function was in, and the program that it is in that state.

    A tensor is noted by its place among those that are reached; where nothing reaches it, by itself.
    """

    traced: Traced | None  # without its constants; None: another program than the one that was built
    constants: dict[str, int | Tensor]
    # Tensors whose values are numbers of the program, with those values. Where these are not read again, it
    # must be the same tensor: a new one may lie where another one lay, and have been written to as often.
    reads: tuple[tuple[int | Tensor, str, TensorWeakRef | None], ...]
    why: str = ""


class Binding:
    """The constants of a program, found again each time that something its function reads has changed.

    Where the function differs in nothing but its tensors, the program reads the new ones. Where there is
    more to it, the function is traced again, and the program stays where it comes out the same.
    """

    def __init__(self, function: Function, traced: Traced, goals: Sequence[Graph], device: str) -> None:
        self._function = function
        self._goals = tuple(goals)
        self._program = traced.program
        self._device = device
        self._traces = 0
        self._states: dict[tuple[object, ...], list[_State]] = {}
        found = reach(function)
        noted = self._note(found, traced, traced)
        self.watch: Watch | _Changing = self._enter(noted, found, found)

    def same(self) -> bool:
        """Whether nothing has changed since the constants were found; takes about a microsecond."""
        return self.watch.same()

    def renew(self, inputs: tuple[Any, ...], name: str) -> Watch:
        """Find the constants again, and return what watches them, which the caller puts in place."""
        found = reach(self._function)
        modes = {ask: ask() for ask in found.modes}
        if any(modes.values()):
            return self._enter(_State(None, {}, (), _MODE), found, found, modes)
        known = self._states.get(tuple(found.facts), [])
        state = next((one for one in known if _holds(one, found)), None)
        if state is not None:
            return self._enter(state, found, found)
        state = self._trace_again(found, inputs, name)
        return self._enter(state, found, reach(self._function))  # tracing may have imported modules

    def _enter(
        self,
        state: _State,
        found: Reached,
        watched: Reached,
        modes: Mapping[Callable[[], bool], bool] | None = None,
    ) -> Watch:
        """Take over a state of the function, and return what watches it."""
        # The program with the tensors of now; None where the function became another program.
        self.traced: Traced | None = None
        self.why = state.why
        constants = {name: _at(place, found) for name, place in state.constants.items()}
        if state.traced is not None:
            self.traced = replace(state.traced, constants=constants)
        reads = [(_at(place, found), value) for place, value, _ in state.reads]
        # Functions are traced where gradients are off, and out of inference mode.
        return Watch(watched, constants.values(), reads, modes or dict.fromkeys(watched.modes, False))

    def _trace_again(self, found: Reached, inputs: tuple[Any, ...], name: str) -> _State:
        if self._traces >= _TRACES:
            return _State(None, {}, (), f"what {name} reads besides its arguments changes too often")
        self._traces += 1
        try:
            traced = trace(self._function, *inputs, name=name, live=self._device)
        except SuperoptError as error:
            return _State(None, {}, (), str(error))
        return self._note(found, traced, in_same_parts(traced, self._goals, self._program))

    def _note(self, found: Reached, traced: Traced, built: Traced | None) -> _State:
        """Keep what was traced in a state, and how it was built if it was, for when it comes again."""
        places = {id(tensor): place for place, tensor in enumerate(found.tensors)}
        why = "" if built else "what it reads besides its arguments has changed, and the program with it"
        if built and not self._readable(traced.constants.values()):
            built, why = None, f"tensors that it holds cannot be read by kernels for {self._device}"
        state = _State(
            replace(built, constants={}, read=()) if built else None,
            {name: places.get(id(tensor), tensor) for name, tensor in traced.constants.items()}
            if built
            else {},
            tuple(
                (
                    places.get(id(tensor), tensor),
                    value_of(tensor),
                    None if is_read_again(tensor) else TensorWeakRef(tensor),
                )
                for tensor in traced.read
            ),
            why,
        )
        self._states.setdefault(tuple(found.facts), []).append(state)
        return state

    def _readable(self, tensors: Iterable[Tensor]) -> bool:
        return all(only_plain((one,)) and one.device.type == self._device for one in tensors)


def in_same_parts(found: Traced, goals: Sequence[Graph], program: Program) -> Traced | None:
    """Return a traced program in the parts of these goals, or None where it is not the program of theirs."""
    names = {goal.name: None for goal in goals}
    parts = [find_parts(release_shifts(region.graph), names) or [] for region in found.program.regions]
    if [goal for some in parts for goal in some] != list(goals):
        return None
    traced = in_parts(found, goals)
    return traced if print_program(traced.program) == print_program(program) else None


def _at(place: int | Tensor, found: Reached) -> Tensor:
    return found.tensors[place] if isinstance(place, int) else place


def _holds(state: _State, found: Reached) -> bool:
    """Whether the tensors of which numbers were read still hold them."""
    return all(
        value_of(_at(place, found)) == value and (then is None or then() is _at(place, found))
        for place, value, then in state.reads
    )
