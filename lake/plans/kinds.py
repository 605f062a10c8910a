"""The kinds of plans: one table of what a plan of each kind may contain, does to rows, and is carried out by.

A new kind is a line here, its rules, here for what removes rows and else in `ranklake.lake.plans.rules`, and whoever
composes it. What carries a kind out and what verifies it live with the kind, in folders that stand on this one; so they
are named, as entry points are, and imported when the first plan of the kind is met. This is the one place of the lake
that names modules so, and ``tests/lake/plans/test_plan_kinds.py`` resolves every name.
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
"""Tables and dates."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RETENTION_PLAN: Final = re.compile(r"rp-[0-9a-f]{16,64}")
_REGISTER: Final = "retention_plans"
_DOWNSAMPLED: Final = "downsampled"
_ARCHIVES: Final = "archives"
_ARCHIVE: Final = re.compile(r"ar-[0-9a-f]{16}")


@of_actions
def retention_faults(body: Body) -> Iterator[str]:
    """Yield how a retention would do anything but let partitions go, or rows of them."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("retention_plan")
    if not isinstance(name, str) or not _RETENTION_PLAN.fullmatch(name):
        yield "facts name no retention plan"
    elif not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    left: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        left[row["table"], row["partition"]] += row["rows"]
    before: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    masked, folded = (_places(facts.get(one, {})) for one in ("masked", "downsampled"))
    if masked is None or folded is None:
        yield f"facts name other {'masked' if masked is None else 'downsampled'} dates than dates by table"
        return
    if any(left[place] != before[place] for place in masked):
        yield "a retention changes how many rows a date holds of which it masks values"
    if any(left[place] or not before[place] for place in folded):
        yield "a retention downsamples a date that keeps its rows, or has none"
    own = [row["rows"] for row in body["add"] if row["table"] == _REGISTER]
    yield from _archive_faults(body, facts)
    yield from grace_faults(body, facts)
    spared = masked | {(_DOWNSAMPLED, day) for _, day in folded}
    own_rows = {_REGISTER, _ARCHIVES}
    shrinks = {place: rows for place, rows in left.items() if place[0] not in own_rows and place not in spared}
    if own != [1] or any(rows >= before[place] for place, rows in shrinks.items()):
        yield "a retention brings rows"


def _archive_faults(body: Body, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield how what a retention says of archives does not fit what it writes down of them."""
    made, ended = facts.get("archived", {}), facts.get("archives_ended", {})
    days = list(made.values()) if isinstance(made, dict) else [None]
    manifests = [one for some in days for one in (some.values() if isinstance(some, dict) else [None])]
    if not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in manifests):
        yield "facts name other archives than manifests by table and date"
    if not _is_lists(ended, _ARCHIVE):
        yield "facts name other archives that end than archives"
        return
    written = sum(row["rows"] for row in body["add"] if row["table"] == _ARCHIVES)
    if written != len(manifests) + sum(len(some) for days in ended.values() for some in days.values()):
        yield "a retention does not write down what it archives, or other archives"
    if body["remove"].get(_ARCHIVES):
        yield "a retention takes archives out of their register"


def _places(dates: object) -> Places | None:
    """Return the dates that facts name by table; None where they are something else."""
    if not isinstance(dates, Mapping) or not all(isinstance(days, list) for days in dates.values()):
        return None
    return {(table, day) for table, days in dates.items() for day in days if isinstance(day, str)}


def is_raw(digests: object) -> bool:
    """Whether something is digests by table and date."""
    return _is_lists(digests, _DIGEST)


def _is_lists(value: object, form: re.Pattern[str]) -> bool:
    """Whether something is lists of texts of a form, by table and date."""
    if not isinstance(value, dict):
        return False
    lists = [some for days in value.values() for some in (days.values() if isinstance(days, dict) else [None])]
    return all(
        isinstance(some, list) and all(isinstance(one, str) and form.fullmatch(one) for one in some) for some in lists
    )


