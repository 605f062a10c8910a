"""Fingerprints: what a folder's files hold, whatever happens to them meanwhile."""

import hashlib
import itertools
import os
import struct
import threading
import time
import tracemalloc

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.capture.assets import file_entries
from ranklake.capture.assets.file_entries import CHANGED, LOOP, SPECIAL
from ranklake.capture.assets.known_files import NAME, KnownFiles
from ranklake.capture.assets.merkle_digest import MerkleTree, StoppedError, leaf, merkle_digest


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def root_of(leaves):
    """Return the Merkle tree hash by the definition (RFC 6962, 2.1)."""
    if not leaves:
        return sha()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha(b"\1", root_of(leaves[:split]), root_of(leaves[split:]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32), max_size=40))
def test_the_tree_is_that_of_the_definition(leaves):
    """Leaf by leaf it comes to the same root as by recursion, for each number of leaves."""
    tree = MerkleTree()
    for one in leaves:
        tree.add(one)
    assert tree.root() == root_of(leaves)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    (place / "b" / "c").mkdir(parents=True)
    for name, raw in {"a.txt": b"alpha", "b/x.bin": b"x" * 3_000_000, "b/c/é.txt": b"", "b.txt": b"beta"}.items():
        (place / name).write_bytes(raw)
    return place


def expected(folder, names):
    """Return root and listing by the definition."""
    leaves, lines = [], b""
    for name in names:
        raw, path = (folder / name).read_bytes(), name.encode()
        head = b"\0" + struct.pack(">Q", len(path)) + path + struct.pack(">Q", len(raw))
        assert leaf(path, len(raw), sha(raw)) == sha(head, sha(raw))
        leaves.append(sha(head, sha(raw)))
        lines += sha(raw).hex().encode() + b"  " + path + b"\n"
    return root_of(leaves).hex(), hashlib.sha256(lines).hexdigest()


def test_a_folder(folder):
    """Root, listing, count and size are those of the definition, however many threads hash."""
    names = ["a.txt", "b/c/é.txt", "b/x.bin", "b.txt"]
    for threads in (1, 4):
        made = merkle_digest(folder, threads=threads)
        assert (made.root_sha256, made.listing_sha256) == expected(folder, names)
        assert (made.file_count, made.size_bytes, made.unreadable_count) == (4, 3_000_009, 0)


def test_a_file_and_a_uri(folder):
    """A file's digest is that of its bytes; a URI's fingerprint is that of the same files on a disk."""
    assert merkle_digest(folder / "a.txt").sha256 == hashlib.sha256(b"alpha").hexdigest()
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/data", recursive=True)
    try:
        assert merkle_digest("memory://data").root_sha256 == merkle_digest(folder).root_sha256
        assert merkle_digest("memory://data/a.txt").sha256 == hashlib.sha256(b"alpha").hexdigest()
        with pytest.raises(FileNotFoundError):
            merkle_digest("memory://none")
    finally:
        memory.rm("/data", recursive=True)
    with pytest.raises(FileNotFoundError):
        merkle_digest(folder / "none")


def test_any_change_changes_the_root(folder):
    """Content, a name, a move, an empty file more."""
    roots = {merkle_digest(folder).root_sha256}
    (folder / "a.txt").write_bytes(b"alphb")
    roots.add(merkle_digest(folder).root_sha256)
    (folder / "a.txt").rename(folder / "aa.txt")
    roots.add(merkle_digest(folder).root_sha256)
    (folder / "aa.txt").rename(folder / "b" / "aa.txt")
    roots.add(merkle_digest(folder).root_sha256)
    (folder / "empty").touch()
    roots.add(merkle_digest(folder).root_sha256)
    assert len(roots) == 5


def test_what_cannot_be_read_is_counted_with_its_reason(folder):
    """Loops, broken links and pipes are left out and told; links to files count as files."""
    (folder / "loop").symlink_to(folder)
    (folder / "broken").symlink_to(folder / "nowhere")
    (folder / "self").symlink_to("self")
    (folder / "good").symlink_to("a.txt")
    os.mkfifo(folder / "pipe")
    made = merkle_digest(folder)
    assert made.file_count == 5
    assert made.unreadable == {
        "broken": "No such file or directory",
        "loop": LOOP,
        "pipe": SPECIAL,
        "self": LOOP,
    }


def test_a_file_that_changes_while_it_is_read(folder):
    """It is not in the fingerprint: no digest would be that of any file there was."""
    begun, over = threading.Event(), threading.Event()
    (folder / "b" / "x.bin").write_bytes(b"x" * 60_000_000)

    def touch():
        moments = itertools.count(1)
        while not over.is_set():
            moment = next(moments)
            os.utime(folder / "b" / "x.bin", ns=(moment, moment))
            begun.set()

    writer = threading.Thread(target=touch)
    writer.start()
    begun.wait()
    try:
        made = merkle_digest(folder)
    finally:
        over.set()
        writer.join()
    assert made.unreadable == {"b/x.bin": CHANGED}
    assert made.file_count == 3


def test_known_files_are_not_read_again(folder, tmp_path):
    """What has been left alone is remembered; what was just written is not; a change that keeps mtime is seen."""
    for file in (folder / "b").rglob("*.bin"):
        os.utime(file, (1, 1))
    first = KnownFiles(tmp_path)
    merkle_digest(folder, known=first)
    first.close()
    again = KnownFiles(tmp_path)
    try:  # the files are seconds old at most: their times could hide another change
        assert all(again.get(file.stat()) is None for file in folder.rglob("*"))
    finally:
        again.close()
    newest, deadline = max(file.stat().st_ctime_ns for file in folder.rglob("*")), time.time() + 60
    while time.time_ns() - newest <= file_entries.RACY_NS and time.time() < deadline:
        time.sleep(0.05)
    third = KnownFiles(tmp_path)
    made = merkle_digest(folder, known=third)
    found = (folder / "b" / "x.bin").stat()
    assert third.get(found) == sha(b"x" * 3_000_000)
    assert merkle_digest(folder, known=third).root_sha256 == made.root_sha256
    (folder / "b" / "x.bin").write_bytes(b"y" * 3_000_000)
    os.utime(folder / "b" / "x.bin", (1, 1))
    assert merkle_digest(folder, known=third).root_sha256 != made.root_sha256
    third.close()


def test_a_damaged_cache_is_no_cache(folder, tmp_path):
    """Fingerprints are taken all the same."""
    (tmp_path / NAME).write_bytes(b"rubbish" * 1000)
    known = KnownFiles(tmp_path)
    assert merkle_digest(folder, known=known).file_count == 4
    known.close()


def test_many_files_take_little_memory(tmp_path):
    """Memory does not grow with the number of files."""
    for group in range(20):
        (tmp_path / f"{group}").mkdir()
        for number in range(100):
            (tmp_path / f"{group}" / f"{number}").touch()
    merkle_digest(tmp_path / "0")
    tracemalloc.start()
    try:
        assert merkle_digest(tmp_path).file_count == 2000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_stopping(folder):
    """It is given up between two files."""
    with pytest.raises(StoppedError):
        merkle_digest(folder, stopped=lambda: True)
