"""What a page says of its texts: an invented language under a pretrained model, and WikiText as each model has read it."""

import pytest
from tests import tiny, tinyhf

import trisect
from trisect.lab.records import INVENTED
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

SAID = ' The kick @-@ off ( in 1 @,@ 000 games ) , he said : " no " . '


@pytest.fixture(scope="module")
def model():
    return trisect.load(tinyhf.gpt2(), tinyhf.tokenizer(False), quiet=True)


def test_a_pretrained_model_on_the_invented_language_has_a_banner(model, tmp_path):
    done = trisect.norms(model, "embedded", limit=3, out=tmp_path / "invented", quiet=True)
    assert done.notes[0] == INVENTED
    page = done.report.read_text(encoding="utf-8")
    assert page.index('class="lede notice"') < page.index("<main")
    trisect.render(done.folder)
    assert 'class="lede notice"' in done.report.read_text(encoding="utf-8")
    english = trisect.norms(model, "sample", limit=3, out=tmp_path / "english", quiet=True)
    assert INVENTED not in english.notes
    assert 'class="lede notice"' not in english.report.read_text(encoding="utf-8")
    assert "--corpus sample" in english.about.command


def test_the_page_of_one_of_several_models_has_the_banner_too(model, tmp_path):
    other = trisect.load(tinyhf.gpt2(2), tinyhf.tokenizer(False), quiet=True)
    done = trisect.norms([model, other], "embedded", limit=3, out=tmp_path / "several", quiet=True)
    assert [note for note in done.notes if note == INVENTED] == [INVENTED]
    both = trisect.compare([model, other], "embedded", what=("norms",), limit=3, out=tmp_path / "two", quiet=True)
    pages = [path for of in (done, both) for path in of.folder.rglob("*.html")]
    assert len(pages) == 6, pages
    assert all('class="lede notice"' in path.read_text(encoding="utf-8") for path in pages)


def test_what_was_joined_in_wikitext_is_counted_on_the_page(model, tmp_path):
    (tmp_path / "wiki.test.tokens").write_text(f" = A = \n{SAID}\n", encoding="utf-8")
    done = trisect.norms(model, tmp_path, out=tmp_path / "out", quiet=True)
    assert [note for note in done.notes if "In 1 texts" in note and "joined in 8 places" in note]
    left = trisect.norms(model, tmp_path, reader="wikitext-tokens", out=tmp_path / "left", quiet=True)
    assert not [note for note in left.notes if "joined" in note]
    assert "--reader wikitext-tokens" in left.about.command
    words = ("the", "kick", "@", "-", "off", "(", ")", ",", "1", "000", "in", "games", "he", "said", "no", ".")
    parameters = dict(views(initial(tiny.MODEL, len(words), 1)[None], layout(tiny.MODEL, len(words))))
    own = trisect.norms(OwnModel("own", tiny.MODEL, parameters, words, 12), tmp_path, out=tmp_path / "own", quiet=True)
    assert not [note for note in own.notes if "joined" in note]  # it was trained on WikiText as published
