"""Equality of tensor programs: exact algebra over finite fields, then floats; two independent parts."""

from superopt.verify.equality import equal_graphs
from superopt.verify.equivalent import equivalent
from superopt.verify.field import Field
from superopt.verify.interpret import interpret, tiny_sizes
from superopt.verify.report import Counterexample, DistributionReport, FloatReport
from superopt.verify.verdict import Verdict, Witness

__all__ = [
    "Counterexample",
    "DistributionReport",
    "Field",
    "FloatReport",
    "Verdict",
    "Witness",
    "equal_graphs",
    "equivalent",
    "interpret",
    "tiny_sizes",
]
