"""Focus: what the comparisons of a program look at, so that tests can aim at it.

Random numbers meet `b == 1` almost never, and `x > 50` seldom. A focus names the constants that a program
compares with, the inputs that it compares them with (found by inverting what lies between: `2 * x - 1 > 3`
looks at x around 2), and what must be seen of each comparison before a test has tested it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor

from superopt.ir import Graph, Opaque, Region, Step
from superopt.ir.stabilize import LOWEST, LOWEST_F64, stabilize
from superopt.trace.capture.tape import Call, operator_of
from superopt.trace.rounding import JUMPING
from superopt.trace.run import TORCH_DTYPES
from superopt.trace.traced import Traced
from superopt.verify.floats.comparison import (
    COMPARED,
    EXTREMA,
    SYMBOLS,
    Comparison,
    demands_of,
    may_take,
    names_of_minus_infinity,
    sorts_out_nan,
)
from superopt.verify.floats.inversion import Invert, inversion_of
from superopt.verify.floats.ranges import ANYTHING, TRUTH, range_of_dtype, range_of_step
from superopt.verify.ranges import Range

__all__ = ["Focus", "focus_of", "names_of"]

_MOST_CONSTANTS = 12  # constants that one input, or one program, may be aimed at
_MOST_SOURCES = 6  # inputs that a value is followed back to
_LONGEST = 60  # letters of a printed operand


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "sigmoid", "silu", "tanh", "gelu_tanh"})
_MOST_SHIFTS = 4  # exponentials of one graph whose shifts are worked out

_VIEWS = _words(
    "unsqueeze squeeze view _unsafe_view reshape permute transpose t expand slice select clone alias detach"
    " contiguous flatten unflatten _to_copy to unbind split chunk repeat lift_fresh"
)
_ANY_INTEGER = _words(
    "add sub rsub mul neg abs minimum maximum clamp sum amax amin cumsum where bitwise_and bitwise_or"
    " bitwise_xor bitwise_not logical_and logical_or logical_xor logical_not cat stack flip roll any all"
    " ones_like zeros_like full_like"
)
"""Operators that take any integers; others, as indexing, take some only."""


@dataclass(frozen=True, slots=True)
class Focus:
    """What the comparisons of some programs look at; the programs take the same tensors, in order."""

    programs: tuple[Graph | Traced, ...]
    # The nodes of each program, their exponentials made not to overflow.
    nodes: tuple[tuple[Region | Opaque, ...], ...]
    constants: tuple[float, ...]  # the constants of all comparisons
    by_input: tuple[tuple[float, ...], ...]  # numbers that an input is compared with, by its position
    ties: bool  # whether inputs are compared with one another
    drawn_integers: frozenset[int]  # positions of integer inputs that may hold any numbers
    kept_integers: frozenset[int]  # inputs of integers of which only some are valid, such as indices
    labels: tuple[tuple[int, int], ...]  # integer inputs that name places of an axis: position, its extent
    comparisons: tuple[Comparison, ...]  # comparisons that depend on the inputs and that no range decides
    jumps: bool  # whether some comparison of numbers that are computed, and rounded, makes a jump
    fragile: bool  # whether operators outside the algebra make jumps of numbers that are computed

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to aim at."""
        return not self.comparisons

    @property
    def sorts_out_nan(self) -> bool:
        """Whether results may be numbers where inputs are NaN."""
        return any(sorts_out_nan(one.graph) for one in self._all_nodes if isinstance(one, Region))

    @property
    def minus_infinities(self) -> frozenset[int]:
        """The positions of inputs that may be minus infinity where results are numbers."""
        regions = [one for one in self._all_nodes if isinstance(one, Region)]
        names = frozenset[str]().union(*(names_of_minus_infinity(one.graph) for one in regions))
        return frozenset(
            at for program in self.programs for at, name in enumerate(names_of(program)) if name in names
        )

    @property
    def is_algebra(self) -> bool:
        """Whether all operators are of the algebra, which takes any numbers."""
        return all(isinstance(one, Region) for one in self._all_nodes)

    def may_miss(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether inputs like these may lack numbers."""
        return may_take(self._all_nodes, tensors)

    @property
    def _all_nodes(self) -> list[Region | Opaque]:
        return [node for program in self.nodes for node in program]


@dataclass(frozen=True, slots=True)
class _Source:
    """An input that a value follows from, and what the input must be for the value to be some number."""

    position: int
    invert: Invert

    def before(self, invert: Invert) -> "_Source":
        """Return the source of what another operator makes of the value."""
        return _Source(self.position, lambda y: tuple(x for z in invert(y) for x in self.invert(z)))


@dataclass(frozen=True, slots=True)
class _Fact:
    """What is known of one tensor."""

    text: str
    range: Range = ANYTHING
    sources: tuple[_Source, ...] = ()
    depends: bool = False  # whether the value depends on the inputs
    exact: bool = True  # whether nothing was rounded between the inputs and the value
    direct: bool = False  # whether the value is an input, perhaps moved, negated, or scaled by a power of two
    inputs: frozenset[int] = frozenset()  # integer inputs of which it holds numbers


def _nodes_of(program: Graph | Traced) -> tuple[Region | Opaque, ...]:
    """Return the nodes of a program, exponentials less their maxima as PyTorch takes them; a graph is one."""
    nodes = (Region(program),) if isinstance(program, Graph) else program.program.nodes
    return tuple(Region(_stable(one.graph)) if isinstance(one, Region) else one for one in nodes)


def _stable(graph: Graph) -> Graph:
    """Return a graph whose exponentials do not overflow, where that is found in time."""
    return (
        stabilize(graph) if sum(step.op in _EXPONENTIALS for step in graph.steps) <= _MOST_SHIFTS else graph
    )


def focus_of(*programs: Graph | Traced) -> Focus:
    """Return what the comparisons of programs look at; the programs take the same tensors, in order."""
    finder = _Finder()
    nodes = [_nodes_of(program) for program in programs]
    for number, program in enumerate(programs):
        finder.read(number, program, nodes[number])
    count = max((len(names_of(program)) for program in programs), default=0)
    return Focus(
        programs,
        tuple(nodes),
        tuple(sorted(finder.constants, key=abs)[:_MOST_CONSTANTS]),
        tuple(tuple(sorted(finder.by_input.get(at, ()), key=abs)[:_MOST_CONSTANTS]) for at in range(count)),
        finder.ties,
        frozenset(finder.integers - finder.ranged),
        frozenset(finder.ranged),
        tuple(sorted(finder.labels.items())),
        tuple(one.met_by_labels(finder.labels) for one in finder.comparisons),
        finder.jumps,
        finder.fragile,
    )


def names_of(program: Graph | Traced) -> tuple[str, ...]:
    """Return the names of the tensors that a program takes, in order."""
    if isinstance(program, Graph):
        return tuple(port.name for port in program.inputs)
    return program.input_names


class _Finder:
    """Walks over programs and gathers what their comparisons look at."""

    def __init__(self) -> None:
        self.constants: set[float] = set()
        self.by_input: dict[int, set[float]] = {}
        self.ties = False
        self.jumps = False
        self.fragile = False
        self.integers: set[int] = set()
        self.ranged: set[int] = set()  # integer inputs of which only some numbers are valid
        # Inputs that are compared with positions of an axis, and the extent of that axis.
        self.labels: dict[int, int] = {}
        self.comparisons: list[Comparison] = []

    def read(self, number: int, program: Graph | Traced, nodes: Sequence[Region | Opaque]) -> None:
        """Gather what one program looks at."""
        ports = program.inputs if isinstance(program, Graph) else program.program.inputs
        dtypes = {port.name: port.dtype for port in ports}
        known: dict[str, _Fact] = {}
        for position, name in enumerate(names_of(program)):
            dtype = dtypes.get(name, "f32")
            is_integer = dtype[0] in "iu"
            if is_integer:
                self.integers.add(position)
            known[name] = _Fact(
                name,
                range_of_dtype(dtype),
                (_Source(position, lambda y: (y,)),),
                depends=True,
                direct=True,
                inputs=frozenset({position} if is_integer else ()),
            )
        for at, node in enumerate(nodes):
            if isinstance(node, Region):
                known |= _Region(self, number, at, node.graph, known).outputs()
            else:
                assert not isinstance(program, Graph)
                known |= self._opaque(node, program, known)

    def _opaque(self, node: Opaque, program: Traced, known: Mapping[str, _Fact]) -> dict[str, _Fact]:
        """Return what is known of what an operator outside the algebra makes."""
        operator = operator_of(node.target)
        given = [known.get(name, _Fact(name)) for name in node.inputs]
        depends = any(one.depends for one in given)
        integers = frozenset[int]().union(*(one.inputs for one in given))
        call = program.calls[node.name].call
        if operator in COMPARED:
            numbers = [float(one) for one in call.args if isinstance(one, int | float)]
            self.look(given[0], [Range(one, one) for one in numbers] or [one.range for one in given[1:]])
            self.ties |= len(given) > 1
            symbol = SYMBOLS[operator]
            sides = [one.text for one in given] + [f"{one:g}" for one in numbers]
            text = f" {symbol} ".join(sides)
            return {name: _Fact(text, TRUTH, depends=depends) for name in node.outputs}
        if operator in _VIEWS and not _makes_integers(call):
            return dict.fromkeys(node.outputs, given[0]) if given else {}
        jumps = operator in JUMPING or node.target.endswith("_mode") or _makes_integers(call)
        self.fragile |= jumps and not all(one.exact for one in given)
        if operator not in _ANY_INTEGER:
            self.ranged |= integers
            integers = frozenset()
        return {name: _Fact(name, depends=depends, exact=not given, inputs=integers) for name in node.outputs}

    def look(self, fact: _Fact, others: Sequence[Range]) -> None:
        """Note that a value is compared with others, of which some are constants."""
        for number in [one.number for one in others if one.number is not None]:
            self.constants.add(number)
            for source in fact.sources:
                found = self.by_input.setdefault(source.position, set())
                found.update(one for one in source.invert(number) if one == one and abs(one) < 1e300)
                if abs(number) == inf:
                    found.add(number)


def _makes_integers(call: Call) -> bool:
    """Whether a call casts to integers, which drops what follows the point."""
    dtype = call.kwargs.get("dtype")
    return dtype is not None and not dtype.is_floating_point


class _Region:
    """The facts of one region's values, and its comparisons."""

    def __init__(
        self, finder: _Finder, program: int, node: int, graph: Graph, known: Mapping[str, _Fact]
    ) -> None:
        self.finder = finder
        self.program = program
        self.node = node
        self.graph = graph
        self.facts: list[_Fact] = []
        self.ranges: list[Range] = []
        for value, port in enumerate(graph.inputs):
            fact = known.get(port.name, _Fact(port.name, range_of_dtype(port.dtype)))
            if port.dtype == "bool":
                self._boolean(value, fact)
                fact = _Fact(fact.text, TRUTH, fact.sources, fact.depends, fact.exact, fact.direct)
            self._add(fact)

    def outputs(self) -> dict[str, _Fact]:
        """Return what is known of the tensors that leave."""
        for value, step in self.graph.numbered:
            given = [self.facts[i] for i in step.inputs]
            if step.op in COMPARED or step.op in EXTREMA:
                self._compared(value, step, given)
            elif step.op in ("div", "reciprocal") and given[-1].depends:
                self.finder.look(given[-1], [Range(0, 0)])
            self._add(self._fact(step, given))
        return {output.port.name: self.facts[output.value] for output in self.graph.outputs}

    def _add(self, fact: _Fact) -> None:
        self.facts.append(fact)
        self.ranges.append(fact.range)

    def _fact(self, step: Step, given: list[_Fact]) -> _Fact:
        spread = range_of_step(self.graph, step, self.ranges)
        text = _text(step, given, spread)
        depends = any(one.depends for one in given)
        if not depends:
            return _Fact(text, spread)
        exact = all(one.exact for one in given) and step.op in _EXACT
        numbers = [None if one.depends else one.range.number for one in given]
        direct = any(one.direct for one in given) and _keeps_direct(step, given, numbers)
        return _Fact(text, spread, tuple(self._sources(step, given, numbers)), True, exact, direct)

    def _sources(self, step: Step, given: list[_Fact], numbers: list[float | None]) -> Iterator[_Source]:
        """Yield the inputs behind a value, the other operands taken as their constants, or as 0 or 1."""
        count = prod(self.graph.sizes[axis] for axis in step.axes) if step.axes else 1
        found = 0
        for at, fact in enumerate(given):
            other = numbers[1 - at] if len(given) == 2 else None
            invert = inversion_of(step.op, at, other, count)
            if invert is None:
                continue
            for source in fact.sources:
                if found < _MOST_SOURCES:
                    found += 1
                    yield source.before(invert)

    def _label(self, step: Step, given: list[_Fact]) -> None:
        """Note integers that are compared with the places of an axis: of others PyTorch may know nothing."""
        if step.op not in ("eq", "ne"):
            return
        for fact, other in zip(given, reversed(step.inputs), strict=True):
            index = self.graph.step_of(other)
            if index is not None and index.op == "index":
                extent = self.graph.sizes[index.axes[0]]
                self.finder.labels |= {
                    at: min(extent, self.finder.labels.get(at, extent)) for at in fact.inputs
                }

    def _compared(self, value: int, step: Step, given: list[_Fact]) -> None:
        left, right = given[0], given[1] if len(given) == 2 else _Fact("0", Range(0, 0))
        if not (left.depends or right.depends) or (
            len(step.inputs) == 2 and step.inputs[0] == step.inputs[1]
        ):
            return
        if step.op == "maximum" and right.range.number in (LOWEST, LOWEST_F64):  # `stabilize` puts it there
            return
        self.finder.look(left, [right.range])
        self.finder.look(right, [left.range])
        self.finder.ties |= left.depends and right.depends
        self._label(step, given)
        direct = all(one.direct or (not one.depends and self._is_exact(one)) for one in (left, right))
        # An input may never be greater than its own maximum.
        direct &= not {one.position for one in left.sources} & {one.position for one in right.sources}
        demands = demands_of(step.op, left.range.outcomes(right.range), direct=direct)
        if demands:
            exact = all(one.exact if one.depends else self._is_exact(one) for one in (left, right))
            self.finder.jumps |= step.op in COMPARED and not exact
            self._note(value, step.op, left, right, demands)

    def _boolean(self, value: int, fact: _Fact) -> None:
        if fact.depends and any(value in step.inputs for step in self.graph.steps):
            self._note(value, "bool", fact, _Fact(""), (frozenset({1}), frozenset({-1})))

    def _note(
        self, value: int, op: str, left: _Fact, right: _Fact, demands: tuple[frozenset[int], ...]
    ) -> None:
        integers = next(iter(left.inputs), None) if left.direct else None
        told = left.text, right.text, demands, integers, right.range.number
        self.finder.comparisons.append(Comparison(self.program, self.node, value, op, *told))

    def _is_exact(self, constant: _Fact) -> bool:
        """Whether inputs of each float dtype here can be just this number."""
        dtypes = {port.dtype for port in self.graph.inputs if port.dtype[0] in "fb" and port.dtype != "bool"}
        number = constant.range.number
        return number is not None and all(
            float(torch.tensor(number, dtype=torch.float64).to(TORCH_DTYPES[one])) == number for one in dtypes
        )


_EXACT = _words(
    "const infinity size index rename select window max neg abs relu maximum minimum where guard lt gt le ge"
    " eq ne and or not"
)
"""Operators that round nothing."""

_KEEPING = _words("rename select window neg abs relu max maximum minimum")


def _keeps_direct(step: Step, given: list[_Fact], numbers: list[float | None]) -> bool:
    """Whether a value takes on any number that is wanted, if its operands do."""
    if step.op in _KEEPING:
        return True
    factors = [one for one in numbers if one is not None]
    return step.op == "mul" and len(factors) == 1 and abs(factors[0]) in {2.0**k for k in range(-8, 9)}


def _text(step: Step, given: Sequence[_Fact], spread: Range) -> str:
    """Return a value as a user would write it, where that is short."""
    if not any(one.depends for one in given) and spread.number is not None:
        return f"{spread.number:g}"
    if step.op in ("rename", "select", "window"):
        return given[0].text
    inner = [one.text for one in given]
    if step.op in SYMBOLS:
        inner = [f"({one})" if " " in one and not one.endswith(")") else one for one in inner]
        text = f"{inner[0]} {SYMBOLS[step.op]} {inner[1]}"
    else:
        text = f"{step.op}({', '.join(inner)})"
    return text if len(text) <= _LONGEST else f"{step.op}(...)"
