"""Audit rows of stages and commands: plans, deletions, changed settings.

If the audit log cannot be written, telemetry continues: stderr gets a warning, and the next round writes the rows.

Each plan has a row in the audit log, written by the round that applied it, or by the next.

    ingest_plans after the last plan that the audit log has ─▶ those whose kinds write no row themselves ─▶ one commit

Retention, erasures, releases, migrations and other approved plans write their own rows; so does disowning a segment.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import yaml

from ranklake.config import Config
from ranklake.errors import RanklakeError
from ranklake.lake.audit.trail import TABLE, Entry, record, record_all, record_since
from ranklake.lake.contracts.freeze import contract_digest
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import COMPACTION, INGEST, QUARANTINE, REPLAY
from ranklake.lake.plans.plan import LEDGER, last_finished, read_plan
from ranklake.lake.tables.commit import transaction_number
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import latest
from ranklake.redaction.redact import has_credential
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.proposals.identities import account, unsigned_note
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.context import Context
    from ranklake.lake.ingest.maintenance.run import UpkeepResult
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake


_PLAN_ACTION: Final = "plan."
"""Prefix of the kind of a plan: ``plan.ingest``."""
PLANS: Final = "plans"
"""Application id under which the audit log's Delta log stores the number of its last plan."""
_KINDS: Final = frozenset(kind.name for kind in (INGEST, COMPACTION, REPLAY, QUARANTINE))
_DISOWNED: Final = "disowned"
"""Fact of a plan that has its own row for disowned rows."""
_COUNTS: Final = ("segments", "rows_recorded", "rows_stored", "rows_rejected", "rows_duplicate")
_MOST: Final = 1_000
"""Most plans without a row that get one each; more are summed up in one row."""


def note_plans(lake: "Lake", by: str, details: Mapping[str, Any] | None = None) -> list[int]:
    """Write rows of finished plans without one; return their numbers in the chain.

    Parameters
    ----------
    by
        Who runs the round.
    details
        Further details of each row, such as that nobody signed.

    If there is nothing to write, it reads two logs only. Raises as `ranklake.lake.audit.trail.record_all`.
    """
    handle = latest(lake.tables, TABLE)
    last = 0 if handle is None else transaction_number(handle, PLANS) or 0
    finished = last_finished(lake.tables)
    return [] if finished <= last else record_since(lake, PLANS, lambda since: _entries(lake, by, since, details or {}))


def _entries(lake: "Lake", by: str, since: int, details: Mapping[str, Any]) -> tuple[list[Entry], int]:
    columns = ["plan", "kind", "tables", "writer", *_COUNTS]
    rows = read(lake.tables, contract(LEDGER), columns).filter(pc.field("plan") > since).sort_by("plan").to_pylist()
    earlier, recent = rows[:-_MOST], rows[-_MOST:]
    entries = []
    if earlier:
        kinds = dict(sorted(Counter(row["kind"] for row in earlier).items()))
        subject = f"plans {earlier[0]['plan']} to {earlier[-1]['plan']}"
        entries.append(Entry(by, f"{_PLAN_ACTION}earlier", subject, None, {"plans": kinds, **details}))
    for row in recent:
        if row["kind"] not in _KINDS:
            continue
        counts = {name: row[name] for name in _COUNTS if row[name]}
        facts = {"change_of_rows": json.loads(row["tables"] or "{}"), **counts, "writer": row["writer"], **details}
        if row["kind"] != INGEST.name:
            plan = read_plan(lake.store, row["plan"])
            if plan is not None and _DISOWNED in plan.body.get("facts", {}):
                continue
            facts |= {} if plan is None else _before_and_after(plan)
        entries.append(Entry(by, f"{_PLAN_ACTION}{row['kind']}", f"plan {row['plan']}", None, facts))
    return entries, rows[-1]["plan"] if rows else since


def _before_and_after(plan: "Plan") -> dict[str, Any]:
    """Return files and rows before and after a plan, by table."""
    before: dict[str, list[int]] = {}
    after: dict[str, list[int]] = {}
    for table, files in plan.body["remove"].items():
        before[table] = [len(files), sum(file["num_records"] for file in files)]
    for file in plan.body["add"]:
        count, rows = after.get(file["table"], [0, 0])
        after[file["table"]] = [count + 1, rows + file["rows"]]
    names = sorted({*before, *after})
    return {
        side: {name: dict(zip(("files", "rows"), counts.get(name, [0, 0]), strict=True)) for name in names}
        for side, counts in (("before", before), ("after", after))
    }


ACTION: Final = "settings.changed"

Settings = Mapping[str, Mapping[str, str]]
"""Digests or versions by name, for each kind, such as ``roles``."""


