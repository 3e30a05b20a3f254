"""Facts: the operators and constants of two graphs, which decide the kind of field that tells them apart."""

from fractions import Fraction

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, tensorless_values
from superopt.ops import OPS, uses_of
from superopt.verify.evaluation.levels import LOGARITHMS
from superopt.verify.evaluation.tensorless import constants_of, roots_of
from superopt.verify.evaluation.tiny import is_narrow
from superopt.verify.graphs.align import Aligned

__all__ = ["Facts"]


class Facts:
    """The operators and constants of two programs."""

    def __init__(self, aligned: Aligned) -> None:
        self.left, self.right, self.links = aligned.left, aligned.right, aligned.links
        primitives, functions = set[str](), set[str]()
        for graph in self.graphs:
            tensorless = tensorless_values(graph)  # these values are computed exactly, in any field
            for at, step in graph.numbered:
                if step.op in OPS and not tensorless[at]:
                    used = uses_of(step.op)
                    primitives |= used[0]
                    functions |= used[1]
        self.functions = functions
        self.opened = bool(primitives & {"exp", "sqrt"} or functions & LOGARITHMS)
        self.ordered = "maximum" in primitives or "less" in primitives
        self.ordered |= any(step.op == "max" for graph in self.graphs for step in graph.steps)
        ports = [port for graph in self.graphs for port in graph.inputs]
        self.integers = any(port.dtype in INTEGERS for port in ports)
        self.chooses = (
            self.ordered
            or bool(primitives & {"equal", "where"})
            or "guard" in functions
            or any(port.dtype == "bool" for port in ports)
        )
        narrow = is_narrow(*self.graphs)
        found = [constants_of(graph, narrow) for graph in self.graphs]
        self.constants = frozenset[Fraction]().union(*(one[0] for one in found))
        self.roots = frozenset[Fraction]().union(*(roots_of(graph, narrow) for graph in self.graphs))
        self.logarithms = bool(functions & LOGARITHMS)
        self.algebraic = (
            all(one[1] for one in found)
            and not functions
            and primitives <= {"const", "add", "mul", "neg", "inv", "exp"}
            and not self.ordered
            and not self.integers  # integers wrap around
            and not any(step.op == "infinity" for graph in self.graphs for step in graph.steps)
        )

    @property
    def graphs(self) -> tuple[Graph, Graph]:
        """Both programs."""
        return self.left, self.right
