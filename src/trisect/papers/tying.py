"""Why a head has three matrices, asked of models trained with fewer: its claim about training."""

from __future__ import annotations

from trisect.core.claim import Claim, Combination, Effect, LossChange, Part, Source
from trisect.papers import matrices
from trisect.papers.submodules import MARGIN, WHY_MARGIN

TIES = {"Q=K=V": "q+k+v@all", "Q=K": "q+k@all", "K=V": "k+v@all", "Q=V": "q+v@all"}
IDENTITIES = {"Q": "q@all", "V": "v@all"}


def _above(name: str, effect: Effect, decides: bool = True) -> Part:
    return Part(f"{name} loss change", effect, "above", MARGIN, "nats", WHY_MARGIN, decides)


def _tie_part(split: str, decides: bool) -> tuple[Part, ...]:
    return tuple(
        _above(f"{n} in all layers, {split}", LossChange("tie", (s,), split), decides) for n, s in TIES.items()
    )


def _less_narrow(name: str, edit: str, site: str) -> Part:
    """The same change less that of a model with separate matrices and narrower heads, of as nearly as many parameters."""
    change = Combination(((1.0, LossChange(edit, (site,), "valid")), (-1.0, LossChange("narrow", (site,), "valid"))))
    return _above(f"{name} in all layers less narrower heads with as many parameters, valid", change, decides=False)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "D-2",
        "One matrix for all three, or for two of them, would not work as well as three.",
        "the question's second paragraph, and its second answer",
        (
            *_tie_part("valid", True),
            *_tie_part("train", False),
            *(_less_narrow(name, "tie", site) for name, site in TIES.items()),
            *(
                _above(f"{name} the identity in all layers, valid", LossChange("identity", (site,), "valid"), False)
                for name, site in IDENTITIES.items()
            ),
            *(_less_narrow(f"{name} the identity", "identity", site) for name, site in IDENTITIES.items()),
        ),
        floored=True,
    ),
)

SOURCE = Source(
    key="tying",
    title=matrices.SOURCE.title,
    authors=matrices.SOURCE.authors,
    citation=matrices.SOURCE.citation,
    claims=CLAIMS,
)
