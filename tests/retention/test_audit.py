"""The audit log: one chain, whoever writes; every break shows, and so does a tail that was cut off."""

import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from governed import Site
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranklake.errors import RanklakeError
from ranklake.lake.audit import trail as trail_module
from ranklake.lake.audit.chain import GENESIS, HeadRecords, digest
from ranklake.lake.audit.proof import prove, verify
from ranklake.lake.audit.trail import BrokenTrailError, Entry, record, record_all, resume, trail
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import FAN_IN
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import delta_table

ACTOR = "Zacharias.Zebra"


def fill(site, rows=5):
    for index in range(rows):
        record(site.lake, ACTOR, "test.act", f"thing {index}", "because", {"index": index})


def rewrite(site, change):
    """Put other rows in the place of the audit log's, the way somebody with keys to the bucket would."""
    handle = delta_table(site.lake.store, "audit")
    rows = pa.Table.from_pylist(change(trail(site.lake.tables)), schema=arrow_schema(contract("audit")))
    number = number_of(handle)
    new = append_files(site.lake.store, contract("audit"), rows, number)
    from ranklake.lake.tables import commit

    genuine, commit.number_of = commit.number_of, lambda _: -1
    try:
        assert swap(handle, number, add=new, remove=files(handle))
    finally:
        commit.number_of = genuine


def test_rows_make_a_chain(site):
    """Numbers run from 0 without holes, each row holds the digest of the one before, and the chain verifies."""
    assert verify(site.lake) is None
    fill(site)
    rows = trail(site.lake.tables)
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["prev_sha256"] for row in rows] == [GENESIS, *(row["sha256"] for row in rows[:-1])]
    assert rows[2]["details"] == '{"index": 2}'
    assert verify(site.lake) is None


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda rows: [*rows[:2], {**rows[2], "actor": "Somebody Else"}, *rows[3:]], 2),
        (lambda rows: [*rows[:2], {**rows[2], "reason": None}, *rows[3:]], 2),
        (lambda rows: [*rows[:2], {**rows[2], "ts": rows[2]["ts"] + timedelta(microseconds=1)}, *rows[3:]], 2),
        (lambda rows: [*rows[:1], *rows[2:]], 1),
        (lambda rows: rows[1:], 0),
        (lambda rows: rows[:-1], 4),
        (lambda rows: [], 0),
        (lambda rows: [*rows[:2], rows[1], *rows[2:]], 2),
        (lambda rows: [*rows, {**rows[-1], "seq": 5, "prev_sha256": rows[-1]["sha256"]}], 5),
    ],
    ids=["actor", "reason", "time", "gap", "head", "tail", "all", "repeat", "forged"],
)
def test_every_break_shows(site, change, broken):
    """An altered, removed, repeated or added row, and a tail cut off, are found at their first row."""
    fill(site)
    rewrite(site, change)
    assert verify(site.lake) == broken


def test_a_forger_must_forge_the_rest(site):
    """A row altered with its own digest recomputed breaks the chain at the next."""
    fill(site)

    def forge(rows):
        forged = {**rows[1], "actor": "Somebody Else"}
        return [rows[0], {**forged, "sha256": digest(forged)}, *rows[2:]]

    rewrite(site, forge)
    assert verify(site.lake) == 2


def test_writers_at_the_same_time_keep_one_chain(site):
    """Four writers of five rows each leave twenty rows in one chain; what is recorded once is there once."""
    errors = []

    def write(name):
        try:
            for index in range(5):
                record(site.lake, name, "test.act", f"{name} {index}")
                record(site.lake, name, "test.once", "the same", once=True)
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"writer {index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert verify(site.lake) is None
    actions = [row["action"] for row in trail(site.lake.tables)]
    assert (actions.count("test.act"), actions.count("test.once")) == (20, 1)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.text(min_size=1, max_size=20),
            st.none() | st.text(max_size=20),
            st.dictionaries(st.text(), st.integers()),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_text_survives_the_chain(tmp_path_factory, rows):
    """Whatever names and reasons hold, what is read back verifies."""
    site = Site(tmp_path_factory.mktemp("any"))
    for actor, reason, details in rows:
        record(site.lake, actor, "test.act", "thing", reason, details)
    assert verify(site.lake) is None
    assert [(row["actor"], row["reason"]) for row in trail(site.lake.tables)] == [
        (actor, reason) for actor, reason, _ in rows
    ]


def test_actors_stay_in_their_column(site, caplog, capfd):
    """An actor's name, a subject and a reason are in no statistic, file name, plan or log."""
    record(site.lake, ACTOR, "test.act", "Subject.Seven", "Reason.Eight")
    for needle in (ACTOR, "Subject.Seven", "Reason.Eight"):
        assert all(path.suffix == ".parquet" and needle not in str(path) for path in site.places_of(needle))
        assert needle not in caplog.text + "".join(capfd.readouterr())
    assert site.places_of(ACTOR)


