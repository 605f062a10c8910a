"""Whether a plan that was found may be carried out: what it says is held against the lake before anything is done.

    seal (where keys are configured) ─▶ spool (ingest) ─▶ rows by the log and by footers (all others)
        ─▶ approval, as it stands in the audit trail (retention; whatever disowns)

A plan that this process composed itself needs none of it. `ranklake.lake.plans.rules` has looked already at what a plan
says by itself.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.delta.commit import PLAN_ID, files, fingerprint, number_of, said
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.governance.approval import require
from ranklake.lake.governance.register import TABLE, find
from ranklake.lake.ingest.disowned import COLUMNS, DISOWN, claim_of
from ranklake.lake.ingest.disowned import TABLE as DISOWNED
from ranklake.lake.ingest.segment_reading import segment_name
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.plan import FORGED, LEDGER, RESTORE, Plan, RefusedPlanError
from ranklake.lake.plans.rules import segment_paths
from ranklake.lake.plans.signature import SEAL, is_sealed
from ranklake.lake.spool.gate import printable
from ranklake.lake.spool.spool import Spool

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.storage.store import Lake


def authorise(lake: "Lake", plan: Plan) -> None:
    """Raise `RefusedPlanError` where a plan that was found must not be carried out.

    Raises `ranklake.segments.envelope.MissingKeyError` where the key of its seal is not at hand, and what the
    store raises.
    """
    _sealed(lake, plan)
    _LOOKS[plan.kind](lake, plan)
    if plan.kind not in {"ingest", "compaction"}:  # the one writes nothing there, the other only what was there
        _disowning(lake, plan)


def _refuse(lake: "Lake", plan: Plan, what: str, mend: str = FORGED) -> RefusedPlanError:
    return RefusedPlanError(what, lake.path(plan.name), mend)


def _no_file(lake: "Lake", plan: Plan, path: str) -> RefusedPlanError:
    return _refuse(lake, plan, f"the plan adds a file that is not there, or is none: {path}", RESTORE)


def _sealed(lake: "Lake", plan: Plan) -> None:
    trust = lake.trust
    if trust.plans_key and SEAL in plan.body and not is_sealed(plan.facts, trust.plans_key):
        raise _refuse(lake, plan, "the plan's seal is not that of its key")
    if trust.require_signed_plans and (SEAL not in plan.body or not trust.plans_key):
        mend = "find out who put the file there; if it is your own from before, finish it once without "
        raise _refuse(lake, plan, "the plan has no seal, and one is required", f"{mend}require_signed_plans")


def _ingest(lake: "Lake", plan: Plan) -> None:
    """Look whether all that the plan reads lies in its spool, and whether that is one of ours."""
    if lake.trust.spools and _root(lake, plan.body["spool"]) not in {_root(lake, uri) for uri in lake.trust.spools}:
        uri = plan.body["spool"]
        mend = f"if that is a spool of yours, finish it with --spool {uri}; else remove the file"
        raise _refuse(lake, plan, f"the plan reads another spool: {uri}", mend)
    inside = f"{_root(lake, plan.body['spool'])}/"
    for row in plan.body["segments"]:
        for path in segment_paths(row):
            if not path.startswith(inside):
                raise _refuse(lake, plan, f"the plan reads what is not in its spool: {path}")
        if not row.get("refused"):
            _vouched(lake, plan, row, inside)


def _vouched(lake: "Lake", plan: Plan, row: Mapping[str, Any], inside: str) -> None:
    """Look whether the plan asks of a segment what the operator asks of its prefix."""
    below = row["path"].removeprefix(inside)
    own, name = lake.writers.of(below), segment_name(row["path"])
    against = lake.writers.against(below, name) if name is not None else ""
    asked = own is not None and _asks(plan.body.get("rules"), row.get("rule"), own.prefix)
    if against or (own is not None and own.require_signed and not asked):
        mend = "if it is your own, finish it under the [[spool.prefixes]] that it was made under; else remove the file"
        what = against or "the plan asks for no signature where one is required"
        raise _refuse(lake, plan, f"{what}: {row['path']}", mend)


def _asks(rules: object, place: object, prefix: str) -> bool:
    """Say whether a plan's rule at a place asks for signatures of a prefix."""
    if not isinstance(rules, list) or not isinstance(place, int) or not 0 <= place < len(rules):
        return False
    rule = rules[place]
    return (
        isinstance(rule, dict)
        and rule.get("prefix") == prefix
        and rule.get("signed") is True
        and bool(rule.get("keys"))
    )


def _root(lake: "Lake", uri: str) -> str:
    return Spool(uri, lake.storage).root


def _rows(lake: "Lake", plan: Plan) -> None:
    """Look whether files that come and go have the rows that the plan says, where it is not committed yet."""
    added: dict[str, list[dict[str, Any]]] = {}
    for row in plan.body["add"]:
        added.setdefault(row["table"], []).append(row)
    for table in sorted({*added, *plan.body["remove"]}):
        if table not in table_names():
            raise _refuse(lake, plan, f"the plan changes a table that is not known: {table}")
        handle = delta_table(lake, table)
        if handle is not None and _committed(handle, table, plan.number):
            continue
        for row in added.get(table, []):
            _held(lake, plan, table, row)
        live = {} if handle is None else {row["path"]: row for row in _live(handle)}
        for row in plan.body["remove"].get(table, []):
            _dropped(lake, plan, table, row, live)


