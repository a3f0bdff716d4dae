"""A profile's result: what a run of any experiment leaves, and its numbers by layer and by head for programs."""

from __future__ import annotations

from trisect.core.files import Json
from trisect.experiments.profile.settings import ProfileFacts
from trisect.lab.experiment import Result


class Profile(Result[ProfileFacts]):
    """A profile: tables, page and findings, with `layers` and `heads` as rows."""

    @property
    def layers(self) -> list[dict[str, Json]]:
        """A row for each layer and label: accuracies of q, k, v (means over heads), of random maps and of the whole input.

        `gains` are q, k and v less random maps, with 95 % intervals over heads and p after Holm; `differences` those of
        q, k and v in pairs.
        """
        from trisect.experiments.profile.page import ProfileNumbers

        return ProfileNumbers.of(self.tables["measures"]).layer_rows()

    @property
    def heads(self) -> list[dict[str, Json]]:
        """A row for each head's q, k and v and each label: accuracy, bits, z and p against random maps, rank in its layer."""
        from trisect.experiments.profile.page import ProfileNumbers

        return ProfileNumbers.of(self.tables["measures"]).head_rows()

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, with layers and heads."""
        return {**super().data(), "layers": list(self.layers), "heads": list(self.heads)}
