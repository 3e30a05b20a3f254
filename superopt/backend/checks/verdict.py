"""Verdict: which regions a whole graph keeps, as a record of the cache, so that the next start obeys it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.backend.cache import next_epoch
from superopt.backend.decision import Decision
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.candidates.typed import typed_fields
from superopt.errors import InputError
from superopt.rivals.inductor import settings_text
from superopt.targets import Target

__all__ = ["Taken", "Verdict", "is_of_graph", "keep_verdict", "known_verdict", "plans_in", "verdict_key"]

Taken = Sequence[tuple[Region, Decision]]

_FIELDS = ("plans", "lost", "without", "joined", "raced", "failed")
_BACKEND = "whole graph 3"  # what this is a verdict of, and the version of its record


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which regions a graph lost in a race of its own, and which it was compiled without last."""

    plans: Mapping[str, str]  # by the digests of the regions' keys: the digest of each plan that raced in it
    lost: Mapping[str, str]  # why a region went, by the same digests
    without: tuple[str, ...] = ()  # the digests of the regions that won alone and were left out
    joined: tuple[str, ...] = ()  # the digests of the regions that did not win alone, but that help the graph
    raced: bool = False
    failed: str = ""  # why the graph cannot be raced, if so

    @property
    def changes(self) -> tuple[frozenset[str], frozenset[str]]:
        """What the graph has otherwise than the decisions on its regions say: what goes and what joins."""
        return frozenset(self.without), frozenset(self.joined)

    def covers(self, taken: Taken) -> bool:
        """Whether all these plans were in the graph that was raced."""
        return self.raced and all(self.plans.get(digest) == plan for digest, plan in plans_in(taken).items())

    def lost_of(self, taken: Taken) -> dict[str, str]:
        """Return which of these plans lost in an earlier race, perhaps beside others, and why."""
        same = self._same(taken)
        return {digest: why for digest, why in self.lost.items() if digest in same}

    def new_in(self, taken: Taken) -> Taken:
        """Return which of these regions had no such plan when the graph raced."""
        same = self._same(taken)
        return [one for one in taken if one[0].key.digest not in same]

    def joined_of(self, taken: Taken) -> set[str]:
        """Return which of these plans made the graph faster in an earlier race, but did not win alone."""
        return self._same(taken) & set(self.joined)

    def _same(self, taken: Taken) -> set[str]:
        """Return the regions that have the plans with which they raced."""
        return {digest for digest, plan in plans_in(taken).items() if plan == self.plans.get(digest)}


def plans_in(taken: Taken) -> dict[str, str]:
    """Return the digests of the plans of regions, by the digests of their keys.

    A plan that has won alone by now is another one: it stays where the graph is no slower with it.
    """
    return {
        region.key.digest: hashlib.sha256(f"{decision.taken} {decision.plan}".encode()).hexdigest()
        for region, decision in taken
    }


def verdict_key(digest: str, target: Target, options: BackendOptions) -> Key:
    """Return the key of the verdict on a graph: also the machine, and what decides which plans it has."""
    told = {
        "backend": _BACKEND,
        "graph": digest,
        "preset": options.preset,
        "verify": options.verify,
        "weights": options.weights,
        "inductor": settings_text(options.inductor),
    }
    parts = {**versions(), **target.key_parts()}
    return key_of("plan", program="none", options=told, **parts)


def is_of_graph(key: Key) -> bool:
    """Whether a key is that of a verdict, and not of a region."""
    options = key.parts["options"]
    return isinstance(options, dict) and options.get("backend") == _BACKEND


def known_verdict(cache: Cache, key: Key) -> Verdict | None:
    """Return the verdict of a key, or None where there is none, or a damaged one."""
    record = cache.get(key)
    try:
        found = Verdict(**typed_fields(Verdict, record.data, _FIELDS)) if record is not None else None
    except InputError:
        return None
    if found is None or not all(
        isinstance(one, str)
        for one in (*found.plans.values(), *found.lost.values(), *found.without, *found.joined)
    ):
        return None
    return replace(found, without=tuple(found.without), joined=tuple(found.joined))


def keep_verdict(key: Key, found: Verdict, *, late: bool = False) -> None:
    """Keep a verdict; where other regions stay than before, no graph that Inductor has kept may come back.

    It is `late` where the graph was compiled before, perhaps without any verdict.
    """
    with Cache.open() as cache:
        before = known_verdict(cache, key)
        if found == before:
            return
        cache.put(key, Record({name: getattr(found, name) for name in _FIELDS}, "whole graph"))
    before = before or (Verdict({}, {}) if late else None)
    if before is not None and before.changes != found.changes:
        next_epoch()
