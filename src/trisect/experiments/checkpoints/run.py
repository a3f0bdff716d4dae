"""Rewinding between published checkpoints of one model: criticality and mid-stage curves of q, k and v without training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trisect.core.errors import SiteError, SpecError
from trisect.core.site import Site
from trisect.core.subject import Shape, SiteTarget, Texts
from trisect.core.tables import frame
from trisect.core.trace import Projections
from trisect.experiments.checkpoints.interpolation import Earlier, How, RewoundSite, Trials, rewind
from trisect.experiments.checkpoints.settings import RewindFacts, RewindSettings
from trisect.lab.experiment import Bench, Measured

if TYPE_CHECKING:
    from trisect.hf.checkpoints import ParameterSlice, SliceValues
    from trisect.hf.load import Pretrained


NO_LOSS = "The model has no loss of its own: numbers say how far its output moves, |y − y_final|² / |y_final|², averaged over tokens."


def check(settings: RewindSettings) -> None:
    """Raise SpecError where a revision in between is one of the ends: means over all would count it twice."""
    ends = {settings.initial, settings.final}
    if (name := next((name for name in settings.stages if name in ends), None)) is not None:
        known = f"The revisions are {', '.join(settings.revisions)}, the initial one first and the final one last."
        raise SpecError(f"The revision {name!r} was given twice.", known, "Name every revision once.")


def measure(settings: RewindSettings, bench: Bench) -> Measured[RewindFacts]:
    """Rewind sites of revision `final` of a model towards `initial` (A5) and to each of `stages` (A6).

    Revisions are subfolders of a local folder, else revisions of a hub. A site's components, layers and heads are
    rewound together; null is q, k and v of every layer, one at a time. `points` α are on the grid; unless `exact` they
    are interpolated between nodes that check themselves. `epsilon` is the share of the final loss that counts as a drop.
    The table `sites` has the measures of a study's rewinding, with `n` the predicted tokens; intervals are 95 % of a
    bootstrap over articles (texts where none is marked), drawn with `seed`. A model without a loss is measured by how
    far its output moves, as `ablate` measures it: |Δy|² as a share of |y|². `epsilon` is then that share, so that 0.01
    is a tenth of the output's length. Raises TrisectError.
    """
    from trisect.hf.checkpoints import read_cuts
    from trisect.hf.fetch import Options

    model, texts = settings.model, bench.texts
    subject = _load(settings)
    spots, notes = plan_places(subject.shape, subject.projections(), settings.sites)
    trials = Trials(subject, subject.model, texts, settings.batch)
    untrained = above_chance(float(trials.final.sum() / trials.tokens.sum()), _vocabulary(subject))
    untrained += (NO_LOSS,) if trials.moves else ()
    how = How(settings.points, settings.epsilon, settings.exact, settings.seed)
    options = Options(None, settings.dtype, "cpu", None, settings.pickle, settings.remote_code)

    def read(revision: str) -> list[SliceValues]:
        cuts = [cut for spot in spots for cut in spot.cuts]
        values = iter(read_cuts(model, revision, cuts, subject.model, options))
        return [tuple(next(values) for _ in spot.cuts) for spot in spots]

    with bench.progress(f"rewinding {len(spots)} sites") as step:
        earlier = Earlier(read, (settings.initial, *settings.stages))
        rows, said = rewind(trials, spots, earlier, how, step)
    facts = _facts(settings, trials, texts)
    table = frame("sites", [row | {"subject": facts.subject} for row in rows])
    cut = [note for batch in trials.batches for note in batch.notes]
    return Measured(
        {"sites": table},
        facts,
        tuple(dict.fromkeys((*texts.notes, *trials.articles.notes, *untrained, *notes, *said, *cut))),
    )


def _vocabulary(subject: Pretrained) -> int | None:
    """How many tokens a model chooses from; null where it does not say."""
    config = getattr(subject.model, "config", None)
    found = getattr(config, "decoder_vocab_size", None) or getattr(config, "vocab_size", None)
    return found if isinstance(found, int) else None


def above_chance(loss: float, vocabulary: int | None) -> tuple[str, ...]:
    """A warning where a final model's loss in nats is above that of equal guesses."""
    if vocabulary is None or not loss > math.log(vocabulary):
        return ()
    chance = f"ln {vocabulary:,} = {math.log(vocabulary):.2f}"
    said = f"The final model's loss, {loss:.2f} nats per token, is above that of equal guesses, {chance}"
    return (f"{said}: its language-model head may never have been trained, and what is rewound then means little.",)


