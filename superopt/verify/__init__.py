"""Equality of tensor programs: exact algebra over finite fields, then floats; two independent parts."""

from superopt.verify.equivalent import equivalent
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.verdict import Verdict

__all__ = [
    "Verdict",
    "equal_graphs",
    "equivalent",
]
