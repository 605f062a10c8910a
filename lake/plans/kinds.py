"""The kinds of plans: what a plan of each kind may contain, how it changes rows, and which functions carry it out.

To add a kind, add a `PlanKind` here, its rules, and the code that composes such plans. Rules of kinds that remove rows
are in this module, others in `ranklake.lake.plans.rules`. The functions that carry out and verify plans are in rooms
that import this one. They are therefore given by name and imported when the first plan of the kind is read.
``tests/lake/plans/test_plan_kinds.py`` resolves all names.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final

from ranklake.lake.plans import rules
from ranklake.lake.plans.rules import Body, cancellation_faults, grace_faults, of_actions, purge_faults, replaced_faults

Places = set[tuple[str, str]]
"""Partitions: pairs of table and date (ISO)."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RETENTION_PLAN: Final = re.compile(r"rp-[0-9a-f]{16,64}")
_REGISTER: Final = "retention_plans"
_DOWNSAMPLED: Final = "downsampled"
_ARCHIVES: Final = "archives"
_ARCHIVE: Final = re.compile(r"ar-[0-9a-f]{16}")


@of_actions
def retention_faults(body: Body) -> Iterator[str]:
    """Yield violations in a retention plan, which may only remove, mask or downsample partitions."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("retention_plan")
    if not isinstance(name, str) or not _RETENTION_PLAN.fullmatch(name):
        yield "facts name no retention plan"
    elif not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    after: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        after[row["table"], row["partition"]] += row["rows"]
    before: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    masked, folded = (_places(facts.get(key, {})) for key in ("masked", "downsampled"))
    if masked is None or folded is None:
        yield f"facts name other {'masked' if masked is None else 'downsampled'} dates than dates by table"
        return
    if any(after[place] != before[place] for place in masked):
        yield "a retention changes how many rows a date holds of which it masks values"
    if any(after[place] or not before[place] for place in folded):
        yield "a retention downsamples a date that keeps its rows, or has none"
    register_rows = [row["rows"] for row in body["add"] if row["table"] == _REGISTER]
    yield from _archive_faults(body, facts)
    yield from grace_faults(body, facts)
    exempt = masked | {(_DOWNSAMPLED, day) for _, day in folded}
    registers = {_REGISTER, _ARCHIVES}
    shrinking = {place: rows for place, rows in after.items() if place[0] not in registers and place not in exempt}
    if register_rows != [1] or any(rows >= before[place] for place, rows in shrinking.items()):
        yield "a retention brings rows"


def _archive_faults(body: Body, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield differences between the archives in a retention plan's facts and its new rows of the archive register."""
    archived, ended = facts.get("archived", {}), facts.get("archives_ended", {})
    days = list(archived.values()) if isinstance(archived, dict) else [None]
    manifests = [digest for dates in days for digest in (dates.values() if isinstance(dates, dict) else [None])]
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in manifests):
        yield "facts name other archives than manifests by table and date"
    if not _has_lists(ended, _ARCHIVE):
        yield "facts name other archives that end than archives"
        return
    written = sum(row["rows"] for row in body["add"] if row["table"] == _ARCHIVES)
    if written != len(manifests) + sum(len(names) for days in ended.values() for names in days.values()):
        yield "a retention does not write down what it archives, or other archives"
    if body["remove"].get(_ARCHIVES):
        yield "a retention takes archives out of their register"


def _places(dates: object) -> Places | None:
    """Return the partitions of a mapping from tables to lists of dates; None if the value is not such a mapping."""
    if not isinstance(dates, Mapping) or not all(isinstance(days, list) for days in dates.values()):
        return None
    return {(table, day) for table, days in dates.items() for day in days if isinstance(day, str)}


def is_raw(digests: object) -> bool:
    """Whether a value maps tables and dates to lists of digests."""
    return _has_lists(digests, _DIGEST)


def _has_lists(value: object, pattern: re.Pattern[str]) -> bool:
    """Whether a value maps tables and dates to lists of texts that match a pattern."""
    if not isinstance(value, dict):
        return False
    lists = [texts for days in value.values() for texts in (days.values() if isinstance(days, dict) else [None])]
    return all(
        isinstance(texts, list) and all(isinstance(text, str) and pattern.fullmatch(text) for text in texts)
        for texts in lists
    )


