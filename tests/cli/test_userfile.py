import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.cli.target import load_target
from superopt.cli.userfile import load_function, signature_text
from superopt.errors import InputError

Write = Callable[..., Path]

TWO = "def first(x): return x\ndef second(x, w): return x\n_hidden = 3\nNUMBER = 4\n"


def test_a_function_is_loaded(write: Write) -> None:
    target = load_target(f"{write(TWO)}:second")
    assert target.name == "second"
    assert signature_text(target.program) == "(x, w)"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (TWO, "secnd", "has no function 'secnd', did you mean second? (it has: first, second)"),
        (TWO, "zzz", "has no function 'zzz' (it has: first, second)"),
        (TWO, "", "needs a function, as in"),
        (TWO, "NUMBER", "NUMBER is a int, not a function or nn.Module"),
        ("x = 1\n", "f", "it defines no function"),
        ("", "", "it defines no function"),
        ("def f(x):\n    return (x\n", "f", "user.py:2: syntax error: '(' was never closed"),
        ("def f(x):\n\treturn x\n        return\n", "f", "user.py:3: syntax error"),
        ("import no_such_module_here\n", "f", "user.py:1: ModuleNotFoundError: No module named"),
        ("def g():\n    raise ValueError('a\\nb')\n\ng()\n", "f", "user.py:2: ValueError: a"),
        ("raise ValueError\n", "f", "user.py:1: ValueError"),
        ("import sys\nsys.exit(3)\n", "f", "ends the program when imported"),
        ("x = 1\0\n", "f", "null byte"),
        ("class Plain: pass\n", "Plain", "Plain is a class, not a function or nn.Module"),
        (
            "class M:\n  def __init__(self, d): ...\n  def forward(self, x): ...\n",
            "M",
            "constructor needs (d)",
        ),
        (
            "class M:\n  def __init__(self, d=1): 1 / 0\n  def forward(self, x): ...\n",
            "M",
            "M() fails: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_each_mistake_has_its_sentence(write: Write, source: str, name: str, message: str) -> None:
    path = write(source)
    with pytest.raises(InputError) as caught:
        load_function(path, name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"x = '\xe9'\n")
    with pytest.raises(InputError, match="syntax error"):
        load_function(path, "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.py:f", "'nowhere.py' does not exist"),
        ("nowhere.graph", "'nowhere.graph' does not exist"),
        ("/:f", "'/' is a folder; give file.py:function"),
        (":f", "is a folder"),
        ("rmsnorm-liner", "did you mean rmsnorm-linear?"),
        ("", "no workload is named ''"),
        ("x" * 5000 + ".py:f", "is not a path"),
        ("a\0b.py:f", "does not exist"),
    ],
)
def test_targets_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_target(text)
    assert message in str(caught.value)


def test_a_file_of_another_kind(write: Write) -> None:
    with pytest.raises(InputError, match="is not a Python file"):
        load_target(f"{write('hello', 'notes.txt')}:f")


def test_a_damaged_graph_names_its_line(write: Write) -> None:
    path = write("graph g\naxes m=2\nin x: f16[m]\nt = nonsense\n", "g.graph")
    with pytest.raises(InputError, match="line 4"):
        load_target(str(path))


def test_a_unicode_path_with_a_colon_and_spaces(write: Write) -> None:
    assert load_target(f"{write(TWO, 'größe: ä b.py')}:first").name == "first"


def test_the_main_part_does_not_run(write: Write) -> None:
    path = write("def f(x): return x\nif __name__ == '__main__':\n    raise SystemExit(9)\n")
    assert callable(load_function(path, "f"))


def test_neighbours_can_be_imported(write: Write) -> None:
    write("def h(x): return x\n", "a_neighbour_of_the_user.py")
    try:
        assert callable(load_function(write("from a_neighbour_of_the_user import h\n"), "h"))
    finally:
        sys.modules.pop("a_neighbour_of_the_user", None)


def test_dataclasses_and_late_annotations_work(write: Write) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass C:\n    x: int = 1\ndef f(x): return x * C().x\n"
    )
    assert load_function(write(source), "f")(3) == 3


def test_what_it_prints_goes_to_stderr(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    load_function(write("print('loading')\ndef f(x): return x\n"), "f")
    assert capsys.readouterr() == ("", "loading\n")


def test_modules_and_their_classes_are_functions_too(write: Write) -> None:
    path = write(
        "from torch import nn\n"
        "class Norm(nn.Module):\n"
        "    def __init__(self, size=4):\n        super().__init__()\n        self.size = size\n"
        "    def forward(self, x): return x / self.size\n"
        "norm = Norm(8)\n"
    )
    assert load_function(path, "norm")(16) == 2
    assert load_function(path, "Norm")(16) == 4
    assert signature_text(load_function(path, "Norm")) == "(x)"
    with pytest.raises(InputError, match=r"it has: Norm, norm"):
        load_function(path, "x")
