"""A person planted in every kind of place of a lake, a spool and folders beside them, beside another person."""

import base64
import gzip
import json
import sqlite3
from datetime import UTC, date, datetime, timedelta

import msgpack
import pyarrow as pa
from archiving import archived, policies_in
from governed import Site, any_rows
from packing import pack_up
from retaining import agree, carry_out, keeping, plan, purge_after
from segments import put_segment, step_rows

from ranklake.insight.saved_views import SavedChange, save_view
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.index_summary import COLUMNS, Summary, no_rows, save
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.plan import append_own
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.query.usage import LoggedQuery, note
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.pipeline.alerts.state import Alert, AlertState
from ranklake.pipeline.alerts.stored_state import AlertRecord, load_state, save_state, write_history
from ranklake.retention.archive.rehydration import approve, propose, rehydrate, select_archives, write_down
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.shares.sharing import share

ADA, EMAIL = "ada.lovelace", "ada@analytical.example"
GRACE, GRACE_MAIL = "grace.hopper", "grace@navy.example"
START = datetime(2026, 3, 1, tzinfo=UTC)
VALUES = (ADA, EMAIL)
AGED = date(2026, 3, 25)
"""A day on which rows of `START` are old enough to be downsampled and archived, and not to be deleted."""
GRACES = ("graced", "returned", "purged")
"""Runs of which rows are in their grace, came back, and are gone for good."""
_RETIRING = (
    "curves: {where: {table: scalars}, downsample: {after_days: 20, interval: 1m}, reason: curves stay}",
    "cold: {where: {table: events}, archive: {after_days: 20, to: TO}, reason: rarely read}",
)


def person_rows(site: Site, who: str, mail: str, seed: int) -> None:
    """Record, as a rank does: a run named so, whose user it is, lines of its log, steps that ingest refuses."""
    run = f"{who}-exp1"
    site.bring(any_rows("runs", 1, run=run, incarnation=seed, user=[who], labels=[json.dumps({"owner": mail})]), "runs")
    lines = [f"started by {mail}", "step 1 done", f"path=/home/{who}/x", "bye"]
    site.bring(any_rows("logs", 4, run=f"shared-{seed}", incarnation=seed + 1, message=lines), "logs")
    for segment in range(2):
        rows = step_rows(20, run=run, incarnation=seed + 2, segment=segment, seed=seed)
        site.bring(rows, rows_before=20 * segment)
    values = {"metric": ["loss"] * 3, "value": [1.0, 2.0, 3.0], "kind": ["gauge"] * 3}
    site.bring(any_rows("scalars", 3, run=run, incarnation=seed + 5, **values), "scalars")
    site.bring(any_rows("events", 2, run=run, incarnation=seed + 6, event=["run.start", "run.end"]), "events")
    for place, name in enumerate(GRACES, 7):  # what comes of each does `keep`
        lines = [f"{name}: mail {mail}", f"{name}: mail nobody"]
        own = {"run": name, "incarnation": seed + place}
        site.bring(any_rows("logs", 2, message=lines, **own), "logs", **own)
    spans = {"name": ["forward"] * 2, "kind": ["phase"] * 2, "duration_ns": [1, 2], "span_id": [1, 2]}
    site.bring(any_rows("spans", 2, run=run, incarnation=seed + 10, **spans), "spans")
    bad = step_rows(6, run=run, incarnation=seed + 3, seed=seed)
    at = bad.schema.get_field_index("step_time_s")
    bad = bad.set_column(at, bad.schema.field(at), pa.array([-1.0] * 3 + [1.0] * 3, pa.float32()))
    site.bring(bad)
    broken = put_segment(site.spool, step_rows(5, run=run, incarnation=seed + 4))
    broken.write_bytes(broken.read_bytes()[:-40])


def plant(site: Site) -> dict:
    """Plant two people; return the folders beside the lake, by what they are."""
    for who, mail, seed in ((ADA, EMAIL, 100), (GRACE, GRACE_MAIL, 200)):
        person_rows(site, who, mail, seed)
    site.bring(step_rows(3, run="other", incarnation=11))
    run_rollups(site.lake)
    retire(site)
    keep(site)
    merge_small(site.lake, InProcess(), ["steps"], thorough=True)
    pack_up(site.spool, sorted(site.spool.glob("segments/*/logs/*.parquet")))
    for who, mail in ((ADA, EMAIL), (GRACE, GRACE_MAIL)):
        _result(site, f"values such as {mail}")
        _alert(site, who, mail)
        assert not note(site.lake.store, LoggedQuery(who, None, {"steps": ("loss",)}, {}))
        asked = (("run", f"{who}-exp1"), ("sql", f"SELECT '{mail}'"))
        save_view(site.lake.store, SavedChange("", f"of {who}", "explore", asked, START, mail))
        imports = site.spool / "imports" / f"{len(who):064x}.json"
        imports.parent.mkdir(exist_ok=True)
        imports.write_text(json.dumps({"path": f"/home/{who}/log.txt", "run": "imported"}))
        (site.folder / "lake" / "migrating").mkdir(exist_ok=True)
        (site.folder / "lake" / "migrating" / f"0001~{who[:3]}.json").write_text(json.dumps({"run": f"{who}-exp1"}))
        tallies = site.folder / "lake" / "tallies" / "steps"
        tallies.mkdir(parents=True, exist_ok=True)
        (tallies / f"2026-01-0{len(who)}.msgpack").write_bytes(msgpack.packb({"runs": [f"{who}-exp1"]}))
    odd = (
        read(site.lake.tables, contract("segments"), list(COLUMNS)).replace_schema_metadata(None).cast(no_rows().schema)
    )
    save(site.lake.store, Summary(1, 1, _streams(), odd.filter(odd["unreadable"].is_valid())))
    role = Role("reader", frozenset({"operational", "pseudonymous", "personal"}), frozenset({"steps", "runs", "logs"}))
    share(site.lake, role, str(site.folder / "shares"), "Sam", InProcess())
    for table in ("steps", "runs", "segments"):
        delta_table(site.lake.store, table).create_checkpoint()
    return _beside(site)


