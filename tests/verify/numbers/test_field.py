"""The field: laws of its arithmetic, and the tower of primes."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from superopt.errors import SuperoptError
from superopt.ir import parse_graph
from superopt.ops import OPS
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.primes import HIGHEST, TOWERS, WITH_LOGARITHMS, choose_tower, is_square
from superopt.verify.field.residues import UNDEFINED, inverse, power
from superopt.verify.field.source import Pool
from superopt.verify.graphs.equality import equal_graphs


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


@pytest.mark.parametrize("towers", [(HIGHEST,), TOWERS, WITH_LOGARITHMS], ids=["highest", "long", "small"])
def test_towers_are_chains_of_primes(towers):
    assert len(set(towers)) == len(towers)
    for tower in towers:
        assert all(is_prime(prime) and prime % 4 == 3 and prime < 2**32 for prime in tower)
        assert all(upper == 2 * lower + 1 for upper, lower in pairwise(tower))
    # By trial division too, for the smallest: the test of the test.
    assert all(towers[0][-1] % divisor for divisor in range(2, 4400) if divisor < towers[0][-1])


def test_one_to_ten_are_positive_in_every_tower():
    for tower in (HIGHEST, *TOWERS, *WITH_LOGARITHMS):
        for prime in tower:
            assert all(is_square(Fraction(number), prime) for number in (1, 2, 3, 5, 7))
            assert pow(prime - 1, (prime - 1) // 2, prime) == prime - 1


def test_a_tower_suits_its_constants():
    constants = {Fraction(271), Fraction(1, 13), Fraction(17 * 241), Fraction(2444789759)}
    for seed in range(20):
        tower, suits = choose_tower(seed, 2, constants, logarithms=False, signs=True)
        assert suits
        assert all(is_square(value, prime) for value in constants for prime in tower[:2])
        assert 2444789759 not in tower
    assert len({choose_tower(seed, 2, (), logarithms=False, signs=True) for seed in range(20)}) > 10


def test_a_tower_has_no_two_signs_for_a_difference_of_integers():
    first = TOWERS[0][0]
    for integers, suits in (((0, 5), True), ((0, first), False), ((0, 5, first - 5), False)):
        chosen = choose_tower(0, 1, (), logarithms=False, signs=True, integers=integers)
        assert chosen == (TOWERS[not suits], True)


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
    for level, prime in enumerate(HIGHEST[:3]):
        a, b = x[level].astype(object), y[level].astype(object)
        assert (field.add(x, y)[level] == (a + b) % prime).all()
        assert (field.mul(x, y)[level] == (a * b) % prime).all()
        assert (field.neg(x)[level] == -a % prime).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 11), (1000, 64)])
def test_inverse(field, shape):
    x = field.leaf("x", shape)
    assert (field.mul(x, field.inv(x)) == 1).all()
    assert not field.holes
    exponents = tuple(int(prime) - 2 for prime in field.primes)
    if x.size < 1000:
        assert same(inverse(x, field.primes), power(x, exponents, field.primes))


def test_what_is_undefined_stays_so_unless_a_mask_leaves_it_out(field, x, y):
    x = x.copy()
    x[:, 2, 0, 0] = 0
    made = field.inv(x)
    hole = np.zeros(made.shape[1:], dtype=np.bool_)
    hole[2, 0, 0] = True
    assert ((made >= UNDEFINED) == hole).all()
    for other in (field.add(made, y), field.mul(made, y), field.neg(made), field.exp(made)):
        assert ((other[0] >= UNDEFINED) == hole).all()
    assert ((field.function("f", made, y)[0] >= UNDEFINED) == hole).all()
    assert ((field.less(made, y)[0] >= UNDEFINED) == hole).all()
    assert ((field.sum_mod(made, 3)[0] >= UNDEFINED) == hole.any(axis=2, keepdims=True)).all()
    zero = field.equal(x, field.const(Fraction(0)))
    assert same(field.where(zero, y, made)[:, 2, 0, 0], y[:, 2, 0, 0])
    assert (field.select(field.add(field.const(Fraction(1)), field.neg(zero)), made)[:, 2, 0, 0] == 0).all()


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


def test_a_root_is_positive_and_of_squares_only(field, x):
    square = field.mul(x, x)
    root = field.sqrt(square)
    assert same(field.mul(root, root), square)
    assert not field.holes
    assert same(root, OPS["abs"].scalar(field, x), levels=1)
    assert (field.sqrt(field.neg(square)) >= UNDEFINED).all()  # minus one is no square


LAWS = {
    "max(a + c, b + c) = max(a, b) + c": lambda f, a, b, c: (
        f.maximum(f.add(a, c), f.add(b, c)),
        f.add(f.maximum(a, b), c),
    ),
    "max(a, b) = max(b, a)": lambda f, a, b, c: (f.maximum(a, b), f.maximum(b, a)),
    "max(a, a) = a": lambda f, a, b, c: (f.maximum(a, a), a),
    "|a b| = |a| |b|": lambda f, a, b, c: (
        OPS["abs"].scalar(f, f.mul(a, b)),
        f.mul(OPS["abs"].scalar(f, a), OPS["abs"].scalar(f, b)),
    ),
    "exp(c) max(a, b) = max(exp(c) a, exp(c) b)": lambda f, a, b, c: (
        f.mul(f.exp(c), f.maximum(a, b)),
        f.maximum(f.mul(f.exp(c), a), f.mul(f.exp(c), b)),
    ),
    "max(a, b) + min(a, b) = a + b": lambda f, a, b, c: (
        f.add(f.maximum(a, b), OPS["minimum"].scalar(f, a, b)),
        f.add(a, b),
    ),
    "a < b or b < a": lambda f, a, b, c: (f.add(f.less(a, b), f.less(b, a)), f.less(a, f.infinity())),
    "sin(-a) = -sin(a)": lambda f, a, b, c: (
        f.function("sin", f.neg(a)),
        f.neg(f.function("sin", a)),
    ),
    "cos(-a) = cos(a)": lambda f, a, b, c: (f.function("cos", f.neg(a)), f.function("cos", a)),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_laws_of_orders_and_signs(field, law):
    left, right = law(field, *(field.leaf(name, (4, 5)) for name in "abc"))
    assert same(left, right, levels=1)


def test_logarithms_undo_exponentials_and_split_products():
    field = Field(3, trials=4, levels=3, tower=WITH_LOGARITHMS[3])
    x, y = field.leaf("x", (6,)), field.leaf("y", (6,))
    back = field.log(field.exp(x))
    assert (back[0] >= UNDEFINED).all()  # an exponent is known one level further down
    assert same(back[1:2], x[1:2])
    a, b = field.exp(x), field.mul(y, y)
    assert same(field.log(field.mul(a, b))[1:2], field.add(field.log(a), field.log(b))[1:2])
    assert same(field.exp(field.log(b)), b, levels=1)
    assert same(
        field.function("log2", b)[1:2],
        field.mul(field.log(b), field.const(Fraction(1.4426950408889634)))[1:2],
    )
    assert (field.log(field.neg(b))[1] >= UNDEFINED).all()


def test_constants_keep_their_order():
    field = Field(7, trials=3, levels=3, constants=tuple(map(Fraction, range(-8, 9))))
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


def test_infinity_swallows_what_is_added(field, x):
    infinity = field.infinity()
    below = field.neg(infinity)
    top, bottom = (one.reshape(*one.shape, 1, 1) for one in (infinity, below))
    assert same(field.add(x, infinity), top)
    assert same(field.add(below, x), bottom)
    assert same(field.add(infinity, infinity), infinity)
    assert (field.inv(below) == 0).all()
    assert (field.mul(x, field.inv(infinity)) == 0).all()
    assert same(field.exp(infinity), infinity)
    alike = field.const(Fraction(2))[:, :1]  # the same in all trials
    assert (field.mul(field.inv(alike), alike) == 1).all()


def test_what_else_is_made_of_infinity_is_undefined(field, x):
    infinity = field.infinity()
    below = field.neg(infinity)
    positive = field.less(field.const(Fraction(0)), x)
    some = field.where(positive, x, infinity)
    made = [
        field.add(infinity, below),
        field.mul(x, infinity),
        field.mul(field.const(Fraction(0)), below),
        field.sum_mod(infinity, ()),
    ]
    assert all((one >= UNDEFINED).all() for one in made)
    assert (field.sum_mod(some, -1) >= UNDEFINED).any()
    assert (field.select(positive, some) < UNDEFINED).all()
    assert same(field.select(positive, some), field.mul(positive, x))


def test_a_number_in_the_place_of_a_mask_chooses_nothing(field, x, y):
    field.infinity()
    number = field.leaf("mask", (4, 5))
    assert not same(field.where(number, x, y), x)
    assert same(field.select(number, x), field.mul(number, x))


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
        field.const(Fraction(1, HIGHEST[0]))


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
    known = result < UNDEFINED
    assert (np.where(known, result, 0) < field.primes[:, None, None]).all()
    assert known[0].any()
    if op.mask:
        assert set(np.unique(result).tolist()) <= {0, 1}


def test_pooled_inputs_hold_constants_and_meet() -> None:
    constants = (Fraction(50), Fraction(-7, 2))
    field = Field(5, trials=400, levels=2, constants=constants, pool=Pool(constants))
    x, y = field.leaf("x", (4,)), field.leaf("y", (4,))
    for number in (0, 1, -1, 50, Fraction(-7, 2)):
        share = (field.equal(x, field.const(Fraction(number)))[0] == 1).mean()
        assert 0.02 < share < 0.3, number
    equal = field.equal(x, y)[0] == 1
    assert 0.01 < equal.mean() < 0.5
    assert ((x[1] == y[1]) == (x[0] == y[0])).all()  # they are the same number on every level
    assert (field.less(field.const(Fraction(-7, 2)), field.const(Fraction(50))) == 1).all()


def test_integers_are_drawn_from_what_they_are_compared_with() -> None:
    graph = parse_graph(
        "graph g\naxes m=4 n=9\nin y: i64[m]\nt1 = index[n]()\nt2 = eq(t1, y)\nt3 = const[-100]()\n"
        "t4 = ne(y, t3)\nt5 = mul(t2, t4)\nout o: f32[m, n] = t5\n"
    )
    tiny = tiny_sizes(graph)
    # Constants, all positions that are evaluated, and a number beyond either end.
    assert not tiny.wide
    assert len(tiny.integers) == 8
    assert set(tiny.integers) == {-101, -100, 0, 1, 2, 10}
    field = tiny.field(1, trials=50)
    drawn = {int(number) for number in np.unique(field.leaf("y", (4,), "i64")[0])}
    assert drawn == {number % int(field.primes[0]) for number in tiny.integers}


def test_a_comparison_with_an_integer_is_not_always_false() -> None:
    head = "graph g\naxes m=4 n=9\nin x: f32[m, n]\nin y: i64[m]\n"
    picks = head + "t1 = index[n]()\nt2 = eq(t1, y)\nt3 = mul(t2, x)\nt4 = sum[n](t3)\nout o: f32[m] = t4\n"
    nothing = head + "t1 = const[0]()\nout o: f32[m] = t1\n"
    assert not equal_graphs(parse_graph(picks), parse_graph(nothing)).equal
