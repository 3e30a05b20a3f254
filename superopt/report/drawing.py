"""Drawing: a graph, or a muGraph as kernels with their loops as nested boxes, as SVG.

What reads no tensor (constants, extents, masks of indices) is written in the steps that use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from superopt.dtypes import DTYPES
from superopt.ir import (
    REDUCTIONS,
    Graph,
    MuGraph,
)
from superopt.ir.graph import Step
from superopt.ir.mugraph import Block, Loop, Tile, walk
from superopt.report.layers import Edge, place
from superopt.report.svg import bytes_text, element, escape, number, text_width
from superopt.report.values import Values, short

__all__ = ["draw_graph", "draw_mugraph"]

_LINE = 16.0
_PADDING = 14.0
_MARGIN = 12.0


@dataclass(frozen=True, slots=True)
class _Node:
    """A box with lines of text, which makes at most one value."""

    lines: tuple[str, ...]
    kind: str
    tip: str
    needs: tuple[int, ...]
    makes: tuple[int, ...]

    @property
    def size(self) -> tuple[float, float]:
        return max(map(text_width, self.lines)) + 2 * _PADDING, _LINE * len(self.lines) + 12


@dataclass(frozen=True, slots=True)
class _Box:
    """A box around others: a kernel or a loop."""

    title: str
    kind: str
    tip: str
    items: tuple["_Node | _Box", ...]

    @property
    def makes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(value for item in self.items for value in item.makes))

    @property
    def needs(self) -> tuple[int, ...]:
        made: set[int] = set()
        found: dict[int, None] = {}
        for item in self.items:
            found |= dict.fromkeys(value for value in item.needs if value not in made)
            made |= set(item.makes)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Path:
    """A line along which a value travels; one that ends at a node has the head of an arrow."""

    value: int
    points: tuple[tuple[float, float], ...]
    arrives: bool = False


@dataclass(slots=True)
class _Laid:
    """A drawn part: markup relative to its corner, and where values come in at the top and go out below."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[tuple[float, float, float, float, _Box]] = field(default_factory=list)
    nodes: list[tuple[float, float, _Node]] = field(default_factory=list)
    paths: list["_Path"] = field(default_factory=list)
    entries: dict[int, float] = field(default_factory=dict)
    exits: dict[int, float] = field(default_factory=dict)

    def add(self, part: "_Laid", x: float, y: float) -> None:
        """Take over a part at a place."""
        self.boxes += [(x + left, y + top, w, h, box) for left, top, w, h, box in part.boxes]
        self.nodes += [(x + left, y + top, node) for left, top, node in part.nodes]
        self.paths += [
            replace(one, points=tuple((x + a, y + b) for a, b in one.points)) for one in part.paths
        ]


def draw_graph(graph: Graph, title: str) -> str:
    """Return a graph as SVG, its operators as boxes."""
    values = Values(graph)
    items: list[_Node | _Box] = _inputs(values)
    for value, step in graph.numbered:
        if not values.tensorless[value]:
            items.append(_step(values, value, step))
    return _svg(_lay([*items, *_outputs(values)], ()), title)


def draw_mugraph(mugraph: MuGraph, title: str, labels: Sequence[str] = ()) -> str:
    """Return a muGraph as SVG: a box for each kernel, nested ones for its loops; labels stand at kernels."""
    values = Values(mugraph.graph)
    items: list[_Node | _Box] = _inputs(values)
    for number_, kernel in enumerate(mugraph.kernels):
        is_block = isinstance(kernel, Block)
        head = f"kernel {number_}"
        if isinstance(kernel, Block):
            head += f" · grid[{', '.join(kernel.grid)}]" if kernel.grid else " · one program"
        else:
            head += " · library call"
        if number_ < len(labels) and labels[number_]:
            head += f" · {labels[number_]}"
        loads = ", ".join(values.names[i] for i in mugraph.loads(kernel))
        stores = ", ".join(values.names[i] for i in mugraph.stores(kernel))
        tip = f"{head}\nreads {loads or 'nothing'}\nwrites {stores or 'nothing'}"
        body = tuple(_item(values, one, ()) for one in kernel.body if not _is_tensorless(values, one))
        if not body:
            body = (_step_of_tensorless(values, [tile.value for tile, _ in walk(kernel)]),)
        items.append(_Box(head, "kernel" if is_block else "call", tip, body))
    return _svg(_lay([*items, *_outputs(values)], ()), title)


def _inputs(values: Values) -> list[_Node | _Box]:
    nodes: list[_Node | _Box] = []
    used = {i for step in values.graph.steps for i in step.inputs}
    used |= {output.value for output in values.graph.outputs}
    for value, port in enumerate(values.graph.inputs):
        if value in used:
            lines = (short(port.name), f"{port.dtype} {_axes_text(values, value)}")
            nodes.append(_Node(lines, "input", values.tip(value), (), (value,)))
    return nodes


