"""Memory that a step frees is reused by the next one without page faults."""

import os
import platform
import subprocess
import sys

import pytest

# A block is freed and a smaller one is written: it fits where the first one lay, whatever small objects were placed beside it, if that
# memory was kept. A process that keeps nothing has a fault for each of its 6,836 pages.
COUNTED = """
import resource, sys, torch
from trisect.lm.train import _raise_trim_threshold
if sys.argv[1] == "kept":
    _raise_trim_threshold()
torch.ones(7_250_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = torch.ones(7_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps freed memory in its own way")
def test_freed_memory_is_used_again_without_page_faults():
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    kept, returned = (
        int(
            subprocess.run(
                [sys.executable, "-c", COUNTED, way], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("kept", "returned")
    )
    assert kept < 100
    assert returned > 900
