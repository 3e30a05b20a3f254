"""The emitted source, to be read: `pytest tests/triton --update-golden` writes it anew."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_golden(name, source_of, update_golden):
    found = source_of(name).text
    path = GOLDEN / f"{name}.py"
    if update_golden:
        path.write_text(found)
    assert found == path.read_text(), "run `pytest tests/triton --update-golden` where this is meant"
