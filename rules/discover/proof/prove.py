"""Proofs: a rule is refuted by numbers, or follows from the axioms, or is decided by z3 at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import inputs_of
from superopt.rules.discover.language.images import CONVOLUTIONS
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.axioms import axioms
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort
from superopt.rules.discover.proof.symbolic import holds_at_small_sizes

__all__ = ["STATUSES", "Proof", "Status", "check_axioms", "prove", "prove_each"]

Status = Literal["proven", "unknown", "refuted"]
STATUSES: tuple[Status, ...] = ("proven", "unknown", "refuted")

# How far derivations go, and how many rules are derived at once: small e-graphs take less time together.
_EFFORTS = (
    (Effort(rounds=3, nodes=1_500), 16),
    (Effort(rounds=5, nodes=6_000), 4),
    (Effort(rounds=7, nodes=12_000), 1),
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a rule: proven for all sizes, refuted with numbers, or neither."""

    status: Status
    detail: str


@cache
def _deriver_of(kind: _Kind) -> Deriver:
    """Return what derives from the axioms that a proof of such a rule may need."""
    return Deriver(_axioms_of(kind), names=kind.names, signs=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a proof is made of: matrices or images, and operators."""

    images: bool
    names: frozenset[str]
    partial: bool = False  # whether a tensor may be undefined, so that zero times it is not zero


def _kind(rule: Rule) -> _Kind:
    """Return what a proof of a rule needs: few operators, since each makes a derivation slower."""
    images = any(len(shape) == 4 for _, shape in rule.inputs)
    constants = {constant.name for name, _ in rule.inputs if (constant := constant_named(name)) is not None}
    families = {"matrices"}
    if not images and (constants or any(OPERATORS[name].family == "algebra" for name in rule.names)):
        families.add("algebra")
    names = {operator.name for operator in OPERATORS.values() if operator.family in families}
    for name in rule.names:
        names |= {name, *_beside(name)}
    if constants & {"box", "boxes"}:
        pools = {"avg_pool_half" if "half" in name else "avg_pool" for name in rule.names if "conv" in name}
        names |= pools.union(*map(_beside, pools))
    rank = 4 if images else 2
    partial = "where" in rule.names or any(OPERATORS[name].partial for name in rule.names)
    return _Kind(images, frozenset(name for name in names if rank in OPERATORS[name].ranks), partial)


def _beside(name: str) -> set[str]:
    """Return the operators by which another one on images is explained."""
    found = {
        "avg_pool": {"conv_same", "conv_depth"},
        "avg_pool_half": {"conv_half", "conv_half_depth"},
        "enlarge": {"enlarge_high", "enlarge_wide"},
    }.get(name, set())
    for one in CONVOLUTIONS:
        if one.name == name:
            found |= {one.plain, replace(one, groups="", relu=False).name}
    return found


def _axioms_of(kind: _Kind) -> list[Rule]:
    """Return the axioms of these operators on matrices or on images."""
    other = 2 if kind.images else 4
    return [
        axiom
        for axiom in axioms()
        if axiom.names <= kind.names and other not in {len(shape) for _, shape in axiom.inputs}
        if not (kind.partial and _is_product_with_zero(axiom))
    ]


def _is_product_with_zero(axiom: Rule) -> bool:
    """Return whether one side of an axiom is zero whatever some input of the other side is."""
    one, other = (
        {name for name in inputs_of(*side) if constant_named(name) is None}
        for side in (axiom.left, axiom.right)
    )
    zero = any(
        constant is not None and constant.name in ("zeros", "blank")
        for constant in (constant_named(name) for name, _ in axiom.inputs)
    )
    return zero and one != other


def prove(rule: Rule, seed: int) -> Proof:
    """Return the status of a rule; its counterexample is looked for with numbers drawn by the seed."""
    [proof] = prove_each([rule], seed)
    return proof


def prove_each(
    rules: Sequence[Rule], seed: int, tell: Callable[[int], None] = lambda done: None
) -> list[Proof]:
    """Return the status of each rule, in order; tell how many have one."""
    proofs = dict[int, Proof]()
    kinds = dict[_Kind, list[int]]()
    for at, rule in enumerate(rules):
        found = counterexample(rule, seed)
        if found is not None:
            proofs[at] = Proof("refuted", found.text())
        else:
            kinds.setdefault(_kind(rule), []).append(at)
    for effort, together in _EFFORTS:
        for kind, places in kinds.items():
            waiting = [at for at in places if at not in proofs]
            for start in range(0, len(waiting), together):
                tell(len(proofs))
                some = waiting[start : start + together]
                answers = _deriver_of(kind).derives_each([rules[at] for at in some], effort)
                for at, follows in zip(some, answers, strict=True):
                    if follows:
                        proofs[at] = Proof("proven", "follows from the axioms")
    return [proofs[at] if at in proofs else _decided(rule) for at, rule in enumerate(rules)]


def _decided(rule: Rule) -> Proof:
    """Return what z3 says of a rule that was not derived."""
    answer = holds_at_small_sizes(rule)
    if answer == "fails":
        return Proof("refuted", "z3 has a counterexample at sizes of 1 and 2")
    if answer == "holds":
        return Proof("unknown", "holds for all numbers at sizes of 1 and 2 (z3); no derivation was found")
    return Proof("unknown", "no derivation was found, and z3 reached its limit")


def check_axioms(seed: int, rules: Sequence[Rule] | None = None) -> Sequence[tuple[Rule, Proof]]:
    """Return what numbers and z3 at small sizes say of the axioms that these rules rest on, or of all.

    Derivations would be circular.
    """
    results = []
    kinds = dict.fromkeys(map(_kind, rules or ()))
    needed = {axiom: None for kind in kinds for axiom in _axioms_of(kind)}
    for axiom in axioms() if rules is None else needed:
        found = counterexample(axiom, seed)
        answer = "fails" if found is not None else holds_at_small_sizes(axiom)
        status: Status = "proven" if answer == "holds" else "refuted" if answer == "fails" else "unknown"
        detail = found.text() if found is not None else "by symbolic execution at sizes of 1 and 2"
        results.append((axiom, Proof(status, detail)))
    return results
