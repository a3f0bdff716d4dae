"""The aligners that stand beside a model: IBM Model 1 finds planted words, joined links lie between both directions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.measure.alignment import aer
from trisect.text.bitext import SentencePair

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10)


def load() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "aligners.py"
    spec = importlib.util.spec_from_file_location("aligners", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load()


def planted(pairs: int = 300, seed: int = 0) -> list[SentencePair]:
    """Word n is translated as word n, in another order; 'of' is in every target and comes from nowhere."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(pairs):
        ids = draw.permutation(30)[: draw.integers(3, 7)]
        order = draw.permutation(len(ids))
        target = [f"t{ids[i]}" for i in order]
        links = frozenset((int(i), place) for place, i in enumerate(order))
        made.append(SentencePair(tuple(f"s{i}" for i in ids), (*target, "of"), links, links))
    return made


def test_ibm_model_1_finds_the_words_and_leaves_the_others_unlinked():
    pairs = planted()
    found = TOOL.ibm1([p.source for p in pairs], [p.target for p in pairs])
    rate = aer(found, [p.sure for p in pairs], [p.possible for p in pairs])
    assert rate < 0.02
    straight = TOOL.aligned([p.source for p in pairs], [p.target for p in pairs], len(pairs))["diagonal"]
    assert aer(straight, [p.sure for p in pairs], [p.possible for p in pairs]) > 0.5


@settings(deadline=None)
@given(LINKS, LINKS)
def test_joined_links_lie_between_those_of_both_and_those_of_either(forward, reverse):
    found = TOOL.grow(forward, reverse)
    assert forward & reverse <= found <= forward | reverse
    assert TOOL.grow(reverse, forward) >= forward & reverse
    assert TOOL.grow(forward, forward) == forward


def test_rates_are_by_length_too():
    pairs = planted(20)
    long = SentencePair(("s1",) * 12, ("t1",) * 3, frozenset({(0, 0)}), frozenset({(0, 0)}))
    test = [*pairs, long]
    rates = TOOL.rates([p.sure for p in pairs] + [frozenset()], test)
    assert set(rates) == {"all", "up to 10", "11 to 15"}
    assert rates["up to 10"] == 0
    assert rates["11 to 15"] == 1
    assert rates["all"] == pytest.approx(
        1 - 2 * sum(len(p.sure or ()) for p in pairs) / (2 * sum(len(p.sure or ()) for p in pairs) + 1)
    )
    assert TOOL.table({"none": rates}, {"all": 21, "up to 10": 20, "11 to 15": 1}).count("\n") == 4
