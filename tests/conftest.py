import contextlib
import os
from unittest import mock

import pytest
import torch

# read when Polars is first imported: tests share two cores, and their tables are small
os.environ.setdefault("POLARS_MAX_THREADS", "1")


@pytest.fixture(scope="session")
def monkeypatch_block():
    """A context in which the decoder holds at most that many logits at once."""

    @contextlib.contextmanager
    def limit(block):
        sizes = {"BLOCK": block, "TALL": 2 * block, "FEW": max(1, block // 3)}
        with contextlib.ExitStack() as all_of_them:
            for name, size in sizes.items():
                all_of_them.enter_context(mock.patch.dict(f"trisect.lm.loss.{name}", cpu=size))
            yield

    return limit


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tests share two cores; sums in one thread also come out the same on every machine."""
    torch.set_num_threads(1)
