"""Writing: a file that a command makes, whole or not at all, and never over the one it was made from."""

import os
from pathlib import Path

from superopt.errors import InputError, reason_of
from superopt.files import replacing

__all__ = ["check_place", "write_bytes", "write_text"]


def check_place(text: str) -> Path:
    """Return the path of a file to write, or raise InputError where none can be: before the work is done."""
    path = Path(text)
    if path.is_dir():
        raise InputError(f"cannot write {text!r}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {text!r}: there is no folder {str(path.parent)!r}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {text!r}: nothing can be written in {str(path.parent)!r}")
    return path


def write_text(path: Path, text: str, source: Path) -> None:
    """Write a text in place of what was at the path, or raise InputError."""
    write_bytes(path, text.encode("utf-8"), source)


def write_bytes(path: Path, content: bytes, source: Path) -> None:
    """Write bytes in place of what was at the path, or raise InputError."""
    try:
        if path.exists() and path.samefile(source):
            raise InputError(f"{str(path)!r} is what it is made from; name another file to write to")
        with replacing(path) as file:
            file.write(content)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {reason_of(error)}") from error
