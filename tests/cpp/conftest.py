"""What the tests of the C++ target share: the flag for golden files."""

import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    if "--update-golden" in sys.argv:  # other targets' tests have the same flag: add it only when used
        parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))
