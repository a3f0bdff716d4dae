"""A study small enough for a test: two layers of width 8 on a slice of the embedded corpus."""

from dataclasses import replace
from functools import cache

from trisect.core.site import Site
from trisect.core.spec import Attack, Design, Freeze, Model, Rewind, Run, Text, Training
from trisect.lm.adversary import Attackers
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus
from trisect.text.sources import load_text

TEXT = Text("embedded", train_tokens=1_200, valid_tokens=400)
MODEL = Model(width=8, layers=2, heads=2, feedforward=8, dropout=0.1)
TRAINING = Training(
    epochs=2, columns=6, eval_columns=4, window=12, optimizer="adamw", rate=3e-3, warmup=3, train_sample=300
)
SITES = tuple(Site.parse(s) for s in ("q@1", "k@2", "q+v@1-2"))
EXPERIMENT = Design(
    "tiny",
    TEXT,
    MODEL,
    TRAINING,
    seeds=(1, 2),
    attack=Attack(SITES, labels=("pos",)),
    rewind=Rewind(SITES, points=11),
    freeze=Freeze(SITES),
)


@cache
def corpus() -> Corpus:
    return load_text(TEXT)


def runs(seed: int = 1, training: Training = TRAINING, **model: float) -> list[Run]:
    chosen = replace(EXPERIMENT, seeds=(seed,), training=training, model=replace(MODEL, **model))
    return list(chosen.runs(corpus().fingerprint))


def attackers_of(trainer: Trainer) -> list[Attackers]:
    """The groups of adversaries of a fleet that has no other objectives."""
    found: list[Attackers] = [objective for objective in trainer.objectives if isinstance(objective, Attackers)]
    assert len(found) == len(trainer.objectives)
    return found
