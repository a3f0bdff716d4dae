"""Competing predictions: place against content in models set by hand, controls, answers of several tokens, sound; laws of scores."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import interchanged, tinyhf
from transformers import GPT2Config, GPT2LMHeadModel

import trisect
from trisect.core.errors import CorpusError, SpecError
from trisect.core.finding import About
from trisect.core.site import Site
from trisect.core.subject import StreamPoint
from trisect.core.trace import Address
from trisect.experiments.patch.predictions import (
    AnswerScores,
    hypotheses,
    judge_speech,
    prediction_rows,
    spoken_hits,
    usable_pairs,
)
from trisect.experiments.patch.settings import PatchFacts
from trisect.text.pairs import ENGLISH, draw_spoken

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = ENGLISH[:30]


def patched(model, **chosen):
    """The predictions by site, position and hypothesis, and the whole result."""
    done = trisect.patch(model, out=Path(tempfile.mkdtemp()) / "out", quiet=True, **chosen)
    return {(row.site, row.position, row.hypothesis): row for row in done.predictions}, done


@pytest.fixture(scope="module")
def content():
    """A model that looks for a word by what it is."""
    model = trisect.load(interchanged.inductor(WORDS, 24), tokenizer=interchanged.tokenizer(WORDS, 24))
    return patched(model, task="induction", count=24)


def pointer(words, longest):
    """A GPT-2 set by hand whose last word, the nth of all, asks for what stands at the nth place."""
    word, place = range(len(words)), range(len(words), len(words) + longest)
    answer = range(place.stop, place.stop + len(words))
    config = GPT2Config(
        vocab_size=len(words), n_positions=longest, n_embd=answer.stop, n_layer=1, n_head=1, n_inner=4, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" not in name:
                parameter.zero_()
        body = model.transformer
        body.wte.weight[:, list(word)] = torch.eye(len(words), dtype=torch.float64)
        body.wpe.weight[:, list(place)] = torch.eye(longest, dtype=torch.float64)
        attention = body.get_submodule("h.0.attn")
        q, k, v = attention.get_parameter("c_attn.weight").split(answer.stop, 1)
        for i in range(longest):
            q[word[i], place[i]], k[place[i], place[i]] = interchanged.SHARP, 1.0
        for i in word:
            v[i, answer[i]] = attention.get_parameter("c_proj.weight")[answer[i], answer[i]] = 1.0
            model.lm_head.weight[i, answer[i]] = 1.0
    return model


def pointed(count):
    """Texts of six words and one that points at a place, with what each hypothesis predicts; all differ."""
    draw, found = np.random.default_rng(0), []
    while len(found) < count:
        base, donor = (list(map(str, draw.permutation(WORDS[:12])[:6])) for _ in range(2))
        i, j = (int(n) for n in draw.permutation(6)[:2])
        asked, other = WORDS[i], WORDS[j]
        if other not in base[:-1] or asked not in donor[:-1]:
            continue
        answers = {"base": base[i], "donor": donor[j], "q-place": base[j], "q-content": base[base.index(other) + 1]}
        answers |= {"k-content": base[donor.index(asked) + 1], "v-content": donor[i]}
        if len(set(answers.values())) == len(answers):
            found.append({"base": " ".join([*base, asked]), "donor": " ".join([*donor, other]), "answers": answers})
    return found


def test_place_is_told_from_content(content):
    rows, _ = content
    by_place, _ = patched(
        trisect.load(pointer(WORDS, 7), tokenizer=interchanged.tokenizer(WORDS, 7)), pair_list=pointed(20)
    )
    for position in ("all", "last"):
        assert [rows["q@2", position, h].share for h in ("q-content", "q-place", "base")] == [1.0, 0.0, 0.0]
        assert [by_place["q@1", position, h].share for h in ("q-content", "q-place", "base")] == [0.0, 1.0, 0.0]
    assert [rows["k@2", "all", h].share for h in ("k-content", "base")] == [1.0, 0.0]
    assert [by_place["k@1", "all", h].share for h in ("k-content", "base")] == [0.0, 1.0]
    assert rows["v@2", "all", "v-content"].share == by_place["v@1", "all", "v-content"].share == 1.0
    assert rows["q@2", "last", "q-content"].n == rows["q@2", "last", "q-content"].used == 24
    assert (rows["q@2", "last", "q-content"].shift_low or 0) > (rows["q@2", "last", "q-place"].shift_high or 0)


def test_controls_give_what_chance_gives(content):
    """An unrelated question asks for a word that the text does not have; a label's subspace holds all of the effect."""
    rows, done = content
    q, k = rows["q@2", "last", "q-content"], rows["k@2", "all", "k-content"]
    assert q.control["unrelated"] < 0.2
    assert q.control["residual"] == 1.0  # all that a query is made of
    assert k.control["residual"] == 0.0  # the whole stream is the donor's answer
    labelled = [row for row in done.predictions if row.control["label"] is not None]
    own = {row.component: row for row in labelled if row.hypothesis == f"{row.component}-content"}
    kept = {row.component: row for row in labelled if row.hypothesis == "base"}
    for component in "qk":
        assert own[component].control["label"] == kept[component].control["complement"] == 1.0
        assert own[component].control["random"] < 0.25
    assert rows["q+k+v@2", "all", "donor"].share in (0.0, 1.0)
    text = done.report.read_text()
    assert "Competing predictions" in text
    assert "unrelated" in text
    data = done.data()["predictions"][0]
    assert {"site", "position", "hypothesis", "share", "low", "high", "shift_nats", "n", "kept", "control"} <= set(data)
    assert {"unrelated", "residual", "random"} <= set(data["control"])


