"""The notebooks of docs/notebooks, run cell by cell in this process."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.ipynb"))}


def run_notebook(name):
    """Run every cell of a notebook on the lake that the environment names; return its variables."""
    found = {}
    for cell in NOTEBOOKS[name]["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), found)
    return found
