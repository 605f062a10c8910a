"""Shares: copies of what a role sees equal what it sees, cost what changed, and nothing else is in them."""

import json
import pickle
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from governed import Site
from mask_oracle import bag
from random_roles import COLUMNS, NEW, OLD, facts, keyring, planted_lake, some_role, views_of
from rollup_inputs import NOON, append
from segments import step_rows

from ranklake.cli import run
from ranklake.config import Config
from ranklake.config.settings import SharesSection
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.masking.masks import Mask
from ranklake.pipeline.calls import share_once
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import steps as stage_steps
from ranklake.retention.erasure.search import search
from ranklake.retention.shares import copies, refresh, register, shared_table, sharing
from ranklake.retention.shares.place import ShareError
from ranklake.retention.shares.register import shares
from ranklake.retention.shares.sharing import end, keep, share

OPERATIONAL = frozenset({"operational"})
READER = Role("reader", OPERATIONAL, frozenset({"steps", "runs"}), runs="run LIKE 'open%'")
OF_A_TEAM = "run IN (SELECT run FROM runs WHERE team = 't')"
ASKING = Role("asking", OPERATIONAL, frozenset({"steps", "runs"}), runs=OF_A_TEAM)


def copied(place, table):
    """Return the rows of a shared table as dicts, read from the bytes that its log names."""
    handle = DeltaTable(f"{place}/tables/{table}")
    return handle.to_pyarrow_dataset().to_table().to_pylist()


def shared(lake, role, to):
    """Share a role's sight, and return what was done."""
    return share(lake, role, str(to), "ada", InProcess())


def steps(run, first, count=10, **more):
    """Return steps of a run."""
    return [{"run": run, "step": first + n, "ts": NOON, "step_time_s": 1.0, **more} for n in range(count)]


def told(done, table):
    """Return (sources read, rows added, files removed) of a table."""
    one = next(one for one in done.tables if one.table == table)
    return one.sources_read, one.rows_added, one.files_removed


@pytest.fixture
def lake(tmp_path):
    """Give a lake with an open and a closed run."""
    made = Lake.create(str(tmp_path / "lake")).configured(masking=MaskingSection(keyring(tmp_path, NEW, OLD)))
    append(made, "steps", steps("open-1", 0) + steps("closed", 0, incarnation=8))
    append(made, "runs", [{"ts": NOON, "run": name, "user": "mallory", "team": "t"} for name in ("open-1", "closed")])
    return made


def left_over(place):
    """Return data files of a share that no log names."""
    found = set()
    for folder in Path(place).glob("tables/*"):
        is_table = DeltaTable.is_deltatable(str(folder))
        live = set(files(DeltaTable(str(folder)))["path"].to_pylist()) if is_table else set()
        there = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}
        found |= there - live
    return found


def refused(role):
    """Say whether no copy can be made of what a role sees: it does not see the dates as they are."""
    return "operational" not in role.classes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_share_is_what_filter_then_mask_gives(tmp_path, seed):
    """Random roles over random tables that grow, are merged and change: after each refresh the copy is the oracle's."""
    chance = random.Random(seed)
    lake = Lake.create(str(tmp_path / "lake")).configured(masking=MaskingSection(keyring(tmp_path, NEW, OLD)))
    stored = {table: [] for table in COLUMNS}
    compared = 0
    for turn in range(4):
        role, seen, is_seen = some_role(chance)
        if refused(role):
            with pytest.raises(ShareError, match="as it is"):
                shared(lake, role, tmp_path / "out")
            continue
        for _ in range(3):
            for table in COLUMNS:
                given = [facts(chance, table) for _ in range(chance.randrange(20))]
                for one in given:  # over some dates
                    one["ts"] -= timedelta(days=chance.randrange(3))
                    one["date"] = one["ts"].date()
                if given:
                    append(lake, table, given)
                    stored[table] += given
            if chance.random() < 0.4:
                merge_small(lake, InProcess(), thorough=True)
            shared(lake, role, tmp_path / "out")
            views = views_of(stored, seen, is_seen)
            for table in role.tables:
                rows = copied(tmp_path / "out" / "r", table)
                names = list(seen[table])
                mine = [tuple(row[name] for name in names) for row in rows]
                theirs = [tuple(row[name] for name in names) for row in views.get(table, [])]
                assert bag(mine) == bag(theirs), (turn, table)
                columns = {one.name for one in DeltaTable(f"{tmp_path}/out/r/tables/{table}").schema().fields}
                assert columns == set(role.columns(contract(table)))
                compared += len(rows)
            assert not left_over(tmp_path / "out" / "r")
    assert compared > 20


