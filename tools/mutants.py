"""Mutants: changes to lines that decide numbers or safety, each tried with the tests that have to fail; survivors are named.

`make mutants`, or `python tools/mutants.py PART_OF_A_NAME` for some. Each is made in a copy of src, never in the tree. Status 1
where one survives, or where a line that is to be changed is not there any more. With `--kept FILE` what became of each is noted
there, and a call that was stopped goes on with the rest, as long as sources and tests are the same.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SURVIVORS, WHOLE, FETCH = "tests/unit/test_survivors.py", "tests/contract/test_whole_run.py", "hf/files/fetch.py"
ABLATE, REWIND = "experiments/ablate/run.py", "tests/property/test_rewind_laws.py"
CROSS = 'return target if target is not None and stack == "dec" else source'
RAISED = "(of_system := system_error(error)) is not None"

POOL, UNITS, GUARD, SERVED = (
    "lab/units/page.py",
    "tests/contract/test_units.py",
    "server/app.py",
    "tests/unit/test_serve.py",
)
COMPARE, COMPARED = "experiments/compare/run.py", "tests/unit/test_compare.py"
TRANSLATION, TRANSLATED = "text/pairs.py", "tests/unit/test_translations.py"
KEPT, STORED = "lab/run_folder.py", "tests/unit/test_kept_units.py"
SHARED, ATTACKERS = "hf/forward.py", "tests/property/test_accelerated_laws.py -k mask"
IMAGES, RESTARTED = "tests/contract/test_images.py", "tests/unit/test_shared_passes.py tests/contract/test_restart.py"
BOUNDS = "tests/unit/test_bounds.py"
ANNOTATED = "tests/contract/test_annotate.py -k 'finished_corpus_is_not or anything_else'"


class Mutant(NamedTuple):
    """A change of one line: the file below src/trisect, the text, what stands in its place, and the tests."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant("core/study_data.py", "trained == sorted(self.runs), \"Its", "True, \"Its", f"{BOUNDS} -k forged"),
    Mutant("core/study_data.py", "not differ, f\"Its", "True, f\"Its", f"{BOUNDS} -k forged"),
    Mutant(
        "experiments/study/ledger.py", "if other := [*other, *differences(ledger.experiment, here)]:", "if other := other:",
        "tests/contract/test_study.py",
    ),
    Mutant(FETCH, '"trust_remote_code": options.remote_code', '"trust_remote_code": True', SURVIVORS),
    Mutant(FETCH, "use_safetensors=None if options.pickle else True", "use_safetensors=None", SURVIVORS),
    Mutant(FETCH, "    check_finite(name, model)\n", "", "tests/unit/test_lies.py"),
    Mutant(FETCH, "if pickles and not options.pickle:", "if False:", "tests/unit/test_fetch.py"),
    Mutant("hf/files/fetch.py", "if Path(one).name != one", "if False", "tests/unit/test_lies.py -k leads"),
    Mutant("hf/files/fetch.py", "if not LEAST[kind] <= value <= most:", "if value < LEAST[kind]:", "tests/unit/test_lies.py -k sizes"),
    Mutant(ABLATE, "return lambda batch: means", "return lambda batch: dict.fromkeys(addresses, zeros())", f"{SURVIVORS} -k mean_is"),
    Mutant("core/trace.py", CROSS, CROSS.replace('== "dec"', 'in ("dec", "cross")'), f"{SURVIVORS} -k cross"),
    Mutant("core/files.py", "scratch.replace(path)", "path.write_bytes(scratch.read_bytes())", f"{SURVIVORS} -k renamed"),
    Mutant("core/files.py", "os.fsync(handle.fileno())", "pass", f"{SURVIVORS} -k disk"),
    Mutant("core/files.py", "if found != checksum:", "if False:", f"{SURVIVORS} -k digit"),
    Mutant("core/tables.py", "!= mark[1]:", "== b'':", f"{SURVIVORS} -k checksum"),
    Mutant("core/errors.py", RAISED, f"{RAISED} and False", "tests/unit/test_door.py -k kind"),
    Mutant("core/printable.py", "_UNSAFE.sub(_sign, text)", "text", "tests/unit/test_printable.py -k controls"),
    Mutant("lab/recipes.py", "le=MODEL[\"layers\"]", "le=10**12", "tests/unit/test_bounds.py -k upper"),
    Mutant(KEPT, "if of is not None and of != manifest[\"run\"]:", "if False:", f"{WHOLE} -k another_run_is"),
    Mutant(KEPT, "elif mark and digest_file(path) != mark:", "elif False:", f"{WHOLE} -k altered"),
    Mutant("lab/driver.py", "        folder.check_empty(f\"results", "        str(f\"results", WHOLE),
    Mutant("stats/tested.py", "(m - np.arange(m))", "m", "tests/unit/test_stats.py tests/property/test_stats_laws.py"),
    Mutant("measure/criticality.py", "alphas[outside[-1] + 1]", "alphas[outside[-1]]", REWIND),
    Mutant("measure/intervention.py", "/ self._counts[name]", "/ (1 + self._counts[name])", f"{SURVIVORS} -k mean_is"),
    Mutant("text/bitext.py", "if not any(possible for _, possible in sentences):", "if False:", "tests/unit/test_bounds.py -k gold"),
    Mutant(POOL, 'pl.col("value").mean(),', 'pl.col("value").median(),', f"{UNITS} -k students"),
    Mutant(POOL, "if all(model in of for model in models):", "if True:", f"{UNITS} -k only_what"),
    Mutant(POOL, '~pl.col("name").str.contains("@", literal=True), ', "", f"{UNITS} -k only_what"),
    Mutant("lab/units/run.py", "or _same(files, other_files)", "or False", f"{UNITS} -k not_there"),
    Mutant("lab/units/run.py", "if subject.fingerprint in names:", "if False:", f"{UNITS} -k other_files"),
    Mutant("lab/units/run.py", "several.kind == MODELS else None", "True else None", f"{UNITS} -k no_sample"),
    Mutant("claims/models.py", "if values and each:", "if False:", f"{UNITS} -k bars"),
    Mutant("claims/models.py", "return self.by_head and not self.slack > 0", "return False", f"{UNITS} -k head_by_head"),
    Mutant(COMPARE, '"value": second - first}', '"value": first - second}', COMPARED),
    Mutant(COMPARE, "moved = other.values - one.values", "moved = one.values - other.values", COMPARED),
    Mutant(COMPARE, " or not (paired or one.unit in APART)", "", COMPARED),
    Mutant(COMPARE, "paired = read[0] == read[1]", "paired = True", COMPARED),
    Mutant(COMPARE, "not _same_units(one, other) or", "", COMPARED),
    Mutant(
        TRANSLATION,
        "for name, q, k, v in _combinations(base, donor):\n        place",
        "for name, k, q, v in _combinations(base, donor):\n        place",
        TRANSLATED,
    ),
    Mutant(TRANSLATION, "or found[\"base\"] == found.get(\"donor\")", "", TRANSLATED),
    Mutant(TRANSLATION, "if sources.count(i) == 1 and targets.count(j) == 1 and", "if", TRANSLATED),
    Mutant(TRANSLATION, "tokens.count(token) == 1 and", "", TRANSLATED),
    Mutant(GUARD, "hosts[0].lower() in self.hosts", "True", f"{SERVED} -k 'nobody or link_from'"),
    Mutant(GUARD, "len(hosts) == 1", "hosts", f"{SERVED} -k two_hosts"),
    Mutant(GUARD, "for origin in origins)", "for origin in origins[:0])", f"{SERVED} -k 'nobody or link_from'"),
    Mutant(GUARD, "compare_digest(begin, f\"/{self.token}/\".encode())", "True", f"{SERVED} -k 'nobody or link_from'"),
    Mutant(GUARD, "(_from_here(headers) or self._followed(scope, headers))", "True", f"{SERVED} -k 'nobody or link_from'"),
    Mutant("server/run.py", "if not host.strip():", "if False:", f"{SERVED} -k empty"),
    Mutant("text/lines.py", "self.length + len(piece))", "len(piece))", "tests/unit/test_bounds.py -k longest"),
    Mutant("lab/driver.py", "    if not own:", "    if False:", "tests/unit/test_explorer_pack.py -k page_of_ours"),
    Mutant("lab/annotation.py", "if there.get(key) != asked[key]]", "if False]", ANNOTATED),
    Mutant("lab/annotation.py", 'RunFolder(out).check_empty("annotated corpus")', "pass", ANNOTATED),
    Mutant(KEPT, "[\"run\"] == key and not RunFolder(place).check():", "[\"run\"] == key:", f"{STORED} -k is_the_same"),
    Mutant(KEPT, "if RunFolder(place).manifest()[\"run\"] == key and", "if", f"{STORED} -k own_key"),
    Mutant(KEPT, "and begun != command:", "and False:", f"{STORED} -k another_command"),
    Mutant(SHARED, "if marked != mark_of_bits(first_tensor(whole)):", "if False:", RESTARTED),
    Mutant(SHARED, "if not _near(made[-rows:], alone):", "if False:", RESTARTED),
    Mutant("lm/adversary.py", "spread.detach() / (1 - weight.square().sum())", "spread.detach()", ATTACKERS),
    Mutant("lm/adversary.py", "labelled / labelled.sum()", "labelled / labelled.numel()", ATTACKERS),
    Mutant("lab/units/jobs.py", "iter(()) if texts.articles is None else texts.articles()", "iter(())", f"{STORED} -k texts_come"),
    Mutant(
        "hf/verify/agreement.py", "if is_traceable_wrapper_subclass(tensor):", "if False:", "tests/contract/test_quantised.py -k no_rows",
    ),
    Mutant("hf/processor.py", "simplefilter(\"error\", Image.D", "simplefilter(\"ignore\", Image.D", f"{IMAGES} -k too_large"),
    Mutant("experiments/study/run.py", "if self.task.kind == \"train\" else ()", "", f"{SURVIVORS} -k evaluation_that"),
    Mutant("core/files.py", "if len(found) < len(pairs):", "if False:", "tests/unit/test_bounds.py -k strictly"),
)  # fmt: skip


