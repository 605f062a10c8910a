"""The rooms' arrows, read from the imports themselves."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("capture", "flows", "lake", "quality", "retention")
SHARED = {"ranklake.detection", "ranklake.masking", "ranklake.redaction", "ranklake.segments"}
MAY_IMPORT = {
    "capture": {"ranklake.capture", "ranklake.lake.contracts", *SHARED},
    "lake": {"ranklake.lake", *SHARED},
    "quality": {
        "ranklake.insight",
        "ranklake.quality",
        "ranklake.lake",
        "ranklake.retention.proposals",
        *SHARED,
    },  # held partitions
    "retention": {
        *("ranklake.allowed", "ranklake.artifacts", "ranklake.insight", "ranklake.lake", "ranklake.retention"),
        *SHARED,
    },
    "flows": {
        "ranklake.allowed",
        "ranklake.artifacts",
        "ranklake.rehash",
        "ranklake.context",
        "ranklake.config",
        "ranklake.doctor",
        "ranklake.pipeline",
        *SHARED,
        *(f"ranklake.{room}" for room in ROOMS),
    },
}
EVERYBODY = {
    *("ranklake.cores", "ranklake.errors", "ranklake.file_formats", "ranklake.operator_files", "ranklake.printable")
}
CAPTURE = {  # what each folder of capture imports, for types or at need, too; a module of its own is a folder here
    "common": set(),
    "build": set(),
    "histogram": {"common"},
    "spool": {"common"},
    "lanes": {"common", "spool"},
    "steps": {"common", "lanes"},
    "metrics": {"common", "histogram", "lanes", "steps"},
    "provenance": {"common", "lanes", "spool"},
    "lifecycle": {"common", "lanes", "provenance", "steps"},
    "sealing": {"common", "lanes", "spool"},
    "live": {"common", "sealing", "spool"},
    "assets": {"common", "lanes", "lifecycle", "spool", "steps"},
    "logs": {"common", "lanes", "lifecycle", "spool", "steps"},
    "samplers": {"common", "lanes", "lifecycle", "metrics", "provenance", "spool", "steps"},
    "recording": {"common", "lanes", "logs", "metrics", "provenance", "sealing", "spool"},
    "recover": {"common", "recording", "sealing", "spool"},
    "annotate": {"recording", "sealing", "spool"},
    "training": {
        *("assets", "common", "lanes", "lifecycle", "logs", "metrics", "provenance", "recording", "samplers"),
        *("spool", "steps"),
    },
    "node": {"common", "lanes", "provenance", "recording", "samplers", "sealing", "spool", "training"},
    "frameworks": {"assets", "common", "provenance", "steps", "training"},
    "importers": {
        *("assets", "common", "histogram", "logs", "provenance", "recording", "samplers", "sealing", "spool"),
    },
}
LATE = {  # what functions of capture import from their own room when they are called, and what is heavy in it
    "capture/training/start.py": {  # pyarrow, fsspec: not before something is recorded
        "recording.threads",
        "samplers.inprocess",
        "samplers.sample",
    },
    "capture/metrics/meter.py": {"metrics.distribution"},  # numpy
    "capture/assets/hashing.py": {"assets.known_files"},  # sqlite
    "capture/node/agent.py": {"recording.recovery"},  # numpy, pyarrow: most looks seal nothing
    "capture/node/worker.py": {"node.agent", "sealing.keys"},  # the agent's own process imports this module, too
}
LAKE = {  # what each folder of the lake imports, for types and in functions, too; likewise
    "contracts": set(),
    "store": {"contracts"},
    "tables": {"contracts", "store"},
    "plans": {"contracts", "store", "tables"},
    "audit": {"contracts", "plans", "store", "tables"},
    "query": {"contracts", "store", "tables"},
    "migrations": {"audit", "contracts", "plans", "query", "store", "tables"},
    "rollups": {"audit", "contracts", "migrations", "plans", "query", "store", "tables"},
    "pseudonyms": {"rollups"},
    "ingest": {"audit", "contracts", "migrations", "plans", "query", "rollups", "store", "tables"},
}
IMPORTS_BY_NAME = {
    "lake/store/governance.py",  # what implements governance, in a room that stands on the lake
    "lake/__init__.py",  # what users may call, when they first do
    "lake/contracts/__init__.py",  # its own modules, when they are first asked for
    "lake/store/store.py",  # a library of one provider
    "lake/plans/dask_workers.py",  # what starts a cluster, of the same folder
    "lake/plans/kinds.py",  # what carries out and verifies a kind of plan: in folders that stand on this one
    "lake/contracts/checks/registry.py",  # check kinds: a module in its folder is one by being there
}
"""Modules of the lake that import others by a name in a text, which no arrow of `LAKE` shows."""


@cache
def parsed(path):
    """Return a file's tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """Return every ranklake module that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module in {"ranklake", "ranklake.lake"} else {node.module}
    return frozenset(name for name in found if name.split(".")[0] == "ranklake")


