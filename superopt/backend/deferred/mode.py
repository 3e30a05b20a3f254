"""Mode: whether what a budget leaves undone is deferred, and who works it off."""

import os
import sys
from collections.abc import Mapping
from typing import Literal

import torch

from superopt.backend.options import BackendOptions, options_error

__all__ = ["DEFAULT", "TUNE_VARIABLE", "Mode", "mode_of", "stays_as_it_is"]

Mode = Literal["off", "later", "background"]

DEFAULT: Mode = "later"
"""The mode without an option: a library starts no process unasked."""

TUNE_VARIABLE = "SUPEROPT_TUNE"
_ORDER: tuple[Mode, ...] = ("off", "later", "background")


def mode_of(options: BackendOptions, environment: Mapping[str, str] = os.environ) -> Mode:
    """Return the mode that the option asks for, or the most that the environment variable allows.

    SUPEROPT_TUNE takes the place of the default, and is the most that an option may ask for: so one switch
    turns it off in tests. Without a cache there is no queue.
    """
    told = environment.get(TUNE_VARIABLE, "")
    if told and told not in _ORDER:
        raise options_error(f"{TUNE_VARIABLE} is {told!r}; it is one of {', '.join(_ORDER)}")
    if not options.cache:
        return "off"
    asked: str = options.tune or told or DEFAULT
    most = told or _ORDER[-1]
    found = _ORDER[min(_ORDER.index(asked), _ORDER.index(most))]
    return "later" if found == "background" and stays_as_it_is() else found


def stays_as_it_is() -> bool:
    """Whether a program must not change while it runs, or no processor is free for a helper.

    A GPU has no low priority for another process, and a capture of a graph may begin at any call. Windows has
    neither the priorities nor the locks.
    """
    fixed = torch.are_deterministic_algorithms_enabled()
    return fixed or torch.cuda.is_available() or sys.platform == "win32"
