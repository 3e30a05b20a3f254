"""Writing: a file that a command makes, whole or not at all, and never over the one it was made from.

Paths are looked at by `os.path`, which says no where `Path` raises: for a name that is too long, or inside a
folder that this user may not enter.
"""

import os
from pathlib import Path

from superopt.errors import InputError, reason_of
from superopt.files import replacing

__all__ = ["check_folder", "check_place", "check_source", "write_bytes", "write_text"]


def check_place(text: str) -> Path:
    """Return the path of a file to write, or raise InputError where none can be: before the work is done."""
    path = Path(text)
    if os.path.isdir(path):
        raise InputError(f"cannot write {text!r}: it is a folder; name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe is written to
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {text!r}: it takes nothing from this user")
        return path
    folder = Path(os.path.realpath(path)).parent if os.path.islink(path) else path.parent
    if not os.path.isdir(folder):
        raise InputError(f"cannot write {text!r}: there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {text!r}: nothing can be written in {str(folder)!r}")
    return path


def check_source(path: Path | None, *sources: Path | None) -> None:
    """Raise InputError where a file to write is one that it is made from."""
    if path is None or not os.path.exists(path):
        return
    for source in sources:
        if source is not None and os.path.exists(source) and path.samefile(source):
            raise InputError(f"{str(path)!r} is what it is made from; name another file to write to")


def check_folder(option: str, folder: Path) -> None:
    """Raise InputError where a folder to write in, which may still be made, is a file."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"{option} {str(folder)!r} is a file; give a folder")


def write_text(path: Path, text: str) -> None:
    """Write a text in place of what was at the path, or raise InputError."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes in place of what was at the path, or raise InputError."""
    try:
        with replacing(path) as file:
            file.write(content)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {reason_of(error)}") from error
