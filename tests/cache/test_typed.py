"""Plain data as the fields of a dataclass: what is of its type is taken, anything else is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from superopt.candidates.typed import typed_fields
from superopt.errors import InputError


@dataclass(frozen=True)
class Part:
    name: str
    us: float
    count: int = 0
    told: bool = False
    least: float | None = None
    pairs: tuple[float, ...] = ()
    method: Literal["clock", "events"] = "clock"
    settings: Mapping[str, Any] | None = None


GOOD = {
    "name": "a",
    "us": 3,
    "count": 2,
    "told": True,
    "least": None,
    "pairs": [1.0],
    "method": "events",
    "settings": {"a": 1},
}


def test_fields_of_their_types_are_taken() -> None:
    assert typed_fields(Part, GOOD, GOOD) == GOOD
    assert typed_fields(Part, {**GOOD, "us": "no number"}, ["name"]) == {"name": "a"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", None),
        ("us", "3"),
        ("us", True),
        ("count", 2.0),
        ("count", True),
        ("told", 1),
        ("least", "1"),
        ("pairs", 1.0),
        ("method", "sundial"),
        ("settings", []),
        ("unknown", 1),
    ],
)
def test_a_field_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} is .*damaged"):
        typed_fields(Part, {**GOOD, name: value}, [*GOOD, name])


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(InputError, match="'us' is missing"):
        typed_fields(Part, {"name": "a"}, ["name", "us"])
