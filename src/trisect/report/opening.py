"""The first screen of a page: what q, k and v are, the answer on each, how sure it is, and what could not be distinguished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from trisect.core.finding import Finding
from trisect.report.axes import SharedAxis
from trisect.report.blocks import Bullets, Facts, PageBlock, Picture, TextBlock
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.panels import Figure
from trisect.report.sheet import Section

BLIND = 0.75  # an AUROC below this is hardly better than guessing
NAMES = {"q": "query", "k": "key", "v": "value"}
DEFINITIONS = (
    ("Query q = x W_Q", "made from the word that reads: it is compared with every key"),
    ("Key k = x W_K", "made from every word that can be read: softmax(q·k / √E) is how much each is attended to"),
    ("Value v = x W_V", "made from the same words: what is added up, in those shares, and passed on"),
)
LED = "Attention lets a word read others. Each word x is multiplied by three matrices. What does each of the three do?"


def answered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that answer for the query, the key and the value, in this order."""
    found = {one.groups[0]: one for one in findings if one.measure == "answer" and one.groups}
    return tuple(found[c] for c in NAMES if c in found)


def opening(
    answers: Sequence[Finding],
    picture: Figure | None,
    more: Sequence[str | Markup] = (),
    title: str = "The answer",
    none: str = "No intervention has numbers yet, so there is no answer.",
) -> Section:
    """Three sentences, definitions, one picture, and `more` below them; where there is no answer, `none` says why."""
    blocks: list[PageBlock] = [TextBlock(none, "notice")]
    if answers:
        said = (Markup("<strong>{}.</strong> {}").format(one.title, one.words) for one in answers)
        blocks = [Bullets(tuple(said), look="findings answers")]
    blocks.append(Facts(DEFINITIONS))
    blocks += [Picture(picture)] if picture is not None else []
    blocks += [TextBlock(text) for text in more]
    return Section(title, (LED,), blocks=tuple(blocks), id="short-answer", short="The answer")


def sure(sentences: Sequence[str]) -> Section:
    """What the answer rests on."""
    return Section("How sure?", blocks=(Bullets(tuple(sentences)),) if sentences else (), id="sure", short="How sure?")


def undecided(findings: Iterable[Finding], blind: Sequence[str] = ()) -> Section:
    """Comparisons of q, k and v that are open, those alike within their margin, and what the method cannot see."""
    open_, same = [], []
    for one in findings:
        if one.compared is None or one.compared.kind not in ("uncertain", "alike"):
            continue
        name = f"{one.title or one.measure}: {one.compared.words(one.per or 'seed')}"
        (open_ if one.compared.kind == "uncertain" else same).append(f"{name}.")
    blocks = tuple(
        Bullets(tuple(dict.fromkeys(items)), title)
        for title, items in (
            ("Too uncertain", open_),
            ("Alike within the margin", same),
            ("The method cannot see it, by the world with planted roles", list(blind)),
        )
        if items
    )
    none = () if blocks else ("Nothing that was compared was left open.",)
    return Section(
        "What could not be distinguished, and why",
        none,
        blocks=blocks,
        id="open",
        short="What could not be distinguished",
    )


def answer_figure(bars: Sequence[Bar], unit: str, caption: str, across: str, shares: bool) -> Figure:
    """One panel with a mark of q, k and v in every column; `shares` go from 0 to 1."""
    axis = SharedAxis(unit, -0.02, 1.02) if shares else frame_of(bars, unit)
    title = "Which answer comes" if shares else "What it costs to take it away"
    panel = layer_panel(title, bars, axis, across=across)
    said = caption if shares else caption + cut(bars, axis)
    zero = "none" if shares else "no change"
    return Figure("in-short", "", "What each of them does", said, (panel,), component_key(bars, zero))


def picture_of(answers: Sequence[Finding], shares: str, costs: str) -> Figure | None:
    """The numbers of the three sentences in one picture, with the caption for shares of pairs, or for changes of a loss."""
    bars = [
        Bar(one.groups[0], value.name, value.mean, value.low, value.high)
        for one in answers
        for value in one.values
        if value.mean is not None
    ]
    if not bars:
        return None
    if answers[0].unit == "of pairs":
        return answer_figure(bars, "share of pairs", shares, "the answer that comes", True)
    return answer_figure(bars, answers[0].unit, costs, "what is done", False)