@pytest.mark.slow
def test_no_planted_original_is_in_any_byte_of_a_share(tmp_path):
    """Of 10,000 values none is in the data, the logs with their statistics, names, or metadata of the copies."""
    lake, texts, _ = planted_lake(tmp_path)
    gpus = contract("jobs").column("gpu_count").id
    classes = {"masked": frozenset({"pseudonymous", "personal"})}
    masks = {("jobs", gpus): Mask("bucket", "4")}
    role = Role("reader", OPERATIONAL, frozenset({"jobs", "runs"}), **classes, column_masks=masks)
    done = shared(lake, role, tmp_path / "out")
    assert {one.rows_added for one in done.tables} == {2500}
    seen = bytearray()
    for path in (tmp_path / "out").rglob("*"):
        seen += str(path).encode()
        if path.is_file():
            seen += path.read_bytes()
        if path.suffix == ".parquet":
            seen += str(pq.read_table(path).to_pydict()).encode() + str(pq.read_metadata(path).to_dict()).encode()
    for path in (tmp_path / "lake" / "shares").rglob("*.json"):
        seen += path.read_bytes()
    found = set(re.findall(rb"[a-z]{14}", bytes(seen)))
    assert not found & {text.encode() for text in texts}
    assert b"p-" in seen
    joined = {row["user"] for row in copied(tmp_path / "out" / "reader", "jobs")}
    assert joined == {row["user"] for row in copied(tmp_path / "out" / "reader", "runs")}
    assert len(joined) == 2500


def test_a_refresh_costs_what_changed(lake, tmp_path):
    """New files are read, and no other; merged ones are known; what changed for nobody is written nowhere."""
    assert told(shared(lake, READER, tmp_path / "out"), "steps") == (1, 10, 0)
    assert not shared(lake, READER, tmp_path / "out").is_changed
    append(lake, "steps", steps("open-2", 0, segment=1))
    assert told(shared(lake, READER, tmp_path / "out"), "steps") == (1, 10, 0)
    version = DeltaTable(f"{tmp_path}/out/reader/tables/steps").version()
    merge_small(lake, InProcess(), ["steps"], thorough=True)
    assert told(shared(lake, READER, tmp_path / "out"), "steps") == (0, 0, 0)
    append(lake, "steps", steps("closed", 10, incarnation=8, segment=1))
    assert told(shared(lake, READER, tmp_path / "out"), "steps") == (1, 0, 0)
    assert DeltaTable(f"{tmp_path}/out/reader/tables/steps").version() == version
    assert {row["run"] for row in copied(tmp_path / "out" / "reader", "steps")} == {"open-1", "open-2"}


def test_many_small_files_become_one(lake, tmp_path, monkeypatch):
    """Files of the copy stay few, and who reads an older version still finds its files for a while."""
    monkeypatch.setattr(copies, "MOST_SMALL", 3)
    for number in range(4):
        append(lake, "steps", steps("open-2", number, 1, segment=number))
        shared(lake, READER, tmp_path / "out")
    assert told(shared(lake, READER, tmp_path / "out"), "steps") == (5, 14, 4)
    handle = DeltaTable(f"{tmp_path}/out/reader/tables/steps")
    assert files(handle).num_rows == 1
    assert len(copied(tmp_path / "out" / "reader", "steps")) == 14
    assert len(left_over(tmp_path / "out" / "reader")) == 4
    monkeypatch.setattr(shared_table, "GRACE", timedelta(seconds=-1))
    sharing.withdraw(lake.store)
    assert not left_over(tmp_path / "out" / "reader")


