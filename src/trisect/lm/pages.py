"""Freed memory stays with the process: asked for again in the next step, it costs no page faults."""

from __future__ import annotations

import torch

LARGEST = 31 * 2**20  # bytes: glibc adapts to freed blocks of at most 32 MiB


def keep_freed_memory() -> None:
    """Free an unused block of that size, which makes glibc keep freed blocks up to it instead of returning them.

    By default every allocation over 128 KiB is a new mapping (mmap) that is unmapped when it is freed, and the top of the heap is
    returned; each page then costs a page fault when it is next written. The threshold follows the largest freed block (mallopt(3)).
    Without effect on other allocators, and on numbers.
    """
    torch.empty(LARGEST, dtype=torch.uint8)
