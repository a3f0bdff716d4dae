import contextlib
import gc
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import settings

from tests.shaped import check_shapes_alone

# read when Polars is first imported: tests share two cores, and their tables are small
os.environ.setdefault("POLARS_MAX_THREADS", "1")
check_shapes_alone()
# a busy machine is no failure
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


gc.disable()  # while modules are imported


def pytest_collection_finish() -> None:
    """What was imported lives to the end: a full collection of garbage, which models are freed by, need not walk through it."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def monkeypatch_block():
    """A context in which the decoder holds at most that many logits at once."""

    @contextlib.contextmanager
    def limit(block):
        sizes = {"BLOCK": block, "MEMBER_LOGITS": 2 * block, "SOFTMAX_LOGITS": max(1, block // 3)}
        with contextlib.ExitStack() as all_of_them:
            for name, size in sizes.items():
                all_of_them.enter_context(mock.patch.dict(f"trisect.lm.loss.{name}", cpu=size))
            yield

    return limit


ROOT = Path(__file__).parents[1]


def visible(folder: Path) -> set[str]:
    """Names in a folder that do not begin with a dot."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def left_behind(folder: Path, before: set[str]) -> list[str]:
    """What came to lie in a folder since, git's ignored names left aside."""
    fresh = sorted(visible(folder) - before)
    if not fresh:
        return []
    with contextlib.suppress(OSError):  # a machine without git
        said = subprocess.run(["git", "check-ignore", *fresh], cwd=folder, capture_output=True, text=True, check=False)
        return [name for name in fresh if name not in said.stdout.splitlines()]
    return fresh


@pytest.fixture(scope="session", autouse=True)
def tidy_root() -> Iterator[None]:
    """Tests write into folders of their own: at the end nothing new lies in the repository's root."""
    before = visible(ROOT)
    yield
    assert not (found := left_behind(ROOT, before)), f"a test wrote {found} into {ROOT}: use tmp_path"


LOOKED_UP = socket.getaddrinfo


@pytest.fixture(scope="session", autouse=True)
def no_network():
    """Names of other machines are not found, at once: a test asks no hub, with a network or without one."""

    def here_alone(host, *rest, **named):
        if host in (None, "", "localhost") or str(host).startswith(("127.", "::1", "0.0.0.0")):
            return LOOKED_UP(host, *rest, **named)
        raise socket.gaierror(socket.EAI_NONAME, f"tests ask no other machine: {host}")

    with mock.patch.object(socket, "getaddrinfo", here_alone):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tests share two cores; sums in one thread also come out the same on every machine."""
    torch.set_num_threads(1)


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Draw nothing while a patch holds, neither on a page nor beside it: figures are built, and their numbers read."""
    from trisect.report import render

    blank = '<svg width="8"></svg>'
    drawing = SimpleNamespace(**vars(render) | {"svg": lambda chart, name, legend=True: blank})
    patch.setattr("trisect.report.charts.render", drawing)
    patch.setattr("trisect.report.sheet._draw_figure", lambda figure: (blank.encode(), b""))


@pytest.fixture(scope="module")
def undrawn(request) -> Iterator[pytest.MonkeyPatch]:
    """Pages without drawings, which take most of a small run's time, unless the module is marked `drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("drawn") is None:
            leave_undrawn(patch)
        yield patch


@pytest.fixture
def quiet(monkeypatch):
    """Two trainings of one baseline that are more alike, so that planted differences of a few thousandths are seen."""
    monkeypatch.setattr("trisect.claims.evidence.REPEATED_NATS", 0.001)
