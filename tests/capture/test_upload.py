"""Uploads: one suite that every store must pass, and what happens when a store fails."""

import hashlib
import os
import threading
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ranklake.capture.breaker import Breaker
from ranklake.capture.stream import SealedFile, StreamName
from ranklake.capture.upload import Uploader, UploadError

NAME = StreamName("run", 0, 3, 0xABC)


class Bucket(MemoryFileSystem):
    """A store in memory that calls itself an object store and fails as it is told to."""

    protocol = ("s3", "bucket")
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    errors: ClassVar[list] = []
    puts = 0
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("bucket://", "memory://"))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        """Store, unless an error is due."""
        type(self).puts += 1
        if self.errors:
            error = type(self).errors.pop(0)
            if error is not None:
                raise error
        super().pipe_file(path, value, mode=mode, **kwargs)


fsspec.register_implementation("bucket", Bucket, clobber=True)


@pytest.fixture
def bucket():
    """Give an empty bucket without errors."""
    Bucket.store, Bucket.pseudo_dirs, Bucket.errors, Bucket.puts = {}, [""], [], 0
    return Bucket


@pytest.fixture
def folder(tmp_path):
    """Give a stream's folder with three sealed segments."""
    place = NAME.folder(tmp_path / "local")
    place.mkdir(parents=True)
    for number in range(3):
        seal(place, number, bytes([number]) * 1000)
    return place


def seal(place, number, raw, table="steps"):
    """Put a sealed segment into a stream."""
    digest = hashlib.sha256(raw).hexdigest()
    (place / SealedFile.local_name(table, number, "2026-01-02", 5, digest)).write_bytes(raw)


def eager():
    """Return a breaker that never makes anybody wait."""
    return Breaker(dice=lambda: 0.0)


@pytest.fixture(params=["file", "path", "memory", "bucket"])
def store(request, tmp_path, bucket):
    """Give a spool's URI in each kind of store, and a reader of what is in it."""
    uri = {
        "file": f"file://{tmp_path}/spool",
        "path": f"{tmp_path}/spool",
        "memory": f"memory://spool-{tmp_path.name}",
        "bucket": "bucket://b/spool",
    }[request.param]

    def contents():
        fs, root = fsspec.url_to_fs(uri)
        root = root.rstrip("/")
        return {path.removeprefix(root).lstrip("/"): fs.cat_file(path) for path in fs.find(root)}

    return uri, contents


def test_segments_arrive_under_their_contents_names(store, folder):
    """All bytes arrive, under names that say whose they are, and are gone locally."""
    uri, contents = store
    done = Uploader(uri).push(folder)
    assert (done.segments, done.rows, done.left) == (3, 15, 0)
    found = contents()
    assert sorted(found.values()) == [bytes([number]) * 1000 for number in range(3)]
    for path, raw in found.items():
        start = f"segments/2026-01-02/steps/run~a0~r00003~{0xABC:016x}~{raw[0]:06d}~5~"
        assert path == f"{start}{hashlib.sha256(raw).hexdigest()}.parquet"
    assert list(folder.iterdir()) == []


def test_sending_again_is_harmless(store, folder):
    """A segment that is sent twice is there once, with the same bytes."""
    uri, contents = store
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    Uploader(uri).push(folder)
    before = contents()
    for name, raw in kept.items():
        (folder / name).write_bytes(raw)
    assert Uploader(uri).push(folder).segments == 3
    assert contents() == before


def test_a_segment_whose_slots_are_left_waits(store, folder):
    """A sealing that is not finished may be repeated, so its segment is not sent."""
    uri, contents = store
    (folder / "steps-000001.open").write_bytes(b"")
    done = Uploader(uri).push(folder)
    assert (done.segments, done.left) == (2, 0)
    assert len(contents()) == 2
    assert len(list(folder.glob("steps-000001~*"))) == 1


def test_two_threads_may_send_the_same(store, folder):
    """Whoever comes second finds nothing left, or sends again what is there: nothing breaks."""
    uri, contents = store
    uploader = Uploader(uri)
    troubles = []

    def work():
        try:
            uploader.push(folder)
        except FileNotFoundError:
            troubles.append("gone")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uploader.push(folder)
    assert len(contents()) == 3
    assert not list(folder.iterdir())


