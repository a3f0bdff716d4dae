"""The Python door: everything that the command line does, one call each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trisect.core.errors import StudyError
from trisect.core.site import Site
from trisect.core.spec import Experiment, Machine
from trisect.core.subject import Subject, Text, Texts
from trisect.lab.plan import Plan, choose, make_plan
from trisect.lab.study import Study, render_report, run_study
from trisect.lab.subject import load
from trisect.text.corpus import Corpus
from trisect.text.readers import open_corpus

__all__ = [
    "ablate", "annotate", "ask", "chart", "check", "corpus", "explore", "explore_page", "is_study", "list_claims", "load",
    "norms", "plan", "prove", "recall", "render", "rewind", "similarity", "study", "texts", "theory_page",
]  # fmt: skip


def study(
    experiment: str | Path | Experiment = "quick",
    out: str | Path | None = None,
    corpus: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    sites: Sequence[Site | str] | None = None,
    only: Sequence[str] | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    track: str | None = None,
    precision: str = "float32",
) -> Study:
    """Run an experiment to its end, or go on with it where it stopped; returns its tables, figures and report.

    `experiment` is a preset ('quick', 'wikitext2-small', 'paper'), a JSON file, or an Experiment. `out` defaults to
    studies/NAME. `seeds` is a number of seeds or the seeds themselves, `only` some of attack, rewind, freeze.
    `precision` 'bfloat16' makes training's large products narrower, on a GPU only.
    `track` also logs every finished run to 'wandb', 'trackio' or 'tensorboard'.
    Raises TrisectError for anything that cannot be run, before anything is run.
    """
    machine = Machine(device, workers, quiet, precision, track)
    chosen = choose(experiment, corpus, _seeds(seeds), epochs, _tuple(sites), _tuple(only))
    return run_study(chosen, Path(out) if out is not None else Path("studies") / chosen[0].name, machine)


def plan(
    experiment: str | Path | Experiment = "quick",
    corpus: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    sites: Sequence[Site | str] | None = None,
    only: Sequence[str] | None = None,
) -> Plan:
    """What `study` would run with the same arguments: runs, ids, parameters, expected time and disk. Trains nothing."""
    return make_plan(*choose(experiment, corpus, _seeds(seeds), epochs, _tuple(sites), _tuple(only)))


def render(out: str | Path) -> Study:
    """Make tables, figures and report of a study anew from its finished runs; trains nothing."""
    return render_report(Path(out))


def check(out: str | Path) -> list[StudyError]:
    """Read all that a study reads back; an error for each damaged file, saying what to delete. Changes nothing."""
    from trisect.lab.check import check_study

    return check_study(Path(out))


def list_claims() -> list[dict[str, Any]]:
    """Every claim, part, margin and reason, as fixed before any data."""
    from trisect import claims
    from trisect.report.notebook import Listing

    return Listing(claims.listing())


def corpus(where: str | Path = "embedded", reader: str | None = None) -> Corpus:
    """A text as numbers: 'embedded', a corpus folder, or a raw folder read by `reader` (found out when null)."""
    return open_corpus(where, reader)


def annotate(
    source: str | Path,
    pipeline: str | Path,
    out: str | Path,
    reader: str | None = None,
    placeholder: str = "Unk",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    columns: Sequence[str] | None = None,
) -> Corpus:
    """Label every token of a raw text with what a spaCy pipeline says of it, and keep the result in `out`.

    `columns` are some of pos (part of speech), tag (fine-grained), dep (relation) and ent (entity type, 'O' outside);
    null is pos and dep, and tag and ent where the pipeline sets them. Goes on where it stopped when called again.
    Needs the extra `trisect[annotate]`.
    """
    from trisect.text.annotate import annotate as label

    return label(source, pipeline, Path(out), reader, placeholder, workers, progress, columns)


def is_study(where: str | Path) -> bool:
    """Whether a folder is a study's; anything else is taken for a model."""
    from trisect.lab.folder import is_study as found

    return found(Path(where))


def prove(
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
) -> Any:
    """The proof that a pretrained model is read rightly: `rows()` as a table, `refusal` null or the error to raise."""
    from trisect.hf.load import load as load_pretrained

    return load_pretrained(
        model, None, inputs, None, revision, dtype, device, device_map, pickle, remote_code, proof=False
    ).proof


def texts(
    where: str | Path | Sequence[Text] | Texts, split: str = "test", reader: str | None = None, limit: int | None = None
) -> Texts:
    """Texts to read: those of one split of a corpus ('embedded', a folder, hf:NAME), or a list of texts as they are."""
    from trisect.text.raw import first_texts, given_texts, open_texts

    if isinstance(where, Texts):
        found = where
    else:
        found = open_texts(where, split, reader) if isinstance(where, (str, Path)) else given_texts(where)
    return found if limit is None else first_texts(found, limit)


def norms(
    subject: Any, texts: Any, out: str | Path = "norms", block: str = "attention", seed: int = 0, quiet: bool = False
) -> Any:
    """Norm-based analysis of a model over texts (science C): rows, verdicts, figures and a page in `out`.

    `subject` is a model as `load` takes or gives it, `texts` a corpus or texts as `trisect.texts` takes them.
    """
    from trisect.lab.norms import run_norms

    return run_norms(_subject(subject), _texts(texts), _place(out), block, seed=seed, quiet=quiet)


