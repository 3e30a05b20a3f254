import os
import stat
from pathlib import Path

import pytest

from superopt.files import replace_text, replacing


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    replace_text(place, "old")
    replace_text(place, "new: é\n")
    assert place.read_bytes() == "new: é\n".encode()
    assert list(tmp_path.iterdir()) == [place]


def test_a_failure_in_the_middle_leaves_the_old_content_alone(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(place) as file:
        file.writelines(text.encode("ascii") for text in ("half of ", "é"))
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_a_replacement_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "a folder"
    place.mkdir()
    with pytest.raises(OSError, match="a folder"):
        replace_text(place, "text")
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_text(tmp_path / "nowhere" / "a.json", "text")


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    replace_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_long_names(tmp_path: Path) -> None:
    place = tmp_path / ("n" * 250)
    replace_text(place, "text")
    assert place.read_text() == "text"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    place = tmp_path / "pipe"
    os.mkfifo(place)
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_text(place, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(place.stat().st_mode)
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_leads_to_the_new_content(is_there: bool, tmp_path: Path) -> None:
    folder, link = tmp_path / "elsewhere", tmp_path / "link"
    folder.mkdir()
    if is_there:
        (folder / "file").write_text("old")
    link.symlink_to(Path("elsewhere") / "file")
    replace_text(link, "new")
    assert link.is_symlink()
    assert (folder / "file").read_text() == "new"
    assert list(folder.iterdir()) == [folder / "file"]


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o755])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_text("old")
    place.chmod(mode)
    with replacing(place) as file:
        [scratch] = set(tmp_path.iterdir()) - {place}
        assert stat.S_IMODE(scratch.stat().st_mode) == mode  # nobody reads it meanwhile who may not
        file.write(b"new")
    assert place.read_text() == "new"
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_what_stdout_is_appended_to_keeps_what_it_has(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "log"
    place.write_text("before\n")
    with place.open("a") as stdout:  # as by `superopt ... -o /dev/stdout >> log`
        monkeypatch.setattr("superopt.files._OUTPUTS", (stdout.fileno(),))
        replace_text(place, "ours\n")
        stdout.write("after\n")
    assert place.read_text() == "before\nours\nafter\n"
