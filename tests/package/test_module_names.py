"""Modules that texts name are there: no import in a string, and no sentence, leads to one that was folded or moved."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("capture", "lake", "quality", "retention", "flows")
NAME = re.compile(
    r"(?<![\w.\"'-])ranklake((?:\.[a-z_][a-z_0-9]*)+)|from ranklake((?:\.[a-z_][a-z_0-9]*)+) import (\w+)"
)
BUILT = {"ranklake.capture.common._native"}
SOURCES = [path for room in (*TOP, "src/ranklake") for path in sorted((ROOT / room).rglob("*.py"))]


def source_of(name):
    """Return the text of the module that a dotted name begins with, and what is left of the name."""
    parts = name.split(".")[1:]
    folder = ROOT if parts[0] in TOP else ROOT / "src/ranklake"
    for count in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file.read_text(encoding="utf-8"), parts[count:]
    return None, parts


def lost_names(text):
    """Yield the names in a text that lead to no module, or to nothing in it."""
    for match in NAME.finditer(text):
        module, item = match[1] or match[2], match[3]
        if module.count(".") < 2 or f"ranklake{module}" in BUILT:  # a file of that name, such as ranklake.toml
            continue
        names = [f"ranklake{module}", *([f"ranklake{module}.{item}"] if item else [])]
        found, rest = source_of(names[-1])
        if found is None or (rest and not rest[0].startswith("__") and rest[0] not in found):
            yield names[-1]


def test_names_of_modules_lead_somewhere():
    """In code, strings and docstrings alike; what follows a module's name stands in the module."""
    lost = {str(path.relative_to(ROOT)): [*lost_names(path.read_text(encoding="utf-8"))] for path in SOURCES}
    assert {path: names for path, names in lost.items() if names} == {}


def test_crash_tests_kill_in_modules_that_exist(monkeypatch):
    """The lists of files in which a process is killed name no module that was folded: they fail at import."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/crash"))
    children = [importlib.import_module(name) for name in ("capture_child", "agent_child")]
    assert all(children[0].PHASES.values())
    assert all(children[1].FILES.values())