def _outputs(values: Values) -> list[_Node | _Box]:
    nodes: list[_Node | _Box] = []
    for output in values.graph.outputs:
        shape = " × ".join(map(str, values.graph.shape(output.port)))
        size = prod(values.graph.shape(output.port)) * DTYPES[output.port.dtype].bytes
        tip = f"{output.port.name}\n{shape or 'one number'}\n{output.port.dtype}, {bytes_text(size)}"
        lines = (short(output.port.name), f"{output.port.dtype} [{short(', '.join(output.port.axes))}]")
        nodes.append(_Node(lines, "output", tip, (output.value,), ()))
    return nodes


def _step(values: Values, value: int, step: Step, sign: str = "=") -> _Node:
    lines = (values.label(value, sign), _axes_text(values, value))
    return _Node(lines, values.kind(value), values.tip(value), tuple(values.open_inputs(step)), (value,))


def _step_of_tensorless(values: Values, made: Sequence[int]) -> _Node:
    lines = (values.label(made[-1]), _axes_text(values, made[-1]))
    return _Node(lines, "scalar", values.tip(made[-1]), (), (made[-1],))


def _is_tensorless(values: Values, item: Tile | Loop) -> bool:
    if isinstance(item, Tile):
        return values.tensorless[item.value]
    return all(_is_tensorless(values, one) for one in item.body)


def _item(values: Values, item: Tile | Loop, loops: tuple[str, ...]) -> _Node | _Box:
    if isinstance(item, Loop):
        around = (*loops, item.axis)
        body = tuple(_item(values, one, around) for one in item.body if not _is_tensorless(values, one))
        running = ", ".join(values.names[value] for value in item.running)
        size = values.graph.sizes[item.axis]
        title = f"loop {item.axis}" + (f" · running {running}" if running else "")
        return _Box(title, "loop", f"walks along {item.axis}={size}, tile by tile", body)
    step = values.graph.step_at(item.value)
    grows = step.op in REDUCTIONS and set(step.axes) & set(loops)
    sign = ("max=" if step.op == "max" else "+=") if grows else "="
    return _step(values, item.value, step, ("again " if item.recomputed else "") + sign)


def _axes_text(values: Values, value: int) -> str:
    return short(f"[{', '.join(values.ordered(value))}]")


def _lay(items: Sequence[_Node | _Box], leaving: Iterable[int]) -> _Laid:
    """Return items in layers; what they need and do not make enters at the top, `leaving` goes out below."""
    parts: list[_Laid | None] = [
        _boxed(item, _wanted(items, at, leaving)) if isinstance(item, _Box) else None
        for at, item in enumerate(items)
    ]
    sizes: dict[object, tuple[float, float]] = {}
    edges: list[Edge] = []
    maker: dict[int, object] = {}
    made_anywhere: set[int] = set()
    entering: dict[int, None] = {}
    for item in items:
        entering |= dict.fromkeys(value for value in item.needs if value not in made_anywhere)
        made_anywhere |= set(item.makes)
    for value in entering:
        sizes["entry", value] = (8.0, 0.0)
        maker[value] = ("entry", value)
    for at, item in enumerate(items):
        part = parts[at]
        sizes["item", at] = (part.width, part.height) if part else item.size  # type: ignore[union-attr]
        for value in item.needs:
            if value in maker:
                edges.append((maker[value], ("item", at), value))
        maker |= dict.fromkeys(item.makes, ("item", at))
    out = [value for value in dict.fromkeys(leaving) if value in made_anywhere]
    for value in out:
        sizes["exit", value] = (8.0, 0.0)
        edges.append((maker[value], ("exit", value), value))
    first = frozenset(("entry", value) for value in entering)
    last = frozenset(("exit", value) for value in out)
    starts: dict[Edge, float] = {}
    reaches: dict[Edge, float] = {}
    for edge in edges:
        for key, side, into in ((edge[0], "exits", starts), (edge[1], "entries", reaches)):
            offset = _offset(key, edge[2], parts, side)
            if offset is not None:
                into[edge] = offset - sizes[key][0] / 2
    placed = place(sizes, edges, first=first, last=last, starts=starts, ends=reaches)
    laid = _Laid(placed.width, placed.height)
    for at, item in enumerate(items):
        x, y = placed.corners["item", at]
        part = parts[at]
        if part is None:
            assert isinstance(item, _Node)
            laid.nodes.append((x, y, item))
        else:
            laid.add(part, x, y)
    ends = _ends(edges, parts, placed.corners, placed.bends, sizes)
    for edge in edges:
        source, target, value = edge
        x, y = placed.corners[source]
        width, height = sizes[source]
        start = _offset(source, value, parts, "exits")
        x += width / 2 if start is None else start
        points = [(x, y + height), (x, placed.rows[source][1])]
        for center, top, bottom in placed.bends[edge]:
            points += [(center, top), (center, bottom)]
        end, top = ends[edge]
        points += [(end, placed.rows[target][0]), (end, top)]
        arrives = target[0] == "item" and parts[target[1]] is None  # type: ignore[index]
        laid.paths.append(_Path(value, tuple(points), arrives))
    laid.entries = {value: placed.corners["entry", value][0] + 4 for value in entering}
    laid.exits = {value: placed.corners["exit", value][0] + 4 for value in out}
    return laid


