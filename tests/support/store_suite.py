"""What every store must do, whatever it is: subclass `StoreSuite` and give a fixture ``store`` (see `stores.Store`)."""

import hashlib
import threading
import time
from pathlib import Path

import pytest

from ranklake.capture.recording.upload import Uploader
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.lake.ingest.spool.spool import Spool

NAME = StreamName("run", 0, 3, 0xABC)


def seal(place: Path, number: int, raw: bytes, table: str = "steps") -> None:
    """Put a sealed segment into a stream."""
    digest = hashlib.sha256(raw).hexdigest()
    (place / SealedFile.local_name(table, number, "2026-01-02", 5, digest)).write_bytes(raw)


def stream_folder(tmp_path: Path) -> Path:
    """Make a stream's folder with three sealed segments of a thousand bytes."""
    place = NAME.folder(tmp_path / "local")
    place.mkdir(parents=True)
    for number in range(3):
        seal(place, number, bytes([number]) * 1000)
    return place


class StoreSuite:
    """The contract of a store: content-addressed names, harmless repeats, whole objects, and ingest finds them."""

    @pytest.fixture
    def folder(self, tmp_path):
        """Give a stream's folder with three sealed segments."""
        return stream_folder(tmp_path)

    def test_segments_arrive_under_their_contents_names(self, store, folder):
        """All bytes arrive, under names that say whose they are, and are gone locally."""
        uploader = Uploader(store.uri, store.options)
        done = uploader.push(folder)
        assert (done.segments, done.rows, done.left) == (3, 15, 0), uploader.last_error
        found = store.contents()
        assert sorted(found.values()) == [bytes([number]) * 1000 for number in range(3)]
        for path, raw in found.items():
            start = f"segments/2026-01-02/steps/run~a0~r00003~{0xABC:016x}~{raw[0]:06d}~5~"
            assert path == f"{start}{hashlib.sha256(raw).hexdigest()}.parquet"
        assert list(folder.iterdir()) == []

    def test_sending_again_is_harmless(self, store, folder):
        """A segment that is sent twice is there once, with the same bytes."""
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        Uploader(store.uri, store.options).push(folder)
        before = store.contents()
        for name, raw in kept.items():
            (folder / name).write_bytes(raw)
        assert Uploader(store.uri, store.options).push(folder).segments == 3
        assert len(before) == 3
        assert store.contents() == before

    def test_a_segment_whose_slots_are_left_waits(self, store, folder):
        """A sealing that is not finished may be repeated, so its segment is not sent."""
        (folder / "steps-000001.open").write_bytes(b"")
        done = Uploader(store.uri, store.options).push(folder)
        assert (done.segments, done.left) == (2, 0)
        assert len(store.contents()) == 2
        assert len(list(folder.glob("steps-000001~*"))) == 1

    def test_two_threads_may_send_the_same(self, store, folder):
        """Whoever comes second finds nothing left, or sends again what is there: nothing breaks.

        moto may say for a moment that an object is not there while another thread writes it again; that try counts as
        failed, and the last push sits the breaker's wait out.
        """
        uploader = Uploader(store.uri, store.options)

        def work():
            try:
                uploader.push(folder)
            except FileNotFoundError:  # another was faster
                return

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        uploader.push(folder, deadline=time.monotonic() + 60)
        assert len(store.contents()) == 3, uploader.last_error
        assert not list(folder.iterdir())

    def test_a_large_object_arrives_whole(self, store):
        """A pack's size goes in one piece, and comes back byte for byte."""
        raw = bytes(range(256)) * (33 * 4096)
        uploader = Uploader(store.uri, store.options)
        assert uploader.send("segments/large", raw), uploader.last_error
        assert store.contents() == {"segments/large": raw}

    def test_ingest_finds_them(self, store, folder):
        """What was sent is what ingest lists, under the same options, by the names that delta-rs has for them."""
        if store.more:
            pytest.skip("the store is not reached by storage options alone")
        Uploader(store.uri, store.options).push(folder)
        spool = Spool(store.uri, store.storage)
        listed = spool.listing()
        assert [(item.table, item.name.segment, item.size_bytes) for item in listed] == [
            ("steps", number, 1000) for number in range(3)
        ]
        assert [spool.fs.cat_file(item.path)[:1] for item in listed] == [bytes([number]) for number in range(3)]
