import os
import select
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from typing import TextIO

import pytest

from superopt.cli import live
from superopt.cli.live import LiveLine, LiveView
from superopt.driver import Progress
from superopt.frontier.engine import LevelStats


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(live.time, "perf_counter", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def explore(level: int, region: int = 1) -> Progress:
    stats = LevelStats(level, 10, 300, 100, 0.5, 0, True, (0.5,))
    return Progress("explore", region, 2, "attention", stats)


def test_plain_lines_come_at_most_once_a_second_and_to_stderr(
    capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    with LiveView() as view:
        for level in range(8):
            view(explore(level))
            clock(0.3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "superopt: 1 s · explore · 1/2 attention"
        " · level 4: frontier 10, candidates 300, new 100, duplicates 200"
    ]


def test_a_short_search_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView() as view:
        view(explore(0))
        view(Progress("done", 1, 1, "attention"))
    assert capsys.readouterr() == ("", "")


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]) -> None:
    with LiveView(quiet=True) as view:
        clock(5)
        view(explore(0))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_totals_and_the_seconds_of_each_phase(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    screen = _Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with LiveView() as view:
        view(Progress("saturate", 1, 2, "attention"))
        clock(2)
        view(explore(1))
        clock(1)
        view(explore(2))
    shown = screen.getvalue()
    assert "candidates 600, new 200, duplicates 400" in shown
    assert "saturate 2.0" in shown
    assert "1/2 attention" in shown


def test_without_stderr_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with LiveView() as view:
        view(explore(0))


@pytest.fixture
def terminals() -> Iterator[tuple[TextIO, int]]:
    """A terminal of the system's, and where what is written there can be read."""
    reader, writer = os.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as terminal:
        yield terminal, reader
    os.close(reader)


def read_whole(reader: int) -> str:
    """Return what was written to a terminal; it arrives in parts."""
    read = b""
    while select.select([reader], [], [], 0.5)[0]:
        read += os.read(reader, 65536)
    return read.decode()


def test_one_line_on_a_terminal_is_drawn_while_nothing_reports(
    monkeypatch: pytest.MonkeyPatch, terminals: tuple[TextIO, int]
) -> None:
    terminal, reader = terminals
    monkeypatch.setattr(live.sys, "stderr", terminal)
    monkeypatch.setattr(live, "_SECONDS_BETWEEN_TICKS", 0.01)
    drawn = b""
    with LiveLine() as show:
        show("torch.compile")
        while drawn.count(b"torch.compile") < 3:
            drawn += os.read(reader, 4096)
    assert not [one for one in threading.enumerate() if "_tick" in one.name]


def test_a_terminal_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(live.sys, "stderr", terminal)
        with LiveLine() as show:
            os.close(reader)
            show("nobody sees this")


def test_one_line_on_a_terminal_is_written_over_and_cleared(
    monkeypatch: pytest.MonkeyPatch,
    clock: Callable[[float], None],
    terminals: tuple[TextIO, int],
) -> None:
    terminal, reader = terminals
    monkeypatch.setattr(live.sys, "stderr", terminal)
    with LiveLine() as show:
        show("tracing the programs")
        show("too soon to be shown")
        clock(1.0)
        show("floats")
    drawn = read_whole(reader).split("\r")
    assert [text.rstrip() for text in drawn if text.strip()] == ["0 s · tracing the programs", "1 s · floats"]
    assert len(drawn[3]) >= len("0 s · tracing the programs")
    assert drawn[-2].strip() == ""


def test_one_line_is_not_shown_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveLine() as show:
        show("tracing")
    assert capsys.readouterr() == ("", "")


def test_elsewhere_than_on_a_terminal_only_what_takes_long_has_a_line(
    capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    with LiveLine() as show:
        show("tracing")
        clock(6.0)
        show("compiling")
        clock(1.0)
        show("racing")
    with LiveLine(lines=True) as show:
        show("every step")
    with LiveLine(quiet=True) as show:
        clock(9.0)
        show("nothing")
    assert capsys.readouterr().err == "superopt: 6 s · compiling\nsuperopt: 0 s · every step\n"
