"""Blocks of output: what a command says, as data, and the two ways to print it.

On a terminal rich draws tables and colours, and wraps text between words; anywhere else the same blocks are
plain lines, whose columns are aligned, and only paragraphs are wrapped.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Block", "Code", "Table", "Text", "print_blocks", "print_json"]


@dataclass(frozen=True, slots=True)
class Text:
    """A line, or a paragraph that wraps also where it is no terminal; the style is one of rich's."""

    text: str = ""
    style: str = ""
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Lines kept as they are; what follows a `#` is a comment."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a header; columns of numbers are aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


_WIDTH = 100  # of a paragraph, elsewhere than on a terminal

Block = Text | Code | Table


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print to stdout, with rich where it is a terminal."""
    if sys.stdout is not None and sys.stdout.isatty():
        _print_rich(blocks)
        return
    for block in blocks:
        for line in _plain_lines(block):
            print(line)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout; infinities and NaN become null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain_lines(block: Block) -> list[str]:
    match block:
        case Text(text, _, wraps):
            return textwrap.wrap(text, _WIDTH, break_on_hyphens=False) if wraps else [text]
        case Code(text):
            return [f"  {line}".rstrip() for line in text.splitlines()]
        case Table(columns, rows):
            widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
            right = _numeric(columns, rows)
            return [
                "  ".join(
                    cell.rjust(width) if numeric else cell.ljust(width)
                    for cell, width, numeric in zip(row, widths, right, strict=True)
                ).rstrip()
                for row in (columns, *rows)
            ]


def _print_rich(blocks: Iterable[Block]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    console = Console(highlight=False, markup=False, emoji=False)
    for block in blocks:
        match block:
            case Text(text, style, _):
                console.print(RichText(text, style=style))
            case Code(text):
                for line in text.splitlines():
                    code, mark, comment = line.partition("#")
                    console.print(RichText.assemble("  ", code, (mark + comment, "dim")), soft_wrap=True)
            case Table(columns, rows):
                table = RichTable(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
                for column, numeric in zip(columns, _numeric(columns, rows), strict=True):
                    table.add_column(column, justify="right" if numeric else "left", overflow="fold")
                for row in rows:
                    table.add_row(*(RichText(cell) for cell in row))
                console.print(table)


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns hold numbers only (a dash stands for none)."""
    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    return [
        any(cell[:1].isdigit() for cell in column)
        and all(cell[:1].isdigit() or cell in ("-", "") for cell in column)
        for column in cells
    ]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
