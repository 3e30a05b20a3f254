"""The field: laws of its arithmetic, and the tower of primes."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from superopt.errors import SuperoptError
from superopt.ir import parse_graph
from superopt.ops import OPS
from superopt.verify.equality import equal_graphs
from superopt.verify.field import Field
from superopt.verify.interpret import drawn_integers, tiny_sizes
from superopt.verify.residues import TOWER, inverse, power


def is_prime(number: int) -> bool:
    """Miller-Rabin with the bases that decide every number below 3.4e14."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_the_tower_is_a_chain_of_primes():
    assert len(TOWER) >= 4
    assert all(is_prime(prime) and prime % 4 == 3 and prime < 2**32 for prime in TOWER)
    assert all(upper == 2 * lower + 1 for upper, lower in pairwise(TOWER))
    # By trial division too, for the smallest: the test of the test.
    assert all(TOWER[-1] % divisor for divisor in range(2, 4400))


@pytest.fixture
def field() -> Field:
    return Field(7, trials=3, levels=3)


@pytest.fixture
def x(field):
    return field.leaf("x", (4, 5))


@pytest.fixture
def y(field):
    return field.leaf("y", (4, 5))


def same(a, b, *, levels=None) -> bool:
    a, b = np.broadcast_arrays(a[:levels], b[:levels])
    return bool((a == b).all())


def test_arithmetic_is_that_of_integers(field, x, y):
    for level, prime in enumerate(TOWER[:3]):
        a, b = x[level].astype(object), y[level].astype(object)
        assert (field.add(x, y)[level] == (a + b) % prime).all()
        assert (field.mul(x, y)[level] == (a * b) % prime).all()
        assert (field.neg(x)[level] == -a % prime).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 11), (1000, 64)])
def test_inverse(field, shape):
    x = field.leaf("x", shape)
    assert (field.mul(x, field.inv(x)) == 1).all()
    assert not field.zero_divisions.any()
    exponents = tuple(int(prime) - 2 for prime in field.primes)
    if x.size < 1000:
        assert same(inverse(x, field.primes), power(x, exponents, field.primes))


def test_division_by_zero_is_counted_per_trial(field, x):
    x = x.copy()
    x[1, 2, 0, 0] = 0
    assert field.inv(x)[1, 2, 0, 0] == 0
    assert field.zero_divisions.tolist() == [0, 0, 1]


def test_exp_turns_sums_into_products(field, x, y):
    total = field.exp(field.add(x, y))
    assert same(total, field.mul(field.exp(x), field.exp(y)), levels=2)
    assert (field.exp(field.mul(field.const(Fraction(0)), x))[:2] == 1).all()
    assert not same(field.exp(x), field.exp(y), levels=1)


def test_exp_nests_as_deep_as_the_tower(field, x, y):
    once = field.exp(field.add(x, y)), field.mul(field.exp(x), field.exp(y))
    twice = [field.exp(value) for value in once]
    assert same(*twice, levels=1)
    thrice = [field.exp(value) for value in twice]
    assert not same(*thrice, levels=1)  # missed, never wrong: three levels carry two exponentials


def test_half_exponents(field, x):
    half = field.exp(field.mul(field.const(Fraction(1, 2)), x))
    assert same(field.mul(half, half), field.exp(x), levels=2)


def test_roots_are_multiplicative(field, x, y):
    assert same(field.sqrt(field.mul(x, y)), field.mul(field.sqrt(x), field.sqrt(y)))


def test_roots_of_squares_and_others(field, x):
    square = field.mul(x, x)
    assert same(field.mul(field.sqrt(square), field.sqrt(square)), square)
    assert not field.nonresidues.any()
    field.sqrt(field.neg(square))  # minus one is no square modulo 3 modulo 4
    assert field.nonresidues.tolist() == [3 * 20] * 3


def test_maximum_is_a_semilattice(field, x, y):
    z = field.leaf("z", (4, 5))
    left = field.maximum(field.maximum(x, y), z)
    assert same(left, field.maximum(x, field.maximum(y, z)))
    assert same(field.maximum(x, y), field.maximum(y, x))
    assert same(field.maximum(x, x), x)
    whole = field.max_over(np.stack([x, y, z], axis=-1), -1)
    assert same(whole, left)
    assert same(field.max_over(x, (2, 3)), field.max_over(field.max_over(x, 3), 2))


def test_small_integers_keep_their_order(field):
    numbers = [field.const(Fraction(i)) for i in range(-8, 9)]
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            assert (field.less(a, b) == (i < j)).all()
            assert (field.equal(a, b) == (i == j)).all()


