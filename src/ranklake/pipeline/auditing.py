"""What stages and commands write into the audit trail beside their work: plans, deletions, changed settings.

A trail that cannot be written holds up no telemetry: that is told on stderr, and the next round writes what is missing.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from ranklake.config import Config
from ranklake.errors import RanklakeError
from ranklake.lake.audit.plans import note_plans
from ranklake.lake.audit.settings import Settings, note_settings
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.freeze import contract_digest
from ranklake.redaction.redact import has_credential
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.proposals.identities import account, unsigned_note
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.context import Context
    from ranklake.lake.ingest.maintenance.run import UpkeepResult
    from ranklake.lake.store.lake import Lake

SPOOL_PURGE: Final = "spool.purge"
UPKEEP: Final = "upkeep"
_LEFT_OUT: Final = frozenset({"storage", "file"})
"""Of the configuration: credentials, and where the file is."""


def audit_plans(lake: "Lake") -> None:
    """Write the rows of plans that have none."""
    _try(lambda: note_plans(lake, account(lake), unsigned_note(lake)))


def audit_ingest(lake: "Lake", purged: int, keep_days: int) -> None:
    """Write the rows of plans, and one for the segments that were deleted from the spool."""

    def write() -> None:
        note_plans(lake, account(lake), unsigned_note(lake))
        if purged:
            facts = {"segments": purged, "keep_days": keep_days, **unsigned_note(lake)}
            record(lake, account(lake), SPOOL_PURGE, "spool", f"ingested more than {keep_days} days ago", facts)

    _try(write)


def audit_upkeep(context: "Context", lake: "Lake", done: "UpkeepResult") -> None:
    """Write the rows of plans, of what upkeep deleted and brought to newer contracts, and of changed settings."""

    def write() -> None:
        by, more = account(lake), unsigned_note(lake)
        note_plans(lake, by, more)
        if done.purged or done.followed:
            facts = {"deleted_files": dict(done.purged), "deleted_bytes": done.purged_bytes, **more}
            record(lake, by, UPKEEP, "lake", None, {**facts, "tables_with_newer_contract": list(done.followed)})
        note_settings(lake, by, settings_of(context, lake), more)

    _try(write)


def settings_of(context: "Context", lake: "Lake") -> Settings:
    """Return what the lake is governed by now: contracts, policies, roles, and what is configured and no default.

    Numbers stand as they are, all else as the beginning of a digest: a setting may name a person.
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
        here, default = (getattr(config, section.name) for config in (context.config, Config()))
        if section.name not in _LEFT_OUT:
            pairs = ((item.name, getattr(here, item.name), getattr(default, item.name)) for item in fields(here))
            values |= {f"{section.name}.{name}": _shown(value) for name, value, usual in pairs if value != usual}
    return values


def _shown(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return "set" if has_credential(str(value)) else _digest(value)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a setting is
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _try(write: Callable[[], object]) -> None:
    try:
        write()
    except (RanklakeError, OSError, yaml.YAMLError) as error:
        tell(f"the audit trail could not be written: {error}", err=True)
