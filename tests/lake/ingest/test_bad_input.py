"""Plans, tables, segments and disks that are not as they should be: refused or set aside, and the books stand."""

import contextlib
import json
import resource
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import put_bytes, put_segment, segment_bytes, step_rows

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.spool.gate import NEWER
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.plan import DamagedPlanError, Plan, last_finished
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.store.writers import CONFLICT
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import CONTRACT_VERSION
from ranklake.lake.tables.tables import NewerTableError, delta_table
from ranklake.segments.segment import SegmentFooter

INGEST = {"spool": "s", "writer": "w", "versions": {"steps": 1}, "segments": []}
ACTION = {"writer": "w", "add": [], "remove": {}, "purge": False, "kept": {}, "account": {}}
SEGMENT = {
    "path": "p",
    "others": [],
    "table": "steps",
    "bytes": 1,
    "rows": 1,
    "sha256": "0",
    "seen": "",
}


def without(body, key):
    return {name: value for name, value in body.items() if name != key}


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        ("ingest", {}, "body lacks segments, spool, versions, writer"),
        ("ingest", INGEST | {"segments": None}, "body.segments is no list"),
        ("ingest", INGEST | {"segments": [SEGMENT, without(SEGMENT, "sha256")]}, r"segments\[1\] lacks sha256"),
        ("ingest", INGEST | {"segments": [SEGMENT | {"bytes": "1"}]}, r"segments\[0\].bytes is no int"),
        ("ingest", INGEST | {"segments": [SEGMENT | {"rows": True}]}, r"segments\[0\].rows is no int"),
        ("ingest", INGEST | {"versions": {"steps": "x"}}, "versions.steps is no int"),
        ("ingest", INGEST | {"versions": 3}, "versions is no object"),
        ("retention", without(ACTION, "account"), "body lacks account"),
        ("compaction", ACTION | {"add": [{"table": "steps"}]}, r"add\[0\] lacks partition, path"),
        ("quarantine", ACTION | {"remove": {"steps": [{}]}}, r"remove.steps\[0\] lacks date"),
        ("sorcery", ACTION, "'sorcery' are not known; upgrade ranklake"),
    ],
)
def test_a_plan_that_lacks_something_is_named(lake, spool, kind, body, what):
    """A plan of an unknown kind, or without what its kind needs, stops with its name and what is wrong."""
    put_segment(spool, step_rows(10))
    Path(lake.path("plans")).mkdir()
    Path(lake.path("plans/0000000001.json")).write_bytes(Plan(1, kind, 0, body).to_json())
    with pytest.raises(DamagedPlanError, match=what) as raised:
        bring(lake, spool)
    assert "0000000001.json" in str(raised.value)
    assert delta_table(lake.store, "steps") is None


def test_a_plan_whose_text_was_altered_is_refused(lake, spool):
    """A plan that is still JSON, but not the one that was written, is not carried out."""
    put_segment(spool, step_rows(10))
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    lake.put_if_absent(plan.name, plan.to_json().replace(b'"rows": 10', b'"rows": 11'))
    with pytest.raises(DamagedPlanError, match="does not have the digest"):
        bring(lake, spool)
    Path(lake.path(plan.name)).unlink()
    assert bring(lake, spool).rows_stored == 10


def test_plans_read_back_as_written(lake, spool):
    """Every plan of a real lake has the shape that its kind must have."""
    for segment in range(2):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
        bring(lake, spool)
    upkeep(lake, InProcess())
    kinds = [Plan.from_json(path.read_bytes(), "").kind for path in sorted(Path(lake.path("plans")).iterdir())]
    assert kinds == ["ingest", "ingest", "compaction"]


@pytest.mark.parametrize("table", ["steps", "rejects", "segments", "ingest_plans"])
def test_a_table_of_newer_software_is_left_alone(lake, spool, table):
    """Where a table has a newer contract version, nothing is written: no plan, no file, no commit."""
    put_segment(spool, with_times(step_rows(10), {3: -1.0}))
    bring(lake, spool)
    handle = delta_table(lake.store, table)
    newer = str(contract(table).version + 1)
    handle.alter.set_column_metadata("date", {CONTRACT_VERSION: newer})
    before = sorted(Path(lake.store.root).rglob("*"))
    put_segment(spool, step_rows(10, segment=1), rows_before=10)
    for work in (lambda: bring(lake, spool), lambda: merge_small(lake, InProcess(), thorough=True)):
        with pytest.raises(NewerTableError, match="upgrade ranklake"):
            work()
    with pytest.raises(NewerTableError):
        action_plan.live_files(lake, table, [])
    assert [
        path for path in sorted(Path(lake.store.root).rglob("*")) if path not in before and "rounds" not in str(path)
    ] == []
    assert number_of(delta_table(lake.store, "ingest_plans")) == 1
    assert adds_up(lake, spool)["steps"].in_flight == 10


