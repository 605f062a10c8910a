"""Lakes in which a plan has begun whose process died: what it would bring lies there, and none of it is committed.

Whoever may write to the bucket may put another file in the place of one that the plan would bring, and change the plan
so that it agrees. `forge` does so.
"""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import under as under_rules
from governed import Site, any_rows, die_before, under
from loose import loose
from mutations import odd
from plan_files import all_plans, write_plan
from retaining import agree, carry_out, days_ago, plan
from segments import put_segment, step_rows

from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.writers import Prefix, Writers
from ranklake.quality.check import run_checks
from ranklake.quality.release import apply, approve, plan_release
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.releases import RELEASES
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS

ADA = "ada.lovelace"
STRICT = "extends: steps\nchecks: [{id: small, kind: between, columns: [loss], max: 3.0, on_fail: quarantine}]\n"


def _judged(site, bound):
    return under(site.lake, site.overlay(steps=STRICT.replace("3.0", bound)))


def _quarantine(site):
    site.bring(step_rows(40))
    return "steps", lambda: run_checks(_judged(site, "3.0"))


def _release(site):
    site.bring(step_rows(40))
    run_checks(_judged(site, "3.0"))
    lake = _judged(site, "30.0")
    name = plan_release(lake, "Pia", "the bound was wrong").name
    approve(lake, name, "Ada")
    return "rejects", lambda: apply(lake, name, "Otto")


def _retention(site):
    site.bring(step_rows(10, start=days_ago(200)))
    site.bring(step_rows(10, segment=1, start=days_ago(0)), rows_before=10)
    site.bring(any_rows("logs", 3, start=days_ago(31), incarnation=9), "logs")
    name = plan(site).name
    agree(site, name)
    return "logs", lambda: carry_out(site, name)


def _compaction(site):
    for segment in range(4):
        site.bring(step_rows(10, segment=segment), rows_before=10 * segment)
    return "steps", lambda: merge_small(site.lake, InProcess(), thorough=True)


def _segments(site):
    for number in range(2):
        put_segment(site.spool, step_rows(10, segment=number))
    wrong, mended = (Spool(str(site.spool), None, written_by(pattern)) for pattern in ("s*", "r*"))
    ingest(site.lake, wrong, InProcess())
    name = plan_release(site.lake, "Pia", "the pattern was wrong", spool=mended).name
    approve(site.lake, name, "Ada")
    return "quality_releases", lambda: apply(site.lake, name, "Otto", spool=mended)


def _erasure(site):
    site.bring(any_rows("runs", 1, run=ADA, user=[ADA], incarnation=5), "runs")
    for who, incarnation in ((ADA, 9), ("grace", 19)):
        site.bring(any_rows("logs", 3, incarnation=incarnation, message=[f"by {who}", "step", who]), "logs")
    site.bring(step_rows(10, run=f"{ADA}-exp"))
    reach = Reach(site.lake, Spool(str(site.spool)), ())
    subject = subject_of(site.lake, [ADA])
    made = make_plan(reach, subject)
    propose(site.lake, made, "Pia")
    approve_erasure(site.lake, made.name, "Ada")
    return "logs", lambda: erase(reach, made.name, subject, "Otto")


def written_by(pattern):
    """Return rules under which runs of a pattern may come."""
    return under_rules(Writers((Prefix("", runs=(pattern,)),)))


def make(root, kind):
    """Make a lake below a folder in which a plan of a kind has begun."""
    site = Site(root)
    table, act = KINDS[kind](site)
    with pytest.MonkeyPatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            act()
    lines = [(line, name) for kind, some in PROPOSED.items() for name in kind.register(site.lake) for line in some]
    (root / "proposed").write_text(json.dumps(lines))


