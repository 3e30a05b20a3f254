"""Kept: tensors that are made of weights once, and again when a weight has changed."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import c_longlong
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from superopt.dtypes import torch_dtypes
from superopt.errors import GraphError, InputError, first_line
from superopt.ir import Graph
from superopt.trace.run import in_own_memory, run_graph
from superopt.weights.away import Behind, is_away, put_away
from superopt.weights.compiled_check import Check, Reads, ask_python
from superopt.weights.division import Divided
from superopt.weights.memory import in_large_pages
from superopt.weights.shared import Maker, Shared, all_of, find_shared, let_go, make_shared, makers_of
from superopt.weights.sources import Sources, can_be_watched
from superopt.weights.stored import stored
from superopt.weights.writes import watch_writes

__all__ = ["Kept", "KeptKernel", "all_made", "bytes_kept", "keep_only", "made_once"]

log = logging.getLogger("superopt")

Whole = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]

_DTYPES = torch_dtypes()
_FEWEST_CALLS = 8  # what is made of weights should serve at least so many calls
_SHORT_LIVES = 3  # so many times in a row it may serve fewer calls before it is given up
# After so many calls Python looks: at first to put weights away, then to let their old memory go.
_LOOK_AFTER = (_FEWEST_CALLS, 2 * _FEWEST_CALLS)
_ENDLESS = 1 << 62  # the calls that compiled code may serve after the last look


def made_once(once: Graph, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what a graph makes of weights, computed in float64 and rounded once.

    Raises InputError where a number is not finite, or no integer that the tensor holds: then kernels compute
    other things than PyTorch does.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        plain = {port.name: tensors[port.name].detach() for port in once.inputs}
        made = run_graph(once, plain, torch.float64)
        found = []
        for output in once.outputs:
            exact = made[output.port.name]
            tensor = exact.to(_DTYPES[output.port.dtype]).contiguous()
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(f"{once.name}: {output.port.name} is not finite")
            if not tensor.is_floating_point() and not torch.equal(tensor.to(exact.dtype), exact):
                raise InputError(f"{once.name}: {output.port.name} does not fit {output.port.dtype}")
            known = {one.data_ptr() for one in plain.values()}
            own = in_large_pages(tensor)
            found.append(own.clone() if own.data_ptr() in known else own)
    if any(one.is_cuda for one in found):
        torch.cuda.current_stream().synchronize()  # later calls may come on other streams
    return tuple(found)


class _UnknownSources:
    """Stands for sources that may have changed while weights are put away; another thread makes its own."""

    def same(self, given: Sequence[Tensor]) -> bool:
        return False

    def state(self) -> tuple[object, ...]:
        return (self,)


class _Made:
    """What was made of some weights, and how many calls it served."""

    __slots__ = (
        "_allowed",
        "_calls",
        "_calls_left",
        "_sources",
        "behind",
        "cuda",
        "owners",
        "quick",
        "shared",
        "tensors",
    )

    quick: Check
    """Gives a kernel what it reads: compiled code, which may serve as many calls as Python allows."""

    def __init__(self, sources: Sources, shared: tuple[Shared, ...] | None, owners: Any) -> None:
        self.sources = sources
        self.shared = shared or ()
        # None: nothing is kept, so that each call computes the region whole.
        self.tensors = None if shared is None else tuple(one.tensor for one in shared)
        self.owners = owners  # weak references to the weights
        self.behind: list[Behind] = []  # the old memory of weights that were put away
        self.cuda = any(one.is_cuda for one in self.tensors or ())
        self._calls = 0  # until Python last looked
        self._allowed = 0  # calls that compiled code may serve from then on
        self._calls_left = c_longlong(0)  # those of them that it has not served yet

    @property
    def sources(self) -> Sources | _UnknownSources:
        """The weights as they were."""
        return self._sources

    @sources.setter
    def sources(self, found: Sources | _UnknownSources) -> None:
        self._sources, self.quick = found, ask_python

    @property
    def calls(self) -> int:
        """The calls that were served."""
        return self._calls + self._allowed - self._calls_left.value

    def begin(self) -> None:
        """Count calls from now on: those of races do not tell whether the weights stay the same."""
        self._calls = self._allowed = self._calls_left.value = 0

    def serve(self) -> None:
        """Count a call, and allow compiled code to serve the calls until Python is to look again."""
        self._calls = calls = self.calls + 1
        self._allowed = next((look - calls - 1 for look in _LOOK_AFTER if look > calls), _ENDLESS)
        self._calls_left.value = self._allowed

    def speed_up(
        self, weights: Sequence[Tensor], places: Sequence[int], reads: Sequence[int | Tensor]
    ) -> None:
        """Let compiled code serve later calls, whose weights are at these places among the arguments."""
        sources = self._sources
        if self.quick is ask_python and isinstance(sources, Sources) and not self.cuda:
            self.quick = sources.compiled_check(weights, Reads(places, reads, self._calls_left))


_all_kept: "weakref.WeakSet[Kept]" = weakref.WeakSet()


def bytes_kept() -> int:
    """Return the bytes of all that this process keeps now."""
    made = (made for one in all_of(_all_kept) for made in one.made)
    return sum({id(one): one.nbytes for each in made for one in each.tensors or ()}.values())


def all_made() -> Iterator[tuple[Maker, list[Tensor], Tensor]]:
    """Yield each tensor that this process keeps, with what makes it, and its weights as they are."""
    for kept in all_of(_all_kept):
        yield from kept.makers_with_tensors()


@dataclass(slots=True)
class _Waiting:
    """Weights that changed too often: nothing is made of them until they stay the same for some calls.

    Each time it takes twice as many calls.
    """

    owners: tuple["weakref.ref[Tensor]", ...]
    state: object = None
    calls: int = 0
    needed: int = _FEWEST_CALLS

    def ends(self, state: object) -> bool:
        """Whether the weights have stayed the same for as many calls as it takes; `state` is how they are."""
        self.calls = self.calls + 1 if state == self.state else 1
        self.state = state
        if self.calls <= self.needed:
            return False
        self.calls, self.needed = 0, 2 * self.needed
        return True


class Kept:
    """Tensors made of weights, looked after: whoever asks for them gets those of the weights as they are.

    One kernel may serve many layers: what was made is kept for the weights of each, as long as they live.
    """

    def __init__(self, once: Graph, unread: Sequence[str] = ()) -> None:
        self.once = once
        self._makers = makers_of(once)
        self.sources = tuple(port.name for port in once.inputs)
        self.unread = tuple(self.sources.index(name) for name in unread)  # sources that calls no longer read
        self.names = tuple(output.port.name for output in once.outputs)
        self.why = ""  # why the weights that came last cannot be watched; empty where they can
        self._on_end: Callable[[str], None] | None = None
        self._made: dict[tuple[int, ...], _Made] = {}  # by the identities of the weights
        self.latest: dict[int, _Made] = {}  # what served last, by the identity of the first weight
        self._short = 0  # times in a row that tensors served a few calls only
        self._waiting: dict[tuple[int, ...], _Waiting] = {}  # by the identities of the weights
        self._told: set[str] = set()  # why some calls are computed whole
        _all_kept.add(self)

    def give_up_with(self, tell: Callable[[str], None]) -> None:
        """From now on make nothing of weights that change with nearly every call, and tell why.

        Until then, as long as kernels are tried, tensors are made however often weights change.
        """
        self._on_end, self._short = tell, 0
        self._told.clear()
        for made in self._made.values():
            made.begin()

    def let_go(self) -> None:
        """Keep nothing until the next call, which makes its tensors anew."""
        self._made.clear()
        self.latest.clear()

    @property
    def made(self) -> tuple[_Made, ...]:
        """What is kept, of the weights of each layer."""
        return tuple(self._made.values())

    def makers_with_tensors(self) -> Iterator[tuple[Maker, list[Tensor], Tensor]]:
        """Yield what is kept, each tensor with what makes it, and with its weights as they are."""
        for made in self.made:
            weights = [weight for one in made.owners if (weight := one()) is not None]
            if made.tensors is None or len(weights) < len(made.owners) or not made.sources.same(weights):
                continue
            for maker, tensor in zip(self._makers, made.tensors, strict=True):
                yield maker, [weights[at] for at in maker.places], tensor

    @property
    def bytes(self) -> int:
        """The bytes of all that is kept."""
        return sum(one.nbytes for made in self.made for one in made.tensors or ())

    def of(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the tensors that are made of these weights; None where nothing is kept."""
        made = self.latest.get(id(given[0]))
        if made is None or not made.sources.same(given):
            made = self._made.get(tuple(map(id, given)))
            if made is None or not made.sources.same(given):
                return self._make(given)
            self.latest[id(given[0])] = made
        made.serve()
        if made.calls in _LOOK_AFTER:
            self._put_unread_away(made, given)
        return None if made.cuda and torch.cuda.is_current_stream_capturing() else made.tensors

    def _make(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        key, self.why = tuple(map(id, given)), ""
        self._drop(key)
        if not all(map(can_be_watched, given)):
            self._refuse("changes of some weights cannot be detected")
            return None
        if self._on_end is not None and self._short >= _SHORT_LIVES and not self._has_settled(given):
            self._tell("the weights change with nearly every call", self._on_end)
            return None
        sources = Sources(given)  # made first: what is written from here on is seen in the next call
        if not sources.counted:
            self._refuse("too many tensors share the memory of a weight")
            return None
        if given[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # a graph that is replayed would read these tensors when the weights are others
        found = self._found(given)
        owners = tuple(weakref.ref(one, lambda _: self._drop(key)) for one in given)
        made = self._made[key] = _Made(sources, found, owners)
        return made.tensors

    def _has_settled(self, given: Sequence[Tensor]) -> bool:
        """Whether weights have stayed the same for some calls, in which nothing was made of them."""
        key = tuple(map(id, given))
        waiting = self._waiting.get(key)
        if waiting is None or any(
            owner() is not one for owner, one in zip(waiting.owners, given, strict=True)
        ):
            owners = tuple(weakref.ref(one, lambda _: self._waiting.pop(key, None)) for one in given)
            waiting = self._waiting[key] = _Waiting(owners)
        return waiting.ends([(one._version, one.data_ptr()) for one in given])

    def _found(self, given: Sequence[Tensor]) -> tuple[Shared, ...] | None:
        """Return what is made of these weights, or None where that is no number; say so once."""
        try:
            return tuple(self._shared(maker, [given[at] for at in maker.places]) for maker in self._makers)
        except (InputError, GraphError) as error:
            if self._on_end is not None:
                self._tell(first_line(error), lambda why: log.warning("%s; it is computed in each call", why))
            return None

    def _tell(self, why: str, tell: Callable[[str], None]) -> None:
        """Tell once why nothing is made of some weights."""
        if why not in self._told:
            self._told.add(why)
            tell(why)

    @staticmethod
    def _shared(maker: Maker, weights: Sequence[Tensor]) -> Shared:
        found = find_shared(maker, weights)
        if found is not None:
            return found
        named = {port.name: one for port, one in zip(maker.graph.inputs, weights, strict=True)}

        def make() -> Tensor:
            known = stored(maker, weights)
            return made_once(maker.graph, named)[0] if known is None else known

        return make_shared(maker, weights, make)

    def _put_unread_away(self, made: _Made, given: Sequence[Tensor]) -> None:
        """Put the weights away that calls no longer read, once they have stayed the same for some calls."""
        made.behind.clear()  # at the second look, the old memory goes
        if made.calls != _FEWEST_CALLS or self._on_end is None or made.tensors is None:
            return
        going = [given[at] for at in self.unread if not is_away(given[at])]
        if not going:
            return
        before, ids = made.sources.state(), set(map(id, going))
        for kept in all_of(_all_kept):
            for key, other in list(kept._made.items()):
                if not ids.isdisjoint(key):
                    other.sources = _UnknownSources()  # the sources use the memory of the weights as well
        let_go(going)
        watch_writes(given)  # lets aliases go that nobody else has
        made.behind += [behind for one in going if (behind := put_away(one)) is not None]
        found = Sources(given)
        if found.state() != before:
            return  # another thread has written to a weight meanwhile
        made.sources = found
        for maker, one in zip(self._makers, made.shared, strict=True):
            one.sources = Sources([given[at] for at in maker.places])

    def _drop(self, key: tuple[int, ...]) -> None:
        made = self._made.pop(key, None)
        self.latest.pop(key[0], None)
        for behind in made.behind if made else ():
            behind.repeat_late_write()
        if made is not None and not isinstance(made.sources, _UnknownSources):  # else no weight has changed
            self._short = self._short + 1 if made.calls < _FEWEST_CALLS else 0

    def _refuse(self, why: str) -> None:
        """Say why nothing is made of some weights; others are kept as before."""
        self.why = why
        if self._on_end is not None:
            self._tell(why, self._on_end)


class KeptKernel:
    """The kernel of a region's part that runs in each call, as a kernel of the whole region.

    `whole` computes the region where nothing can be kept.
    """

    def __init__(self, goal: Graph, parts: Divided, kernel: Any, whole: Whole) -> None:
        self.inputs = tuple(port.name for port in goal.inputs)
        self.outputs = tuple(output.port.name for output in goal.outputs)
        self.kernel = kernel
        self.kept = Kept(parts.once, [port.name for port in parts.unread])
        self.reads = tuple(port.name for port in parts.run.inputs)
        self._whole = whole
        known = (*self.inputs, *self.kept.names)
        self._weights = [known.index(name) for name in self.kept.sources]  # places among the inputs
        self._read = [known.index(name) for name in self.reads]  # places among the inputs and what is kept

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Compute the region."""
        return dict(zip(self.outputs, self.in_order([tensors[name] for name in self.inputs]), strict=True))

    def refusal(self, tensors: Mapping[str, Tensor]) -> str:
        """Return why nothing can be kept of these weights; empty where it can."""
        if self.kept.of([tensors[name] for name in self.kept.sources]) is not None:
            return ""
        return self.kept.why or "what is made of the weights is not finite"

    def in_order(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the region from tensors in the order of its inputs."""
        read = self._looked_up(given)
        if read is None:
            return self._computed_whole(given)
        found: Sequence[Tensor] = self.kernel.in_order(read)
        return found

    def prepared(self, given: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Return what computes the region from tensors of these shapes, strides and dtypes."""
        read = self._looked_up(given)
        run = None if read is None else self.kernel.prepared(read)
        latest, first = self.kept.latest, self._weights[0]

        def run_with_kept(given: Sequence[Tensor]) -> Sequence[Tensor]:
            nonlocal run
            made = latest.get(id(given[first]))
            read = (None if made is None else made.quick(given)) or self._looked_up(given)
            if read is None:
                return self._computed_whole(given)
            if run is None:
                run = self.kernel.prepared(read)
            found: Sequence[Tensor] = run(read)
            return found

        return run_with_kept

    def _looked_up(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return what the kernel reads, or None where nothing is kept; look whether weights have changed."""
        weights = [given[at] for at in self._weights]
        kept = self.kept.of(weights)
        if kept is None:
            return None
        made, count = self.kept.latest.get(id(weights[0])), len(given)
        if made is not None and made.tensors is kept:
            reads = [at if at < count else kept[at - count] for at in self._read]
            made.speed_up(weights, self._weights, reads)
        known = (*given, *kept)
        return tuple(known[at] for at in self._read)

    def _computed_whole(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        known = dict(zip(self.inputs, given, strict=True))
        made = in_own_memory(self._whole(known), known)
        return [made[name] for name in self.outputs]


def keep_only(chosen: Iterable[object], kernels: Iterable[object]) -> None:
    """Let all kernels but the chosen ones give up what they keep: who still has them may never call them."""
    ids = set(map(id, chosen))
    for kernel in kernels:
        if isinstance(kernel, KeptKernel) and id(kernel) not in ids:
            kernel.kept.let_go()
