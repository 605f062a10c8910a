"""Functions of the governance room `ranklake.retention` that the lake calls.

Governance imports the lake, so the lake must not import governance. Each function here imports its implementation by
name at the first call, as `ranklake.lake.plans.kinds` does. ``tests/lake/test_governance_calls.py`` resolves all names
and compares the signatures.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import date, timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

PLACES: Final[Mapping[str, str]] = {
    "sealer": "ranklake.retention.subjects.columns:sealer",
    "unsealer": "ranklake.retention.subjects.columns:unsealer",
    "sealed_columns": "ranklake.retention.subjects.columns:stored_under_keys",
    "columns_in_clear": "ranklake.retention.subjects.columns:columns_in_clear",
    "unfit_to_seal": "ranklake.retention.subjects.columns:unsealable_reason",
    "rehydrated_files": "ranklake.retention.archive.rehydrated:files_back",
    "held_partitions": "ranklake.retention.proposals.releases:held_partitions",
    "kept_paths": "ranklake.retention.proposals.kept:kept_paths",
    "retired_dates": "ranklake.retention.proposals.kept:retired_dates",
    "thinned_dates": "ranklake.retention.proposals.kept:thinned_dates",
    "erased_raw": "ranklake.retention.proposals.erasures:erased_raw",
    "anchor_if_due": "ranklake.retention.proposals.examination:anchor_if_due",
    "migration_proposals": "ranklake.retention.proposals.migrations:register",
    "require_approved_migration": "ranklake.retention.proposals.migrations:require_approved",
    "apply_migration": "ranklake.retention.proposals.migrations:apply_approved",
}
"""Implementations, as ``module:function``, by the name of a function of this module."""

REHYDRATED: Final = "rehydrated"
"""Folder of a lake with rows that were restored from archives."""

RAW: Final = "quarantine/"
"""Prefix of a table's name in items for quarantined bytes of its segments. Their date is that of the plan."""

_NO_DATES: Final[Mapping[date, int]] = {}


def _implementation(name: str) -> Callable[..., Any]:
    implementation: Callable[..., Any] = resolve_name(PLACES[name])
    return implementation


def sealer(lake: "Lake", contract: "Contract") -> "Callable[[pa.Table], pa.Table] | None":
    """Return a function that encrypts a table's columns with keys of people; None if it has no such column."""
    return _implementation("sealer")(lake, contract)  # type: ignore[no-any-return]


def unsealer(lake: "Lake") -> "Callable[[pa.Array], pa.Array]":
    """Return a function that decrypts texts. It returns NULL for texts whose key was forgotten."""
    return _implementation("unsealer")(lake)  # type: ignore[no-any-return]


def sealed_columns(store: "Store", contract: "Contract") -> Mapping[int, str]:
    """Return the columns of a table that were ever stored under keys: former names by column id."""
    return _implementation("sealed_columns")(store, contract)  # type: ignore[no-any-return]


def columns_in_clear(lake: "Lake", contract: "Contract") -> frozenset[int]:
    """Return the ids of the columns in ``[subjects] clear``: stored under keys before, and now unencrypted."""
    return _implementation("columns_in_clear")(lake, contract)  # type: ignore[no-any-return]


def unfit_to_seal(contract: "Contract", column: "Column") -> str:
    """Return why a column cannot be stored under keys, as a clause; empty if it can."""
    return _implementation("unfit_to_seal")(contract, column)  # type: ignore[no-any-return]


def rehydrated_files(store: "Store", today: date, versions: Mapping[str, int]) -> "dict[str, list[pa.Table]]":
    """Return the files restored from archives that are valid on a day, by table; see `REHYDRATED`."""
    return _implementation("rehydrated_files")(store, today, versions)  # type: ignore[no-any-return]


def held_partitions(tables: "Tables") -> Collection[tuple[str, date]]:
    """Return table and date of the partitions that are kept out of rollups because of failed checks."""
    return _implementation("held_partitions")(tables)  # type: ignore[no-any-return]


def kept_paths(tables: "Tables") -> dict[str, set[str]]:
    """Return the paths, by table, of removed files that are kept because their removal can still be cancelled."""
    return _implementation("kept_paths")(tables)  # type: ignore[no-any-return]


def retired_dates(tables: "Tables") -> dict[str, dict[date, int]]:
    """Return the dates that retention removed, by table or `RAW` + table, each with the last such plan."""
    return _implementation("retired_dates")(tables)  # type: ignore[no-any-return]


def thinned_dates(tables: "Tables", table: str) -> set[date]:
    """Return the dates of a table from which retention removed some rows or masked values."""
    return _implementation("thinned_dates")(tables, table)  # type: ignore[no-any-return]


def erased_raw(tables: "Tables") -> set[str]:
    """Return the digests of quarantined bytes that erasures deleted."""
    return _implementation("erased_raw")(tables)  # type: ignore[no-any-return]


def anchor_if_due(lake: "Lake") -> Any:  # noqa: ANN401 - an anchor, of which the lake reads `rows`
    """Write an anchor of the audit log to the witness if one is due. Returns the anchor, or None."""
    return _implementation("anchor_if_due")(lake)


def migration_proposals(lake: "Lake") -> Mapping[str, Any]:
    """Return the proposals of migrations that drop values, by name."""
    return _implementation("migration_proposals")(lake)  # type: ignore[no-any-return]


def require_approved_migration(lake: "Lake", sha256: str, round_: int) -> None:
    """Raise `RanklakeError` unless an intact audit log shows that a migration was approved and begun."""
    _implementation("require_approved_migration")(lake, sha256, round_)


def apply_migration(
    lake: "Lake",
    label: str,
    by: str,
    compose: Callable[..., Any],
    *,
    single_operator: bool,
    signing: Any,  # noqa: ANN401 - how a command signs, which passes through
) -> int | None:
    """Apply an approved migration that drops values. Returns the number of its plan; None if it was applied before.

    `compose(number, facts)` returns the plan, or None if there is nothing to do. Raises the errors of
    `ranklake.retention.proposals.lifecycle.apply`.
    """
    call = _implementation("apply_migration")
    return call(lake, label, by, compose, single_operator=single_operator, signing=signing)  # type: ignore[no-any-return]


def is_all_retired(
    row: Mapping[str, Any], taken: Mapping[date, int], live: Collection[date], thinned: Mapping[date, int] = _NO_DATES
) -> bool:
    """Whether retention removed all rows of a segment. False if the segment's times are unknown.

    Parameters
    ----------
    row
        The segment's row of the table ``segments``: plan, ts_min, ts_max.
    taken
        Dates of the segment's table that retention removed, each with the last such plan. A removal by an earlier plan
        than the segment's did not remove its rows.
    live
        Dates of the table that have rows.
    thinned
        Dates from which retention removed some rows, with the plan, if none of the segment's rows is left on them.
    """
    first, last = row["ts_min"], row["ts_max"]
    if first is None or last is None:
        return False
    days = [first.date() + timedelta(days=place) for place in range((last.date() - first.date()).days + 1)]
    removed = [day for day in days if max(taken.get(day, 0), thinned.get(day, 0)) >= row["plan"]]
    return bool(removed) and not (set(days) - set(removed)) & set(live)
