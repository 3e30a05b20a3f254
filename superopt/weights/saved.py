"""Saved: all that this process keeps of weights, as a file."""

from pathlib import Path

from torch import Tensor

from superopt.weights.kept import all_made
from superopt.weights.safetensors import write_tensors
from superopt.weights.stored import digest, key_of

__all__ = ["save_prepared"]


def save_prepared(path: str | Path) -> int:
    """Write what programs of this process keep of weights, as safetensors; return how many tensors that are.

    What is kept is made in the first calls of a program. `superopt.load_prepared` reads the file.
    """
    found: dict[str, Tensor] = {}
    for maker, weights, tensor in all_made():
        found[key_of(maker, weights)] = tensor
    write_tensors(Path(path), found, {name: digest(one) for name, one in found.items()})
    return len(found)
