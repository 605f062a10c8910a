"""The work of the stages ``backup`` and ``drill``: each configured place, one after another."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.pipeline.findings import FindingsError
from ranklake.redaction.redact import redact, redact_uri
from ranklake.retention.backup.history import at_each, recorded_backup, recorded_drill
from ranklake.retention.backup.place import newest_made, unlock

SLACK: Final = timedelta(minutes=30)
"""By which a backup may come early: its schedule runs each hour, and not to the second."""


class BackupsError(FindingsError):
    """Places that were not backed up to, or drills with faults."""

    def __init__(self, done: dict[str, Any]) -> None:
        lines = "; ".join(f"{failure['place']}: {failure['reason']}" for failure in done["failed"])
        hint = "see docs/disaster-recovery.md; the next run tries again"
        super().__init__(done, f"backups failed: {lines}", hint=hint)


def refuse_failed_backups(done: dict[str, Any]) -> dict[str, Any]:
    """Return what was done. Raises `BackupsError` where a place failed, so that a flow ends Failed."""
    if done["failed"]:
        raise BackupsError(done)
    return done


def backup_once(context: Context) -> dict[str, Any]:
    """Back up to each configured place whose newest backup is older than ``[backup] every_h``; return what was done."""
    lake = context.open_lake()
    due = datetime.now(UTC) - timedelta(hours=context.lake_config.backup.every_h) + SLACK

    def work(uri: str) -> dict[str, Any] | None:
        made = newest_made(context.place(uri))
        if made is not None and made > due:
            return None
        result = recorded_backup(lake, uri)
        if result.backup.damaged:
            raise RanklakeError(f"damaged files: {', '.join(result.backup.damaged[:3])}")
        return {"backup": result.backup.number, "copied_bytes": result.copied_bytes + result.manifest_bytes}

    return _each_place(context, work)


def drill_once(context: Context) -> dict[str, Any]:
    """Restore the newest backup of each configured place into a scratch folder, and verify it; return RPO and RTO."""
    lake = context.open_lake()

    def work(uri: str) -> dict[str, Any]:
        place = unlock(context.place(uri), context.lake_config.backup.key)
        result = recorded_drill(lake, place, context.lake_config)
        if result.faults:
            raise RanklakeError("; ".join(result.faults[:3]))
        return {"backup": result.backup, "rpo_s": result.rpo_s, "rto_s": result.rto_s}

    return _each_place(context, work)


def _each_place(context: Context, work: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
    """Do something with each place of backups; one that fails costs the others nothing."""
    done, errors = at_each(context.lake_config.backup.to, work)
    places = [{"place": redact_uri(uri), **facts} for uri, facts in done.items() if facts]
    failed = [{"place": redact_uri(uri), "reason": _reason(error)} for uri, error in errors.items()]
    return {"places": places, "failed": failed}


def _reason(error: Exception) -> str:
    return str(redact(error.what if isinstance(error, RanklakeError) else type(error).__name__))
