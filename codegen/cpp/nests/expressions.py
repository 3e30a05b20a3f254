"""Expressions: the scalar operators as C++ text, on vectors or on single numbers."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.codegen.cpp.plan import VIEWS
from superopt.ir import Graph
from superopt.ops import OPS

__all__ = ["Text", "apply_op", "call", "constant", "summands"]

_ATOM, _PRODUCT, _SUM = 3, 2, 1


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression, how strongly it binds, and whether it is a vector or one number."""

    code: str
    vector: bool
    binds: int = _ATOM

    @property
    def is_product(self) -> bool:
        """Whether a multiplication is the last thing that it computes."""
        return self.binds == _PRODUCT and " * " in self.code

    def within(self, binds: int) -> str:
        """Return the code as an operand of something that binds this strongly."""
        return self.code if self.binds >= binds else f"({self.code})"


def constant(value: Fraction | float) -> Text:
    """Return the float nearest to a number."""
    with np.errstate(over="ignore"):
        number = np.float32(float(value))
    if np.isinf(number):
        return Text("infinity" if number > 0 else "-infinity", vector=False)
    code = np.format_float_positional(number) if 1e-4 <= abs(number) < 1e7 or number == 0 else str(number)
    code += "0" if code.endswith(".") else "" if "." in code or "e" in code else ".0"
    return Text(f"{code}f", vector=False, binds=_ATOM if number >= 0 else _SUM)


class _CppScalars:
    """The arithmetic of the scalar operators, as text."""

    def const(self, value: Fraction) -> Text:
        return constant(value)

    def infinity(self) -> Text:
        return Text("infinity", vector=False)

    def add(self, a: Text, b: Text) -> Text:
        if b.code.startswith("-") and b.binds == _SUM:
            return _infix(a, "-", Text(b.code[1:], b.vector, _PRODUCT), _SUM)
        return _infix(a, "+", b, _SUM)

    def mul(self, a: Text, b: Text) -> Text:
        return _infix(a, "*", b, _PRODUCT)

    def neg(self, a: Text) -> Text:
        return Text(f"-{a.within(_ATOM)}", a.vector, _SUM)

    def inv(self, a: Text) -> Text:
        return _infix(constant(1), "/", a, _PRODUCT)

    def exp(self, a: Text) -> Text:
        return call("exp", a)

    def sqrt(self, a: Text) -> Text:
        return call("sqrt", a)

    def maximum(self, a: Text, b: Text) -> Text:
        return call("maximum", a, b)

    def less(self, a: Text, b: Text) -> Text:
        return call("truth", _infix(a, "<", b, 0))

    def equal(self, a: Text, b: Text) -> Text:
        return call("truth", _infix(a, "==", b, 0))

    def where(self, mask: Text, a: Text, b: Text) -> Text:
        return call("where", mask, a, b)

    def function(self, name: str, *args: Text) -> Text:
        return call(name, *args)


def call(name: str, *args: Text) -> Text:
    """Return a call of a function of the runtime header: all vectors, or all numbers."""
    vector = any(arg.vector for arg in args)
    codes = [f"splat({arg.code})" if vector and not arg.vector else arg.code for arg in args]
    return Text(f"{name}({', '.join(codes)})", vector)


def apply_op(op: str, *args: Text) -> Text:
    """Return an operator applied to expressions."""
    if op == "guard":
        return call("where", *args, constant(0))
    if OPS[op].sign:  # the opposite of `<` is not `>=` where a number is NaN
        return call("truth", _infix(args[0], OPS[op].sign, args[1], 0))
    direct = OPS[op].cpp
    if direct in ("/", "-"):
        return _infix(args[0], direct, args[1], _PRODUCT if direct == "/" else _SUM)
    if direct:
        return call(direct, *args)
    result = OPS[op].scalar(_CppScalars(), *args)
    assert isinstance(result, Text)
    return result


def summands(graph: Graph) -> set[int]:
    """Return the values that are added to another one, or taken from it.

    Compilers would join a product with the sum that reads it, and round once: then `a * b - b * a` is not 0.
    """
    found = set[int]()
    for value in reversed(range(len(graph.inputs), len(graph.inputs) + len(graph.steps))):
        step = graph.step_at(value)
        if step.op in ("add", "sub", "neg") or (step.op in VIEWS and value in found):
            found.update(step.inputs)
    return found


def _infix(a: Text, sign: str, b: Text, binds: int) -> Text:
    tight = binds + 1 if sign in "-/" else binds
    if sign == "*":
        tight = _PRODUCT if "/" not in b.code else _ATOM
    return Text(f"{a.within(max(binds, 1))} {sign} {b.within(max(tight, 1))}", a.vector or b.vector, binds)
