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
