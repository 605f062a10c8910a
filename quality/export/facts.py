"""What is exported of a table, as plain JSON: its suite in Great Expectations' words, and results of its last checks.

Pure, but for reading the lake. Great Expectations is not imported here.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.query.sql import query
from ranklake.quality.forms import FORMS
from ranklake.quality.results import RESULTS
from ranklake.quality.suite import Suite
from ranklake.quality.suites.own import core_types

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.quality.suite import Expectation

DATES: Final = 30
"""Newest dates of a table whose last results are exported."""
_HOLDS: Final = "expect_column_values_to_be_in_set"

_MARKUP: Final = re.compile(r"[<>&]")
"""Characters that their pages do not escape in names of columns; of all other words they do."""

Config = dict[str, Any]


def table_facts(lake: "Lake", contract: "Contract", suite: Suite) -> dict[str, Any]:
    """Return the facts of one table: ``table``, ``summary``, ``expectations``, ``unexpressed`` and ``results``."""
    configs = {one.check.id: _config(one, contract) for one in suite.expectations}
    expressed = [config for config in configs.values() if config is not None]
    return {
        "table": contract.table,
        "summary": contract.summary,
        "suite": suite.name,
        "expectations": expressed,
        "unexpressed": sorted(id_ for id_, config in configs.items() if config is None),
        "results": [_result(rows, configs) for rows in _last(lake, contract.table)],
    }


def _config(one: "Expectation", contract: "Contract") -> Config | None:
    """Return what Great Expectations can run on the frame of `rows.partition_rows`; None if there is no word for it."""
    told = {"severity": _severity(one.check.severity), "meta": _meta(one)}
    if one.asked:
        question = json.loads(one.asked)
        known = question["type"] in core_types() and not _MARKUP.search(json.dumps(question["kwargs"].get("column")))
        return {"type": question["type"], "kwargs": question["kwargs"], **told} if known else None
    if not one.is_scanned or one.level == "watch":
        return None
    if one.level == "table":
        found = _of_table(one)
        return None if found is None else {**found, **told}
    kwargs = FORMS[one.check.kind].kwargs(one.check, contract.column(one.check.columns[0]))
    mostly = float(one.check.min or 0) if one.level == "share" else one.mostly
    plain = {name: _plain(value) for name, value in kwargs.items()}
    some = {} if one.where is None else {"row_condition": one.where.plain()}
    return {"type": _snake(one.kind), "kwargs": plain | ({"mostly": mostly} if mostly < 1 else {}) | some, **told}


def _of_table(one: "Expectation") -> Config | None:
    check = one.check
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


def _meta(one: "Expectation") -> dict[str, Any]:
    check = one.check
    return {
        "check_id": check.id,
        "severity": check.severity,
        "on_fail": one.on_fail,
        "notes": {"format": "string", "content": [f"{check.id}: {one.expected}", *([check.doc] if check.doc else [])]},
    }


def _severity(severity: str) -> str:
    """Return their word: they know critical, warning and info."""
    return {"error": "critical"}.get(severity, severity)


def _snake(name: str) -> str:
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).removeprefix("_")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _last(lake: "Lake", table: str) -> Iterable[list[dict[str, Any]]]:
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
    """Return the results of one check of one date."""
    first = rows[0]
    return {
        "date": first["partition_date"].isoformat(),
        "check_run": first["check_run"],
        "ts": first["ts"].isoformat(),
        "files_sha256": first["files_sha256"],
        "checks": [_checked(row, configs.get(row["check_id"])) for row in rows],
    }


def _checked(row: Mapping[str, Any], config: Config | None) -> dict[str, Any]:
    """Return one result; of what Great Expectations has no word for, one of a column that says whether it holds.

    ``otherwise`` is that one, for where they refuse the first.
    """
    id_ = row["check_id"]
    otherwise = {"type": _HOLDS, "kwargs": {"column": _MARKUP.sub("_", f"holds:{id_}"), "value_set": [1.0]}}
    said = config or {
        **otherwise,
        "severity": _severity(row["severity"]),
        "meta": {"check_id": id_, "severity": row["severity"], "on_fail": row["on_fail"]},
    }
    words = [f"{id_}: {row['status']}", row["message"], row["observed"]]
    content = [one for one in words if one]
    meta = {**said["meta"], "status": row["status"], "notes": {"format": "string", "content": content}}
    return {
        "config": {**said, "meta": meta},
        "otherwise": otherwise,
        "success": row["status"] in {"passed", "skipped"},
        "checked": row["rows_checked"],
        "failed": row["rows_failed"],
        "error": row["message"] or "could not be computed" if row["status"] == "errored" else "",
    }
