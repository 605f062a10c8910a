"""Encrypted segments: the envelope, where keys come from, and ingest with and without them."""

import base64
import hashlib
import json
import stat
import sys
import time
from contextlib import nullcontext

import pytest
from ciphered import ONE, THREE, TWO, encrypt_segment, ring, source_of
from hypothesis import given
from hypothesis import strategies as st
from packing import pack_up
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.tables.read import read
from ranklake.segments import references
from ranklake.segments.envelope import EncryptionError, Key, MissingKeyError, NotAuthenticError, decrypt, encrypt
from ranklake.segments.keys import Keyring, find_key, read_keyring
from ranklake.segments.segment import NotASegmentError, SegmentName

texts = st.binary(max_size=200)


@given(texts, texts)
def test_what_goes_in_comes_out(clear, bond):
    """Any bytes come back as they were, under the same bond, and the same bytes give the same envelope."""
    raw = encrypt(ONE, clear, bond)
    assert decrypt(ONE, raw, bond) == clear
    assert encrypt(ONE, clear, bond) == raw
    assert len(raw) == len(clear) + 60


@given(texts, texts, texts)
def test_no_two_messages_share_key_and_nonce(one, two, bond):
    """The seed, of which key and nonce are made, differs as soon as the bytes or their bond do."""
    seeds = {encrypt(ONE, clear, to)[12:44] for clear in (one, two) for to in (bond, bond + b"x", b"y" + bond)}
    assert len(seeds) == 3 * len({one, two})
    assert ONE.seed(one, bond) != TWO.seed(one, bond)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_bit_is_noticed(clear, data):
    """Whichever bit of an envelope is flipped, it does not open."""
    raw = bytearray(encrypt(ONE, clear, b"bond"))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(NotAuthenticError):
        decrypt(ONE, bytes(raw), b"bond")


def test_another_key_another_bond_or_half_of_it_do_not_open():
    """An envelope opens under its own key and bond, whole, and in no other way."""
    raw = encrypt(ONE, b"clear", b"bond")
    for key, bytes_, bond in ((TWO, raw, b"bond"), (ONE, raw, b"other"), (ONE, raw[:-1], b"bond"), (ONE, b"", b"bond")):
        with pytest.raises(NotAuthenticError):
            decrypt(key, bytes_, bond)


def test_a_key_shows_its_id_and_nothing_else():
    """The id is made from the key; no representation and no error of it holds a byte of the key."""
    assert len(ONE.id) == 8
    assert ONE.id != TWO.id
    assert "\\x01" not in repr(ONE)
    with pytest.raises(MissingKeyError):
        Key(b"short")


def test_names_of_encrypted_segments_say_the_key():
    """The name parses back, and names of other endings are none."""
    name = SegmentName("run", 1, 2, 3, 4, 5, "ab" * 32, ONE.id)
    assert SegmentName.parse(str(name)) == name
    assert str(name).endswith(f".{ONE.id}.enc")
    assert name.bond("steps") == b"steps/run~a1~r00002~0000000000000003~000004~5"
    with pytest.raises(NotASegmentError):
        SegmentName.parse(str(name).replace(".enc", ".parquet"))


def test_a_keyring_is_lines_of_keys():
    """Base64 of both alphabets and hex, comments, blank lines and commas are read; the first key encrypts."""
    other = Key(bytes([251, 255] * 16))
    text = f"# old\n\n{ring(ONE)}{TWO.secret.hex()},{base64.urlsafe_b64encode(other.secret).decode()} # new\n"
    found = Keyring.parse(text, "here")
    assert found.keys == (ONE, TWO, other)
    assert found.active == ONE
    assert found.get(TWO.id) == TWO


