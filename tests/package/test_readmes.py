"""READMEs of rooms name what is there: a fold or a move of a module leaves no name behind."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
PARTS = [file.split("/") for file in FILES]
ENDINGS = {"/".join(parts[n:]) for parts in PARTS for n in range(len(parts))}
ROOMS = ["capture", "lake", "lake/rollups", "quality", "retention", "flows", "src/ranklake/insight"]
FILE = re.compile(r"`([A-Za-z_][\w./-]*\.(?:py|sql|csv))`")
FOLDER = re.compile(r"- \*\*`(\w+)/`\*\*(.*?)(?=\n- \*\*|\n\n|\Z)", re.DOTALL)


@pytest.mark.parametrize("room", ROOMS)
def test_files_that_a_readme_names_are_there(room):
    """By the end of their paths: a README says `calls.py` of the module that it is about."""
    named = FILE.findall((ROOT / room / "README.md").read_text(encoding="utf-8"))
    assert [name for name in named if not name.startswith("ranklake.") and name not in ENDINGS] == []


def test_modules_that_the_readme_of_capture_lists_are_there():
    """Folder by folder; words in backquotes there are modules."""
    listed = FOLDER.findall((ROOT / "capture" / "README.md").read_text(encoding="utf-8"))
    gone = [
        f"{folder}/{name}"
        for folder, text in listed
        for name in re.findall(r"`([a-z_0-9]+)`", text)
        if f"capture/{folder}/{name}.py" not in FILES and name not in ("runs", "ranks")  # tables
    ]
    assert len(listed) >= 15
    assert gone == []