PROPOSED = {
    ERASURES: (
        f"erase apply {{name}} {ADA} --by Otto --spool {{spool}}",
        f"erase plan {ADA} --by Pia --spool {{spool}}",
        "erase list",
        "erase certificate show {name}",
    ),
    RELEASES: (
        "quality release apply {name} --by Otto --spool {spool}",
        "quality release plan --by Pia --reason again --spool {spool}",
        "quality release list",
    ),
    RETENTION_PLANS: (
        "retain apply {name} --by Otto --spool {spool}",
        "retain plan",
        "retain list",
        "retain sweep --spool {spool}",
    ),
}
"""What is done with a proposal once its register was forged, by its kind."""
KINDS = {
    "quarantine": _quarantine,
    "release": _release,
    "release of segments": _segments,
    "retention": _retention,
    "erasure": _erasure,
    "compaction": _compaction,
}
"""What has begun, by name."""


def _without(rng, rows):
    return rows.drop_columns([rng.choice(rows.column_names)])


def _renamed(rng, rows):
    names = rows.column_names
    at = rng.randrange(len(names))
    names[at] = rng.choice(["", "x\n", "a.b", "date", "é" * 3000, names[at - 1]])
    return rows.rename_columns(names)


def _more_columns(rng, rows):
    name = rng.choice(["strange", "plan", "x" * 5000, rows.column_names[0]])
    return rows.append_column(name, pa.nulls(len(rows)))


def _other_type(rng, rows):
    at = rng.randrange(rows.num_columns)
    types = [pa.string(), pa.binary(), pa.int8(), pa.list_(pa.list_(pa.int64())), pa.struct([("x", pa.date32())])]
    types += [pa.decimal256(70, 3), pa.timestamp("s", "Europe/Berlin"), pa.dictionary(pa.int8(), pa.string())]
    field = pa.field(rows.column_names[at], rng.choice(types))
    return rows.set_column(at, field, pa.nulls(len(rows), field.type))


def _other_values(rng, rows):
    at = rng.randrange(rows.num_columns)
    field = rows.schema.field(at)
    value = odd(rng)
    try:
        values = pa.array([value] * len(rows), field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        values = pa.nulls(len(rows), field.type)
    return rows.set_column(at, field, values)


def _other_rows(rng, rows):
    some = [rows.slice(0, 0), rows.slice(1), pa.concat_tables([rows] * rng.choice([2, 50]))]
    return rng.choice([*some, rows.take(pa.array([0] * len(rows), pa.int64()))] if len(rows) else some)


def forge(rng, lake, outside):
    """Leave another file in the place of one that a plan would bring; the plan mostly agrees with it."""
    path = all_plans(lake)[-1]
    facts = json.loads(path.read_bytes())
    entry = rng.choice(facts["add"])
    file = lake / "tables" / entry["table"] / entry["path"]
    rows = rng.choice(FORGERIES)(rng, loose(pq.read_table(file, partitioning=None)))
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=rng.choice([1, 7, 1 << 20]), compression=rng.choice(["none", "zstd"]))
    raw = bytearray(sink.getvalue())
    if rng.random() < 0.3:  # pages that are damaged below a footer that is not
        for _ in range(rng.choice([1, 5, 50])):
            raw[rng.randrange(4, max(5, len(raw) // 2))] = rng.randrange(256)
    file.write_bytes(bytes(raw))
    if rng.random() < 0.9:
        stats = json.loads(entry["stats"])
        entry |= {"rows": len(rows), "size_bytes": len(raw), "stats": json.dumps(stats | {"numRecords": len(rows)})}
        for table, gone in facts["remove"].items():
            coming = sum(row["rows"] for row in facts["add"] if row["table"] == table)
            facts["account"][table] = coming - sum(row["num_records"] for row in gone)
    if rng.random() < 0.2:
        facts["facts"] = odd(rng)
    facts.pop("sha256")
    write_plan(path, facts)


FORGERIES = [_without, _without, _renamed, _more_columns, _other_type, _other_values, _other_rows, _other_rows]