def _load(settings: RewindSettings) -> Pretrained:
    """The final model, once every revision is known to be there."""
    from trisect.hf.checkpoints import locate
    from trisect.hf.load import load

    place, name = {one: locate(settings.model, one) for one in settings.revisions}[settings.final]
    rest = settings.dtype, settings.device, None, settings.pickle, settings.remote_code
    return load(place, None, None, settings.window, name, *rest)


def _facts(settings: RewindSettings, trials: Trials, texts: Texts) -> RewindFacts:
    folder = Path(settings.model)
    name = folder.resolve().name if folder.is_dir() else str(settings.model)
    return RewindFacts(
        f"{name}@{settings.final}",
        trials.subject.fingerprint,
        trials.subject.objective,
        texts.name,
        texts.fingerprint,
        len(trials.kept),
        int(trials.tokens.sum()),
        trials.passes["texts"],
        settings.points,
        settings.epsilon,
        settings.exact,
        settings.seed,
        settings.initial,
        settings.stages,
        settings.final,
        articles=None if trials.articles.numbers is None else len(trials.tokens),
    )


def plan_places(
    shape: Shape, projections: Sequence[Projections], sites: Sequence[Site | str] | None
) -> tuple[list[RewoundSite], list[str]]:
    """The sites with their weights, and notes on those whose weights serve more than was named.

    Where layers share weights a site grows to all that they serve, and is rewound once. Raises SiteError.
    """
    from trisect.hf.checkpoints import cuts_of

    if sites is not None and not sites:
        raise SiteError("No site was given.", shape.words(), "Leave the sites out for q, k and v of every layer.")
    known = {p.address: p for p in projections}
    if sites is None:
        stacks = ["" if s == "plain" else s for s in shape.stacks]
        every = [Site((c,), None, stack=stack) for stack in stacks for c in ("q", "k", "v")]
        wanted = [t._replace(heads=None) for site in every for t in shape.resolve(site)]
        groups = [(Site((t.component,), (t.address.layer,), None, t.address.site.stack), (t,)) for t in wanted]
    else:
        parsed = [Site.parse(s) if isinstance(s, str) else s for s in sites]
        groups = [(site, shape.resolve(site)) for site in parsed]
    serving = {}
    for address in shape.heads:
        for component in ("q", "k", "v"):
            origin = known[address].origins[component]
            if origin.parameter is not None and origin.rows is not None:
                target = SiteTarget(address, component, None)
                serving[target] = cuts_of(target, known[address])[0]
    places: dict[Site, RewoundSite] = {}
    notes: dict[str, None] = {}
    for site, targets in groups:
        cuts = tuple(dict.fromkeys(cut for t in targets for cut in cuts_of(t, known[t.address])))
        grown = _grow(site, targets, cuts, serving)
        if (
            grown.layers != tuple(dict.fromkeys(t.address.layer for t in targets))
            or grown.components != site.components
        ):
            notes[f"{grown} is one set of weights, and is rewound as one."] = None
        for t in targets:
            if (origin := known[t.address].origins[t.component]).how != "rows":
                notes[f"{t.component} of {t.address} is not a selection of weights alone: {origin.words}."] = None
        places.setdefault(grown, RewoundSite(grown, cuts))
    return list(places.values()), list(notes)


def _grow(
    site: Site,
    targets: Sequence[SiteTarget],
    cuts: Sequence[ParameterSlice],
    serving: Mapping[SiteTarget, ParameterSlice],
) -> Site:
    """The site with every component and layer of its stack that its weights serve."""
    units: dict[str, set[int]] = {}
    for cut in cuts:
        units.setdefault(cut.parameter, set()).update(cut.units)
    stack = targets[0].address.stack
    own = {(t.component, t.address.layer) for t in targets}
    own |= {
        (t.component, t.address.layer)
        for t, cut in serving.items()
        if t.address.stack == stack and not units.get(cut.parameter, set()).isdisjoint(cut.units)
    }
    return Site(tuple(c for c, _ in own), tuple(n for _, n in own), site.heads, site.stack)
