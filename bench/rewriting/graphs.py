"""A BERT-like and a NasNet-like program at the level of operators, as text that the rules read."""

from collections.abc import Callable
from dataclasses import dataclass

from superopt.rules.discover.apply import Program
from superopt.rules.discover.language.rule import parse_program

__all__ = ["GRAPHS", "Workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A program, which of its inputs are weights, and the sets of operators whose rules it is given."""

    program: Program
    weights: tuple[str, ...]
    sets: tuple[tuple[tuple[str, ...], tuple[str, ...], int], ...]  # operators, constants, size


def bert(layers: int = 1, rows: int = 128, width: int = 256) -> Workload:
    """Return encoder layers of one head: three projections share an input, and it divides early."""
    inputs = [f"x[{rows}, {width}]", f"ones[{rows}, 1]"]
    weights, value = list[str](), "x"
    for layer in range(layers):
        names = {name: f"{name}{layer}" for name in ("q", "k", "v", "o", "up", "down")}
        for name in ("q", "k", "v", "o"):
            inputs.append(f"{names[name]}[{width}, {width}]")
        inputs += [f"{names['up']}[{width}, {4 * width}]", f"{names['down']}[{4 * width}, {width}]"]
        weights += names.values()
        query, key, values = (f"matmul({value}, {names[name]})" for name in ("q", "k", "v"))
        scores = f"exp(matmul({query}, transpose({key})))"
        shares = f"scale_rows(div(ones, sum_cols({scores})), {scores})"
        mixed = f"add({value}, matmul(matmul({shares}, {values}), {names['o']}))"
        value = f"add({mixed}, matmul(relu(matmul({mixed}, {names['up']})), {names['down']}))"
    sets = (
        (("matmul", "concat_cols", "split_cols"), (), 3),
        (("matmul", "scale_rows"), (), 2),
    )
    return Workload(Program(*parse_program(f"{' '.join(inputs)}: {value}")), tuple(weights), sets)


def nasnet(channels: int = 32, size: int = 28) -> Workload:
    """Return a cell: branches of convolutions that share inputs and are added, one beside a pool."""
    image, wide = f"{channels}, {size}, {size}", f"{channels}, {channels}"
    inputs = [f"x[1, {image}]", f"y[1, {image}]"]
    inputs += [f"{name}[{wide}, 3, 3]" for name in ("a", "b", "c", "d", "e")]
    first = "concat_cols(conv_same_relu(x, a), conv_same_relu(x, b))"
    second = "add(conv_same(x, c), conv_same(y, d))"
    third = "add(avg_pool(x), conv_same(x, e))"
    sets = (
        (("conv_same_relu", "concat_rows", "concat_cols"), (), 3),
        (("conv_same", "concat_rows", "split_cols"), (), 3),
        (("conv_same", "add", "concat_cols"), (), 3),
        (("conv_same", "avg_pool", "add"), ("box",), 2),
    )
    text = f"{' '.join(inputs)}: concat_cols({first}, concat_cols({second}, {third}))"
    return Workload(Program(*parse_program(text)), ("a", "b", "c", "d", "e"), sets)


GRAPHS: dict[str, Callable[[], Workload]] = {"bert": bert, "nasnet": nasnet}
"""The programs by name."""