def test_conditions_that_ask_other_tables(lake, tmp_path):
    """What such a condition asks is all of that table; where it changes, rows come and go everywhere."""
    shared(lake, ASKING, tmp_path / "out")
    place = tmp_path / "out" / "asking"
    assert {row["run"] for row in copied(place, "steps")} == {"open-1", "closed"}
    append(lake, "runs", [{"ts": NOON + timedelta(days=1), "run": "late", "team": "other"}])
    append(lake, "runs", [{"ts": NOON + timedelta(days=1), "run": "later", "team": "t", "slot": 5}])
    append(lake, "steps", steps("late", 0, incarnation=9) + steps("later", 0, incarnation=10))
    shared(lake, ASKING, tmp_path / "out")
    for table in ("steps", "runs"):
        assert {row["run"] for row in copied(place, table)} == {"open-1", "closed", "later"}


def test_a_role_that_sees_less_leaves_nothing_behind(lake, tmp_path):
    """Neither files nor logs with their statistics tell what a role saw before; columns go, and tables, and rows."""
    wide = Role("reader", OPERATIONAL | {"pseudonymous"}, frozenset({"steps", "runs", "spans"}))
    shared(lake, wide, tmp_path / "out")
    place = tmp_path / "out" / "reader"
    assert {row["user"] for row in copied(place, "runs")} == {"mallory"}
    done = shared(lake, READER, tmp_path / "out")
    assert done.taken_back == ("spans",)
    assert not (place / "tables" / "spans").exists() or not list((place / "tables" / "spans").rglob("*.*"))
    assert {row["run"] for row in copied(place, "steps")} == {"open-1"}
    assert "user" not in copied(place, "runs")[0]
    everything = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert b"closed" not in everything
    assert b"mallory" not in everything


def test_the_order_of_rows_tells_nothing(tmp_path):
    """Rows of a table that is sorted by a column which the role sees hashed do not come in the order of its values."""
    lake = Lake.create(str(tmp_path / "lake")).configured(masking=MaskingSection(keyring(tmp_path, NEW, OLD)))
    hosts = [f"host-{n:03}" for n in range(40)]
    samples = [{"ts": NOON, "host": host, "subject": "host", "slot": n} for n, host in enumerate(hosts)]
    append(lake, "host_samples", samples)
    role = Role("r", OPERATIONAL, frozenset({"host_samples"}), masked=frozenset({"pseudonymous"}))
    shared(lake, role, tmp_path / "out")
    seen = [row["host"] for row in copied(tmp_path / "out" / "r", "host_samples")]
    assert seen == sorted(seen)
    assert len(set(seen)) == 40


class Died(BaseException):
    """A process that ended."""


class Deaths:
    """Ends the process, as it were, before or after one of all writes, deletes and commits: the next one each time."""

    def __init__(self, monkeypatch):
        self.left = self.count = 0
        places = [(Store, "put_if_absent")]
        places += [(shared_table, name) for name in ("swap", "delete", "ensure_table")]
        places += [(refresh, name) for name in ("delete", "copy", "erase_table")]
        places += [(register, "delete"), (sharing, "delete"), (sharing, "erase_table")]
        for owner, name in places:
            monkeypatch.setattr(owner, name, self.dying(getattr(owner, name)))

    def tick(self):
        """Count a moment, and end the process if it is the one."""
        self.left -= 1
        if self.left == 0:
            self.count += 1
            raise Died

    def dying(self, work):
        """Return a function that can end the process."""

        def counted(*args, **options):
            self.tick()
            done = work(*args, **options)
            self.tick()
            return done

        return counted

    def until_done(self, work):
        """Do it again after each death, until it is done."""
        for at in range(1, 1000):
            self.left = at
            try:
                work()
            except Died:
                continue
            self.left = 0
            return


