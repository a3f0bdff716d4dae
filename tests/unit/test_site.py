import pytest

from trisect.core.errors import SiteError
from trisect.core.site import Site


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("k@3", "k@3"),
        ("k+q@2,1", "q+k@1-2"),
        ("v@all", "v@all"),
        ("v@2.h4", "v@2.h4"),
        ("v@2.h4,1-2", "v@2.h1-2,4"),
        ("cross.v@4", "cross.v@4"),
        ("ffn@3", "ffn@3"),
        ("o@2", "o@2"),
        ("attn@1", "attn@1"),
        ("pre.k@3", "pre.k@3"),
        ("enc.pre.k+k@1,2,3,7", "enc.pre.k@1-3,7"),
        (" q@1 ", "q@1"),
    ],
)
def test_one_canonical_spelling(text, canonical):
    assert str(Site.parse(text)) == canonical
    assert Site.parse(canonical) == Site.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not of that form"),
        ("k", "not of that form"),
        ("@3", "not of that form"),
        ("k@", "not of that form"),
        ("k@2-1", "the span '2-1' is reversed"),
        ("k@0", "layers and heads count from 1"),
        ("k@x", "'x' is neither a number nor a span"),
        ("k@1..2", "not of that form"),
        ("z@1", "'z' is no component"),
        ("qk@1", "'qk' is no component"),
        ("q++k@1", "'' is no component"),
        ("K@1", "not of that form"),
        ("ffn@1.h2", "only q, k, v, o have heads"),
        ("pre.o@1", "only q, k and v have a projection's output of their own"),
        ("k@1.h0", "layers and heads count from 1"),
        ("encoder.k@1", "not of that form"),
    ],
)
def test_what_is_no_site_says_why_what_there_is_and_what_to_do(text, why):
    with pytest.raises(SiteError) as caught:
        Site.parse(text)
    assert why in caught.value.problem
    assert caught.value.reason.startswith("A site reads [stack.][pre.]component@layer[.hHEAD]")
    assert caught.value.todo == "Write for example k@3, q+k@1-2, v@all, v@2.h4, cross.v@4 or pre.k@3."


def test_resolving_counts_layers_out():
    assert str(Site.parse("v@all").resolve(3, 2)) == "v@1-3"
    assert [str(p) for p in Site.parse("q+k@1-2").resolve(2, 2).parts()] == ["q@1", "k@1", "q@2", "k@2"]


def test_outside_the_model_is_an_error_never_an_empty_set():
    with pytest.raises(SiteError, match=r"'k@6' lies outside the model: layer 6") as caught:
        Site.parse("k@6").resolve(5, 5)
    assert caught.value.reason == "The model has layers 1-5 and heads 1-5."
    with pytest.raises(SiteError, match=r"names head 4 of k") as caught:
        Site.parse("q+k@1.h4").resolve(5, 8, kv_heads=2)
    assert "k has heads 1-2" in caught.value.reason
    assert str(Site.parse("q@1.h4").resolve(5, 8, kv_heads=2)) == "q@1.h4"
    with pytest.raises(SiteError, match="names the stack 'dec'"):
        Site.parse("dec.k@1").resolve(5, 5)


def test_parts_of_an_unresolved_site_are_refused():
    with pytest.raises(SiteError, match="no layer numbers yet"):
        Site.parse("k@all").parts()