def test_upkeep_leaves_the_trail_whole(site):
    """Its files are merged like those of other tables, and its rows are counted by themselves."""
    fill(site, FAN_IN + 3)
    done = upkeep(site.lake, InProcess(), grace=timedelta(0))
    assert done.files_before >= FAN_IN
    assert files(delta_table(site.lake.store, "audit")).num_rows <= 4
    assert verify(site.lake) is None
    fill(site, 2)
    assert verify(site.lake) is None
    assert prove(site.lake).rows == FAN_IN + 5


def log_of(site):
    return site.folder / "lake/tables/audit/_delta_log"


def cut_commits(site):
    """Delete the newest commits, as if they had never been."""
    for path in sorted(log_of(site).glob("*.json"))[-2:]:
        path.unlink()


def delete_table(site):
    shutil.rmtree(site.folder / "lake/tables/audit")


def delete_all_that_tells(site):
    delete_table(site)
    shutil.rmtree(site.folder / "lake/audit")


def roll_back(site):
    """Put the table and its log back as they were three rows before."""
    delete_table(site)
    shutil.copytree(site.folder / "copy", site.folder / "lake/tables/audit")


def roll_back_all(site):
    roll_back(site)
    shutil.rmtree(site.folder / "lake/audit")
    shutil.copytree(site.folder / "heads", site.folder / "lake/audit")


def forge_the_end(site):
    """Cut three rows off and put others there, as good a chain as any."""
    roll_back(site)
    for path in (site.folder / "lake/audit").rglob("*.json"):
        if path.stem > f"{4:010d}":
            path.rename(path.with_suffix(".aside"))
    alone = site.lake.configured(audit=AuditSection())
    for index in range(5):
        record(alone, "A Forger", "test.act", f"forged {index}")


ATTACKS = {
    "newest commits deleted": (cut_commits, 5, False),
    "table deleted": (delete_table, 0, False),
    "table rolled back with its log": (roll_back, 4, False),
    "table and heads deleted": (delete_all_that_tells, 0, True),
    "table and heads rolled back": (roll_back_all, 4, True),
    "end forged": (forge_the_end, 6, True),
}
"""What somebody who may write the bucket does to a trail of seven rows: how, the first row that is found wrong, and
whether it takes a witness outside the bucket."""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("witnessed", [False, True])
def test_a_tail_that_was_cut_off_is_found(site, attack, witnessed):
    """By the heads beside the table; and by those outside the bucket where the heads beside it went, too."""
    harm, first, needs_witness = ATTACKS[attack]
    if witnessed:
        site.lake = site.lake.configured(audit=AuditSection(f"file:{site.folder}/witness"))
    fill(site, 4)
    shutil.copytree(site.folder / "lake/tables/audit", site.folder / "copy")
    shutil.copytree(site.folder / "lake/audit", site.folder / "heads")
    fill(site, 3)
    assert verify(site.lake) is None
    harm(site)
    found = prove(site.lake)
    assert found.broken == (first if witnessed or not needs_witness else None)
    if found.broken is not None and attack != "end forged":
        with pytest.raises(BrokenTrailError, match="audit resume"):
            record(site.lake, ACTOR, "test.act", "one more")
        assert verify(site.lake) == first


def test_somebody_goes_on_behind_what_is_lost(site):
    """Rows that cannot be restored stay missing, a row says how many, and what comes after is held as before."""
    with pytest.raises(RanklakeError, match="no row of the audit log is lost"):
        resume(site.lake, ACTOR, "nothing happened")
    fill(site, 5)
    rewrite(site, lambda rows: rows[:2])
    assert verify(site.lake) == 2
    assert resume(site.lake, ACTOR, "the bucket was rolled back") == 5
    fill(site, 2)
    found = prove(site.lake)
    assert (found.broken, found.lost, found.rows) == (None, ((2, 4),), 5)
    rewrite(site, lambda rows: [row for row in rows if row["seq"] != 6])
    assert verify(site.lake) == 6


@pytest.mark.parametrize("where", ["lake", "witness"])
def test_a_row_whose_head_was_not_written_is_no_false_alarm(site, monkeypatch, where):
    """Killed between a row and its head the audit log is whole, and the next call writes the head."""
    site.lake = site.lake.configured(audit=AuditSection(f"file:{site.folder}/witness"))
    fill(site, 3)
    genuine = HeadRecords.note

    def dying(self, head):
        if where == "lake" or "witness" in self.where:
            raise SystemExit
        genuine(self, head)

    monkeypatch.setattr(HeadRecords, "note", dying)
    with pytest.raises(SystemExit):
        record(site.lake, ACTOR, "test.once", "thing", once=True)
    monkeypatch.undo()
    assert verify(site.lake) is None
    assert min(prove(site.lake).witnessed.values()) == 3
    assert record(site.lake, ACTOR, "test.once", "thing", once=True) is None
    assert set(prove(site.lake).witnessed.values()) == {4}
    assert len(trail(site.lake.tables)) == 4


