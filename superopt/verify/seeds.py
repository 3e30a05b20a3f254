"""Seeds: what random tests draw their numbers by."""

from secrets import randbits

__all__ = ["fresh_seed", "generator_seed"]


def fresh_seed() -> int:
    """Return a seed that nobody has used: a chance that was lost once is not lost for ever."""
    return randbits(32)


def generator_seed(seed: int) -> int:
    """Return a seed that the generators of PyTorch and of NumPy take, whatever whole number is given."""
    return seed % 2**63
