"""Event files, written here after the formats' own descriptions."""

import struct

import pytest
from foreign_bytes import record
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported, refused_as_another_run

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.wire import masked_crc

BEGIN = 1_700_000_000.25


def message(number, raw):
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def event(at, step, *values):
    summary = b"".join(message(1, value) for value in values)
    return record(b"\x09" + struct.pack("<d", at) + bytes([0x10, step]) + message(5, summary))


def simple(tag, value):
    return message(1, tag) + b"\x15" + struct.pack("<f", value)


def tensor(tag, value):
    return message(1, tag) + message(8, b"\x08\x01" + message(4, struct.pack("<f", value)))


HEAD = record(b"\x09" + struct.pack("<d", BEGIN) + message(3, b"brain.Event:2"))
IMAGE = message(1, b"picture") + message(4, b"\x08\x01")
EVENTS = [
    event(BEGIN + 1, 1, simple(b"train/loss", 2.5), simple(b"lr", 0.5)),
    event(BEGIN + 2, 2, tensor(b"train/loss", 1.25), IMAGE, simple(b"bad", float("nan"))),
]


def test_the_checksum_is_the_one_of_the_format():
    """CRC-32C of 123456789 is 0xE3069283 (RFC 3720), masked as TFRecord has it."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars(lake, spool, tmp_path):
    """Plain numbers and tensors of one are scalars with their steps and times; pictures are not."""
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(HEAD + b"".join(EVENTS))
    done = imported(lake, spool, "tensorboard", file, run="r")
    assert (done.rows, done.refused) == ({"runs": 1, "scalars": 4}, {})
    rows = ask(lake, "SELECT metric, step, value, value_flag, ts FROM scalars ORDER BY step, metric")
    assert [(row["metric"], row["step"], row["value"]) for row in rows] == [
        ("lr", 1, 0.5), ("train/loss", 1, 2.5), ("bad", 2, None), ("train/loss", 2, 1.25),
    ]  # fmt: skip
    assert str(rows[0]["ts"]) == "2023-11-14 22:13:21.250000+00:00"


def test_two_folders_do_not_become_one_run(tmp_path):
    """Files of one folder go into one run, also by several commands; those of another folder do not."""
    files = [tmp_path / place for place in ("a/tfevents.1", "b/tfevents.1", "a/tfevents.2")]
    for file, more in zip(files, (EVENTS[:1], EVENTS[1:], EVENTS), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(HEAD + b"".join(more))
    refused_as_another_run("tensorboard", files[:2], tmp_path / "spool")
    assert import_files("tensorboard", [str(files[2])], str(tmp_path / "spool"), run="r").runs == ["r"]


def test_no_event_file(spool, tmp_path):
    """Another file is refused, with what it looks like."""
    file = tmp_path / "x"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="it looks like table"):
        import_files("tensorboard", [str(file)], str(spool))


@settings(max_examples=10, deadline=None)
@given(st.integers(40, 200), st.integers(0, 255))
def test_damage_is_counted(tmp_path_factory, at, byte):
    """One byte changed anywhere: whole records before it are there, and the damage is counted once."""
    place = tmp_path_factory.mktemp("tb")
    whole = bytearray(HEAD + b"".join(EVENTS))
    damaged = at < len(whole) and whole[at] != byte
    if at < len(whole):
        whole[at] = byte
    (place / "events").write_bytes(whole)
    done = import_files("tensorboard", [str(place / "events")], str(place / "spool"), run="r")
    assert sum(done.refused.values()) == damaged
    assert bool(done.cut) == damaged


def test_folders_of_one_name(lake, spool, tmp_path):
    """Runs are called after the folder that was named and what is in it: two experiments never share one."""
    for place in ("one/train", "one/val", "two/train", "two"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "events.out.tfevents.1").write_bytes(HEAD + EVENTS[0])
    assert imported(lake, spool, "tensorboard", tmp_path / "one").runs == ["one-train", "one-val"]
    assert imported(lake, spool, "tensorboard", f"{tmp_path}/two/").runs == ["two", "two-train"]
    assert ask(lake, "SELECT count(*) n FROM scalars") == [{"n": 8}]


def test_folders_under_one_name(spool, tmp_path):
    """Each folder is a run of its own under a name that was given, too; one folder has the name itself."""
    for place in ("one", "one/val", "two/train"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "events.out.tfevents.1").write_bytes(HEAD + EVENTS[0])
    assert import_files("tensorboard", [str(tmp_path)], str(spool), run="q").runs == [
        "q-one",
        "q-one-val",
        "q-two-train",
    ]
    assert import_files("tensorboard", [str(tmp_path / "one")], str(spool), run="s").runs == ["s", "s-val"]
    assert import_files("tensorboard", [str(tmp_path / "two")], str(spool), run="t").runs == ["t"]
