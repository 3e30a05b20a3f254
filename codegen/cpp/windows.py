"""Windows: how a nest reads a tensor at places that may lie outside it."""

from collections.abc import Collection

from superopt.codegen.cpp.plan import VIEWS
from superopt.codegen.cpp.source import Guard, Place
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.errors import UnsupportedError
from superopt.ir import Graph

__all__ = ["all_inside", "read_number", "read_vector", "reads_window"]


def reads_window(graph: Graph, value: int) -> bool:
    """Return whether a value is a window, or a view of one."""
    step = graph.step_of(value)
    while step is not None and step.op in VIEWS:
        if step.op == "window":
            return True
        step = graph.step_of(step.inputs[0])
    return False


def read_number(tiles: Tiles, place: Place, at: str) -> str:
    """Return what is read at one position: 0 where the place lies outside."""
    there = _inside(tiles, place.guards)
    pointer, _, rest = at.partition(" + ")
    return f"read_inside({at}, {there})" if there else f"read({pointer}[{rest or 0}])"


def read_vector(tiles: Tiles, place: Place, at: str, vector: str, whole: str | None) -> str:
    """Return what is read along an axis: 0 in lanes outside. `whole` names the flag that no lane is."""
    along = [one for one in place.guards if vector in one.factors]
    if len(along) > 1:
        raise UnsupportedError(f"{tiles.program.name}: a vector runs along two places of a window")
    first, step, size = "0", "1", "no_end"
    if along:
        first, size = tiles.position(along[0]), str(along[0].size)
        step = str(along[0].factors[vector])
    lanes = f"{tiles.names.axes[vector]}_lanes"
    code = f"load_window({whole or 'false'}, {at}, {place.strides[vector]}, {lanes}, {first}, {step}, {size})"
    there = _inside(tiles, [one for one in place.guards if one not in along])
    if not there:
        return code
    return f"{f'{whole} || ({there})' if whole else there} ? {code} : Vec{{}}"


def all_inside(tiles: Tiles, place: Place, vector: str, taps: Collection[str]) -> str:
    """Return whether a whole vector is read inside the tensor at all positions of some axes."""
    name = tiles.names.axes[vector]
    found = [f"{name}_lanes >= lanes"]
    for guard in place.guards:
        for last in (False, True):
            ends = {
                axis: str(tiles.graph.sizes[axis] - 1 if (factor > 0) == last else 0)
                for axis, factor in guard.factors.items()
                if axis in taps
            }
            if vector in guard.factors and (guard.factors[vector] > 0) == last:
                ends[vector] = f"{name} + lanes - 1"
            found.append(f"inside({tiles.position(guard, ends)}, {guard.size})")
    return " && ".join(dict.fromkeys(found))


def _inside(tiles: Tiles, guards: Collection[Guard]) -> str:
    return " && ".join(f"inside({tiles.position(one)}, {one.size})" for one in guards)
