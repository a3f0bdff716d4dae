"""Models made to fool the verification, through the commands that edit: what is edited or held is what the model goes on with."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import fooling, tinyhf
from tests.contract.test_traps_reading import MAPS, said
from tests.fooling import WIDTH, Fooling
from tests.unit.test_traps_hidden import OnePattern, Split
from torch import nn

import trisect
from trisect.core.errors import CorpusError, ModelError
from trisect.experiments.explore.run import take_picture
from trisect.experiments.norms.run import OTHER_INPUT
from trisect.hf.load import load

pytestmark = pytest.mark.usefixtures("undrawn")

TEXTS = [" ".join(f"w{(7 * i + 3 * j) % 38}" for j in range(20)) for i in range(4)]


def loaded(model: Any) -> Any:
    """A model with as many words as the tokenizer, verified on short texts."""
    model.words, model.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64)
    return load(model.eval(), tinyhf.tokenizer(), inputs=fooling.ids())


def bank(folder: Path) -> Path:
    """A treebank of those texts, a word's class being its number's parity."""
    folder.mkdir()
    for split in ("train", "dev", "test"):
        rows = (
            "\n".join(f"{n}\t{w}\t_\t{'AB'[int(w[1:]) % 2]}" + "\t_" * 6 for n, w in numbered(text)) for text in TEXTS
        )
        (folder / f"{split}.conllu").write_text("\n\n".join(rows) + "\n\n")
    return folder


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split(), 1))


def run(command: str, subject: Any, folder: Path) -> Any:
    if command == "intervene":
        return trisect.intervene(subject, TEXTS[0], {"v@1": "zero"})
    if command == "patch":
        return trisect.patch(subject, pair_list=[(TEXTS[0], TEXTS[1])], out=folder / "patch", quiet=True)
    if command == "erase":
        return trisect.erase(subject, bank(folder / "bank"), draws=2, tokens=60, out=folder / "erase", quiet=True)
    return trisect.ablate(subject, TEXTS, how="zero", out=folder / "ablate", quiet=True)


class Padding(Fooling):
    """Pads its texts by itself, to whole eights."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        return super().forward(nn.functional.pad(input_ids, (0, -length % 8)))[:, :length]


def test_norms_of_positions_that_are_no_tokens_are_refused(tmp_path):
    with pytest.raises(ModelError) as caught:
        trisect.norms(loaded(Padding()), TEXTS, out=tmp_path / "norms", quiet=True)
    assert caught.value.problem == "Layer 1 of Padding sees 24 positions."
    assert caught.value.reason == "The texts have 22 tokens: which of them stands where is not known."


