"""The pairs that verdicts are measured by: what is said to be equal is, and what is said to differ does."""

import ast
from pathlib import Path

import pytest
import torch

from superopt.bench.verdicts import idioms
from superopt.bench.verdicts.idioms import IDIOMS, WRONG
from superopt.bench.verdicts.judge import compare, find_difference, judge
from superopt.bench.verdicts.pairs import Pair, constants_of, draw, example, parse
from superopt.bench.verdicts.tensors.equations import EQUATIONS

pytestmark = pytest.mark.filterwarnings("ignore")  # odd programs warn of odd shapes

FAMILIES = sorted({pair.family for pair in IDIOMS.values()})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_idioms_are_true(family: str) -> None:
    found = {pair.name: judge(pair) for pair in IDIOMS.values() if pair.family == family}
    assert found
    assert not {name: str(one) for name, one in found.items() if one is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_near_misses_differ(family: str) -> None:
    pairs = [pair for pair in WRONG.values() if pair.family == family]
    assert pairs
    assert not [pair.name for pair in pairs if judge(pair) is None]


@pytest.mark.slow
def test_equations_are_true() -> None:
    found = {pair.name: judge(pair, rounds=1) for pair in EQUATIONS.values()}
    assert not {name: str(one) for name, one in found.items() if one is not None}


def test_there_are_enough_and_each_has_its_own_name() -> None:
    assert len(IDIOMS) >= 200
    assert len(WRONG) >= 120
    folder = Path(idioms.__file__).parent
    names = [
        call.args[0].value
        for path in folder.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("equal", "wrong")
        if isinstance(call.args[0], ast.Constant)
    ]
    assert len(names) == len(set(names)) == len({*IDIOMS, *WRONG})
    assert all(pair.equal for pair in (*IDIOMS.values(), *EQUATIONS.values()))
    assert not any(pair.equal for pair in WRONG.values())


def test_inputs_are_directed() -> None:
    pair = Pair("", lambda x: x > 60, lambda x: x > 37.5, "f32[5,5] i64[3]<4 bool[7]")
    assert {60.0, -60.0, 37.5, 0.0, 1.0} <= set(pair.constants)
    drawn = [one for seed in range(4) for one in draw(parse(pair.inputs), pair.constants, seed)]
    met = {float(x) for one in drawn for x in one[0].flatten()}
    assert {60.0, 60.25, 37.5, 37.25, 0.0, 1.0} <= met
    assert {int(x) for one in drawn for x in one[1]} == {0, 1, 2, 3}
    assert any(bool(one[2].all()) for one in drawn)
    assert all([t.dtype for t in one] == [torch.float64, torch.int64, torch.bool] for one in drawn)


def test_inputs_tie() -> None:
    drawn = list(draw(parse("f32[4,4] f32[4,4]"), (0.0,), 0))
    assert sum(bool((a == b).any()) for a, b in drawn) > len(drawn) // 2


def test_examples_have_their_dtypes() -> None:
    made = example(parse("f16[2] f32[3,4] f64[] i64[5]<6 bool[2,2]"))
    assert [one.dtype for one in made] == [
        torch.float16,
        torch.float32,
        torch.float64,
        torch.int64,
        torch.bool,
    ]
    assert [tuple(one.shape) for one in made] == [(2,), (3, 4), (), (5,), (2, 2)]


def test_constants_are_found_in_what_is_called() -> None:
    bound = 12.5

    def inner(x: torch.Tensor) -> torch.Tensor:
        return (lambda y: y.clamp(max=bound))(x) + 4

    assert {12.5, -12.5, 4.0} <= constants_of(lambda x: inner(x) * 7)


@pytest.mark.parametrize(
    ("left", "right", "what"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.ones(2), torch.ones(2) + 1e-6, "at [0]"),
        (torch.ones(2), torch.ones(3), "[2] against"),
        (torch.ones(2), torch.ones(2).double(), "float64"),
        ((torch.ones(2), 3), (torch.ones(2), 4), "3 against 4"),
        ((torch.ones(2), 3), (torch.ones(2), True), "3 against True"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "forms"),
        ((torch.ones(2),), [torch.ones(2)], "forms"),
        (torch.tensor([torch.nan]), torch.ones(1), ""),  # undefined on the left
        (torch.ones(1), torch.tensor([torch.nan]), "nan"),  # but not on the right
        (torch.tensor([-torch.inf]), torch.tensor([-torch.inf]), ""),
        (torch.tensor([-torch.inf]), torch.zeros(1), "-inf"),
    ],
)
def test_results_are_compared(left: object, right: object, what: str) -> None:
    found = compare(left, right)
    assert what in found
    assert bool(found) == bool(what)


def test_only_finite_numbers_count_where_that_is_asked() -> None:
    def unsafe(x: torch.Tensor) -> torch.Tensor:
        return 1 / x

    def safe(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == 0, 0.0, 1 / x)

    assert find_difference(safe, unsafe, "f32[5]", (0.0, 1.0)) is not None
    assert find_difference(safe, unsafe, "f32[5]", (0.0, 1.0), finite=True) is None