@pytest.fixture(scope="module")
def gpt2():
    return trisect.load(tinyhf.gpt2().double(), tokenizer=tinyhf.tokenizer(False))


def test_an_answer_of_several_tokens_is_scored_as_a_whole(gpt2):
    """Its log-probability is the sum of its tokens', given those before; a donor that is the base moves nothing."""
    pair = {"base": "w1 w2", "donor": "w3 w4", "answers": {"base": "w5", "q": "w6 w7", "donor": "w8"}}
    rows, _ = patched(gpt2, pair_list=[pair, pair], positions="all", sites="q+k+v@1")
    logged = lambda text: gpt2.outputs(next(gpt2.batches([text])))[0].log_softmax(-1)  # noqa: E731
    id_of = lambda word: next(gpt2.batches([word])).source.ids[0, 0]  # noqa: E731
    before = logged("w1 w2 w6")
    plain = before[1, id_of("w6")] + before[2, id_of("w7")] - before[1, id_of("w5")]
    # q, k and v of a layer from the donor, at the positions that both have
    batch, other = (next(gpt2.batches([text])) for text in ("w1 w2 w6", "w3 w4"))
    seen = {}
    gpt2.outputs(other, {Address("plain", 1): lambda parts: seen.setdefault(0, parts)})
    put = lambda parts: type(parts)(*(torch.cat([a, b[:, :, 2:]], 2) for a, b in zip(seen[0], parts, strict=True)))  # noqa: E731
    after = gpt2.outputs(batch, {Address("plain", 1): put})[0].log_softmax(-1)
    made = after[1, id_of("w6")] + after[2, id_of("w7")] - after[1, id_of("w5")]
    assert rows["q+k+v@1", "all", "q"].shift_nats == pytest.approx(float(made - plain), abs=1e-9)
    same = {"base": "w1 w2", "donor": "w1 w2", "answers": {"base": "w5", "q": "w6 w7"}}
    still, _ = patched(gpt2, pair_list=[same], sites="q@1")
    assert still["q@1", "all", "q"].shift_nats == pytest.approx(0.0, abs=1e-12)  # passes are shared


