"""Theory's page as a file: what it quotes, what it refuses, and how plain formulas become HTML."""

from base64 import b64decode

import numpy as np
import pytest

from trisect import theory
from trisect.core.errors import StudyError, TheoryError
from trisect.experiments.theory import page
from trisect.experiments.theory.page import base_draws
from trisect.report.sheet import Document, write_document
from trisect.theory import KeyDraws


def test_the_page_holds_its_draws_exactly():
    draws = base_draws(3, samples=300)
    numbers = np.frombuffer(b64decode(page.encode_draws(draws)), dtype="<f4").astype(np.float64)
    assert (numbers[:300] == draws.stretch).all()
    assert (numbers[300:].reshape(300, 8, 2) == draws.along).all()
    # 5,100 standard normals: their mean is N(0, 1/5100), five standard deviations are 0.07
    assert abs(numbers.mean()) < 0.07
    assert abs(numbers.std() - 1) < 0.05


def test_all_eight_are_on_the_page_under_their_own_names():
    assert list(page.constructions()) == list(theory.CONSTRUCTIONS)
    text = page.html(base_draws(samples=300))
    for name in theory.CONSTRUCTIONS:
        assert text.count(f'data-name="{name}"') == 1
        assert f"\n  {name}: {{\n" in text  # the script knows it


@pytest.mark.parametrize(
    ("plain", "html"),
    [
        ("α_a = e^β / (n − 2)", "α<sub>a</sub> = e<sup>β</sup> / (n − 2)"),
        ("e^{−β⁶} and c_{ab}", "e<sup>−β⁶</sup> and c<sub>ab</sub>"),
        ("logits -990 and word-for-word", "logits −990 and word-for-word"),
        ("<script>a_b</script>", "&lt;script&gt;a<sub>b</sub>&lt;/script&gt;"),
    ],
)
def test_plain_formulas_become_html(plain, html):
    assert page.rich(plain) == html


def test_numbers_in_a_row():
    assert page.figures((0.5, -4.54e-05, 1e-17, 2.5e12)) == "0.5, −4.54·10<sup>−5</sup>, 0, 2.5·10<sup>12</sup>"


def test_too_few_draws_are_refused():
    for few in (base_draws(samples=299), KeyDraws(base_draws().stretch, base_draws().along[:, :7])):
        samples, keys = few.along.shape[:2]
        with pytest.raises(TheoryError) as caught:
            page.html(few)
        assert str(caught.value) == (
            f"Draws of {samples} samples and {keys} keys were given.\n"
            "  The page shows up to 8 keys and draws 300 samples as dots.\n"
            "  Use those of base_draws(), or larger ones."
        )


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match=r"theory\.html could not be written\."):
        write_document(tmp_path / "file" / "theory.html", Document("theory.html", page.html(base_draws(samples=300))))


def test_the_same_draws_give_the_same_page():
    first = page.html(base_draws())
    assert first == page.html(base_draws(0))
    assert first != page.html(base_draws(1))