def note_settings(lake: "Lake", by: str, settings: Settings, details: Mapping[str, Any] | None = None) -> list[str]:
    """Write a row for each kind of settings that changed since the audit log's last row; return the kinds.

    A row has the former and present value of each changed name, None if missing. The first row has all.
    Raises as `ranklake.lake.audit.trail.record_all`.
    """
    known = recorded_settings(lake)
    entries = []
    for kind, now in settings.items():
        before = known.get(kind, {})
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if names:
            sides = (("before", before), ("after", now))
            changed = {side: {name: each.get(name) for name in names} for side, each in sides}
            entries.append(Entry(by, ACTION, kind, None, {**changed, **(details or {})}))
    if entries:
        record_all(lake, entries)
    return [entry.subject for entry in entries]


def recorded_settings(lake: "Lake") -> dict[str, dict[str, str | None]]:
    """Return the latest recorded settings, by kind; None for removed ones."""
    rows = read(lake.tables, contract(TABLE), ["seq", "action", "subject", "details"])
    known: dict[str, dict[str, str | None]] = {}
    for row in rows.filter(pc.field("action") == ACTION).sort_by("seq").to_pylist():
        settings = known.setdefault(row["subject"], {})
        for name, value in json.loads(row["details"])["after"].items():
            settings[name] = value
    return known


SPOOL_PURGE: Final = "spool.purge"
UPKEEP: Final = "upkeep"
_LEFT_OUT: Final = frozenset({"storage", "file"})
"""Settings that are not recorded: credentials, and the file's path."""


def audit_plans(lake: "Lake") -> None:
    """Write rows of plans without one."""
    _try(lambda: note_plans(lake, account(lake), unsigned_note(lake)))


def audit_ingest(lake: "Lake", purged: int, keep_days: int) -> None:
    """Write rows of plans, and one for segments deleted from the spool."""

    def write() -> None:
        note_plans(lake, account(lake), unsigned_note(lake))
        if purged:
            facts = {"segments": purged, "keep_days": keep_days, **unsigned_note(lake)}
            record(lake, account(lake), SPOOL_PURGE, "spool", f"ingested more than {keep_days} days ago", facts)

    _try(write)


def audit_upkeep(context: "Context", lake: "Lake", done: "UpkeepResult") -> None:
    """Write rows of plans, of upkeep's deletions and contract updates, and of changed settings."""

    def write() -> None:
        by, signature_note = account(lake), unsigned_note(lake)
        note_plans(lake, by, signature_note)
        if done.purged or done.followed:
            facts = {"deleted_files": dict(done.purged), "deleted_bytes": done.purged_bytes, **signature_note}
            record(lake, by, UPKEEP, "lake", None, {**facts, "tables_with_newer_contract": list(done.followed)})
        note_settings(lake, by, settings_of(context, lake), signature_note)

    _try(write)


def settings_of(context: "Context", lake: "Lake") -> Settings:
    """Return the settings that govern the lake: contracts, policies, roles, and configured values other than defaults.

    Numbers are literal; other values are shortened digests, since a setting may name a person.
    """
    contracts = {
        name: f"version {each.version}, {contract_digest(each)[:12]}" for name, each in lake.contracts().items()
    }
    roles = context.config.sql.roles
    return {
        "contracts": contracts,
        "policies": _digests(context.policy_place or PACKAGED, "rules"),
        "roles": _digests(Path(roles), "roles") if roles else {},
        "configuration": dict(_configured(context)),
    }


def _digests(place: Path, key: str) -> dict[str, str]:
    """Return the digests of what a YAML file, or the files of a folder, list under a key, by name."""
    paths = sorted(place.glob("*.y*ml")) if place.is_dir() else [place]
    listed = [(yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get(key) or {} for path in paths]
    return {str(name): _digest(item) for items in listed for name, item in items.items()}


def _configured(context: "Context") -> dict[str, str]:
    values: dict[str, str] = {}
    for section in fields(context.config):
        configured, default = (getattr(config, section.name) for config in (context.config, Config()))
        if section.name not in _LEFT_OUT:
            pairs = (
                (item.name, getattr(configured, item.name), getattr(default, item.name)) for item in fields(configured)
            )
            values |= {f"{section.name}.{name}": _shown(value) for name, value, usual in pairs if value != usual}
    return values


def _shown(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return "set" if has_credential(str(value)) else _digest(value)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:  # noqa: ANN401 - a setting of any type
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _try(write: Callable[[], object]) -> None:
    try:
        write()
    except (RanklakeError, OSError, yaml.YAMLError) as error:
        tell(f"the audit log could not be written: {error}", err=True)
