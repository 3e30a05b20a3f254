"""Memory that was freed is used again without a fault, in a process of its own."""

import platform
import subprocess
import sys

import pytest

# Whether 16 MB come from the heap, and how many faults a call takes whose tensors have 6 MB in all.
_SCRIPT = """
import ctypes, resource, sys
import torch
from superopt.tune.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
libc.free.argtypes = [ctypes.c_void_p]
block = libc.malloc(16 << 20)
in_heap = block < libc.sbrk(0)
libc.free(block)
torch.set_num_threads(1)
x = torch.ones(1 << 17)

def call():
    return [x + at for at in range(12)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    call()
before = faults()
for _ in range(20):
    call()
print(int(in_heap), (faults() - before) / 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_calls_take_no_faults_for_memory_that_was_freed() -> None:
    found = {}
    for how in ("as it is", "kept"):
        made = subprocess.run(
            [sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True
        )
        in_heap, faults = made.stdout.split()
        found[how] = in_heap == "1"
        assert how == "as it is" or float(faults) < 50
    assert found == {"as it is": False, "kept": True}
