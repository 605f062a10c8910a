"""Numbered plans: each describes a change to the lake and is written before the change is made.

A plan file is written only if its name is free, and never changes. At most one plan is unfinished: the next number is
used only after the last plan is finished. A plan is finished when the ledger, the table ``ingest_plans``, has its
number. Every plan commits to the ledger last.

A plan may be sealed with a MAC under a key that other writers of the bucket do not have:

    "seal": {"key": <id>, "hmac_sha256": HMAC-SHA256(key, content of the plan file except seal and digest)}

The keys are in a keyring that `ranklake.segments.keys` reads: the first key seals, all are accepted. To rotate the key,
put the new one first, and remove the old one when no plan sealed with it is unfinished. Use each keyring for one lake
only, because plans of another lake with the same key would be accepted.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import KINDS
from ranklake.lake.store.json_shape import fault
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import ensure_table, latest, refuse_unfit
from ranklake.segments.envelope import Key
from ranklake.segments.keys import find_key, read_keyring

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile

FORMAT: Final = 1
LEDGER: Final = "ingest_plans"
RESTORE: Final = "restore the file from a backup; if no commit carries its number it may be removed"

Progress = Callable[[int, int], None]
"""Called with (finished tasks, all tasks of the plan) while a plan is carried out."""


_DIGEST: Final = "sha256"
FORGED: Final = "nothing of it was carried out; find out who put the file there, then remove it"


class DamagedPlanError(RanklakeError):
    """A plan file cannot be read. No later plan can be written until it is repaired."""


class RefusedPlanError(DamagedPlanError):
    """A plan file breaks the rules of its kind, or its seal is invalid. Nothing of it was carried out."""

    def __init__(self, what: str, where: str, hint: str = FORGED) -> None:
        super().__init__(what, where=where, hint=hint)


@dataclass(frozen=True, slots=True)
class Plan:
    """An immutable plan.

    Attributes
    ----------
    number
        Counts from 1, without gaps.
    kind
        A key of `ranklake.lake.plans.kinds.KINDS`.
    created_us
        Microseconds since 1970.
    body
        All data that any process needs to carry out the plan; plain JSON values.
    """

    number: int
    kind: str
    created_us: int
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> datetime:
        """Time at which the plan was composed, in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.created_us)

    @property
    def name(self) -> str:
        """Name of the plan's file in the lake."""
        return f"plans/{self.number:010d}.json"

    @property
    def facts(self) -> dict[str, Any]:
        """Content of the plan file, except for its digest."""
        return {"format": FORMAT, "plan": self.number, "kind": self.kind, "created_us": self.created_us, **self.body}

    def to_json(self) -> bytes:
        """Return the plan file's bytes."""
        return json.dumps({**self.facts, _DIGEST: _digest(self.facts)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Plan":
        """Parse a plan file and validate its body against its kind.

        Raises `DamagedPlanError`, or `RefusedPlanError` for a body that breaks the rules of its kind. ``where`` names
        the file in errors.
        """
        try:
            facts = json.loads(raw)
            digest = facts.pop(_DIGEST, None)
            is_intact = digest is None or digest == _digest(facts)
            head = (facts.pop("format"), int(facts.pop("plan")), str(facts.pop("kind")), int(facts.pop("created_us")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedPlanError("the plan cannot be read", where=where, hint=RESTORE) from error
        if head[0] != FORMAT:
            raise DamagedPlanError(f"plan format {head[0]} is not {FORMAT}", where=where, hint="upgrade ranklake")
        if not is_intact:
            raise DamagedPlanError("the plan does not have the digest that it names", where=where, hint=RESTORE)
        kind = KINDS.get(head[2])
        if kind is None:
            raise DamagedPlanError(f"plans of kind {head[2]!r} are not known", where=where, hint="upgrade ranklake")
        problem = fault(facts, kind.body, "body")
        if problem is not None:
            raise DamagedPlanError(f"the plan's {problem}", where=where, hint=RESTORE)
        violation = next(kind.rules(facts), None)
        if violation is not None:
            raise RefusedPlanError(f"a plan of kind {kind.name} that nobody may carry out: {violation}", where)
        return cls(*head[1:], facts)


def seal_plan(plan: Plan, keys: str) -> Plan:
    """Return the plan with a seal, if keys are configured. Raises `MissingKeyError`."""
    if not keys:
        return plan
    return replace(plan, body={**plan.body, SEAL: seal(plan.facts, keys)})


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def last_finished(tables: "Tables") -> int:
    """Return the number of the last finished plan; 0 if there is none.

    Every driver calls this first. Raises `ranklake.lake.tables.tables.NewerTableError` if newer software wrote the
    lake.
    """
    ledger = latest(tables, LEDGER)
    return 0 if ledger is None else number_of(refuse_unfit(ledger, contract(LEDGER)))


def read_plan(store: "Store", number: int) -> Plan | None:
    """Return a plan by number; None if it does not exist. Raises `DamagedPlanError`."""
    where = store.path(Plan(number, "", 0).name)
    try:
        plan = Plan.from_json(store.fs.cat_file(where), where)
    except FileNotFoundError:
        return None
    if plan.number != number:
        raise DamagedPlanError(f"the file holds plan {plan.number}", where=where, hint=RESTORE)
    return plan


def write_and_carry_out(
    lake: "Lake",
    compose: Callable[[int], Plan | None],
    carry_out: Callable[[Plan], None],
    authorise: Callable[[Plan], None],
) -> Plan | None:
    """Finish an unfinished plan, then write the next plan and carry it out. Returns it; None if there is nothing to do.

    Two drivers may compose plans with the same number. Only one of the files is written. The other driver finds the
    number taken, carries out that plan, too (every commit is a compare-and-swap), and then composes again.

    Parameters
    ----------
    compose
        Called with a free number when all earlier plans are finished. Returns the plan, or None if there is nothing to
        do.
    carry_out
        Carries out a plan. Must be repeatable: the plan may be unfinished because of a killed or concurrent process.
    authorise
        Called with an existing plan before it is carried out. Raises if the plan must not be carried out.
    """
    own: Plan | None = None
    while True:
        finished = last_finished(lake.tables)
        if own is not None and finished >= own.number:
            return own
        number = finished + 1
        if own is not None and own.number == number:  # another driver carries it out at the same time
            waiting: Plan | None = own
        elif (waiting := read_plan(lake.store, number)) is not None:
            authorise(waiting)
        plan = waiting or compose(number)
        if plan is None:
            return None
        if waiting is None:
            if not lake.put_if_absent(plan.name, seal_plan(plan, lake.config.plans.key).to_json()):
                continue
            own = plan
        try:
            carry_out(plan)
        except LostRaceError:  # another driver carries out the same plan: continue after its commits
            continue


SEAL: Final = "seal"


def seal(facts: Mapping[str, Any], keys: str) -> dict[str, str]:
    """Return the seal for the content of a plan. Raises `ranklake.segments.envelope.MissingKeyError`."""
    key = read_keyring(keys).active
    return {"key": key.id, "hmac_sha256": _mac(facts, key)}


def is_sealed(facts: Mapping[str, Any], keys: str) -> bool:
    """Whether a plan has a valid seal of one of these keys.

    Raises `ranklake.segments.envelope.MissingKeyError` if the key that the seal names is not in the keyring.
    """
    seal = facts.get(SEAL)
    if not isinstance(seal, dict) or not all(isinstance(seal.get(name), str) for name in ("key", "hmac_sha256")):
        return False
    return hmac.compare_digest(_mac(facts, find_key(keys, seal["key"])), seal["hmac_sha256"])


def _mac(facts: Mapping[str, Any], key: Key) -> str:
    unsealed = {name: value for name, value in facts.items() if name != SEAL}
    return hmac.new(key.plan_secret, json.dumps(unsealed, sort_keys=True).encode(), "sha256").hexdigest()


def commit_rows(tables: "Tables", table: str, rows: list[dict[str, Any]], number: int) -> bool:
    """Append rows to a system table with a plan's number. Returns False if the table already has this number."""
    handle = ensure_table(tables, contract(table))
    if number_of(handle) >= number:
        return False
    new = row_files(tables.store, table, rows, number)
    return swap(handle, number, add=new, metadata={"ranklake.plan": str(number)})


def append_own(tables: "Tables", table: str, compose: Callable[["DeltaTable"], list[dict[str, Any]]]) -> int:
    """Append rows to a system table that counts its own commits. Returns the number of rows.

    Parameters
    ----------
    compose
        Called with a current handle of the table. Returns the rows to append. Called again after a lost race, so the
        rows may depend on the table's content.
    """
    while True:
        handle = ensure_table(tables, contract(table))
        rows = compose(handle)
        if not rows:
            return 0
        number = number_of(handle) + 1
        try:
            swap(handle, number, add=row_files(tables.store, table, rows, number))
        except LostRaceError:
            continue
        return len(rows)


def row_files(store: "Store", table: str, rows: list[dict[str, Any]], number: int) -> "list[DataFile]":
    """Write rows as new files of a system table, without a commit."""
    return append_files(
        store, contract(table), pa.Table.from_pylist(rows, schema=arrow_schema(contract(table))), number
    )


def ledger_row(plan: "Plan", tables: Mapping[str, int], **counts: int) -> dict[str, Any]:
    """Return the row of ``ingest_plans`` that finishes a plan.

    Parameters
    ----------
    tables
        Change of each table's number of rows: positive for ingest, negative for removals.
    counts
        segments, rows_recorded, rows_stored, rows_rejected, rows_duplicate; default 0.
    """
    names = ("segments", "rows_recorded", "rows_stored", "rows_rejected", "rows_duplicate")
    return {
        "plan": plan.number,
        "kind": plan.kind,
        "created_ts": plan.created,
        "committed_ts": datetime.now(UTC),
        "tables": json.dumps(dict(tables), sort_keys=True),
        **{name: counts.get(name, 0) for name in names},
        "writer": plan.body["writer"],
        "date": plan.created.date(),
    }
