"""The work of the stages ``backup`` and ``drill``: each configured place, one after another."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.pipeline.findings import FindingsError
from ranklake.redaction.redact import redact, redact_uri
from ranklake.retention.backup.history import for_each_place, recorded_backup, recorded_drill
from ranklake.retention.backup.place import newest_backup_time, unlock

SLACK: Final = timedelta(minutes=30)
"""How much earlier than due a backup may be made: the hourly schedule is not exact."""


class BackupsError(FindingsError):
    """Backups to some places failed, or drills found faults."""

    def __init__(self, result: dict[str, Any]) -> None:
        lines = "; ".join(f"{failure['place']}: {failure['reason']}" for failure in result["failed"])
        hint = "see docs/disaster-recovery.md; the next run tries again"
        super().__init__(result, f"backups failed: {lines}", hint=hint)


def refuse_failed_backups(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result. Raises `BackupsError` if a place failed, so that the flow ends Failed."""
    if result["failed"]:
        raise BackupsError(result)
    return result


def backup_once(context: Context) -> dict[str, Any]:
    """Back up to each configured place whose newest backup is older than ``[backup] every_h``."""
    lake = context.open_lake()
    due = datetime.now(UTC) - timedelta(hours=context.lake_config.backup.every_h) + SLACK

    def work(uri: str) -> dict[str, Any] | None:
        written = newest_backup_time(context.place(uri))
        if written is not None and written > due:
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
    """Call `work` for each place of backups; continue after a failure, and return results and failures by place."""
    results, errors = for_each_place(context.lake_config.backup.to, work)
    places = [{"place": redact_uri(uri), **facts} for uri, facts in results.items() if facts]
    failed = [{"place": redact_uri(uri), "reason": _reason(error)} for uri, error in errors.items()]
    return {"places": places, "failed": failed}


def _reason(error: Exception) -> str:
    return str(redact(error.what if isinstance(error, RanklakeError) else type(error).__name__))