def _committed(handle: "DeltaTable", table: str, number: int) -> bool:
    done = number_of(handle) if table == LEDGER else said(handle, PLAN_ID)
    return done is not None and done >= number


def _live(handle: "DeltaTable") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = files(handle).select(["path", "size_bytes", "num_records", "date"]).to_pylist()
    return rows


def _held(lake: "Lake", plan: Plan, table: str, row: Mapping[str, Any]) -> None:
    """Look whether a new file is there, with the rows that the plan says."""
    path = lake.path("tables", table, row["path"])
    try:
        with lake.open_file(path, row["size_bytes"]) as source:
            rows, size = pq.read_metadata(source).num_rows, source.size()
    except (FileNotFoundError, pa.ArrowInvalid):
        raise _no_file(lake, plan, path) from None
    if (rows, size) != (row["rows"], row["size_bytes"]):
        raise _refuse(lake, plan, f"the plan says of a file what is not true, {row['rows']} rows for {rows}: {path}")


def _dropped(
    lake: "Lake", plan: Plan, table: str, row: Mapping[str, Any], live: Mapping[str, Mapping[str, Any]]
) -> None:
    """Look whether a file that goes has the rows that the plan says.

    One that is not live (any more) is no harm: a merge of it is passed over, and a rollup may have replaced its own.
    """
    found = live.get(row["path"])
    if found is None and (plan.kind == "compaction" or contract(table).kind == "derived"):
        return
    facts = (row["num_records"], row["size_bytes"], row["date"])
    if found is None or (found["num_records"], found["size_bytes"], found["date"].isoformat()) != facts:
        raise _refuse(lake, plan, f"the log of {table} knows no such file, or one with other rows: {row['path']}")


def _retention(lake: "Lake", plan: Plan) -> None:
    """Look whether exactly what somebody approved goes."""
    _rows(lake, plan)
    name = plan.body["facts"]["retention_plan"]
    try:
        approved = find(lake, name)
        require(lake, approved, begun=True)
    except RanklakeError as error:
        raise _refuse(lake, plan, f"the plan would remove rows without approval: {name}: {error.what}") from error
    gone: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table, rows in plan.body["remove"].items():
        for row in rows:
            gone.setdefault((table, row["date"]), []).append(row)
    agreed = {(item.table, item.partition_date.isoformat()): (item.rows, item.files_sha256) for item in approved.items}
    told = {
        place: (sum(row["num_records"] for row in rows), fingerprint(row["path"] for row in rows))
        for place, rows in gone.items()
    }
    for table, days in plan.body["facts"].get(QUARANTINED, {}).items():
        told |= {(table, day): (0, fingerprint(some)) for day, some in days.items()}
    if told != agreed or approved.approved is None:
        raise _refuse(lake, plan, f"the plan would remove other rows than were approved: {name}")
    _application(lake, plan, name)


def _application(lake: "Lake", plan: Plan, name: str) -> None:
    """Look whether the one row that the plan brings is its own entry in the register."""
    (row,) = plan.body["add"]
    with lake.open_file(lake.path("tables", TABLE, row["path"]), row["size_bytes"]) as source:
        (entry,) = pq.read_table(source, columns=["retention_plan", "row_kind", "plan"]).to_pylist()
    if entry != {"retention_plan": name, "row_kind": "application", "plan": plan.number}:
        raise _refuse(lake, plan, "the plan would write another row into the register than its own")


def _disowning(lake: "Lake", plan: Plan) -> None:
    """Look whether somebody answers for each claim that the plan would set aside."""
    claims: list[str] = []
    for row in plan.body["add"]:
        if row["table"] == DISOWNED:
            path = lake.path("tables", DISOWNED, row["path"])
            try:
                with lake.open_file(path, row["size_bytes"]) as source:
                    said = pq.read_table(source).to_pylist()
            except (FileNotFoundError, pa.ArrowInvalid):
                raise _refuse(
                    lake, plan, f"the plan adds a file that is not there, or is none: {path}", RESTORE
                ) from None
            claims += [_claim(lake, plan, one) for one in said]
    if not claims:
        return
    proof = prove(lake)
    if not proof.whole:
        raise _refuse(lake, plan, f"the plan would disown, and the audit trail is broken: {proof.why}")
    answered = {row["subject"] for row in trail(lake) if row["action"] == DISOWN}
    for claim in claims:
        if claim not in answered:
            what = f"the plan would disown what nobody answers for in the audit trail: {printable(claim)}"
            raise _refuse(lake, plan, what)


def _claim(lake: "Lake", plan: Plan, row: Mapping[str, Any]) -> str:
    """Return a claim as the trail names it; columns without a value are not written."""
    try:
        return str(claim_of({**dict.fromkeys(COLUMNS), **row}))
    except (TypeError, ValueError):
        raise _refuse(lake, plan, "the plan would disown what names no stream") from None


def _nobody(lake: "Lake", plan: Plan) -> None:
    raise _refuse(lake, plan, f"nothing says who approved a plan of kind {plan.kind}, and no command makes one")


_LOOKS: Final[Mapping[str, Callable[["Lake", Plan], None]]] = {
    "ingest": _ingest,
    "compaction": _rows,
    "quarantine": _rows,
    "replay": _rows,
    "renumber": _rows,
    "retention": _retention,
    "migration": _nobody,
    "erasure": _nobody,
}
