"""Expressions: the arithmetic of `superopt.ops.Scalars` as Triton text that a person would write."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from superopt.ir.stabilize import LOWEST
from superopt.ops import OPS

__all__ = [
    "HELPERS",
    "Expression",
    "TritonText",
    "apply",
    "as_float",
    "as_mask",
    "atom",
    "larger",
    "quotient",
]

Kind = Literal["float", "int", "mask", "constant"]

_COMPARE, _OR, _AND, _ADD, _MUL, _UNARY, _ATOM = range(7)

HELPERS = {
    "expm1": '''@triton.jit
def expm1(x):
    """Return exp(x) - 1, exact for small x too: 2^whole (exp(rest) - 1) + (2^whole - 1)."""
    near = tl.where(x < -30.0, -30.0, x)
    whole = tl.floor(near * 1.44269504 + 0.5)
    rest = near - whole * 0.693359375 + whole * 2.12194440e-4
    series = 0.5 + rest * (1 / 6 + rest * (1 / 24 + rest * (1 / 120 + rest * (1 / 720 + rest / 5040))))
    small = series * (rest * rest) + rest
    scale = tl.exp2(whole)
    found = tl.where(x > 88.0, tl.exp(x), small * scale + (scale - 1.0))
    return tl.where(x == 0.0, x, found)  # -0.0 is its own result
''',
    "fp16_scale": '''@triton.jit
def fp16_scale(largest):
    """Return the power of two by which numbers of this size are divided to be between 2^14 and 2^15."""
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.maximum(exponent - (14 << 23), 1 << 23).to(tl.float32, bitcast=True)
''',
    "larger": '''@triton.jit
def larger(x, y):
    """Return the larger number, and NaN where one of both is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "log1p": '''@triton.jit
def log1p(x):
    """Return log(1 + x), exact for small x too."""
    grown = 1.0 + x
    return tl.where((grown == 1.0) | (grown == float("inf")), x, tl.log(grown) * (x / (grown - 1.0)))
''',
    "long_sum": '''@triton.jit
def long_sum(total, lost, number):
    """Return a sum of numbers with another one, and by how much rounding makes it too large."""
    exact = number - lost
    grown = total + exact
    return grown, tl.where(tl.abs(grown) < float("inf"), (grown - total) - exact, 0.0)
''',
    "power": '''@triton.jit
def power(x, y):
    """Return x to the y; a negative x that is finite needs a whole y."""
    size = tl.where(tl.abs(x) == 1.0, 1.0, tl.exp2(y * tl.log2(tl.abs(x))))
    below = (x < 0.0) | (1.0 / x < 0.0)  # the inverse tells -0.0 from 0.0
    signed = tl.where(below, size * -1.0, size)  # -size is 0.0 - size, which makes 0.0 of 0.0
    odd = tl.where(tl.floor(y * 0.5) * 2.0 != y, signed, size)
    broken = tl.where((x >= 0.0) | (x == float("-inf")), size, float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(tl.floor(y) == y, odd, broken))
''',
    "tanh": '''@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, exact for small x too."""
    size = tl.abs(x)
    square = x * x
    series = square * (square * (square * -5.70498872745e-3 + 2.06390887954e-2) - 5.37397155531e-2)
    small = x * (1.0 + square * (square * (series + 1.33314422036e-1) - 3.33332819422e-1))
    large = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * size))
    return tl.where(size < 0.625, small, tl.where(x < 0.0, -large, large))
''',
}
"""Functions that Triton lacks, as source, by the name under which a kernel calls them."""

