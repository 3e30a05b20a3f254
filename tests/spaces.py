"""Spaces that the tests of the engine explore."""

from dataclasses import dataclass, field

import numpy as np

from superopt.bench.programs import Programs
from superopt.frontier.engine import Exploration, Keys, Rows


def poor_keys(nodes: Rows) -> Keys:
    """Keys that differ in few bits, and mostly in the second word."""
    return np.stack((nodes // 7, nodes % 7), axis=1).astype(np.uint64)


@dataclass
class Walks:
    """A directed graph; a row is (node, where from, noise), the node is the identity."""

    edges: tuple[tuple[int, int], ...]
    starts: tuple[int, ...] = (0,)
    width: int = 3
    shared: bool = False
    name: str = "walks"
    dropped: int = 0

    def fingerprint(self):
        return f"walks {self.edges} {self.starts}"

    def roots(self):
        return np.array([(start, -1, 0) for start in self.starts], dtype=np.int64).reshape(-1, 3)

    def expand(self, rows):
        made = [
            (after, before, noise - after)
            for before, _, noise in rows.tolist()
            for source, after in self.edges
            if source == before
        ]
        self.dropped += len(rows)
        return np.array(made + made, dtype=np.int64).reshape(-1, 3)

    def keys(self, rows):
        return poor_keys(rows[:, 0])

    def absorb(self, rows, keys):
        raise AssertionError("this space is not shared")

    def counts(self):
        return {"dropped": self.dropped}


@dataclass
class Products:
    """Shared: every new number meets every number known so far, a * b + a modulo a prime."""

    modulus: int = 1009
    start: tuple[int, ...] = (2, 3)
    width: int = 4
    shared: bool = True
    name: str = "products"
    known: list[int] = field(default_factory=list)

    def fingerprint(self):
        return f"products {self.modulus} {self.start}"

    def roots(self):
        return np.array([(value, 0, 0, 0) for value in self.start], dtype=np.int64)

    def expand(self, rows):
        known = np.array(self.known[:40], dtype=np.int64)
        left = rows[:, 0].repeat(len(known))
        right = np.tile(known, len(rows))
        order = len(self.known) * np.ones_like(left)
        return np.stack(((left * right + left) % self.modulus, left, right, order), axis=1)

    def keys(self, rows):
        return poor_keys(rows[:, 0])

    def absorb(self, rows, keys):
        assert (keys == poor_keys(rows[:, 0])).all()
        self.known += rows[:, 0].tolist()

    def counts(self):
        return {}


def ring(size: int) -> Walks:
    steps = [(node, (node * 2 + 1) % size) for node in range(size)]
    steps += [(node, (node * 2 + 2) % size) for node in range(size)]
    return Walks(edges=tuple(steps))


def as_bytes(found: Exploration) -> tuple[bytes, ...]:
    return tuple(
        array.tobytes() for array in (found.rows, found.keys, found.level_of, found.arcs, found.arc_targets)
    )


SPACES = {
    "walks": lambda: ring(300),
    "products": Products,
    "programs": lambda: Programs(variables=2, nodes=3, points=2),
}
