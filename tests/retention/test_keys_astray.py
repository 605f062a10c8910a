"""Keys of people in the hands of the clumsy and the hostile: nobody else's is forgotten, and none stays untold."""

import os
import shutil
from dataclasses import replace
from unicodedata import normalize

import pytest
from fsspec.implementations.local import LocalFileSystem
from governed import any_rows
from keyed import CLEAR, erased, section, users
from subjects import ADA, GRACE

from ranklake.lake.query.sql import query
from ranklake.retention.erasure.search import search
from ranklake.retention.subjects import store as key_files_module
from ranklake.retention.subjects import store as store_module
from ranklake.retention.subjects.columns import SubjectColumnError, sealed_columns
from ranklake.retention.subjects.keys import KNOWN, RunSubject, SubjectKeysError
from ranklake.retention.subjects.places import MARKER
from ranklake.retention.subjects.store import KeyStore, key_state


def line_of(site, line, **columns):
    """Ingest a run with a command line; of nobody where no user is given."""
    site.bring(any_rows("runs", 1, command_line=[line], **columns), "runs")


@pytest.mark.slow
def test_runs_whose_names_differ_by_case_have_a_key_each(sealing):
    """The key of one goes with it, and what is under the other's is read as before."""
    line_of(sealing, "plan one", run="Exp-1", incarnation=5)
    line_of(sealing, "plan two", run="exp-1", incarnation=6)
    erased(sealing, run_name="exp-1")
    assert query(sealing.lake, CLEAR)["line"].to_pylist() == ["plan one"]


@pytest.mark.slow
def test_what_is_by_run_goes_with_the_run(sealing, tmp_path):
    """Its key is the run's, whatever people are called; an erasure of the run leaves none of it."""
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, columns=("runs.command_line by run",)))
    line_of(sealing, "plan one", run="exp-1", incarnation=5)
    line_of(sealing, "plan two", run="exp-2", incarnation=6)
    assert KeyStore(sealing.lake).find("exp-1") is None
    assert erased(sealing, run_name="exp-1").certificate.is_clean
    assert len(list((tmp_path / "keys").glob("*.key"))) == 1
    assert query(sealing.lake, CLEAR)["line"].to_pylist() == ["plan two"]


def test_a_table_may_be_named_as_queries_call_it(sealing):
    """Its folder's name goes on."""
    contracts = {**sealing.lake.contracts()}
    contracts["runs"] = replace(contracts["runs"], called="trials")
    found = sealed_columns(contracts, ["trials.user", "runs.command_line by user"])
    assert [(one.table, one.name) for one in found] == [("runs", "user"), ("runs", "command_line")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run exp-1", " run exp-1", "RUN exp-1"])
def test_a_user_who_is_called_like_a_run_has_a_key_of_his_own(sealing, name):
    """Whoever takes such a name, and has it erased, takes nothing of that run."""
    line_of(sealing, "plan one", run="exp-1", incarnation=5)
    users(sealing, name, first=7)
    assert erased(sealing, name).certificate.is_clean
    assert query(sealing.lake, CLEAR)["line"].to_pylist() == ["plan one", None]
    assert KeyStore(sealing.lake).find(RunSubject("exp-1")) is not None


@pytest.mark.parametrize(
    "name", ["\u0390anna", "Stra\u00dfe123", "\u0130stanbul", "\u1fb7omega", "\ufb01nnegan", "\u037aota", "Ren\u00e9e"]
)
def test_a_name_has_one_key_in_all_its_letters(sealing, name):
    """In capitals, small ones, composed or not, with spaces around it."""
    forms = {name, name.upper(), name.upper().lower(), f" {name}\t", *(normalize(one, name) for one in ("NFC", "NFD"))}
    forms |= {normalize(one, name.upper()) for one in ("NFC", "NFD")}
    store = KeyStore(sealing.lake)
    assert len({store.lookup(one) for one in forms}) == 1


@pytest.mark.parametrize("name", ["x" * 100_000, "a\0b", "s-0123456789abcdef-" + "A" * 43, "\U0001f600 smile"])
def test_odd_names_come_back_as_they_were(sealing, name):
    """Very long, with a byte of nothing, in the form of what a key sealed, and beyond the first plane."""
    users(sealing, name, GRACE)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [name, GRACE]


@pytest.mark.slow
def test_whoever_takes_the_list_of_columns_away_keeps_no_key(sealing):
    """An erasure forgets the key of a person all the same, and the certificate says where it looked."""
    users(sealing, ADA, GRACE)
    (sealing.folder / "lake" / KNOWN).unlink()
    sealing.lake = sealing.lake.configured(subjects=section(sealing.folder, columns=()))
    users(sealing, ADA, first=11)
    done = erased(sealing, ADA)
    assert done.certificate.is_clean
    assert done.certificate.facts["keys"]["places"] == [str(sealing.folder / "keys")]
    assert KeyStore(sealing.lake).find(ADA) is None
    assert KeyStore(sealing.lake).find(GRACE) is not None


@pytest.mark.slow
def test_a_column_that_is_in_clear_from_now_on(sealing, tmp_path):
    """Only where a configuration says so; what was sealed before is read, counted and forgotten as ever."""
    users(sealing, ADA, GRACE)
    only = section(tmp_path, columns=("runs.command_line by user",))
    sealing.lake = sealing.lake.configured(subjects=only)
    with pytest.raises(SubjectColumnError, match="name it in clear"):
        users(sealing, GRACE, first=31)
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, columns=only.columns, clear=("runs.user",)))
    users(sealing, GRACE, first=31)
    stored = {row["run"]: row["user"] for row in sealing.rows("runs")}
    assert stored["exp-31"] == GRACE
    assert stored["exp-2"] != GRACE
    assert erased(sealing, ADA).certificate.facts["keys"]["columns"] == ["runs.command_line", "runs.user"]
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE, GRACE]
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, clear=("runs.user",)))
    with pytest.raises(SubjectColumnError, match="under keys and in clear"):
        users(sealing, ADA, first=21)


