"""Narrow: a slice of what is made of windows is made of fewer windows, which read at other places."""

from dataclasses import dataclass, field, replace

from superopt.ops import OPS
from superopt.trace.builder import Builder, Node, Window

__all__ = ["narrowed"]

_DEEPEST = 60  # steps between a slice and the windows that it narrows


def narrowed(b: Builder, value: int, axis: int, made: int, step: int, start: int) -> int | None:
    """Return a value along another axis, at step times its position and start, or None.

    There is one where windows make all that has the axis.
    """
    return _Narrowing(b, axis, made, step, start).of(value, 0)


@dataclass(slots=True)
class _Narrowing:
    """One slice, and what is known of the values on the way to windows."""

    b: Builder
    axis: int
    made: int
    step: int
    start: int
    known: dict[int, int | None] = field(default_factory=dict)

    def of(self, value: int, depth: int) -> int | None:
        """Return a value narrowed, or None."""
        if value not in self.known:
            self.known[value] = self._found(value, depth) if depth < _DEEPEST else None
        return self.known[value]

    def _found(self, value: int, depth: int) -> int | None:
        b, node = self.b, self.b.nodes[value]
        if self.axis not in b.covers(value):
            return value
        if node.tensorless:
            place = b.apply("mul", b.index((self.made,)), b.const(self.step))
            return b.substitute(value, {self.axis: b.apply("add", place, b.const(self.start))})
        if node.op == "window":
            return self._window(node)
        if node.op not in OPS and node.op not in ("contract", "sum"):
            return None
        inputs: list[int] = []
        for operand in node.inputs:
            found = self.of(operand, depth + 1)
            if found is None:
                return None
            inputs.append(found)
        if node.op == "contract":
            return b.contract(inputs[0], inputs[1], node.axes)
        return b.reduce("sum", inputs[0], node.axes) if node.op == "sum" else b.apply(node.op, *inputs)

    def _window(self, node: Node) -> int | None:
        windows: list[Window] = []
        for one in node.places:
            factors = dict(one.terms)
            factor = factors.pop(self.axis, 0)  # 0 too where the axis is a part of one that was split
            if factor:
                terms = ((self.made, factor * self.step), *factors.items())
                one = Window(one.read, terms, one.offset + factor * self.start)
            windows.append(one)
        if tuple(windows) == node.places:
            return None
        covers = tuple(self.made if one == self.axis else one for one in self.b.axes.leaves(node.covers))
        return self.b.add_window(replace(node, places=tuple(windows), covers=covers))
