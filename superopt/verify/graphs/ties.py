"""Ties: trials in which numbers that are compared are equal, which random numbers never are."""

from collections import Counter
from collections.abc import Hashable, Mapping
from math import ceil, log2

from superopt.verify.evaluation.forms import Form
from superopt.verify.evaluation.pool import Direct, direct_sites, independent
from superopt.verify.graphs.declared_ties import ACCIDENT, agree_where_declared, difference_where_declared
from superopt.verify.graphs.facts import Facts
from superopt.verify.graphs.rounds import Finding
from superopt.verify.graphs.setting import Setting
from superopt.verify.graphs.trials import Tally, batches, compare
from superopt.verify.verdict import Witness
from superopt.verify.words import called

__all__ = ["tied_rounds"]

_MOST_TIED = 1 << 18  # trials in which ties are looked for
_MOST_WORK = 1 << 23  # these trials, times the elements of the largest value
_FIRST = 256  # trials with ties that come first
_TIE_BITS = 44  # ties may add 2^-44 to the bound on the error
_TIE_ROUND = 2000
_MOST_AT_ONCE = 2  # ties of a comparison that trials with ties reach together
_TOGETHER = 1 / 8  # the share of the trials reaching one of two ties that reach both


def tied_rounds(setting: Setting, tally: Tally, error: float) -> Finding:
    """Compare on inputs that make comparisons tie; add to the error what stays uncertain."""
    share = _share(setting, dismissed=tally.dismissed > 0)
    wanted = ceil(_TIE_BITS / -log2(1 - share / 2))
    if wanted > setting.most_trials:
        return Finding(error=1.0, notes=("no proof: too many comparisons to try equal numbers in each",))
    direct = _direct(setting)
    search = _Search(setting, tally.met, direct, wanted)
    witness = search.draw(_FIRST)
    if witness is not None:
        return Finding(witness)
    every = frozenset(tally.met)
    # Random masks and integers tie now and then in any trial.
    asked = frozenset(site for site in every if site not in direct or direct[site].ways)
    if agree_where_declared(setting, asked):
        return Finding(error=error + ACCIDENT)
    # Comparisons whose ties cannot be drawn come first: no later trial makes them certain.
    hidden = frozenset(site for site in every if site not in direct)
    if hidden and difference_where_declared(setting, hidden, wanted):
        return _undecided(setting.facts, hidden)
    ways = frozenset[Form]().union(*(one.ways for site, one in direct.items() if site in every))
    at_once = independent(ways) + len(hidden)
    if at_once > _MOST_AT_ONCE:
        return _undecided(setting.facts, every, "too many may be equal at once")
    search.share = _TOGETHER if at_once > 1 else 1.0
    witness = search.draw(wanted) or search.complete()
    if witness is not None:
        return Finding(witness)
    left_out = hidden.union(search.rare)
    if left_out != hidden and difference_where_declared(setting, left_out, wanted):
        return _undecided(setting.facts, left_out)
    share = _share(setting, dismissed=tally.dismissed + search.tally.dismissed > 0)
    return Finding(error=error + (1 - share / 2) ** wanted)


def _direct(setting: Setting) -> dict[Hashable, Direct]:
    """Return the comparisons whose ties can be drawn."""
    tiny = setting.tiny
    return {
        (id(graph), site): one
        for graph in setting.facts.graphs
        for site, one in direct_sites(graph, tiny.pool, narrow=tiny.narrow).items()
    }


def _share(setting: Setting, *, dismissed: bool) -> float:
    """Return the fraction of all outcomes that show a difference, where trials were dismissed or not."""
    return float(2.0 ** -min(setting.bound.outcomes if dismissed else setting.bound.bits, 30))


def _undecided(
    facts: Facts, sites: frozenset[Hashable], why: str = "no such inputs could be made up"
) -> Finding:
    compared = _operators(facts, sites)
    note = f"no proof where {compared} compares equal numbers: {why}"
    return Finding(error=1.0, notes=(note,))


class _Search:
    """Trials where inputs hold constants and each other's numbers, until all comparisons have seen ties."""

    def __init__(
        self, setting: Setting, met: Counter[Hashable], direct: Mapping[Hashable, Direct], wanted: int
    ) -> None:
        self.setting, self.met, self.direct, self.wanted = setting, met, direct, wanted
        self.tally = Tally(met=met)
        self.share = 1.0  # the share of a comparison's ties that count
        self.rounds = self.drawn = 0

    @property
    def rare(self) -> list[Hashable]:
        """The comparisons that have not seen as many ties as are wanted of each way to be one."""
        return [site for site, count in self.met.items() if count < self._needed(site)]

    def _needed(self, site: Hashable) -> int:
        return ceil(self.wanted * (self.direct[site].count if site in self.direct else 1) / self.share)

    def draw(self, count: int) -> Witness | None:
        """Compare in some more trials, and count the ties that they meet."""
        drawn = self.setting.field(_TIE_ROUND + self.rounds, count, pooled=True)
        self.rounds += 1
        self.drawn += count
        for batch in batches(self.setting, drawn, self.setting.roots.good(drawn)):
            witness = compare(self.setting, batch, self.tally)
            if witness is not None:
                return witness
        return None

    def complete(self) -> Witness | None:
        """Draw as long as the ties that are still missed are frequent enough to be met."""
        while (count := self._missing()) > 0:
            witness = self.draw(count)
            if witness is not None:
                return witness
        return None

    def _missing(self) -> int:
        """Return how many more trials the rarest tie needs that can be met within the limit; or 0."""
        limit = max(2 * self.wanted, min(_MOST_TIED, _MOST_WORK // self.setting.largest))
        needed = [
            ceil((self._needed(site) / self.met[site] - 1) * self.drawn)
            for site in self.rare
            if self.met[site]
        ]
        within = [count for count in needed if self.drawn + count <= limit]
        return max(_FIRST, ceil(1.05 * max(within))) if within else 0


def _operators(facts: Facts, sites: frozenset[Hashable]) -> str:
    """Return the operators of some comparisons, such as `>`."""
    graphs = {id(graph): graph for graph in facts.graphs}
    found = set()
    for site in sites:
        if isinstance(site, tuple):
            step = graphs[site[0]].step_of(site[1])
            found.add(step.op if step is not None else "")
    return called(sorted(found))