def with_times(rows, values):
    """Return rows of ``steps`` with some step times replaced."""
    place = rows.schema.get_field_index("step_time_s")
    times = [values.get(slot, 0.5) for slot in range(rows.num_rows)]
    return rows.set_column(place, rows.schema.field(place), pa.array(times, pa.float32()))


def test_whatever_lies_in_the_spool_the_good_rows_are_stored(lake, spool):
    """Damaged, foreign, empty and repeated files: each has its reason or its rows, and nothing is lost or twice."""
    footer = SegmentFooter("steps", contract("steps").version, "r1", 0, 0, 1, 7, 0, rows=10)
    for segment in range(3):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
    _, raw = segment_bytes(step_rows(10, segment=3), rows_before=30)
    places = [0, 4, len(raw) // 3, len(raw) // 2, len(raw) - 9, len(raw) - 1]
    wrecks = [bytes([*raw[:at], raw[at] ^ 4, *raw[at + 1 :]]) for at in places]
    wrecks += [raw[:at] for at in (0, 1, 7, len(raw) // 2, len(raw) - 1)]
    wrecks += [b"PAR1" + bytes(20) + b"PAR1", b"\x00" * 4096, b"id,name\n1,x\n"]
    for number, wreck in enumerate(wrecks, 4):
        put_bytes(spool, wreck, SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, number, rows=10, rows_before=10 * number))
    put_segment(spool, step_rows(10, segment=90, incarnation=8), incarnation=8, contract_version=99)
    (spool / "segments/2026-03-01/steps/nothing.parquet").write_bytes(b"")
    put_bytes(spool, b"", footer, "no_such_table")
    done = bring(lake, spool)
    assert done.rows_stored == 30
    assert done.unreadable == len(wrecks) + 2
    assert [why.startswith(NEWER) for why in done.held] == [True]
    reasons = read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].drop_null().to_pylist()
    assert sum("steps version 1" in reason for reason in reasons) == 1
    for segment in range(2):  # the same rows under new names: other bytes, so another digest
        again = {"rows_before": 10 * segment, "boot_id": "b"}
        put_segment(spool, step_rows(10, segment=segment), day="2026-03-04", **again)
        put_segment(spool, step_rows(10, segment=segment, seed=5), day="2026-03-05", rows_before=10 * segment)
    done = bring(lake, spool)
    contradictions = {CONFLICT.removeprefix("refused: "): 2}
    assert (done.rows_duplicate, done.refused) == (20, contradictions)
    assert upkeep(lake, InProcess(), grace=timedelta(0)).purged.keys() <= {"removed", "orphan"}
    slots = read(lake.tables, contract("steps"), ["segment", "slot"]).to_pylist()
    assert Counter(row["segment"] for row in slots) == {0: 10, 1: 10, 2: 10}
    adds_up(lake, spool)


def test_a_dictionary_may_have_words_of_no_row(lake, spool):
    """What a segment's dictionary of runs holds beside the words of its rows is nobody's run; a row's word is."""
    rows = step_rows(10)
    at = rows.schema.get_field_index("run")
    for segment, codes in enumerate(([0] * 10, [0] * 9 + [1])):
        runs = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), ["r1", "other"])
        mine = step_rows(10, segment=segment).set_column(at, "run", runs)
        put_segment(spool, mine, rows_before=10 * segment)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (10, 1)
    adds_up(lake, spool)


def test_clocks_that_are_wrong(lake, spool):
    """Rows of 1970 and of 2101 are quarantined with their reason; rows of another year are stored under their date."""
    for segment, when in enumerate((datetime(1970, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC))):
        put_segment(spool, step_rows(5, segment=segment, start=when), rows_before=5 * segment)
    put_segment(spool, step_rows(5, segment=2, start=datetime(2025, 3, 1, tzinfo=UTC)), rows_before=10)
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (5, 10)
    assert all("ts" in reason for reason in read(lake.tables, contract("rejects"))["reason"].to_pylist())
    upkeep(lake, InProcess())
    adds_up(lake, spool)


