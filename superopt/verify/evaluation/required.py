"""Required: numbers that must not be zero for a program to run at all.

A look-up by an index out of range raises in PyTorch, even where its result is masked or not used. Its proof
lowering multiplies by guard(v, v), where v is 1 if the index is in range: this module names such values.
"""

from superopt.ir import Step

__all__ = ["is_required"]


def is_required(step: Step) -> bool:
    """Return whether a program raises where this step makes 0."""
    return step.op == "guard" and step.inputs[0] == step.inputs[1]
