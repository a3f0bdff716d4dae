"""A page made from a synthetic study, and Chromium to open it with; without a browser these tests are skipped."""

import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import polars as pl
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests import pages
from tests.synthetic import about, study_tables

from trisect.claims import judge
from trisect.experiments.study import figures
from trisect.experiments.study.rows import StudyRows

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

Opened = Callable[..., Page]


class Made(NamedTuple):
    """A page's address, and the rows that it was made from."""

    address: str
    rows: StudyRows
    tables: dict[str, pl.DataFrame]


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.keywords and CHROMIUM is None:
            item.add_marker(pytest.mark.skip(reason="no Chromium on the PATH"))


@pytest.fixture(scope="module", autouse=True)
def _files_undrawn():
    """A page is looked at, and not the files of its figures beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.report.sheet._draw_figure", lambda figure: (b"<svg></svg>", b""))
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    shape = {"seeds": (1, 2), "epochs": 3, "layers": 2}
    tables = study_tables(**shape)
    description = about(**shape)
    description["corpus"]["name"] = "a-name-without-any-place-to-break-it-" * 6
    # claims that were not tested wait together on a page, which a test of its own plants
    verdict = pl.col("verdict").replace("not tested", "inconclusive")
    tables["claims"] = judge(tables, description).with_columns(verdict)
    rows = StudyRows.of(tables, description)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(pages.html(tables, rows, figures.collect(rows)), encoding="utf-8")
    return Made(path.as_uri(), rows, tables)


@pytest.fixture(scope="session")
def address(made) -> str:
    return made.address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def new_tab(browser) -> Iterator[Opened]:
    """Opens an address in a tab of its own; at the end no tab may have complained, or asked for anything that is not below it."""
    tabs, elsewhere, said = [], [], []

    def open_(address: str, width=1280, scheme: Literal["light", "dark"] = "light", script=True, touch=False) -> Page:
        own = ("data:", "blob:", address.partition("#")[0])
        tab = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script, has_touch=touch
        ).new_page()
        tab.on("request", lambda request: request.url.startswith(own) or elsewhere.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(address)
        tabs.append(tab)
        return tab

    yield open_
    for tab in tabs:
        tab.context.close()
    assert (elsewhere, said) == ([], [])


@pytest.fixture
def opened(new_tab, address) -> Opened:
    """Opens the page of a module's tests."""
    return functools.partial(new_tab, address)
