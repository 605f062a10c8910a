"""Examples in docstrings do what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("capture", "flows", "lake", "quality", "retention")
FOLDERS = {ROOT / "src/ranklake": "ranklake", **{ROOT / room: f"ranklake.{room}" for room in ROOMS}}
MODULES = sorted(
    ".".join([name, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
    for folder, name in FOLDERS.items()
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and path.relative_to(folder).parts[0] not in ROOMS
)


@pytest.mark.parametrize("module", MODULES)
def test_an_example_does_what_it_shows(module, tmp_path, monkeypatch):
    """Each ``>>>`` line of a module gives what stands below it."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(import_module(module)).failed == 0