@contextlib.contextmanager
def files_up_to(size_bytes):
    """Let no file grow beyond a size, as a disk that is full: the write that would is refused (Python hears EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_in_the_middle(lake, spool):
    """Whatever file the disk refuses, of a plan, a table, a log or a merge: one error; with room again, all is well."""
    for round_, limit in enumerate((60, 900, 4_000, 20_000)):
        for segment in range(2 * round_, 2 * round_ + 2):
            put_segment(spool, step_rows(2_000, segment=segment), rows_before=2_000 * segment)
        with files_up_to(limit), pytest.raises(LakeUnreachableError):
            bring(lake, spool)
    bring(lake, spool)
    with files_up_to(20_000), pytest.raises(LakeUnreachableError):
        upkeep(lake, InProcess())
    adds_up(lake, spool)
    upkeep(lake, InProcess())
    assert read(lake.tables, contract("steps")).num_rows == 16_000
    assert number_of(delta_table(lake.store, "ingest_plans")) == last_finished(lake.tables)
    adds_up(lake, spool)


def test_a_plan_file_is_json_with_its_own_digest(lake, spool):
    """The digest covers all but itself, so that anybody can verify it with a few lines."""
    put_segment(spool, step_rows(1))
    bring(lake, spool)
    facts = json.loads(Path(lake.path("plans/0000000001.json")).read_bytes())
    assert len(facts["sha256"]) == 64


def of_ranks(ranks):
    """Return rows of steps, each of a rank of its own."""
    rows = step_rows(len(ranks))
    return rows.set_column(rows.schema.get_field_index("rank"), rows.schema.field("rank"), pa.array(ranks, pa.int32()))


@pytest.mark.parametrize(
    ("ranks", "footer", "why"),
    [
        ([5, 0, 9], {"rank": 0, "ranks": [0, 9]}, None),
        ([5, 0, 9], {"rank": 0, "ranks": [0, 8]}, "name, footer and contents disagree"),
        ([5, 2, 9], {"rank": 0, "ranks": [3, 9]}, "name, footer and contents disagree"),
        ([5, 0, 9], {"rank": 0}, "name, footer and contents disagree"),
        (
            [5, 0, 9],
            {"rank": 5, "ranks": [0, 9]},
            "name, footer and contents disagree: rows of several ranks under the name of one",
        ),
        ([5, 0, 9], {"rank": 0, "ranks": [0]}, "the footer.ranks has not 2 members"),
        ([5, 0, 9], {"rank": 0, "ranks": [-1, 9]}, "the footer.ranks[0] is not within 0 to 2147483647"),
    ],
)
def test_rows_of_several_ranks(lake, spool, ranks, footer, why):
    """An import's rows may be of several ranks, of those that the footer names and no others."""
    put_segment(spool, of_ranks(ranks), **footer)
    bring(lake, spool)
    assert read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].to_pylist() == [why]
    if why is None:
        stored = read(lake.tables, contract("steps"), ["rank", "slot"]).sort_by("slot")
        assert stored["rank"].to_pylist() == ranks
    adds_up(lake, spool)


def test_commands_exit_1_for_a_segment_that_cannot_be_read(lake, spool, capfd):
    """The round that meets it, and each status until somebody sets it aside; what a rule refuses is no such thing."""
    put_segment(spool, step_rows(10))
    put_bytes(spool, b"id,name", SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 1, rows=5, rows_before=10))
    both = ["--lake", lake.uri, "--spool", str(spool)]
    assert run(["pipeline", *both]) == 1
    assert "1 segment could not be read" in capfd.readouterr().err
    assert run(["pipeline", *both]) == 0, "nothing new"
    capfd.readouterr()
    assert run(["status", *both]) == 1
    assert "1 segment in quarantine could not be read: not readable as Parquet" in capfd.readouterr().err
    (row,) = (row for row in read(lake.tables, contract("segments")).to_pylist() if row["unreadable"])
    name = row["uri_name"].removesuffix(".parquet")
    assert run(["disown", name, "--lake", lake.uri, "--reason", "the disk was bad"]) == 0
    assert run(["status", *both]) == 0
