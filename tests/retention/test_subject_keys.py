"""Columns under keys of subjects: who forgets a key erases what it sealed, in every copy, and nobody else's."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from archiving import archived, policies_in
from fsspec.implementations.local import LocalFileSystem
from governed import Site, any_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed import CLEAR, COLUMNS, config_of, erased, sealed_of, section, users
from segments import put_segment
from subjects import ADA, EMAIL, GRACE, VALUES

from ranklake.cli import run
from ranklake.config import load_config
from ranklake.doctor.examination import Patient
from ranklake.doctor.vouching import subject_keys
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import QueryError, query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.certificate import verify_alone
from ranklake.retention.erasure.plan import make_plan
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.shares.sharing import share
from ranklake.retention.subjects.columns import SubjectColumnError, sealed_columns
from ranklake.retention.subjects.keys import NotSealedError, RunSubject, SubjectKeysError, add_columns, keyed_columns
from ranklake.retention.subjects.store import UNREAD, KeyStore, key_state
from ranklake.segments.keys import read_keyring


@pytest.fixture
def site(sealing):
    """Return a lake whose users are stored under keys."""
    return sealing


@pytest.mark.slow
def test_who_is_forgotten_is_in_no_copy(site, tmp_path):
    """Tables, rollups, shares, archives, a backup of the lake: hers say nothing any more, all others what they said."""
    users(site, ADA, GRACE, ADA)
    run_rollups(site.lake, ["attempt_facts"])
    site.balances()
    before = query(site.lake, CLEAR).to_pylist()
    assert [row["who"] for row in before] == [ADA, GRACE, ADA]
    hers, other = sealed_of(site, ADA), sealed_of(site, GRACE)
    assert [row["user"] for row in site.rows("runs")].count(hers) == 2
    seen = Role("reader", frozenset({"operational", "pseudonymous", "personal"}), frozenset({"runs"}))
    share(site.lake, seen, str(tmp_path / "shares"), "Sam", InProcess())
    backup = shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    cold = "cold: {where: {table: runs}, archive: {after_days: 1, to: TO}, reason: rarely read}"
    archived(site, policies_in(tmp_path, cold))
    users(site, ADA, GRACE, first=11)
    done = erased(site, *VALUES)
    assert done.certificate.is_clean
    assert done.certificate.facts["keys"]["columns"] == ["runs.command_line", "runs.user"]
    assert verify_alone(done.certificate, done.certificate.name) == []
    assert "keys of subjects" in {one.place for one in done.places}
    tables = [pq.ParquetFile(one).read() for one in tmp_path.rglob("*.parquet") if "/runs/" in str(one)]
    stored = [one for rows in tables if "user" in rows.column_names for one in rows["user"].to_pylist()]
    assert stored.count(hers) >= 4
    assert stored.count(other) >= 2
    keys = KeyStore(site.lake).by_id().values()
    assert {unsealed_by(keys, one) for one in stored} == {None, GRACE}
    for path in (*tmp_path.rglob("*"), backup):
        assert not path.is_file() or ADA.encode() not in path.read_bytes(), path
    assert [row["who"] for row in query(site.lake, CLEAR).to_pylist()] == [None, GRACE]
    site.balances()
    assert key_state(site.lake).is_sound
    assert key_state(site.lake).forgotten == 1


def unsealed_by(keys, text):
    """Return what any of some keys makes of a text; None where none does."""
    for key in keys:
        try:
            return key.unseal(text)
        except NotSealedError:
            continue
    return None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.text(max_size=40)), min_size=1), st.sets(st.sampled_from("abcde"))
)
def test_no_remaining_key_opens_what_a_forgotten_one_sealed(values, gone):
    """Nor can one who guesses the very text tell by any remaining key that it stands there; others open as before."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        lake = Lake.create(str(folder / "lake")).configured(subjects=section(folder, copies=1))
        store = KeyStore(lake)
        sealed = [(whose, text, store.of(whose).seal(text)) for whose, text in values]
        assert all(store.of(whose.upper()).seal(text) == found for whose, text, found in sealed)
        secrets = {whose: store.of(whose).secret for whose, _ in values}
        store.forget(gone)
        assert store.places_with_keys(gone) == []
        there = KeyStore(lake).by_id()
        remaining = [*there.values(), *read_keyring(lake.config.subjects.wrap).keys]
        raw = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        for whose, text, found in sealed:
            if whose in gone:
                assert unsealed_by(there.values(), found) is None
                assert all(key.seal(text) != found for key in there.values())
                assert not any(secrets[whose] == key.secret for key in remaining)
                assert secrets[whose] not in raw
            else:
                assert unsealed_by(there.values(), found) == text
        assert store.of("a").id not in KeyStore(lake).forgotten


