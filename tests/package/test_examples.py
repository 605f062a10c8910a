"""Examples in docstrings do what they show."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
from logged_runs import logged_lake

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("capture", "flows", "lake", "quality", "retention")
FOLDERS = {ROOT / "src/ranklake": "ranklake", **{ROOT / room: f"ranklake.{room}" for room in ROOMS}}
MODULES = sorted(
    ".".join([name, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
    for folder, name in FOLDERS.items()
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and path.relative_to(folder).parts[0] not in ROOMS
)


@pytest.fixture(scope="module")
def runs_lake(tmp_path_factory):
    """Give a lake of three recorded runs, of which examples ask."""
    return logged_lake(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("module", MODULES)
def test_an_example_does_what_it_shows(module, tmp_path, monkeypatch, request):
    """Each ``>>>`` line of a module gives what stands below it."""
    monkeypatch.chdir(tmp_path)
    if module == "ranklake.client":
        monkeypatch.setenv("RANKLAKE_LAKE", request.getfixturevalue("runs_lake").uri)
    assert doctest.testmod(import_module(module)).failed == 0


def test_the_page_of_python_runs_from_top_to_bottom(runs_lake, tmp_path, monkeypatch, capsys):
    """Each block of the page does what it says, with the names of the blocks above."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKLAKE_LAKE", runs_lake.uri)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert capsys.readouterr().out.splitlines() == ["first finished 0.1 0.5", "2"]
    assert (names["best"].id, names["rows"].height, list(names["table"]["run"])) == ("first", 2, ["first"])
