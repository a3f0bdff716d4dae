"""Write docs/what-we-found.md from tools/article.md: every number is a cell of a table under results/ (python tools/article.py).

In the template `{{page#section: row | column | form}}` stands for one cell of a table in results/PAGE/README.md, which is itself
written from Parquet tables. The section (how a heading begins) may be left out; forms: none (the cell as it is), `value` (without
its interval), `%` (a share as a percentage, with its interval), `value %`, `points` (a difference of shares
in percentage points), `1`, `2`, … (value to so many decimals; a cell that lies half way keeps its own), `collapsed` (how many runs
did), `verdict` for a claim. `{{claims}}` is the table of all claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import polars as pl

from trisect.claims.models import ONE_SEED
from trisect.core.finding import NOT_TESTED
from trisect.core.tables import read_table

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, TEMPLATE = ROOT / "results", ROOT / "docs" / "what-we-found.md", ROOT / "tools" / "article.md"
SLOT = re.compile(r"\{\{([^{}]+)\}\}")
SURE = re.compile(r"95\s%:\s")
NUMBER = re.compile(r"[−+-]?\d+\.\d+|[−+-]?\d+")
MINUS = re.compile(r"(?<!\w)-(?=\d)")


class Row(NamedTuple):
    """A row of a Markdown table: under which heading, its column names, its cells."""

    section: str
    columns: list[str]
    cells: list[str]


def rows_of(page: str) -> Iterator[Row]:
    """Every row of every table of a results page."""
    section, columns = "", list[str]()
    for line in (RESULTS / page / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section, columns = line.lstrip("# "), []
        elif not line.startswith("|"):
            columns = []
        else:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not columns:
                columns = cells
            elif set(cells) != {"---"}:
                yield Row(section, columns, cells)


def cell(where: str, row: str, column: str) -> str:
    """The one cell that is meant; raises LookupError where there is none, or several."""
    page, _, section = where.partition("#")
    rows = [r for r in rows_of(page) if r.section.startswith(section)]
    rows = [r for r in rows if r.section == section] or rows
    found = {
        r.cells[r.columns.index(column)]
        for r in rows
        if column in r.columns and row in (r.cells[0], ", ".join(r.cells[:2]))
    }
    if len(found) != 1:
        raise LookupError(f"{where}: {row} | {column} is {sorted(found) or 'nowhere'}")
    return found.pop()


def shown(text: str, form: str) -> str:
    """A cell in a form."""
    if form == "collapsed":
        return text.rpartition("; ")[2].removesuffix(" collapsed")
    text = SURE.sub("", text) if "%" in form or form == "points" else text
    value, _, rest = text.partition(" (")
    if form == "points":
        return hundredfold(text)
    if "%" in form and "value" not in form and rest:
        value, _, rest = hundredfold(text).partition(" (")
        return f"{value}\u00a0% (95\u00a0%: {rest}"
    if "%" in form:
        return f"{hundredfold(value)}\u00a0%"
    return rounded(Decimal(value), int(form)) if form.isdigit() else value if form else text


def hundredfold(text: str) -> str:
    """The shares of a cell as percentages with one decimal, or two where one of them lies half way."""
    shares = [100 * Decimal(number.replace("−", "-")) for number in NUMBER.findall(text)]
    decimals = 2 if any(half_way(share, 1) for share in shares) else 1
    found = iter(shares)
    return NUMBER.sub(lambda _: rounded(next(found), decimals), text)


def half_way(value: Decimal, decimals: int) -> bool:
    """Whether a number that was rounded before lies half way between two of fewer decimals, so that nobody knows which way it goes."""
    step = Decimal(1).scaleb(-decimals)
    return abs(value % step) == step / 2


def rounded(value: Decimal, decimals: int) -> str:
    """A cell with fewer decimals; where it lies half way, with its own."""
    if half_way(value, decimals):
        return f"{value.normalize():f}"
    return f"{value.quantize(Decimal(1).scaleb(-decimals)) + 0:f}"


def slot(match: re.Match[str]) -> str:
    """What stands where a slot is."""
    if match[1] == "claims":
        return "\n".join(claims())
    where, _, rest = match[1].partition(": ")
    row, column, *form = (part.strip() for part in rest.split(" | "))
    return MINUS.sub("−", shown(cell(where, row, column), form[0] if form else ""))


class Judged(NamedTuple):
    """A family of claims: their ids, the tables of both revisions (null: none), and on what they were judged."""

    claims: Iterable[str]
    first: str | None
    second: str | None
    on: str


def ids(letter: str, last: int, start: int = 1) -> list[str]:
    """Claims of a source, from one number to another."""
    return [f"{letter}-{n}" for n in range(start, last + 1)]


OVER_SEEDS = {*ids("A", 15), "D-2", "F-1", "F-4"}
WIKITEXT = "[MiniLM, WikiText-2](../results/minilm/README.md)"
OWN = "a language model of our own"
SMALL = "[WikiText-2, one site at a time](../results/wikitext2-small/README.md)"
FAMILIES = (
    Judged(ids("A", 14), "wikitext2-small/claims", "wikitext2-small/claims_revised", SMALL),
    Judged(ids("A", 12, 10), None, "wikitext2-large/claims",
           "[the larger model, one site at a time](../results/wikitext2-large/README.md)"),
    Judged(["A-1"], "wikitext2-controls/claims", "wikitext2-controls/claims_revised",
           "[with controls](../results/wikitext2-controls/README.md)"),
    Judged(["A-15"], None, "wikitext2-all-layers/claims", "[all layers at once](../results/wikitext2-all-layers/README.md)"),
    Judged(["A-15"], None, "wikitext2-large-freezing/claims",
           "[the larger model, one epoch](../results/wikitext2-large-freezing/README.md)"),
    Judged(["A-15"], None, "wikitext2-large-freezing-three-epochs/claims",
           "[the larger model, three epochs](../results/wikitext2-large-freezing-three-epochs/README.md)"),
    Judged(ids("B", 4), "recall/birth-places/claims", ONE_SEED, "[birth places of the course, seed 1](../results/recall/README.md)"),
    Judged(ids("B", 4), None, "recall/birth-places-seeds/claims", "birth places of the course, three other seeds"),
    Judged(ids("B", 4), "recall/embedded/claims", "recall/embedded/claims_revised", "generated people, seeds 1 to 3"),
    Judged(ids("B", 4), None, "recall/embedded-eight/claims", "generated people, seeds 4 to 11"),
    Judged(ids("C", 4), "minilm/norms-wikitext/claims", "minilm/norms-wikitext-revised/claims", WIKITEXT),
    Judged(ids("C", 4), "minilm/norms-ud/claims", "minilm/norms-ud-revised/claims", "MiniLM, UD English EWT"),
    Judged(ids("C", 4), "minilm/own-norms/claims", None, OWN),
    Judged(["C-5"], "alignment/claims", "alignment/claims_revised", "[Hansards, 3 models](../results/alignment/README.md)"),
    Judged(["C-5"], None, "alignment/hansards/claims", "Hansards, 5 models"),
    Judged(["C-5"], None, "alignment/embedded/claims", "generated sentences, 5 models"),
    Judged(["D-1", "D-3"], "minilm/similarity-ud/claims", "minilm/similarity-ud-revised/claims", "MiniLM"),
    Judged(["D-1", "D-3"], "minilm/own-similarity/claims", None, OWN),
    Judged(["D-2"], "wikitext2-controls/claims", "wikitext2-controls/claims_revised",
           "[ties, WikiText-2](../results/wikitext2-controls/README.md)"),
    Judged(["F-1", "F-4"], None, "roles/claims", "[planted roles](../results/roles/README.md)"),
    Judged(["F-1", "F-4"], None, "induction/claims", "[planted roles, induction](../results/induction/README.md)"),
    Judged(["F-2", "F-3"], None, "profile/ud/claims", "[MiniLM, UD English EWT](../results/profile/README.md)"),
    Judged(["F-2", "F-3"], None, "profile/wikitext/claims", "MiniLM, WikiText-2"),
    Judged(["F-2", "F-3"], None, "profile/own/claims", OWN),
    Judged(["F-2", "F-3"], None, "profile/larger/claims", "three larger models of our own"),
    *(Judged(["F-2", "F-3"], None, f"profile/larger-epochs-{seed}/claims", f"the larger model after three epochs, seed {seed}")
      for seed in range(1, 6)),
    Judged(["F-2", "F-3"], None, "profile/recall/claims", "five models that recall"),
)  # fmt: skip


class Verdict(NamedTuple):
    """What a table says of one claim: its verdict, the sentence, and why and over how many seeds."""

    verdict: str
    sentence: str
    why: str


def verdicts(place: str | None) -> dict[str, Verdict]:
    """Every claim of a table that is there, those that it could not test left out."""
    folder, _, name = (place or "").rpartition("/")
    if place is None or not (RESULTS / folder / "tables" / f"{name}.parquet").exists():
        return {}
    found = read_table(RESULTS / folder / "tables", name).filter(pl.col("part").is_null())
    return {
        row["claim"]: Verdict(row["verdict"], row["sentence"].rstrip("."), _why(row))
        for row in found.iter_rows(named=True)
        if row["verdict"] != NOT_TESTED and not str(row["reason"]).startswith("not measured")
    }


def _why(row: Mapping[str, object]) -> str:
    """How many seeds a verdict is over, where these are its units, its reason, and how many of its runs collapsed."""
    fallen = row.get("collapsed")
    parts = (
        f"{row['n']} seeds" if row["claim"] in OVER_SEEDS else "",
        str(row["reason"] or ""),
        f"about {row['seeds_needed']} seeds needed" if row["claim"] in OVER_SEEDS and row["seeds_needed"] else "",
        f"{fallen} of its runs collapsed" if fallen else "",
    )
    return "; ".join(filter(None, parts))


def claims() -> list[str]:
    """Every claim under both revisions, a row for each pair of verdicts: claim, both, what is claimed, on what and why."""
    sentences: dict[str, str] = {}
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for family in FAMILIES:
        first, second = verdicts(family.first), verdicts(family.second)
        if family.second == ONE_SEED:
            second = {claim: of._replace(verdict="inconclusive", why=ONE_SEED) for claim, of in first.items()}
        for claim in family.claims:
            before, after = first.get(claim), second.get(claim)
            known = after or before
            if known is None:
                continue
            sentences.setdefault(claim, known.sentence)
            key = (claim, before.verdict if before else "–", after.verdict if after else "–")
            found.setdefault(key, {}).setdefault(known.why, []).append(family.on)
    lines = ["| claim | revision 1 | revision 2 | what is claimed | judged on |", "| --- | --- | --- | --- | --- |"]
    said = set[str]()
    for claim, before, after in sorted(found, key=lambda key: _order(key[0])):
        sentence = "the same" if claim in said else sentences[claim]
        said.add(claim)
        rests = [", ".join(on) + (f": {why}" if why else "") for why, on in found[claim, before, after].items()]
        lines.append(f"| {claim} | {before} | {after} | {sentence} | {' · '.join(rests)} |")
    return lines


def _order(claim: str) -> tuple[str, int]:
    """Sort key of claims: source, number."""
    source, _, number = claim.partition("-")
    return source, int(number)


def page() -> str:
    """The whole article."""
    return SLOT.sub(slot, TEMPLATE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
