"""Filtered: convolutions that the runtime computes in fewer products."""

from superopt.codegen.cpp.plan import Contraction
from superopt.codegen.cpp.source import Guard, Place, times
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.cpp.windows.filtering import Filtering

__all__ = ["print_filtered"]


def print_filtered(tiles: Tiles, item: Contraction, found: Filtering) -> None:
    """Print a convolution with three taps along one axis or two, in loops over the axes around it."""
    one = item.compute
    tiles.line(f"// {tiles.comment(one)}")
    places = {value: tiles.place(value) for value in (found.image, found.weights, one.value)}
    pointers = {value: tiles.pointer(value, place) for value, place in places.items()}
    image, weights, made = places[found.image], places[found.weights], places[one.value]
    slid = found.slid if len(found.slid) > 1 else (("", "", 0), *found.slid)
    results, taps, steps = zip(*slid, strict=True)

    def at(value: int) -> str:
        strides = places[value].strides
        terms = [times(tiles.names.axes[axis], strides[axis]) for axis in found.around if axis in strides]
        return " + ".join([pointers[value], *terms])

    def strides(place: Place, axes: tuple[str, ...]) -> str:
        return ", ".join(place.strides.get(axis, "0") for axis in axes)

    counts = ", ".join(tiles.count(axis) if axis else "1" for axis in results)
    guards = [_guard(image, axis) for axis in results]
    here = dict.fromkeys((*results, *taps), "0")
    first = ", ".join(tiles.position(guard, here) if guard else "0" for guard in guards)
    size = ", ".join(str(guard.size) if guard else "no_end" for guard in guards)
    filters = f"{tiles.count(found.filter)}, {strides(weights, (found.filter, found.channel))}"
    with tiles.loops(list(found.around)):
        tiles.line(f"contract_filtered<{', '.join(map(str, steps))}, {image.type}, {weights.type}>(")
        tiles.depth += 1
        channels = f"{tiles.count(found.channel)}, {strides(image, (found.channel,))}"
        tiles.line(f"Image<{image.type}>{{{at(found.image)}, {channels},")
        tiles.line(f"    {{{counts}}}, {{{strides(image, taps)}}}, {{{first}}}, {{{size}}}}},")
        tiles.line(
            f"Filters<{weights.type}>{{{at(found.weights)}, {filters}, {{{strides(weights, taps)}}}}},"
        )
        tiles.line(f"{at(one.value)}, {strides(made, (found.filter,))}, {{{strides(made, results)}}});")
        tiles.depth -= 1


def _guard(image: Place, axis: str) -> Guard | None:
    """Return which places along an axis lie inside; None where all do."""
    return next((guard for guard in image.guards if axis in guard.factors), None)