def test_joins_groups_and_roles_go_on(site):
    """Of one person, one text: groups hold, a role's hash is another text, and no role may ask for the clear one."""
    users(site, ADA, GRACE, f" {ADA.upper()}", ADA)
    counted = query(site.lake, 'SELECT "user", count(*) AS n FROM runs GROUP BY "user" ORDER BY n').to_pylist()
    assert [row["n"] for row in counted] == [1, 1, 2]
    joined = query(site.lake, 'SELECT count(*) AS n FROM runs a JOIN runs b ON a."user" = b."user"')
    assert joined["n"].to_pylist() == [6]
    assert query(site.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE, f" {ADA.upper()}", ADA]
    reader = Role("reader", frozenset({"operational", "pseudonymous"}), frozenset({"runs"}))
    assert query(site.lake, 'SELECT "user" FROM runs', role=reader)["user"].to_pylist().count(sealed_of(site, ADA)) == 2
    with pytest.raises(QueryError, match="unsealed"):
        query(site.lake, 'SELECT unsealed("user") FROM runs', role=reader)


def test_values_of_nobody_are_the_runs(site):
    """A command line without a user is under the run's key, which goes with the run."""
    rows = any_rows("runs", 2, run="exp-1", incarnation=5, user=[None, ADA], command_line=["a secret plan", "b"])
    site.bring(rows, "runs")
    assert "a secret plan" in query(site.lake, CLEAR)["line"].to_pylist()
    erased(site, run_name="exp-1")
    assert site.rows("runs") == []
    assert KeyStore(site.lake).find(RunSubject("exp-1")) is None
    assert KeyStore(site.lake).find(ADA) is not None


def test_rejected_rows_are_sealed_too(site):
    """A row that ingest refuses holds no clear value either."""
    bad = any_rows("runs", 1, run="exp-1", incarnation=5, user=[ADA], start=datetime(2999, 1, 1, tzinfo=UTC))
    site.bring(bad, "runs")
    (row,) = site.rows("rejects")
    assert ADA not in row["row"]
    assert json.loads(row["row"])["user"] == sealed_of(site, ADA)


@pytest.mark.slow
def test_a_legal_hold_wins(site):
    """Rows of the person that only her keys show are hers: no key is forgotten while a hold is about one."""
    users(site, ADA, GRACE)
    hold = set_hold(site.lake, ["run=exp-1"], "a claim", date(2999, 1, 1), "Lee Legal")
    for path in site.spool.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(HeldError, match=hold.name):
        erased(site, *VALUES)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE]
    assert erased(site, GRACE).certificate.is_clean


def test_what_was_sent_before_brings_nothing_back(site):
    """The same segment again stores nothing, and makes no key."""
    (path,) = users(site, ADA)
    raw = path.read_bytes()
    assert erased(site, *VALUES).certificate.is_clean
    assert not path.exists()
    path.write_bytes(raw)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    assert KeyStore(site.lake).find(ADA) is None
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None]


def test_a_backup_of_keys_brings_no_key_back(site, tmp_path):
    """A key that was forgotten is none when its file comes back, and the file goes; a copy that was named has none."""
    site.lake = site.lake.configured(subjects=section(tmp_path, copies=1))
    users(site, ADA, GRACE)
    assert len(list(tmp_path.glob("copy0/*.key"))) == 2
    kept = shutil.copytree(tmp_path / "keys", tmp_path / "elsewhere")
    erased(site, *VALUES)
    assert len(list(tmp_path.glob("copy0/*.key"))) == 1
    shutil.copytree(kept, tmp_path / "keys", dirs_exist_ok=True)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, GRACE]
    assert KeyStore(site.lake).find(ADA) is None
    assert len(list(tmp_path.glob("keys/*.key"))) == 1
    users(site, ADA, first=21)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, GRACE, ADA]


