"""The kinds of plans: one table of what a plan of each kind may contain, does to rows, and is carried out by.

A new kind is a line here, its rules in `ranklake.lake.plans.rules`, and whoever composes it. What carries a kind out
and what verifies it live with the kind, in folders that stand on this one; so they are named, as entry points are, and
imported when the first plan of the kind is met. This is the one place of the lake that names modules so, and
``tests/lake/plans/test_plan_kinds.py`` resolves every name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final

from ranklake.lake.plans import rules
from ranklake.lake.plans.grace import cancellation_faults, purge_faults
from ranklake.lake.plans.removal_rules import erasure_faults, retention_faults

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

    @property
    def removes_rows(self) -> bool:
        """Whether a table may hold fewer rows afterwards."""
        return self.rows in {Rows.QUARANTINED, Rows.RETIRED}


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
    execute="ranklake.lake.migrations.carry_out:execute",
    verify="ranklake.lake.migrations.carry_out:verify_migration",
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
