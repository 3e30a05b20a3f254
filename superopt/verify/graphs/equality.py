"""Equality: whether two graphs are equal as exact algebra, by random tests over finite fields."""

from dataclasses import dataclass, replace
from math import inf
from time import perf_counter

from superopt.ir import Graph, live_graph, release_shifts
from superopt.ir.windows.apart import explicit, reads_windows, windows_apart
from superopt.ir.windows.products import surely_equal
from superopt.ir.windows.through import windows_through
from superopt.verify.bounds.ranks import ranks_only
from superopt.verify.evaluation.defined import defined_less_often
from superopt.verify.evaluation.integers import as_numbers, plain_integers
from superopt.verify.evaluation.orders import nonnegative_values
from superopt.verify.evaluation.tiny import is_narrow
from superopt.verify.field.residues import mix_seed
from superopt.verify.graphs.align import Aligned, align_graphs
from superopt.verify.graphs.decided_orders import decide_orders
from superopt.verify.graphs.facts import Facts
from superopt.verify.graphs.rounds import Finding, random_rounds
from superopt.verify.graphs.setting import OutOfTimeError, Setting
from superopt.verify.graphs.shared import cut_equal, cut_shared, same_outputs
from superopt.verify.graphs.ties import tied_rounds
from superopt.verify.graphs.trials import Tally
from superopt.verify.seeds import fresh_seed
from superopt.verify.verdict import ENOUGH, Verdict, combined
from superopt.verify.words import functions, knows_in_part, too_likely

__all__ = ["LATE", "equal_graphs"]

LATE = "the time for proofs was over"
"""The note of a verdict that more time might have changed."""

_BITS = 60  # an "equal" is wrong with a chance of at most 2^-60
_VARIANTS = (0, 1)  # choices of tiny sizes
_DEFINED = 4000  # mixed into the seed of the trials that compare where programs are defined
_SHARE = 0.1  # the proof of one inner value may take this share of the time that is left
_LEAST_S = 0.2  # and gets at least so many seconds, as long as any are left


@dataclass(frozen=True, slots=True)
class _Effort:
    """How hard equality is tried."""

    trials: int | None  # how many trials are drawn; None: as many as it takes
    seed: int
    bits: int  # how many bits of certainty are wanted
    end: float  # nothing is tried after this time of `perf_counter`
    sweeps: bool = True  # whether equal inner values are looked for first

    def of_inner(self) -> "_Effort":
        """Return the effort for one inner value, which leaves time to those after it."""
        now = perf_counter()
        share_s = max(_SHARE * (self.end - now), _LEAST_S)
        return replace(self, end=min(now + share_s, self.end), sweeps=False)

    def is_over(self) -> bool:
        """Whether the time is over."""
        return perf_counter() > self.end


def equal_graphs(
    a: Graph,
    b: Graph,
    *,
    trials: int | None = None,
    seed: int | None = None,
    bits: int = _BITS,
    end: float = inf,
) -> Verdict:
    """Return whether two graphs compute the same from the same inputs, as exact algebra.

    Inputs are matched by name, or by position where the names differ; outputs by position. A constant
    is the simple number it stands for, which makes 1/sqrt(128) and 128**-0.5 the same. Without
    `trials`, as many are drawn as bring the chance of error below 2^-bits, up to a limit.

    "different" is said only where the field refutes exactly; a difference that rests on orders, roots,
    unknown functions or rounded constants leaves it "unknown", with the witness.
    """
    start = perf_counter()
    effort = _Effort(trials, fresh_seed() if seed is None else seed, bits, end)
    verdict = _equal(a, b, effort)
    if verdict.unknown and effort.is_over() and LATE not in verdict.notes:
        verdict = replace(verdict, notes=(*verdict.notes, LATE))
    return replace(verdict, seconds=perf_counter() - start)


def _equal(a: Graph, b: Graph, effort: _Effort) -> Verdict:
    """Return the verdict on two graphs."""
    # A maximum that only shifts exponentials cancels; left in, it would cost a comparison for each pair.
    aligned = align_graphs(_without_shifts(live_graph(a)), _without_shifts(live_graph(b)))
    left, right = aligned.left, aligned.right
    if same_outputs(left, right):
        return _same(aligned, effort.seed)
    if effort.is_over():
        return Verdict("unknown", notes=(LATE,), seed=effort.seed)
    if reads_windows(a) or reads_windows(b):
        return _through_windows(a, b, effort)
    if plain := plain_integers(left, right):
        # Of integers few are drawn, which proves less. What holds of all numbers holds of integers too.
        wider = _equal(as_numbers(left, plain), as_numbers(right, plain), effort)
        if wider.equal:
            return wider
    verdict = _tried(aligned, effort)
    decided = _decided(left, right) if verdict.unknown else (left, right)
    if decided != (left, right):
        again = Aligned(*decided, aligned.links)
        rest = _same(again, effort.seed) if same_outputs(*decided) else _tried(again, effort)
        verdict = rest if rest.equal else verdict
    # Inner values come first: their proofs are small, and programs that are cut may take seconds to differ.
    if verdict.unknown:
        verdict = _swept(*decided, effort) or verdict
    cut = cut_shared(*decided) if verdict.unknown else None
    if cut is not None:
        rest = _tried(Aligned(*cut, aligned.links), effort)
        verdict = rest if rest.equal else verdict
    if verdict.equal and defined_less_often(left, right, aligned.links, mix_seed(effort.seed, _DEFINED)):
        note = "equal, but the second takes roots or logarithms of negative numbers where the first does not"
        verdict = replace(verdict, outcome="unknown", notes=(*verdict.notes, note))
    return verdict


