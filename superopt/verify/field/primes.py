"""Towers of primes: each prime is twice the next plus one, so that exponentials have exponents.

The units modulo a prime p = 2 q + 1 have a subgroup of order q, the squares: exponents modulo q. Every
prime here is 839 modulo 840: minus 1 is no square, while 2, 3, 5 and 7 are squares. So of x and -x one is
a square, and the squares, which stand for the positive numbers, include 1 to 10.

A check draws one of many towers by its seed. It must suit the constants of the programs: none of them may
vanish or coincide with another, and where programs compare numbers, a positive one must be a square.
"""

from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

__all__ = ["HIGHEST", "TOWERS", "WITH_LOGARITHMS", "choose_tower", "tower_from"]

_LONG = (
    2152160639,
    2160204479,
    2162973119,
    2164270079,
    2167804799,
    2169088319,
    2171561279,
    2185350719,
    2191815359,
    2193085439,
    2201344319,
    2204442239,
    2208460799,
    2233062719,
    2263410239,
    2265607679,
    2294624639,
    2309536319,
    2319172799,
    2323863359,
    2338916159,
    2342477759,
    2349117119,
    2364552959,
    2385499199,
    2394120959,
    2459271359,
    2481151679,
    2487139199,
    2488402559,
    2499174719,
    2500895039,
    2507937599,
    2510618879,
    2513575679,
    2522446079,
    2537411519,
    2564903039,
    2569398719,
    2569607039,
    2576333759,
    2582502719,
    2585351999,
    2587865279,
    2589988799,
    2608226879,
    2624912639,
    2648143679,
    2676824639,
    2684189759,
    2709033599,
    2720706239,
    2732183999,
    2738440319,
    2748016319,
    2752149119,
    2767349759,
    2814322559,
    2819436479,
    2848769279,
    2854353599,
    2870562239,
    2880675839,
    2892469439,
    2893799999,
    2899169279,
    2907092159,
    2917501439,
    2919967679,
    2936868479,
    2953621439,
    2959696319,
    2978129279,
    2978458559,
    2980125119,
    2991428159,
    3004310399,
    3005318399,
    3019887359,
    3025323839,
    3046787519,
    3066598079,
    3079359359,
    3082416959,
    3102435839,
    3125666879,
    3126002879,
    3127790399,
    3136573439,
    3150080639,
    3161927999,
    3162297599,
    3167727359,
    3173493119,
    3175556159,
    3179473919,
    3182282879,
    3186630719,
    3191623679,
    3196179839,
    3196898879,
    3211897919,
    3232561919,
    3235901759,
    3237776639,
    3247487039,
    3247910399,
    3249899519,
    3251942399,
    3252889919,
    3273842879,
    3295360319,
    3322979519,
    3323328959,
    3333133439,
    3333697919,
    3339073919,
    3341829119,
    3348071999,
    3361095359,
    3374132159,
    3381275519,
    3382357439,
    3394419839,
    3409116479,
    3414317759,
    3439376639,
    3446479679,
    3447816959,
    3468118079,
    3470853119,
    3470947199,
    3481302719,
    3491886719,
    3503398079,
    3528080639,
    3544591679,
    3552407039,
    3553334399,
    3567049919,
    3578594879,
    3580503359,
    3586847039,
    3590260799,
    3594964799,
    3605091839,
    3616294079,
    3640486079,
    3644504639,
    3655935359,
    3662272319,
    3665040959,
    3689743679,
    3690086399,
    3690832319,
    3755438399,
    3767050559,
    3776438399,
    3836380799,
    3847945919,
    3859228799,
    3862575359,
    3899602559,
    3912733439,
    3930769919,
    3941790719,
    3946326719,
    3972326399,
    3990645119,
    4001450879,
    4004152319,
    4043497919,
    4058436479,
    4059034559,
    4074571199,
    4079476799,
    4084832639,
    4090584959,
    4093776959,
    4102815359,
    4142308799,
    4144291199,
    4158262079,
    4166285759,
    4190833919,
    4215597119,
    4250588159,
    4254284159,
    4255809599,
    4284934079,
    4286855999,
    4292561279,
)
"""The first primes of towers of four, drawn from all there are below 2^32."""

