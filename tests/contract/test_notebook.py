"""The notebook's face: what objects show is true, escaped, alone on its page; the example shows what the code shows."""

import ast
import json
import re
from collections import Counter
from functools import reduce
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from tests.planted import attack, judged, planted
from tests.studies import no_page  # noqa: F401
from tests.synthetic import about, study_tables

import trisect
from trisect import claims
from trisect.core.claim import Claim
from trisect.experiments.study import figures, result
from trisect.report import notebook

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.ipynb"
SHORTER = (
    *(("columns=10", "columns=30"), ("rate=3e-3", "rate=1e-2"), ("warmup=20", "warmup=5")),
    *(("4_000", "1_000"), ("points=21", "points=5")),
)
NASTY = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def tables():
    """A study of six seeds in which A-1 is true."""
    made = planted(attack("pos", ["k@1"], -0.3, 0.3))
    return {**made, "claims": judged(made)}


def words(html):
    """What a reader sees of a piece of HTML, in one line."""
    text = re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.S)
    return " ".join(text.replace("\xa0", " ").split())


def assert_alone(html):
    """Needs no script, no network and no style of the page's own; is well formed."""
    assert "<script" not in html
    assert not re.search(r'(?:src|href)="|url\(|@import|https?://(?!www\.w3\.org)', html)
    ElementTree.fromstring(f"<div>{html.replace('<br>', '<br/>').replace('&nbsp;', ' ')}</div>")


def test_a_verdict_shows_effect_interval_and_margin(tables):
    found = notebook.verdicts(tables["claims"])
    assert list(found) == [f"A-{n}" for n in range(1, 16)]
    one, wholes = found["A-1"], tables["claims"].filter(pl.col("part").is_null())
    row = wholes.filter(claim="A-1").row(0, named=True)
    assert (one.id, one.verdict, one.effect, one.margin) == ("A-1", "supported", row["effect"], 0.02)
    assert one.interval == (row["low"], row["high"])
    html = one._repr_html_()
    assert_alone(html)
    said = words(html)
    assert said.startswith("A-1 supported Removing part of speech from the keys of layer 1 makes the model over-fit.")
    for part in tables["claims"].filter(pl.col("part").is_not_null(), claim="A-1").iter_rows(named=True):
        assert part["sentence"].replace("<", "&lt;").replace(">", "&gt;") in said
        assert re.search(rf"{part['effect']:+.3f}".replace("-", "−").replace("+", r"\+"), said)
        assert f"95 % {part['low']:+.3f} to {part['high']:+.3f}".replace("-", "−") in said
    assert html.count('class="forest"') == 2
    assert str(one) == "A-1 supported: Removing part of speech from the keys of layer 1 makes the model over-fit."
    assert_alone(found._repr_html_())
    assert found._repr_html_().count('class="claim"') == 15 == len(repr(found).splitlines())


