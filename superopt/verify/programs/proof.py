"""Proof of two programs in pieces: tensor by tensor, from what enters to what leaves.

Each pair of tensors or calls that seem to be the same is proven to be, given that those before it are:
they enter the piece as free inputs, which is more than is needed. Chances of error add up; pieces that are
the same but for names, as the layers of a model are, are one claim and are proven once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from superopt.errors import InputError, SuperoptError
from superopt.ir import Graph, Port, tensorless_values
from superopt.ir.windows.apart import reads_windows
from superopt.verify.graphs.align import align_ports, name_alike
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.programs.matching import CallPair, CutPair, Matching, match, nothing_matched
from superopt.verify.programs.parting import parting, unmatched_calls
from superopt.verify.programs.pieces import Ordered, Target, canonical, cut_port, piece, with_same_inputs
from superopt.verify.programs.whole import OpaqueUse, Whole
from superopt.verify.verdict import Verdict, combined
from superopt.verify.words import only_in_one

__all__ = ["Proof", "prove"]

_LONG = 120  # steps from which a program is proven in pieces right away
_BITS = 66  # a piece is wrong with a chance below 2^-66, so that many pieces add up to less than 2^-60
_MOST_FAILURES = 3  # pieces without a proof after which no more are tried
_MOST_AXES = 30  # axes of a piece: an array has at most 64 dimensions, and holds two pieces and two more axes

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Proof:
    """What algebra says of two programs; `exact` if a difference needs no example in numbers."""

    verdict: Verdict
    exact: bool = False


def prove(
    left: Whole,
    right: Whole,
    constants: tuple[frozenset[str], frozenset[str]],
    *,
    trials: int | None,
    seed: int,
    titles: Mapping[str, str],
    progress: Progress,
) -> Proof:
    """Return whether two programs compute the same, their inputs and shared constants having the same names.

    `constants` are the inputs of each that the caller does not give, `titles` what a user calls them.
    """
    if _identical(left, right):
        called = _unknown_functions((left,))
        same = ("both programs take the same steps",)
        return Proof(Verdict("equal", error_bound=0.0, oracles=called, notes=same, seed=seed))
    a, b, links = _aligned(left, right)
    sides = Ordered(a, constants[0]), Ordered(b, constants[1])
    short = max(len(side.order) for side in sides) < _LONG
    windows = any(reads_windows(side.graph) for side in sides)  # which matching does not evaluate
    tried: Proof | None = None
    for cuts in (False,) if windows else (False, True) if short else (True,):
        if windows or (not cuts and not left.calls and not right.calls):
            found = nothing_matched(*sides)  # the proof starts with the whole program as one piece
        else:
            found = match(*sides, links, seed, cuts=cuts)
        proof = _Prover(sides, found, trials, seed, titles, progress).run()
        if proof.verdict.equal or proof.exact:
            return proof
        if tried is None or proof.verdict.place or not tried.verdict.place:
            tried = _fuller(tried, proof)
    assert tried is not None
    return tried


def _fuller(first: Proof | None, second: Proof) -> Proof:
    """Return the proof of a whole, with the place that a look at its pieces found."""
    if first is None:
        return second
    return replace(first, verdict=replace(first.verdict, place=second.verdict.place))


def _unknown_functions(sides: Sequence[Whole | Ordered]) -> tuple[str, ...]:
    """Return the operators that were taken as unknown functions: memory that nobody wrote is none."""
    return tuple(sorted({call.target for side in sides for call in side.calls if not call.unwritten}))


def _identical(left: Whole, right: Whole) -> bool:
    """Return whether two programs have the same steps and calls, as a function that is traced twice has."""
    alike = [(one.signature, one.arguments) for one in left.calls] == [
        (other.signature, other.arguments) for other in right.calls
    ]
    if not alike or left.results != right.results:
        return False
    pairs = zip(left.calls, right.calls, strict=True)
    names = {y: x for one, other in pairs for x, y in zip(one.results, other.results, strict=True)}
    renamed = tuple(replace(port, name=names.get(port.name, port.name)) for port in right.graph.inputs)
    return replace(right.graph, name=left.graph.name, inputs=renamed) == left.graph


def _aligned(left: Whole, right: Whole) -> tuple[Whole, Whole, tuple[tuple[str, str], ...]]:
    """Return the programs on common axes: through inputs, results, and calls that may be the same."""
    calls = _alike(left.calls, right.calls)

    def shared(a: Graph, b: Graph) -> list[tuple[Port, Port]]:
        named = {port.name: port for port in b.inputs}
        inputs = [(port, named[port.name]) for port in a.inputs if port.name in named]
        outputs = zip(left.results, right.results, strict=True)
        return inputs + [(a.outputs[i].port, b.outputs[j].port) for i, j in outputs]

    def all_ports(a: Graph, b: Graph) -> list[tuple[Port, Port]]:
        of_a, of_b = ({port.name: port for port in graph.inputs} for graph in (a, b))
        found = shared(a, b)
        for one, other in calls:
            outputs = zip(one.arguments, other.arguments, strict=True)
            found += [(a.outputs[i].port, b.outputs[j].port) for i, j in outputs]
            found += [(of_a[x], of_b[y]) for x, y in zip(one.results, other.results, strict=True)]
        return found

    try:
        aligned = align_ports(left.graph, right.graph, all_ports)
    except InputError:
        if not calls:
            raise
        aligned = align_ports(left.graph, right.graph, shared)
    second = name_alike(aligned.left, aligned.right)
    back = {axis.name: new.name for axis, new in zip(aligned.right.axes, second.axes, strict=True)}
    links = {(x, back.get(y, y)) for x, y in aligned.links}
    a, b = replace(left, graph=aligned.left), replace(right, graph=second)
    return a, b, tuple(sorted(links | _links_of_calls((a, b))))


def _links_of_calls(sides: tuple[Whole, Whole]) -> set[tuple[str, str]]:
    """Return the axes of all calls that may be the same, which have to be evaluated alike to be compared."""
    first: dict[str, list[tuple[str, int]]] = {}
    links: set[tuple[str, str]] = set()
    for whole in sides:
        sizes = whole.graph.sizes
        inputs = {port.name: port for port in whole.graph.inputs}
        for call in whole.calls:
            ports = [whole.graph.outputs[number].port for number in call.arguments]
            ports += [inputs[name] for name in call.results]
            axes = [(axis, sizes[axis]) for port in ports for axis in port.axes if sizes[axis] != 1]
            known = first.setdefault(call.signature, axes)
            if [size for _, size in known] == [size for _, size in axes]:
                links.update((x, y) for (x, _), (y, _) in zip(known, axes, strict=True) if x != y)
    return links


def _alike(left: Sequence[OpaqueUse], right: Sequence[OpaqueUse]) -> list[tuple[OpaqueUse, OpaqueUse]]:
    """Return calls of equal signatures, in order: their tensors have the same shapes at least."""
    waiting: dict[str, list[OpaqueUse]] = {}
    for call in right:
        waiting.setdefault(call.signature, []).append(call)
    return [(call, waiting[call.signature].pop(0)) for call in left if waiting.get(call.signature)]


@dataclass(slots=True)
class _Prover:
    """The state of one proof: under which names tensors enter the next piece."""

    sides: tuple[Ordered, Ordered]
    matching: Matching
    trials: int | None
    seed: int
    titles: Mapping[str, str]
    progress: Progress
    stops: tuple[dict[int, Port], dict[int, Port]] = field(default_factory=lambda: ({}, {}))
    names: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    claims: dict[tuple[Graph, Graph], Verdict] = field(default_factory=dict)
    failed: list[Verdict] = field(default_factory=list)

    def run(self) -> Proof:
        """Return the verdict on the whole."""
        for side, names, prefix in zip(self.sides, self.names, ("first", "second"), strict=True):
            for value in side.made_by:  # results of calls are tensors of their own until more is known
                names[value] = f"{prefix} {side.graph.inputs[value].name}"
        for number, pair in enumerate(self.matching.pairs, 1):
            if len(self.failed) >= _MOST_FAILURES:
                break
            self.progress(f"algebra: piece {number} of {len(self.matching.pairs) + 1}")
            self._pair(pair)
        return self._results()

    def _pair(self, pair: CutPair | CallPair) -> None:
        """Prove that two tensors or two calls are the same, and let later pieces begin there."""
        if isinstance(pair, CallPair):
            self._call(pair)
            return
        left, right = self.sides
        targets = [
            (Target(cut_port(side, value, "cut"), value),)
            for side, value in ((left, pair.left), (right, pair.right))
        ]
        if self._claim((0, 1), targets[0], targets[1]).equal:
            self._stop(pair.left, pair.right, pair.name)

    def _call(self, pair: CallPair) -> None:
        (i, one), (j, other) = pair.one, pair.other
        first, second = self.sides[i], self.sides[j]
        if not self._claim((i, j), first.arguments(one), second.arguments(other)).equal:
            return
        made = {port.name: value for value, port in enumerate(first.graph.inputs)}
        twins = {port.name: value for value, port in enumerate(second.graph.inputs)}
        for x, y in zip(first.calls[one].results, second.calls[other].results, strict=True):
            self.names[j][twins[y]] = self.names[i][made[x]]

    def _claim(self, which: tuple[int, int], left: Sequence[Target], right: Sequence[Target]) -> Verdict:
        """Return whether targets are the same, given all that is known; keeps what was not shown."""
        verdict, _ = self._shown(which, left, right)
        if not verdict.equal:
            self.failed.append(verdict)
        return verdict

    def _shown(
        self, which: tuple[int, int], left: Sequence[Target], right: Sequence[Target]
    ) -> tuple[Verdict, Graph]:
        """Return whether targets are the same: at once, else by way of what they are made from."""
        verdict, compared = self._compare(which, left, right)
        if not verdict.unknown or which != (0, 1):
            return verdict, compared
        before = tuple(dict(stops) for stops in self.stops)
        ways: list[Callable[[], bool]] = [
            partial(self._prove_inner, left, right, wanted) for wanted in (_is_turn, _is_number, _is_any)
        ]
        for way in (*ways, self._bits):
            if way():
                finer, _ = self._compare(which, left, right)
                verdict = finer if finer.equal else verdict
            if verdict.equal:
                break
        # What is cut here is no more known to be a good place than that it helped this once.
        for stops, known in zip(self.stops, before, strict=True):
            stops.clear()
            stops.update(known)
        return verdict, compared

    def _prove_inner(
        self, left: Sequence[Target], right: Sequence[Target], wanted: Callable[[Ordered, int], bool]
    ) -> bool:
        """Cut both programs at inner tensors that both have and that can be shown to be the same."""
        ours, theirs = (
            side.within([target.value for target in targets], stops)
            for side, targets, stops in zip(self.sides, (left, right), self.stops, strict=True)
        )
        done = {target.value for target in left}
        found = False
        for value in ours:
            twin = self.matching.inner.get(value)
            if value in done or twin not in theirs or twin is None or not wanted(self.sides[0], value):
                continue
            pair = zip(self.sides, (value, twin), strict=True)
            one, other = ((Target(cut_port(side, own, "cut"), own),) for side, own in pair)
            if self._compare((0, 1), one, other)[0].equal:
                self._stop(value, twin, f"inner {value}")
                found = True
        return found

    def _stop(self, left: int, right: int, name: str, dtype: str = "f64") -> None:
        """Let pieces begin at two values that are the same."""
        for side, stops, value in zip(self.sides, self.stops, (left, right), strict=True):
            stops[value] = cut_port(side, value, name, dtype=dtype)

    def _bits(self) -> bool:
        """Let masks that were cut enter as bits, where any numbers were more than is needed."""
        masks = [value for value in self.stops[0] if self.sides[0].is_mask(value)]
        for value in masks:
            self._stop(value, self.matching.inner[value], f"inner {value}", "bool")
        return bool(masks)

    def _compare(
        self, which: tuple[int, int], left: Sequence[Target], right: Sequence[Target]
    ) -> tuple[Verdict, Graph]:
        i, j = which
        try:
            a = piece(self.sides[i], left, self.stops[i], self.names[i])
            b = piece(self.sides[j], right, self.stops[j], self.names[j])
            if a == b:
                return Verdict("equal", error_bound=0.0, seed=self.seed), a
            a, b = with_same_inputs(a, b)
            if max(len(a.axes), len(b.axes)) > _MOST_AXES:
                note = f"no proof: a piece of the programs has more than {_MOST_AXES} axes"
                return Verdict("unknown", notes=(note,), seed=self.seed), a
            key = canonical(a, b)
            if key not in self.claims:
                many = len(self.matching.pairs) > 0
                self.claims[key] = self._proven(a, b, many=many)
            return self.claims[key], a
        except SuperoptError as error:
            return Verdict("unknown", notes=(f"no proof: {error}",), seed=self.seed), self.sides[i].graph

    def _proven(self, a: Graph, b: Graph, *, many: bool) -> Verdict:
        if many:
            return equal_graphs(a, b, trials=self.trials, seed=self.seed, bits=_BITS)
        return equal_graphs(a, b, trials=self.trials, seed=self.seed)

    def _results(self) -> Proof:
        """Prove what the programs return; tensors that follow from the same tensors are proven together."""
        left, right = self.sides
        if len(self.failed) >= _MOST_FAILURES:
            return Proof(self._with_calls(self._failure(exact=False)))
        exact = proven = True
        groups: dict[frozenset[str], list[tuple[Target, Target]]] = {}
        for one, other in zip(left.results, right.results, strict=True):
            begins = self._begins(0, one) | self._begins(1, other)
            groups.setdefault(begins, []).append((one, other))
        given = {port.name for port in left.graph.inputs} - left.constants - right.constants
        for number, group in enumerate(groups.values(), 1):
            self.progress(f"algebra: results, {number} of {len(groups)}")
            ones, others = zip(*group, strict=True)
            if self._hopeless(ones, others):
                note = "no proof: the results differ in exact arithmetic, after too many steps to be sure"
                verdict, compared = Verdict("unknown", notes=(note,), seed=self.seed), left.graph
            else:
                verdict, compared = self._shown((0, 1), ones, others)
            if not verdict.equal:
                self.failed.append(verdict)
                proven = False
                exact = verdict.different and {port.name for port in compared.inputs} <= given
                if exact:
                    break
        if not proven:
            return Proof(self._with_calls(self._failure(exact=exact)), exact)
        shown = [verdict for verdict in self.claims.values() if verdict.equal]
        same = Verdict("equal", error_bound=0.0, notes=("both programs take the same steps",))
        whole = combined(shown) if shown else same
        return Proof(self._with_calls(replace(whole, seed=self.seed, place="")))

    def _hopeless(self, left: Sequence[Target], right: Sequence[Target]) -> bool:
        """Return whether a piece that ends in different numbers is too long to refute, or not the whole."""
        pairs = zip(left, right, strict=True)
        if all((one.value, other.value) in self.matching.results for one, other in pairs):
            return False
        if self.stops[0]:
            return True
        both = zip(self.sides, (left, right), self.stops, strict=True)
        return any(len(side.within([one.value for one in ends], stops)) > _LONG for side, ends, stops in both)

    def _begins(self, which: int, target: Target) -> frozenset[str]:
        """Return the names of the cuts that a piece begins at."""
        graph = piece(self.sides[which], (target,), self.stops[which], self.names[which])
        return frozenset(port.name for port in graph.inputs) & frozenset(
            port.name for port in self.stops[which].values()
        )

    def _with_calls(self, verdict: Verdict) -> Verdict:
        called = _unknown_functions(self.sides)
        return replace(verdict, oracles=tuple(sorted({*verdict.oracles, *called})))

    def _failure(self, *, exact: bool) -> Verdict:
        """Return why there is no proof: the first piece without one, and where it is."""
        first = next((one for one in self.failed if one.different), self.failed[0])
        alone = unmatched_calls(self.sides, self.matching)
        notes = tuple(dict.fromkeys(note for one in self.failed for note in one.notes))
        if first.witness is not None and not exact:
            free = "tensors in the middle" if self.stops[0] else ""
            calls = "results of operators outside the algebra" if any(s.calls for s in self.sides) else ""
            fixed = "constants" if any(side.constants for side in self.sides) else ""
            what = ", ".join(filter(None, (free, calls, fixed)))
            note = f"no proof: {what} are taken as any numbers, and on some the programs differ"
            notes = (*notes, note) if what else notes
        if alone:
            notes = (*notes, only_in_one(alone))
        return replace(
            first,
            outcome="different" if exact else "unknown",
            error_bound=None,
            place=parting(self.sides, self.matching, self.titles),
            notes=notes,
            seed=self.seed,
        )


def _is_turn(side: Ordered, value: int) -> bool:
    """Return whether a value is a product of tensors, or what an exponential or an unknown function reads."""
    step = side.graph.step_of(value)
    return step is not None and _is_number(side, value) and (step.op == "contract" or value in side.turns)


def _is_number(side: Ordered, value: int) -> bool:
    """Return whether a value is computed from a tensor, and is not one of two outcomes."""
    return not side.is_mask(value) and not tensorless_values(side.graph)[value]


def _is_any(side: Ordered, value: int) -> bool:
    """Return whether a value is a mask, of indices too, or is computed from a tensor."""
    return side.is_mask(value) or _is_number(side, value)
