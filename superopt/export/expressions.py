"""Expressions: steps of a graph as torch code on tensors whose dimensions are named axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from superopt.errors import InputError
from superopt.ir import Step, format_constant
from superopt.ir.masks import is_mask
from superopt.ir.windows.place import Place, ends_of
from superopt.ops import OPS

__all__ = ["Expression", "Printer", "einsum_text", "equation", "spread_text"]

Kind = Literal["tensor", "mask", "number"]

_LOGICAL = frozenset({"and", "or", "not"})
_NUMBERS = {
    "sqrt": "math.sqrt({})",
    "rsqrt": "1 / math.sqrt({})",
    "exp": "math.exp({})",
    "log": "math.log({})",
    "square": "{} ** 2",
}


@dataclass(frozen=True, slots=True)
class Expression:
    """Python text, the axes of its dimensions in order, and whether it needs no parentheses."""

    text: str
    axes: tuple[str, ...] = ()
    kind: Kind = "tensor"
    atom: bool = True

    @property
    def inside(self) -> str:
        """The text where it is part of another one."""
        return self.text if self.atom else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Printer:
    """What printing a step needs to know: variables of the sizes, the device, and the dtype."""

    sizes: Mapping[str, str]
    device: str
    dtype: str
    extents: Mapping[str, int] = field(default_factory=dict)  # of the axes of windows, which never change

    def step(self, step: Step, inputs: Sequence[Expression]) -> Expression:
        """Return one step applied to expressions; what is a mask in the graph is one here."""
        made = self._step(step, inputs)
        masks = [one.kind == "mask" or (one.kind == "number" and one.text in ("0", "1")) for one in inputs]
        if made.kind == "tensor" and is_mask(step, masks):
            return Expression(f"{made.inside} != 0", made.axes, "mask", False)
        return made

    def _step(self, step: Step, inputs: Sequence[Expression]) -> Expression:
        match step.op:
            case "const":
                assert step.value is not None
                text = format_constant(step.value)
                return Expression(text, (), "number", "/" not in text and step.value >= 0)
            case "infinity":
                return Expression("math.inf", (), "number")
            case "size":
                return Expression(self.sizes[step.axes[0]], (), "number")
            case "index":
                return Expression(
                    f"torch.arange({self.sizes[step.axes[0]]}, device={self.device})", step.axes
                )
            case "contract":
                return self._contracted(step, inputs)
            case "sum" | "max":
                return self._reduced(step, self.as_float(inputs[0]))
            case "rename":
                mapping = dict(step.mapping)
                return replace(inputs[0], axes=tuple(str(mapping.get(axis, axis)) for axis in inputs[0].axes))
            case "select":
                return _selected(step, inputs[0])
            case "window" if {axis for place in step.places for axis, _ in place.terms}.isdisjoint(
                inputs[0].axes
            ):
                return self._window(step.places, self.as_float(inputs[0]))
        if step.op not in OPS:
            raise InputError(f"{step.op} has no torch code; export needs a rule for it")
        return self._elementwise(step.op, inputs)

    def as_float(self, one: Expression) -> Expression:
        """Return masks as zeros and ones, and numbers as tensors."""
        if one.kind == "mask":
            return Expression(f"{one.inside}.to({self.dtype})", one.axes)
        if one.kind == "number":
            return Expression(f"torch.tensor({one.text}, dtype={self.dtype}, device={self.device})")
        return one

    def _elementwise(self, op: str, inputs: Sequence[Expression]) -> Expression:
        if all(one.kind == "number" for one in inputs):
            known = OPS[op].torch if _is_infix(op) else _NUMBERS.get(op)
            if known:
                return Expression(known.format(*(one.inside for one in inputs)), (), "number", False)
            inputs = [self.as_float(one) for one in inputs]
        longest = max(inputs, key=lambda one: len(one.axes))
        axes = tuple(dict.fromkeys((*longest.axes, *(axis for one in inputs for axis in one.axes))))
        laid = [spread(one, axes) for one in inputs]
        masks = [one.kind == "mask" for one in inputs]
        if op in _LOGICAL or (op == "mul" and all(masks)):
            laid = [
                one if one.kind == "mask" else Expression(f"{one.inside} != 0", (), "mask", False)
                for one in laid
            ]
            text = OPS["and" if op == "mul" else op].torch.format(*(one.inside for one in laid))
            return Expression(text, axes, "mask", False)
        if op == "mul" and any(masks):
            mask, other = laid if masks[0] else laid[::-1]
            return Expression(f"torch.where({mask.text}, {self.as_float(other).text}, 0.0)", axes)
        if op == "guard":
            op, laid = "where", [*laid, Expression("0.0", (), "number")]
        if op == "where":
            chosen = laid[0].text if masks[0] else f"{laid[0].inside} != 0"
            choices = [one if one.kind == "number" else self.as_float(one) for one in laid[1:]]
            if all(one.kind == "number" for one in choices):
                choices[0] = self.as_float(choices[0])  # which then has the dtype, instead of float32
            return Expression(f"torch.where({chosen}, {', '.join(one.text for one in choices)})", axes)
        texts = [one.inside if one.kind == "number" else self.as_float(one).inside for one in laid]
        if OPS[op].sign:
            return Expression(f"{texts[0]} {OPS[op].sign} {texts[1]}", axes, "mask", False)
        if _is_infix(op):
            return Expression(OPS[op].torch.format(*texts), axes, atom=False)
        if op in ("maximum", "minimum"):
            if laid[0].kind == "number":
                laid, texts = laid[::-1], texts[::-1]
            if laid[1].kind == "number":
                bound = "min" if op == "maximum" else "max"
                return Expression(f"{texts[0]}.clamp({bound}={laid[1].text})", axes)
        if OPS[op].torch:
            return Expression(OPS[op].torch.format(*(one.text for one in laid)), axes)
        return Expression(f"{texts[0]}.{op}({', '.join(texts[1:])})", axes)

    def _window(self, places: Sequence[Place], one: Expression) -> Expression:
        """Return what windows read of an expression, which has none of their own axes."""
        for place in places:
            kept = tuple(axis for axis in one.axes if axis not in place.axes)
            made = tuple(axis for axis, _ in place.terms)
            line = spread(one, (*kept, *place.axes)).inside
            line += f".flatten({-len(place.axes)})" if len(place.axes) > 1 else ""
            low, high = ends_of(place, self.extents)
            size = prod(self.extents[axis] for axis in place.axes)
            if self._is_stretch(place):
                text = f"torch.nn.functional.pad({line}, ({-place.offset}, {high + 1 - size}))"
                if len(made) > 1:
                    text += f".unflatten(-1, ({', '.join(self.sizes[axis] for axis in made)}))"
            else:
                around = max(-low, 0), max(high + 1 - size, 0)
                padded = f"torch.nn.functional.pad({line}, {around})" if any(around) else line
                text = f"{padded}[..., {self._positions(place, around[0])}]"
            one = Expression(text, (*kept, *made))
        return one

    def _is_stretch(self, place: Place) -> bool:
        """Whether a window reads one position after the other."""
        made = [axis for axis, _ in place.terms]
        inner = [prod(self.extents.get(axis, 0) for axis in made[at + 1 :]) for at in range(len(made))]
        return bool(made) and [factor for _, factor in place.terms] == inner

    def _positions(self, place: Place, before: int) -> str:
        """Return the positions that a window reads along its axes, behind so many zeros."""
        terms = []
        for at, (axis, factor) in enumerate(place.terms):
            index = f"torch.arange({self.extents[axis]}, device={self.device})"
            index += f"[:{', None' * (len(place.terms) - at - 1)}]" if at + 1 < len(place.terms) else ""
            terms.append(index if factor == 1 else f"{factor} * {index}")
        offset = place.offset + before
        return " + ".join([*terms, *([str(offset)] if offset else [])])

    def _contracted(self, step: Step, inputs: Sequence[Expression]) -> Expression:
        """Return a contraction, in which a mask selects.

        The selected numbers are written out where they are no more than the operands; elsewhere
        `masked_sum` takes a product of matrices.
        """
        masks = [one.kind == "mask" for one in inputs]
        mask, other = inputs if masks[0] else inputs[::-1]
        other = self.as_float(other)
        if sum(masks) != 1 or not step.axes:
            return einsum(step.axes, *(self.as_float(one) for one in inputs))
        union = tuple(dict.fromkeys(axis for one in inputs for axis in one.axes))
        if len(union) in (len(mask.axes), len(other.axes)):
            return self._reduced(replace(step, op="sum"), self._elementwise("mul", (mask, other)))
        kept = tuple(axis for axis in union if axis not in step.axes)
        return Expression(f'masked_sum("{equation(mask, other, kept)}", {mask.text}, {other.text})', kept)

    def _reduced(self, step: Step, one: Expression) -> Expression:
        dims = [one.axes.index(axis) for axis in step.axes]
        kept = tuple(axis for axis in one.axes if axis not in step.axes)
        shown = (
            "-1"
            if dims == [len(one.axes) - 1]
            else str(dims[0])
            if len(dims) == 1
            else str(tuple(sorted(dims)))
        )
        return Expression(f"{one.inside}.{'sum' if step.op == 'sum' else 'amax'}({shown})", kept)


def _is_infix(op: str) -> bool:
    """Return whether the torch code of an operator is no call."""
    return bool(OPS[op].torch) and not OPS[op].torch.endswith(")")


def spread(one: Expression, axes: Sequence[str]) -> Expression:
    """Return an expression that broadcasts against others with these axes, in this order."""
    order = [one.axes.index(axis) for axis in axes if axis in one.axes]
    text, atom = one.text, one.atom
    if order != list(range(len(order))):
        text, atom = f"{one.inside}.permute({', '.join(map(str, order))})", True
    present = [axis in one.axes for axis in axes]
    missing = present.index(True) if True in present else len(present)
    rest = present[missing:]  # leading dimensions broadcast by themselves
    if not all(rest):
        inner = text if atom else f"({text})"
        shown = [":" if kept else "None" for kept in rest]
        tail = shown[shown.index("None") :]
        if len(shown) - len(tail) > 1 and set(tail) == {"None"}:
            shown = ["...", *tail]
        text, atom = f"{inner}[{', '.join(shown)}]", True
    return Expression(text, tuple(axes), one.kind, atom)


def spread_text(text: str, axes: Sequence[str], wanted: Sequence[str], sizes: Mapping[str, str]) -> str:
    """Return a tensor with its dimensions in an order, repeated along each axis it lacks."""
    found = spread(Expression(text, tuple(axes)), wanted).text
    if set(axes) == set(wanted):
        return found
    return f"{found}.expand({', '.join(sizes[axis] for axis in wanted)})"


def einsum(axes: Sequence[str], a: Expression, b: Expression) -> Expression:
    """Return the product of two expressions, summed over axes."""
    union = tuple(dict.fromkeys((*a.axes, *b.axes)))
    kept = tuple(axis for axis in union if axis not in axes)
    return Expression(einsum_text(a, b, kept), kept, atom=not _plain_matmul(a, b, kept))


def einsum_text(a: Expression, b: Expression, kept: Sequence[str]) -> str:
    """Return the product of two expressions with the kept axes in order, the others summed over."""
    if _plain_matmul(a, b, kept):
        return f"{a.inside} @ {b.inside}"
    return f'torch.einsum("{equation(a, b, kept)}", {a.text}, {b.text})'


def equation(a: Expression, b: Expression, kept: Sequence[str]) -> str:
    """Return the axes of two expressions and of their product as einsum writes them."""
    letters = _letters(tuple(dict.fromkeys((*a.axes, *b.axes))))
    words = ["".join(letters[axis] for axis in axes) for axes in (a.axes, b.axes, kept)]
    return f"{words[0]},{words[1]}->{words[2]}"


def _plain_matmul(a: Expression, b: Expression, kept: Sequence[str]) -> bool:
    return (
        len(a.axes) >= 1
        and len(b.axes) == 2
        and a.axes[-1] == b.axes[0]
        and not set(b.axes) & set(a.axes[:-1])
        and tuple(kept) == (*a.axes[:-1], b.axes[1])
    )


def _letters(axes: Sequence[str]) -> dict[str, str]:
    """Return a letter for each axis, where possible a letter of the axis's name."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    found: dict[str, str] = {axis: axis for axis in axes if len(axis) == 1 and axis in alphabet}
    for axis in axes:
        taken = set(found.values())
        free = (
            one for one in (*axis.lower(), *axis.upper(), *alphabet) if one in alphabet and one not in taken
        )
        found.setdefault(axis, next(free))
    return found


def _selected(step: Step, one: Expression) -> Expression:
    places = dict(step.mapping)
    indices = [str(places[axis]) if axis in places else ":" for axis in one.axes]
    while indices and indices[-1] == ":":
        indices.pop()
    kept = tuple(axis for axis in one.axes if axis not in places)
    return Expression(f"{one.inside}[{', '.join(indices)}]", kept, one.kind)
