"""Steps: what the audit trail says was done about proposals, and in which mode the lake was."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit.trail import TABLE
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.proposals import AnyKind

if TYPE_CHECKING:
    from ranklake.lake.store.tables import Tables

MODE: Final = "approvals.mode"
"""Action of a row that says how the lake knows who acts, from then on."""
SKEW: Final = timedelta(minutes=5)
"""How much clocks may differ."""
_COLUMNS: Final = ("seq", "ts", "actor", "action", "subject", "reason", "details")


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the trail about a proposal, or about the mode. Its columns, and its details as plain values."""

    seq: int
    ts: datetime
    actor: str
    action: str
    subject: str
    reason: str | None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Step":
        """Return the step of a row; details that cannot be read are none."""
        try:
            details = json.loads(row["details"] or "{}")
        except ValueError:
            details = {}
        facts = {name: row[name] for name in _COLUMNS}
        return cls(**{**facts, "details": details if isinstance(details, dict) else {}})

    @property
    def row(self) -> dict[str, Any]:
        """The columns, as `ranklake.retention.proposals.statements` takes them."""
        return {name: getattr(self, name) for name in _COLUMNS}


class Actions(dict[str, dict[str, list[Step]]]):
    """Steps by subject and action, each list in the order of the trail; `end` is when its last row was written."""

    end: datetime | None = None


def recorded_actions(tables: "Tables", kind: AnyKind) -> Actions:
    """Return what the trail says of proposals of a kind, and of the mode. Whether it is whole is another question."""
    rows = read(tables, contract(TABLE), list(_COLUMNS))
    actions = Actions()
    wanted = pa.array([kind.propose, kind.approve, kind.begin, kind.applied, MODE])
    for step in _steps(rows.filter(pc.is_in(rows["action"], value_set=wanted))):
        actions.setdefault(step.subject, {}).setdefault(step.action, []).append(step)
    if rows.num_rows:
        actions.end = rows["ts"][pc.index(rows["seq"], pc.max(rows["seq"])).as_py()].as_py()
    return actions


def every_step(tables: "Tables") -> tuple[list[Step], list[tuple[int, datetime]]]:
    """Return the steps of all kinds of proposals, legal holds, and rows that are dated before the one before them.

    The latter by more than clocks may differ (`SKEW`), each with when the row before was written.
    """
    rows = read(tables, contract(TABLE), list(_COLUMNS)).sort_by("seq")
    of_proposals = pc.match_substring_regex(rows["action"], rf"^{MODE}$|\.(propose|approve|apply|hold)$")
    times = rows["ts"].cast(pa.int64()).to_numpy()
    back = (times[:-1] - times[1:] > SKEW / timedelta(microseconds=1)).nonzero()[0].tolist()
    return list(_steps(rows.filter(of_proposals))), [
        (rows["seq"][place + 1].as_py(), rows["ts"][place].as_py()) for place in back
    ]


def _steps(rows: pa.Table) -> Iterator[Step]:
    return map(Step.of, rows.sort_by("seq").to_pylist())
