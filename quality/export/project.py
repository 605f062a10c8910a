"""Write suites and results as a project that Great Expectations opens, in one step."""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.scratch import scratch
from ranklake.lake.tables.tables import latest
from ranklake.printable import printable
from ranklake.quality.export.facts import table_facts
from ranklake.quality.export.pages import make_local
from ranklake.quality.suite import compile_suite
from ranklake.quality.suites.asking import own_suites
from ranklake.quality.tables import chosen

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

MARK: Final = "ranklake-export.json"
"""The file that says that a folder is an export, and may be replaced."""
_SITE: Final = Path("gx/uncommitted/data_docs/local_site")
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TEXTS: Final = (".json", ".yml", ".html", ".ge_store_backend_id")
_LIMIT_S: Final = 1800


class ExportError(RanklakeError):
    """A project cannot be written. ``folder`` is where it was to stand; what stood there is unchanged."""

    def __init__(self, message: str, folder: Path, hint: str) -> None:
        super().__init__(message, where=str(folder), hint=hint)
        self.folder = folder


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: folder, page to open, and numbers of suites, expectations, checks left out, and results."""

    folder: str
    index: str
    suites: int
    expectations: int
    unexpressed: int
    results: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def export_project(lake: "Lake", out: Path, tables: Sequence[str] | None = None) -> Exported:
    """Write the suites of all tables that the lake has, or of those named, and the results of their last checks.

    Built beside its place and then put there: a crash leaves what was there, with a folder ``ranklake-export-…`` beside
    that goes with the next export to that place.

    Raises
    ------
    ExportError
        The folder holds something else, or Great Expectations could not build the project.
    ranklake.lake.contracts.errors.UnknownTableError, ranklake.quality.tables.NotCheckedError
        A name in `tables` is no table, or a system table.
    """
    out = out.absolute()
    _may_be_replaced(out)
    facts = _facts(lake, tables)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch("export", out.parent) as folder:
        building = folder / out.name
        building.mkdir()
        refused = _build(building, facts, out)
        make_local(building / _SITE)
        _settle(building, frozenset(_UUID.findall(json.dumps(facts))))
        (building / MARK).write_text(json.dumps({"lake": lake.uri, "tables": [one["table"] for one in facts]}))
        building.chmod(0o755)
        _swap(building, out)
    return Exported(
        str(out),
        str(out / _SITE / "index.html"),
        len(facts),
        sum(len(one["expectations"]) for one in facts) - refused,
        sum(len(one["unexpressed"]) for one in facts) + refused,
        sum(len(one["results"]) for one in facts),
    )


def _facts(lake: "Lake", tables: Sequence[str] | None) -> list[dict[str, Any]]:
    metrics = lake.metrics()
    own = own_suites(lake)
    contracts = [one for one in chosen(lake.contracts(), tables).values() if latest(lake, one.table) is not None]
    return [table_facts(lake, one, compile_suite(one, metrics, own.of(one))) for one in contracts]


def _may_be_replaced(out: Path) -> None:
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError("not an export of ranklake, and not empty", out, "name another folder, or empty it")


def _build(folder: Path, facts: list[dict[str, Any]], out: Path, limit_s: float = _LIMIT_S) -> int:
    """Let a process build the project, without configuration or credentials; return how many checks it refused."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    with scratch("export") as home:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-m", "ranklake.quality.export.build", str(folder)],
                input=json.dumps({"tables": facts}).encode(),
                cwd=home,
                env={**environment, "HOME": str(home), "TMPDIR": str(home), "GX_ANALYTICS_ENABLED": "false"},
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            hint = "export fewer tables at a time, with --table"
            raise ExportError(f"Great Expectations took more than {limit_s:g} s to build it", out, hint) from None
    if done.returncode:
        last = printable(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])[:300]
        raise ExportError(f"Great Expectations could not build the project: {last}", out, "see ranklake doctor")
    refused = json.loads(done.stdout.splitlines()[-1])
    return sum(map(len, refused.values()))


def _settle(folder: Path, kept: Collection[str]) -> None:
    """Give random identities fixed ones, in the order of files, so that the same lake gives the same project.

    What users wrote, such as in a set of values, is `kept`.
    """
    known: dict[str, str] = {one: one for one in kept}

    def fixed(found: re.Match[str]) -> str:
        return known.setdefault(found[0], str(uuid.uuid5(uuid.NAMESPACE_URL, f"ranklake:{len(known)}")))

    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(_TEXTS)):
        path.write_text(_UUID.sub(fixed, path.read_text(encoding="utf-8")), encoding="utf-8")


def _swap(building: Path, out: Path) -> None:
    """Put a finished folder in its place, by two renames if one is there; if the second fails, that comes back.

    Raises `ExportError` if by now something else stands there. A crash between the two leaves none there: the earlier
    one goes with the folder that this one was built in.
    """
    _may_be_replaced(out)
    if not out.exists():
        building.rename(out)
        return
    old = building.with_name(f"{out.name}-before")
    out.rename(old)
    try:
        building.rename(out)
    except BaseException:
        old.rename(out)
        raise
