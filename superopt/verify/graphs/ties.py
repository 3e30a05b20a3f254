"""Ties: trials in which numbers that are compared are equal, which random numbers never are."""

from collections import Counter
from collections.abc import Hashable
from math import ceil, log2

from superopt.verify.field.source import tied_shifts
from superopt.verify.graphs.direct import direct_sites
from superopt.verify.graphs.facts import Facts
from superopt.verify.graphs.rounds import Finding
from superopt.verify.graphs.setting import Setting
from superopt.verify.graphs.trials import Tally, batches, compare
from superopt.verify.verdict import Witness
from superopt.verify.words import called

__all__ = ["tied_rounds"]

_TIE_ROUNDS = 8
_MOST_TIED = 1 << 17  # trials of one round, where fewer are wanted
_TIE_BITS = 46  # of the part of the bound that is owed to ties
_TIE_ROUND = 2000
_DECLARED_ROUND = 3000


def tied_rounds(setting: Setting, tally: Tally, error: float) -> Finding:
    """Compare where numbers that are compared are equal; adds what that leaves open to the error."""
    share = 2.0 ** -min(setting.bound.outcomes if tally.dismissed else setting.bound.bits, 30)
    wanted = ceil(_TIE_BITS / -log2(1 - share / 2))
    if wanted > setting.most_trials:
        return Finding(error=1.0, notes=("no proof: too many comparisons to try equal numbers in each",))
    witness = _pooled(setting, tally.met, wanted)
    if witness is not None:
        return Finding(witness)
    notes: tuple[str, ...] = ()
    shifts = tied_shifts(setting.tiny.compared)
    direct = {(id(graph), site) for graph in setting.facts.graphs for site in direct_sites(graph, shifts)}
    left_out = frozenset(site for site, count in tally.met.items() if site not in direct or count < wanted)
    if left_out and _declared(setting, left_out, wanted) is not None:
        error = 1.0
        compared = _operators(setting.facts, left_out)
        notes = (f"no proof where {compared} compares equal numbers: no such inputs could be made up",)
    return Finding(error=error + (1 - share / 2) ** wanted, notes=notes)


def _pooled(setting: Setting, met: Counter[Hashable], wanted: int) -> Witness | None:
    """Compare where inputs hold constants and each other's numbers; counts the ties that are met."""
    tally = Tally(met=met)
    before: Counter[Hashable] = Counter()
    for number in range(_TIE_ROUNDS):
        open_sites = [site for site, count in met.items() if count < wanted]
        if not any(number < 2 or met[site] > before[site] for site in open_sites):
            break  # all are met often enough, or never
        before = met.copy()
        count = max(wanted, min(max(256, wanted) << min(number, 4), _MOST_TIED))
        drawn = setting.field(_TIE_ROUND + number, count, pooled=True)
        for batch in batches(setting, drawn, setting.roots.good(drawn)):
            witness = compare(setting, batch, tally)
            if witness is not None:
                return witness
    return None


def _declared(setting: Setting, sites: frozenset[Hashable], wanted: int) -> Witness | None:
    """Compare where comparisons that never come out equal are declared to, at random."""
    drawn = setting.field(_DECLARED_ROUND, 2 * wanted)
    for batch in batches(setting, drawn, setting.roots.good(drawn)[:wanted]):
        batch.declared = sites
        witness = compare(setting, batch, Tally(), judged=False)
        if witness is not None:
            return witness
    return None


def _operators(facts: Facts, sites: frozenset[Hashable]) -> str:
    """Return the operators of some comparisons, such as `>`."""
    graphs = {id(graph): graph for graph in facts.graphs}
    found = set()
    for site in sites:
        if isinstance(site, tuple):
            step = graphs[site[0]].step_of(site[1])
            found.add(step.op if step is not None else "")
    return called(sorted(found))
