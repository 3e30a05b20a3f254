"""The style of all pictures: white, few lines, colours that everyone can tell apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.records import Record
from superopt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BLUE", "DARK", "GREEN", "GREY", "ORANGE", "PINK", "RED", "SKY",
    "measured", "plain_log_ticks", "styled", "where",
]  # fmt: skip

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY, DARK = "#cc79a7", "#56b4e9", "#8a8a8a", "#222222"
_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": DARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "svg.hashsalt": "superopt",
    "svg.fonttype": "none",
    "figure.dpi": 110,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw without a screen and in this style, or raise InputError where matplotlib is absent."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError('pictures need matplotlib: pip install "superopt[bench]"') from error
    from matplotlib import pyplot

    matplotlib.use("Agg")
    with pyplot.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def measured(document: Record) -> list[Record]:
    """Return the records of the cases that have a ratio."""
    return [one for one in document["cases"].values() if one.get("ratio") is not None]


def where(document: Record) -> str:
    """Return the device of a result in words."""
    about = document["machine"]
    threads = about.get("threads")
    return f"{about.get('device')}" + (f", {threads} threads" if threads else "")


def plain_log_ticks(axes: "Axes") -> None:
    """Write 0.5, 1, 2, 10 and not powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    steps = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
