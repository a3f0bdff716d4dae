"""What a C++ kernel for the decoder's softmax would gain: a trial that trisect does not use (docs/decisions/0117).

python bench/kernel.py
"""

from __future__ import annotations

import ctypes
import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from step import VOCABULARY, corpus, our_step, products, row, set_to, share, timed
from torch import Tensor

from trisect.lm import loss
from trisect.lm.loss import Scores
from trisect.lm.matmul import fast_products

SOURCE = Path(__file__).with_suffix(".cpp")
BUILDS = {
    "clones for AVX2 and AVX-512": ["-DCLONES"],  # GCC on Linux: the processor chooses when the library is loaded
    "plain -O3": [],  # what a compiler makes for every processor of its kind
}
Way = Callable[[Tensor, Tensor, Tensor, Tensor, bool], Scores]


def built(compiler: str, options: list[str], folder: Path) -> Way:
    """`loss.scores_in_place` by the kernel."""
    place = folder / f"kernel{len(options)}.so"
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", *options, str(SOURCE), "-o", str(place)], check=True)
    kernel = ctypes.CDLL(str(place)).scores
    kernel.restype = None

    def work(z: Tensor, b: Tensor, y: Tensor, db: Tensor, gold: bool) -> Scores:
        found = Scores(z.new_empty(z.shape[:2]), torch.empty(z.shape[:2], dtype=torch.bool))
        for one in range(z.shape[0]):
            first = [ctypes.c_void_p(t.data_ptr()) for t in (z[one], b[one], y)]
            last = [ctypes.c_void_p(t.data_ptr()) for t in (found.loss[one], found.correct[one], db[one])]
            kernel(*first, ctypes.c_long(z.shape[1]), ctypes.c_long(z.shape[2]), *last)
        return found

    return work


def errors(way: Way) -> tuple[float, float]:
    """Largest difference in p and in the loss from float64: the kernel's, and PyTorch's."""
    draw = torch.Generator().manual_seed(0)
    z, b = 3 * torch.randn(1, 8, VOCABULARY, generator=draw), torch.randn(1, VOCABULARY, generator=draw)
    y, found = torch.arange(8), []
    exact = z.double()
    seen = loss.scores_in_place(exact, b.double(), y, torch.zeros_like(b).double(), True)
    for each in (way, loss.scores_in_place):
        own = z.clone()
        scores = each(own, b, y, torch.zeros_like(b), True)
        found.append(float(max((own - exact).abs().max(), (scores.loss - seen.loss).abs().max())))
    return found[0], found[1]


def with_kernel(way: Way, step: Callable[[], object]) -> Callable[[], None]:
    """A step whose decoder uses it."""

    def work() -> None:
        with mock.patch.object(loss, "scores_in_place", way):
            step()

    return work


def rows(rounds: int = 15) -> list[dict[str, object]]:
    """The table's row; none where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, fast_products() as setting:
        ways = {name: built(compiler, options, Path(folder)) for name, options in BUILDS.items()}
        text, alone = corpus(), products()[0]
        step = our_step(text, 0.2)
        made = {"without": step} | {name: with_kernel(way, step) for name, way in ways.items()} | {"limit": alone}
        spent = timed({name: set_to(setting, way) for name, way in made.items()}, rounds)
        kernel, torchs = errors(ways[next(iter(BUILDS))])
    first, second = BUILDS
    slower = statistics.median(a / b for a, b in zip(spent[second], spent["without"], strict=True))
    reached = [share(spent, "limit", way) for way in ("without", first)]
    notes = [
        f"share of the time that the step's products alone would take: without {reached[0]}, with {reached[1]}",
        f"the same kernel compiled for every processor ({second}): {slower:.2f} times the step without it",
        f"largest error against float64: kernel {kernel:.1e}, PyTorch {torchs:.1e}; why it is not used: decision 117",
    ]
    what = "a trial, not in trisect: one training step, 28,782 types, 20 x 35 tokens"
    what += ", without (plain) and with a C++ kernel for the decoder's softmax"
    return [row(f"{what} ({first})", spent, "without", first, notes)]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
