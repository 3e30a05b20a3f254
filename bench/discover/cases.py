"""The cases: sets of operators and sizes of graphs, and the inputs that each is given."""

from superopt.rules.discover.discover import default_setting
from superopt.rules.discover.language.operators import operators_named
from superopt.rules.discover.search.terms import Setting, Units

__all__ = ["CASES", "setting_of", "taso_setting"]

SEVEN = (
    "add", "mul", "relu", "matmul", "transpose", "concat_rows", "concat_cols", "split_rows", "split_cols",
)  # fmt: skip
FOUR = ("add", "relu", "matmul", "transpose")
ALL = (*SEVEN, "scale")
JOINING = ("add", "matmul", "concat_rows", "concat_cols", "split_rows", "split_cols")
IMAGES = (
    "add", "relu", "conv_same", "conv_same_relu", "conv_half", "conv_groups", "concat_rows", "concat_cols",
    "avg_pool", "max_pool", "enlarge",
)  # fmt: skip
MERGING = ("conv_same", "add", "concat_rows", "concat_cols", "split_cols")
ALGEBRA = ("add", "mul", "div", "exp", "log", "square", "sqrt", "abs", "max", "less", "where")
NORMS = ("add", "mul", "matmul", "sum_cols", "max_cols", "max", "exp", "scale_rows")
# TASO's operators and inputs: its windows of 1 by 1 have no weight there, and 3 by 1 no convolution.
TASO = (
    "matmul", "add", "mul", "scale", "relu", "transpose", "concat_rows", "concat_cols", "split_rows",
    "split_cols", "conv_same", "conv_same_relu", "conv_groups", "conv_groups_relu", "conv_depth",
    "conv_depth_relu", "avg_pool", "max_pool", "enlarge_high", "enlarge_wide",
)  # fmt: skip
_CHANNELS: Units = (("c", "c"), ("c", "c"))
_TASO_INPUTS: dict[str, Units] = {
    "a b d": (("r",), ("u",)),
    "e f g eye": (("u",), ("u",)),
    "x y z full": (("b",), ("c", "c"), ("y",), ("z",)),
    "u v w dirac": (*_CHANNELS, ("wide(k)",), ("wide(j)",)),
    "l m n": (*_CHANNELS, ("k",), ("wide(j)",)),
    "o p q": (*_CHANNELS, ("wide(k)",), ("j",)),
    "h": (("c", "c"), ("1",), ("wide(k)",), ("wide(j)",)),
    "boxes": (("c", "c"), ("1",), ("3",), ("3",)),
    "s": (),
}
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "taso-2": (TASO, (), 2),
    "taso-3": (TASO, (), 3),
    "all-2": (ALL, (), 2),
    "images-2": (IMAGES, ("dirac", "box"), 2),
    "algebra-2": (ALGEBRA, (), 2),
    "norms-2": (NORMS, ("ones",), 2),
    "seven-3": (SEVEN, (), 3),
    "joining-3": (JOINING, (), 3),
    "merging-3": (MERGING, (), 3),
    "all-3": (ALL, (), 3),
    "four-4": (FOUR, (), 4),
    "seven-4": (SEVEN, (), 4),
}


def setting_of(name: str) -> Setting:
    """Return the operators and inputs of a case."""
    operators, constants, size = CASES[name]
    return taso_setting() if operators == TASO else default_setting(size, operators, constants=constants)


def taso_setting() -> Setting:
    """Return TASO's operators over its inputs: matrices, images, weights with several windows, constants."""
    inputs = [(name, units) for names, units in _TASO_INPUTS.items() for name in names.split()]
    return Setting(operators_named(TASO), tuple(inputs), samples=4)