_OPPOSITE = {op.sign: OPS[op.opposite].sign for op in OPS.values() if op.sign}
_MIRRORED = {"<": ">", ">": "<", ">=": "<=", "<=": ">=", "==": "==", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Expression:
    """Text of one value, how tightly its outermost operator binds, and what it was made from."""

    text: str
    level: int
    kind: Kind
    form: str = ""  # "neg", "inv", "sqrt", "exp", "less", "equal": what a reader would fold into its user
    parts: tuple["Expression", ...] = ()
    value: Fraction | None = None

    def inside(self, level: int) -> str:
        """Return the text as an operand of an operator that binds this tightly."""
        return self.text if self.level >= level else f"({self.text})"


def atom(text: str, kind: Kind = "float") -> Expression:
    """Return a name, a call or an element as an expression."""
    return Expression(text, _ATOM, kind)


def as_float(a: Expression) -> Expression:
    """Return the expression as fp32: masks and integers are converted."""
    if a.kind == "mask":
        return Expression(f"{a.inside(_ATOM)}.to(tl.float32)", _ATOM, "float")
    if a.kind == "int":
        return Expression(f"{a.inside(_MUL)} * 1.0", _MUL, "float")
    return replace(a, kind="float")


def as_mask(a: Expression) -> Expression:
    """Return the expression as a truth value: what is not zero is true."""
    if a.kind == "mask":
        return a
    if a.value is not None:
        return atom("True" if a.value else "False", "mask")
    return Expression(f"{a.inside(_OR)} != 0", _COMPARE, "mask")


def apply(op: str, operands: tuple[Expression, ...]) -> Expression:
    """Return a scalar operator applied to expressions."""
    scalars = TritonText()
    if op == "div":
        return scalars.div(*operands)
    if OPS[op].sign:
        return scalars.compare(operands[0], OPS[op].sign, operands[1])
    if op == "guard":
        return scalars.where(operands[0], operands[1], scalars.const(Fraction(0)))
    if op == "not":
        return scalars.negated(as_mask(operands[0]))
    if op == "or":
        a, b = map(as_mask, operands)
        return Expression(f"{a.inside(_OR)} | {b.inside(_OR)}", _OR, "mask")
    if OPS[op].triton:
        return scalars.function(op, *operands)
    found: Expression = OPS[op].scalar(scalars, *operands)
    return as_mask(found) if OPS[op].mask else found


def quotient(operands: tuple[Expression, ...]) -> Expression:
    """Return a / b, or 1 / b, to the last digit, which Triton's own `/` is not."""
    texts = [as_float(one).text for one in operands]
    return atom(f"tl.div_rn({', '.join(['1.0', *texts][-2:])})")


def larger(a: str, b: str, *, keeps_nan: bool) -> str:
    """Return the text of the larger one of two numbers; where one is NaN, that of a GPU is the other."""
    return f"tl.maximum({a}, {b}{', propagate_nan=tl.PropagateNan.ALL' if keeps_nan else ''})"


class TritonText:
    """The arithmetic of `Scalars` on Triton text: fp32 numbers, integer positions, masks."""

    def const(self, value: Fraction) -> Expression:
        """Return a constant, which takes the kind of what it meets."""
        text = repr(float(value))
        level = _UNARY if value < 0 else _ATOM
        return Expression(text, level, "constant", value=value)

    def infinity(self) -> Expression:
        """Return plus infinity."""
        return atom('float("inf")')

    def add(self, a: Expression, b: Expression) -> Expression:
        """Return a + b; a - b where b is negated; not b where it is 1 - b of a mask."""
        if b.form == "neg" and a.value == 1 and b.parts[0].kind == "mask":
            return self.negated(b.parts[0])
        a, b, kind = self._meet(a, b)
        if b.form == "neg":
            return Expression(f"{a.inside(_ADD)} - {b.parts[0].inside(_MUL)}", _ADD, kind)
        return Expression(f"{a.inside(_ADD)} + {b.inside(_MUL)}", _ADD, kind)

    def mul(self, a: Expression, b: Expression) -> Expression:
        """Return a * b; a mask selects: its zeros are zeros even of an infinity."""
        if a.kind == b.kind == "mask":
            return Expression(f"{a.inside(_AND)} & {b.inside(_AND)}", _AND, "mask")
        for mask, other in ((a, b), (b, a)):
            if mask.kind == "mask":
                return self.where(mask, other, self.const(Fraction(0)))
        if b.form == "inv":
            return self.div(a, b.parts[0])
        if a.form == "inv":
            return self.div(b, a.parts[0])
        a, b, kind = self._meet(a, b)
        if kind == "int" and all(one.value is None or abs(one.value) > 1 for one in (a, b)):
            a = atom(f"tl.cast({a.text}, tl.int64)", "int")  # 32 bits may not hold the product
        return Expression(f"{a.inside(_MUL)} * {b.inside(_UNARY)}", _MUL, kind)

    def div(self, a: Expression, b: Expression) -> Expression:
        """Return a / b; where b is a whole number, as an extent is, its reciprocal is taken once."""
        if a.kind == "float" and b.kind == "int":
            return Expression(f"{a.inside(_MUL)} * (1.0 / {b.inside(_UNARY)})", _MUL, "float")
        if a.kind == b.kind == "int" or "mask" in (a.kind, b.kind):
            a, b = as_float(a), as_float(b)
        return Expression(f"{a.inside(_MUL)} / {b.inside(_UNARY)}", _MUL, "float")

    def neg(self, a: Expression) -> Expression:
        """Return -a; Triton takes `-a` for `0 - a`, which makes 0.0, not -0.0, of 0.0."""
        if a.value is not None:
            return self.const(-a.value)
        if a.text == self.infinity().text:
            return atom('float("-inf")')
        if a.kind == "int":
            return Expression(f"-{a.inside(_UNARY)}", _UNARY, "int", "neg", (a,))
        return Expression(f"{as_float(a).inside(_MUL)} * -1.0", _MUL, "float", "neg", (a,))

    def inv(self, a: Expression) -> Expression:
        """Return 1 / a."""
        if a.form == "sqrt":
            return atom(f"tl.rsqrt({a.parts[0].text})")
        return replace(self.div(self.const(Fraction(1)), as_float(a)), form="inv", parts=(as_float(a),))

    def exp(self, a: Expression) -> Expression:
        """Return e to the a; to an exponent, both zeros are the same."""
        if a.form == "neg":
            return atom(f"tl.exp(-{as_float(a.parts[0]).inside(_UNARY)})")
        return atom(f"tl.exp({as_float(a).text})")

    def sqrt(self, a: Expression) -> Expression:
        """Return the square root."""
        a = as_float(a)
        return replace(atom(f"tl.sqrt({a.text})"), form="sqrt", parts=(a,))

    def maximum(self, a: Expression, b: Expression) -> Expression:
        """Return the larger one, and NaN where one of both is, unless they only shift an exponential."""
        is_shift = LOWEST in (a.value, b.value)
        a, b, kind = self._meet(a, b)
        return atom(larger(a.text, b.text, keeps_nan=kind == "float" and not is_shift), kind)

    def less(self, a: Expression, b: Expression) -> Expression:
        """Return whether a < b."""
        return self.compare(a, "<", b)

    def equal(self, a: Expression, b: Expression) -> Expression:
        """Return whether a = b."""
        return self.compare(a, "==", b)

    def where(self, mask: Expression, a: Expression, b: Expression) -> Expression:
        """Return a where the mask holds, else b."""
        if a.kind == b.kind == "mask":
            a, b = as_float(a), as_float(b)
        a, b, kind = self._meet(a, b)
        return atom(f"tl.where({as_mask(mask).text}, {a.text}, {b.text})", kind)

    def function(self, name: str, *args: Expression) -> Expression:
        """Return a call of a function that the algebra knows nothing about."""
        return atom(OPS[name].triton.format(*(as_float(a).text for a in args)))

    def negated(self, mask: Expression) -> Expression:
        """Return where the mask does not hold."""
        # Neither `<` nor `>=` holds where a number is NaN, which no integer is.
        if mask.form in _OPPOSITE and (
            mask.form in ("==", "!=") or all(one.kind != "float" for one in mask.parts)
        ):
            a, b = mask.parts
            return self.compare(a, _OPPOSITE[mask.form], b)
        if mask.text in ("True", "False"):
            return atom("False" if mask.text == "True" else "True", "mask")
        return Expression(f"~{mask.inside(_UNARY)}", _UNARY, "mask")

    def compare(self, a: Expression, sign: str, b: Expression) -> Expression:
        """Return a comparison, a constant behind the sign."""
        a, b, _ = self._meet(a, b)
        if a.value is not None:
            a, sign, b = b, _MIRRORED[sign], a
        return Expression(f"{a.inside(_OR)} {sign} {b.inside(_OR)}", _COMPARE, "mask", sign, (a, b))

    def _meet(self, a: Expression, b: Expression) -> tuple[Expression, Expression, Kind]:
        """Return both as one kind: integers where both are whole, else fp32."""
        kinds = {a.kind, b.kind}
        whole = all(one.value is None or one.value.denominator == 1 for one in (a, b))
        if kinds <= {"int", "constant"} and "int" in kinds and whole:
            return self._whole(a), self._whole(b), "int"
        if kinds == {"int", "float"} or kinds == {"int", "constant"}:
            return a, b, "float"  # Triton converts the integer
        return as_float(a), as_float(b), "float"

    def _whole(self, a: Expression) -> Expression:
        return a if a.value is None else replace(a, text=str(a.value.numerator))
