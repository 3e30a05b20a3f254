import json
from io import StringIO

import pytest

from superopt.cli.results import annotated
from superopt.cli.screen import Code, Table, Text, print_blocks, print_json
from superopt.ir import parse_graph

BLOCKS = [
    Text("heading", "bold"),
    Table(("name", "count"), (("a", "1"), ("long name", "12"), ("b", "-"))),
    Code("t = x  # [k]\n"),
]


def test_plain_lines_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_blocks(BLOCKS)
    assert capsys.readouterr().out == (
        "heading\nname       count\na              1\nlong name     12\nb              -\n  t = x  # [k]\n"
    )


def test_columns_without_a_number_stay_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_blocks([Table(("split axes", "none"), (("-", "-"),)), Table(("a", "b"), ())])
    assert capsys.readouterr().out == "split axes  none\n-           -\na  b\n"


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_terminal_keeps_code_on_one_line(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen = _Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    code = "t10 = contract[k](t9, w)  # [m, n] " + "x" * 60
    print_blocks([*BLOCKS, Code(code)])
    shown = screen.getvalue()
    assert code.rstrip("x").strip() in shown.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "long name" in shown


def test_a_line_breaks_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = Text("seventeen words " * 4)
    print_blocks([line])
    assert capsys.readouterr().out == line.text + "\n"
    screen = _Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    print_blocks([line])
    assert [row.rstrip() for row in screen.getvalue().splitlines()] == ["seventeen words"] * 4


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": (1, None), 3: "µ"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [1, None], "3": "µ"}


def test_a_graph_with_its_axes_behind_each_step_still_parses() -> None:
    graph = parse_graph(
        "graph g\naxes m=2 k=3\nin x: f32[m, k]\nt1 = exp(x)\nt2 = sum[k](t1)\nout y: f32[m] = t2\n"
    )
    text = annotated(graph)
    assert text.splitlines()[3:5] == ["t1 = exp(x)      # [m, k]", "t2 = sum[k](t1)  # [m]"]
    assert parse_graph(text) == graph
