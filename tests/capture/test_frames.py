"""Frames: whatever happens to the bytes, the frames it did not happen to are read."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.capture.common.layouts import SCALARS
from ranklake.capture.lanes.written import RecordFile
from ranklake.capture.spool.files import sync_open_file
from ranklake.capture.spool.frames import MAX_BYTES, FrameFile, FrameTooLargeError, pack, read, scan

FACTS = st.dictionaries(st.text(min_size=1, max_size=8), st.integers() | st.text(max_size=20), min_size=1, max_size=4)


@given(st.lists(FACTS, max_size=8))
def test_frames_come_back_as_they_were(facts):
    """What is packed one after the other is read in that order, with nothing damaged or torn."""
    found = scan(b"".join(map(pack, facts)))
    assert (found.frames, found.damaged, found.torn_bytes) == (facts, 0, 0)


@given(st.lists(FACTS, min_size=1, max_size=6), st.data())
def test_a_torn_tail_costs_the_last_frame_only(facts, data):
    """A file cut within its last frame gives all the others, and tells how much of the last one is there."""
    packed = list(map(pack, facts))
    kept = data.draw(st.integers(1, len(packed[-1]) - 1))
    found = scan(b"".join(packed[:-1]) + packed[-1][:kept])
    assert (found.frames, found.damaged, found.torn_bytes) == (facts[:-1], 0, kept)


@given(st.lists(FACTS, min_size=1, max_size=6), st.data())
def test_a_flipped_bit_costs_one_frame(facts, data):
    """A bit flipped anywhere loses the frame it is in and no other."""
    packed = list(map(pack, facts))
    raw = bytearray(b"".join(packed))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    ends = [sum(map(len, packed[: index + 1])) for index in range(len(packed))]
    hit = next(index for index, end in enumerate(ends) if place < end)
    found = scan(bytes(raw))
    assert found.frames == facts[:hit] + facts[hit + 1 :]
    assert found.damaged + (found.torn_bytes > 0) == 1


@given(st.binary(max_size=200))
def test_any_bytes_can_be_scanned(raw):
    """Bytes that never were frames are no error."""
    scan(raw)


def test_a_frame_is_one_append(tmp_path):
    """Two writers of one file do not disturb each other's frames."""
    one, two = FrameFile(tmp_path / "f"), FrameFile(tmp_path / "f")
    for number in range(100):
        (one if number % 2 else two).append({"n": number})
    one.close()
    two.close()
    assert [frame["n"] for frame in read(tmp_path / "f").frames] == list(range(100))


def test_a_frame_beyond_the_limit_is_not_written(tmp_path):
    """A frame that readers would not accept is refused, and the file stays as it was."""
    file = FrameFile(tmp_path / "f")
    with pytest.raises(FrameTooLargeError):
        file.append({"text": "x" * MAX_BYTES})
    file.close()
    file.close()
    assert (tmp_path / "f").stat().st_size == 0


def test_nan_is_no_json():
    """A NaN cannot be packed: no other reader of JSON would take it."""
    with pytest.raises(ValueError, match="JSON"):
        pack({"x": float("nan")})


def test_an_absent_file_is_empty(tmp_path):
    """There is nothing in a file that is not there."""
    assert read(tmp_path / "absent").frames == []


def test_a_file_that_was_closed_meanwhile_is_not_synced(tmp_path):
    """The syncer may come to a file that a lane or a stream has just closed: nothing is left to do, or to tell."""
    frames, records = FrameFile(tmp_path / "f"), RecordFile(tmp_path / "r", SCALARS, 4096)
    frames.append({"a": 1})
    frames.close()
    frames.sync()
    records.retire(None)
    records.sync()
    gone = os.open(tmp_path / "f", os.O_RDONLY)
    os.close(gone)
    sync_open_file(gone)


def test_a_closed_file_raises_for_its_callers_to_count(tmp_path):
    """Appending to a closed file is an `OSError`, not a write to whatever has its descriptor now."""
    file = FrameFile(tmp_path / "f")
    file.close()
    with pytest.raises(OSError, match=os.strerror(9)):
        file.append({"a": 1})