_ERASURE: Final = re.compile(r"er-[0-9a-f]{16}")
_ERASURES: Final = "erasures"
_NAMED: Final = "segments"
"""Table whose rows stay, with pseudonyms in the place of names."""
_BOOKS: Final = frozenset(
    {"audit", "disowned", "ingest_plans", "lineage", "migrations", "quality_releases", "retention_plans"}
)


@of_actions
def erasure_faults(body: Body) -> Iterator[str]:
    """Yield how an erasure would do anything but take rows out, and write down that it was applied."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("erasure")
    if not isinstance(name, str) or not _ERASURE.fullmatch(name):
        yield "facts name no erasure"
    if not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    if touched := _BOOKS & {*body["remove"], *(row["table"] for row in body["add"])}:
        yield f"an erasure changes the books: {min(touched)}"
    if body["remove"].get(_ERASURES) or [row["rows"] for row in body["add"] if row["table"] == _ERASURES] != [1]:
        yield "an erasure does not write down that it was applied, or takes such a row away"
    yield from replaced_faults(facts)
    yield from _count_faults(body)


def _count_faults(body: Body) -> Iterator[str]:
    """Yield dates that would have more rows than before; of names, any other number.

    As many are right where files are written again as they are: words of the subject were in their dictionaries.
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
        if (before[place] != after[place]) if place[0] == _NAMED else (after[place] > before[place]):
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
"""Body of a plan that names segments, and is computed again from them."""
FILES: Final[Mapping[str, Any]] = {
    "writer": str,
    "add": [_ADDED],
    "remove": {...: [_REMOVED]},
    "purge": bool,
    "kept": {...: [str]},
    "account": {...: int},
}
"""Body of an action plan: files to add and to drop, which exist already."""

_MIGRATED: Final = {"migration": str, "sha256": str, "backwards": bool, "rows": int, "pairs": [(str, str)]}
"""Facts of a plan that migrates: by which migration, and which file became which."""


class Rows(Enum):
    """What a plan does to the number of rows, and so on which side of the invariant ``status`` books its account."""

    BROUGHT = "brought"
    """Rows of segments come, or come again; the table ``segments`` tells how many, so the account is not counted."""
    KEPT = "kept"
    """Each date of each table holds as many as before: there is nothing to book."""
    QUARANTINED = "quarantined"
    """Rows move to ``rejects``, or back from there."""
    RETIRED = "retired"
    """Rows go for good, and somebody answers for it."""


@dataclass(frozen=True, slots=True)
class PlanKind:
    """A kind of plan.

    Attributes
    ----------
    name
        As the plan file and the ledger say it.
    rows
        What it does to the number of rows.
    body
        What a plan's body must have, as `ranklake.lake.store.json_shape` says it.
    rules
        Yields what a body says, of the right shape, that no plan of the kind may say.
    is_replayable
        Whether dates that such a plan rewrote may be replayed: what it took away is known by other means, or it took
        nothing.
    execute
        ``module:function`` that carries a plan out (`ranklake.lake.plans.driver.Executor`).
    verify
        ``module:function`` that checks a plan that was found against the lake (`ranklake.lake.plans.verification`).
    purges_dates
        Whether a plan that deletes files deletes all that its dates hold from before, too; else those that it names.
    fences
        Whether nothing that was computed before it may be committed after it (`ranklake.lake.tables.commit.fence`).
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
    rows=Rows.QUARANTINED,  # the other way round: rows leave ``rejects``
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
    rows=Rows.RETIRED,  # the other way round: rows come back that had gone
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
    """Return where the ledger's rows of a kind are booked; a kind that is not known here took its rows for good."""
    return KINDS[name].rows if name in KINDS else Rows.RETIRED


def is_replayable(name: str) -> bool:
    """Whether replay may pass a date that a plan of a kind rewrote; of a kind that is not known it may not."""
    return name in KINDS and KINDS[name].is_replayable


def resolve(name: str) -> Callable[..., Any]:
    """Return what a kind names as ``module:function``; its module is imported by the first call."""
    target: Callable[..., Any] = resolve_name(name)
    return target
