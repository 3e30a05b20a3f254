"""Alone: Inductor's code of a region is raced without what PyTorch does around the code of each graph."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.rivals import inductor
from superopt.rivals.inductor import alone, as_in_a_graph, compiled_by_inductor


def joined(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([x, y - x], -1)
    return (both @ w).relu(), both.sum(-1)


def inputs() -> tuple[Tensor, ...]:
    return torch.randn(4, 8), torch.randn(4, 8), torch.randn(16, 3)


def module_of(function: Callable[..., Any], given: tuple[Tensor, ...]) -> fx.GraphModule:
    made: fx.GraphModule = make_fx(function)(*given)
    return made


def quickest_us(function: Callable[..., Any], given: tuple[Tensor, ...]) -> float:
    times = []
    for _ in range(300):
        start = time.perf_counter_ns()
        function(*given)
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1e3


def test_it_computes_the_same_in_less_time() -> None:
    given = inputs()
    module = module_of(joined, given)
    code = alone(lambda: as_in_a_graph(module, given, {}))
    whole = alone(lambda: compiled_by_inductor(module, given, {}))
    for values in (given, inputs()):  # the tensors that it was compiled for are not kept
        for one, other in zip(code(*values), joined(*values), strict=True):
            torch.testing.assert_close(one, other)
    assert quickest_us(code, given) < quickest_us(whole, given)


def test_a_tensor_that_comes_twice_is_one_input() -> None:
    """PyTorch drops the second one before Inductor sees it: code for one input is not called with two."""
    x = torch.randn(4, 8)
    given = (x, x, torch.randn(16, 3))
    code = alone(lambda: as_in_a_graph(module_of(joined, inputs()), given, {}))
    for one, other in zip(code(*given), joined(*given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("fault", ["another number", "another shape", "an error"])
def test_code_that_is_not_all_of_it_does_not_stand_alone(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else PyTorch may do one day between a graph and its code."""
    given, through = inputs(), inductor.with_inductor

    def with_more(*arguments: Any, compile_inner: Callable[..., Any], **named: Any) -> Callable[..., Any]:
        def inner(*graph: Any, **settings: Any) -> Callable[..., Any]:
            code = compile_inner(*graph, **settings)

            def other(values: list[Tensor]) -> Any:
                first, *rest = code(values)
                if fault == "an error":
                    raise RuntimeError("not like that")
                return [first + 1 if fault == "another number" else first[:1], *rest]

            codes.append(other)
            return code

        codes: list[Any] = []
        whole = through(*arguments, compile_inner=inner, **named)
        monkeypatch.setattr(inductor, "_are_same", lambda some, others: same(some, codes[0]([*given])))
        return whole

    same = inductor._are_same
    monkeypatch.setattr(inductor, "with_inductor", with_more)
    code = alone(lambda: as_in_a_graph(module_of(joined, given), given, {}))
    assert code.__name__ != "called"
    for one, other in zip(code(*given), joined(*given), strict=True):
        torch.testing.assert_close(one, other)
