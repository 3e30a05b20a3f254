"""Svg: text of elements and tables, everything escaped; numbers short and the same on every machine."""

import html
import math
from collections.abc import Iterable, Sequence

__all__ = ["bytes_text", "count_text", "element", "escape", "number", "table_of", "text_width", "time_text"]

_CHARACTER = 7.3  # the width of a character of 12 px monospace


def escape(text: object) -> str:
    """Return a text that a page shows as it is."""
    shown = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in str(text))
    return html.escape(shown, quote=True)


def number(value: float) -> str:
    """Return a coordinate."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def element(tag: str, content: str = "", **attributes: object) -> str:
    """Return an element; the content is markup, attributes are escaped; `class_` stands for class."""
    shown = ""
    for name, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, float) else escape(value)
            shown += f' {name.rstrip("_").replace("_", "-")}="{text}"'
    return f"<{tag}{shown}>{content}</{tag}>"


def text_width(text: str) -> float:
    """Return the room that a text needs at 12 px."""
    return len(text) * _CHARACTER


def bytes_text(value: float) -> str:
    """Return bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


def time_text(us: float) -> str:
    """Return microseconds with the unit that suits."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    if us >= 1e3:
        return f"{us / 1e3:.3g} ms"
    return f"{us:.3g} µs"


def count_text(value: float) -> str:
    """Return a large count in short."""
    if value < 1000:
        return f"{value:.0f}"
    exponent = min(int(math.log10(value)) // 3, 5)
    return f"{value / 1000**exponent:.3g}{' kMGTP'[exponent]}".replace(" ", "")


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[int] = ()) -> str:
    """Return an HTML table; columns in `numeric` are numbers."""
    right = set(numeric)
    kinds = [" class=number" if at in right else "" for at in range(len(heads))]
    top = "".join(f"<th{kind} scope=col>{escape(head)}</th>" for head, kind in zip(heads, kinds, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>"
