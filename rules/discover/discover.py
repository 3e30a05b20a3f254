"""discover(): from operators and inputs to proven rules, by the stages of the search in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt.clock import Clock
from superopt.errors import InputError
from superopt.rules.discover.equalities import Equalities, read_equalities, write_equalities
from superopt.rules.discover.language.constants import CONSTANTS
from superopt.rules.discover.language.images import CONVOLUTIONS
from superopt.rules.discover.language.operators import OPERATORS, operators_named
from superopt.rules.discover.language.rule import Rule, rule_text
from superopt.rules.discover.proof.prove import Proof, prove_each
from superopt.rules.discover.search.candidates import candidates_of
from superopt.rules.discover.search.enumerate import Explorer, all_terms
from superopt.rules.discover.search.joint import joint_rules
from superopt.rules.discover.search.prune import Dropped, named, prune
from superopt.rules.discover.search.redundant import redundant
from superopt.rules.discover.search.terms import Setting, Units

__all__ = ["MATRICES", "Discovery", "default_setting", "discover"]

# The dimensions of inputs in units; those of two units can be split.
_MATRIX: Units = (("u", "u"), ("u", "u"))
_COLUMN: Units = (("u", "u"), ("1",))
_WINDOW: Units = (("wide(k)",), ("wide(j)",))
_IMAGE: Units = (("b", "b"), ("c", "c"), ("y",), ("z",))
_CHANNELS: Units = (("c", "c"), ("c", "c"))
_WEIGHT: Units = (*_CHANNELS, *_WINDOW)
_OF_GROUPS: Units = (("c", "c"), ("c",), *_WINDOW)
_OF_DEPTH: Units = (("c", "c"), ("1",), *_WINDOW)
_SMALL: Mapping[str, Units] = {  # windows of weights that get a border
    "r": (("k",), ("j",)),
    "l": (("k",), ("wide(j)",)),
    "m": (("wide(k)",), ("j",)),
}
_GROWS = {"r": "enlarge", "l": "enlarge_high", "m": "enlarge_wide"}
_OF_CONSTANTS: Mapping[str, Units] = {
    "eye": _MATRIX,
    "ones": _MATRIX,
    "zeros": _MATRIX,
    "dirac": (*_CHANNELS, ("k",), ("j",)),
    "full": _IMAGE,
    "blank": _IMAGE,
    "box": (*_CHANNELS, ("3",), ("3",)),
    "boxes": (("c", "c"), ("1",), ("3",), ("3",)),
}

MATRICES = tuple(operator.name for operator in OPERATORS.values() if operator.family == "matrices")
"""The operators that are enumerated unless others are named."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """Rules with their proofs, what was dropped and why, and what every stage counted."""

    setting: Setting
    size: int
    rules: tuple[tuple[Rule, Proof], ...]
    dropped: tuple[Dropped, ...]
    counts: Mapping[str, int]
    ms: Mapping[str, float]


def default_setting(
    size: int, names: Sequence[str] = MATRICES, seed: int = 0, constants: Sequence[str] = ()
) -> Setting:
    """Return the operators over as many tensors as graphs of this size can tell apart.

    The tensors are matrices where an operator takes only these, images and weights where one takes only
    those, and matrices where all operators take both. Two scalars and the constants stand beside them.
    """
    operators = operators_named(names)
    alone = {operator.ranks[0] for operator in operators if len(operator.ranks) == 1}
    ranks = alone or {2}
    inputs: list[tuple[str, Units]] = []
    if 2 in ranks:
        inputs += [(chr(ord("a") + number), _MATRIX) for number in range(size + 1)]
        if "scale_rows" in names:
            inputs += [(name, _COLUMN) for name in ("ij" if 4 in ranks else "vw")]
    if 4 in ranks:
        inputs += _image_inputs(size, names)
    if "scale" in names:
        inputs += [("s", ()), ("t", ())]
    for name in constants:
        if name not in CONSTANTS:
            raise InputError(f"there is no constant {name!r}; there are {', '.join(CONSTANTS)}")
        if CONSTANTS[name].rank not in ranks:
            raise InputError(f"the constant {name!r} goes with other tensors than {', '.join(names)}")
        inputs.append((name, _OF_CONSTANTS[name]))
    samples = 8 if 2 in ranks else 4
    return Setting(operators, tuple(inputs), samples=samples, seed=seed)


def _image_inputs(size: int, names: Sequence[str]) -> list[tuple[str, Units]]:
    """Return images, and the weights that some operator takes."""
    count = (size + 3) // 2
    inputs = [(name, _IMAGE) for name in "xyz"[:count]]
    kinds = {one.groups for one in CONVOLUTIONS if one.name in names}
    borders = {name for name in names if name.startswith("enlarge")}
    if "" in kinds or borders:
        inputs += [(name, _WEIGHT) for name in "uvw"[:count]]
    if "groups" in kinds:
        inputs.append(("g", _OF_GROUPS))
    if "depth" in kinds:
        inputs += [("p", _OF_DEPTH), ("q", _OF_DEPTH)]
    return inputs + [
        (name, (*_CHANNELS, *windows)) for name, windows in _SMALL.items() if _GROWS[name] in borders
    ]


def discover(
    setting: Setting,
    size: int,
    explore: Explorer,
    *,
    saved: Path | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Discovery:
    """Return the rules between graphs of up to `size` operators.

    The equalities of the search are saved in a file where one is given; to resume is to read them there.
    """
    if size < 1:
        raise InputError(f"graphs of {size} operators make no rules; give at least 1")
    clock = Clock()
    origin = f"graphs of up to {size} operators of {setting.text()}"
    if resume and saved is not None and saved.exists():
        found = read_equalities(saved, origin)
    else:
        found = _equalities(setting, size, explore, clock, tell)
        if saved is not None:
            write_equalities(found, saved, origin)
    with clock.phase("drop"):
        followed = redundant(found.rules, setting.operators, lambda text: tell(f"pruning: {text}"))
    kept = [rule for rule in found.rules if rule not in followed]
    dropped = [Dropped(rule_text(rule), "follows from the other rules") for rule in followed]
    rules = [*named(kept), *named(found.joint)]
    with clock.phase("prove"):
        proofs = prove_each(
            rules, setting.seed + 2, lambda done: tell(f"proving: {done} of {len(rules)} rules")
        )
    counts = {**found.counts, "followed": len(found.dropped) + len(dropped), "rules": len(rules)}
    proven = tuple(zip(rules, proofs, strict=True))
    return Discovery(setting, size, proven, (*found.dropped, *dropped), counts, clock.ms)


def _equalities(
    setting: Setting, size: int, explore: Explorer, clock: Clock, tell: Callable[[str], None]
) -> Equalities:
    """Return the rules that imply all equalities between terms, among these."""
    terms, graphs = all_terms(setting, size, explore, clock, tell)
    with clock.phase("compare"):
        candidates = candidates_of(terms)
    counts = {
        "graphs": graphs,
        "terms": len(terms),
        "equal": candidates.equal,
        "replaced": candidates.replaced,
        "renamed": candidates.renamed,
        "candidates": len(candidates.lefts),
    }
    tell(f"{len(terms):,} tensors, {candidates.equal:,} equalities, {len(candidates.lefts):,} candidates")
    with clock.phase("prune"):
        pruned = prune(terms, candidates, setting.seed + 1, lambda text: tell(f"pruning: {text}"))
    with clock.phase("joint"):
        joint = tuple(joint_rules(terms, setting.seed + 1))
    counts |= {"closed": pruned.closed, "joint": len(joint)}
    return Equalities(pruned.rules, joint, pruned.dropped, counts)