def test_a_lost_key_is_told_from_a_forgotten_one(site, tmp_path, monkeypatch, capsys):
    """Its rows are counted, what it sealed is NULL, others read on, and a copy that was named puts it back."""
    users(site, ADA, ADA, GRACE)
    place = site.folder / "keys" / f"{KeyStore(site.lake).lookup(ADA)}.key"
    raw = place.read_bytes()
    place.unlink()
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, None, GRACE]
    state = key_state(site.lake)
    assert state.lost == (("runs.command_line", 2), ("runs.user", 2))
    assert not state.is_sound
    monkeypatch.setenv("RANKLAKE_CONFIG", config_of(site, tmp_path))
    assert run(["erase", "keys", "--lake", site.lake.uri]) == 1
    assert "runs.user: 2 rows under lost keys; restore their files" in capsys.readouterr().out
    (tmp_path / "copy0").mkdir()
    (tmp_path / "copy0" / place.name).write_bytes(raw)
    site.lake = site.lake.configured(subjects=section(tmp_path, copies=1))
    assert KeyStore(site.lake).find(ADA) is not None
    assert key_state(site.lake).is_sound


@pytest.mark.parametrize(
    "harm",
    [
        lambda place: place.write_bytes(place.read_bytes()[:-9]),
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(bytes([place.read_bytes()[0] ^ 1]) + place.read_bytes()[1:]),
        lambda place: place.write_bytes(place.read_bytes()[:60] + b"\0" + place.read_bytes()[61:]),
    ],
    ids=["cut", "empty", "another head", "another byte"],
)
def test_a_damaged_key_stores_nothing_and_is_named(site, harm):
    """Rather than make the person another key, which nobody would notice; erasing the person goes on."""
    users(site, ADA, GRACE)
    place = site.folder / "keys" / f"{KeyStore(site.lake).lookup(ADA)}.key"
    harm(place)
    with pytest.raises(SubjectKeysError, match="is damaged"):
        users(site, ADA, first=11)
    assert len(site.rows("runs")) == 2
    ((where, what, hint),) = key_state(site.lake).faults
    assert (where, what, hint[:7]) == (str(place), "is damaged", "restore")
    KeyStore(site.lake).forget([ADA])
    users(site)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, ADA, GRACE]


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("harm", [Path.unlink, lambda place: place.write_bytes(b"")], ids=["lost", "damaged"])
def test_a_key_that_nobody_could_read_is_forgotten_all_the_same(site, tmp_path, harm, copies):
    """Restored from a backup after the erasure it is no key; the one that the person got since is."""
    site.lake = site.lake.configured(subjects=section(tmp_path, copies=copies))
    users(site, ADA, GRACE)
    name = f"{KeyStore(site.lake).lookup(ADA)}.key"
    places = [tmp_path / "keys" / name, *(tmp_path / f"copy{at}" / name for at in range(copies))]
    raw = places[0].read_bytes()
    for place in places:
        harm(place)
    KeyStore(site.lake).forget([ADA])
    places[0].write_bytes(raw)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, GRACE], "nobody had it deleted yet"
    assert KeyStore(site.lake).find(ADA) is None
    assert not places[0].exists()
    users(site, ADA, first=11)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, ADA, GRACE]
    new = places[0].read_bytes()
    for restored in (raw, new) if copies else ():  # over the newer one, which a copy has still
        places[0].write_bytes(restored)
        assert KeyStore(site.lake).find(ADA) is not None
        assert places[0].read_bytes() != raw
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, ADA, GRACE]
    KeyStore(site.lake).forget([ADA])
    left = [one.name for one in (tmp_path / "lake" / UNREAD).iterdir()]
    assert not [one for one in left if "~" in one], "which key was hers is not told any more"
    places[0].write_bytes(new)
    assert KeyStore(site.lake).find(ADA) is None


