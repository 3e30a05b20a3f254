"""Flow: a minimum cut of a graph, by Dinic's method."""

from collections import deque
from math import inf

__all__ = ["Network"]


class Network:
    """Vertices 0 to n - 1, and edges with capacities; an edge of infinite capacity is never cut."""

    def __init__(self, vertices: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(vertices)]  # of each vertex, the edges that leave it
        self.ends: list[int] = []  # edge i and its reverse, i ^ 1, lie beside each other
        self.left: list[float] = []  # of the capacity of each edge

    def add(self, start: int, end: int, capacity: float = inf) -> None:
        """Add an edge."""
        for one, other, amount in ((start, end, capacity), (end, start, 0.0)):
            self.edges[one].append(len(self.ends))
            self.ends.append(other)
            self.left.append(amount)

    def cut(self, source: int, sink: int, least: float) -> set[int] | None:
        """Return the vertices on the source's side of a minimum cut; None where every cut is infinite.

        Amounts up to `least` are taken for rounding errors.
        """
        while True:
            depths = self._depths(source, least)
            if sink not in depths:
                return set(depths)
            tried = [0] * len(self.edges)
            while (path := self._path(source, sink, depths, tried, least)) is not None:
                amount = min(self.left[edge] for edge in path)
                if amount == inf:
                    return None
                for edge in path:
                    self.left[edge] -= amount
                    self.left[edge ^ 1] += amount

    def _depths(self, source: int, least: float) -> dict[int, int]:
        """Return how many edges with capacity lead to each vertex that can be reached."""
        depths, queue = {source: 0}, deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self.edges[vertex]:
                if self.left[edge] > least and self.ends[edge] not in depths:
                    depths[self.ends[edge]] = depths[vertex] + 1
                    queue.append(self.ends[edge])
        return depths

    def _path(
        self, source: int, sink: int, depths: dict[int, int], tried: list[int], least: float
    ) -> list[int] | None:
        """Return the edges of a path that goes one step deeper with each edge."""
        path, vertex = list[int](), source
        while vertex != sink:
            edges = self.edges[vertex]
            while tried[vertex] < len(edges):
                edge = edges[tried[vertex]]
                if self.left[edge] > least and depths.get(self.ends[edge], 0) == depths[vertex] + 1:
                    break
                tried[vertex] += 1
            if tried[vertex] < len(edges):
                path.append(edge)
                vertex = self.ends[edge]
            elif not path:
                return None
            else:  # it leads nowhere
                vertex = self.ends[path.pop() ^ 1]
                tried[vertex] += 1
        return path
