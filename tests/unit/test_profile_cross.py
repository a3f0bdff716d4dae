"""Profiles of cross-attention: whose words q, k and v are of, gains by hand, what was planted, what is refused, and the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests import tinyhf
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import trisect
from trisect.cli import main
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.files import read_json
from trisect.core.tables import read_table
from trisect.core.trace import Address
from trisect.experiments.profile.page import ProfileNumbers
from trisect.experiments.profile.reading import read_pairs
from trisect.experiments.profile.run import OTHER_WORDS, score_layer
from trisect.experiments.profile.settings import ProfileSettings
from trisect.hf.load import Pretrained, cross_batches, load
from trisect.lab.inputs import ModelSource
from trisect.measure.profile import MapScores, Prober, assign_folds, random_maps
from trisect.text.bitext import SentencePair
from trisect.text.labels import PairTexts, make_pair_labeller, open_pairs

pytestmark = pytest.mark.usefixtures("undrawn")

PAIRS = 60
LABELS = ("word", "position")
ONE = Address("cross", 1)
DRAWS = 200
SMALL = {"attention": "cross", "labels": ("position",), "limit": 30, "draws": DRAWS, "quiet": True}


@pytest.fixture(scope="module")
def bitext(tmp_path_factory):
    """Pairs whose target words are their source words' numbers and one, in reverse; the test split has links."""
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "test"):
        draw = np.random.default_rng(len(split))
        source, target, links = [], [], []
        for _ in range(PAIRS):
            words = [int(draw.integers(20)) for _ in range(int(draw.integers(4, 13)))]
            source.append(" ".join(f"w{n}" for n in words))
            target.append(" ".join([*(f"w{n + 1}" for n in reversed(words)), "."]))
            links.append(" ".join(f"{i + 1}-{len(words) - i}" for i in range(len(words))))
        (folder / f"{split}.aa").write_text("\n".join(source) + "\n")
        (folder / f"{split}.bb").write_text("\n".join(target) + "\n")
        if split == "test":
            (folder / "test.talp").write_text("\n".join(links) + "\n")
    return folder


@pytest.fixture(scope="module")
def bart() -> Pretrained:
    return load(tinyhf.bart(), tinyhf.tokenizer())


def asked(bitext, **named) -> ProfileSettings:
    return ProfileSettings(ModelSource(None), bitext, attention="cross", labels=LABELS, batch=8, draws=DRAWS, **named)


def read(subject, settings):
    texts = open_pairs(settings.corpus, settings.split)
    label = make_pair_labeller(texts, settings.labels, settings.limit)
    return read_pairs(subject, texts, label, settings, lambda *_: None)


def seen_by(model: Any, subject: Pretrained, pairs, layer: int):
    """What PyTorch's own hooks see a layer's maps read, at every word: (pair, word) to a vector; target words, source words."""
    attention = model.model.decoder.layers[layer - 1].encoder_attn
    met: dict[str, torch.Tensor] = {}
    hooks = [
        getattr(attention, name).register_forward_pre_hook(lambda _, given, name=name: met.update({name: given[0]}))
        for name in ("q_proj", "v_proj")
    ]
    target, source = {}, {}
    batches, _ = cross_batches(subject, [pair.sides for pair in pairs], 8)
    with torch.no_grad():
        for one in batches:
            given = one.batch.inputs
            model(**{n: given[n] for n in ("input_ids", "attention_mask", "decoder_input_ids")})
            for row, number in enumerate(one.pairs):
                for at, word in enumerate(one.shifted[row].tolist()):
                    if word >= 0:  # the last piece stays
                        target[number, word] = met["q_proj"][row, at]
                for at, word in reversed(list(enumerate(one.source[row].tolist()))):
                    if word >= 0:  # the first piece stays
                        source[number, word] = met["v_proj"][row, at]
    for hook in hooks:
        hook.remove()
    return target, source


