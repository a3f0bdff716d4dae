from hypothesis import given
from hypothesis import strategies as st

from trisect.core.errors import SiteError
from trisect.core.site import Site

NUMBERS = st.one_of(st.none(), st.lists(st.integers(1, 60), min_size=1, max_size=8).map(tuple))
SITES = st.builds(
    Site,
    components=st.lists(st.sampled_from(["q", "k", "v", "o"]), min_size=1, max_size=4).map(tuple),
    layers=NUMBERS,
    heads=NUMBERS,
    stack=st.sampled_from(["", "enc", "dec", "cross"]),
)


@given(SITES)
def test_parse_reads_what_str_writes(site):
    assert Site.parse(str(site)) == site
    assert str(Site.parse(str(site))) == str(site)


@given(SITES, st.integers(1, 60), st.integers(1, 60))
def test_a_site_resolves_exactly_when_it_lies_inside(site, layers, heads):
    inside = site.stack == "" and max(site.layers or (1,)) <= layers and max(site.heads or (1,)) <= heads
    try:
        resolved = site.resolve(layers, heads)
    except SiteError:
        assert not inside
    else:
        assert inside
        assert len(resolved.parts()) == len(resolved.components) * len(resolved.layers or ())


@given(st.text(alphabet="qkvoatnf+@.h,-0123456789 lenc", max_size=14))
def test_any_text_is_a_site_or_a_clear_error(text):
    try:
        said = str(Site.parse(text))
    except SiteError as error:
        said = str(error)
        assert len(said.split("\n  ")) == 3
    else:
        assert str(Site.parse(said)) == said
