"""Numbered plans: changes to the lake, written before they are made, and the ledger row with which each ends.

A plan is written put-if-absent and never changes. Exactly one plan can be unfinished: the next number is proposed
only when the last plan is finished, and a plan is finished when the table ``ingest_plans``, which every plan commits
last, carries its number.

A plan may be sealed: a MAC under a key that writers of the bucket need not have.

    "seal": {"key": <id>, "hmac_sha256": HMAC-SHA256(key, what the plan file says except for seal and digest)}

Keys are a keyring by reference, as `ranklake.segments.keys` reads it: the first seals, each of them opens. To rotate a
key, write the new one before the others, and take the old one away when no plan is left unfinished under it. One
keyring serves one lake: a plan of another lake under the same key would be believed.
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
"""Told (tasks done, tasks in the plan) as a plan goes on."""


_DIGEST: Final = "sha256"
FORGED: Final = "nothing of it was carried out; find out who put the file there, then remove it"


class DamagedPlanError(RanklakeError):
    """A plan file that cannot be read; nothing after it can go on."""


class RefusedPlanError(DamagedPlanError):
    """A plan file that no ranklake wrote, or whose writer is unknown; nothing of it was carried out."""

    def __init__(self, what: str, where: str, hint: str = FORGED) -> None:
        super().__init__(what, where=where, hint=hint)


@dataclass(frozen=True, slots=True)
class Plan:
    """An immutable plan.

    Attributes
    ----------
    number
        From 1, without holes.
    kind
        A key of `ranklake.lake.plans.kinds.KINDS`.
    created_us
        Microseconds since 1970.
    body
        What the kind needs to be carried out again by anybody; plain JSON values.
    """

    number: int
    kind: str
    created_us: int
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> datetime:
        """When the plan was made, UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.created_us)

    @property
    def name(self) -> str:
        """Name of the plan's file in the lake."""
        return f"plans/{self.number:010d}.json"

    @property
    def facts(self) -> dict[str, Any]:
        """What the plan file says, except for its digest."""
        return {"format": FORMAT, "plan": self.number, "kind": self.kind, "created_us": self.created_us, **self.body}

    def to_json(self) -> bytes:
        """Return the plan file's bytes."""
        return json.dumps({**self.facts, _DIGEST: _digest(self.facts)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Plan":
        """Read a plan file. Raises `DamagedPlanError`; nobody has to look into a plan's body for what is missing."""
        try:
            facts = json.loads(raw)
            digest = facts.pop(_DIGEST, None)
            whole = digest is None or digest == _digest(facts)
            head = (facts.pop("format"), int(facts.pop("plan")), str(facts.pop("kind")), int(facts.pop("created_us")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedPlanError("the plan cannot be read", where=where, hint=RESTORE) from error
        if head[0] != FORMAT:
            raise DamagedPlanError(f"plan format {head[0]} is not {FORMAT}", where=where, hint="upgrade ranklake")
        if not whole:
            raise DamagedPlanError("the plan does not have the digest that it names", where=where, hint=RESTORE)
        kind = KINDS.get(head[2])
        if kind is None:
            raise DamagedPlanError(f"plans of kind {head[2]!r} are not known", where=where, hint="upgrade ranklake")
        wrong = fault(facts, kind.body, "body")
        if wrong is not None:
            raise DamagedPlanError(f"the plan's {wrong}", where=where, hint=RESTORE)
        broken = next(kind.rules(facts), None)
        if broken is not None:
            raise RefusedPlanError(f"a plan of kind {kind.name} that nobody may carry out: {broken}", where)
        return cls(*head[1:], facts)


def seal_plan(plan: Plan, keys: str) -> Plan:
    """Return the plan with its seal, where keys are configured. Raises `MissingKeyError`."""
    if not keys:
        return plan
    return replace(plan, body={**plan.body, SEAL: seal(plan.facts, keys)})


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def last_finished(tables: "Tables") -> int:
    """Return the number of the last finished plan; 0 before the first.

    Raises `ranklake.lake.tables.tables.NewerTableError`: every driver asks this first.
    """
    ledger = latest(tables, LEDGER)
    return 0 if ledger is None else number_of(refuse_unfit(ledger, contract(LEDGER)))


def read_plan(store: "Store", number: int) -> Plan | None:
    """Return a plan by number, or None where there is none."""
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
    """Finish what is unfinished, then write the next plan and carry it out.

    Parameters
    ----------
    compose
        Called with a free number when all earlier plans are finished; returns the plan, or None if there is nothing
        to do.
    carry_out
        Must be repeatable: it is called again for a plan that a dead process, or one that still runs, left unfinished.
    authorise
        Called with a plan that was found, before it is carried out; raises where it must not be.

    Thread 1 and thread 2 (two drivers) may compose the same number: one file wins, the other driver finds the number
    taken, carries out the winner's plan beside it (every commit of it is a compare-and-swap) and composes again.
    """
    mine: Plan | None = None
    while True:
        finished = last_finished(lake.tables)
        if mine is not None and finished >= mine.number:
            return mine
        number = finished + 1
        if mine is not None and mine.number == number:  # another driver carries it out beside this one
            waiting: Plan | None = mine
        elif (waiting := read_plan(lake.store, number)) is not None:
            authorise(waiting)
        plan = waiting or compose(number)
        if plan is None:
            return None
        if waiting is None:
            if not lake.put_if_absent(plan.name, seal_plan(plan, lake.config.plans.key).to_json()):
                continue
            mine = plan
        try:
            carry_out(plan)
        except LostRaceError:  # another driver carries out the same plan: go on from what it committed
            continue


SEAL: Final = "seal"


def seal(facts: Mapping[str, Any], keys: str) -> dict[str, str]:
    """Return the seal of what a plan says. Raises `ranklake.segments.envelope.MissingKeyError`."""
    key = read_keyring(keys).active
    return {"key": key.id, "hmac_sha256": _mac(facts, key)}


def is_sealed(facts: Mapping[str, Any], keys: str) -> bool:
    """Whether a plan has a seal, and one of these keys made it.

    Raises `ranklake.segments.envelope.MissingKeyError` where the key that it names is not at hand.
    """
    seal = facts.get(SEAL)
    if not isinstance(seal, dict) or not all(isinstance(seal.get(name), str) for name in ("key", "hmac_sha256")):
        return False
    return hmac.compare_digest(_mac(facts, find_key(keys, seal["key"])), seal["hmac_sha256"])


def _mac(facts: Mapping[str, Any], key: Key) -> str:
    unsealed = {name: value for name, value in facts.items() if name != SEAL}
    return hmac.new(key.plan_secret, json.dumps(unsealed, sort_keys=True).encode(), "sha256").hexdigest()


def commit_rows(tables: "Tables", table: str, rows: list[dict[str, Any]], number: int) -> bool:
    """Append rows, given as dicts, to a system table under a plan's number; return whether this call did it."""
    handle = ensure_table(tables, contract(table))
    if number_of(handle) >= number:
        return False
    new = row_files(tables.store, table, rows, number)
    return swap(handle, number, add=new, metadata={"ranklake.plan": str(number)})


def append_own(tables: "Tables", table: str, compose: Callable[["DeltaTable"], list[dict[str, Any]]]) -> int:
    """Append rows, given as dicts, to a system table that counts its own commits; return how many.

    Parameters
    ----------
    compose
        Called with a fresh handle; returns the rows, none if there is nothing to add. Whoever loses the race against
        another writer calls it again, so rows may depend on what the table holds.
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
    """Write rows, given as dicts, as new files of a system table; commit nothing."""
    return append_files(
        store, contract(table), pa.Table.from_pylist(rows, schema=arrow_schema(contract(table))), number
    )


def ledger_row(plan: "Plan", tables: Mapping[str, int], **counts: int) -> dict[str, Any]:
    """Return the row of ``ingest_plans`` that ends a plan.

    Parameters
    ----------
    tables
        Change of each table's row count: positive for ingest, negative for what takes rows away.
    counts
        segments, rows_recorded, rows_stored, rows_rejected, rows_duplicate; 0 where not given.
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
