"""Live: the program's side of background tuning: it starts the helper, and takes up what was found.

A compiled graph some of whose regions wait is wrapped. A thread looks now and then at what the cache has
of these regions. Once there are better kernels, the wrapper makes dynamo forget the compiled code as one
call ends. So the next call compiles it again, as the next start of the program would: every plan is
proven, every guard made anew. Nothing changes within a call, which keeps the code that it runs.
"""

import atexit
import contextlib
import functools
import inspect
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch._guards import CompileContext

from superopt.backend.cache import epoch, recorded
from superopt.backend.checks.verdict import is_of_graph, known_verdict
from superopt.backend.decision import Ledger
from superopt.backend.deferred.helper import COMMAND
from superopt.backend.deferred.lock import tuning
from superopt.backend.deferred.mode import stays_as_it_is
from superopt.backend.deferred.queue import pending_key
from superopt.cache import Cache, Key
from superopt.errors import kind_and_line

__all__ = ["Place", "Waiting", "end_helper", "helper_at_work", "place_of_compilation", "with_take_up"]

log = logging.getLogger("superopt")

_LOOK_S = 3.0  # seconds between looks at whether anything was found at all
_WHOLE_LOOK_S = 30.0  # seconds between looks at every region
_GRACE_S = 5.0  # no helper starts in these seconds after a compilation: the program may end soon
_AGAIN_S = 30.0  # seconds from the end of one helper to the start of the next; they double each time
_MOST_HELPERS = 12  # helpers that one program starts
_PATIENCE_S = 120.0  # once some regions have better kernels, the others of the graph are waited for so long
_MOST_REGIONS = 500  # regions that a helper is told of
_SPARE = 2  # compilations of a function, below PyTorch's limit, that are left to the user


@dataclass(frozen=True, slots=True)
class Place:
    """Where dynamo keeps what it compiles now: the code that was compiled, and the compilation's number."""

    code: weakref.ref[CodeType]  # a weak reference, since the code may hold on to this object
    compilation: Any


def place_of_compilation() -> Place | None:
    """Return the place of the compilation under way, or None where this version of PyTorch does not tell."""
    number = CompileContext.current_compile_id()
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_code.co_filename.endswith("convert_frame.py"):
            code = frame.f_locals.get("code")
            if not isinstance(code, CodeType) or number is None:
                return None
            return Place(weakref.ref(code), number)
        frame = frame.f_back
    return None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Waiting:
    """A compiled graph of which something waits: the keys, and what they stood for as it was compiled."""

    place: Place
    ledger: Ledger
    keys: dict[str, Key] = field(default_factory=dict)
    plans: dict[str, str | None] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    stale: bool = False
    settled: bool = False  # whether no better kernels can come any more

    def add(self, keys: Mapping[str, Key]) -> None:
        """Wait for regions, of the graph or of that of its gradients, and see that somebody works on them."""
        if not keys:
            return
        with Cache.open() as cache:
            if cache.read_only:  # a helper could not keep what it finds
                return
            for digest, key in keys.items():
                self.plans[digest] = _standing(cache, key)
                self.keys[digest] = key
        self.settled = False
        _WATCH.add(self)

    def look(self, cache: Cache) -> None:
        """Note whether there is anything better, all that is to come or some of it for a while."""
        better, left = False, 0
        for digest, key in list(self.keys.items()):
            left += cache.get(pending_key(key)) is not None
            found = _standing(cache, key)
            if found is not None and found != self.plans[digest]:
                better = True
        if better and (not left or time.monotonic() - self.since > _PATIENCE_S):
            self.stale = True
        self.settled = self.stale or not (left or better)

    def take_up(self) -> None:
        """Make dynamo compile the graph again at the next call, unless the program must stay as it is.

        What a stance of the program's forbids waits until that has ended.
        """
        try:
            if _is_forbidden():
                return
            self.stale = False
            if stays_as_it_is() or not _forgotten(self.place):
                return
        except Exception as error:  # another version of PyTorch, perhaps: the next start has the kernels
            self.stale = False
            log.warning("better kernels will be used from the next start on: %s", kind_and_line(error))
            return
        for digest in self.keys:
            self.ledger.known.pop(digest, None)
        log.info("better kernels were found: the next call compiles the graph with them")


def _standing(cache: Cache, key: Key) -> str | None:
    """Return what was found so far: the plan of a region that is taken, or what leaves or joins a graph."""
    if is_of_graph(key):
        verdict = known_verdict(cache, key)
        goes, joins = verdict.changes if verdict is not None else ((), ())
        return " ".join([*sorted(f"-{one}" for one in goes), *sorted(f"+{one}" for one in joins)])
    data = recorded(cache, key)
    return str(data["plan"]) if data is not None and data["taken"] else None


