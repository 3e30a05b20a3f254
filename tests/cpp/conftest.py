"""What the tests of kernels in C++ share: compiled headers."""

from contextlib import suppress

import pytest

from superopt.codegen.children import Children
from superopt.codegen.cpp.compile import compile_shared
from superopt.codegen.errors import NoCompilerError


@pytest.fixture(scope="session", autouse=True)
def _compiled_header() -> None:
    """Compile the header for the flags of most tests: its text takes a quarter of compiling a kernel."""
    with suppress(NoCompilerError), Children() as children:  # a test that needs a compiler says so
        for flags in ((), ("-O1",)):
            compile_shared((), children, flags=flags)
