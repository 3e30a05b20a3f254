"""Attention with masks that compare positions, by which both code generators bound their loops."""

from superopt.ir import MuGraph, fuse, parse_graph, split_axis, stabilize

__all__ = ["AHEAD", "CHOSEN", "MASKS", "masked_mugraph", "masked_text"]

_TEXT = """graph masked
axes s=40 d=8 t=130 e=9
in q: f32[s, d]
in k: f32[t, d]
in v: f32[t, e]
t3 = contract[d](q, k)
t4 = exp(t3)
t5 = index[s]()
t6 = index[t]()
t7 = const[{ahead}]()
t8 = add(t5, t7)
{mask}
t20 = mul(t19, t4)
t21 = contract[t](t20, v)
t22 = sum[t](t20)
t23 = div(t21, t22)
out o: f32[s, e] = t23
"""
MASKS = {
    "causal": "t19 = ge(t8, t6)",
    "before": "t19 = gt(t8, t6)",
    "after": "t19 = le(t8, t6)",
    "window": "t9 = const[20]()\nt10 = sub(t8, t9)\nt11 = ge(t6, t10)\nt12 = ge(t8, t6)\nt19 = and(t12, t11)",
    "every other": "t9 = const[2]()\nt10 = mul(t9, t6)\nt19 = ge(t8, t10)",
    "rising": "t9 = const[2]()\nt10 = mul(t9, t5)\nt19 = ge(t10, t6)",
    "backwards": "t9 = size[s]()\nt10 = sub(t9, t5)\nt19 = ge(t10, t6)",
}
AHEAD = {"after": 30, "window": 30, "before": 1}


def masked_text(name: str) -> str:
    """Return attention with one of the masks as the text of a graph."""
    return _TEXT.format(mask=MASKS[name], ahead=AHEAD.get(name, 0))


def masked_mugraph(name: str, parts: int) -> MuGraph:
    """Return attention with one of the masks as kernels, its keys split in parts, or whole for 0 parts."""
    graph = parse_graph(masked_text(name))
    if not parts:
        return fuse(stabilize(graph), online=True)
    graph, split = split_axis(graph, "t", parts)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True)


_CHOSEN = """graph chosen
axes m=9 k=37 n=6
in seen: bool[m, k]
in x: f32[m, k]
in y: f32[k, n]
one = const[1]()
{steps}
r1 = add(last, one)
r2 = reciprocal(r1)
out o: f32[{axes}] = r2
"""
CHOSEN = {
    name: _CHOSEN.format(steps=steps.replace("; ", "\n"), axes=axes)
    for name, axes, steps in (
        ("a mask", "m, k", "e = exp(x); last = mul(seen, e)"),
        (
            "any of a mask",
            "m, k",
            "few = select[k=3](seen); any = max[m](few); e = exp(x); last = mul(any, e)",
        ),
        ("any of none", "m, k", "few = lt(x, one); any = max[k](few); e = exp(x); last = mul(any, e)"),
        (
            "a sum where any",
            "m",
            "few = lt(x, one); any = max[k](few); e = exp(x); s = sum[k](e); last = mul(any, s)",
        ),
        (
            "the larger mask",
            "m, k",
            "few = lt(x, one); any = maximum(few, few); e = exp(x); last = mul(e, any)",
        ),
        (
            "the smaller mask",
            "m, k",
            "few = lt(x, one); any = minimum(few, seen); e = exp(x); last = mul(e, any)",
        ),
        (
            "one of two masks",
            "m, k",
            "few = lt(x, one); any = where(seen, few, few); e = exp(x); last = mul(e, any)",
        ),
        ("a constant", "m, k", "none = const[0](); e = exp(x); last = mul(none, e)"),
        ("a sum of products", "m", "few = lt(x, one); e = exp(x); last = contract[k](few, e)"),
        ("a matrix product", "m, n", "few = lt(x, one); e = exp(y); last = contract[k](few, e)"),
    )
}
"""Infinities that a mask hides: with inputs from 90 on every exponential overflows fp32."""
