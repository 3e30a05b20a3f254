"""What the tests of the C++ target share: the sizes of each workload, and the flag for golden files."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    try:
        parser.addoption("--update-golden", action="store_true", help="write golden files anew")
    except ValueError:  # another target's tests added it
        pass


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))
