"""Shifts that run in a loop: what is rescaled before anything was added up stays as it was."""

import pytest

SUMS = {
    "a degree below 0": ["t4 = sub(x, t3)", "t5 = exp(t4)", "t6 += sum[k](t5)"],
    "a degree above 0": ["t4 = sub(t3, x)", "t5 = exp(t4)", "t6 += sum[k](t5)"],
    "a largest one": ["t4 = sub(x, t3)", "t5 = exp(t4)", "t6 max= max[k](t5)"],
    "a largest one of a degree above 0": ["t4 = sub(t3, x)", "t5 = exp(t4)", "t6 max= max[k](t5)"],
}


@pytest.mark.parametrize("name", SUMS)
def test_what_is_still_at_its_start_is_not_rescaled(agrees, name):
    body = "\n".join(f"    {line}" for line in SUMS[name])
    text = f"""graph moving
axes m=3 k=150
in x: f32[m, k]
kernel grid[m]
  t1 = const[-1000]()
  loop[k] running t3
    t2 max= max[k](x)
    t3 = maximum(t2, t1)
{body}
  t7 = log(t6)
out o: f32[m] = t7
"""
    agrees("text", text=text, domain=[-3.0, 3.0])