def test_ids_and_a_models_own_inputs_give_what_texts_give(gpt2):
    pairs = [("w1 w2 w3", "w4 w5 w6"), ("w7 w8 w9", "w2 w3 w4")]
    names = {"base": "w5", "q-place": "w6", "donor": "w9"}
    texts = [{"base": b, "donor": d, "answers": names} for b, d in pairs]
    ids = lambda text: next(gpt2.batches([text])).inputs["input_ids"]  # noqa: E731
    numbers = {name: int(ids(word)[0, 0]) for name, word in names.items()}
    given = [{"base": {"input_ids": ids(b)}, "donor": {"input_ids": ids(d)}, "answers": numbers} for b, d in pairs]
    first, second = (patched(gpt2, pair_list=some, sites=["q@1", "v@2"])[0] for some in (texts, given))
    assert first.keys() == second.keys()
    for key, row in first.items():
        assert second[key].shift_nats == pytest.approx(row.shift_nats, abs=1e-9), key
        assert second[key].control_nats["residual"] == pytest.approx(row.control_nats["residual"], abs=1e-9)


def test_a_stream_from_itself_changes_nothing_and_a_donors_is_the_donor(gpt2):
    base, donor = (next(gpt2.batches([text])) for text in ("w1 w2 w3", "w4 w5 w6"))
    for layer in (1, 2):
        for where in ("input", "output"):
            seen, point = {}, StreamPoint(Address("plain", layer), where)
            note = lambda x, seen=seen: seen.setdefault(0, x.clone())  # noqa: E731
            clean = gpt2.stream_outputs(donor, {point: note})
            assert torch.equal(clean, gpt2.outputs(donor))
            made = gpt2.stream_outputs(base, {point: lambda x, seen=seen: seen[0]})
            assert torch.equal(made, clean)
            assert not torch.equal(made, gpt2.outputs(base))


def test_keys_as_the_last_position_reads_them_are_all_keys_in_the_last_layer():
    """In the last decoder layer nothing else reads the keys that could reach the answer; in earlier ones other positions do."""
    model = trisect.load(tinyhf.bart().double(), tokenizer=tinyhf.tokenizer())
    answers = {"base": "w1", "k-content": "w2", "donor": "w3"}
    pair = {"base": ["w1 w2", "w5 w6 w7"], "donor": ["w3 w4", "w8 w9 w1"], "answers": answers}
    rows, _ = patched(model, pair_list=[pair], sites=["cross.k@all"])
    shift = {(site, where): row.shift_nats or 0.0 for (site, where, name), row in rows.items() if name == "k-content"}
    assert shift["cross.k@3", "last"] == pytest.approx(shift["cross.k@3", "all"], abs=1e-12)
    assert abs(shift["cross.k@1", "last"] - shift["cross.k@1", "all"]) > 1e-9


def test_pairs_are_used_where_all_answers_differ():
    pieces = [{"base": (1,), "q": (2,), "q+k": (2,), "donor": (3,)}, {"base": (1,), "q": (1,), "donor": (3,)}]
    names = hypotheses(pieces)
    assert names == ("base", "q", "q+k", "donor")
    usable = {name: mask.tolist() for name, mask in usable_pairs(names, pieces).items()}
    assert usable == {"base": [True, False], "q": [True, False], "q+k": [False, False], "donor": [True, False]}


