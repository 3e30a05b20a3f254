"""Away: weights that calls no longer read leave the memory, and lie in a file from then on.

Nothing else changes for who reads or writes them: the system brings back what is asked for, and keeps what is
written in memory. The file has no name, and is gone with the weight.
"""

import mmap
import sys
import tempfile
import weakref

import torch
from torch import Tensor

from superopt.cache.place import cache_folder
from superopt.weights.memory import array_of

__all__ = ["bytes_away", "is_away", "put_away"]

_away: dict[int, int] = {}  # bytes in a file, by the address to which they are mapped


def bytes_away() -> int:
    """Return the bytes of all weights that lie in files now."""
    return sum(_away.values())


def is_away(tensor: Tensor) -> bool:
    """Whether a weight lies in a file."""
    return tensor.data_ptr() in _away


def put_away(tensor: Tensor) -> "Behind | None":
    """Move the numbers of a tensor to a file; return what they leave behind, or None where they stay.

    They stay where anything else uses the same memory, such as a view, or may use it, such as an array of
    numpy's, and where another thread writes to them meanwhile. Whoever calls keeps what is left behind for
    some time: other threads may still be reading, or even writing.
    """
    if not tensor.is_cpu or not _is_dense(tensor) or _may_be_shared(tensor):
        return None
    version = tensor._version
    with torch.inference_mode(False), torch.no_grad():  # else PyTorch would refuse later writes to the weight
        try:
            moved, saved = _moved(tensor)
        except (OSError, ValueError):  # no folder, no room, or a system that cannot map files so
            return None
        if tensor._version != version:
            return None
        behind = Behind(tensor, saved)
        tensor.data = moved
    return behind


class Behind:
    """The memory that a weight had before it was put away, and the numbers that were put away."""

    def __init__(self, tensor: Tensor, saved: Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self._saved = saved
        self.memory = tensor.untyped_storage()

    def repeat_late_write(self) -> None:
        """Repeat a write to the weight that began before it was put away, and ended in the old memory."""
        tensor = self._tensor()
        if tensor is None or tensor._version == self._version or not is_away(tensor):
            return
        behind = torch.empty(0, dtype=torch.uint8).set_(self.memory)
        if tensor._version == self._version + 1 and not torch.equal(behind, self._saved):
            with torch.inference_mode(False), torch.no_grad():
                tensor.copy_(
                    torch.empty(0, dtype=tensor.dtype).set_(self.memory, 0, tensor.shape, tensor.stride())
                )


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is all that its memory holds."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes() > 0


def _may_be_shared(tensor: Tensor) -> bool:
    """Whether anything else uses the memory of a tensor, or nobody can tell.

    PyTorch never resizes memory that it has once given to numpy, nor memory that it did not allocate: that of
    numpy, of a file, or of another library.
    """
    fixed = tensor.is_shared() or not tensor.untyped_storage().resizable()  # type: ignore[no-untyped-call]
    return fixed or _references(tensor) > _references(torch.empty(1))


def _references(tensor: Tensor) -> int:
    """Return how often the memory of a tensor is referred to, as PyTorch and Python count.

    What DLPack gives to others refers to the tensor itself, as does a call through PyTorch's dispatcher.
    """
    storage = tensor.untyped_storage()
    own: int = tensor._use_count()  # type: ignore[attr-defined]
    found: int = torch._C._storage_Use_Count(storage._cdata)
    return own + found + sys.getrefcount(storage)


def _moved(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same numbers in the same order, read from a file where they are asked for, and its bytes."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        array_of(whole).tofile(file)
        mapped, unwritten = (
            mmap.mmap(file.fileno(), whole.numel(), access=mmap.ACCESS_COPY) for _ in range(2)
        )
    flat = torch.frombuffer(mapped, dtype=tensor.dtype)
    _away[flat.data_ptr()] = whole.numel()
    weakref.finalize(mapped, _away.pop, flat.data_ptr())
    return flat.as_strided(tensor.shape, tensor.stride()), torch.frombuffer(unwritten, dtype=torch.uint8)