@pytest.mark.slow
def test_a_copy_that_is_not_mounted_is_told(sealing, tmp_path):
    """An empty folder in its place is no copy: nothing is said to be forgotten, and nothing begun anew there."""
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, copies=1))
    users(sealing, ADA, GRACE)
    (tmp_path / "copy0").rename(tmp_path / "away")
    (tmp_path / "copy0").mkdir()
    for act in (lambda: erased(sealing, ADA), lambda: users(sealing, GRACE, first=11)):
        with pytest.raises(SubjectKeysError, match="a copy of the keys of subjects is not there"):
            act()
    assert list((tmp_path / "copy0").iterdir()) == []
    (tmp_path / "copy0").rmdir()
    (tmp_path / "away").rename(tmp_path / "copy0")
    assert erased(sealing, ADA).certificate.is_clean
    assert len(list(tmp_path.glob("copy0/*.key"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_a_copy_that_one_configuration_lacks_is_told(sealing, tmp_path, moved):
    """Whoever erases where the copy is not configured is told of it; by whatever path it is mounted, it is the same."""
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, copies=1))
    users(sealing, ADA, GRACE)
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path))
    users(sealing, ADA, first=11)
    for act in (lambda: erased(sealing, ADA), lambda: KeyStore(sealing.lake).forget([ADA])):
        with pytest.raises(SubjectKeysError, match=f"were copied to {tmp_path}/copy0, too"):
            act()
    assert KeyStore(sealing.lake).find(ADA) is not None
    if moved:
        (tmp_path / "copy0").rename(tmp_path / "copy1")
    own = replace(section(tmp_path), copies=(str(tmp_path / f"copy{int(moved)}"),))
    sealing.lake = sealing.lake.configured(subjects=own)
    marker = (tmp_path / "keys" / MARKER).read_bytes()
    assert erased(sealing, ADA).certificate.is_clean
    assert ((tmp_path / "keys" / MARKER).read_bytes() == marker) is not moved
    assert len(list(tmp_path.glob("copy?/*.key"))) == 1


@pytest.mark.slow
def test_a_copy_that_was_made_by_hand_is_a_copy(sealing, tmp_path):
    """Its marker is that of the folder that it was copied from: it is a place of its own, and told like any other."""
    users(sealing, ADA)
    shutil.copytree(tmp_path / "keys", tmp_path / "copy0")
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, copies=1))
    users(sealing, GRACE, first=11)
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path))
    with pytest.raises(SubjectKeysError, match="were copied to"):
        erased(sealing, ADA)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["{} (1).key", "old/{}.key", "{}.key.bak", "copy-of-{}.key", "{}.old.key"])
def test_copies_of_a_file_beside_it_go_with_it(sealing, tmp_path, name):
    """Whatever somebody called them, and in whichever folder there: none is left, and the certificate is clean."""
    users(sealing, ADA, GRACE)
    lookup = KeyStore(sealing.lake).lookup(ADA)
    path = tmp_path / "keys" / name.format(lookup)
    path.parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "keys" / f"{lookup}.key", path)
    assert key_state(sealing.lake).is_sound
    assert erased(sealing, ADA).certificate.is_clean
    assert not path.exists()
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE]