def similarity(
    subject: Any,
    texts: Any = None,
    out: str | Path = "similarity",
    draws: int = 20_000,
    seed: int = 0,
    quiet: bool = False,
) -> Any:
    """How alike W_Q, W_K and W_V are, head by head, against random matrices (science D1, D3)."""
    from trisect.lab.similarity import run_similarity

    return run_similarity(
        _subject(subject), None if texts is None else _texts(texts), _place(out), draws, seed=seed, quiet=quiet
    )


def ablate(
    subject: Any,
    texts: Any,
    sites: Site | str | Sequence[Site | str] | None = None,
    out: str | Path = "ablate",
    how: str = "zero",
    per: str = "layer",
    hold: bool = False,
    seed: int = 0,
    quiet: bool = False,
) -> Any:
    """What breaks when q, k or v of a site is replaced: change of the model's own loss, with intervals over texts.

    `sites` is q, k and v of every layer where null; `how` zero, mean or resample; `per` layer or head; `hold` keeps
    all attention weights as they were, but those of a layer whose q or k is replaced.
    """
    from trisect.lab.ablation import run_ablation

    return run_ablation(
        _subject(subject), _texts(texts), _place(out), _sites(sites), how, per, hold, seed=seed, quiet=quiet
    )


def rewind(
    model: str | Path,
    initial: str,
    final: str,
    stages: Sequence[str],
    texts: Any,
    out: str | Path = "rewind",
    sites: Site | str | Sequence[Site | str] | None = None,
    points: int = 101,
    epsilon: float = 0.01,
    exact: bool = False,
    batch: int = 8,
    seed: int = 0,
    quiet: bool = False,
    window: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    pickle: bool = False,
    remote_code: bool = False,
) -> Any:
    """Rewind q, k, v between published checkpoints of one model (science A5, A6): revisions, or sub-folders."""
    from trisect.lab.checkpoints import run_checkpoints

    return run_checkpoints(
        model,
        initial,
        final,
        stages,
        _texts(texts),
        _place(out),
        _sites(sites),
        points,
        epsilon,
        exact,
        batch,
        seed,
        quiet,
        window,
        dtype,
        device,
        pickle,
        remote_code,
    )


def explore(reading: Any, row: int = 0) -> Any:
    """A view into every head of one row of a Reading, for a notebook."""
    from trisect.lab.explore import explore as show

    return show(reading, row)


def explore_page(subject: Any, text: Text, out: str | Path = "explore.html") -> Path:
    """One self-contained page to look into every head with; returns its path."""
    from trisect.lab.explore import run_explore

    return run_explore(_subject(subject), text, Path(out))


def theory_page(
    names: Sequence[str] = (),
    beta: float | Sequence[float] = (),
    dim: int | None = None,
    keys: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    out: str | Path = "theory",
    quiet: bool = False,
) -> Any:
    """The constructions of `trisect.theory` by name, or all eight, at every `beta`: table, figures and interactive page."""
    from trisect.lab.theory import run_theory

    several = (float(beta),) if isinstance(beta, (int, float)) else tuple(beta)
    chosen = (names,) if isinstance(names, str) else tuple(names)
    return run_theory(chosen, several, dim, keys, samples, seed, _place(out), quiet)


def chart(result: Any) -> Any:
    """A chart of what a function of `trisect.theory` returned: closed forms over what was computed."""
    from trisect.report.theory_figures import chart as draw

    return draw(result)


def recall(
    data: str | Path = "embedded",
    out: str | Path = "recall",
    seeds: int | Sequence[int] = 1,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    examples: bool = True,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Any:
    """What pretraining adds (science B2 to B4): models with and without it, asked where people were born.

    `data` is 'embedded' or a folder of birth places; `recipe` 'embedded', 'small' or 'course', with some `settings`
    changed. Goes on where it stopped; the models are ordinary Hugging Face folders.
    """
    from trisect.lab.recall import run_recall

    chosen = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    return run_recall(data, _place(out), chosen, recipe, settings or {}, examples, Machine(device, workers, quiet))


def ask(model: str | Path, question: str, risk: float | None = None) -> Any:
    """Put a question such as 'Where was NAME born?' to a model that `recall` trained; it may abstain."""
    from trisect.lab.ask import ask as put

    return put(model, question, risk)


def _subject(model: Any) -> Any:
    return model if isinstance(model, Subject) else load(model)


def _sites(sites: Site | str | Sequence[Site | str] | None) -> list[Site | str] | None:
    """Sites one by one; a text may hold several, with spaces between."""
    if sites is None:
        return None
    several = [sites] if isinstance(sites, (Site, str)) else sites
    return [site for given in several for site in (given.split() if isinstance(given, str) else [given])]


def _place(out: str | Path) -> Path:
    """A folder for results; a study's own would lose its report."""
    if is_study(out):
        known = "A study lies there, and its report.html and tables would be written over."
        raise StudyError(f"{out} was given for results.", known, "Choose another folder with --out.")
    return Path(out)


def _texts(where: Any) -> Texts:
    return texts([where] if isinstance(where, tuple) else where)


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else (values,) if isinstance(values, (str, Site)) else tuple(values)


def _seeds(seeds: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    return seeds if seeds is None or isinstance(seeds, int) else tuple(seeds)
