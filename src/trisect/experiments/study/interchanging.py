"""Interchange interventions on a trained baseline of a world: whose answer comes when q, k or v is that of another document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.experiments.study.probing import SiteRow
from trisect.lm.fleet import COMPONENT_ROW, forward
from trisect.measure.interchange import BASE, shares
from trisect.text.corpus import Corpus
from trisect.text.worlds import DonorPairs, world_of

TOGETHER = 500  # documents read at once


@torch.no_grad()
def interchange(
    final: Mapping[str, Tensor], model: Model, corpus: Corpus, site: Site, pairs: int, seed: int
) -> list[SiteRow]:
    """Shares of pairs that answer by the site's own prediction, by each other component's, or as without, at a resolved
    site of one of q, k and v.

    `final` are a baseline's weights without a member axis. The site's representation of the donor stands in the base's
    place at every token and layer of the site, each as in the unedited pass of the donor.
    """
    drawn = world_of(corpus).pairs(pairs, seed)
    whole = {name: values[None] for name, values in final.items()}
    ids = {word: i for i, word in enumerate(corpus.vocabulary)}
    predictions = {BASE: _numbers(drawn.unchanged, ids)} | {c: _numbers(a, ids) for c, a in drawn.predicted.items()}
    answers = np.concatenate(_answers(whole, model, site, drawn, ids))
    found = shares(answers, predictions, site.components[0])
    others = {f"interchange_as_{name}": share for name, share in found.others.items()}
    named = {"interchange_own": found.own, "interchange_unchanged": found.unchanged, **others}
    rows = [SiteRow(str(site), name, None, "valid", share.value, share.n) for name, share in named.items()]
    total = sum(share.hits for share in found.others.values()) / found.n
    return [*rows, SiteRow(str(site), "interchange_others", None, "valid", total, found.n)]


def _answers(
    final: Mapping[str, Tensor], model: Model, site: Site, pairs: DonorPairs, ids: Mapping[str, int]
) -> list[np.ndarray]:
    """The likeliest word after each patched document."""
    found = []
    for start in range(0, len(pairs.base), TOGETHER):
        base, donor = (
            torch.tensor([[ids[word] for word in text] for text in texts[start : start + TOGETHER]])
            for texts in (pairs.base, pairs.donor)
        )
        base, donor = (some.to(final["decoder.bias"].device) for some in (base, donor))
        hidden = forward(final, base, model, put=_patched(final, model, site, base, donor)).hidden[0, :, -1]
        found.append((hidden @ final["decoder.weight"][0].T + final["decoder.bias"][0]).argmax(1).cpu().numpy())
    return found


def _patched(
    final: Mapping[str, Tensor], model: Model, site: Site, base: Tensor, donor: Tensor
) -> dict[int, Tensor]:
    """q, k and v side by side of the site's only layer: the base's, with the donor's at the site."""
    (layer,) = site.layers or (1,)
    own, other = (forward(final, ids, model, keep=(layer,)).qkv[layer] for ids in (base, donor))
    start = COMPONENT_ROW[site.components[0]] * model.width
    mixed = own.clone()
    mixed[..., start : start + model.width] = other[..., start : start + model.width]
    return {layer: mixed}


def _numbers(words: Sequence[str], ids: Mapping[str, int]) -> np.ndarray:
    return np.array([ids[word] for word in words])
