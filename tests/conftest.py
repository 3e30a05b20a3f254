"""The options that all tests have."""

import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.verify import seeds

os.environ["SUPEROPT_TUNE"] = "off"  # nothing is queued or tuned beside a test that does not ask for it
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile superopt again
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave their cores to other workers

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts its background jobs this way
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup does; the processes of tests inherit it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Let no collection of garbage walk through what stays until the end: all tests and modules.

    What is collected rarely is collected quickly, too: hypothesis looks at the clock at each collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let each test draw the same seeds and the same inputs in each run, whichever tests ran before it."""
    draws = random.Random(item.nodeid)
    seeds.randbits = draws.getrandbits  # a few seeds refuse a right kernel
    random.seed(draws.getrandbits(32))
    if "torch" in sys.modules:  # where it is not, it will start from the seed that it always starts from
        sys.modules["torch"].manual_seed(draws.getrandbits(32))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written rather than compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session", autouse=True)
def quick_flags(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile kernels at -O1 where only quick tests run, which takes little more than half the time.

    `make test-all` compiles every kernel as users do; the tests in tests/cpp always do.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.config.option.markexpr == "not slow":
            from superopt.codegen.cpp import compile

            quick = tuple("-O1" if flag == "-O3" else flag for flag in compile.FLAGS)
            patch.setattr(compile, "FLAGS", quick)
        yield


@pytest.fixture(scope="session")
def kernels_folder(tmp_path_factory: pytest.TempPathFactory, quick_flags: None) -> Path:
    """Return where tests with caches of their own keep compiled kernels: one for all workers.

    A kernel is found there by its code and by how it was compiled, so no test can see another one's.
    """
    from superopt.codegen.children import Children
    from superopt.codegen.cpp import compile
    from superopt.codegen.errors import NoCompilerError

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "kernels"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(NoCompilerError), Children() as children, pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile, "_folder", lambda: folder)
        compile.compile_shared((), children)  # to read the header takes a quarter of compiling a kernel
    return folder