@pytest.mark.slow
def test_a_key_restored_over_a_newer_one(sealing, tmp_path):
    """Both are kept where a copy has the newer one, or the older one was restored beside it; both are forgotten."""
    sealing.lake = sealing.lake.configured(subjects=section(tmp_path, copies=1))
    users(sealing, ADA, GRACE)
    lookup = KeyStore(sealing.lake).lookup(ADA)
    first, copy = (tmp_path / place / f"{lookup}.key" for place in ("keys", "copy0"))
    raw = first.read_bytes()
    first.unlink()
    copy.unlink()
    users(sealing, ADA, first=7)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE, ADA]
    beside = first.with_name(f"{lookup}.old.key")
    beside.write_bytes(raw)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE, ADA]
    beside.rename(first)
    users(sealing, ADA, first=8)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE, ADA, ADA]
    assert key_state(sealing.lake).is_sound
    assert erased(sealing, ADA).certificate.is_clean
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE, None, None]
    assert [path.name for path in tmp_path.glob("*/*.key") if lookup in path.name] == []


def test_who_is_named_in_what_anothers_key_sealed_is_found(sealing):
    """Grace's command line names Ada: its row goes, as it would in clear; Ada's own rows stay, and say nothing."""
    line_of(sealing, f"train --for {ADA}", run="exp-1", incarnation=5, user=[GRACE])
    line_of(sealing, "train --for nobody", run="exp-2", incarnation=6, user=[GRACE])
    users(sealing, ADA, first=7)
    found = {one.place for one in search(sealing.lake, None, [ADA]).traces}
    assert "rows of runs" in found
    done = erased(sealing, ADA)
    assert done.certificate.is_clean
    told = query(sealing.lake, CLEAR).to_pylist()
    assert [(row["run"], row["who"]) for row in told] == [("exp-2", GRACE), ("exp-7", None)]
    assert {one.place for one in search(sealing.lake, None, [ADA]).traces} == set()


def reads(monkeypatch):
    """Return a list that gets the name of each key's file that is read from now on."""
    seen, genuine = [], LocalFileSystem.cat_file

    def noted(self, path, *args, **more):
        seen.extend([path.rpartition("/")[2]] if path.endswith(".key") else [])
        return genuine(self, path, *args, **more)

    monkeypatch.setattr(LocalFileSystem, "cat_file", noted)
    return seen


def aged(site):
    """Have the files of keys be written long ago, as nearly all are."""
    for path in (site.folder / "keys").glob("*.key"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_a_key_is_read_once_as_long_as_its_file_stays(sealing, monkeypatch):
    """Whoever asks again reads none; of keys that came or changed only those."""
    users(sealing, ADA, GRACE)
    aged(sealing)
    query(sealing.lake, CLEAR)
    seen = reads(monkeypatch)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE]
    assert seen == []
    users(sealing, "alan.turing", first=3)
    seen.clear()
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE, "alan.turing"]
    assert seen == [f"{KeyStore(sealing.lake).lookup('alan.turing')}.key"]
    place = sealing.folder / "keys" / f"{KeyStore(sealing.lake).lookup(GRACE)}.key"
    raw, at = place.read_bytes(), place.stat().st_mtime
    place.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    os.utime(place, (at, at))
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, None, "alan.turing"], "its size and time are the same"


@pytest.mark.parametrize("left", ["nothing", "the file"], ids=["forgotten", "killed before the file went"])
def test_a_forgotten_key_is_not_served_from_memory(sealing, monkeypatch, left):
    """By whoever forgot it: a process that read it before asks where it is, and what is marked, each time."""
    users(sealing, ADA, GRACE)
    aged(sealing)
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [ADA, GRACE]
    monkeypatch.setattr(store_module, "clear_cache", lambda: None)  # another process forgets
    if left == "the file":
        monkeypatch.setattr(store_module, "delete", lambda *_: 0)
    KeyStore(sealing.lake).forget([ADA])
    assert (len(list((sealing.folder / "keys").glob("*.key"))) == 2) is (left == "the file")
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE]
    assert ADA not in str(KeyStore(sealing.lake).by_id())


def test_who_forgets_a_key_holds_none_in_memory(sealing):
    """Neither that one nor others', which are read anew."""
    users(sealing, ADA, GRACE)
    aged(sealing)
    query(sealing.lake, CLEAR)
    assert key_files_module._read_before
    KeyStore(sealing.lake).forget([ADA])
    assert not key_files_module._read_before
