"""Attention with masks that compare positions: what both code generators stop their loops by."""

__all__ = ["AHEAD", "MASKS", "masked_text"]

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