def tried(mutant: Mutant, place: Path) -> str:
    """What became of a mutant: killed, survived, or not there."""
    path = place / "src" / "trisect" / mutant.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(mutant.old) != 1:
        return f"not there ({whole.count(mutant.old)} times)"
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(mutant.tests)]
        environment = {**os.environ, "PYTHONPATH": f"{place / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=600, check=False)
    finally:
        path.write_text(whole, encoding="utf-8")
    return (
        "survived" if done.returncode == 0 else "killed" if done.returncode == 1 else f"not tried ({done.returncode})"
    )


def sources() -> str:
    """A mark of all sources and tests: what became of a mutant is of these."""
    found = hashlib.sha256()
    for path in sorted(path for part in ("src", "tests") for path in (ROOT / part).rglob("*.py")):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def main() -> None:
    """Try each mutant, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of files, or of what a line becomes; none: all")
    parser.add_argument("--kept", type=Path, help="a JSON file of what became of each, for a call that goes on")
    asked = parser.parse_args()
    wanted = [m for m in MUTANTS if not asked.names or any(word in f"{m.file} {m.new}" for word in asked.names)]
    there = json.loads(asked.kept.read_text()) if asked.kept and asked.kept.exists() else {}
    mark = sources()
    known: dict[str, str] = there["became"] if there.get("sources") == mark else {}
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for mutant in wanted:
            began, key = time.monotonic(), json.dumps(mutant)
            found = known[key] = known.get(key) or tried(mutant, place)
            wrong += found != "killed"
            words = f"{mutant.old.strip()[:60]!r} -> {mutant.new.strip()[:50]!r}"
            print(f"{found:<10} {time.monotonic() - began:5.0f} s  {mutant.file}: {words}", flush=True)
            if asked.kept:
                asked.kept.write_text(json.dumps({"sources": mark, "became": known}, indent=1))
    print(f"{len(wanted) - wrong} of {len(wanted)} killed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