_ERASURE: Final = re.compile(r"er-[0-9a-f]{16}")
_ERASURES: Final = "erasures"
_PSEUDONYMIZED: Final = "segments"
"""Table in which an erasure keeps all rows and replaces names by pseudonyms."""
_PROTECTED: Final = frozenset(
    {"audit", "disowned", "ingest_plans", "lineage", "migrations", "quality_releases", "retention_plans"}
)


@of_actions
def erasure_faults(body: Body) -> Iterator[str]:
    """Yield violations in an erasure plan, which may only remove rows and register that it was applied."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("erasure")
    if not isinstance(name, str) or not _ERASURE.fullmatch(name):
        yield "facts name no erasure"
    if not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    if changed := _PROTECTED & {*body["remove"], *(row["table"] for row in body["add"])}:
        yield f"an erasure changes the books: {min(changed)}"
    if body["remove"].get(_ERASURES) or [row["rows"] for row in body["add"] if row["table"] == _ERASURES] != [1]:
        yield "an erasure does not write down that it was applied, or takes such a row away"
    yield from replaced_faults(facts)
    yield from _count_faults(body)


def _count_faults(body: Body) -> Iterator[str]:
    """Yield partitions that would have more rows than before, or in the table ``segments`` another number of rows.

    An equal number is valid: files may be rewritten with the same rows to remove the subject's words from dictionaries.
    """
    before: Counter[tuple[str, str]] = Counter()
    after: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    for row in body["add"]:
        if row["table"] != _ERASURES:
            after[row["table"], row["partition"]] += row["rows"]
    for place in sorted({*before, *after}):
        if (before[place] != after[place]) if place[0] == _PSEUDONYMIZED else (after[place] > before[place]):
            yield f"an erasure brings rows: {place[0]} {place[1]}"


_SEGMENT: Final = {
    "path": str,
    "others": [str],
    "table": str,
    "bytes": int,
    "rows": int,
    "sha256": str,
    "seen": str,
}
_ADDED: Final = {"table": str, "path": str, "partition": str, "rows": int, "size_bytes": int, "stats": str}
_REMOVED: Final = {"path": str, "size_bytes": int, "num_records": int, "date": str}
SEGMENTS: Final[Mapping[str, Any]] = {
    "spool": str,
    "writer": str,
    "versions": {...: int},
    "segments": [_SEGMENT],
}
"""Shape of the body of an ingest plan, which lists segments. Carrying it out computes the files from them."""
FILES: Final[Mapping[str, Any]] = {
    "writer": str,
    "add": [_ADDED],
    "remove": {...: [_REMOVED]},
    "purge": bool,
    "kept": {...: [str]},
    "account": {...: int},
}
"""Shape of the body of an action plan, which lists existing files to add and to remove."""

_MIGRATED: Final = {"migration": str, "sha256": str, "backwards": bool, "rows": int, "pairs": [(str, str)]}
"""Shape of the facts of a migration plan: the migration, and pairs of replaced and new file."""


class Rows(Enum):
    """How a plan changes the number of rows. ``ranklake status`` counts the plan's account accordingly."""

    BROUGHT = "brought"
    """Rows of segments are added. The table ``segments`` contains their number, so the account is not counted."""
    KEPT = "kept"
    """Each date of each table keeps its number of rows."""
    QUARANTINED = "quarantined"
    """Rows move to ``rejects``, or back from it."""
    RETIRED = "retired"
    """Rows are permanently removed, with an approval."""


@dataclass(frozen=True, slots=True)
class PlanKind:
    """A kind of plan.

    Attributes
    ----------
    name
        Name in plan files and in the ledger.
    rows
        How a plan changes the number of rows.
    body
        Shape of the body (`ranklake.lake.store.json_shape`).
    rules
        Yields violations in a body of the right shape.
    is_replayable
        Whether dates that such a plan rewrote may be replayed. True if the plan removes no rows, or if replay can find
        out which rows it removed.
    execute
        ``module:function`` that carries a plan out (`ranklake.lake.plans.driver.Executor`).
    verify
        ``module:function`` that verifies another process' plan against the lake (`ranklake.lake.plans.verification`).
    purges_dates
        Whether a purge deletes all old files of the plan's dates, or only the files that the plan lists.
    fences
        Whether rollups that read rows from before the plan must not commit (`ranklake.lake.tables.commit.fence`).
    """

    name: str
    rows: Rows
    body: Mapping[str, Any]
    rules: Callable[[rules.Body], Iterator[str]]
    is_replayable: bool
    execute: str
    verify: str
    purges_dates: bool = True
    fences: bool = False


