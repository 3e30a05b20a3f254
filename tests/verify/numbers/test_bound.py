"""The error bound: how it grows, and that it is never below what is measured."""

from itertools import pairwise

import numpy as np
import pytest

from superopt.ir import parse_graph
from superopt.verify.bounds.bound import error_bound
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.levels import levels_of
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.primes import HIGHEST
from superopt.verify.field.residues import UNDEFINED
from superopt.verify.verdict import Verdict

SMALL_TOWERS = ((23, 11, 5), (47, 23, 11), (2879, 1439, 719))


def program(body: str, *, axes: str = "k=4", inputs: str = "a b c d", out: str = "o"):
    ports = "\n".join(f"in {name}: f32[k]" for name in inputs.split())
    return parse_graph(f"graph g\naxes {axes}\n{ports}\n{body}\nout y: f32[k] = {out}")


def power(degree: int):
    steps = ["t1 = mul(a, b)", *(f"t{i} = mul(t{i - 1}, a)" for i in range(2, degree))]
    return program("\n".join(steps), out=f"t{degree - 1}")


def exponentials(count: int):
    lines = [
        f"p{i} = const[{i}]()\nq{i} = mul(a, p{i})\ne{i} = exp(q{i})\nm{i} = mul(e{i}, b)"
        for i in range(1, count + 1)
    ]
    sums = ["s1 = add(m1, c)", *(f"s{i} = add(s{i - 1}, m{i})" for i in range(2, count + 1))]
    return program("\n".join(lines + sums), out=f"s{count}")


def bound(graph, *, size: int = 2, tower=HIGHEST):
    return error_bound(graph, program("o = add(a, b)"), {"k": size}, tower=tower).per_trial()


def test_degrees_are_counted():
    found = error_bound(power(5), program("o = add(a, b)"), {"k": 2})
    assert (found.degree, found.terms) == (5, 1)
    assert found.per_trial() == pytest.approx(5 / HIGHEST[0])


@pytest.mark.parametrize("make", [power, exponentials])
def test_the_bound_grows_with_the_program(make):
    bounds = [bound(make(size)) for size in range(2, 6)]
    assert all(less < more for less, more in pairwise(bounds)), bounds


def test_the_bound_grows_as_primes_shrink():
    for make in (power, exponentials):
        bounds = [bound(make(3), tower=HIGHEST[i : i + 4]) for i in range(4)]
        assert all(less < more for less, more in pairwise(bounds)), bounds


def test_a_shared_denominator_is_counted_once():
    shared = program("n = add(a, b)\np = div(c, n)\nq = div(d, n)\no = add(p, q)")
    apart = program("n = add(a, b)\nm = sub(a, b)\np = div(c, n)\nq = div(d, m)\no = add(p, q)")
    degrees = [error_bound(graph, graph, {"k": 2}).degree for graph in (shared, apart)]
    assert degrees == [1, 2]


def test_discarded_trials_cost():
    found = error_bound(power(5), power(4), {"k": 2})
    assert found.per_trial(kept=0.25) == pytest.approx(4 * found.per_trial())


def test_comparisons_cost_a_bit_each():
    def bits(body: str, *, size: int = 1) -> tuple[int, int]:
        graph = program(body)
        found = error_bound(graph, graph, {"k": size})
        return found.bits, found.outcomes

    assert bits("o = maximum(a, b)") == (1, 1)
    assert bits("m = maximum(a, b)\no = maximum(m, c)") == (2, 2)
    assert bits("m = maximum(a, b)\nn = maximum(c, d)\no = add(m, n)") == (1, 2)
    assert bits("m = maximum(a, b)\nn = maximum(c, d)\no = mul(m, n)") == (2, 2)
    assert bits("m = max[k](a)\no = add(m, b)", size=3) == (2, 2)
    assert bits("r = relu(a)\ns = sum[k](r)\no = mul(s, b)", size=3) == (1, 3)
    assert bits("i = index[k]()\np = const[1]()\nm = gt(i, p)\no = mul(m, a)") == (0, 0)


