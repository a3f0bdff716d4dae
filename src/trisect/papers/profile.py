"""What queries, keys and values keep and drop: two claims of this project's own, over layers or models."""

from __future__ import annotations

from trisect.core.claim import Claim, Part, Source, Statistic

MARGIN = 0.02

_UNIT = "of accuracy"
WHY_POSITION = (
    "Two words in a hundred told apart better or worse; what is less makes no difference that a reader would name."
)
WHY_SIDE = "Only the side of random maps is claimed."
WHY_HELD = "Nearly all that another text's parts change goes by the values once the pattern is held; a tenth is left for the rest."
LAST = "last third of the layers"


def _last(label: str, component: str, direction: str) -> Part:
    name = f"{label.upper()} in the {LAST}: {component} less random maps, mean over layers"
    return Part(name, Statistic(f"late_{label}_{component}"), direction, 0.0, _UNIT, WHY_SIDE)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F-2",
        "Queries and keys route, values carry content: queries and keys encode a word's position better than values do.",
        "profile of position",
        (
            *(
                Part(
                    f"position: {component} less v, mean over layers",
                    Statistic(f"position_{component}-v"),
                    "above",
                    MARGIN,
                    _UNIT,
                    WHY_POSITION,
                )
                for component in ("q", "k")
            ),
            Part(
                "interchange with the pattern held: share of the change that goes by v",
                Statistic("held_share_v"),
                "above",
                0.9,
                "of the change",
                WHY_HELD,
            ),
        ),
    ),
    Claim(
        "F-3",
        "In late layers, queries encode part of speech and relation more than random projections, values less.",
        "profile of the last third of the layers",
        tuple(_last(label, c, d) for label in ("pos", "dep") for c, d in (("q", "above"), ("v", "below"))),
    ),
)

SOURCE = Source(
    key="profile",
    title="What do queries, keys and values encode?",
    authors="trisect",
    citation="Claims of this project, fixed after a trial on one model (MiniLM, 37,663 words of UD English EWT).",
    claims=CLAIMS,
    unit="head",
)
