"""The last good checkpoint of a run: the newest that was verified, and saved before the first sign of trouble."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, Row
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranklake.insight.incidents.incidents import Incident

_AUDITED: Final = """SELECT details, ts FROM audit
WHERE action = 'artifact.verify' AND details LIKE {run}
ORDER BY ts
"""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last good checkpoint of a run.

    Attributes
    ----------
    name
        Name of the artifact; empty if there is none, with the `reason`.
    uri
        Its place, as the role sees it.
    step
        Step whose state it holds; None if not recorded.
    ts, verified_ts
        When it was saved, and when its bytes were last verified.
    before
        The first sign of trouble; None for a run without any.
    newest
        If none is good, the newest unverified one from before it; else empty.
    is_none
        Whether no checkpoint was saved before it, or none of them is intact.
    """

    name: str = ""
    uri: str | None = None
    step: int | None = None
    ts: datetime | None = None
    verified_ts: datetime | None = None
    before: datetime | None = None
    reason: str = ""
    newest: str = ""
    is_none: bool = False

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.name or None, "uri": self.uri, "step": self.step, "ts": self.ts,
            "verified_ts": self.verified_ts, "before": self.before, "reason": self.reason or None,
        }  # fmt: skip


def last_good_checkpoint(ask: Ask, run: str | None, before: datetime | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run that is verified and was saved before a time, by default at any.

    It is verified if the last verification, by ``ranklake verify-artifact``, the flow or a load in the run, succeeded.
    Deleted and overwritten checkpoints do not count.
    """
    if not run:
        return Checkpoint(before=before, reason="it is of no run")
    condition = "TRUE" if before is None else f"ts < {literal(before)}"
    saved = ask(statements.of_run("checkpoints", run, before=condition))
    if not saved.rows:
        when = "" if before is None else f" before {before:%Y-%m-%d %H:%M} UTC"
        reason = saved.reason or f"no checkpoint was saved{when}, or none is left"
        return Checkpoint(before=before, reason=reason, is_none=not saved.reason)
    verdicts = _verdicts(ask, run)
    unknown: list[Row] = []
    for row in saved.rows:
        known = [
            (ts, is_good) for ts, is_good, sha256 in verdicts.get(row["name"], ())
            if ts >= row["ts"] and sha256 in {None, row["sha256"]}
        ]  # fmt: skip
        verified_ts, is_good = max(known, default=(None, False))
        if is_good:
            return Checkpoint(row["name"], row["uri"], row["step"], row["ts"], verified_ts, before)
        unknown += [] if known else [row]
    if not unknown:
        return Checkpoint(before=before, reason="each that is left is damaged", is_none=True)
    return Checkpoint(before=before, reason=_unverified_reason(run, unknown[0]), newest=unknown[0]["name"])


def first_trouble(listed: "Iterable[Incident]") -> datetime | None:
    """Return when the first incident of a run began that needs attention and is above severity info."""
    begins = [one.facts["start_ts"] for one in listed if one.needs_a_look and one.facts["severity"] != "info"]
    return min(begins, default=None)


def _verdicts(ask: Ask, run: str) -> dict[str, list[tuple[datetime, bool, str | None]]]:
    """Return the last verification of each checkpoint, by name: time, result and digest."""
    result: dict[str, list[tuple[datetime, bool, str | None]]] = {}
    for row in ask(statements.of_run("verdicts", run)).rows:
        result.setdefault(row["name"], []).append((row["ts"], row["verified"], None))
    for row in ask(_AUDITED.format(run=literal(f'%"run": "{run}"%'))).rows:
        details = facts_in(row["details"])
        if details.get("run") == run:
            verdict = (row["ts"], bool(details.get("verified")), str(details.get("recorded_sha256")))
            result.setdefault(str(details.get("name")), []).append(verdict)
    return result


def _unverified_reason(run: str, newest: Row) -> str:
    step = "" if newest["step"] is None else f" of step {newest['step']:,}"
    name = newest["name"]
    return f"none is verified; the newest is {name}{step}: ranklake verify-artifact {name} --run {run}"
