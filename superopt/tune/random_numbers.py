"""Random numbers: what is measured may draw some, and the program around it shall not notice."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["same_random_numbers"]


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Leave all generators of PyTorch as they are, seeds included."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            if not started and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                for one in torch.cuda.default_generators:  # nothing was drawn of them before
                    one.manual_seed(one.initial_seed())