def test_dismissed_trials_cost_every_outcome():
    graph = program("m = maximum(a, b)\nn = maximum(c, d)\no = add(m, n)")
    found = error_bound(graph, graph, {"k": 1})
    assert found.per_trial() == pytest.approx(0.5)
    assert found.per_trial(dismissed=True) == pytest.approx(0.75)


def test_roots_of_exponentials_are_numbers_of_their_own():
    graph = program("e = exp(a)\nf = add(e, b)\no = sqrt(f)")
    found = error_bound(graph, graph, {"k": 1})
    assert 0 < found.per_trial() < 2.0**-20


DIFFERENT = {
    "a line": ("o = mul(a, b)", "o = mul(a, c)"),
    "planes": ("p = mul(a, b)\no = mul(p, c)", "p = mul(d, d)\no = mul(p, d)"),
    "squares": ("p = mul(a, a)\no = mul(p, p)", "p = mul(b, b)\no = mul(p, p)"),
    "quotients": ("p = div(a, b)\no = add(p, c)", "p = div(c, d)\no = add(p, a)"),
    "a product with many roots": (
        "p = add(a, b)\nq = sub(a, b)\nr = mul(p, q)\ns = mul(r, c)\no = add(s, d)",
        "o = add(d, c)",
    ),
    "two exponentials": ("o = exp(a)", "o = exp(b)"),
    "a sum of exponentials": (
        "e = exp(a)\nf = exp(b)\no = add(e, f)",
        "e = exp(c)\nf = exp(d)\no = add(e, f)",
    ),
    "exponentials with coefficients": (
        "e = exp(a)\nf = mul(e, b)\no = add(f, c)",
        "e = exp(d)\no = mul(e, c)",
    ),
    "a power of an exponential": ("e = exp(a)\no = mul(e, e)", "e = exp(b)\no = mul(e, c)"),
    "nested exponentials": ("e = exp(a)\nf = exp(e)\no = mul(f, b)", "e = exp(b)\nf = exp(e)\no = mul(f, b)"),
    "an oracle": ("e = erf(a)\no = mul(e, b)", "e = erf(b)\no = mul(e, b)"),
}


@pytest.mark.parametrize("tower", SMALL_TOWERS, ids=str)
@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_measured_error_is_below_the_bound(one, other, tower):
    # Primes this small make different programs agree often enough to count how often.
    trials = 4000
    a, b = program(one, axes="k=1"), program(other, axes="k=1")
    tiny = tiny_sizes(a, b)
    field = tiny.field(5, trials=trials, levels=levels_of(a, b, limit=3), tower=tower)
    left, right = interpret(a, field, tiny.sizes)[-1], interpret(b, field, tiny.sizes)[-1]
    kept = (left[0] < UNDEFINED).reshape(trials, -1).all(axis=1)
    kept &= (right[0] < UNDEFINED).reshape(trials, -1).all(axis=1)
    agree = (left[0] == right[0]).reshape(trials, -1).all(axis=1) & kept
    found = error_bound(a, b, tiny.sizes, tower=tower).per_trial(kept=kept.mean())
    measured = agree.sum() / kept.sum()
    slack = 3 * np.sqrt(0.25 / trials)
    assert measured <= min(found, 1) + slack
    assert measured < 0.6
    assert found > 0


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (2.0**-60, "below 2^-60 "),
        (2.0**-60.9, "below 2^-60 "),
        (0.0, "below 2^-1000 "),
    ],
)
def test_a_verdict_never_says_less_than_the_bound(bound, said) -> None:
    assert said in str(Verdict("equal", trials=4, error_bound=bound))


def test_comparisons_of_unknown_constants_take_luck():
    body = "u = const[2]()\nv = const[1]()\ng = gelu(u)\nm = lt(v, g)\no = where(m, a, b)"
    graph = program(body)
    numbers = tiny_sizes(graph, graph, variant=0).known_numbers(graph)
    known = [one is not None for one in numbers]
    assert not known[graph.outputs[0].value - 1]
    found = error_bound(graph, graph, {"k": 2}, known=(known, known))
    assert found.outcomes == 1
    assert error_bound(graph, program(body.replace("gelu", "exp")), {"k": 2}).outcomes == 0
