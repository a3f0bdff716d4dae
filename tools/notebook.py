"""Run docs/example.ipynb from top to bottom in an empty folder and keep what its cells show."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).parents[1] / "docs" / "example.ipynb"


def main() -> None:
    """Execute the cells, strip what differs from one time to the next, and write the page whole."""
    book = nbformat.read(PAGE, as_version=4)
    with tempfile.TemporaryDirectory() as place:
        NotebookClient(book, timeout=300, resources={"metadata": {"path": place}}).execute()
    for number, cell in enumerate(book.cells, 1):
        cell.id, cell.metadata = f"cell-{number:02d}", {}
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                sys.exit(f"cell {number} says on standard error: {output.text}")
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    text = json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    for machine in (place, str(PAGE.parents[1]), os.path.expanduser("~"), sys.prefix):
        if machine.strip("/") and f"{machine}/" in text:
            sys.exit(f"the page would show a path of this machine: {machine}")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
