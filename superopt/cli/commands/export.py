"""`superopt export`: a result as a Python module that needs only torch and what compiles its kernels."""

import argparse
import sys
from pathlib import Path
from typing import Any

from superopt.cli import options
from superopt.cli.writing import check_place, check_source, write_bytes, write_text
from superopt.errors import InputError

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt export best.json -o rmsnorm_linear.py
  python rmsnorm_linear.py             compares it with plain PyTorch
  superopt export best.json --region 2 --candidate "graph 1" > part.py

The module has the kernels' sources, the function, a reference in plain PyTorch and a check. It takes the
sizes at which the function is known to stay the same program, and refuses others. Kernels have no gradients:
a tensor that needs them is taken only under torch.no_grad(); the reference computes gradients. In C++, sums
are added up as the largest of the sizes needs, which may cost some time at small ones.
"""


def add_command(commands: Any) -> None:
    """Add `superopt export`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a result as a Python module that needs only torch",
        description="Writes a result as a Python module that needs only torch, and Triton or a C++ compiler.",
        epilog=_EPILOG,
    )
    parser.add_argument("result", metavar="RESULT", help="a file that superopt optimize -o wrote")
    parser.add_argument("-o", "--out", metavar="FILE", help="where the module goes (default: stdout)")
    parser.add_argument(
        "--region",
        type=options.positive,
        metavar="N",
        help="which region, from 1 (needed where there are more)",
    )
    parser.add_argument(
        "--candidate", metavar="ID", help="which candidate, by its id or name (default: the chosen one)"
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="the model's weights, as safetensors: what the kernels read that is made of them is written too,"
        " beside the module",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.export import export_module
    from superopt.export.prepared import prepared_tensors
    from superopt.result import read_result

    source = Path(arguments.result)
    weights = Path(arguments.weights) if arguments.weights is not None else None
    out = check_place(arguments.out) if arguments.out is not None else None
    beside = _beside(out) if weights is not None else None
    for place in (out, beside):
        check_source(place, source, weights)
    result = read_result(source)
    chosen = {"region": arguments.region, "candidate": arguments.candidate}
    text = export_module(result, **chosen)
    if weights is not None and beside is not None:
        write_bytes(beside, prepared_tensors(result, weights, **chosen))
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)
        print(arguments.out)
        if beside is not None:
            print(beside)
    return 0


def _beside(out: Path | None) -> Path:
    """Return the file for what is made of weights, or raise InputError where it has no place of its own."""
    if out is None:
        raise InputError("--weights needs --out: what is made of the weights is written beside the module")
    beside = out.with_suffix(".safetensors")
    if beside == out:
        raise InputError(f"--out {str(out)!r} is where what is made of the weights goes; name a .py file")
    return beside