@pytest.mark.parametrize("text", ["", "# nothing", "secret-word", "c2hvcnQ=", "0" * 63])
def test_a_keyring_without_a_key_is_refused_and_not_quoted(text):
    """The message says where, and nothing of what was read."""
    with pytest.raises(MissingKeyError, match="here: ") as caught:
        Keyring.parse(text, "here")
    assert "secret-word" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_keys_come_from_a_file_a_variable_and_a_command(tmp_path, monkeypatch):
    """All three sources give the same keyring; a command gets its arguments as a list, without a shell."""
    monkeypatch.setenv("MY_KEYS", ring(ONE, TWO).replace("\n", ","))
    source = source_of(tmp_path / "a key's file", ONE, TWO)
    helper = tmp_path / "helper"
    helper.write_text(f"#!{sys.executable}\nimport sys\nprint(open(sys.argv[1]).read())\n")
    helper.chmod(stat.S_IRWXU)
    command = f'command:{helper} "{tmp_path}/a key\'s file"'
    assert read_keyring(source) == read_keyring("env:MY_KEYS") == read_keyring(command)
    assert read_keyring(source).active == ONE


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("file:/nowhere/keys", "/nowhere/keys: the keyring cannot be read (No such file or directory)"),
        ("env:NO_SUCH_VARIABLE", "$NO_SUCH_VARIABLE: the variable that should hold the keyring is not set"),
        ("command:/nowhere/helper hunter2", "/nowhere/helper: the key command cannot be run"),
        ("command:/bin/false hunter2", "/bin/false: the key command ended with status 1"),
        ("command:'hunter2", "the key command is not valid"),
        ("hunter2", "the source of the encryption key is not valid"),
        ("file:", "the source of the encryption key is not valid"),
    ],
)
def test_a_source_that_fails_says_so_in_one_line(source, said):
    """What is wrong is said; arguments and misplaced keys are not repeated."""
    with pytest.raises(MissingKeyError) as caught:
        read_keyring(source)
    assert str(caught.value).startswith(said)
    assert "hunter2" not in str(caught.value)


def test_a_helper_that_hangs_is_not_waited_for(monkeypatch, tmp_path):
    """A key command has its time, and is ended then; what it printed is not shown."""
    monkeypatch.setattr(references, "COMMAND_S", 0.2)
    helper = tmp_path / "helper"
    helper.write_text("#!/bin/sh\necho hunter2\nsleep 60\n")
    helper.chmod(stat.S_IRWXU)
    started = time.monotonic()
    with pytest.raises(MissingKeyError, match="took longer than") as caught:
        read_keyring(f"command:{helper}")
    assert time.monotonic() - started < 40
    assert "hunter2" not in str(caught.value)


def test_a_key_that_is_added_later_is_found(tmp_path):
    """A process that has read a keyring reads it again for a key that it lacks."""
    source = source_of(tmp_path / "keys", ONE)
    assert find_key(source, ONE.id) == ONE
    with pytest.raises(MissingKeyError, match=TWO.id):
        find_key(source, TWO.id)
    source_of(tmp_path / "keys", TWO, ONE)
    assert find_key(source, TWO.id) == TWO
    with pytest.raises(MissingKeyError, match="encryption_key must be"):
        find_key("", ONE.id)


@pytest.fixture
def spool(tmp_path):
    """Give a spool with a process's segment in clear, and another's under each of two keys, ten rows each."""
    place = tmp_path / "spool"
    for number, key in enumerate((None, ONE, TWO)):
        path = put_segment(place, step_rows(10, segment=number, rank=number, incarnation=7 + number))
        if key is not None:
            encrypt_segment(path, key)
    return place


def bring(lake, spool):
    return ingest(lake, Spool(str(spool)), InProcess())


def stored(lake):
    return sorted(read(lake.tables, contract("steps"), ["segment"])["segment"].to_pylist())


def faults(lake, spool):
    return [fault for item in balance(lake, Spool(str(spool)).listing()) for fault in item.faults]


