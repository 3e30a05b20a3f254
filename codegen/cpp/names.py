"""Names: C++ identifiers for the axes and values of a graph, as close to the graph's own as C++ allows."""

import re
from functools import cache

from superopt.codegen.cpp.compile import runtime_text
from superopt.ir import Graph, value_names

__all__ = ["Names"]

_KEYWORDS = """
alignas and asm auto bool break case catch char class const continue default delete do double else enum
explicit export extern false float for friend goto if inline int long mutable namespace new not operator or
private protected public register return short signed sizeof static struct switch template this throw true
try typedef typeid union unsigned using virtual void volatile while xor Vec Int Bits Shorts Half Quarter
Matrix Panels Scratch lanes registers infinity index_t least most splat bits floats count_from bf16 f16 read
write load store truth where keep maximum minimum clamped absolute copy_sign each sqrt sin cos pow exp tanh
erf exp2 expm1 scaled_exp floor log log2 log1p fold sum largest first_lanes fill rescale contract
contract_pairs packed scratch threads turn along all_lanes start INLINE UNIT_STRIDES UNIT_STRIDES_ONLY run
kernel std superopt load_window read_inside inside either Known all_whole no_end Divisor rough_quotient
prefetch Gathered contract_gathered Edges vectors_along prefetch_short part one block begun
"""
_DECLARATION = re.compile(
    r"^(?:template <.*?> )?(?:(?:INLINE|inline|static|constexpr|extern) )*"
    r"(?:(?:struct|class|using) (\w+)|\w[\w:<>, *&]*[ *&](\w+) ?[(=;{\[]|#define (\w+))",
    re.MULTILINE,
)
"""A line of the runtime that begins at its margin, and what it declares for all kernels."""
_DERIVED = (
    "",
    "_size",
    "_end",
    "_stop",
    "_base",
    "_before",
    "_count",
    "_tile",
    "_panels",
    "_packed",
    "_lanes",
    "_data",
    "_sum",
    "_max",
    "_new",
    "_scale",
    "_whole",
    "_sum_all",
    "_max_all",
    "_divisor",
    "_first",
    "_vectors",
    "_turns",
    "_edges",
    "_row",
    "_block",
    "_there",
    "_all",
    "_sums",
    "_rest",
    "_last",
    "_turned",
)
_BETWEEN = re.compile(r"_(stride|joins)(?=_)")  # the name of a value and that of an axis
_NUMBERED = re.compile(r"_scale(?=\d+$)")


class Names:
    """The identifier of each axis and of each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(_taken())
        self.axes = {axis.name: self._name(axis.name) for axis in graph.axes}
        texts = value_names(graph)
        self.values = tuple(self._name(text) for text in texts)
        ports = {output.port.name for output in graph.outputs}
        self.outputs = {name: self._name(name) for name in sorted(ports)}

    def _name(self, text: str) -> str:
        name = re.sub(r"\W", "_", text, flags=re.ASCII)
        name = f"n{name}" if name[:1].isdigit() else name
        name = _NUMBERED.sub("_scaled", _BETWEEN.sub(r"_\1s", name))
        while any(f"{name}{ending}" in self._taken for ending in _DERIVED):
            name += "_"
        self._taken |= {f"{name}{ending}" for ending in _DERIVED}
        return name


@cache
def _taken() -> frozenset[str]:
    """Return what no axis and no value may be called, as kernels call something else so."""
    declared = (name for names in _DECLARATION.findall(runtime_text()) for name in names if name)
    return frozenset(_KEYWORDS.split()).union(declared)
