"""Export of suites and results as a project that Great Expectations opens. It is put in place in one step.

Another process imports Great Expectations (`ranklake.quality.export.build`). Pages of Great Expectations load some
fifteen files from content networks, and build their index by script. The export removes scripts, forbids loading by
Content-Security-Policy, and writes the index as a list of links.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ranklake.errors import RanklakeError
from ranklake.lake.query.sql import query
from ranklake.lake.store.scratch import scratch
from ranklake.lake.tables.tables import latest
from ranklake.printable import printable
from ranklake.quality.forms import FORMS
from ranklake.quality.results import RESULTS
from ranklake.quality.suite import Suite, compile_suite, select_contracts
from ranklake.quality.suites.asking import own_suites
from ranklake.quality.suites.own import core_types

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.quality.suite import Expectation

DATES: Final = 30
"""Number of the newest dates of a table whose last results are exported."""
_HOLDS: Final = "expect_column_values_to_be_in_set"

_MARKUP: Final = re.compile(r"[<>&]")
"""Characters in column names that pages of Great Expectations do not escape; they escape all other text."""

Config = dict[str, Any]


def table_facts(lake: "Lake", contract: "Contract", suite: Suite) -> dict[str, Any]:
    """Return the facts of one table: ``table``, ``summary``, ``expectations``, ``unexpressed`` and ``results``."""
    configs = {each.check.id: _config(each, contract) for each in suite.expectations}
    expressed = [config for config in configs.values() if config is not None]
    return {
        "table": contract.table,
        "summary": contract.summary,
        "suite": suite.name,
        "expectations": expressed,
        "unexpressed": sorted(id_ for id_, config in configs.items() if config is None),
        "results": [_result(rows, configs) for rows in _newest_results(lake, contract.table)],
    }


def _config(expectation: "Expectation", contract: "Contract") -> Config | None:
    """Return the configuration of an expectation on the frame of `rows.partition_rows`; None without an equivalent."""
    common = {"severity": _severity(expectation.check.severity), "meta": _meta(expectation)}
    if expectation.asked:
        request = json.loads(expectation.asked)
        is_supported = request["type"] in core_types() and not _MARKUP.search(
            json.dumps(request["kwargs"].get("column"))
        )
        return {"type": request["type"], "kwargs": request["kwargs"], **common} if is_supported else None
    if not expectation.is_scanned or expectation.level == "watch":
        return None
    if expectation.level == "table":
        of_table = _of_table(expectation)
        return None if of_table is None else {**of_table, **common}
    kwargs = FORMS[expectation.check.kind].kwargs(expectation.check, contract.column(expectation.check.columns[0]))
    mostly = float(expectation.check.min or 0) if expectation.level == "share" else expectation.mostly
    plain = {name: _plain(value) for name, value in kwargs.items()}
    condition = {} if expectation.where is None else {"row_condition": expectation.where.plain()}
    return {
        "type": _snake(expectation.kind),
        "kwargs": plain | ({"mostly": mostly} if mostly < 1 else {}) | condition,
        **common,
    }


def _of_table(expectation: "Expectation") -> Config | None:
    check = expectation.check
    if check.kind == "row_count":
        ends = {"min_value": check.min, "max_value": check.max}
        kwargs = {name: value for name, value in ends.items() if value is not None}
        return {"type": "expect_table_row_count_to_be_between", "kwargs": kwargs}
    if check.kind != "unique":
        return None
    if len(check.columns) == 1:
        return {"type": "expect_column_values_to_be_unique", "kwargs": {"column": check.columns[0]}}
    key = {"column_list": list(check.columns), "ignore_row_if": "any_value_is_missing"}
    return {"type": "expect_compound_columns_to_be_unique", "kwargs": key}


def _meta(expectation: "Expectation") -> dict[str, Any]:
    check = expectation.check
    return {
        "check_id": check.id,
        "severity": check.severity,
        "on_fail": expectation.on_fail,
        "notes": {
            "format": "string",
            "content": [f"{check.id}: {expectation.expected}", *([check.doc] if check.doc else [])],
        },
    }


def _severity(severity: str) -> str:
    """Return the severity in Great Expectations, which has critical, warning and info."""
    return {"error": "critical"}.get(severity, severity)


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).removeprefix("_")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _newest_results(lake: "Lake", table: str) -> Iterable[list[dict[str, Any]]]:
    """Yield the rows of the last check of each of the newest dates, oldest date first."""
    dates = (
        f'SELECT partition_date, max(ts) AS ts FROM {RESULTS} WHERE "table" = $table '  # noqa: S608 - a name of ours
        f"GROUP BY partition_date ORDER BY partition_date DESC LIMIT {DATES}"
    )
    text = (
        f"SELECT r.* FROM {RESULTS} r JOIN ({dates}) l ON r.partition_date = l.partition_date AND r.ts = l.ts "  # noqa: S608
        'WHERE r."table" = $table ORDER BY r.partition_date, r.check_id'
    )
    by_day: dict[object, list[dict[str, Any]]] = {}
    for row in query(lake, text, {"table": table}).to_pylist():
        by_day.setdefault(row["partition_date"], []).append(row)
    return by_day.values()


def _result(rows: list[dict[str, Any]], configs: Mapping[str, Config | None]) -> dict[str, Any]:
    """Return the results of one check run on one date."""
    first = rows[0]
    return {
        "date": first["partition_date"].isoformat(),
        "check_run": first["check_run"],
        "ts": first["ts"].isoformat(),
        "files_sha256": first["files_sha256"],
        "checks": [_result_of_row(row, configs.get(row["check_id"])) for row in rows],
    }


def _result_of_row(row: Mapping[str, Any], config: Config | None) -> dict[str, Any]:
    """Return one result. A check without an equivalent becomes one on a column that tells whether rows pass.

    ``otherwise`` is that expectation, for a check that Great Expectations refuses.
    """
    id_ = row["check_id"]
    otherwise = {"type": _HOLDS, "kwargs": {"column": _MARKUP.sub("_", f"holds:{id_}"), "value_set": [1.0]}}
    expressed = config or {
        **otherwise,
        "severity": _severity(row["severity"]),
        "meta": {"check_id": id_, "severity": row["severity"], "on_fail": row["on_fail"]},
    }
    texts = [f"{id_}: {row['status']}", row["message"], row["observed"]]
    content = [text for text in texts if text]
    meta = {**expressed["meta"], "status": row["status"], "notes": {"format": "string", "content": content}}
    return {
        "config": {**expressed, "meta": meta},
        "otherwise": otherwise,
        "success": row["status"] in {"passed", "skipped"},
        "checked": row["rows_checked"],
        "failed": row["rows_failed"],
        "error": row["message"] or "could not be computed" if row["status"] == "errored" else "",
    }


_POLICY: Final = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'\">"
)
_STYLE: Final = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; max-width: 80rem; }
table { border-collapse: collapse; } th, td { border: 1px solid #ccc; padding: .3rem .6rem; vertical-align: top; }
.fa-check-circle::before { content: "passed"; color: #1a7f37; } .fa-times::before { content: "failed"; color: #b42318; }
.fa-exclamation-triangle::before { content: "errored"; color: #b54708; }
.modal, .ge-walkthrough-modal, nav.navbar, .cta-footer, .action-card, button { display: none; }
</style>"""
_REMOVED: Final = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<script\b.*?</script\s*>",
        r"<link\b[^>]*>",
        r"<(?:img|iframe|source|video|audio|embed|object)\b[^>]*\bsrc(?:set)?\s*=\s*[\"']?\s*(?:https?:)?//[^>]*>",
        r"@import\b[^;<]*;",
    )
)
_REMOTE_URL: Final = re.compile(r"url\(\s*['\"]?\s*(?:https?:)?//[^)]*\)", re.IGNORECASE)
_TAG: Final = re.compile(r"<[^>]*>")
_HANDLER: Final = re.compile(r"[\s/]on\w+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s>]*)", re.IGNORECASE)
_HEAD: Final = re.compile(r"<head[^>]*>", re.IGNORECASE)


