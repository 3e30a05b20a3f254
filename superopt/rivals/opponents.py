"""Opponents: the rivals of one region, on copies of its inputs, and their times."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from superopt.rivals.rivals import EAGER, LIBRARY_CALLS, Function, Rival
from superopt.rivals.wide.choice import widened
from superopt.targets import Target
from superopt.tune import confirm, measure_together
from superopt.tune.measure import HeadToHead, shortest_call_us

__all__ = ["Opponents"]

_LONG_US = 2000.0  # the shorter of a few calls is enough to time a function slower than this
_LONG_CALLS = 2
_SHORT_S = 0.05


class Opponents:
    """What there is to beat in a region: at most PyTorch without a compiler, at least its library calls.

    `eager` is the region as eager PyTorch has it, with composite operators in one piece. All compute calls in
    half precision in float32 where that is faster.
    `options` are Inductor's. With any, its code may do without the library calls, which then are no bound.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        draw: Callable[[], Sequence[tuple[Tensor, ...]]],
        target: Target,
        options: Mapping[str, Any],
        *,
        eager: fx.GraphModule | None = None,
    ) -> None:
        self._draw = draw
        self._target = target
        self._options = options
        self._copies: Sequence[tuple[Tensor, ...]] = ()
        self.module = widened(module, self.copies[0], options)
        self._eager = self.module if eager is None else widened(eager, self.copies[0], options)
        self._made: dict[str, Function] = {}
        self.making_s: dict[str, float] = {}  # the seconds in which each rival was made
        self.has_library = not options and bool(self.contender(LIBRARY_CALLS))
        self.most_us = self._us(EAGER)  # the time of PyTorch without a compiler
        self.least_us = self._us(LIBRARY_CALLS) if self.has_library else 0.0

    @property
    def copies(self) -> Sequence[tuple[Tensor, ...]]:
        """Inputs of the region, several times over, enough that no cache holds all."""
        if not self._copies:
            self._copies = self._draw()
        return self._copies

    def give_up_copies(self) -> None:
        """Let go of the memory; what asks for copies later draws them anew."""
        self._copies = ()
        self._made.pop(LIBRARY_CALLS.name, None)  # it holds on to the tensors

    def has_made(self, rival: Rival) -> bool:
        """Whether a rival is ready to race."""
        return rival.name in self._made

    def contender(self, rival: Rival) -> Function:
        """Return a rival as a function of the region's inputs, made the first time."""
        if rival.name not in self._made:
            module = self._eager if rival is EAGER else self.module
            copies, start = self.copies, time.monotonic()
            self._made[rival.name] = rival.make(module, copies, self._options)
            self.making_s[rival.name] = time.monotonic() - start
        return self._made[rival.name]

    def against(
        self,
        ours: Function,
        rival: Rival,
        *,
        seconds: float,
        most_seconds: float = 0.0,
        level: float | None = None,
    ) -> HeadToHead:
        """Race a function, as "superopt", against a rival, as "inductor", until a level is decided."""
        contenders = {"superopt": ours, "inductor": self.contender(rival)}
        return confirm(
            contenders,
            "superopt",
            "inductor",
            self.copies,
            seconds=seconds,
            most_seconds=most_seconds,
            level=level,
            times=self._target.times,
        )

    def _us(self, rival: Rival) -> float:
        """Return the time of a rival: the shorter of two calls, or the median of several short ones."""
        function, target = self.contender(rival), self._target
        with torch.no_grad():
            long_us = shortest_call_us(function, self.copies[-1], _LONG_CALLS, target.synchronize)
        if long_us > _LONG_US:
            return long_us
        found = measure_together({"it": function}, self.copies, seconds=_SHORT_S, times=target.times)
        return found["it"].median_us
