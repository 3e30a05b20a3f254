"""Direct comparisons: those whose ties can be drawn, with all other numbers left to chance.

An input that is compared with a constant, or with another input, is equal to it on a plane of its own. Draws
reach that plane, whatever else depends on the comparison. A comparison of computed numbers may be equal for
several reasons, as x * y = x is for x = 0 and for y = 1, of which draws may never meet the one that matters.
"""

from collections.abc import Collection
from fractions import Fraction

from superopt.ir import Graph, closed_values, mask_values
from superopt.ops import OPS
from superopt.verify.evaluation.forms import Form, differences, linear_forms
from superopt.verify.evaluation.integers import integer_values

__all__ = ["direct_sites"]


def direct_sites(
    graph: Graph,
    constants: Collection[Fraction] = (),
    shifts: Collection[Fraction] = (),
    *,
    narrow: bool = False,
) -> dict[int, int]:
    """Return the comparisons of a graph whose ties can be drawn, each with how many ways it has to be one.

    Inputs hold some constants, and may be some shifts apart.
    """
    whole = integer_values(graph)
    closed, masks, forms = closed_values(graph), mask_values(graph), linear_forms(graph, narrow=narrow)
    found: dict[int, int] = {}
    for at, step in enumerate(graph.steps, len(graph.inputs)):
        if step.op not in OPS or not OPS[step.op].mask or len(step.inputs) != 2:
            continue
        one, other = step.inputs
        ways = differences(forms[one], forms[other])
        if masks[one] and masks[other]:  # of zeros and ones, equal ones are drawn all the time
            found[at] = 1
        elif ways is not None and all(_is_drawn(way, constants, shifts) for way in ways):
            found[at] = max(sum(bool(way.terms) for way in ways), 1)
        # Integers are drawn from the positions and constants that they are compared with.
        elif (whole[one] or whole[other]) and (closed[one] or closed[other]):
            found[at] = 1
    return found


def _is_drawn(form: Form, constants: Collection[Fraction], shifts: Collection[Fraction]) -> bool:
    """Whether draws reach the plane on which a form is zero."""
    if not form.terms:
        return True
    if form.root is not None:
        return form.root in constants
    return form.shift is not None and (form.shift == 0 or form.shift in shifts)
