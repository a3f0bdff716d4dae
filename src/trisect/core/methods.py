"""Statements of a study's interventions: attack, rewind, freeze, tie, ablate, probe and others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from trisect.core.errors import SpecError, require, unknown_name
from trisect.core.schema import MAX_INT, MAX_POINTS, MAX_RESAMPLES, Each, Many, Some, one_of, record
from trisect.core.site import Site

VARIANTS = ("plain", "control", "bounded", "site")
METHODS = ("attack", "control", "rewind", "freeze", "tie", "probe", "erase", "ablate", "interchange")
PAPER_SITES = tuple(Site((c,), (layer,)) for layer in range(1, 6) for c in ("q", "k", "v"))
# one component or several in all layers at once (definitions A), for effects that other layers compensate
ALL_LAYERS = tuple(Site(c, None) for c in (("q",), ("k",), ("v",), ("q", "k"), ("q", "k", "v")))
PROBES = ("linear", "mlp")


def canonical_variant(text: str) -> str | None:
    """The canonical spelling of a variant of an attack, None if it is invalid: 'plain', or controls joined by '+' in order.

    'control' (labels drawn at random for each word type), 'bounded' (the adversary's output is pushed towards the label
    prior) and 'site' (the attack trains only the site's own projection) change different parts of an attack.
    """
    parts = text.split("+")
    if text != "plain" and (len(set(parts)) < len(parts) or not set(parts) <= set(VARIANTS[1:])):
        return None
    return "+".join(v for v in VARIANTS if v in parts)


def _check_control(text: str) -> str:
    """The canonical spelling of a control; raises SpecError if the text is not one."""
    variant = canonical_variant(text)
    if variant is None or variant == "plain":
        reason = f"Controls are {', '.join(VARIANTS[1:])}, or several of them joined by '+'."
        raise SpecError(unknown_name("control", text, VARIANTS[1:]), reason, "Use one of them.")
    return variant


_read_site = BeforeValidator(lambda site: Site.parse(site) if isinstance(site, str) else site)
SiteText = Annotated[Site, _read_site, PlainSerializer(str)]  # stored in JSON as its spelling


@record
class Attack:
    """Experiment 1 (definitions A4): every site × label × strength. With `epochs` None, as many as in training."""

    sites: Some[SiteText] = PAPER_SITES
    labels: Each[str] = ("pos", "dep")
    strengths: Each[float] = (1.0,)
    epochs: Annotated[int | None, Field(ge=1, le=MAX_INT)] = None


@record
class Rewind:
    """Experiments 2a and 2b (definitions A5, A6): convex rewinding at steps of 1/(points − 1), and every stored epoch.

    `epsilon` is the share of the final loss that counts as a drop. `mode` 'adaptive' interpolates the smooth loss
    between exact evaluations, adds evaluations until its own error check passes, and is exact at the crossings; 'exact'
    evaluates all points. `sample_tokens` is the size of a sample of each split, in whole rows drawn with `sample_seed`, the same
    at every point and site, so that each rise of the loss has an interval. None evaluates every row.
    """

    sites: Some[SiteText] = (*PAPER_SITES, *ALL_LAYERS)
    points: Annotated[int, Field(ge=2, le=MAX_POINTS)] = 101
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01
    midstage: bool = True
    mode: Annotated[str, one_of("adaptive", "exact")] = "adaptive"
    sample_tokens: Annotated[int | None, Field(ge=2, le=MAX_INT)] = None
    sample_seed: Annotated[int, Field(ge=0, le=MAX_INT)] = 0


@record
class Freeze:
    """Experiment 2c (definitions A7): each site's weights keep their initial values."""

    sites: Some[SiteText] = (*PAPER_SITES, *ALL_LAYERS)


@record
class Control:
    """The controls of experiment 1 (definitions A4): the same attacks with something changed, every site × label × variant.

    Variants are those of `canonical_variant`, without 'plain'. Epochs are those of the attacks.
    """

    sites: Each[SiteText] = PAPER_SITES
    labels: Each[str] = ("pos", "dep")
    variants: Each[Annotated[str, AfterValidator(_check_control)]] = VARIANTS[1:]
    strength: float = 1.0


@record
class Tie:
    """Models with fewer than three matrices (definitions D2): the components of each of `sites` share one matrix from the first step.

    At each site of `identity` a component is the input itself, split into heads. With `narrow`, each number of parameters that
    results is matched by a model with separate matrices and narrower heads, as closely as possible.
    """

    sites: Many[SiteText] = tuple(Site(c, None) for c in (("q", "k"), ("k", "v"), ("q", "v"), ("q", "k", "v")))
    identity: Many[SiteText] = (Site(("q",), None), Site(("v",), None))
    narrow: bool = True

    def __post_init__(self) -> None:
        reason, todo = "It needs at least one.", "Name some, or leave tie out."
        require(bool(self.sites or self.identity), "tie has no sites.", reason, todo)


def reads_head(site: Site) -> bool:
    """Whether a site names one or several heads of q, k or v."""
    return site.heads is not None and set(site.components) <= {"q", "k", "v"}


def layers_with_heads(sites: Iterable[Site]) -> list[int]:
    """The layers in which resolved sites name heads of q, k or v."""
    return sorted({layer for site in sites if reads_head(site) for layer in site.layers or ()})


def input_site(layer: int) -> Site:
    """The site of a layer's random maps: q, k and v, which all read the layer's input."""
    return Site(("q", "k", "v"), (layer,))


@record
class Probe:
    """What an attack removed (definitions A4): new probes of every baseline and of every attacked run.

    A probe learns a label of the next word from the representation at one site. Probes are cross-validated on the validation split,
    in folds of whole articles; folds of rows are used only if articles cannot be divided evenly enough. With `sites` None, q, k and v
    of every layer are probed.

    `random_maps` is the number of random linear maps of a layer's input that are probed as a baseline, in each layer with a probed
    head. They are as wide as a head.
    """

    sites: Each[SiteText] | None = None
    labels: Each[str] = ("pos", "dep")
    kinds: Each[Annotated[str, one_of(*PROBES)]] = PROBES
    random_maps: Annotated[int, Field(ge=0, le=MAX_RESAMPLES)] = 0

    def __post_init__(self) -> None:
        require(
            not self.random_maps or any(map(reads_head, self.sites or ())),
            f"random_maps is {self.random_maps}, and no head of q, k or v is probed.",
            "Random maps are as wide as a head, and read the input of the probed heads' layers.",
            "Name heads among the sites, such as q@1.h2, or leave random_maps at 0.",
        )


@record
class Erase:
    """Closed-form erasure (definitions A4): a label removed linearly from a site of each trained baseline (LEACE).

    The control removes `draws` random subspaces of the same rank. Erasers are fitted in the folds of Probe. `shrinkage` shrinks the
    covariance by which representations are whitened, as the package concept-erasure does by default.
    """

    sites: Each[SiteText] = PAPER_SITES
    labels: Each[str] = ("pos", "dep")
    draws: Annotated[int, Field(ge=1, le=MAX_RESAMPLES)] = 10
    shrinkage: bool = True


@record
class Ablate:
    """Mean ablation: each site's q, k or v of every trained baseline replaced by its mean over train (definitions A)."""

    sites: Each[SiteText] = (*PAPER_SITES, *ALL_LAYERS)


@record
class Interchange:
    """Interchange interventions (activation patching, definitions F1) on each trained baseline of a synthetic task with known roles.

    `pairs` is the number of documents, each with donors that differ in order, pairing or question. q, k or v of a site is replaced by
    the donor's, and the answer is compared with the predicted ones.
    """

    sites: Each[SiteText] = PAPER_SITES
    pairs: Annotated[int, Field(ge=1, le=MAX_INT)] = 1_000

    def __post_init__(self) -> None:
        single = all(len(s.components) == 1 and s.layers is not None and len(s.layers) == 1 for s in self.sites)
        require(
            single,
            f"The interchange is at {', '.join(map(str, self.sites))}.",
            "Each site has to be one of q, k and v at one layer, since each of them predicts another answer.",
            "Use sites such as k@2.",
        )
