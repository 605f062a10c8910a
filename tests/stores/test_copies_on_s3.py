"""Copies of artifacts in a lake on S3's protocol, as moto speaks it: made, found damaged, fetched, gone."""

import hashlib

import pytest
from governed import Site, any_rows
from stores import moto_server, s3_storage

from ranklake.allowed import NotAllowedError, allowed_places
from ranklake.artifact_copies import CopyError, copy, fetch, find_artifact, is_copied
from ranklake.capture.assets.merkle_digest import merkle_digest
from ranklake.cli import run as command
from ranklake.insight.runs.asking import asking
from ranklake.lake.store.lake import Lake
from ranklake.retention.copies import sweep_copies

pytestmark = pytest.mark.moto
FILES = {"model.pt": b"weights", "a b/ü#1.pt": b"odd name", "empty": b""}


@pytest.fixture
def site(tmp_path):
    """Give a site whose lake is on moto, with rows of a folder and of a file that lie there, too."""
    with moto_server(tmp_path) as url:
        site = Site(tmp_path)
        site.lake = Lake.create("s3://bucket/lake", s3_storage(url))
        store = site.lake.store
        for path, raw in FILES.items():
            (tmp_path / "ckpt" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "ckpt" / path).write_bytes(raw)
            store.fs.pipe_file(f"bucket/out/ckpt/{path}", raw)
        (tmp_path / "one.pt").write_bytes(b"weights")
        store.fs.pipe_file("bucket/out/one.pt", b"weights")
        for number, name in enumerate(("ckpt", "one.pt"), 1):
            known = merkle_digest(tmp_path / name)
            facts = {"name": name, "kind": "checkpoint", "action": "created", "uri": f"s3://bucket/out/{name}",
                     "sha256": known.sha256, "bytes": known.size_bytes, "file_count": known.file_count}  # fmt: skip
            rows = {column: [value] for column, value in facts.items()}
            site.bring(any_rows("artifacts", 1, run="r", incarnation=number, **rows), "artifacts")
        yield site


def test_copies_on_s3(site, tmp_path):
    """A folder and a file, from S3 and from here, share a file; a damaged copy is made again; a sweep takes strangers.

    Where nothing allows it, S3 is not opened.
    """
    store, allow = site.lake.store, allowed_places(["s3://bucket/out"], [])
    ask = asking(site.lake)
    folder, file = (find_artifact(ask, f"r/{name}") for name in ("ckpt", "one.pt"))
    with pytest.raises(NotAllowedError):
        copy(site.lake, folder, allowed_places([], []))
    done = copy(site.lake, folder, allow)
    assert (done.files, done.written_bytes) == (3, sum(map(len, FILES.values())))
    assert copy(site.lake, folder, allow).written_bytes == 0
    assert copy(site.lake, file, allow).written_bytes == 0  # of the folder
    store.fs.rm("bucket/out", recursive=True)
    for row, target in ((folder, "fetched"), (file, "fetched.pt")):
        assert fetch(site.lake, row, tmp_path / target, allow).files == row["file_count"]
        assert merkle_digest(tmp_path / target).sha256 == row["sha256"]
    with pytest.raises(CopyError, match="it is gone; name with --at where it is now"):
        fetch(site.lake, folder | {"sha256": "0" * 64}, tmp_path / "no", allow)
    weights = store.path("artifacts", hashlib.sha256(b"weights").hexdigest())
    store.fs.pipe_file(weights, b"wei")
    assert not is_copied(store, file)
    again = copy(site.lake, file, allowed_places([str(tmp_path)], []), at=str(tmp_path / "one.pt"))
    assert (again.written_bytes, store.fs.cat_file(weights)) == (7, b"weights")
    stranger = store.path("artifacts", hashlib.sha256(b"x").hexdigest())
    store.fs.pipe_file(stranger, b"x")
    assert sweep_copies(site.lake) == 1
    assert is_copied(store, folder)
    assert not store.fs.exists(stranger)


def test_the_commands_on_s3(site, tmp_path, monkeypatch):
    """Options of the store come from the configuration, for the lake and for what is copied."""
    monkeypatch.chdir(tmp_path)
    storage = "".join(f'{name} = "{value}"\n' for name, value in site.lake.store.storage.items())
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.lake.uri}"\n[spool]\nuri = "{site.spool}"\n[artifacts]\nallow = ["s3://bucket/out"]\n'
        f"[storage]\n{storage}"
    )
    for args in (["list", "r"], ["copy", "r/ckpt"], ["fetch", "r/ckpt", "--to", "back"], ["uses", "r/ckpt"]):
        assert command(["artifacts", *args]) == 0, args
    assert merkle_digest(tmp_path / "back").sha256 == merkle_digest(tmp_path / "ckpt").sha256
