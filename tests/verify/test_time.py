"""Time: proofs end soon after the time that they may take; trials that are judged in parts tell the same."""

from time import perf_counter

import pytest

from superopt.ir import parse_graph
from superopt.verify.graphs import all_equal, judge
from superopt.verify.graphs.equality import equal_graphs

_HEAD = """graph one
axes h=32 s=28 d=28 b=128 t=3 e=3 s2=28 d2=28
in x: f32[h, s, d]
in v: f32[b, h]
in w: f32[b, t, e]
in u: f32[h, b]
in a: f32[b]
"""
_LAYERS = """t5 = const[0]()
t6 = const[6]()
t7 = contract[h](x, v)
t8 = add(t7, a)
t9 = maximum(t8, t5)
t10 = minimum(t9, t6)
t11 = window[s = s2 + t - 1, d = d2 + e - 1](t10)
t12 = contract[t, e](t11, w)
t13 = add(t12, a)
t14 = maximum(t13, t5)
t15 = minimum(t14, t6)
t16 = contract[b](t15, u)
out y: f32[h, s2, d2] = t16
"""
_NEGATED = """t5 = const[-6]()
t6 = contract[h](x, v)
t7 = add(t6, a)
t8 = relu(t7)
t9 = neg(t8)
t10 = maximum(t9, t5)
t11 = window[d = d2 + e - 1](t10)
t12 = contract[e](t11, w)
t13 = window[s = s2 + t - 1](t12)
t14 = sum[t](t13)
t15 = sub(t14, a)
t16 = neg(t15)
t17 = relu(t16)
t18 = neg(t17)
t19 = maximum(t18, t5)
t20 = contract[b](t19, u)
t21 = neg(t20)
out y: f32[h, s2, d2] = t21
"""


def test_proofs_of_layers_with_orders_end_in_time() -> None:
    goal, other = parse_graph(_HEAD + _LAYERS), parse_graph(_HEAD + _NEGATED)
    start = perf_counter()
    verdict = equal_graphs(goal, other, seed=1, end=start + 0.3)
    assert perf_counter() - start < 5  # it took minutes, and gigabytes, to judge all trials at once
    assert not verdict.different


def test_no_proof_is_begun_after_the_time_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    goal, other = parse_graph(_HEAD + _LAYERS), parse_graph(_HEAD + _NEGATED)
    tried = []
    equal = all_equal.equal_graphs
    monkeypatch.setattr(all_equal, "equal_graphs", lambda *of, **how: tried.append(how) or equal(*of, **how))
    start = perf_counter()
    verdicts = all_equal.equal_to_all(goal, [other] * 50, seed=1, seconds=0.0)
    assert [one.outcome for one in verdicts] == ["unknown"] * 50
    assert perf_counter() - start < 30
    assert all(how["end"] <= start + 1 for how in tried)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_trials_judged_one_by_one_tell_the_same(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    head = "graph two\naxes a=3 b=4\nin x: f32[a, b]\nin y: f32[a, b]\n"
    one = parse_graph(head + "t2 = maximum(x, y)\nt3 = max[b](t2)\nt4 = exp(t3)\nout o: f32[a] = t4\n")
    steps = "t2 = max[b](x)\nt3 = max[b](y)\nt4 = exp(t2)\nt5 = exp(t3)\nt6 = maximum(t4, t5)\n"
    steps += "out o: f32[a] = t6\n"
    other = parse_graph(head + (steps.replace("maximum", "minimum") if wrong else steps))
    together = equal_graphs(one, other, seed=3)
    monkeypatch.setattr(judge, "_AT_ONCE", 1)
    apart = equal_graphs(one, other, seed=3)
    assert together.equal is not wrong
    told = [(v.outcome, v.trials, v.error_bound, v.witness) for v in (together, apart)]
    assert told[0] == told[1]