def make_local(site: Path) -> None:
    """Remove scripts and remote content from all pages of a site, and rewrite its index."""
    for page in sorted(site.rglob("*.html")):
        page.write_text(local(page.read_text(encoding="utf-8")), encoding="utf-8")
    for sheet in sorted(site.rglob("*.css")):
        sheet.write_text(_REMOTE_URL.sub("none", sheet.read_text(encoding="utf-8")), encoding="utf-8")
    (site / "index.html").write_text(_index(site), encoding="utf-8")


def local(text: str) -> str:
    """Return a page without scripts and remote content."""
    for pattern in _REMOVED:
        text = pattern.sub("", text)
    text = _REMOTE_URL.sub("none", text)
    text = _TAG.sub(lambda match: _HANDLER.sub("", match[0]), text)
    return _HEAD.sub(lambda match: f"{match[0]}\n{_POLICY}\n{_STYLE}", text, count=1)


def _index(site: Path) -> str:
    results = sorted((site / "validations").rglob("*.html"), reverse=True)
    suites = sorted((site / "expectations").rglob("*.html"))
    lists = "".join(
        f"<h2>{title}</h2><ul>{''.join(_link(path.relative_to(site)) for path in paths)}</ul>"
        for title, paths in (("Validation results", results), ("Expectation suites", suites))
    )
    title = "Data Docs of a ranklake lake"
    head = f'<head>{_POLICY}<meta charset="utf-8"><title>{title}</title>{_STYLE}</head>'
    return f'<!DOCTYPE html>\n<html lang="en">{head}<body><h1>{title}</h1>{lists}</body></html>\n'