def _without_shifts(graph: Graph) -> Graph:
    """Return a graph without the shifts of exponentials that surely are numbers."""
    return release_shifts(graph, nonnegative_values)


def _through_windows(a: Graph, b: Graph, effort: _Effort) -> Verdict:
    """Return the verdict on graphs that read windows.

    Where both have the same windows of inputs, equality is first tried for any tensors in their place. Then
    sums of products are compared by what they read, all of which is worked out; next inner values, one after
    the other. Then windows are as near to the inputs as they can be. Last they are contractions with masks,
    compared element by element.
    """
    first, second = windows_apart(a), windows_apart(b)
    if first is not None and second is not None and first.same_windows(second):
        verdict = _equal(first.graph, second.graph, effort)
        if verdict.equal:
            return verdict
    if surely_equal(a, b):
        return Verdict("equal", error_bound=0.0, seed=effort.seed)
    swept = _swept(a, b, effort)
    if swept is not None:
        return swept
    near = windows_through(a), windows_through(b)
    if near != (a, b):
        return _equal(*near, effort)
    left, right = explicit(a), explicit(b)
    if left is None or right is None:
        note = "no proof was tried: windows along axes that are too long"
        return Verdict("unknown", notes=(note,), seed=effort.seed)
    return _equal(left, right, effort)


def _swept(a: Graph, b: Graph, effort: _Effort) -> Verdict | None:
    """Return that two graphs are equal by inner values that are; None where that does not show it."""
    if not effort.sweeps:
        return None
    cut = cut_equal(a, b, lambda one, other: _equal(one, other, effort.of_inner()))
    if cut is None:
        return None
    one, other, inner = cut
    verdict = combined([*inner, _equal(one, other, replace(effort, sweeps=False))])
    return verdict if verdict.equal else None


def _same(aligned: Aligned, seed: int) -> Verdict:
    """Return the verdict on two graphs that take the same steps."""
    names = functions(Facts(aligned).functions)
    return Verdict("equal", error_bound=0.0, oracles=names, seed=seed)


def _decided(left: Graph, right: Graph) -> tuple[Graph, Graph]:
    """Return the graphs with all comparisons replaced that the order of real numbers decides."""
    narrow = is_narrow(left, right)
    return decide_orders(left, narrow=narrow) or left, decide_orders(right, narrow=narrow) or right


def _tried(aligned: Aligned, effort: _Effort) -> Verdict:
    """Return the verdict of random tests."""
    facts = Facts(aligned)
    if not facts.opened:
        return _by_ranks(facts, _decide(facts, effort, sealed=False), effort)
    # Most equal programs stay equal with any functions in the place of exp, sqrt and log. That takes fewer
    # trials, none of which is lost to the root of a non-square.
    sealed = _decide(facts, effort, sealed=True)
    if sealed.equal:
        return sealed
    verdict = _by_ranks(facts, _decide(facts, effort, sealed=False), effort)
    # Where no trial has squares under all roots, only the sealed trials have seen a difference.
    return replace(verdict, witness=verdict.witness or sealed.witness) if verdict.unknown else verdict


def _by_ranks(facts: Facts, verdict: Verdict, effort: _Effort) -> Verdict:
    """Return the verdict under random ranks, where a maximum of many numbers was too much for signs."""
    if not verdict.unknown or not ranks_only(*facts.graphs):
        return verdict
    ranked = _decide(facts, replace(effort, trials=None), sealed=True, ranked=True)
    return ranked if ranked.equal else verdict


def _decide(facts: Facts, effort: _Effort, *, sealed: bool, ranked: bool = False) -> Verdict:
    """Return the verdict in one kind of field, over all choices of sizes."""
    bounds: list[float | None] = []
    notes: dict[str, None] = {}
    total = 0
    witness = None
    exact = True
    for variant in _VARIANTS:
        tally = Tally()
        try:
            setting = Setting(
                facts, variant, effort.seed, effort.bits, sealed=sealed, ranked=ranked, end=effort.end
            )
            exact &= setting.exact
            finding = _compared(setting, tally, effort.trials)
        except OutOfTimeError:
            finding = Finding(notes=(LATE,))
        witness = finding.witness
        total += tally.kept
        notes |= dict.fromkeys(finding.notes)
        bounds.append(finding.error)
        if witness is not None or finding.error is None or finding.error > ENOUGH:
            break  # another choice of sizes would not make them equal
    known = [bound for bound in bounds if bound is not None]
    bound = max(known) if witness is None and len(known) == len(bounds) else None
    if witness is not None and not exact:
        ordered = facts.ordered or facts.chooses
        part = knows_in_part(ordered=ordered, integers=facts.integers, names=facts.functions)
        notes[part] = None
    elif bound is not None and bound > ENOUGH and not notes:
        notes[too_likely(bound)] = None
    return Verdict(
        "different"
        if witness is not None and exact
        else "equal"
        if bound is not None and bound <= ENOUGH
        else "unknown",
        trials=total,
        error_bound=bound,
        witness=witness,
        oracles=functions(facts.functions),
        notes=tuple(notes),
        seed=effort.seed,
    )


def _compared(setting: Setting, tally: Tally, trials: int | None) -> Finding:
    """Return the finding of all trials of one setting."""
    setting.check_time()
    if setting.obstacle:
        return Finding(notes=(f"no proof was tried: {setting.obstacle}",))
    found = random_rounds(setting, tally, trials)
    if found.error is None or found.error > ENOUGH or not tally.met:
        return found
    tied = tied_rounds(setting, tally, found.error)
    return replace(tied, notes=(*found.notes, *tied.notes))