def test_a_study_in_short_whose_words_take_the_colour_of_the_page_around_them(tables):
    html = result.study(tables, about((1, 2, 3, 4, 5, 6)), Path("out/report.html"))
    assert_alone(html)
    said = words(html)
    assert re.search(rf"Runs {tables['runs'].height} finished", said.replace("\u202f", ""))
    assert re.search(r"Before any verdict holds: the baseline beats the unigram loss \(\+\d", said)
    assert "attention is in use" in said
    counts = Counter(verdict.verdict for verdict in notebook.verdicts(tables["claims"]).values())
    for verdict in ("refuted", "inconclusive", "not tested"):
        assert f"{counts[verdict]} {verdict}" in said
    assert re.search(rf"{counts['supported']} (is|are) supported", said)
    assert said.endswith("Report out/report.html")
    lost = tables["runs"].with_columns(
        status=pl.when(pl.col("edit") == "none").then(pl.lit("diverged")).otherwise("status")
    )
    said = words(result.study({**tables, "runs": lost}, about((1, 2, 3, 4, 5, 6)), Path("r")))
    assert re.search(r"\d+ diverged, \d+ finished", said)
    assert "does not hold: the baseline beats the unigram loss" in said
    html = notebook.verdicts(tables["claims"])._repr_html_() + result.study(tables, about((1, 2)), Path("r.html"))
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(|background: (?!none)", html)
    style = re.findall(r"<style>(.*?)</style>", html, re.S)[0]
    for name in set(re.findall(r'class="([\w-]+)"', html)) - {"trisect", "forest", "badge"}:
        assert re.search(rf"\.trisect (?:\.\w+ > )?\.?{name}\b|badge > \*", style), name


def test_everything_that_comes_from_outside_is_escaped(tables):
    strange = about((1, 2)) | {"experiment": {"name": NASTY}, "corpus": {"name": NASTY, "splits": {}}}
    named = tables["claims"].with_columns(sentence=pl.lit(NASTY), reason=pl.lit(NASTY))
    shown = [
        result.study(tables, strange, Path(NASTY)),
        notebook.verdicts(named)._repr_html_(),
        notebook.Listing({**r, "sentence": NASTY, "reason": NASTY, "claim_sentence": NASTY} for r in claims.listing()),
        Claim("A-0", NASTY, NASTY, ()),
        notebook.error_html(trisect.TrisectError(NASTY, NASTY, NASTY)),
    ]
    for html in shown:
        html = html if isinstance(html, str) else html._repr_html_()
        assert type(html) is str
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_claims_before_any_data():
    html = trisect.list_claims()._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    assert_alone(html)
    said = words(html)
    for row in claims.listing():
        for text in (row["claim"], row["claim_sentence"], row["sentence"], row["reason"]):
            assert " ".join(str(text).split()) in unescape(said)
    assert json.loads(json.dumps(trisect.list_claims())) == claims.listing()
    one = claims.CLAIMS["submodules"][0]._repr_html_()
    assert_alone(one)
    assert words(one).startswith("A-1 Removing part of speech from the keys of layer 1 makes the model over-fit.")
    assert all(part.reason in unescape(one) for part in claims.CLAIMS["submodules"][0].parts)


def test_a_corpus_shows_its_size_not_its_words_and_a_study_that_cannot_be_read_says_so(tmp_path):
    corpus = trisect.corpus("embedded")
    assert_alone(corpus._repr_html_())
    assert "embedded, fingerprint" in words(corpus._repr_html_()).replace(" ,", ",")
    assert "train 30,002 tokens" in words(corpus._repr_html_())
    assert repr(corpus).startswith(
        "<Corpus embedded: train 30,002, valid 6,008, test 6,014 tokens, 287 types, pos, dep, "
    )
    html = trisect.Study(tmp_path / "none")._repr_html_()
    assert "cannot be read" in words(html)
    assert_alone(html)


SMALL = ((1, 2), 2, 1, ("pos",))  # seeds, epochs, layers, labels


def test_a_chart_shows_itself_as_svg_and_two_on_one_page_share_no_ids():
    def figures_of(tables):
        return {one.name: one for one in figures.collect(figures.StudyRows.of(tables, about(*SMALL)))}

    def svg(figure):
        return notebook.chart(figure.chart())._repr_mimebundle_()["image/svg+xml"]

    tables = study_tables(*SMALL)
    drawn = figures_of(tables)
    made = drawn["answer"].chart()
    shown = notebook.chart(made)
    assert shown.to_dict(validate=False) == made.to_dict(validate=False)
    assert isinstance(shown, type(made))
    assert type(shown.copy()) is type(shown)
    other = {**tables, "sites": tables["sites"].with_columns(value=pl.col("value") * 2)}
    texts = [svg(of["fig08-rewind-heat"]) for of in (drawn, figures_of(other))]
    assert_alone(svg(drawn["answer"]).replace("&", "&amp;"))
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in texts]
    assert all(ids)
    assert not ids[0] & ids[1]
    for text, own in zip(texts, ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= own
    assert svg(figures_of(tables)["fig08-rewind-heat"]) == texts[0]


def shown(value):
    """What Jupyter keeps of a cell's last value, by kind."""
    if (bundle := getattr(value, "_repr_mimebundle_", None)) is not None:
        return dict(bundle())
    html = getattr(value, "_repr_html_", None)
    return {"text/plain": repr(value)} | ({"text/html": html()} if html is not None else {})


def plain(text):
    """The words of an output in order of the alphabet: numbers may differ in the last digits on another processor."""
    return sorted(w for w in re.sub(r"[\d.,\s+−-]+", " ", words(text)).split() if w)


def test_the_example_shows_what_the_code_of_today_shows(tmp_path, monkeypatch):
    """Each cell is run here, without a kernel, and compared with what is stored, less numbers; `make notebook` renews it.

    The study that it trains has fewer steps and points, which changes numbers alone.
    """
    monkeypatch.chdir(tmp_path)
    book, names = json.loads(EXAMPLE.read_text(encoding="utf-8")), {}
    compared = 0
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse(reduce(lambda code, pair: code.replace(*pair), SHORTER, "".join(cell["source"])))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, EXAMPLE.name, "exec"), names)
        assert isinstance(last, ast.Expr), "every cell of the example shows something"
        value = shown(eval(compile(ast.Expression(last.value), EXAMPLE.name, "eval"), names))
        [output] = cell["outputs"]
        assert set(output["data"]) == set(value)
        for kind, text in output["data"].items():
            assert plain("".join(text)) == plain(value[kind]), f"{''.join(cell['source'])}: run 'make notebook'"
            compared += 1
    assert compared >= 12
    content = EXAMPLE.read_text(encoding="utf-8")
    assert not re.search(r'"(?:/(?:home|root|tmp|work|Users)|[A-Z]:\\\\)', content)
    assert len(content) < 200_000
