"""Files that are written whole or not at all: a reader meets the old content or the new one, never a part."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace_text", "replacing"]

_OUTPUTS = (1, 2)  # the descriptors of stdout and stderr


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the path's place once the block ends well; otherwise nothing is left of it.

    A link stays, and the file that it leads to is replaced, which keeps its mode. A device or a pipe is no
    file that could be replaced: it is written to, and so is what stdout or stderr goes to.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name has a null character")
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if old is not None and (output := _output_to(old)) is not None:
        with os.fdopen(os.dup(output), "wb") as file:
            yield file
        return
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    scratch = path.parent / f".{path.name[:100]}.{secrets.token_hex(6)}"
    try:
        with scratch.open("xb") as file:
            if old is not None:
                _be_like(scratch, old)
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a loss of power could leave the new name with no content
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def _output_to(found: os.stat_result) -> int | None:
    """Return the descriptor by which this process prints to a file, or None; /dev/stdout may be any file."""
    for number in _OUTPUTS:
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(number)):
                return number
    return None


def _be_like(path: Path, old: os.stat_result) -> None:
    """Give a file the owner and the mode of an old one, as far as this user may."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))


def replace_text(path: Path, text: str) -> None:
    """Write a text in place of what was at the path; what UTF-8 does not hold is escaped, as JSON has it."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
