"""Memory that a step frees is reused by the next one without page faults."""

import platform
import subprocess
import sys

import pytest

# Many small blocks are freed, then one larger than each of them is written: it fits where they lay, if that memory was kept. glibc maps
# a block anew that is larger than all freed before it, so that a process which keeps nothing has a fault for each of its 6,836 pages.
COUNTED = """
import resource, sys, torch
from trisect.lm.pages import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
held = [torch.ones(250_000) for _ in range(40)]
del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = torch.ones(7_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps freed memory in its own way")
def test_freed_memory_is_used_again_without_page_faults():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", COUNTED, way], capture_output=True, text=True, check=True).stdout)
        for way in ("kept", "returned")
    )
    assert kept < 100
    assert returned > 900
