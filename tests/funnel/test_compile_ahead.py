"""Compiling ahead: which candidates come first, by what the compiler says of their kernels."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from superopt.candidates import Candidate
from superopt.candidates.order import ConfigurationOrder
from superopt.funnel.compile_ahead import ensure_compiled, worth_compiling
from superopt.ir import fuse, parse_graph
from superopt.targets import KernelReport, pick_target

MUGRAPH = fuse(parse_graph("graph g\naxes m=4\nin x: f32[m]\nt1 = exp(x)\nout o: f32[m] = t1\n"))


class Config(str):
    """A configuration that is no more than its name; no two have the same tiles."""

    __slots__ = ()

    @property
    def tiles(self) -> str:
        return str(self)


@dataclass
class Compiler:
    """A target whose kernels spill in some configurations, or fail in them."""

    spilling: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()  # by what the compiler makes of them
    asked: list[str] = field(default_factory=list)

    def default_configs(self, mugraph: Any) -> tuple[str, ...]:
        return ("default",)

    def configs(self, mugraph: Any, number: int) -> list[str]:
        return ["best", "next", "default"]

    def predictions(self, mugraph: Any, number: int, configs: list[str]) -> list[float]:
        return [{"best": 1.0, "next": 2.0, "default": 3.0}.get(one, 4.0) for one in configs]

    def reports(self, mugraph: Any, configs: tuple[str, ...]) -> tuple[KernelReport, ...]:
        return (KernelReport("k", self.predictions(mugraph, 0, list(configs))[0]),)

    def sources(self, mugraph: Any, configs: tuple[str, ...]) -> tuple[str, ...]:
        return configs

    def compile_ahead(self, jobs: Any, *, seconds: float, on_done: Any) -> None:
        for at, (_, _, config) in enumerate(jobs):
            self.asked.append(config)
            if config in self.failing:
                on_done(at, "it does not compile")
            else:
                us = 9.0 if config in self.slow else None
                on_done(at, KernelReport("k", us, registers=9, spill_bytes=8 * (config in self.spilling)))


class Order:
    """The order in which a compiler's configurations are likely."""

    def ranked(self, mugraph: Any, configs: Any, number: int) -> tuple[tuple[str, float], ...]:
        return (Config("best"), 1.0), (Config("next"), 2.0), (Config("default"), 3.0)


def candidate(id: str, config: str = "best", spill_bytes: int | None = None) -> Candidate:
    kernels = (KernelReport("k", 1.0, spill_bytes=spill_bytes),)
    return Candidate(id, MUGRAPH.graph, MUGRAPH, configs=(Config(config),), kernels=kernels, predicted_us=1.0)


def ordered(compiler: Compiler, given: list[Candidate], count: int) -> list[tuple[str, str]]:
    order: Any = Order()
    found = ensure_compiled(given, compiler, order, count)  # type: ignore[arg-type]
    return [(one.id, one.configs[0]) for one in found]


def test_what_was_compiled_is_not_compiled_again() -> None:
    compiler = Compiler()
    assert ordered(compiler, [candidate("a", spill_bytes=0), candidate("b")], 1)[0] == ("a", "best")
    assert compiler.asked == []


@pytest.mark.parametrize(
    ("spilling", "failing", "first"),
    [({"best"}, set(), "next"), ({"best", "next"}, set(), "default"), ({"best"}, {"next"}, "default")],
)
def test_a_kernel_that_spills_takes_another_configuration(spilling, failing, first) -> None:
    compiler = Compiler(frozenset(spilling), frozenset(failing))
    assert ordered(compiler, [candidate("a")], 1) == [("a", first)]


def test_of_those_that_fit_the_one_is_taken_whose_machine_code_is_best() -> None:
    compiler = Compiler(frozenset({"best"}), slow=frozenset({"next"}))
    assert ordered(compiler, [candidate("a")], 1) == [("a", "default")]


def test_so_many_are_compiled_as_are_wanted() -> None:
    compiler = Compiler()
    assert [id for id, _ in ordered(compiler, [candidate(id) for id in "abcd"], 2)] == list("abcd")
    assert compiler.asked == ["best", "best"]


def test_what_spills_in_every_way_comes_last() -> None:
    compiler = Compiler(frozenset({"bad", "best", "next", "default"}))
    given = [candidate("a", "bad"), candidate("b", "good"), candidate("c", "good")]
    assert [id for id, _ in ordered(compiler, given, 1)] == ["b", "c", "a"]


LINEAR = """graph linear
axes m=8 k=4096 n=4096
in x: f16[m, k]
in w: f16[k, n]
t2 = contract[k](x, w)
out o: f16[m, n] = t2
"""


@pytest.mark.parametrize("count", [2, 8])
def test_kernels_are_compiled_in_several_ways_with_the_likeliest_tiles(count: int) -> None:
    target = pick_target("h200")
    mugraph = fuse(parse_graph(LINEAR))
    order = ConfigurationOrder(target)
    [default] = target.default_configs(mugraph)
    (likeliest, _), *_ = order.ranked(mugraph, (default,), 0)
    one = Candidate("a", mugraph.graph, mugraph, configs=(likeliest,))
    found = worth_compiling(one, 0, default, order, count)
    assert found[:2] == [likeliest, default]
    assert len(set(found)) == count
    alike = [config for config in found if config.tiles == likeliest.tiles]
    assert len(alike) >= count / 2
    assert len({config.tiles for config in found}) >= count / 2
