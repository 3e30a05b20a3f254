"""Errors of others are told in one line."""

import pytest

from superopt.errors import first_line, kind_and_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "a"),
        ("\n  \n b\nc", "b"),
        ("\x1b[96mThis is\x1b[0m step \x1b[1;31m1\x1b[m\nmore", "This is step 1"),
        ("\x1b[0m\n", "ValueError"),
        ("", "ValueError"),
        ("x[96m]", "x[96m]"),
    ],
)
def test_the_first_line_has_no_colours(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
    assert kind_and_line(ValueError(text)) == (line if line == "ValueError" else f"ValueError: {line}")
