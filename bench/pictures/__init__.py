"""Pictures of results, PNG and SVG. The suite of a result says which pictures are drawn of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.bench.harness.records import Record
from superopt.bench.pictures.engines import engines
from superopt.bench.pictures.rivals import roofline, speedups
from superopt.bench.pictures.searches import scaling, search_times
from superopt.bench.pictures.style import styled
from superopt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

_PICTURES: Mapping[str, Mapping[str, Callable[[Record], "Figure | None"]]] = {
    "cpu": {"speedups": speedups, "roofline": roofline},
    "gpu": {"speedups": speedups, "roofline": roofline},
    "models": {"speedups": speedups},
    "functions": {"speedups": speedups},
    "search": {"times": search_times},
    "frontier": {"scaling": scaling},
    "scaling": {"engines": engines},
}
"""For each suite its pictures by kind."""


def draw(documents: Sequence[Record], names: Sequence[str], folder: Path) -> list[Path]:
    """Draw all that the results allow; return the files, named after the results."""
    drawn = [
        (f"{name}-{kind}", picture, document)
        for name, document in zip(names, documents, strict=True)
        for kind, picture in _PICTURES.get(document["suite"], {}).items()
    ]
    if not drawn:
        suites = ", ".join(sorted({document["suite"] for document in documents}))
        raise InputError(f"there is no picture of a result of {suites}; there are of {', '.join(_PICTURES)}")
    written = []
    with styled():
        for stem, picture, document in drawn:
            figure = picture(document)
            if figure is not None:
                written += _saved(figure, folder, stem)
    if not written:
        raise InputError("the results have no case that can be drawn: none was measured")
    return written


def _saved(figure: "Figure", folder: Path, stem: str) -> list[Path]:
    from matplotlib import pyplot

    places = [folder / f"{stem}.png", folder / f"{stem}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(places[0], bbox_inches="tight", metadata={"Software": None})
        figure.savefig(places[1], bbox_inches="tight", metadata={"Date": None})
    except OSError as error:
        raise InputError(f"cannot write in {str(folder)!r}: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)
    return places