@pytest.mark.slow
def test_killed_anywhere_the_next_refresh_converges(lake, tmp_path, monkeypatch):
    """After a death at any write, delete or commit the next call leaves the same rows, and no file without a name."""
    deaths = Deaths(monkeypatch)
    narrow = Role("reader", OPERATIONAL, frozenset({"steps"}), runs="run LIKE 'open%'")
    append(lake, "steps", steps("open-2", 0, segment=1))
    for role in (READER, narrow, READER):
        deaths.until_done(lambda role=role: shared(lake, role, tmp_path / "out"))
        for table in role.tables:
            assert len(copied(tmp_path / "out" / "reader", table)) == {"steps": 20, "runs": 1}[table]
        assert not left_over(tmp_path / "out" / "reader")
    deaths.until_done(lambda: [end(lake, one, "ada", "over") for one in shares(lake.store)])
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not shares(lake.store)
    assert deaths.count > 30
    told_of = [row["action"] for row in trail(lake.tables)]
    assert told_of[0] == "share.create"
    assert [one for one in told_of if "drop" in one] == ["share.drop", "share.dropped"]


def test_copies_of_rows_that_went_go_at_once(lake, tmp_path):
    """Without roles or keys, what the lake has no more is taken out of all shares, bytes and all."""
    append(lake, "steps", steps("open-2", 0, segment=1))
    shared(lake, READER, tmp_path / "out")
    place = tmp_path / "out" / "reader"
    handle = delta_table(lake.store, "steps")
    shared_table.swap(handle, 9, remove=files(handle))  # as a plan that retires rows does
    blind = Lake.open(lake.uri)
    assert [one.files for one in sharing.withdraw(blind.store, {"steps"})] == [1]
    assert not list((place / "tables" / "steps").glob("date=*/*.parquet"))
    assert not copied(place, "steps")
    assert len(copied(place, "runs")) == 1
    assert read(lake.tables, contract("steps")).num_rows == 0


def test_a_place_is_one_lakes(lake, tmp_path):
    """A place that another lake owns, that is not empty, that is a lake or lies in one, is refused and stays so."""
    other = Lake.create(str(tmp_path / "other"))
    append(other, "steps", steps("open-1", 0))
    shared(other, READER, tmp_path / "out")
    before = sorted(map(str, (tmp_path / "out").rglob("*")))
    cases = {"out": "another lake owns this share", "lake": "lies in the lake", "full": "not empty"}
    cases |= {"holds": "a lake is there"}
    (tmp_path / "full" / "reader").mkdir(parents=True)
    (tmp_path / "full" / "reader" / "mine.txt").write_text("x")
    Lake.create(str(tmp_path / "holds" / "reader"))
    for to, message in cases.items():
        with pytest.raises(ShareError, match=message) as caught:
            shared(lake, READER, tmp_path / to)
        assert "\n" not in str(caught.value)
    assert sorted(map(str, (tmp_path / "out").rglob("*"))) == before
    assert not shares(lake.store)
    for role, message in (("../reader", "cannot be the name"), ("a b", "cannot be the name")):
        with pytest.raises(ShareError, match=message):
            shared(lake, Role(role, OPERATIONAL, frozenset({"steps"})), tmp_path / "new")
    with pytest.raises(ShareError, match="credential"):
        shared(lake, READER, "s3://key:secret@bucket/x")


def test_what_fails_is_one_line_without_values(lake, tmp_path):
    """A condition that fails on a row, and a key that is lost, stop it in a line that holds no value."""
    failing = Role("failing", OPERATIONAL, frozenset({"runs"}), {"runs": 'CAST("user" AS INT) = 1'})
    with pytest.raises(ShareError, match="runs 2026-03-01: a condition or mask of role failing fails") as caught:
        shared(lake, failing, tmp_path / "out")
    assert "mallory" not in str(caught.value)
    hashing = Role("hashing", OPERATIONAL, frozenset({"runs"}), masked=frozenset({"pseudonymous"}))
    with pytest.raises(RoleError, match="there is no key"):
        shared(Lake.open(lake.uri), hashing, tmp_path / "out")
    assert not (tmp_path / "out" / "hashing").exists()


def test_a_rotated_key_makes_copies_anew(lake, tmp_path):
    """Pseudonyms of before are in no byte when the keyring has a new key."""
    hashing = Role("hashing", OPERATIONAL, frozenset({"runs"}), masked=frozenset({"pseudonymous"}))
    before = lake.configured(masking=MaskingSection(keyring(tmp_path, OLD)))
    shared(before, hashing, tmp_path / "out")
    (old,) = {row["user"] for row in copied(tmp_path / "out" / "hashing", "runs")}
    shared(lake, hashing, tmp_path / "out")
    (new,) = {row["user"] for row in copied(tmp_path / "out" / "hashing", "runs")}
    assert old != new
    assert len({path.name for path in (tmp_path / "out").glob("hashing/tables/runs/date=*/*.parquet")}) == 1


