"""Memory that was freed is used again without a fault, in a process of its own."""

import platform
import subprocess
import sys

import pytest

# Whether 16 MB come from the heap, and how many faults a call takes whose tensors have 6 MB in all.
_SCRIPT = """
import ctypes, resource
import torch
from superopt.tune.allocator import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
def in_heap():
    return int(libc.malloc(16 << 20) < libc.sbrk(0))  # not freed: that would change where the next one lies

before = in_heap()
keep_freed_memory()
after = in_heap()
torch.set_num_threads(1)
x = torch.ones(1 << 17)

def call():
    return [x + at for at in range(12)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    call()
start = faults()
for _ in range(20):
    call()
print(before, after, (faults() - start) / 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_calls_take_no_faults_for_memory_that_was_freed() -> None:
    made = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    before, after, faults = made.stdout.split()
    assert (before, after) == ("0", "1")
    assert float(faults) < 50
