"""Every property of every operator, held against its values in float64, zeros and infinities included."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest
import torch

from superopt.ops import OPS, Op, uses_of
from superopt.trace.run import TorchScalars

SCALARS = TorchScalars(torch.float64, torch.device("cpu"))
ZEROS = [0.0, -0.0]
TRUTHS = [0.0, -0.0, 1.0]
FINITE = [*TRUTHS, -1.0, 0.5, -0.5, 1e-300, -1e-300, 1.75, -2.25, 3.0, -4.0, 37.5, 709.0, -745.0, 1e4, -1e4]
NUMBERS = [*FINITE, inf, -inf]
FACTORS = (0.25, 0.5, 4.0, 1024.0)
LOGICAL = {"and", "or", "not"}
CONDITIONAL = {"where", "guard"}


def values_of(op: Op, *operands: torch.Tensor) -> torch.Tensor:
    """Return an operator of numbers; arithmetic on masks is of masks only."""
    found: torch.Tensor = op.scalar(SCALARS, *operands)
    return found + 0 * sum(torch.zeros_like(one) for one in operands)


def grid(op: Op, numbers: list[float]) -> list[torch.Tensor]:
    """Return every combination of numbers, one tensor for each operand."""
    if op.name in LOGICAL:
        numbers = [one for one in numbers if one in TRUTHS]
    rows = torch.tensor(list(product(numbers, repeat=op.arity)), dtype=torch.float64)
    if op.name in CONDITIONAL:
        rows = rows[(rows[:, 0] == 0) | (rows[:, 0] == 1)]
    return list(rows.T)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-12, atol=0, equal_nan=True)


def only(values: torch.Tensor, *allowed: float) -> bool:
    return bool(torch.isin(values, torch.tensor(allowed, dtype=torch.float64)).all())


def absorbs_zero(op: Op) -> bool:
    operands = grid(op, FINITE)
    some_zero = torch.stack(operands).eq(0).any(0)
    return op.arity > 1 and only(values_of(op, *operands)[some_zero], 0.0)


def bounded(op: Op) -> bool:
    made = values_of(op, *grid(op, NUMBERS))
    return bool((made.isnan() | (made.abs() <= 1)).all())


def commutes(op: Op) -> bool:
    if op.arity != 2:
        return False
    a, b = grid(op, NUMBERS)
    return same(values_of(op, a, b), values_of(op, b, a))


def scaled(op: Op, *powers: float, alike: bool = False) -> bool:
    """Return whether each operand, or all alike, times t makes the value t ** power times as large."""
    if op.mask or (alike and op.name in CONDITIONAL):
        return False
    operands = grid(op, [one for one in FINITE if abs(one) < 100])
    made = values_of(op, *operands)
    changed = [range(op.arity)] if alike else [[at] for at in range(op.arity)]
    for t, (places, power) in product(FACTORS, list(zip(changed, powers, strict=True))):
        grown = values_of(op, *(one * t if at in places else one for at, one in enumerate(operands)))
        if not same(grown, made * t**power):
            return False
    return True


def powers_of(op: Op) -> tuple[float, ...]:
    """Return the powers that are true of an operator, found by trying; empty where there are none."""
    tried = product((1, -1, 2, 0.5, -0.5, 0), repeat=op.arity)
    return next((powers for powers in tried if scaled(op, *powers)), ())


def opposite(op: Op) -> str:
    """Return the comparison that holds exactly where this one does not."""
    if not op.sign:
        return ""
    operands = grid(op, NUMBERS)
    made = values_of(op, *operands)
    others = (one for one in OPS.values() if one.sign)
    return next(one.name for one in others if same(values_of(one, *operands), 1 - made))


TRUE_OF = {
    "mask": lambda op: only(values_of(op, *grid(op, NUMBERS)), 0.0, 1.0),
    "keeps_mask": lambda op: only(values_of(op, *grid(op, TRUTHS)), 0.0, 1.0),
    "keeps_zero": lambda op: only(values_of(op, *grid(op, ZEROS)), 0.0),
    "absorbs_zero": absorbs_zero,
    "finite": lambda op: bool(values_of(op, *grid(op, FINITE)).isfinite().all()),
    "bounded": bounded,
    "commutes": commutes,
    "scales": lambda op: op.arity > 1 and scaled(op, 1, alike=True),
    "powers": powers_of,
    "opposite": opposite,
}
"""What numbers say of each property."""


def stated(op: Op, fact: str) -> object:
    """Return what a record states: a mask also keeps masks, and is bounded."""
    found = getattr(op, fact)
    return found or (op.mask if fact in ("keeps_mask", "bounded") else found)


@pytest.mark.parametrize("fact", TRUE_OF)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_records_state_what_is_true_and_all_of_it(op: Op, fact: str) -> None:
    assert stated(op, fact) == TRUE_OF[fact](op)


WRONG = {
    "mask": ("sigmoid", True),
    "keeps_mask": ("add", True),
    "keeps_zero": ("cos", True),
    "absorbs_zero": ("pow", True),
    "finite": ("exp", True),
    "bounded": ("silu", True),
    "commutes": ("sub", True),
    "scales": ("mul", True),
    "powers": ("sqrt", (2,)),
    "opposite": ("lt", "gt"),
}


@pytest.mark.parametrize("fact", TRUE_OF)
def test_a_wrong_record_is_found(fact: str) -> None:
    name, wrong = WRONG[fact]
    assert stated(replace(OPS[name], **{fact: wrong}), fact) != TRUE_OF[fact](OPS[name])


def test_facts_are_all_tested() -> None:
    told = {"name", "arity", "scalar", "flops", "sign", "torch", "triton", "cpp"}
    assert set(TRUE_OF) == set(Op.__dataclass_fields__) - told


@pytest.mark.parametrize(
    ("name", "primitives", "functions"),
    [
        ("add", {"add"}, set()),
        ("div", {"inv", "mul"}, set()),
        ("log", set(), {"log"}),
        ("sigmoid", {"const", "add", "neg", "exp", "inv"}, set()),
    ],
)
def test_what_a_definition_uses(name: str, primitives: set[str], functions: set[str]) -> None:
    assert uses_of(name) == (primitives, functions)
