"""What the tests of optimizing share: quick options, and one optimized function with our kernels in use."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import superopt
from superopt import Optimized, OptimizeOptions, SearchOptions
from superopt.codegen.cpp import compile as cpp_compile
from superopt.targets import KernelReport
from superopt.targets.cuda import CudaTarget

collect_ignore_glob = [] if shutil.which("g++") or shutil.which("clang++") else ["*"]

Shapes = tuple[int, ...]


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, kernels_folder: Path) -> Iterator[None]:
    """Leaves the user's cache alone, and keeps compiled kernels for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
        yield


@pytest.fixture
def everything_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the compiler by one that says at once that every kernel fits."""

    def answer(self, jobs, *, seconds, on_done) -> None:
        for at in range(len(jobs)):
            on_done(at, KernelReport("kernel", shared_bytes=1024, registers=99, spill_bytes=0))

    monkeypatch.setattr(CudaTarget, "compile_ahead", answer)


@pytest.fixture(scope="session")
def quick() -> OptimizeOptions:
    """Options with which nothing takes long."""
    return OptimizeOptions(
        target="cpu",
        seed=0,
        seconds=0.4,
        graphs=2,
        torch_compile=False,
        guarded=False,
        cache=False,
        search=SearchOptions(max_graphs=4),
    )


@pytest.fixture(scope="session")
def random() -> Callable[..., tuple[torch.Tensor, ...]]:
    """Makes the same normal inputs each time."""

    def make(*shapes: Shapes) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return tuple(torch.randn(shape) for shape in shapes)

    return make


@pytest.fixture(scope="session")
def in_use() -> Callable[[Optimized], Optimized]:
    """Puts our kernels in use, whoever was faster just now."""

    def remade(best: Optimized) -> Optimized:
        chosen = {plan.goal.name: plan.chosen for plan in best.regions if plan.chosen}
        assert chosen, [str(one.fate) for plan in best.regions for one in plan.candidates]
        return Optimized(
            best.function,
            replace(best.result, winner="superopt"),
            best.traced,
            kernels={name: best.target.make(one.mugraph, one.configs) for name, one in chosen.items()},
            options=best.options,
        )

    return remade


@pytest.fixture(scope="session")
def best(quick: OptimizeOptions, random: Callable, in_use: Callable) -> Optimized:
    """RMS norm and a matmul, for x[5, 64] and w[64, 96]."""
    return in_use(superopt.optimize(norm_linear, *random((5, 64), (64,), (64, 96)), options=quick))