def _link(path: Path) -> str:
    words = " · ".join(path.with_suffix("").parts[1:])
    return f'<li><a href="{escape(quote(path.as_posix()))}">{escape(words)}</a></li>'


MARK: Final = "ranklake-export.json"
"""File that marks a folder as an export, which may be replaced."""
_SITE: Final = Path("gx/uncommitted/data_docs/local_site")
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TEXTS: Final = (".json", ".yml", ".html", ".ge_store_backend_id")
_LIMIT_S: Final = 1800


class ExportError(RanklakeError):
    """A project cannot be written. ``folder`` is its intended location; its previous content is unchanged."""

    def __init__(self, message: str, folder: Path, hint: str) -> None:
        super().__init__(message, where=str(folder), hint=hint)
        self.folder = folder


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The export: its folder, the page to open, and the numbers of suites, expectations, omitted checks and results."""

    folder: str
    index: str
    suites: int
    expectations: int
    unexpressed: int
    results: int

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)


def export_project(lake: "Lake", out: Path, tables: Sequence[str] | None = None) -> ExportResult:
    """Write the suites of all tables of the lake, or of the given ones, and the results of their last checks.

    The project is built in a folder ``ranklake-export-…`` beside its location and then moved. After a crash the
    previous export is unchanged, and the next export to that location removes the folder.

    Raises
    ------
    ExportError
        The folder has other content, or Great Expectations could not build the project.
    ranklake.lake.contracts.errors.UnknownTableError, ranklake.quality.suite.NotCheckedError
        A name in `tables` is no table, or a system table.
    """
    out = out.absolute()
    _check_replaceable(out)
    facts = _facts(lake, tables)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch("export", out.parent) as folder:
        building = folder / out.name
        building.mkdir()
        refused = _build(building, facts, out)
        make_local(building / _SITE)
        _fix_ids(building, frozenset(_UUID.findall(json.dumps(facts))))
        (building / MARK).write_text(json.dumps({"lake": lake.uri, "tables": [table["table"] for table in facts]}))
        building.chmod(0o755)
        _swap(building, out)
    return ExportResult(
        str(out),
        str(out / _SITE / "index.html"),
        len(facts),
        sum(len(table["expectations"]) for table in facts) - refused,
        sum(len(table["unexpressed"]) for table in facts) + refused,
        sum(len(table["results"]) for table in facts),
    )


def _facts(lake: "Lake", tables: Sequence[str] | None) -> list[dict[str, Any]]:
    metrics = lake.catalog.metrics()
    own = own_suites(lake)
    contracts = [
        contract
        for contract in select_contracts(lake.contracts(), tables).values()
        if latest(lake.tables, contract.table) is not None
    ]
    return [table_facts(lake, contract, compile_suite(contract, metrics, own.of(contract))) for contract in contracts]


def _check_replaceable(out: Path) -> None:
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError("not an export of ranklake, and not empty", out, "name another folder, or empty it")


def _build(folder: Path, facts: list[dict[str, Any]], out: Path, limit_s: float = _LIMIT_S) -> int:
    """Build the project in a process without configuration or credentials; return the number of refused checks."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    with scratch("export") as home:
        try:
            process = subprocess.run(
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
    if process.returncode:
        last = printable(process.stderr.decode(errors="replace").strip().rpartition("\n")[2])[:300]
        raise ExportError(f"Great Expectations could not build the project: {last}", out, "see ranklake doctor")
    refused = json.loads(process.stdout.splitlines()[-1])
    return sum(map(len, refused.values()))


def _fix_ids(folder: Path, kept: Collection[str]) -> None:
    """Replace random ids by fixed ones, numbered in the order of files, so that equal lakes give equal projects.

    Ids in `kept` occur in users' values and are not replaced.
    """
    known: dict[str, str] = {id_: id_ for id_ in kept}

    def fixed(match: re.Match[str]) -> str:
        return known.setdefault(match[0], str(uuid.uuid5(uuid.NAMESPACE_URL, f"ranklake:{len(known)}")))

    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(_TEXTS)):
        path.write_text(_UUID.sub(fixed, path.read_text(encoding="utf-8")), encoding="utf-8")


def _swap(building: Path, out: Path) -> None:
    """Move a finished folder into place. An existing folder is renamed first, and renamed back if the move fails.

    Raises `ExportError` if other content is there by now. A crash between the two renames leaves no folder in place;
    the previous one is then deleted with the folder that this one was built in.
    """
    _check_replaceable(out)
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
