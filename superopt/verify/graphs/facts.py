"""Facts: the operators and constants of two graphs, which decide the kind of field that tells them apart."""

from collections.abc import Callable
from fractions import Fraction

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, tensorless_values
from superopt.ops import OPS
from superopt.verify.evaluation.levels import LOGARITHMS
from superopt.verify.evaluation.tensorless import constants_of
from superopt.verify.evaluation.tiny import is_narrow
from superopt.verify.graphs.align import Aligned

__all__ = ["Facts"]


class Facts:
    """The operators and constants of two programs."""

    def __init__(self, aligned: Aligned) -> None:
        self.left, self.right, self.links = aligned.left, aligned.right, aligned.links
        names = _Names()
        for graph in self.graphs:
            tensorless = tensorless_values(graph)  # these values are computed exactly, in any field
            for at, step in graph.numbered:
                if step.op in OPS and not tensorless[at]:
                    OPS[step.op].scalar(names, *[None] * OPS[step.op].arity)
        self.functions = names.functions
        self.opened = bool(names.primitives & {"exp", "sqrt"} or names.functions & LOGARITHMS)
        self.ordered = "maximum" in names.primitives or "less" in names.primitives
        self.ordered |= any(step.op == "max" for graph in self.graphs for step in graph.steps)
        ports = [port for graph in self.graphs for port in graph.inputs]
        self.integers = any(port.dtype in INTEGERS for port in ports)
        self.chooses = (
            self.ordered
            or bool(names.primitives & {"equal", "where"})
            or "guard" in names.functions
            or any(port.dtype == "bool" for port in ports)
        )
        found = [constants_of(graph, is_narrow(*self.graphs)) for graph in self.graphs]
        self.constants = frozenset[Fraction]().union(*(one[0] for one in found))
        self.logarithms = bool(names.functions & LOGARITHMS)
        self.algebraic = (
            all(one[1] for one in found)
            and not names.functions
            and names.primitives <= {"const", "add", "mul", "neg", "inv", "exp"}
            and not self.ordered
            and not self.integers  # integers wrap around
        )

    @property
    def graphs(self) -> tuple[Graph, Graph]:
        """Both programs."""
        return self.left, self.right


class _Names:
    """Scalars that only note which primitives and which unknown functions are used."""

    def __init__(self) -> None:
        self.primitives: set[str] = set()
        self.functions: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        self.primitives.add(name)
        return lambda *args: None

    def function(self, name: str, *args: None) -> None:
        self.functions.add(name)
