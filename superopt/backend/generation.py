"""Generation: how often a region that was once left for want of time was taken later.

Inductor keeps compiled graphs. One in which such a region was left must not come back once there is a
plan for it, so the number is part of the key by which Inductor keeps what the pass made.
"""

from superopt.cache import Cache, Key, Record, key_of, versions

__all__ = ["generation", "next_generation"]


def generation() -> int:
    """Return the number now."""
    record = Cache.open().get(_key())
    found = record.data.get("generation") if record else None
    return found if isinstance(found, int) else 0


def next_generation() -> None:
    """Make what Inductor keeps from now on, and what it kept so far, different things."""
    Cache.open().put(_key(), Record({"generation": generation() + 1}, "backend"))


def _key() -> Key:
    return key_of("plan", program="none", device="any", options={"backend": "generation"}, **versions())
