"""What the tests of kernels in C++ share: compiled headers."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from superopt.codegen.children import Children
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.cpp.compile import compile_shared
from superopt.codegen.errors import NoCompilerError

FLAGS = cpp_compile.FLAGS


@contextmanager
def flags_of_users() -> Iterator[None]:
    """Compile kernels as users do, also where other tests compile them quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_compile, "FLAGS", FLAGS)
        yield


@pytest.fixture(scope="module", autouse=True)
def _flags_of_users() -> Iterator[None]:
    with flags_of_users():
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_header() -> None:
    """Compile the header for the flags of most tests: its text takes a quarter of compiling a kernel."""
    # A test that needs a compiler says so.
    with suppress(NoCompilerError), flags_of_users(), Children() as children:
        for flags in ((), ("-O1",)):
            compile_shared((), children, flags=flags)
