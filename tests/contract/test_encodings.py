"""The command line under other encodings, and with streams that are closed or full."""

import json
import os
import subprocess
import sys

from click.testing import CliRunner

from trisect.cli import main

TRISECT = [sys.executable, "-m", "trisect.cli"]


def call(*words, shell="", **environment):
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LANG")}
    command = [*TRISECT, *words]
    if shell:
        command = ["sh", "-c", f'"$0" "$@" {shell}', *command]
    return subprocess.run(command, env=own | environment, capture_output=True, timeout=120, check=False)


def test_claims_print_in_any_encoding_and_json_is_json():
    for encoding in ("latin-1", "utf-16"):
        done = call("claims", PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr
        assert "margin" in done.stdout.decode(encoding)
    plain = CliRunner().invoke(main, ["claims", "--json"])
    other = call("claims", "--json", PYTHONIOENCODING="latin-1")
    assert json.loads(plain.stdout) == json.loads(other.stdout.decode("latin-1"))


def test_a_folder_that_the_encoding_of_names_lacks_is_refused_with_what_to_do(tmp_path):
    place = tmp_path / "caf\xe9"
    ascii_only = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = call("corpus", "show", str(place), **ascii_only)
    assert done.returncode == 2
    assert b"PYTHONUTF8=1" in done.stderr
    assert b"Traceback" not in done.stderr
    done = call("corpus", "show", "embedded", **ascii_only)
    assert (done.returncode, b"30,002 tokens" in done.stdout) == (0, True)


def test_closed_streams_end_nothing_and_are_written_into_no_file_also_in_a_folder_with_such_a_name(tmp_path):
    place = tmp_path / "caf\xe9"
    done = call("theory", "average", "--out", str(place), shell="<&- >&- 2>&-", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert (place / "theory.html").read_text(encoding="utf-8").startswith("<!")
    assert (place / ".lock").read_bytes() == b""


def test_a_closed_pipe_and_a_full_device_leave_no_traceback():
    for words, shell in (
        *((words, "> /dev/full") for words in (("claims",), ("--help",), ("--version",))),
        *((words, "| head -c 10") for words in (("claims",), ("--help",))),
    ):
        done = call(*words, shell=shell)
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr
        assert (b"disk that standard output is on is full" in done.stderr) == ("full" in shell)
