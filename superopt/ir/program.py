"""Program: a whole traced function, as regions of algebra with opaque operators between them."""

from dataclasses import dataclass

from superopt.errors import GraphError
from superopt.ir.graph import Graph, Port

__all__ = ["Opaque", "Program", "Region", "check_program"]


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of the program that is one graph; its ports are named after the tensors they carry."""

    graph: Graph

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors it reads."""
        return tuple(port.name for port in self.graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors it makes."""
        return tuple(output.port.name for output in self.graph.outputs)


@dataclass(frozen=True, slots=True)
class Opaque:
    """An operator the algebra has no rule for: it stays as PyTorch runs it."""

    name: str  # unique in the program, e.g. "embedding_1"
    target: str  # e.g. "aten.embedding.default"
    reason: str  # one clause that a user understands
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What a function computes: its tensors in and out, and the nodes between them in order."""

    name: str
    inputs: tuple[Port, ...]
    nodes: tuple[Region | Opaque, ...]
    outputs: tuple[str, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        """The nodes that superopt optimizes."""
        return tuple(node for node in self.nodes if isinstance(node, Region))

    @property
    def opaque(self) -> tuple[Opaque, ...]:
        """The nodes that stay as they are, each with its reason."""
        return tuple(node for node in self.nodes if isinstance(node, Opaque))


def check_program(program: Program) -> Program:
    """Return the program unchanged, or raise GraphError where a tensor is used before it is made."""
    made = {port.name for port in program.inputs}
    for node in program.nodes:
        for name in node.inputs:
            if name not in made:
                raise GraphError(f"program {program.name!r}: {name!r} is used before it is made")
        for name in node.outputs:
            if name in made:
                raise GraphError(f"program {program.name!r}: {name!r} is made twice")
            made.add(name)
    for name in program.outputs:
        if name not in made:
            raise GraphError(f"program {program.name!r}: output {name!r} is never made")
    return program