def test_shares_of_roles_that_are_gone_go(lake, tmp_path):
    """Keeping shares refreshes those of roles that are there, and drops those of others; the audit log says why."""
    shared(lake, READER, tmp_path / "out")
    shared(lake, ASKING, tmp_path / "out")
    done = keep(lake, {"reader": READER}, "ada", InProcess(), [("reader", str(tmp_path / "more"))])
    assert [one.why for one in done.dropped] == ["the role is gone"]
    assert {one.uri for one in shares(lake.store)} == {str(tmp_path / place / "reader") for place in ("out", "more")}
    assert not [path for path in (tmp_path / "out" / "asking").rglob("*") if path.is_file()]
    done = keep(lake, {"reader": READER}, "ada", InProcess(), refusal=lambda _: "the grant ended")
    assert len(done.dropped) == 2
    assert not shares(lake.store)
    assert [row["reason"] for row in trail(lake.tables) if row["action"] == "share.drop"] == [
        "the role is gone",
        *["the grant ended"] * 2,
    ]


def test_one_share_that_fails_holds_up_no_other(lake, tmp_path):
    """Neither a role without a key nor an unknown one keeps copies that ended."""
    place = str(tmp_path / "shares")
    keyed = Role("a-keyed", OPERATIONAL, frozenset({"runs"}), masked=frozenset({"pseudonymous"}))
    lake = Lake.open(lake.uri)  # without a key
    for role in (READER, replace(READER, name="gone")):
        share(lake, role, place, "ada", InProcess())
    append(lake, "steps", steps("open-9", 0))
    narrow = replace(READER, runs="run = 'open-9'")
    wanted = [("a-keyed", place), ("gone", place), ("reader", place)]
    with pytest.raises(ShareError, match=r"2 shares failed, .*no key.*unknown role 'gone'"):
        keep(lake, {"a-keyed": keyed, "reader": narrow}, "ada", InProcess(), wanted)
    assert [one.role for one in shares(lake.store)] == ["reader"]
    assert [path for path in (tmp_path / "shares" / "gone").rglob("*") if path.is_file()] == []
    assert {row["run"] for row in copied(f"{place}/reader", "steps")} == {"open-9"}
    with pytest.raises(RoleError, match="no key"):
        keep(lake, {"a-keyed": keyed, "reader": narrow}, "ada", InProcess(), wanted[:1])