def _wanted(items: Sequence[_Node | _Box], at: int, leaving: Iterable[int]) -> list[int]:
    """Return the values of one item that later ones read, or that leave."""
    later = {value for item in items[at + 1 :] for value in item.needs} | set(leaving)
    return [value for value in items[at].makes if value in later]


def _offset(key: object, value: int, parts: Sequence[_Laid | None], side: str) -> float | None:
    """Return where a value goes through the border of a box, if this is one."""
    if isinstance(key, tuple) and key[0] == "item":
        part = parts[key[1]]
        if part is not None:
            found: Mapping[int, float] = getattr(part, side)
            return found.get(value)
    return None


def _ends(
    edges: Sequence[Edge],
    parts: Sequence[_Laid | None],
    corners: Mapping[object, tuple[float, float]],
    bends: Mapping[Edge, list[tuple[float, float, float]]],
    sizes: Mapping[object, tuple[float, float]],
) -> dict[Edge, tuple[float, float]]:
    """Return where edges end: at a box's own entry, spread along the top of a node in their order."""
    into: dict[object, list[Edge]] = {}
    for edge in edges:
        into.setdefault(edge[1], []).append(edge)
    ends: dict[Edge, tuple[float, float]] = {}
    for target, arriving in into.items():
        x, y = corners[target]

        def before(edge: Edge) -> float:
            bend = bends[edge]
            return bend[-1][0] if bend else corners[edge[0]][0] + sizes[edge[0]][0] / 2

        for at, edge in enumerate(sorted(arriving, key=before), 1):
            inside = _offset(target, edge[2], parts, "entries")
            share = sizes[target][0] * at / (len(arriving) + 1)
            ends[edge] = (x + (share if inside is None else inside), y)
    return ends


def _boxed(box: _Box, leaving: Sequence[int]) -> _Laid:
    """Return a box around its items, with its title."""
    inner = _lay(box.items, leaving)
    head = _LINE + 10
    width = max(inner.width, text_width(box.title)) + 2 * _MARGIN
    left = (width - inner.width) / 2
    top = head + (4 if inner.entries else _MARGIN)
    height = top + inner.height + (4 if inner.exits else _MARGIN)
    laid = _Laid(width, height, [(0.0, 0.0, width, height, box)])
    laid.add(inner, left, top)
    laid.entries = {value: left + x for value, x in inner.entries.items()}
    laid.exits = {value: left + x for value, x in inner.exits.items()}
    laid.paths += [_Path(value, ((x, 0.0), (x, top))) for value, x in laid.entries.items()]
    laid.paths += [_Path(value, ((x, height - 4), (x, height))) for value, x in laid.exits.items()]
    return laid


def _svg(laid: _Laid, title: str) -> str:
    margin = 10.0
    parts = [element("title", escape(title))]
    for x, y, width, height, box in laid.boxes:
        rect = element(
            "rect", element("title", escape(box.tip)), x=x, y=y, width=width, height=height, rx=8,
            class_=f"box {box.kind}",
        )  # fmt: skip
        parts.append(rect)
    for one in laid.paths:
        parts.append(element("path", d=_curve(one.points), class_=f"edge v{one.value}"))
        if one.arrives:
            x, y = one.points[-1]
            head = f"M{number(x - 3.5)} {number(y - 6)}l3.5 6l3.5 -6"
            parts.append(element("path", d=head, class_=f"edge v{one.value}"))
    for x, y, _, _, box in laid.boxes:
        parts.append(element("text", escape(box.title), x=x + 12, y=y + 18, class_=f"title in-{box.kind}"))
    for x, y, node in laid.nodes:
        width, height = node.size
        value = (node.makes or node.needs or (-1,))[0]
        content = [element("title", escape(node.tip))]
        content.append(element("rect", x=x, y=y, width=width, height=height, rx=6))
        for at, line in enumerate(node.lines):
            content.append(
                element(
                    "text",
                    escape(line),
                    x=x + width / 2,
                    y=y + 18 + _LINE * at,
                    text_anchor="middle",
                    class_="dim" if at else None,
                )
            )
        parts.append(element("g", "".join(content), class_=f"node {node.kind}", data_value=value))
    width, height = laid.width + 2 * margin, laid.height + 2 * margin
    body = element("g", "".join(parts), transform=f"translate({number(margin)},{number(margin)})")
    return element(
        "svg", body, xmlns="http://www.w3.org/2000/svg", width=width, height=height, class_="graph",
        viewBox=f"0 0 {number(width)} {number(height)}", role="img",
    )  # fmt: skip


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return a way through points that leaves and reaches each of them vertically."""
    (x, y), *rest = points
    text = f"M{number(x)} {number(y)}"
    for a, b in rest:
        half = (y + b) / 2
        if abs(a - x) < 0.05 and abs(b - y) < 0.05:
            continue
        straight = abs(a - x) < 0.05
        curve = f"C{number(x)} {number(half)} {number(a)} {number(half)} {number(a)} {number(b)}"
        text += f"L{number(a)} {number(b)}" if straight else curve
        x, y = a, b
    return text