def test_relu_keeps_about_half(field):
    x = field.leaf("x", (1000,))
    kept = (OPS["relu"].scalar(field, x) == x)[0].mean()
    assert 0.4 < kept < 0.6


def test_infinity_ranks_at_the_ends(field, x):
    infinity = field.infinity()
    below = field.neg(infinity)
    assert same(field.maximum(x, below), x)
    assert (field.less(x, infinity) == 1).all()
    assert (field.exp(below) == 0).all()
    masked = field.where(field.less(x, field.const(Fraction(0))), x, below)
    kept = field.mul(field.less(x, field.const(Fraction(0))), field.exp(x))
    assert same(field.exp(masked), kept, levels=2)


def test_oracles_depend_on_name_order_and_value(field, x, y):
    assert same(field.function("f", x, y), field.function("f", x, y))
    assert not same(field.function("f", x, y), field.function("f", y, x))
    assert not same(field.function("f", x), field.function("g", x))


def test_draws_depend_on_seed_and_name_only():
    assert same(Field(1).leaf("x", (9,)), Field(1).leaf("x", (9,)))
    assert not same(Field(1).leaf("x", (9,)), Field(2).leaf("x", (9,)))
    assert not same(Field(1).leaf("x", (9,)), Field(1).leaf("y", (9,)))
    several = Field(1, trials=5)
    assert same(several.take(np.array([3])).leaf("x", (9,)), several.leaf("x", (9,))[:, 3:4])


def test_boolean_leaves_are_bits_at_every_level(field):
    bits = field.leaf("m", (50,), dtype="bool")
    assert set(np.unique(bits).tolist()) == {0, 1}
    assert (bits == bits[:1]).all()


def test_weights_add_up_to_the_extent():
    field = Field(3, trials=2, levels=2, extents={"k": 4096, "t": 2}, groups={"k": "i", "i": "i"})
    assert (field.size("k", 3) == 4096).all()
    assert (field.weights("t", 2) == 1).all()
    assert same(field.weights("k", 3)[..., :2], field.weights("i", 3)[..., :2])
    assert not same(field.size("free", 3), field.size("other", 3))


def test_constants_are_exact(field):
    third = field.const(Fraction(1, 3))
    assert (field.mul(third, field.const(Fraction(3))) == 1).all()
    with pytest.raises(SuperoptError, match="not defined modulo"):
        field.const(Fraction(1, TOWER[0]))


def test_fingerprints_tell_rows_apart(field):
    batch = field.leaf("batch", (100, 2, 3))
    batch[:, :, 40] = batch[:, :, 60]
    prints = field.fingerprint(batch)
    assert prints.shape == (100, 2)
    assert len(np.unique(prints, axis=0)) == 99
    assert (prints[40] == prints[60]).all()
    assert same(field.fingerprint(batch[:, :, 7:9]), prints[7:9])
    assert not (field.fingerprint(batch.swapaxes(-1, -2)) == prints).any()


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_every_operator_runs(field, op):
    if op.mask and op.name in ("and", "or", "not"):
        args = [field.leaf(f"m{i}", (6,), dtype="bool") for i in range(op.arity)]
    else:
        args = [field.leaf(f"x{i}", (6,)) for i in range(op.arity)]
    result = op.scalar(field, *args)
    assert result.dtype == np.uint64
    assert (result < field.primes[:, None, None]).all()
    if op.mask:
        assert set(np.unique(result).tolist()) <= {0, 1}


def test_integers_are_drawn_from_what_they_are_compared_with() -> None:
    graph = parse_graph(
        "graph g\naxes m=4 n=9\nin y: i64[m]\nt1 = index[n]()\nt2 = eq(t1, y)\nt3 = const[-100]()\n"
        "t4 = ne(y, t3)\nt5 = mul(t2, t4)\nout o: f32[m, n] = t5\n"
    )
    assert drawn_integers(graph) == (-100, 0, 1, 2)
    field = tiny_sizes(graph).field(1, trials=50)
    drawn = {int(number) for number in np.unique(field.leaf("y", (4,), "i64")[0])}
    assert drawn == {number % int(field.primes[0]) for number in (-100, 0, 1, 2)}


def test_a_comparison_with_an_integer_is_not_always_false() -> None:
    head = "graph g\naxes m=4 n=9\nin x: f32[m, n]\nin y: i64[m]\n"
    picks = head + "t1 = index[n]()\nt2 = eq(t1, y)\nt3 = mul(t2, x)\nt4 = sum[n](t3)\nout o: f32[m] = t4\n"
    nothing = head + "t1 = const[0]()\nout o: f32[m] = t1\n"
    assert not equal_graphs(parse_graph(picks), parse_graph(nothing)).equal
