"""The rooms' arrows, read from the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("capture", "flows", "lake", "quality", "retention")
SHARED = {"ranklake.redaction", "ranklake.segments"}
MAY_IMPORT = {
    "capture": {"ranklake.capture", "ranklake.lake.contracts", *SHARED},
    "lake": {"ranklake.lake", *SHARED},
    "quality": {"ranklake.quality", "ranklake.lake", *SHARED},
    "retention": {"ranklake.retention", "ranklake.lake", *SHARED},
    "flows": {*SHARED, *(f"ranklake.{room}" for room in ROOMS)},
}
EVERYBODY = {"ranklake.errors"}
CAPTURE = {  # what each folder of capture imports when it is imported; a module of its own is a folder here
    "common": set(),
    "build": {"common"},
    "histogram": {"common"},
    "spool": {"common"},
    "steps": {"common"},
    "lanes": {"common", "spool"},
    "sending": {"spool"},
    "metrics": {"common", "histogram", "lanes", "steps"},
    "provenance": {"common", "lanes", "spool"},
    "lifecycle": {"common", "metrics", "provenance", "steps"},
    "sealing": {"common", "lanes", "metrics", "spool"},
    "assets": {"common", "lifecycle", "metrics", "spool", "steps"},
    "logs": {"common", "lifecycle", "spool", "steps"},
    "recover": {"common", "logs", "sealing", "sending", "spool"},
    "recording": {"common", "lanes", "metrics", "provenance", "recover", "sealing", "sending", "spool"},
    "training": {
        *("assets", "common", "lifecycle", "logs", "metrics", "provenance", "recording", "sending", "spool", "steps")
    },
    "node": {"common", "lanes", "provenance", "recording", "sealing", "sending", "spool", "training"},
    "serving": {"common", "steps", "training"},
    "frameworks": {"assets", "common", "steps", "training"},
    "samplers": {"common", "metrics", "node", "provenance", "spool", "training"},
    "importers": {"common", "provenance", "samplers", "sealing", "sending", "spool"},
}


def imports(path):
    """Return every ranklake module that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module in {"ranklake", "ranklake.lake"} else {node.module}
    return {name for name in found if name.split(".")[0] == "ranklake"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_arrows_allow(room):
    """No file of a room imports a room that it has no arrow to."""
    for path in (ROOT / room).rglob("*.py"):
        for name in imports(path) - EVERYBODY - {"ranklake", "ranklake.__version__"}:
            allowed = any(name == root or name.startswith(f"{root}.") for root in MAY_IMPORT[room])
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_folders_of_capture_import_only_those_before_them():
    """No folder of capture imports one that stands behind it in the table, and none that its line leaves out."""
    order = list(CAPTURE)
    for folder, others in CAPTURE.items():
        assert all(order.index(other) < order.index(folder) for other in others), folder
    root = ROOT / "capture"
    modules = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(["ranklake.capture", *parts]).removesuffix(".__init__")] = path
    found = {folder: set() for folder in CAPTURE}
    for name, path in modules.items():
        folder = (name.split(".")[2:] or [""])[0]
        if not folder:
            continue  # the room's front door may open on any folder
        imported = module_level_imports(path, modules) - {"ranklake.capture"}
        assert folder in CAPTURE, f"{path.relative_to(ROOT)} is in no folder of the table"
        found[folder] |= {other.split(".")[2] for other in imported} - {folder}
    assert found == CAPTURE


def test_the_package_root_is_imported_by_nobody_but_for_errors():
    """Rooms know nothing of the command line and the configuration."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            assert not {
                name
                for name in imports(path)
                if name.startswith(("ranklake.cli", "ranklake.config", "ranklake.commands"))
            }


def test_no_import_cycles():
    """Modules import one another without cycles, counting imports at module level only."""
    graph = {}
    for folder, prefix in [(ROOT / room, f"ranklake.{room}") for room in ROOMS] + [(ROOT / "src/ranklake", "ranklake")]:
        for path in folder.rglob("*.py"):
            relative = path.relative_to(folder).with_suffix("")
            if folder.name == "ranklake" and relative.parts[0] in ROOMS:
                continue
            name = ".".join([prefix, *relative.parts]).removesuffix(".__init__")
            graph[name] = path
    edges = {name: module_level_imports(path, graph) - {name} for name, path in graph.items()}
    done, path = set(), []

    def visit(name):
        if name in path:
            pytest.fail(" -> ".join([*path[path.index(name) :], name]))
        if name in done:
            return
        path.append(name)
        for other in sorted(edges[name]):
            visit(other)
        path.pop()
        done.add(name)

    for name in sorted(edges):
        visit(name)


def module_level_imports(path, graph):
    """Return the modules of `graph` that a file imports when it is imported."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in graph else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(graph)


@pytest.mark.parametrize("room", ROOMS)
def test_a_bare_room_import_fails(room):
    """`import capture` from the repository root fails: it would make a second copy of every class."""
    failed = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert f"import this room as ranklake.{room}" in failed.stderr
