"""Recipe: the decisions from which one muGraph of a graph follows, and their name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.errors import GraphError
from superopt.ir import (
    FusionChoices,
    Graph,
    MuGraph,
    Split,
    fuse,
    live_graph,
    split_axis,
    stabilize,
    uneven,
    value_names,
)
from superopt.precision import mixed_product, with_rounding

__all__ = ["Prepared", "Recipe", "followed", "prepared", "recipe_name"]

_TILE = FusionChoices().tile
_HELD = FusionChoices().held


@dataclass(frozen=True, slots=True)
class Recipe(FusionChoices):
    """The decisions that differ from the default; values are numbered as in the prepared graph."""

    splits: tuple[tuple[str, int], ...] = ()  # axes and into how many parts
    online: bool = True  # exponentials are rescaled while their maximum still grows, in one pass
    called: frozenset[int] = frozenset()  # values that a library computes
    wide: bool = False  # values between kernels of a half-precision program stay in fp32

    @property
    def changes(self) -> int:
        """The number of decisions that differ from the default."""
        flags = (
            not self.online,
            self.joined,
            self.late,
            self.repeated,
            self.wide,
            self.tile != _TILE,
            self.held != _HELD,
        )
        sets = (self.splits, self.looped, self.whole, self.cuts, self.called)
        return sum(flags) + sum(len(one) for one in sets)

    @property
    def ideas(self) -> tuple[str, ...]:
        """The kinds of decisions that it makes."""
        found = {
            "parts": bool(self.splits),
            "passes": not self.online,
            "cuts": bool(self.cuts),
            "library": bool(self.called),
            "fp32": self.wide,
        }
        return tuple(name for name, present in found.items() if present) or ("plain",)

    @property
    def kind(self) -> "Recipe":
        """The recipe without axes, values and numbers; recipes equal in it differ in where they change."""
        return replace(
            self,
            splits=(("", 0),) * len(self.splits),
            looped=frozenset({""} if self.looped else ()),
            whole=frozenset({""} if self.whole else ()),
            cuts=frozenset({-1} if self.cuts else ()),
            called=frozenset({-1} if self.called else ()),
        )

    @property
    def family(self) -> "Recipe":
        """The recipe without the numbers; recipes equal in it differ in numbers of parts only."""
        return replace(self, splits=tuple((axis, 0) for axis, _ in self.splits))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph with its axes split and its shifts chosen, ready to be fused."""

    graph: Graph
    splits: tuple[Split, ...]


def prepared(graph: Graph, splits: tuple[tuple[str, int], ...], halves: Sequence[Split] = ()) -> Prepared:
    """Return the graph with these axes in parts, and every free shift chosen, for each part separately.

    `halves` are axes that the graph has in equal parts already; from now on the parts may differ in length.
    Raises GraphError where an axis cannot be split.
    """
    made = list(halves)
    for split in halves:
        graph = uneven(graph, split)
    for axis, parts in splits:
        graph, split = split_axis(graph, axis, parts)
        made.append(split)
    graph = stabilize(graph, tuple(split.outer for split in made))
    return Prepared(live_graph(graph), tuple(made))


def followed(ready: Prepared, recipe: Recipe) -> MuGraph:
    """Return the muGraph of a recipe, or raise GraphError if the recipe is impossible."""
    mugraph = fuse(
        ready.graph,
        library=lambda graph, value: value in recipe.called,
        splits=ready.splits,
        online=recipe.online,
        choices=recipe,
    )
    rounded = with_rounding(mugraph, wide=recipe.wide)
    if recipe.wide and mixed_product(rounded):
        raise GraphError(f"graph {ready.graph.name!r}: a library would multiply fp32 by half precision")
    return rounded


def recipe_name(start: str, recipe: Recipe, graph: Graph, matmuls: frozenset[int]) -> str:
    """Return a name to read: "graph 1 + split t into 16, two passes"."""
    names = value_names(graph)
    name = start
    for axis, parts in recipe.splits:
        name += f" + split {axis} into {parts}" if parts else f" + split {axis}"
    if recipe.called and recipe.called == matmuls:
        name += " + library"
    elif recipe.called:
        name += f" + library for {_listed(names, recipe.called)}"
    if not recipe.online:
        name += ", two passes"
    if recipe.joined:
        name += ", reductions joined"
    if recipe.late:
        name += ", results late"
    if recipe.tile != _TILE:
        name += ", wide grid" if recipe.tile > _TILE else ", narrow grid"
    if recipe.wide:
        name += ", fp32 between kernels"
    if recipe.repeated:
        name += ", small sums repeated"
    if recipe.held != _HELD:
        name += ", small kernels" if recipe.held > 1 else ", single steps"
    for axis in sorted(recipe.looped):
        name += f", {axis} looped"
    for axis in sorted(recipe.whole):
        name += f", {axis} whole"
    if recipe.cuts:
        name += f", cut after {_listed(names, recipe.cuts)}"
    return name


def _listed(names: Sequence[str], values: frozenset[int]) -> str:
    return ", ".join(names[value] for value in sorted(values))