_SMALL = (
    557759,
    571199,
    708959,
    907199,
    994559,
    1014719,
    1115519,
    1333919,
    1367519,
    1643039,
    1824479,
    1837919,
    2029439,
    2052959,
    2368799,
    2422559,
    2429279,
    2661119,
    2808959,
    2923199,
    3259199,
    3383519,
    3840479,
    4065599,
    4109279,
    4183199,
    4270559,
    4304159,
    4344479,
    4351199,
    4438559,
    4737599,
    4858559,
    4979519,
    5076959,
    5305439,
    5547359,
    5688479,
    5742239,
    6061439,
    6155519,
    6229439,
    6353759,
    6562079,
    6666239,
    6703199,
    7650719,
    7798559,
    7825439,
    7909439,
)
"""The first primes of towers of three or more, so small that all logarithms fit in a table."""


def tower_from(prime: int, height: int) -> tuple[int, ...]:
    """Return the tower of some height that begins with a prime."""
    return tuple(((prime + 1) >> level) - 1 for level in range(height))


HIGHEST = tower_from(2444789759, 8)
"""The longest tower below 2^32, for deeply nested exponentials."""

TOWERS = tuple(tower_from(prime, 4) for prime in _LONG)
"""Towers of four primes."""

WITH_LOGARITHMS = tuple(tower_from(prime, 3) for prime in _SMALL)
"""Towers of three small primes."""


def choose_tower(
    seed: int,
    levels: int,
    constants: Collection[Fraction],
    *,
    logarithms: bool,
    signs: bool,
    squares: Collection[Fraction] = (),
    integers: Collection[int] = (),
) -> tuple[tuple[int, ...], bool]:
    """Return a tower for some constants, drawn by a seed, and whether it suits all of them.

    They are squares there where signs matter, and so are the numbers that are named as `squares`. No
    residue stands for both a positive and a negative difference between `integers`.
    """
    towers = WITH_LOGARITHMS if logarithms else TOWERS
    if levels > len(towers[0]):
        towers = (HIGHEST,)
    start = seed % len(towers)
    wanted, roots, whole = frozenset(constants), frozenset(squares), frozenset(integers)
    for number in range(len(towers)):
        tower = towers[(start + number) % len(towers)]
        if _suits(tower, levels, wanted, signs, roots, whole):
            return tower, True
    return towers[start], False


@lru_cache(maxsize=1024)
def _suits(
    tower: tuple[int, ...],
    levels: int,
    constants: frozenset[Fraction],
    signs: bool,
    squares: frozenset[Fraction],
    integers: frozenset[int],
) -> bool:
    for prime in tower[:levels]:
        residues = set()
        for value in constants:
            if value.denominator % prime == 0 or (value and value.numerator % prime == 0):
                return False
            residues.add(value.numerator * pow(value.denominator, -1, prime) % prime)
            if signs and value and not is_square(abs(value), prime):
                return False
        if len(residues) < len(constants) or not all(is_square(abs(one), prime) for one in squares if one):
            return False
    return all(_orders(integers, prime) for prime in tower[:levels])


def _orders(integers: frozenset[int], prime: int) -> bool:
    """Return whether no two differences between integers that differ in sign have one residue."""
    if 4 * max(map(abs, integers), default=0) < prime:
        return True
    rising = {(b - a) % prime for a, b in combinations(sorted(integers), 2)}
    return 0 not in rising and not any(prime - step in rising for step in rising)


def is_square(value: Fraction, prime: int) -> bool:
    """Return whether a positive rational is a square modulo a prime."""
    return pow(value.numerator * value.denominator, (prime - 1) // 2, prime) == 1
