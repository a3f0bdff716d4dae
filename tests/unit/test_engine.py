import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from trisect.core.errors import CorpusError, StudyError
from trisect.engine import processes as engine

ECHO = """
import json, sys
from pathlib import Path
for line in sys.stdin:
    task = json.loads(line)
    if task["do"] == "die":
        print("out of memory, say", file=sys.stderr)
        sys.exit(3)
    if task["do"] == "refuse":
        print(json.dumps({"error": ["CorpusError", "given", "known", "todo"]}), flush=True)
        continue
    if task["do"] == "crash":
        print(json.dumps({"crash": "Traceback: a bug"}), flush=True)
        continue
    print(json.dumps({"share": 0.5, "words": "half", "done": False}), flush=True)
    Path(task["mark"]).write_text("x")
    print(json.dumps({"share": 1.0, "words": "", "done": True}), flush=True)
"""


@dataclass(frozen=True)
class Piece:
    do: str
    mark: Path
    needs: Path | None = None

    def data(self):
        return {"do": self.do, "mark": str(self.mark)}

    def ready(self):
        return self.needs is None or self.needs.exists()


def test_every_task_runs_once_and_after_what_it_needs(tmp_path):
    told = []
    first, later = Piece("x", tmp_path / "a"), [Piece("x", tmp_path / f"b{i}", tmp_path / "a") for i in range(3)]
    engine.run_tasks([*later, first], ("-c", ECHO), 2, told.append)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b0", "b1", "b2"]
    ended = [e.task for e in told if e.done]
    assert ended[0] == 3
    assert sorted(ended) == [0, 1, 2, 3]
    assert {e.share for e in told if not e.done} == {0.5}
    assert {e.worker for e in told} <= {0, 1}


def test_a_workers_own_error_comes_back_whole(tmp_path):
    with pytest.raises(CorpusError) as caught:
        engine.run_tasks([Piece("refuse", tmp_path / "a")], ("-c", ECHO), 1, lambda _: None)
    assert (caught.value.given, caught.value.known, caught.value.todo) == ("given", "known", "todo")


def test_a_bug_in_a_worker_is_shown_as_one(tmp_path):
    with pytest.raises(RuntimeError, match="Traceback: a bug"):
        engine.run_tasks([Piece("crash", tmp_path / "a")], ("-c", ECHO), 1, lambda _: None)


def test_a_worker_that_dies_is_said_with_its_last_words(tmp_path):
    with pytest.raises(StudyError, match=r"ended unexpectedly \(exit status 3\)") as caught:
        engine.run_tasks([Piece("die", tmp_path / "a"), Piece("x", tmp_path / "b")], ("-c", ECHO), 1, lambda _: None)
    assert "out of memory, say" in caught.value.known
    assert "--workers 1" in caught.value.todo


def test_a_stray_line_between_the_events_ends_the_study_and_does_not_hang_it(tmp_path):
    stray = ECHO.replace("for line in sys.stdin:", "print('hello')\nfor line in sys.stdin:")
    with pytest.raises(StudyError, match="ended unexpectedly"):
        engine.run_tasks([Piece("x", tmp_path / "a")], ("-c", stray), 1, lambda _: None)


def test_serve_answers_line_by_line_and_stops_at_an_error():
    def do(task, emit):
        emit(0.25, "a quarter")
        if task == "bad":
            raise CorpusError("g", "k", "t")
        if task == "bug":
            raise ValueError("oops")

    out = io.BytesIO()
    engine.serve(do, [b'"good"\n', b'"bad"\n', b'"good"\n'], out)
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    assert said == [
        {"share": 0.25, "words": "a quarter", "done": False},
        {"share": 1.0, "words": "", "done": True},
        {"share": 0.25, "words": "a quarter", "done": False},
        {"error": ["CorpusError", "g", "k", "t"]},
    ]
    out = io.BytesIO()
    engine.serve(do, [b'"bug"\n'], out)
    assert "ValueError: oops" in json.loads(out.getvalue().splitlines()[-1])["crash"]


def test_a_worker_ends_when_its_input_does():
    import subprocess

    code = "from trisect.experiments.study.worker import lines_in\nlines = lines_in()\nprint(next(lines), flush=True)\nnext(lines)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == b"b'one\\n'"
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