class Prefixed(Fooling):
    """Puts three vectors of its own before its texts."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        before = self.words.weight[None, :3].expand(len(input_ids), -1, -1)
        x = torch.cat([before, self.words(input_ids)], 1)
        for layer in self.layers:
            x = layer(x, input_ids)
        return self.head(x)[:, 3:]


def test_positions_that_are_no_tokens_are_neither_patched_nor_drawn(tmp_path):
    subject = loaded(Prefixed())
    with pytest.raises(ModelError) as caught:
        run("patch", subject, tmp_path)
    assert caught.value.problem == "q at layer 1 has 25 positions."
    assert caught.value.reason == "The texts have 22 tokens: which of them stands where is not known."
    with pytest.raises(CorpusError, match=r"No layer of Prefixed attends to what the page shows\."):
        take_picture(subject.read(TEXTS[0]))


@pytest.mark.parametrize("part", ["q", "v"])
def test_norms_give_no_dispersion_of_x_where_values_are_made_of_something_else(part, tmp_path):
    model: Any = Fooling()
    getattr(model.attention, f"{part}_proj").register_forward_pre_hook(lambda _m, args: (args[0].tanh() * 2,))
    made = trisect.norms(loaded(model), TEXTS, out=tmp_path / "norms", quiet=True)
    found = made.tables["measures"].filter(measure="cv_x").drop_nulls("layer")["layer"].to_list()
    said = [note for note in made.notes if "no dispersion of ‖x‖" in note]
    assert found == ([2] if part == "v" else [1, 2])
    assert said == ([OTHER_INPUT.format(where="layer 1")] if part == "v" else [])
    assert all(note in html.unescape(made.report.read_text(encoding="utf-8")) for note in said)


def without_attention_when_long(attention, mixed, x, ids):
    """Beyond 16 tokens what attention makes goes nowhere, so that edits of it change nothing."""
    return attention.o_proj(mixed if x.shape[1] <= 16 else torch.zeros_like(x))


@pytest.mark.parametrize("command", ["ablate", "patch", "erase", "intervene"])
def test_edits_of_what_the_model_does_not_go_on_with_are_refused(command, tmp_path):
    subject = loaded(Fooling(out=without_attention_when_long))
    with pytest.raises(ModelError) as caught:
        run(command, subject, tmp_path)
    assert caught.value.problem == said(subject.model)
    assert "weights times v are not what enters layers.0.attn.o_proj" in caught.value.reason


def test_a_model_that_changed_since_loading_is_not_edited(tmp_path):
    subject = loaded(Fooling())
    run("ablate", subject, tmp_path)
    MAPS["W_O"][0](subject.model.attention)
    with pytest.raises(ModelError, match=r"what layers\.0\.attn\.o_proj makes is not x Wᵀ \+ b"):
        run("ablate", subject, tmp_path / "again")


def scaled_words(model: Any) -> None:
    model.words.weight.data.mul_(2)


def words_in_another_order(model: Any) -> None:
    model.words.weight.data.copy_(model.words.weight.data.flip(0))


def one_norm(model: Any) -> None:
    with torch.no_grad():
        model.layers[1].norm2.bias[3] += 1e-3


def other_places(model: Any) -> None:
    model.places = nn.Embedding(fooling.LONG, WIDTH)


UNSEEN = {
    scaled_words: "words.weight",
    words_in_another_order: "words.weight",
    one_norm: "layers.1.norm2.bias",
    other_places: "places.weight",
}


@pytest.mark.parametrize(
    ("command", "change"),
    [*(("read", change) for change in UNSEEN), *((c, scaled_words) for c in ("ablate", "patch", "erase", "intervene"))],
)
def test_weights_that_no_law_sees_are_looked_at_too(command, change, tmp_path):
    subject = loaded(Fooling())
    change(subject.model)
    with pytest.raises(ModelError) as caught:
        subject.read(TEXTS[0]) if command == "read" else run(command, subject, tmp_path)
    assert caught.value.problem == "The weights of Fooling have changed since it was loaded."
    assert caught.value.reason.startswith(f"{UNSEEN[change]} is not what it was on loading")


def test_what_was_put_back_or_is_written_by_the_model_itself_is_no_change():
    model: Any = Fooling()
    model.register_buffer("seen", torch.zeros(1))
    model.register_forward_pre_hook(lambda module, _: module.seen.add_(1).tolist() and None)
    subject = loaded(model)
    with torch.no_grad():
        model.words.weight.mul_(2)
        model.words.weight.div_(2)
    subject.read(TEXTS[0])
    subject.projections()


def test_what_is_held_is_held_in_the_layers_that_are_read(tmp_path):
    """Below it stands a layer that is not read; nothing is above it whose weights could be held, so that both are the same."""
    model: Any = Fooling()
    model.layers[0].attn, model.layers[1].attn = OnePattern(), Split()
    subject = loaded(model)
    assert [str(a) for a in subject.addresses] == ["layer 2"]
    free, held = (
        trisect.ablate(subject, TEXTS, hold=hold, out=tmp_path / str(hold), quiet=True).tables["measures"]
        for hold in (False, True)
    )
    assert free["value"].to_list() == pytest.approx(held["value"].to_list())
    assert all(free["value"].to_list())
