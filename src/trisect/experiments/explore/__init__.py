"""The explorer: one text inside one model, as a page or in a notebook."""

from __future__ import annotations

from trisect.experiments.explore.settings import ExploreFacts, ExploreSettings
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext


class Explore(Experiment[ExploreSettings, ExploreFacts]):
    """Show every attention head on one page: weights beside norms or contributions, and what is behind each cell.

    Below an open head: the tokens whose logits it raises and lowers, and what each layer would predict. An encoder-decoder takes
    two texts, source and target. A page of another text or model gets a number behind its name.

    \b
    trisect explore MODEL "What is this?" --image cat.png
    trisect explore MODEL --audio speech.wav
    trisect explore lookup/models/seed-1 "teri ga kivol ." --out page.html
    """

    name = "explore"
    settings = ExploreSettings
    facts = ExploreFacts
    out = "explore-{model}.html"
    function = "explore_page"
    single = "explorer.html"

    def reads_text(self, settings: ExploreSettings, texts: object) -> bool:
        """Whether neither an image nor a sound is given."""
        return not settings.image and not settings.audio

    def measure(self, settings: ExploreSettings, context: RunContext) -> Measured[ExploreFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.explore.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[ExploreFacts]:
        """Findings and page."""
        from trisect.experiments.explore import page

        return page


EXPLORE = Explore()