def with_take_up(compiled: Callable[..., Any], waiting: Waiting) -> Callable[..., Any]:
    """Return a compiled graph that takes up, as a call ends, what was found for its regions."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        made = compiled(*args)
        if waiting.stale:
            waiting.take_up()
        return made

    return call


def _is_forbidden() -> bool:
    """Whether a stance of the program's forbids now to compile again, or to do so by us."""
    from torch._dynamo import eval_frame

    stance = eval_frame._stance
    return stance.stance != "default" or stance.backend is not None or stance.skip_guard_eval_unsafe


def _forgotten(place: Place) -> bool:
    """Make dynamo forget one compilation, as it does when an object of its guards is gone.

    It is left alone where another compilation would be refused, or would not be made by us.
    """
    from torch._dynamo import config, eval_frame
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    code = place.code()
    entries = [] if code is None else eval_frame._debug_get_cache_entry_list(code)
    most = min(config.recompile_limit, config.accumulated_recompile_limit)
    if config.error_on_recompile or len(entries) + _SPARE >= most:
        return False
    for entry in entries:
        if entry.compile_id == place.compilation:
            state: Any = entry.guard_manager.extra_state
            state.invalidate(entry, DeletedGuardManagerWrapper("superopt has better kernels"))
            return True
    return False


# -- the thread that looks, and the helper


class _Watch:
    """Looks after the graphs of this process that wait, and sees that somebody works for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: weakref.WeakSet[Waiting] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._helpers = 0
        self._start_at = 0.0
        self._again_s = _AGAIN_S
        self._process = os.getpid()

    def add(self, graph: Waiting) -> None:
        """Look after a graph as long as it lives."""
        with self._lock:
            self._graphs.add(graph)
            self._start_at = max(self._start_at, time.monotonic() + _GRACE_S)
            self._again_s = _AGAIN_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="superopt tune", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        seen, whole_at = epoch(), 0.0
        try:
            while graphs := self._left():
                time.sleep(_LOOK_S)
                if (now := epoch()) != seen or time.monotonic() > whole_at:
                    seen, whole_at = now, time.monotonic() + _WHOLE_LOOK_S
                    _look_at(graphs)
                self._help([one for one in graphs if not one.settled])
                graphs.clear()  # this thread must not keep a graph alive that the program has dropped
        except Exception as error:  # no fault here may stop the program
            log.warning("no better kernels will be used in this run: %s", kind_and_line(error))

    def _left(self) -> list[Waiting]:
        """Return the graphs that wait; where there are none, the thread ends, and another one may begin."""
        with self._lock:
            found = [one for one in self._graphs if not one.settled]
            if not found:
                self._thread = None
            return found

    def _help(self, graphs: Sequence[Waiting]) -> None:
        """Start a helper if regions wait and no other process works on the queue."""
        now = time.monotonic()
        if self._helper is not None and self._helper.poll() is not None:
            self._end_helper()
            self._start_at, self._again_s = now + self._again_s, 2 * self._again_s
        if not graphs or self._helper is not None or now < self._start_at or stays_as_it_is():
            return
        with tuning() as free:
            pass
        if not free or self._helpers >= _MOST_HELPERS or not sys.executable:
            self._start_at = now + _AGAIN_S
            return
        wanted = {pending_key(key).digest for graph in graphs for key in list(graph.keys.values())}
        self._helpers += 1
        null = subprocess.DEVNULL
        self._helper = subprocess.Popen(
            [*COMMAND, str(os.getpid()), *sorted(wanted)[:_MOST_REGIONS]],
            stdin=subprocess.PIPE,
            stdout=null,
            stderr=null,
            start_new_session=True,  # Ctrl-C is for the program
        )

    @property
    def helper(self) -> int | None:
        """The number of the helper's process while it works."""
        return self._helper.pid if self._helper is not None and self._helper.poll() is None else None

    def close(self) -> None:
        """End the helper, which does so by itself, in good order, as its pipe closes."""
        if self._process == os.getpid():
            self._end_helper()

    def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        assert helper.stdin is not None
        with contextlib.suppress(OSError):
            helper.stdin.close()
        if helper.poll() is None:
            helper.returncode = 0  # the helper ends by itself; waiting for it would delay the program's end


def _look_at(graphs: Sequence[Waiting]) -> None:
    with Cache.open() as cache:
        for graph in graphs:
            graph.look(cache)


_WATCH = _Watch()
atexit.register(_WATCH.close)


def helper_at_work() -> int | None:
    """Return the number of the process that tunes for this program, or None where there is none now."""
    return _WATCH.helper


def end_helper() -> None:
    """End the process that tunes for this program, as the end of the program would."""
    _WATCH.close()


def _forget_in_child() -> None:
    global _WATCH
    _WATCH = _Watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
