"""Hostile inputs generated from grammars of what each command reads: none may end with a stack, an abort, or not at all.

Each input is valid text of its kind with up to three things done to it (grammars.py), given to a command in a process that
counts connections, memory and files. `python bench/reliability/hostile.py --inputs 1000 --seed 0`; status 1 where anything went wrong.
In parts, each of minutes: `--place FOLDER --first 0 --inputs 100`, then `--first 100 --inputs 200`, and so on; FOLDER keeps the models.
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

SECONDS, WAIT, MEGABYTES = (
    30,
    240,
    3_000,
)  # of a processor, of the clock, and the most memory that its process may have held
TINY_MODEL = Path("model")
ONLY: set[str] = set()  # kinds of input; empty: all


class _LateError(BaseException):
    pass


def _late(*_: object) -> None:
    raise _LateError


def seen(place: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with its size and when it was written to."""
    found = {}
    for path in place.rglob("*"):
        if path.is_file():
            stat = path.stat()
            found[str(path.relative_to(place))] = (stat.st_size, stat.st_mtime_ns)
    return found


@click.command()
@click.argument("path", type=Path)
def _state(path: Path) -> None:
    """Read a request as the server does."""
    from trisect.core.errors import TrisectError
    from trisect.server.state import read_request

    try:
        read_request(path.read_bytes())
    except TrisectError as error:
        click.echo(f"trisect: {error}", err=True)
        raise SystemExit(2) from None


def _not_json(code: int, said: str) -> str:
    """What is wrong with a reply as JSON; empty where nothing is."""
    if code:
        return f"refused, with a reply: {said[:200]!r}" if said.strip() else ""
    try:
        json.loads(said, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
    except ValueError as error:
        return f"no JSON ({error}): {said[:200]!r}"
    return ""


def one(number: int, seed: int, work: Path, main: Any, runner: Any) -> dict[str, Any]:
    """Make input `number`, give it to its command, and say what came of it."""
    from grammars_more import ALL, STATE

    kinds = [kind for kind in ALL if not ONLY or kind in ONLY]
    kind = kinds[number % len(kinds)]
    place = work / f"input-{number}"
    shutil.rmtree(place, ignore_errors=True)  # of a part that was interrupted
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    (place / "out").mkdir() if number % 7 == 0 else None
    words = ALL[kind](random.Random(f"{seed}/{number}"), place, work / TINY_MODEL)
    before, began, what = seen(work), time.monotonic(), ""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # what it uses itself, however busy the machine is
    signal.alarm(WAIT)
    try:
        result = runner.invoke(_state if words[0] == STATE else main, words[words[0] == STATE :])
        code, said = result.exit_code, result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            what = f"traceback: {type(result.exception).__name__}: {str(result.exception)[:200]}"
    except _LateError:
        code, said, what = -1, "", f"did not end within {SECONDS} s of a processor, or {WAIT} s of the clock"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    after = seen(work)
    mine = f"input-{number}/out"
    if outside := [n for n in after if before.get(n) != after[n] and not n.startswith(mine)]:
        what = what or f"wrote outside --out: {outside[:3]}"
    ours = f"{mine}/.shards/"  # what an annotation had labelled so far, which goes when it ends
    if gone := [name for name in before if name not in after and not name.startswith(ours)]:
        what = what or f"deleted {gone[:3]}"
    lines = said.strip().splitlines()
    told = code == 0 or "Usage:" in said or (len(lines) >= 3 and "trisect: " in said and lines[-1].startswith("  "))
    if not told:
        what = what or f"a message that does not say what to do: {said[:200]!r}"
    if "--json" in words and not what:
        what = _not_json(code, result.stdout)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024
    if peak > MEGABYTES:
        what = what or f"held {peak} MB"
    shutil.rmtree(place, ignore_errors=True)
    found = {"kind": kind, "code": code, "what": what, "words": words, "said": said[-300:]}
    return found | {"seconds": time.monotonic() - began, "peak": peak}


def child(first: int, last: int, seed: int, work: Path) -> None:
    """The inputs of one process; a line of JSON for each."""
    calls: list[Any] = []

    def refuse(_self: Any, address: Any) -> None:
        calls.append(address)
        raise OSError(f"no network here: {address}")

    socket.socket.connect = refuse  # pyright: ignore[reportAttributeAccessIssue]
    signal.signal(signal.SIGALRM, _late)
    signal.signal(signal.SIGPROF, _late)
    from click.testing import CliRunner

    import trisect.hf.load
    import trisect.report.sheet
    import trisect.text.annotate  # noqa: F401  (an alarm in the middle of an import would leave half of it)
    from trisect.cli import main

    os.chdir(work)
    for number in range(first, last):
        print("began", number, flush=True)
        found = one(number, seed, work, main, CliRunner())
        found["connections"] = len(calls)
        calls.clear()
        print("ended", json.dumps(found, default=str), flush=True)


def main() -> None:
    """Run all inputs, in processes of 100, and print counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first input; --inputs is the last one's number")
    parser.add_argument("--place", type=Path, default=None, help="a folder that keeps the models that commands read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of input, with commas")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file of the counts")
    parser.add_argument("--child", nargs=3, default=None)
    asked = parser.parse_args()
    ONLY.update(filter(None, asked.only.split(",")))
    if asked.child:
        child(int(asked.child[0]), int(asked.child[1]), asked.seed, Path(asked.child[2]))
        return
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = str((asked.place or Path(scratch)).absolute())
        for script in ("grammars.py", "grammars_newest.py"):  # what they read is made
            made = Path(place) / f"{script}.made"
            if not made.exists():
                subprocess.run([sys.executable, Path(__file__).with_name(script), Path(place) / TINY_MODEL], check=True)
                made.write_text("")
        first = asked.first
        while first < asked.inputs:
            last = min(first + 100, asked.inputs)
            command = [
                sys.executable,
                __file__,
                "--seed",
                str(asked.seed),
                "--only",
                asked.only,
                "--child",
                str(first),
                str(last),
                place,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = done.stdout.splitlines()
            results += [json.loads(line[6:]) for line in lines if line.startswith("ended ")]
            reached = max((int(line[6:]) for line in lines if line.startswith("began ")), default=first)
            if done.returncode:
                words = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
                results.append(
                    {"kind": "?", "code": done.returncode, "what": words, "words": reached, "connections": 0}
                )
                last = reached + 1
            first = last
            print(f"{first} of {asked.inputs}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(results, indent=1, default=str))
    wrong = [r for r in results if r["what"] or r["connections"]]
    for r in wrong:
        print(r["kind"], r["words"], r["what"], f"{r['connections']} connections")
    codes = collections.Counter((r["kind"], "accepted" if r["code"] == 0 else "refused") for r in results)
    for kind in dict.fromkeys(r["kind"] for r in results):
        print(f"{kind:<22} {codes[kind, 'refused']:>4} refused  {codes[kind, 'accepted']:>4} accepted")
    slowest = max(results, key=lambda r: r.get("seconds", 0))
    print(
        f"slowest {slowest['seconds']:.1f} s ({slowest['kind']}), most memory {max(r.get('peak', 0) for r in results)} MB"
    )
    accepted = sum(number for (_, what), number in codes.items() if what == "accepted")
    print(
        f"{len(results)} inputs, {accepted} accepted ({100 * accepted / len(results):.0f} %), {len(wrong)} went wrong"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