def test_insight_imports_the_lake_alone():
    """What people look at is made of tables: insight imports the lake, and no governance."""
    roots = {"ranklake.insight", "ranklake.lake", *SHARED}
    for path in (ROOT / "src/ranklake/insight").rglob("*.py"):
        for name in imports(path) - EVERYBODY:
            assert any(name == root or name.startswith(f"{root}.") for root in roots), f"{path.name} imports {name}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_arrows_allow(room):
    """No file of a room imports a room that it has no arrow to."""
    for path in (ROOT / room).rglob("*.py"):
        front = {"ranklake.client"} if path == ROOT / "lake/__init__.py" else set()  # what users may call
        for name in imports(path) - EVERYBODY - front - {"ranklake", "ranklake.__version__"}:
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
        imported = all_imports(path, modules) - {"ranklake.capture"}
        assert folder in CAPTURE, f"{path.relative_to(ROOT)} is in no folder of the table"
        found[folder] |= {other.split(".")[2] for other in imported} - {folder}
    assert found == CAPTURE


def test_the_folders_of_the_lake_import_only_those_before_them():
    """No folder of the lake imports one that stands behind it, or that its line leaves out, wherever the import stands.

    Imports for types and those in functions count. The room's front door may open on any folder.
    """
    order = list(LAKE)
    for folder, others in LAKE.items():
        assert all(order.index(other) < order.index(folder) for other in others), folder
    root = ROOT / "lake"
    found = {folder: set() for folder in LAKE}
    for path in root.rglob("*.py"):
        folder = path.relative_to(root).with_suffix("").parts[0]
        if folder == "__init__":
            continue
        assert folder in LAKE, f"{path.relative_to(ROOT)} is in no folder of the table"
        of_lake = (name.split(".")[2:3] for name in imports(path) if name.startswith("ranklake.lake."))
        found[folder] |= {other for (other,) in of_lake} - {folder}
    assert found == LAKE


def test_the_lake_imports_by_name_only_where_it_is_written_down():
    """What is imported by a name in a text is on no list of arrows, so it is the exception that is written down."""
    means = {"import_module", "resolve_name", "__import__"}
    found = set()
    for path in (ROOT / "lake").rglob("*.py"):
        nodes = list(ast.walk(parsed(path)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        if means & (names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == IMPORTS_BY_NAME


def test_capture_imports_late_only_what_is_heavy():
    """What functions of capture import from their own room is heavy, and written down."""
    found = {}
    for path in (ROOT / "capture").rglob("*.py"):
        for function in ast.walk(parsed(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom) and node.module.startswith("ranklake.capture"):
                        short = node.module.removeprefix("ranklake.capture.")
                        is_folder = (ROOT / "capture" / short).is_dir()
                        late = {f"{short}.{alias.name}" for alias in node.names} if is_folder else {short}
                        found.setdefault(path.relative_to(ROOT).as_posix(), set()).update(late)
    assert found == LATE


def test_the_package_root_is_imported_by_nobody_but_for_errors():
    """Rooms know nothing of the command line; the configuration is read by flows alone, which run by themselves."""
    for room in ROOMS:
        unknown = ("ranklake.cli.", "ranklake.commands.")
        unknown += () if room == "flows" else ("ranklake.config.", "ranklake.context.")
        for path in (ROOT / room).rglob("*.py"):
            assert not {name for name in imports(path) if name.startswith(unknown)}


def test_no_import_cycles():
    """Modules import one another without cycles, counting imports for types and those within functions, too."""
    graph = {}
    for folder, prefix in [(ROOT / room, f"ranklake.{room}") for room in ROOMS] + [(ROOT / "src/ranklake", "ranklake")]:
        for path in folder.rglob("*.py"):
            relative = path.relative_to(folder).with_suffix("")
            if folder.name == "ranklake" and relative.parts[0] in ROOMS:
                continue
            name = ".".join([prefix, *relative.parts]).removesuffix(".__init__")
            graph[name] = path
    edges = {name: all_imports(path, graph) - {name} for name, path in graph.items()}
    for room in ROOMS:  # a room's front door may open on any of its modules, and they need not know that it does
        edges[f"ranklake.{room}"] = set()
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


def all_imports(path, graph):
    """Return the modules of `graph` that a file imports anywhere in it: for types and within functions, too."""
    found = set()
    for node in ast.walk(parsed(path)):
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
