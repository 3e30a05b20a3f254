"""Files that are written whole or not at all: a reader meets the old content or the new one, never a part."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace_text", "replacing"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the path's place once the block ends well; otherwise nothing is left of it."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name has a null character")
    scratch = path.parent / f".{path.name[:100]}.{secrets.token_hex(6)}"
    try:
        with scratch.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a loss of power could leave the new name with no content
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a text in place of what was at the path."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