def test_readers_never_see_half_a_segment(tmp_path):
    """In a folder, a name that ends in .parquet holds all its bytes from the first moment."""
    place = NAME.folder(tmp_path / "local")
    place.mkdir(parents=True)
    size, stop, seen = 4_000_000, threading.Event(), []
    for number in range(8):
        seal(place, number, os.urandom(size))

    def look():
        while not stop.is_set():
            seen.extend(path.stat().st_size for path in (tmp_path / "spool").glob("segments/*/*/*.parquet"))

    reader = threading.Thread(target=look)
    reader.start()
    Uploader(str(tmp_path / "spool")).push(place)
    stop.set()
    reader.join()
    assert set(seen) == {size}
    assert not list((tmp_path / "spool").rglob("*.tmp"))


def test_a_failing_store_keeps_everything(bucket, folder):
    """Errors end the round; every segment stays, and goes when the store is back."""
    bucket.errors = [OSError("no route"), None]
    uploader = Uploader("bucket://b/spool", breaker=eager())
    assert uploader.push(folder).left == 3
    assert "no route" in uploader.last_error
    assert uploader.push(folder).segments == 3


def test_with_a_deadline_it_is_tried_again(bucket, folder):
    """At the close, errors are sat out as long as there is time."""
    bucket.errors = [OSError("flapping"), None, OSError("flapping"), OSError("flapping")]
    uploader = Uploader("bucket://b/spool", breaker=eager())
    assert uploader.push(folder, deadline=time.monotonic() + 30).segments == 3
    assert (uploader.retries, bucket.puts) == (3, 6)


def test_without_time_left_it_is_not_tried_again(bucket, folder):
    """A close waits no longer than it was told to."""
    bucket.errors = [OSError("down")] * 100
    uploader = Uploader("bucket://b/spool", breaker=Breaker(dice=lambda: 1.0))
    started = time.monotonic()
    assert uploader.push(folder, deadline=started + 0.2).left == 3
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("where", ["status", "code", "response", "text", "cause"])
def test_a_store_that_is_asked_too_much_is_left_alone_at_once(bucket, folder, where):
    """One answer of 429 or 503, wherever the client puts it, opens the breaker."""
    error = OSError("SlowDown" if where == "text" else "busy")
    if where in {"status", "code"}:
        setattr(error, where, 503)
    if where == "response":
        error.response = {"ResponseMetadata": {"HTTPStatusCode": 429}}
    if where == "cause":
        error.__cause__ = RuntimeError()
        error.__cause__.status_code = 429
    bucket.errors = [error]
    uploader = Uploader("bucket://b/spool")
    uploader.push(folder)
    assert uploader.breaker.state == "open"
    assert uploader.push(folder).left == 3
    assert bucket.puts == 1


def test_a_store_that_keeps_less_than_it_was_given_is_not_believed(bucket, folder, monkeypatch):
    """A size that differs from what was sent is a failure, and the segment stays."""
    monkeypatch.setattr(bucket, "info", lambda *_, **__: {"size": 999})
    uploader = Uploader("bucket://b/spool")
    assert uploader.push(folder).left == 3
    assert "999 bytes of 1000" in uploader.last_error
    with pytest.raises(UploadError):
        uploader.put("x", bytes(1000))


def test_decayed_bytes_are_sent_for_ingest_to_put_aside(bucket, folder):
    """A segment that no longer has its digest is sent under its name: ingest counts and quarantines it."""
    path = next(folder.iterdir())
    path.write_bytes(b"rotten" * 100)
    assert Uploader("bucket://b/spool").push(folder).segments == 3
    assert len(bucket.store) == 3


def test_an_unwritable_folder_is_a_failure_like_any_other(tmp_path, folder):
    """A spool whose place is taken by a file is not reachable; nothing is lost and nothing raised."""
    (tmp_path / "spool").write_text("file")
    uploader = Uploader(str(tmp_path / "spool"))
    assert uploader.push(folder).left == 3
    assert len(list(folder.iterdir())) == 3


def test_an_unknown_protocol_is_a_failure_like_any_other(folder):
    """A URI that fsspec does not know leaves everything where it is."""
    uploader = Uploader("nosuch://x/spool")
    assert uploader.push(folder).left == 3
    assert "nosuch" in uploader.last_error
