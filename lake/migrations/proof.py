"""Verifies an applied migration by comparing its new files with the old files from which they were made."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.register import last_applied
from ranklake.lake.migrations.registry import contract_at, ends_of, load_migrations
from ranklake.lake.migrations.rewriting import concatenate, decode_dictionary, stored_rows
from ranklake.lake.migrations.steps.columns import Convert
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.order import sort_names, sort_order
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.due import Computing
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake

_KEY = ("incarnation", "segment", "slot")


@dataclass(slots=True)
class Proof:
    """Result of `verify`.

    Attributes
    ----------
    migration, table, plan
        Label of the migration, its table, and the number of its plan.
    files, rows
        Number of new files that were compared, and of their rows.
    computed
        Number of dates of a derived table that were computed again with the same result.
    gone
        Number of files and dates that cannot be compared: an old or new file was merged or deleted, or the inputs
        changed.
    untouched
        Columns with unchanged values.
    ranges
        Minimum and maximum of converted columns, before and after.
    faults
        Problems, one line each.
    """

    migration: str
    table: str
    plan: int
    files: int = 0
    rows: int = 0
    computed: int = 0
    gone: int = 0
    untouched: set[str] = field(default_factory=set)
    ranges: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def verify(lake: "Lake", table: str, computing: "Computing | None" = None) -> Proof:
    """Verify a table's last applied migration. Raises `MigrationError` if there is none."""
    row = last_applied(lake, table)
    plan = read_plan(lake.store, row["plan"]) if row is not None else None
    migrations = load_migrations(overlay=lake.catalog.overlay)
    migration = next((known for known in migrations if row is not None and known.number == row["number"]), None)
    if plan is None or migration is None:
        raise MigrationError(f"no migration of {table} was applied", where=table, hint="see the table migrations")
    proof = Proof(migration.label, table, plan.number)
    removed = {row["path"]: row for row in plan.body["remove"].get(table, [])}
    added = {row["path"]: row for row in plan.body["add"]}
    new_paths: dict[str, list[str]] = defaultdict(list)
    for old, new in plan.body["facts"]["pairs"]:
        new_paths[old].append(new)
    target = _target(migration, lake.catalog)
    for old, paths in new_paths.items():
        if not all(lake.fs.exists(lake.path("tables", table, path)) for path in (old, *paths)):
            proof.gone += 1
            continue
        parts = []
        for facts in map(added.__getitem__, paths):
            file = {**facts, "num_records": facts["rows"], "date": facts["partition"]}
            parts.append(stored_rows(lake.tables, table, file))
            if sort_order(parts[-1], sort_names(target))[0] is not None:
                proof.faults.append(f"rows of {file['path']} are not sorted by {', '.join(target.sort)}")
        proof.files += len(paths)
        _compare(proof, migration, stored_rows(lake.tables, table, removed[old]), concatenate(parts))
    _verify_computed(proof, lake, target, plan.body["facts"].get("computed", []), computing)
    return proof


def _target(migration: "Migration", catalog: "Catalog") -> "Contract":
    """Return the contract with the sort order of the new files; for an overlay's columns, that of the whole table."""
    return (
        contract_at(migration.table, contract(migration.table).version)
        if migration.is_of_added
        else ends_of(migration, catalog.overlay)[1]
    )


def _verify_computed(
    proof: Proof, lake: "Lake", target: "Contract", dates: Sequence[Mapping[str, Any]], computing: "Computing | None"
) -> None:
    """Compute dates again that the migration computed, if their files and inputs are unchanged, and compare them."""
    handle = latest(lake.tables, target.table)
    live = set() if handle is None else live_paths(handle)
    days = {
        _day(entry["in"][0]): entry["of"] for entry in dates if entry["in"] and entry["of"] and live >= set(entry["in"])
    }
    equal = {} if computing is None or not days else computing.standing(lake, target, days)
    proof.computed = sum(equal.values())
    proof.gone += len(dates) - len(equal)
    proof.faults += [
        f"{day} has other rows than its inputs give" for day, is_equal in sorted(equal.items()) if not is_equal
    ]


def _day(path: str) -> date:
    return date.fromisoformat(path.partition("date=")[2][:10])


def _compare(proof: Proof, migration: "Migration", old: pa.Table, new: pa.Table) -> None:
    proof.rows += new.num_rows
    if old.num_rows != new.num_rows:
        proof.faults.append(f"{old.num_rows} rows became {new.num_rows}")
        return
    touched = {name for step in migration.steps for name in step.touched}
    expected = concatenate([migration.upgrade_rows(old)])
    common = [name for name in expected.column_names if name in new.column_names]
    order = [name for name in _KEY if name in common]
    if len(order) < len(_KEY):
        order = [name for name in common if not pa.types.is_list(new[name].type)]
    if order:
        expected, new = (rows.sort_by([(name, "ascending") for name in order]) for rows in (expected, new))
    for name in expected.column_names:
        if name not in new.column_names:
            if expected[name].null_count < expected.num_rows:
                proof.faults.append(f"column {name} is lost")
        elif not decode_dictionary(expected[name]).cast(new[name].type).equals(decode_dictionary(new[name])):
            proof.faults.append(f"column {name} has other values than it should")
        elif name in old.column_names and name not in touched:
            proof.untouched.add(name)
    for name, ranges in _ranges(migration, old, new):
        known = proof.ranges.setdefault(name, ranges)
        proof.ranges[name] = {key: _widen(known[key], ranges[key]) for key in ("before", "after")}


def _ranges(migration: "Migration", old: pa.Table, new: pa.Table) -> Iterator[tuple[str, dict[str, list[float]]]]:
    for step in migration.steps:
        if not isinstance(step, Convert) or step.column not in old.column_names or step.to not in new.column_names:
            continue
        if old[step.column].null_count < old.num_rows:
            yield step.to, {"before": _extremes(old[step.column]), "after": _extremes(new[step.to])}


def _extremes(values: pa.ChunkedArray) -> list[float]:
    ends: Mapping[str, Any] = pc.min_max(values).as_py()
    return [ends["min"], ends["max"]]


def _widen(first: list[float], other: list[float]) -> list[float]:
    return [min(first[0], other[0]), max(first[1], other[1])]
