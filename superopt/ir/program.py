"""Program: a whole traced function, as regions of algebra with opaque operators between them.

Its text form lists the tensors that enter, the nodes in order, and what leaves:

    program layer
    in x: f16[m, k]
    region
      graph layer_0
      ...
    opaque cumsum_1 aten.cumsum.default(t3) -> cumsum_1_out: no rule for it
    out out
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.errors import GraphError
from superopt.ir.graph import Graph, Port, print_graph, print_port
from superopt.ir.text import parse_graph, parse_port

__all__ = ["Eager", "Opaque", "Program", "Region", "check_program", "parse_program", "print_program"]

_OPAQUE = re.compile(
    r"(?P<name>\S+) (?P<target>[^\s(]+)\((?P<inputs>[^)]*)\) -> (?P<outputs>[^:]*): (?P<reason>.*)"
)


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
    reason: str  # why the call is opaque, as one clause that a user understands
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


@dataclass(frozen=True, slots=True)
class Eager:
    """What PyTorch itself does for a program: each operator reads its operands and writes its results."""

    operators: int  # that compute something; views do not
    bytes: int  # that all of them read and write
    reads: Mapping[str, int] = field(default_factory=dict)  # how many of them read an input, by its name


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


def print_program(program: Program) -> str:
    """Return the text form."""
    lines = [f"program {program.name}", *(f"in {print_port(port)}" for port in program.inputs)]
    for node in program.nodes:
        if isinstance(node, Region):
            lines += ["region", *(f"  {line}" for line in print_graph(node.graph).splitlines())]
        else:
            reason = " ".join(node.reason.split())
            reads, makes = ", ".join(node.inputs), ", ".join(node.outputs)
            lines.append(f"opaque {node.name} {node.target}({reads}) -> {makes}: {reason}")
    return "\n".join([*lines, *(f"out {name}" for name in program.outputs)]) + "\n"


def parse_program(text: str) -> Program:
    """Return the program that a text describes, checked."""
    name = ""
    inputs: list[Port] = []
    nodes: list[Region | Opaque] = []
    outputs: list[str] = []
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        head, _, rest = line.partition(" ")
        if head == "program":
            name = rest.strip()
        elif head == "in":
            inputs.append(parse_port(rest, len(inputs) + 2))
        elif head == "out":
            outputs.append(rest.strip())
        elif line == "region":
            count = next((i for i, one in enumerate(lines) if not one.startswith("  ")), len(lines))
            nodes.append(Region(parse_graph("\n".join(lines[:count]))))
            lines = lines[count:]
        elif head == "opaque" and (match := _OPAQUE.fullmatch(rest)):
            nodes.append(
                Opaque(
                    match["name"],
                    match["target"],
                    match["reason"],
                    _names(match["inputs"]),
                    _names(match["outputs"]),
                )
            )
        elif line.strip():
            raise GraphError(f"{line!r} is none of 'program', 'in', 'region', 'opaque', 'out'")
    if not name:
        raise GraphError("the text has no 'program NAME' line")
    return check_program(Program(name, tuple(inputs), tuple(nodes), tuple(outputs)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
