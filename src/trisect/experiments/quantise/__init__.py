"""Number of bits that q, k and v need: the cost of rounding and of rank reduction, and bits planned by layer."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.finding import ReadFacts
from trisect.core.schema import MODEL_BOUNDS, Option, record
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, Sites, TextSource, Units

MAX_BITS = 16  # bits: beyond that float32 rounds by itself


@record
class QuantiseSettings:
    """Settings of rounding: bits or ranks, sites and texts."""

    source: Models
    read: TextSource
    sites: Sites | None = None
    bits: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_BITS)], ...],
        Field(description=f"Bits of a number, 1 to {MAX_BITS}."),
        Option(many="commas", metavar="BITS"),
    ] = (2, 3, 4, 8)
    by: Annotated[
        tuple[str, ...],
        Field(
            description="Which numbers share a scale: channel (one of a head, over a text), token (one of a head), or both."
        ),
        Option(choices=("channel", "token"), many="commas", metavar="BY"),
    ] = ("channel", "token")
    rank: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MODEL_BOUNDS["width"])], ...],
        Field(description="Ranks of low-rank approximations of a head's q, k or v of a text."),
        Option(many="commas", metavar="RANKS"),
    ] = ()
    per: Annotated[
        str,
        Field(description="Unit that is quantised at a time: a layer, a head, or a whole site."),
        Option(choices=("layer", "head", "site"), metavar="PER"),
    ] = "layer"
    memory: Annotated[
        float, Field(description="Mean bits per number of k and v that a plan may use.", gt=0, le=MAX_BITS)
    ] = 3.0
    tolerance: (
        Annotated[
            float,
            Field(
                description="The change that counts as small (nats; of a model without a loss a share of its output). Where given, "
                "the command exits with 1 unless the plan costs surely less.",
                gt=0,
            ),
            Option(metavar="NATS", unset="0.02, and nothing fails"),
        ]
        | None
    ) = None
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)

    def __post_init__(self) -> None:
        """Raise SpecError if nothing is to be reduced, or a plan has no memory."""
        if not self.ways:
            need = "Bits need --by channel, token or both; ranks stand alone."
            raise SpecError("Nothing is to be reduced.", need, "Give --bits or --rank.")
        if self.bits and self.memory < min(self.bits):
            problem = f"memory is {self.memory:g} (3 unless you give it)."
            least = f"The fewest bits of --bits are {min(self.bits)}."
            raise SpecError(problem, least, "Give more memory, or fewer bits among others.")

    @property
    def ways(self) -> tuple[tuple[str, int], ...]:
        """The reductions: bits by channel, bits by token or rank, with their amounts."""
        rounding = [(f"bits by {way}", n) for way in self.by for n in sorted(self.bits)]
        return (*rounding, *(("rank", n) for n in sorted(self.rank)))


class _Quantise(Experiment[QuantiseSettings, ReadFacts]):
    """Measure what rounding queries, keys or values to few bits costs, and plan the bits of cached keys and values by layer.

    \b
    trisect quantise MODEL --corpus sample --sites k@all v@all --rank 4,8 --memory 3.5
    trisect quantise MODEL --corpus sample --memory 4 --tolerance 0.05
    trisect quantise lookup/models/seed-1 --corpus embedded --limit 200
    """

    name = "quantise"
    settings = QuantiseSettings
    facts = ReadFacts
    out = "quantise-{model}"
    record = "quantise.json"

    def check(self, settings: QuantiseSettings) -> None:
        """Raise SpecError for a tolerance with several models."""
        from trisect.lab.units.run import several_models

        if settings.tolerance is not None and several_models(settings) is not None:
            reason = "A plan is of one model."
            raise SpecError("A tolerance was given for several models.", reason, "Call it for each, or leave it out.")

    def measure(self, settings: QuantiseSettings, context: RunContext) -> Measured[ReadFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.quantise.run import measure

        edits, plan = (settings.sites, settings.per, settings.ways), (settings.memory, settings.tolerance)
        return measure(context, *edits, *plan, settings.batch, settings.seed)

    def page_module(self) -> PageModule[ReadFacts]:
        """Findings and page."""
        from trisect.experiments.quantise import page

        return page


QUANTISE = _Quantise()
