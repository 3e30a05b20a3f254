"""Choice: which library calls in half precision are computed in float32, by the clock.

Each kind of call, by its sizes and strides, is timed both ways once on a machine; products that would take
long, on smaller matrices.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import first_line
from superopt.rivals.aten import hint_of, operator_name, value_of
from superopt.rivals.wide.calls import (
    CALLS,
    GROUPED,
    HALVES,
    PRODUCTS,
    blank_like,
    in_float32,
    may_be_wide,
    operands_of,
    put_wide,
)
from superopt.targets import pick_target
from superopt.tune.measure import shortest_call_us

__all__ = ["is_faster_wide", "is_left", "learn_speeds", "speed_of", "widened"]

LEAST_SPEED = 1.1
"""How many times as fast as in half precision a call must be in float32."""

log = logging.getLogger("superopt")

_LEFT = "cpp_wrapper", "max_autotune", "max_autotune_gemm"
_FORM = 1  # the version of a record
_MOST_FLOPS = 1 << 26  # a product of more is timed on smaller matrices
_ROUNDS = 5
_CLEAR = 2.0  # few calls tell that those in float32 are faster if they are so many times as fast
_SHORT_US = 20_000.0  # longer calls of the library are timed once
_RACE_S = 0.3  # seconds of a race that few calls do not decide

_SPEEDS: dict[tuple[int, str], float] = {}
"""The speeds that this process knows, by the number of threads and the form of a call."""


def learn_speeds(graph: fx.Graph, *, cached: bool = True, racing_s: float = inf) -> None:
    """Learn how fast the calls of a graph are in float32: from the cache, or by races for so many seconds.

    It is called inside `alone`, where tensors have data. A call that fails is not computed in float32.
    """
    end = time.monotonic() + racing_s
    for node in graph.nodes:
        if not may_be_wide(node) or (known := _known_by(node)) in _SPEEDS:
            continue
        key = _key(*known)
        record = Cache.open().get(key) if cached else None
        speed = record.data.get("speed") if record is not None else None
        if isinstance(speed, int | float):
            _SPEEDS[known] = float(speed)
        elif time.monotonic() < end:
            try:
                _SPEEDS[known] = speed = raced(node)
            except Exception as error:  # there may be no memory
                log.info("%s: not timed in float32: %s", operator_name(node), first_line(error))
                _SPEEDS[known] = 0.0
                continue
            if cached:
                Cache.open().put(key, Record({"speed": speed}, str(operator_name(node))))


def speed_of(node: fx.Node) -> float:
    """Return how many times as fast a call is in float32; 0 where that is not known."""
    return _SPEEDS.get(_known_by(node), 0.0) if may_be_wide(node) else 0.0


def is_faster_wide(node: fx.Node) -> bool:
    """Whether a node is a call in half precision that is faster in float32."""
    return speed_of(node) >= LEAST_SPEED


def is_left(node: fx.Node, patches: Mapping[str, Any]) -> bool:
    """Whether a product is left to Inductor, which tunes it, or whose C++ wrapper cannot call ours.

    The settings are those of now, with some changed.
    """
    if operator_name(node) not in PRODUCTS and operator_name(node) != GROUPED:
        return False
    config: Any = torch._inductor.config
    return any(patches.get(name, getattr(config, name)) for name in _LEFT)


def widened(
    module: fx.GraphModule, inputs: Sequence[Any], patches: Mapping[str, Any] = MappingProxyType({})
) -> fx.GraphModule:
    """Return ATen operators with calls in float32 where these are faster; called inside `alone`.

    `patches` are settings of Inductor's under which the module is compiled.
    """
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    dtypes = {one.dtype for one in tensors} | _dtypes_told(module.graph)
    calls = any(operator_name(node) in CALLS for node in module.graph.nodes)
    if not calls or HALVES.isdisjoint(dtypes) or any(one.device.type != "cpu" for one in tensors):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    made = fx.GraphModule(module, graph)
    if not all("val" in node.meta for node in graph.nodes if node.op == "call_function"):
        FakeTensorProp(made, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs)
    learn_speeds(graph, cached=False)
    nodes = [node for node in graph.nodes if is_faster_wide(node) and not is_left(node, patches)]
    if not nodes:
        return module
    put_wide(graph, nodes, {})
    made.recompile()
    return made


def _dtypes_told(graph: fx.Graph) -> set[torch.dtype]:
    """Return the dtypes that calls of a graph are given, as conversions are."""
    given = (one for node in graph.nodes for one in (*node.args, *node.kwargs.values()))
    return {one for one in given if isinstance(one, torch.dtype)}


def _known_by(node: fx.Node) -> tuple[int, str]:
    """Return what the speed of a call depends on: the number of threads, and the form of the call."""
    return torch.get_num_threads(), f"{operator_name(node)} {_text((node.args, node.kwargs))}"


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        value = value_of(value)
    if isinstance(value, Tensor):
        sizes, strides = (list(map(hint_of, some)) for some in (value.shape, value.stride()))
        return f"{value.dtype}{sizes}{strides}"
    if isinstance(value, torch.SymInt):
        return str(hint_of(value))
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{name}={_text(one)}' for name, one in sorted(value.items()))})"
    return repr(value)


def _key(threads: int, form: str) -> Key:
    options = {"backend": "wide", "form": _FORM, "threads": threads}
    return key_of("plan", program=form, options=options, **{**versions(), **pick_target("cpu").key_parts()})


def raced(node: fx.Node) -> float:
    """Return how many times as fast a call is in float32, on random numbers."""
    arguments, named = _smaller(node) if operator_name(node) in PRODUCTS else _drawn(node)
    target: Any = node.target
    library = partial(target, *arguments, **named)
    wide = partial(in_float32, node, arguments, named)
    wide()
    # Compilers that are at work disturb calls on several threads most, as those in float32 are: so the
    # shortest of many calls counts, unless few tell already that they are faster.
    library_us, wide_us, rounds = inf, inf, 0
    end = time.monotonic() + _RACE_S
    while rounds < _ROUNDS or (library_us < _CLEAR * wide_us and time.monotonic() < end):
        wide_us = min(wide_us, shortest_call_us(wide, (), 1, _nothing))
        if not rounds or library_us < _SHORT_US:
            library_us = min(library_us, shortest_call_us(library, (), 1, _nothing))
        rounds += 1
    return library_us / wide_us


def _nothing() -> None:
    """Wait for nothing: calls on a CPU are over when they return."""


def _drawn(node: fx.Node) -> tuple[Any, Any]:
    """Return random arguments of a call; groups are of equal sizes."""
    if operator_name(node) == GROUPED:
        left, right, ends = (_random(value_of(one)) for one in node.args)  # type: ignore[arg-type]
        whole = left.shape[0 if right.dim() == 3 else 1]
        places = torch.arange(1, ends.shape[0] + 1) * whole // ends.shape[0]
        return (left, right, places.to(ends.dtype)), {}
    return fx.map_arg((node.args, node.kwargs), lambda one: _random(value_of(one)))


def _random(value: Any, shape: Sequence[int] | None = None) -> Any:
    """Return random numbers that lie as a tensor of a graph does, or as many others in the same order."""
    if not isinstance(value, Tensor):
        return hint_of(value)
    if shape is None:
        made = blank_like(value)
    elif len(shape) > 1 and hint_of(value.stride(-2)) == 1 and hint_of(value.stride(-1)) != 1:
        made = torch.zeros([*shape[:-2], shape[-1], shape[-2]], dtype=value.dtype).transpose(-1, -2)
    else:
        made = torch.zeros(shape, dtype=value.dtype)
    if value.dtype.is_floating_point:
        made = made.clone() if 0 in made.stride() else made
        made.copy_(torch.rand(made.shape[-1:]) - 0.5)
    return made


def _smaller(node: fx.Node) -> tuple[Any, Any]:
    """Return random arguments of a product, of smaller matrices where it has much work."""
    left, right, summand = (value_of(one) if one is not None else None for one in operands_of(node))
    assert left is not None
    assert right is not None
    *batch, rows, length = map(hint_of, left.shape)
    sizes = [*batch, rows, length, hint_of(right.shape[-1])]
    while 2 * prod(sizes) > _MOST_FLOPS:
        at = sizes.index(max(sizes))
        sizes[at] = -(-sizes[at] // 2)
    *batch, rows, length, columns = sizes
    factors = _random(left, [*batch, rows, length]), _random(right, [*batch, length, columns])
    if summand is None:
        return factors, {}
    whole = [*batch, rows, columns]
    most = whole[len(whole) - summand.dim() :]
    shape = [min(hint_of(one), size) for one, size in zip(summand.shape, most, strict=True)]
    return (_random(summand, shape), *factors), dict(node.kwargs)