def heads_of(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.detach().T.reshape(tinyhf.WIDTH, tinyhf.HEADS, -1).transpose(0, 1)


def test_gains_are_those_of_probes_of_what_the_weights_read_by_hand(bitext):
    model = tinyhf.bart()
    subject, settings = load(model, tinyhf.tokenizer()), asked(bitext)
    got = read(subject, settings)
    folds = [assign_folds(s.groups, 5, np.random.default_rng([0, 1])) for s in got.sides]
    scores = score_layer(ONE, got.layers[ONE], got.sides, folds, settings, lambda share: None)
    pairs = open_pairs(bitext, "train").pairs
    target, source = seen_by(model, subject, pairs, 1)
    attention = model.model.decoder.layers[0].encoder_attn  # type: ignore[union-attr]
    seed = int(np.random.default_rng([0, *str(ONE).encode(), tinyhf.WIDTH // tinyhf.HEADS]).integers(2**62))
    maps = random_maps(tinyhf.WIDTH, tinyhf.WIDTH // tinyhf.HEADS, DRAWS, torch.Generator().manual_seed(seed))
    # words are read batch by batch, pairs of about the same length together
    order = [n for one in cross_batches(subject, [p.sides for p in pairs], 8)[0] for n in one.pairs]
    for side, fold, seen, where in zip(got.sides, folds, (target, source), (1, 0), strict=True):
        places = [(n, w) for n in order for w in range(len(pairs[n].sides[where]))]
        x = torch.stack([seen[place] for place in places]).numpy()
        assert len(side.groups) == len(x)
        classes = side.labels[0]
        assert [classes.classes[y] for y in classes.y] == [
            word if word in classes.classes else "(other)" for n, w in places for word in [pairs[n].sides[where][w]]
        ]
        prober = Prober(x, side.labels, fold)
        nothing = prober.scores(maps)
        for component in side.components:
            found: MapScores = prober.scores(heads_of(getattr(attention, f"{component}_proj")))
            for at in range(len(LABELS)):
                gains = found.accuracy[:, at] - nothing.accuracy[:, at].mean()
                assert scores.gains(component, at) == pytest.approx(gains, abs=0.01)  # stored in half precision
            whole = prober.identity_scores().accuracy[0]
            assert scores.inputs[component].accuracy[0] == pytest.approx(whole, abs=0.01)
    swapped = Prober(torch.stack(list(source.values())).numpy(), got.sides[1].labels, folds[1])
    assert scores.heads["q"].accuracy[:, 1] != pytest.approx(
        swapped.scores(heads_of(attention.q_proj)).accuracy[:, 1], abs=0.01
    )


def directions(x: torch.Tensor, y: np.ndarray) -> torch.Tensor:
    """Orthonormal directions along which the means of classes differ, in the order of how far."""
    means = torch.stack([x[torch.from_numpy(y == c)].mean(0) for c in range(int(y.max()) + 1)])
    return torch.linalg.svd(means - means.mean(0), full_matrices=False).Vh


def test_what_is_planted_in_q_and_removed_from_v_is_found(bitext):
    model: Any = tinyhf.bart()
    subject = load(model, tinyhf.tokenizer())
    settings = asked(bitext)
    got = read(subject, settings)
    folds = [assign_folds(s.groups, 5, np.random.default_rng([0, 1])) for s in got.sides]
    before = score_layer(ONE, got.layers[ONE], got.sides, folds, settings, lambda share: None)
    attention = model.model.decoder.layers[0].encoder_attn
    x = {
        c: torch.from_numpy(stored.finish().astype(np.float32)) * stored.scale + stored.shift
        for c, stored in got.layers[ONE].inputs.items()
    }
    with torch.no_grad():
        kept = directions(x["q"], got.sides[0].labels[1].y)[:3]
        narrow = attention.q_proj.weight
        narrow.copy_((torch.randn(len(narrow), 3, generator=torch.Generator().manual_seed(0)) @ kept) + 1e-3 * narrow)
        lost = directions(x["v"], got.sides[1].labels[1].y)[:4]
        attention.v_proj.weight.sub_(attention.v_proj.weight @ lost.T @ lost)
    planted = load(model, tinyhf.tokenizer())
    again = read(planted, settings)
    after = score_layer(ONE, again.layers[ONE], again.sides, folds, settings, lambda share: None)
    assert (after.gains("q", 1) > before.gains("q", 1) + 0.02).all()
    assert (after.gains("q", 1) > 0.05).all()
    assert (after.gains("v", 1) < before.gains("v", 1) - 0.05).all()
    assert (after.gains("v", 1) < -0.05).all()
    assert after.gains("k", 1) == pytest.approx(before.gains("k", 1))


def test_a_model_with_norms_before_attention_and_no_positions_of_its_own_is_read_too(bitext):
    config = AutoConfig.for_model(
        "t5", vocab_size=len(tinyhf.VOCABULARY), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layer_norm" in name:  # a norm that does something
                weight.add_(0.3 * torch.randn(weight.shape))
    got = read(load(model, tinyhf.tokenizer()), asked(bitext))
    assert list(got.layers) == [Address("cross", 1), Address("cross", 2)]
    assert not any(layer.as_used for layer in got.layers.values())
    assert not any("Left out" in note for note in got.notes)


def test_labels_of_linked_words():
    pair = SentencePair(("A", "b", "c", "d"), ("x", "Y", "z"), frozenset({(0, 2), (1, 1), (2, 1)}), frozenset())
    texts = PairTexts("p, test", (pair,), (), "")
    label = make_pair_labeller(texts, None, None)
    assert label.labels == ("word", "position", "frequency", "linked", "linked.position")
    source, target = label(pair)
    assert source["word"] == ("a", "b", "c", "d")
    assert source["linked"] == ("z", "y", "y", None)
    assert source["linked.position"] == ("1–3", "1–3", "1–3", None)
    assert target["linked"] == (None, None, "a")  # Y has two links
    assert target["frequency"] == ("1", "1", "1")


@pytest.fixture(scope="module")
def found(bitext, tmp_path_factory):
    place = tmp_path_factory.mktemp("cross")
    model = tinyhf.save(tinyhf.bart(), place / "model")
    words = ["profile", str(model), "--attention", "cross", "--corpus", str(bitext), "--split", "test"]
    done = CliRunner().invoke(main, [*words, "--out", str(place / "out")])
    assert done.exit_code == 0, done.output
    return place / "out", done


def test_the_command_writes_tables_of_both_sides(found):
    folder, _ = found
    numbers = ProfileNumbers.of(read_table(folder / "tables", "measures"))
    assert numbers.apart
    assert set(numbers.labels) == {"word", "position", "frequency", "linked", "linked.position"}
    assert {s.stack for s in numbers.spots} == {"cross"}
    spot = numbers.spots[0]
    # a target has a full stop more than its source
    n = {c: numbers.get(spot, "word", "accuracy", c, 1).n for c in ("q", "k", "v")}
    assert n["k"] == n["v"] == (n["q"] or 0) - PAIRS
    assert numbers.get(spot, "word", "majority", "q").value != numbers.get(spot, "word", "majority", "k").value
    for label in numbers.labels:
        gains = {c: numbers.gain(label, c, spot).mean for c in ("q", "k", "v")}
        for pair in ("q-v", "k-v", "q-k"):
            one, other = pair.split("-")
            difference = numbers.gain(label, pair, spot, "difference").mean
            assert difference == pytest.approx(gains[one] - gains[other])
        accuracy, random = (numbers.get(spot, label, measure, "q").value for measure in ("accuracy", "random"))
        assert accuracy - random == pytest.approx(gains["q"])
    claims = read_table(folder / "tables", "claims")
    assert set(claims.filter(claims["part"].is_null())["verdict"]) == {"not tested"}
    assert set(claims["reason"]) == {OTHER_WORDS}


def test_the_page_and_the_terminal_say_whose_words_they_are(found):
    folder, done = found
    page = (folder / "report.html").read_text()
    assert "queries of each word of the target, as the decoder reads it" in page
    assert "claims are not judged here" in page
    assert "most frequent class, k, v" in page
    assert "are of gains over random maps, since their words are not the same" in page
    facts: Any = read_json(folder / "profile.json", "")
    assert f"{facts['words']:,} words of the target (q) and {facts['source_words']:,} of the source (k, v)" in page
    said = " ".join(done.output.split())
    assert "Queries are of words of the target, where the decoder reads their last piece" in said
    assert "position (q: target, k and v: source)" in said
    linked = facts["words"] - PAIRS  # all but the full stop
    assert f"Words that carry 'linked': {linked:,} of the target, {facts['source_words']:,} of the source." in said


@pytest.mark.parametrize(
    ("named", "kind", "words"),
    [
        ({"causal": 8}, SpecError, ("--causal 8 was given with --attention cross.", "the words of one text", "Leave it out.")),
        ({"reader": "plain"}, SpecError, ("--reader plain was given with --attention cross.", "two files of sentences", "Leave")),
        ({"labels": ("pos",)}, CorpusError, ("has no label 'pos'.", "have word, position, frequency; linked and", "Use labels")),
        ({"labels": ("previous",)}, CorpusError, ("has no label 'previous'.", "word, position, frequency", "Use labels")),
        ({"labels": ("linked",)}, CorpusError, ("has no label 'linked'.", "where a split has gold links", "Use labels")),
        ({"split": "valid"}, CorpusError, ("has no valid split.", "It has train, test.", "--split")),
        ({"labels": ()}, SpecError, ("No label was given.", "A profile is of labels.", "--labels out")),
        ({"limit": 1}, CorpusError, ("Too little of", "one group of texts", "Read more")),
    ],
    ids=lambda one: str(one)[:24],
)  # fmt: skip
def test_what_has_no_meaning_with_pairs_is_refused(bart, bitext, tmp_path, named, kind, words):
    check_refused(bart, bitext, tmp_path, kind, words, attention="cross", **named)


def check_refused(subject, corpus, tmp_path, kind, words, **named):
    with pytest.raises(kind) as refused:
        trisect.profile(subject, corpus, out=tmp_path / "out", quiet=True, **named)
    for said, part in zip((refused.value.problem, refused.value.reason, refused.value.todo), words, strict=True):
        assert part in said
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_corpus_or_a_model_of_the_other_kind_is_refused(bart, bitext, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "train.txt").write_text("w1 w2 .\n")
    pairs = "Cross-attention is read over sentence pairs, a bitext."
    words = ("has 0 train files.", pairs, "train.en and train.fr")
    check_refused(bart, text, tmp_path, CorpusError, words, attention="cross")
    words = ("has no train split.", "It is a bitext", "--attention cross")
    check_refused(bart, bitext, tmp_path, CorpusError, words)
    bert, bare = load(tinyhf.bert(), tinyhf.tokenizer()), load(tinyhf.bart())
    words = ("has no cross-attention.", "A profile of cross-attention is of sentence pairs", "encoder–decoder")
    check_refused(bert, bitext, tmp_path, ModelError, words, attention="cross")
    check_refused(bare, bitext, tmp_path, ModelError, ("came without a tokenizer.", "", ""), attention="cross")


def test_checkpoints_beside_a_translator_are_read_alike(bitext, tmp_path):
    model = tinyhf.save(tinyhf.bart(1), tmp_path / "last")
    tinyhf.save(tinyhf.bart(2), tmp_path / "first")
    got = trisect.profile(model, bitext, checkpoints=("first", "last"), mlp=True, out=tmp_path / "out", **SMALL)
    rows = got.tables["measures"]
    numbers = ProfileNumbers.of(rows)
    assert all(numbers.get(spot, "position", "mlp", c).value > 0 for spot in numbers.spots for c in ("q", "k", "v"))
    stages = rows.filter(rows["measure"] == "profile_stage_gain")
    now = rows.filter(rows["measure"] == "profile_gain").sort("layer", "component")["value"]
    first, last = (stages.filter(stages["at"] == at).sort("layer", "component")["value"] for at in (0, 1))
    assert last.to_list() == pytest.approx(now.to_list())
    assert first.to_list() != pytest.approx(now.to_list(), abs=1e-3)