def _alert(site: Site, who: str, mail: str) -> None:
    """Have an alert fire about a person's run, in the state between rounds and in the history."""
    facts = {"rule": "slow", "subject": f"{who}-exp1", "severity": "error", "message": f"ask {mail}"}
    alert = Alert(**facts, labels={"run": f"{who}-exp1", "user": who}, since=START, fired=START)
    last, records = load_state(site.lake.store), {alert.key: AlertRecord(alert=alert)}
    state = AlertState({**last.state.alerts, alert.key: alert})
    assert save_state(site.lake.store, last.following(state=state, records={**last.records, **records}))
    write_history(site.lake.tables, {}, records, START)


def retire(site: Site) -> None:
    """Have curves downsampled, and moments archived and brought back: rows that are no rows of their tables."""
    policies = policies_in(site.folder, *_RETIRING)
    assert {item.table for item in archived(site, policies, AGED)} == {"scalars", "events"}
    some = select_archives(site.lake.tables, "events", START.date(), AGED)
    made = write_down(site.lake, some, AGED + timedelta(days=360), "Petra", "an incident", AGED)
    propose(site.lake, made, "Petra")
    approve(site.lake, made.name, "Anna")
    rehydrate(site.lake, made.name, "Otto", policies, today=AGED)


def keep(site: Site) -> None:
    """Have rows taken under a grace: some are in it, some came back, some were purged."""
    for name in reversed(GRACES):
        rules = [f"{name}: {{where: {{table: logs, run: {name}}}, delete_after_days: 5, reason: short}}"]
        if name == "graced":
            rules.append("spans: {where: {table: spans}, delete_after_days: 5, reason: short}")
        policies = keeping(policies_in(site.folder, *rules))
        made = plan(site, AGED, policies)
        agree(site, made.name)
        carry_out(site, made.name, AGED, policies)
        if name == "purged":
            assert purge_after(site) == (made.name,)
        elif name == "returned":
            cancel(site.lake, made.name, "Carla")


def _streams() -> pa.Table:
    """Return what a summary of segments says of one stream."""
    kinds = {"table": pa.string(), "incarnation": pa.int64(), "last_segment": pa.int32()}
    schema = pa.schema({**kinds, "first_plan": pa.int64(), "last_plan": pa.int64()})
    return pa.table(
        [pa.array([value], field.type) for value, field in zip(("x", 1, 0, 1, 1), schema, strict=True)], schema=schema
    )


def _result(site: Site, observed: str) -> None:
    names = {"check_run": observed[-8:], "table": "logs", "suite": "logs", "expectation": "E", "check_id": "c"}
    said = {"severity": "warning", "status": "failed", "on_fail": "record", "observed": observed}
    when = {"ts": START, "date": START.date(), "partition_date": START.date(), "files_sha256": "0" * 64}
    row = {**names, **said, **when}
    append_own(site.lake.tables, "quality_results", lambda _: [row])


def _beside(site: Site) -> dict:
    pages, prefect = site.folder / "site", site.folder / "prefect"
    for folder in (pages, prefect / "storage"):
        folder.mkdir(parents=True)
    (pages / "run.html").write_text(f"<h1>{ADA}-exp1</h1><p>{GRACE}</p>")
    (pages / "runs.json").write_text(json.dumps([{"user": ADA}, {"user": GRACE}]))
    (pages / "archive.html.gz").write_bytes(gzip.compress(f"<h1>{ADA}</h1>".encode()))
    (prefect / "storage" / "result").write_text(json.dumps({"result": base64.b64encode(EMAIL.encode()).decode()}))
    database = sqlite3.connect(prefect / "prefect.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE flow_run (id INTEGER PRIMARY KEY, name TEXT, parameters JSON)")
    database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, message TEXT)")
    for number, who in enumerate((ADA, GRACE) * 50):
        database.execute("INSERT INTO flow_run VALUES (?, ?, ?)", (number, f"run of {who}", json.dumps({"user": who})))
        database.execute("INSERT INTO log VALUES (?, ?)", (number, f"ingested {who}-exp1"))
    database.execute("DELETE FROM log WHERE id = 0")
    database.commit()
    return {"pages": pages, "prefect": prefect, "database": database}


def others(site: Site) -> dict[str, list[str]]:
    """Return all rows that are not Ada's, of every table but the books, as sorted text."""
    found = {}
    for table, one in site.lake.contracts().items():
        if one.retention in {"system", "audit"}:
            continue
        rows = [json.dumps(row, default=str, sort_keys=True) for row in read(site.lake.tables, one).to_pylist()]
        found[table] = sorted(row for row in rows if ADA not in row and EMAIL not in row)
    return found


__all__ = ["ADA", "EMAIL", "GRACE", "GRACES", "GRACE_MAIL", "VALUES", "others", "plant"]
