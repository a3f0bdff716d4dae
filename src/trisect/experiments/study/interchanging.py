"""Interchange interventions on a trained baseline of a world: whose answer comes when q, k or v is that of another document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.experiments.study.probing import SiteRow
from trisect.lm.fleet import COMPONENT_ROW, forward
from trisect.measure.interchange import BASE, shares
from trisect.text.worlds import DonorPairs

TOGETHER = 500  # documents read at once


@torch.no_grad()
def interchange(
    final: Mapping[str, Tensor], model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs
) -> list[SiteRow]:
    """Shares of pairs that answer by the site's own prediction, by each other component's, or as without, at a resolved
    site of one of q, k and v.

    `final` are a baseline's weights without a member axis. The site's representation of the donor stands in the base's
    place at every token. Pairs with words that the vocabulary lacks are left out.
    """
    whole = {name: values[None] for name, values in final.items()}
    ids = {word: i for i, word in enumerate(vocabulary)}
    base, donor, kept = _known(pairs, ids)
    predictions = {name: _numbers(words, ids)[kept] for name, words in _answers_by(pairs).items()}
    answers = np.concatenate([logits.argmax(1).numpy() for logits in _patched_logits(whole, model, site, base, donor)])
    found = shares(answers, predictions, site.components[0])
    others = {f"interchange_as_{name}": share for name, share in found.others.items()}
    named = {"interchange_own": found.own, "interchange_unchanged": found.unchanged, **others}
    rows = [SiteRow(str(site), name, None, "valid", share.value, share.n) for name, share in named.items()]
    total = sum(share.hits for share in found.others.values()) / found.n if found.n else None
    return [*rows, SiteRow(str(site), "interchange_others", None, "valid", total, found.n)]


def _answers_by(pairs: DonorPairs) -> dict[str, tuple[str, ...]]:
    return {BASE: pairs.unchanged, **pairs.predicted}


@torch.no_grad()
def change_one(
    final: Mapping[str, Tensor], model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs
) -> SiteRow:
    """Rise of the loss of the base's answer, in nats, where the donor differs in one attribute alone, at a resolved site."""
    whole = {name: values[None] for name, values in final.items()}
    ids = {word: i for i, word in enumerate(vocabulary)}
    base, donor, kept = _known(pairs, ids)
    gold = torch.from_numpy(_numbers(pairs.unchanged, ids)[kept])

    def loss(other: np.ndarray) -> float:
        logits = torch.cat(list(_patched_logits(whole, model, site, base, other)))
        return float(F.cross_entropy(logits.double(), gold))

    rise = loss(donor) - loss(base) if len(gold) else None
    return SiteRow(str(site), "interchange_rise_nats", None, "valid", rise, len(gold))


def _known(pairs: DonorPairs, ids: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Base and donor as numbers [N T] where all words are known, and which pairs these are."""
    base, donor = (_numbers(texts, ids) for texts in (pairs.base, pairs.donor))
    kept = np.concatenate([base, donor], 1).min(1) >= 0
    return base[kept], donor[kept], kept


def _patched_logits(
    final: Mapping[str, Tensor], model: Model, site: Site, base: np.ndarray, donor: np.ndarray
) -> Iterator[Tensor]:
    """What each patched document says of the next word, some documents at a time."""
    device = final["decoder.bias"].device
    for start in range(0, max(1, len(base)), TOGETHER):
        few = [torch.from_numpy(ids[start : start + TOGETHER]).to(device) for ids in (base, donor)]
        hidden = forward(final, few[0], model, put=_patched(final, model, site, *few)).hidden[0, :, -1]
        yield (hidden @ final["decoder.weight"][0].T + final["decoder.bias"][0]).cpu()


def _patched(final: Mapping[str, Tensor], model: Model, site: Site, base: Tensor, donor: Tensor) -> dict[int, Tensor]:
    """q, k and v side by side of the site's only layer: the base's, with the donor's at the site."""
    (layer,) = site.layers or (1,)
    own, other = (forward(final, ids, model, keep=(layer,)).qkv[layer] for ids in (base, donor))
    start = COMPONENT_ROW[site.components[0]] * model.width
    mixed = own.clone()
    mixed[..., start : start + model.width] = other[..., start : start + model.width]
    return {layer: mixed}


def _numbers(words: Sequence[str] | Sequence[Sequence[str]], ids: Mapping[str, int]) -> np.ndarray:
    """Words as numbers, -1 for those that are unknown."""
    shape = np.array(words)
    return np.array([ids.get(word, -1) for word in shape.ravel().tolist()], int).reshape(shape.shape)
