"""What the tests of kernels in C++ share: a compiled header."""

import pytest

from superopt.codegen.children import Children
from superopt.codegen.cpp.compile import compile_shared
from superopt.codegen.errors import NoCompilerError


@pytest.fixture(scope="session", autouse=True)
def _compiled_header() -> None:
    """Compile the header for the flags of most tests: its text takes a quarter of compiling a kernel."""
    try:
        with Children() as children:
            compile_shared((), children, flags=("-O1",))
    except NoCompilerError:
        pass  # whoever needs one says so