_COMMITS: Final = "ranklake.lake.plans.action_plan:execute"
_REWRITE: Final = "ranklake.lake.ingest.verification:verify_rewrite"

INGEST: Final = PlanKind(
    "ingest",
    rows=Rows.BROUGHT,
    body=SEGMENTS,
    rules=rules.segment_faults,
    is_replayable=True,
    execute="ranklake.lake.ingest.execution:execute",
    verify="ranklake.lake.ingest.verification:verify_ingest",
)
COMPACTION: Final = PlanKind(
    "compaction",
    rows=Rows.KEPT,
    body=FILES,
    rules=rules.compaction_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify="ranklake.lake.plans.verification:verify_merge",
)
REPLAY: Final = PlanKind(
    "replay",
    rows=Rows.BROUGHT,
    body=FILES,
    rules=rules.replay_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify=_REWRITE,
)
QUARANTINE: Final = PlanKind(
    "quarantine",
    rows=Rows.QUARANTINED,
    body=FILES,
    rules=rules.quarantine_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify=_REWRITE,
)
RENUMBER: Final = PlanKind(
    "renumber",
    rows=Rows.KEPT,
    body=FILES,
    rules=rules.renumber_faults,
    is_replayable=False,
    execute=_COMMITS,
    verify=_REWRITE,
)
RETENTION: Final = PlanKind(
    "retention",
    rows=Rows.RETIRED,
    body=FILES,
    rules=retention_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify="ranklake.retention.archive.verification:verify_retention",
)

RELEASE: Final = PlanKind(
    "release",
    rows=Rows.QUARANTINED,  # in reverse: rows leave ``rejects``
    body=FILES,
    rules=rules.release_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify="ranklake.retention.proposals.releases:verify_release",
)

MIGRATION: Final = PlanKind(
    "migration",
    rows=Rows.KEPT,
    body={**FILES, "facts": _MIGRATED},
    rules=rules.migration_faults,
    is_replayable=True,
    execute="ranklake.lake.migrations.composing:execute",
    verify="ranklake.lake.migrations.composing:verify_migration",
)


ERASURE: Final = PlanKind(
    "erasure",
    rows=Rows.RETIRED,
    body=FILES,
    rules=erasure_faults,
    is_replayable=False,
    execute=_COMMITS,
    verify="ranklake.retention.proposals.erasures:verify_erasure",
    purges_dates=False,
    fences=True,
)


CANCELLATION: Final = PlanKind(
    "cancellation",
    rows=Rows.RETIRED,  # in reverse: removed rows are restored
    body=FILES,
    rules=cancellation_faults,
    is_replayable=True,
    execute=_COMMITS,
    verify="ranklake.retention.proposals.cancellations:verify_cancellation",
)
PURGE: Final = PlanKind(
    "purge",
    rows=Rows.KEPT,
    body=FILES,
    rules=purge_faults,
    is_replayable=True,
    execute="ranklake.retention.plans.purge:execute",
    verify="ranklake.retention.plans.purge:verify_purge",
)


KINDS: Final[Mapping[str, PlanKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            *(INGEST, COMPACTION, REPLAY, QUARANTINE, RENUMBER, RETENTION),
            *(RELEASE, MIGRATION, ERASURE, CANCELLATION, PURGE),
        )
    }
)


def rows_effect(name: str) -> Rows:
    """Return how plans of a kind change the number of rows. Plans of an unknown kind count as `Rows.RETIRED`."""
    return KINDS[name].rows if name in KINDS else Rows.RETIRED


def is_replayable(name: str) -> bool:
    """Whether dates that a plan of this kind rewrote may be replayed; False for an unknown kind."""
    return name in KINDS and KINDS[name].is_replayable


def resolve(name: str) -> Callable[..., Any]:
    """Return the function that a kind names as ``module:function``. Imports its module."""
    target: Callable[..., Any] = resolve_name(name)
    return target
