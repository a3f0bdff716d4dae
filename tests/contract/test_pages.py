"""Memory that a step frees is reused by the next one without page faults."""

import platform
import subprocess
import sys

import pytest

# allocations above glibc's default mmap threshold, freed and allocated again, as in a step
COUNTED = """
import resource, sys, torch
from trisect.lm.pages import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1_000_000) for _ in range(5)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
found = [faults() for _ in range(4)]
print(found[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps freed memory in its own way")
def test_freed_memory_is_used_again_without_page_faults():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", COUNTED, way], capture_output=True, text=True, check=True).stdout)
        for way in ("kept", "returned")
    )
    assert kept < 100
    assert returned > 900  # one block has 977 pages: a process that returns none has nothing to keep
