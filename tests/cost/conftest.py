"""What the tests of costs share: workloads as the default schedule runs them."""

from collections.abc import Callable

import pytest

from superopt.ir import MuGraph, fuse, stabilize
from superopt.trace import trace
from superopt.workloads import WORKLOADS


@pytest.fixture(scope="session")
def fused() -> Callable[..., MuGraph]:
    """Return a named workload as fused kernels, with some sizes replaced."""

    def make(name: str, dtype: str = "f16", **sizes: int) -> MuGraph:
        item = WORKLOADS[name]
        graph = trace(item.function, *item.inputs(dtype=dtype, **sizes), name=name).graph
        return fuse(stabilize(graph))

    return make
