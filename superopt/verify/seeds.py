"""Seeds: what random tests draw their numbers by."""

from secrets import randbits

__all__ = ["fresh_seed"]


def fresh_seed() -> int:
    """Return a seed that nobody has used: a chance that was lost once is not lost for ever."""
    return randbits(32)
