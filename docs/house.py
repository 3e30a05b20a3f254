"""House: which packages import which, read from the code, as a drawing and as a table."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from superopt.report.layers import place
from superopt.report.svg import element, escape, number, text_width

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "superopt"  # rules, frontier, codegen and bench are links in it
Imports = Mapping[str, frozenset[str]]

_HIDDEN = {"superopt", "__init__", "__main__", "_version"}
_HEIGHT, _SPACE, _MARGIN = 30.0, 26.0, 14.0


def rooms() -> dict[str, list[Path]]:
    """Return the modules of each room: a package, or a module that stands alone."""
    found = {
        place.stem if place.suffix else place.name: [place] if place.suffix else sorted(place.rglob("*.py"))
        for place in sorted(PACKAGE.iterdir())
        if place.suffix == ".py" or (place / "__init__.py").exists()
    }
    return {name: files for name, files in found.items() if name not in _HIDDEN}


def purpose(name: str) -> str:
    """Return what a room owns: the first sentence of its docstring."""
    path = PACKAGE / name / "__init__.py"
    path = path if path.exists() else PACKAGE / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def imports() -> Imports:
    """Return the rooms that each room imports when it runs, at the top of a module or inside a function."""
    known = rooms()
    return {
        name: frozenset(other for path in files for other in imported(path) if other in known) - {name}
        for name, files in known.items()
    }


def imported(path: Path) -> Iterator[str]:
    """Yield the rooms that a module imports when it runs."""
    for name in _imported_names(path):
        package, _, rest = name.partition(".")
        if package == "superopt" and rest:
            yield rest.partition(".")[0]


def files(package: Path = PACKAGE) -> Imports:
    """Return the modules that each module imports when it runs, by their names, packages by their own."""
    known = {}
    for folder in [package, *(one for one in package.iterdir() if one.is_symlink())]:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(package).with_suffix("").parts
            known[".".join(("superopt", *parts)).removesuffix(".__init__")] = path
    found = {}
    for name, path in known.items():
        wanted = (one if one in known else one.rpartition(".")[0] for one in _imported_names(path))
        found[name] = frozenset(one for one in wanted if one in known) - {name}
    return found


@cache
def _imported_names(path: Path) -> list[str]:
    """Return the full names, of modules or of what stands in them, that a module imports when it runs."""
    found = []
    for node in _running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{one.name}" for one in node.names]
    return found


def _running(module: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, at any depth, but those that only type checkers read."""
    waiting: list[ast.AST] = [module]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield child
                waiting.append(child)


def shortest(known: Imports) -> dict[str, frozenset[str]]:
    """Return the imports that do not follow from others: a room imports what its imports import."""

    @cache
    def below(name: str) -> frozenset[str]:
        return known[name].union(*(below(other) for other in known[name]))

    return {
        name: frozenset(one for one in others if not any(one in below(other) for other in others))
        for name, others in known.items()
    }


def table() -> str:
    """Return the rooms as a table: what each owns, and which it imports."""
    known = imports()
    lines = ["| room | what it owns | what it imports |", "|---|---|---|"]
    for name in from_above(known):
        others = ", ".join(f"`{one}`" for one in sorted(known[name])) or "nothing"
        lines.append(f"| `{name}` | {purpose(name)} | {others} |")
    return "\n".join([*lines, ""])


def from_above(known: Imports) -> list[str]:
    """Return the rooms, each before those that it imports."""

    @cache
    def height(name: str) -> int:
        return 1 + max((height(other) for other in known[name]), default=0)

    return sorted(known, key=lambda name: (-height(name), name))


def drawing() -> str:
    """Return the rooms as boxes, and as arrows the imports that do not follow from others, as SVG."""
    drawn = shortest(imports())
    order = from_above(drawn)
    sizes = {name: (text_width(name) + _SPACE, _HEIGHT) for name in order}
    edges = [(name, other, 0) for name in order for other in sorted(drawn[name])]
    placed = place(sizes, edges)
    parts = [element("title", "the packages of superopt, and which imports which")]
    parts.append(
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0 L8 4 L0 8 z" style="fill:var(--edge)"/></marker></defs>'
    )
    for edge in edges:
        source, target, _ = edge
        points = [_middle(placed.corners[source], sizes[source], bottom=True)]
        for x, top, bottom in placed.bends.get(edge, ()):
            points += [(x, top), (x, bottom)]
        points.append(_middle(placed.corners[target], sizes[target], bottom=False))
        route = " ".join(f"{number(x + _MARGIN)},{number(y + _MARGIN)}" for x, y in points)
        parts.append(
            element("polyline", points=route, fill="none", style="stroke:var(--edge)", marker_end="url(#tip)")
        )
    for name, (x, y) in placed.corners.items():
        wide, high = sizes[name]
        box = {"x": x + _MARGIN, "y": y + _MARGIN, "width": wide, "height": high, "rx": 5.0}
        parts.append(element("rect", style="fill:var(--accent-soft);stroke:var(--accent)", **box))
        middle = {"x": x + _MARGIN + wide / 2, "y": y + _MARGIN + high / 2 + 4, "text_anchor": "middle"}
        parts.append(element("text", escape(name), font_family="monospace", font_size=12.0, **middle))
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    return element(
        "svg", "\n".join(parts), xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {number(width)} {number(height)}", role="img",
    ) + "\n"  # fmt: skip


def _middle(corner: tuple[float, float], size: tuple[float, float], *, bottom: bool) -> tuple[float, float]:
    return corner[0] + size[0] / 2, corner[1] + (size[1] if bottom else 0.0)