def test_a_key_that_may_not_be_read_is_kept(site, monkeypatch):
    """It may be whole: nobody makes another, and an erasure says so rather than leave it to come back."""
    users(site, ADA, GRACE)
    store = KeyStore(site.lake)
    name = f"{store.lookup(ADA)}.key"
    genuine = LocalFileSystem.cat_file

    def denied(self, path, *args, **more):
        if path.endswith(name):
            raise PermissionError(path)
        return genuine(self, path, *args, **more)

    monkeypatch.setattr(LocalFileSystem, "cat_file", denied)
    for asked in (store.of, store.find, lambda who: store.forget([who])):
        with pytest.raises(SubjectKeysError, match=r"may not be read.*let this account read it"):
            asked(ADA)
    assert [what for _, what, _ in key_state(site.lake).faults] == ["may not be read"]
    monkeypatch.undo()
    assert query(site.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE]


def test_the_doctor_tells_of_keys(site, tmp_path, monkeypatch):
    """A damaged one, a lost one, both with the remedy; of whole ones how many there are."""
    patient = Patient(load_config(Path(config_of(site, tmp_path))))
    assert [one.state for one in subject_keys(patient)] == ["skipped"]
    users(site, ADA, GRACE, "alan.turing")
    patient = Patient(load_config(Path(config_of(site, tmp_path))))
    assert [(one.state, one.what) for one in subject_keys(patient)] == [("ok", "3 keys of subjects, 0 forgotten")]
    store = KeyStore(site.lake)
    (site.folder / "keys" / f"{store.lookup(ADA)}.key").write_bytes(b"")
    (site.folder / "keys" / f"{store.lookup(GRACE)}.key").unlink()
    found = list(subject_keys(patient))
    assert {one.state for one in found} == {"failed"}
    assert all(one.remedy for one in found)
    told = " ".join(one.what for one in found)
    assert "a subject's key is damaged" in told
    assert "runs.user: 2 rows under keys that are lost" in told
    monkeypatch.setattr("ranklake.doctor.vouching.MOST_ROWS", 1)
    store.forget([ADA])
    one, unread = subject_keys(patient)
    assert (one.state, unread.state) == ("ok", "skipped")
    assert unread.what.startswith("not known: keys of runs.command_line, runs.user that are lost, as there are more")
    assert "erase keys" in unread.remedy


def test_places_that_cannot_hold_keys_are_refused(site, tmp_path):
    """Gone, another lake's, in the lake, or none where the lake needs them: one line each, and nothing is stored."""
    users(site, ADA)
    own = site.lake.config.subjects
    other = Lake.create(str(tmp_path / "other"))
    with pytest.raises(SubjectKeysError, match="no keys of this lake"):
        KeyStore(other.configured(subjects=own))
    for keys, what in ((str(tmp_path / "lake/keys"), "lie in the lake"), (str(tmp_path / "nowhere"), "are not there")):
        moved = SubjectsSection(keys, (), own.wrap, own.columns)
        with pytest.raises(SubjectKeysError, match=what):
            KeyStore(site.lake.configured(subjects=moved))
    site.lake = site.lake.configured(subjects=SubjectsSection())
    with pytest.raises(SubjectKeysError, match="no keys are configured"):
        users(site, ADA, first=11)
    subject, reach = subject_of(site.lake, VALUES), Reach(site.lake, Spool(str(site.spool)))
    with pytest.raises(SubjectKeysError, match="no keys are configured"):
        make_plan(reach, subject)
    site.lake = site.lake.configured(subjects=SubjectsSection(columns=("runs.user",)))
    with pytest.raises(SubjectKeysError, match="no keys are configured"):
        users(site, ADA, first=11)


def test_the_wrapping_key_is_rotated(site, tmp_path):
    """The newest wraps, all unwrap, and whose a key is does not change; without the one that wrapped it, it is told."""
    users(site, ADA)
    wrap = tmp_path / "wrap.keys"
    old = wrap.read_text()
    wrap.write_text(f"{os.urandom(32).hex()}\n{old}")
    users(site, ADA, GRACE, first=11)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [ADA, ADA, GRACE]
    assert len(list(tmp_path.glob("keys/*.key"))) == 2
    newest = os.urandom(32).hex()
    wrap.write_text(f"{newest}\n{old}")
    assert {what.split(" ", 2)[1] for _, what, _ in key_state(site.lake).faults} == {"wrapped"}


