"""Costs: how long PyTorch takes to run an operator on tensors of these sizes, measured once for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from superopt.errors import InputError
from superopt.rules.discover.apply import Program
from superopt.rules.discover.language.expressions import Apply, Expression, Input
from superopt.rules.discover.language.images import CONVOLUTIONS, Convolution
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.shapes import Shape, size_of
from superopt.rules.discover.programs.extract import made_of
from superopt.rules.discover.programs.saturate import Choices, Node

__all__ = ["MeasuredCosts", "compiled"]

_ROUNDS = 7
_LEAST_S = 2e-3  # of work in a round


class MeasuredCosts:
    """The cost of a node in microseconds; what is made of weights alone is made before and costs nothing."""

    def __init__(self, choices: Choices, weights: Sequence[str]) -> None:
        self._choices = choices
        self._known: dict[tuple[object, ...], float] = {}
        self._fixed = made_of(choices, weights)

    def share(self, other: MeasuredCosts) -> None:
        """Use what another has measured, and measure for both from now on."""
        self._known = other._known

    def __call__(self, node: Node) -> float:
        """Return the cost of running a node once."""
        if node.is_input or node.made in self._fixed:
            return 0.0
        shapes = tuple(_sizes(self._choices.shapes.get(operand, ())) for operand in node.operands)
        key = (node.name, shapes, node.words)
        if key not in self._known:
            self._known[key] = _measured(node, shapes)
        return self._known[key]


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(sum(size_of(symbol, {}) for symbol in word) for word in shape)


def _measured(node: Node, shapes: Sequence[tuple[int, ...]]) -> float:
    """Return the best of several rounds in microseconds: other programs on the machine can only add."""
    import torch

    operands = [torch.randn(shape) for shape in shapes]
    at = sum(size_of(symbol, {}) for symbol in node.words[0]) if node.words else 0
    function = _FUNCTIONS[node.name]
    with torch.no_grad():
        for _ in range(2):
            function(operands, at)
        began = time.perf_counter()
        function(operands, at)
        calls = max(1, int(_LEAST_S / max(time.perf_counter() - began, 1e-7)))
        rounds = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            for _ in range(calls):
                function(operands, at)
            rounds.append((time.perf_counter() - began) / calls)
    return min(rounds) * 1e6


def _window(sizes: Sequence[int]) -> list[int]:
    """Return the border beside, above and below an image that windows of this size read."""
    (rows, cols) = sizes
    return [(cols - 1) // 2, cols // 2, (rows - 1) // 2, rows // 2]


def _convolved(kind: Convolution) -> Callable[[Sequence[Any], int], Any]:
    def run(operands: Sequence[Any], at: int) -> Any:
        import torch

        image, weight = operands
        groups = {"": 1, "groups": 2, "depth": image.shape[1]}[kind.groups]
        rows, cols = weight.shape[2:]
        border = (0, 0)
        if kind.padding == "same" and rows % 2 and cols % 2:
            border = ((rows - 1) // 2, (cols - 1) // 2)
        elif kind.padding == "same":
            image = torch.nn.functional.pad(image, _window((rows, cols)))
        found = torch.conv2d(image, weight, stride=kind.stride, padding=border, groups=groups)
        return found.relu_() if kind.relu else found

    return run


def _functions() -> dict[str, Callable[[Sequence[Any], int], Any]]:
    """Return each operator as a function of PyTorch; a split returns both of its parts."""

    def pool(kind: str, stride: int) -> Callable[[Sequence[Any], int], Any]:
        def run(operands: Sequence[Any], at: int) -> Any:
            import torch

            return getattr(torch.nn.functional, kind)(operands[0], 3, stride, 1)

        return run

    def named(name: str) -> Callable[[Sequence[Any], int], Any]:
        def run(operands: Sequence[Any], at: int) -> Any:
            import torch

            return getattr(torch, name)(*operands)

        return run

    def joined(axis: int) -> Callable[[Sequence[Any], int], Any]:
        def run(operands: Sequence[Any], at: int) -> Any:
            import torch

            return torch.cat(list(operands), dim=axis)

        return run

    def enlarged(rows: int, cols: int) -> Callable[[Sequence[Any], int], Any]:
        def run(operands: Sequence[Any], at: int) -> Any:
            import torch

            return torch.nn.functional.pad(operands[0], (cols, cols, rows, rows))

        return run

    return {
        **{
            name: named(name)
            for name in ("add", "mul", "relu", "matmul", "exp", "log", "square", "sqrt", "abs")
        },
        "div": named("div"),
        "scale": named("mul"),
        "max": named("maximum"),
        "scale_rows": named("mul"),
        "transpose": named("t"),
        "less": lambda v, at: (v[0] < v[1]).to(v[0].dtype),
        "where": lambda v, at: v[1].masked_fill(v[0] == 0, 0),
        "sum_cols": lambda v, at: v[0].sum(-1, keepdim=True),
        "max_cols": lambda v, at: v[0].amax(-1, keepdim=True),
        "concat_rows": joined(0),
        "concat_cols": joined(1),
        "split_rows": lambda v, at: v[0].split([at, v[0].shape[0] - at], 0),
        "split_cols": lambda v, at: v[0].split([at, v[0].shape[1] - at], 1),
        **{kind.name: _convolved(kind) for kind in CONVOLUTIONS},
        "avg_pool": pool("avg_pool2d", 1),
        "max_pool": pool("max_pool2d", 1),
        "avg_pool_half": pool("avg_pool2d", 2),
        "max_pool_half": pool("max_pool2d", 2),
        "enlarge": enlarged(1, 1),
        "enlarge_high": enlarged(1, 0),
        "enlarge_wide": enlarged(0, 1),
    }


_FUNCTIONS: Mapping[str, Callable[[Sequence[Any], int], Any]] = _functions()
assert _FUNCTIONS.keys() == OPERATORS.keys()


def compiled(program: Program, weights: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a program as a function of its other inputs, by name; what is made of weights is made now."""
    made: dict[Expression, Any] = {}

    def value(expression: Expression, known: dict[Expression, Any]) -> Any:
        if isinstance(expression, Input):
            if expression not in known:
                raise InputError(f"the program needs {expression.name!r}")
            return known[expression]
        whole = Apply(expression.op, expression.args, 0, expression.at)
        if whole not in known:
            operands = [value(arg, known) for arg in expression.args]
            known[whole] = _FUNCTIONS[expression.op](operands, sum(map(int, expression.at)))
        found = known[whole]
        return found[expression.part] if OPERATORS[expression.op].results > 1 else found

    made |= {Input(name): tensor for name, tensor in weights.items()}
    for part in _weight_parts(program.outputs, set(weights)):
        value(part, made)

    def run(**inputs: Any) -> tuple[Any, ...]:
        known = made | {Input(name): tensor for name, tensor in inputs.items()}
        return tuple(value(output, known) for output in program.outputs)

    return run


def _weight_parts(outputs: Sequence[Expression], weights: set[str]) -> list[Expression]:
    """Return the parts of a program that are made of weights alone."""
    found: dict[Expression, bool] = {}

    def visit(expression: Expression) -> bool:
        if expression not in found:
            if isinstance(expression, Input):
                found[expression] = expression.name in weights
            else:
                found[expression] = all(list(map(visit, expression.args)))
        return found[expression]

    for output in outputs:
        visit(output)
    return [expression for expression, fixed in found.items() if fixed and isinstance(expression, Apply)]