def test_shares_and_shifts_by_hand():
    """Three pairs, two answered: the shift is of all of them, the share of these two; a control's draws are averaged."""
    names, used = ("base", "q", "donor"), {name: np.ones(3, bool) for name in ("base", "q", "donor")}
    plain = AnswerScores(np.log([[0.5, 0.25, 0.25]] * 3), np.array([[True, False, False]] * 3))
    came = AnswerScores(
        np.log([[0.25, 0.5, 0.25]] * 3), np.array([[False, True, False], [False, False, True], [True, False, False]])
    )
    rows = prediction_rows(
        ("q@1", "all"), names, used, np.array([True, True, False]), plain, came, {"random": [plain, came]}
    )
    by = {row["hypothesis"]: row for row in rows}
    assert (by["q"]["share"], by["q"]["n"], by["q"]["used"], by["q"]["kept"]) == (0.5, 2, 3, pytest.approx(2 / 3))
    assert by["q"]["shift_nats"] == pytest.approx(np.log(4))
    assert (by["q"]["random"], by["q"]["random_nats"]) == (0.25, pytest.approx(np.log(2)))
    assert by["base"]["share"] == by["other"]["share"] == 0.0


def test_spoken_pairs_say_what_their_answers_name():
    words = [f"w{i}" for i in range(20)]
    for base, donor, answers, kind in draw_spoken(words, 30, 1):
        assert len(set(answers.values())) == len(answers)
        assert answers["base"] == base.words[base.written]
        assert answers["donor"] == donor.words[donor.written]
        # at the slot that the donor asks for, and of the word in the slot that the base asks for
        assert answers["q-place"] == base.words[donor.written + donor.delay]
        assert answers["v-content"] == donor.words[base.written - donor.delay]
        if kind != "a slot later":
            assert answers["q-content"] == base.words[base.words.index(donor.words[donor.written - 1]) + 1]
            assert answers["k-content"] == base.words[donor.words.index(base.words[base.written - 1]) + 1]
        assert (kind == "another order") == (set(base.words) == set(donor.words))
    with pytest.raises(CorpusError, match="needs 12 words"):
        draw_spoken(words[:11], 1, 0)


def speech_verdicts(asks):
    """The verdicts on 90 pairs, a third of which say nothing of content, where nine in ten queries ask for a hypothesis."""
    whole = {name: (number,) for number, name in enumerate(("base", "q-content", "q-place", "k-content", "v-content"))}
    late = {name: whole[name] for name in ("base", "q-place", "v-content")}
    pieces = [late if n % 3 == 2 else whole for n in range(90)]
    names, answered = hypotheses(pieces), np.arange(90) % 9 > 0

    def came(name):
        scores = AnswerScores.empty(90, len(names))
        scores.nats[:] = 0.0
        scores.comes[np.arange(90) % 10 > 0, names.index(name)] = True
        return scores

    say = {("q", "last"): asks, ("k", "last"): "base", ("k", "all"): "k-content", ("v", "last"): "v-content"}
    at = {"q": "cross.q@2", "k": "cross.k@1-2", "v": "cross.v@1-2"}
    sites = [(Site.parse(at[c]), positions, [came(name), came("base")]) for (c, positions), name in say.items()]
    hits = spoken_hits((1, 2), sites, names, pieces, answered)
    assert (len(hits["q_time_less_content"]), len(hits["v_content"])) == (
        int(answered[np.arange(90) % 3 < 2].sum()),
        80,
    )
    of = ("planted", "", "seq2seq", "answers", "audio-words", "", 90, 80, ("q", "k", "v"), None)
    facts = PatchFacts(*of, "site", "all", "all", "denoise", answered=False, seed=0)
    table = judge_speech(hits, 0, About("patch", "", 0.0, (), {}, None, facts))
    claims = table.filter(table["part"].is_null())
    return dict(zip(claims["claim"], claims["verdict"], strict=True))


def test_claims_on_speech_are_judged_by_what_the_reading_query_asks_for():
    assert speech_verdicts("q-place") == {"G-3": "supported", "G-4": "supported"}
    assert speech_verdicts("q-content") == {"G-3": "refuted", "G-4": "supported"}


def test_recordings_are_asked_of_models_of_speech(gpt2, tmp_path):
    with pytest.raises(SpecError, match="audio-words"):
        patched(gpt2, task="audio-words", corpus=tmp_path)
    with pytest.raises(SpecError, match="audio-words"):
        patched(gpt2, task="audio-words")