def test_a_configuration_that_lacks_a_column_stores_nothing_in_clear(site, tmp_path):
    """Of two places that ingest, one of which has the file of before: neither stores a name that the other seals."""
    users(site, ADA)
    for columns in ((), COLUMNS[1:]):
        site.lake = site.lake.configured(subjects=section(tmp_path, columns=columns))
        with pytest.raises(SubjectColumnError, match="would be stored in clear"):
            users(site, GRACE, first=11)
    assert site.places_of(GRACE) == []
    site.lake = site.lake.configured(subjects=section(tmp_path))
    users(site, GRACE, first=11)
    assert site.places_of(GRACE) == []
    assert query(site.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE]


@pytest.mark.parametrize("order", ["old new", "new"])
def test_a_keyring_in_another_order_makes_nobody_a_second_key(site, tmp_path, order):
    """By the last key people are looked up: with another last one nothing is stored, and nothing said to be erased."""
    users(site, ADA)
    wrap = tmp_path / "wrap.keys"
    keys = {"old": wrap.read_text(), "new": os.urandom(32).hex()}
    wrap.write_text("\n".join(keys[one] for one in order.split()))
    with pytest.raises(SubjectKeysError, match="another key than the last"):
        erased(site, ADA)
    with pytest.raises(SubjectKeysError, match="another key than the last"):
        users(site, ADA, first=11)
    assert len(list(tmp_path.glob("keys/*.key"))) == 1
    wrap.write_text(f"{keys['new']}\n{keys['old']}")
    users(site, ADA, first=11)
    assert erased(site, ADA).certificate.is_clean
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("runs", "is no column"),
        ("run.user", "no table 'run'"),
        ("runs.usr", "no column 'usr'"),
        ("runs.user by usr", "no column 'usr'"),
        ("runs.run", "tells of nobody"),
        ("logs.fields", "is json"),
        ("audit.actor", "not recorded by ranks"),
    ],
)
def test_columns_that_cannot_be_sealed_are_refused(site, said, why):
    """Misspelt ones, those that tell of nobody, those that would not be any more what their contract says."""
    with pytest.raises(SubjectColumnError, match=re.escape(why)):
        sealed_columns(site.lake.contracts(), [said])


AT_ONCE = """
import json, sys, time
from pathlib import Path
from ranklake.lake.store.lake import Lake
from ranklake.retention.subjects.store import KeyStore
from ranklake.lake.store.lake_config import SubjectsSection
uri, keys, copy, wrap, gate = sys.argv[1:]
lake = Lake.open(uri).configured(subjects=SubjectsSection(keys, (copy,), wrap, ("runs.user",)))
print("ready", flush=True)
while not Path(gate).exists():
    time.sleep(0.001)
store = KeyStore(lake)
print(json.dumps([store.of(f"person {at}").id for at in range(20)]), flush=True)
"""


def start(code, site, own, *more):
    """Start a process on the keys of a lake, and wait until it is ready."""
    words = [sys.executable, "-c", code, site.lake.uri, own.keys, own.copies[0], own.wrap, *more]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    return child


@pytest.mark.slow
def test_processes_that_make_keys_at_once_make_the_same(site):
    """Whoever is faster: of one person there is one key."""
    own, gate = section(site.folder, copies=1), site.folder / "gate"
    crew = [start(AT_ONCE, site, own, str(gate)) for _ in range(3)]
    gate.touch()
    found = [json.loads(one.communicate(timeout=120)[0]) for one in crew]
    assert all(one == found[0] for one in found)
    assert len(set(found[0])) == 20


TOLD_AT_ONCE = """
import pathlib, sys, time
from ranklake.lake.store.lake import Lake
from ranklake.retention.subjects.keys import add_columns
uri, *_, gate, name = sys.argv[1:]
lake = Lake.open(uri)
print("ready", flush=True)
while not pathlib.Path(gate).exists():
    time.sleep(0.0001)
for at in range(20):
    add_columns(lake.store, {f"runs.{name}{at}": "user"}, {f"runs.{name}{at}": [at]})
"""


