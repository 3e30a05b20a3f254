"""Equality of tensor programs: exact algebra over finite fields, then floats; two independent parts."""

from superopt.verify.equivalent import equivalent
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.arithmetic import Field
from superopt.verify.floats.report import Counterexample, DistributionReport, FloatReport
from superopt.verify.graphs.equality import equal_graphs
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