@pytest.mark.parametrize("packed", [False, True])
def test_a_mixed_spool_comes_in_whole(spool, tmp_path, packed):
    """Plain segments and those of an old and a new key are read in one go, in packs as well."""
    if packed:
        pack_up(spool, sorted(spool.glob("segments/*/steps/*")))
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(tmp_path / "keys", TWO, ONE)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable, done.waiting) == (30, 0, {})
    assert stored(lake) == [0] * 10 + [1] * 10 + [2] * 10
    assert not faults(lake, spool)


@pytest.mark.parametrize("packed", [False, True])
def test_segments_whose_key_is_not_there_wait(spool, tmp_path, packed):
    """The others come in; no plan names those that wait, nothing is quarantined, and they come in with their key."""
    if packed:
        pack_up(spool, sorted(spool.glob("segments/*/steps/*")))
    keyring = tmp_path / "keys"
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(keyring, ONE)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable, done.waiting) == (20, 0, {TWO.id: 1})
    assert not (tmp_path / "lake" / "quarantine").exists()
    assert not faults(lake, spool)
    assert bring(lake, spool).plans == []
    source_of(keyring, ONE, TWO)
    done = bring(lake, spool)
    assert (done.rows_stored, done.waiting) == (10, {})
    assert stored(lake) == [0] * 10 + [1] * 10 + [2] * 10
    assert not faults(lake, spool)


def test_a_plan_that_names_them_is_not_carried_out_without_the_key(spool, tmp_path):
    """A driver that finds it unfinished stops with one line and quarantines nothing; one with the key goes on."""
    with_keys = Lake.create(
        str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(tmp_path / "keys", ONE, TWO))
    )

    class Dies(InProcess):
        """Workers that are gone when they are needed."""

        def run(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(with_keys, Spool(str(spool)), Dies())
    without = Lake.open(str(tmp_path / "lake"))
    with pytest.raises(EncryptionError, match="a segment needs the key"):
        bring(without, spool)
    assert not (tmp_path / "lake" / "quarantine").exists()
    assert bring(with_keys, spool).rows_stored == 30
    assert not faults(with_keys, spool)


def test_bytes_under_another_segments_name_are_quarantined(spool, tmp_path):
    """An encrypted segment that is renamed does not open: it is put aside, counted, and the others come in."""
    (path,) = spool.glob(f"segments/*/steps/*.{ONE.id}.enc")
    path.rename(path.with_name(path.name.replace("~000001~", "~000009~")))
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(tmp_path / "keys", ONE, TWO)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (20, 1)
    assert read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].drop_null().to_pylist() == [
        "the encrypted bytes are not authentic"
    ]
    (kept,) = (tmp_path / "lake" / "quarantine").iterdir()
    assert kept.name == hashlib.sha256(kept.read_bytes()).hexdigest()
    assert kept.read_bytes().startswith(b"RLSEALED")


def test_the_command_says_which_key_is_missing(spool, tmp_path, monkeypatch, capsys):
    """`ranklake ingest` brings in the rest, names the key in one line and exits 1; with the key it exits 0."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ranklake.context.on_demand", lambda *_: nullcontext(InProcess()))
    arguments = ["ingest", "--lake", str(tmp_path / "lake"), "--spool", str(spool)]
    assert run(arguments) == 1
    assert f"1 segments wait for the key {ONE.id}; name its source by encryption_key" in capsys.readouterr().err
    source = source_of(tmp_path / "keys", ONE)
    (tmp_path / "ranklake.toml").write_text(f'[capture]\nencryption_key = "{source}"\n')
    assert run([*arguments, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["waiting"] == {TWO.id: 1}
    assert "the keyring does not have it" in said.err
    monkeypatch.setenv("RANKLAKE_CAPTURE_ENCRYPTION_KEY", "env:NOT_SET")
    assert run(arguments) == 1
    assert "$NOT_SET: the variable that should hold the keyring is not set" in capsys.readouterr().err
    monkeypatch.setenv("RANKLAKE_CAPTURE_ENCRYPTION_KEY", source_of(tmp_path / "more", THREE, TWO))
    assert run(arguments) == 0
    assert capsys.readouterr().err == ""
