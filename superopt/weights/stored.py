"""Stored: what was made of weights, in files, so that other processes need not make it again.

A tensor is found by how it is made and by the numbers of its weights, not by their names. So a file serves
every program with these weights, and says nothing of others: what is made of them is made as ever.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from superopt.dtypes import torch_dtypes
from superopt.errors import InputError
from superopt.weights.memory import in_large_pages
from superopt.weights.safetensors import TensorFile, bytes_of
from superopt.weights.shared import Maker

__all__ = ["digest", "key_of", "load_prepared", "stored"]

log = logging.getLogger("superopt")

_DTYPES = torch_dtypes()
_VERSION = "superopt prepared 1"
_places: dict[str, list[tuple[TensorFile, str]]] = {}  # how a tensor is made -> files, and the names there


def digest(tensor: Tensor) -> str:
    """Return what tells the numbers of a tensor from others."""
    made = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    made.update(bytes_of(tensor))
    return made.hexdigest()


def key_of(maker: Maker, weights: Sequence[Tensor]) -> str:
    """Return the name in files of what is made of weights in one way: the way, then the weights."""
    made = hashlib.sha256(" ".join(map(digest, weights)).encode())
    return f"{_way(maker)}.{made.hexdigest()[:32]}"


def _way(maker: Maker) -> str:
    return hashlib.sha256(f"{_VERSION} {maker.text}".encode()).hexdigest()[:32]


def load_prepared(path: str | Path) -> int:
    """From now on, read from a file what `save_prepared` wrote there; return how many tensors it has.

    The file is trusted as the file of the model's weights is: its tensors are checked for damage only.
    """
    file = TensorFile(Path(path))
    for name in file.names:
        if name not in file.told:
            raise InputError(f"{str(path)!r} was not written by superopt.save_prepared")
        _places.setdefault(name.partition(".")[0], []).append((file, name))
    return len(file.names)


def stored(maker: Maker, weights: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor that a file has for these weights, on their device, or None."""
    places = _places.get(_way(maker)) if _places else None
    if not places:
        return None
    key = key_of(maker, weights)
    for file, name in places:
        if name != key:
            continue
        try:
            found = file.tensor(name)
        except InputError as error:
            log.warning("%s; what is made of weights is made again", error)
            continue
        port = maker.graph.outputs[0].port
        fits = tuple(found.shape) == maker.graph.shape(port) and found.dtype == _DTYPES[port.dtype]
        if fits and digest(found) == file.told[name]:
            return in_large_pages(found.to(weights[0].device))
        log.warning("%s is damaged; what is made of weights is made again", file.path)
    return None
