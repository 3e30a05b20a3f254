"""The parser: argparse, with one line for every mistake, and a guess at what was meant."""

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NoReturn

__all__ = ["Parser", "complain", "did_you_mean", "subcommands"]

_CHOICE = re.compile(
    r"argument (?P<what>\S+): invalid choice: '(?P<given>.*?)' \(choose from (?P<known>.*)\)"
)
_WIDEST = 100  # columns of help, in a terminal of any width
_NOUNS = {"COMMAND": "command", "ACTION": "action"}


def complain(message: str) -> None:
    """Print one line about what went wrong, where there is somewhere to print it."""
    if sys.stderr is not None:
        print(f"superopt: {message}", file=sys.stderr)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a guess at the word that was meant, as a question; nothing where none is near."""
    near = difflib.get_close_matches(given, list(known), 1)
    return f"did you mean {near[0]}?" if near else ""


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands by name; none where it has no commands."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


class _Help(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal, and keeps lines that are indented, as examples are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._width = min(self._width, _WIDEST)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for kept, group in groupby(text.splitlines(), lambda line: not line or line[0] == " "):
            some = list(group)
            lines += some if kept else textwrap.wrap(" ".join(some), width, break_on_hyphens=False)
        return "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other bad input is reported: one line, exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **settings)

    def parse_args(  # type: ignore[override]
        self, arguments: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the whole command line; a word that nothing takes is an error of the command named."""
        parsed, unknown = self.parse_known_args(arguments, namespace)
        if unknown:
            command = self.named(parsed)
            options = [option for action in command._actions for option in action.option_strings]
            guess = did_you_mean(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else ""
            command.error(f"unrecognized arguments: {' '.join(unknown)}{guess and f'; {guess}'}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the one line and exit."""
        message = message[0].lower() + message[1:] if message else message
        if match := _CHOICE.fullmatch(message):
            noun, known = _NOUNS.get(match["what"]), re.findall(r"[\w-]+", match["known"])
            guess = did_you_mean(match["given"], known)
            if noun is not None:
                message = f"there is no {noun} {match['given']!r}{guess and f'; {guess}'}"
            elif guess:
                message = f"{message}; {guess}"
        complain(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(2)

    def named(self, parsed: argparse.Namespace) -> argparse.ArgumentParser:
        """Return the parser of the command, and of its action, that were given."""
        parser: argparse.ArgumentParser = self
        for name in (getattr(parsed, "command", None), getattr(parsed, "action", None)):
            parser = subcommands(parser).get(str(name), parser)
        return parser