@pytest.mark.slow
def test_processes_that_say_at_once_what_is_sealed_forget_none(sealing):
    """Of columns that several begin to store under keys each is remembered, whoever was first."""
    own, gate = section(sealing.folder, copies=1), sealing.folder / "gate"
    crew = [start(TOLD_AT_ONCE, sealing, own, str(gate), name) for name in "abc"]
    gate.touch()
    for one in crew:
        one.communicate(timeout=120)
    every = {f"runs.{name}{at}" for name in "abc" for at in range(20)}
    found = keyed_columns(sealing.lake.store)
    assert (set(found.columns), set(found.ids)) == (every, every)


def test_what_is_remembered_is_written_once(sealing):
    """What comes later stands beside the first file, and a damaged file is named."""
    add_columns(sealing.lake.store, {"runs.user": "user"}, {"runs.user": [3]})
    add_columns(sealing.lake.store, {"jobs.user": "user"}, {"jobs.user": [7]})
    add_columns(sealing.lake.store, {"runs.user": "user"}, {"runs.user": [3]})
    assert keyed_columns(sealing.lake.store).columns == {"runs.user": "user", "jobs.user": "user"}
    (more,) = (sealing.folder / "lake/subjects").iterdir()
    more.write_bytes(more.read_bytes()[:-1])
    with pytest.raises(SubjectKeysError, match=rf"{more.name}: .* is damaged; write it again"):
        keyed_columns(sealing.lake.store)


CHILD = """
import json, sys
from ranklake.lake.store.lake import Lake
from ranklake.retention.subjects.store import KeyStore
from ranklake.lake.store.lake_config import SubjectsSection
uri, keys, copy, wrap = sys.argv[1:]
lake = Lake.open(uri).configured(subjects=SubjectsSection(keys, (copy,), wrap, ("runs.user",)))
print("ready", flush=True)
while True:
    store = KeyStore(lake)
    for at in range(5):
        store.of(f"going {at}")
    store.forget([f"going {at}" for at in range(5)])
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_converges(site):
    """SIGKILL while keys are made and forgotten: the next call forgets all of it, and whose key stays reads on."""
    own = section(site.folder, copies=1)
    site.lake = site.lake.configured(subjects=own)
    sealed = KeyStore(site.lake).of("staying").seal("as it was")
    going = [f"going {at}" for at in range(5)]
    random.seed(19)
    for _ in range(int(os.environ.get("RANKLAKE_KILLS", "5"))):
        child = start(CHILD, site, own)
        time.sleep(random.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = KeyStore(site.lake)
        store.forget(going)
        assert store.places_with_keys(going) == []
        assert KeyStore(site.lake).find("staying").unseal(sealed) == "as it was"
    for name in ("keys", "copy0"):
        kept = [path for path in (site.folder / name).iterdir() if not path.name.startswith("ranklake")]
        assert len(kept) == 1


@pytest.mark.slow
def test_the_guide_is_true(tmp_path, monkeypatch, capsys):
    """Each command of the guide does what it says, in its order."""
    page = (Path(__file__).parents[2] / "docs/subjects.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    toml = re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1].replace("/srv", str(tmp_path))
    (tmp_path / "ranklake.toml").write_text(toml.replace("/etc/ranklake", str(tmp_path)))
    site = Site(tmp_path)
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    monkeypatch.setenv("RANKLAKE_SPOOL", str(site.spool))
    for number, name in enumerate((ADA, GRACE), 1):
        put_segment(site.spool, any_rows("runs", 1, run=f"exp-{number}", incarnation=number, user=[name]), "runs")
    for line in re.findall(r"^    (\S.*)$", page, re.MULTILINE):
        if line.startswith("ranklake "):
            words = shlex.split(line.replace("er-…", next(iter(ERASURES.register(site.lake)), "")))[1:]
            assert run(words) == 0, line
        else:
            subprocess.run(["bash", "-c", line.replace("/etc/ranklake", str(tmp_path))], check=True)
    said = "".join(capsys.readouterr())
    assert "no data is left" in said
    assert GRACE in said
    assert EMAIL not in said