def test_a_witness_of_another_lake_is_told(site, tmp_path):
    """Two lakes cannot share one: the heads of the other are not this one's rows."""
    witnessed = AuditSection(str(tmp_path / "witness"))
    other = Site(tmp_path / "other")
    record(other.lake.configured(audit=witnessed), ACTOR, "test.act", "theirs")
    site.lake = site.lake.configured(audit=witnessed)
    with pytest.raises(BrokenTrailError):
        record(site.lake, ACTOR, "test.act", "ours")


def test_many_rows_are_one_commit(site):
    """They are one chain with what was there, and those to be recorded once are, among themselves, too."""
    fill(site, 2)
    version = delta_table(site.lake.store, "audit").version()
    entries = [Entry(ACTOR, "test.act", f"thing {index % 40}", once=index >= 50) for index in range(100)]
    numbers = record_all(site.lake, entries)
    assert numbers[:50] == list(range(2, 52))
    assert [number is not None for number in numbers[50:]] == [True] * 40 + [False] * 10
    assert delta_table(site.lake.store, "audit").version() == version + 1
    assert record_all(site.lake, entries[50:]) == [None] * 50
    assert (verify(site.lake), prove(site.lake).rows) == (None, 92)


class Reading:
    """What this process reads: calls and bytes of all its threads, and names that are listed by a lake."""

    def __init__(self, lake, monkeypatch):
        self.listed, genuine = 0, lake.fs.ls

        def ls(folder, detail=True, **more):
            found = genuine(folder, detail=detail, **more)
            self.listed += len(found)
            return found

        monkeypatch.setattr(lake.fs, "ls", ls)

    def counts(self):
        """Return all three, so far."""
        told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(told["syscr"]), int(told["rchar"]), self.listed

    def least(self, work):
        """Return the least of five times; one may be the twentieth commit, which writes a checkpoint."""
        found = []
        for _ in range(5):
            before = self.counts()
            work()
            found.append([after - was for after, was in zip(self.counts(), before, strict=True)])
        return [min(some) for some in zip(*found, strict=True)]


@pytest.mark.slow
def test_an_append_reads_of_a_long_trail_what_it_reads_of_a_short_one(tmp_path, monkeypatch):
    """Of 21,000 rows in 22 files, as of three rows: the same calls, bytes and names."""
    work = {}
    for name, rows in (("short", [1] * 3), ("long", [20_000, *[50] * 21])):
        lake = Lake.create(str(tmp_path / name))
        for count in rows:
            record_all(lake, [Entry(ACTOR, "test.act", f"thing {index}") for index in range(count)])
        for shard in range(sum(rows) // 100):  # as if they had come one by one
            (tmp_path / f"{name}/audit/heads/{shard // 100:06d}/{shard:08d}").mkdir(parents=True, exist_ok=True)
        with monkeypatch.context() as patch:
            work[name] = Reading(lake, patch).least(lambda lake=lake: record(lake, ACTOR, "test.act", "another"))
    calls, size, listed = zip(work["short"], work["long"], strict=True)
    assert calls[1] <= calls[0] + 3
    assert size[1] <= size[0] + 1024
    assert listed[1] <= listed[0] + 30  # names of the last folders on the way to the last head, of a hundred at most


@pytest.mark.parametrize("folder", ["999999/00000000", "999999/99999999", "000000/00000099", "99999999"])
def test_a_copy_of_an_old_head_hides_none_after_it(site, folder):
    """Wherever it is put: the last head is the one of the most rows."""
    fill(site, 5)
    heads = site.folder / "lake/audit/heads"
    (heads / folder).mkdir(parents=True)
    shutil.copy(heads / "000000/00000000/0000000003.json", heads / folder)
    assert HeadRecords(site.lake.store, "audit/heads").last().rows == 5
    cut_commits(site)
    assert verify(site.lake) == 3


def test_a_row_costs_no_read_of_the_trail(site, monkeypatch):
    """However many rows there are, one more reads none of them, for what is recorded once, too."""
    record_all(site.lake, [Entry(ACTOR, "test.once", f"thing {index}", once=True) for index in range(3000)])
    read_rows = []
    genuine = trail_module.read_some

    def counting(tables, target, some, columns=None):
        read_rows.append(some.num_rows)
        return genuine(tables, target, some, columns)

    monkeypatch.setattr(trail_module, "read_some", counting)
    monkeypatch.setattr(trail_module, "read", None)
    for index in range(5):
        record(site.lake, ACTOR, "test.once", f"another {index}", once=True)
        assert record(site.lake, ACTOR, "test.once", f"thing {index}", once=True) is None
    assert read_rows == []