def test_the_command(lake, tmp_path, monkeypatch, capsys):
    """`ranklake share` makes, renews, lists and drops shares; what is wrong is one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(
        "roles: {reader: {classes: [operational], tables: [steps], runs: \"run LIKE 'open%'\"}}"
    )
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\n')

    def out(*arguments, code=0):
        assert run(["share", *arguments]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    assert "nobody says where" in out("reader", code=2)
    assert "did you mean 'reader'" in out("raeder", "--to", "out", code=2)
    assert "10 rows copied to 1 of 1 table" in out("reader", "--to", "out")
    assert "up to date" in out("reader")
    assert "up to date" in out("--all")
    assert str(tmp_path / "out" / "reader") in out()
    assert '"changed": false' in out("--all", "--json")
    assert "dropped from" in out("reader", "--drop", "--reason", "over")
    assert "nothing is shared" in out()
    assert "is not shared" in out("reader", "--drop", code=2)


@pytest.mark.slow
def test_retention_reaches_copies_and_a_search_finds_them(tmp_path, monkeypatch, capsys):
    """A planted run is in the lake and in a share until a plan is applied, and then in no byte of either."""
    site = Site(tmp_path)
    today = datetime.now(UTC)
    for place, (run_, age) in enumerate((("planted", 200), ("fresh", 0))):
        start = today - timedelta(days=age)
        site.bring(step_rows(10, run=run_, incarnation=7 + place, start=start))
    role = Role("reader", OPERATIONAL, frozenset({"steps"}))
    shared(site.lake, role, tmp_path / "out")
    where = {one.place for one in search(site.lake, None, ["planted"]).traces}
    assert "copies for role reader" in where
    monkeypatch.chdir(tmp_path)
    place = ("--lake", site.lake.uri)
    assert run(["retain", "plan", "--json", *place]) == 0
    name = json.loads(capsys.readouterr().out)["plan"]["retention_plan"]
    assert run(["retain", "approve", name, "--by", "ada", *place]) == 0
    assert run(["retain", "apply", name, "--by", "bob", *place]) == 0
    assert "1 file withdrawn" in capsys.readouterr().out
    assert {row["run"] for row in copied(tmp_path / "out" / "reader", "steps")} == {"fresh"}
    copies = [one for one in search(site.lake, None, ["planted"]).traces if one.place.startswith("copies")]
    assert not copies  # not in the log either, which had the run's name among its extremes
    assert not [path for path in (tmp_path / "out").rglob("date=*/*") if b"planted" in path.read_bytes()]


def test_the_flow_keeps_what_the_configuration_names(lake, tmp_path):
    """The stage of the pipeline makes shares that are named, and drops those whose role is gone."""
    (tmp_path / "roles.yaml").write_text("roles: {reader: {classes: [operational], tables: [steps]}}")
    given = {"lake.uri": lake.uri, "sql.roles": str(tmp_path / "roles.yaml")}
    context = Context.of(Config(), given)
    assert share_once(context) == {"refreshed": [], "dropped": []}
    shared(lake, ASKING, tmp_path / "old")
    named = replace(context.config, shares=SharesSection(str(tmp_path / "out"), ("reader",)))
    done = share_once(Context.of(named))
    assert [one["role"] for one in done["refreshed"]] == ["reader"]
    assert [one["role"] for one in done["dropped"]] == ["asking"]
    assert headline("share", done) == ["1 of 1 share changed", "1 dropped"]
    assert [step.stage.name for step in stage_steps(Context.of(named))].count("share") == 1
    with pytest.raises(RanklakeError, match="nobody says where"):
        share_once(Context.of(replace(named, shares=SharesSection("", ("reader",)))))


class Elsewhere(InProcess):
    """Carries tasks out as another process would: it gets them by pickle."""

    def carry_out(self, work, task):
        """Return what came of a task."""
        raw = pickle.dumps(task)
        assert NEW.secret not in raw
        return work(pickle.loads(raw))


def test_workers_elsewhere_copy_the_same(lake, tmp_path):
    """Roles, masks and references to keys travel to workers; keys do not."""
    masks = {("runs", contract("runs").column("team").id): Mask("keep", "1")}
    role = Role("reader", OPERATIONAL, READER.tables, masked=frozenset({"pseudonymous"}), column_masks=masks)
    shared(lake, role, tmp_path / "here")
    share(lake, role, str(tmp_path / "there"), "ada", Elsewhere())
    for table in role.tables:
        pair = [copied(tmp_path / place / "reader", table) for place in ("here", "there")]
        assert pair[0] == pair[1]
        assert pair[0]


@pytest.mark.slow
def test_killed_while_it_builds_a_share_converges(tmp_path):
    """A process that is killed by SIGKILL again and again, later each time, leaves a share that the next call ends."""
    lake = Lake.create(str(tmp_path / "lake"))
    for day in range(40):  # three commits of sixteen pieces and eight
        append(lake, "steps", [{**one, "ts": NOON + timedelta(days=day)} for one in steps("open-1", day, 5, slot=day)])
    (tmp_path / "roles.yaml").write_text("roles: {reader: {classes: [operational], tables: [steps]}}")
    command = [sys.executable, "-m", "ranklake", "share", "reader", "--lake", lake.uri, "--to", str(tmp_path / "out")]
    command += ["--roles", str(tmp_path / "roles.yaml")]
    place, killed = tmp_path / "out" / "reader" / "tables" / "steps", 0
    for least in (1, 5, 17, 30, 39):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(place.glob("date=*/*.parquet"))) < least:
                time.sleep(0.001)
            killed += process.poll() is None
            process.kill()
    assert killed >= 3
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(copied(place.parents[1], "steps")) == 200
    assert not left_over(place.parents[1])
