"""Every spelling of a site, in every command that takes one: the part that it names, or a refusal by name; never another part."""

from __future__ import annotations

import re
from functools import partial
from itertools import product

import pytest
import torch
from tests import tinyhf

import trisect
from trisect.core.errors import SiteError, TrisectError
from trisect.core.site import Site
from trisect.hf.load import load

WORDS = "w1 w2 w3 w4"
SPELLINGS = [
    f"{stack}{part}@{layer}{heads}"
    for stack, part, layer, heads in product(
        ("", "enc.", "cross."),
        ("q", "k", "v", "o", "ffn", "attn", "pre.q", "pre.k", "q+k", "k+v", "q+k+v"),
        ("1", "3", "1-2", "all"),
        ("", ".h2", ".h1,4", ".h9"),
    )
]


@pytest.fixture(scope="module", params=["llama", "bert"])
def subject(request):
    """Two layers; in the first queries share keys in pairs, and keys are turned by rotary positions."""
    if request.param == "llama":
        return load(tinyhf.llama(), tinyhf.tokenizer())
    return load(tinyhf.bert(), tinyhf.tokenizer())


def _site(text: str) -> Site | None:
    try:
        return Site.parse(text)
    except SiteError:
        return None


def test_a_reading_holds_the_part_that_is_named_or_refuses(subject):
    reading = subject.read(WORDS)
    read = 0
    for text in SPELLINGS:
        site = _site(text)
        try:
            part = reading[text]
        except SiteError:
            continue
        assert site is not None, text
        assert site.layers is not None, text
        assert len(site.layers) == 1, text
        assert set(site.components) <= {"q", "k", "v"} or site.components == ("attn",), text
        whole = reading[f"layer {site.layers[0]}"]
        read += 1
        for name in ("q", "k", "v") if site.components == ("attn",) else site.components:
            mine, all_heads = getattr(part, name), getattr(whole, name)
            heads = range(all_heads.shape[1]) if site.heads is None else [h - 1 for h in site.heads]
            assert torch.equal(mine, all_heads[:, list(heads)]), (text, name)
    assert read >= 12


def test_a_switch_zeroes_the_part_that_is_named_and_no_other_of_its_layer(subject):
    from trisect.measure.intervention import PreparedText

    ready = PreparedText.of(subject, WORDS)
    plain, switched = subject.read(WORDS), 0
    for text in SPELLINGS:
        site = _site(text)
        try:
            edited = ready.reading(ready.plan({text: "zero"}))
        except TrisectError:
            continue
        assert site is not None, text
        first = min(site.layers or (1,))
        here, before = edited[f"layer {first}"], plain[f"layer {first}"]
        switched += 1
        for name in ("q", "k", "v"):
            mine, was = getattr(here, name), getattr(before, name)
            count = was.shape[1]
            named = set(range(count)) if site.heads is None else {h - 1 for h in site.heads}
            for head in range(count):
                if name in site.components and head in named:
                    assert not mine[:, head].any(), (text, name, head)
                else:
                    torch.testing.assert_close(mine[:, head], was[:, head], msg=f"{text}, {name}, head {head + 1}")
    assert switched >= 12


@pytest.mark.parametrize("command", ["ablate", "patch", "erase"])
def test_a_command_takes_what_the_model_has_and_refuses_the_rest_by_name(subject, command, tmp_path):
    given = {
        "ablate": {"text": (WORDS,)},
        "patch": {"pair_list": [{"base": WORDS, "donor": "w4 w3 w2 w1"}]},
        "erase": {"corpus": "embedded", "limit": 2, "tokens": 60},
    }[command]
    for number, text in enumerate(("v@2.h1", "k+v@1", "k@1.h9", "q@3", "enc.q@1", "o@1", "pre.k@1")):
        call = partial(
            getattr(trisect, command), subject, sites=(text,), out=tmp_path / str(number), quiet=True, **given
        )
        try:
            subject.shape.resolve(Site.parse(text))
        except SiteError:
            with pytest.raises(SiteError, match=re.escape(text)):
                call()
            continue
        tables = call().tables.values()
        rows = next(table for table in tables if "component" in table.columns or "site" in table.columns)
        assert len(rows), (command, text)
