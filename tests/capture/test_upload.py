"""Uploads: one suite that every store must pass, and what happens when a store fails."""

import base64
import hashlib
import os
import threading
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from store_suite import NAME, StoreSuite, seal, stream_folder
from stores import SECRET, Proxy, Store, s3_server, s3_storage

from ranklake.capture.recording.breaker import Breaker
from ranklake.capture.recording.upload import Uploader, UploadError


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
    return stream_folder(tmp_path)


@pytest.fixture(scope="module")
def s3_url(tmp_path_factory):
    """Give the URL of a server of S3 that lives as long as this file's tests."""
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def s3(s3_url, tmp_path):
    """Give a store behind a proxy, and the proxy."""
    with Proxy(s3_url) as proxy:
        yield Store(f"s3://bucket/{tmp_path.name}/spool", s3_storage(proxy.url)), proxy


def eager():
    """Return a breaker that never makes anybody wait."""
    return Breaker(dice=lambda: 0.0)


class TestStores(StoreSuite):
    """The contract, held by folders, memory and S3."""

    @pytest.fixture(params=["file", "path", "memory", "bucket", "s3"])
    def store(self, request, tmp_path, bucket):
        """Give an empty place in each kind of store."""
        if request.param == "s3":
            url = request.getfixturevalue("s3_url")
            return Store(f"s3://bucket/{tmp_path.name}/spool", s3_storage(url))
        uri = {
            "file": f"file://{tmp_path}/spool",
            "path": f"{tmp_path}/spool",
            "memory": f"memory://spool-{tmp_path.name}",
            "bucket": "bucket://b/spool",
        }[request.param]
        return Store(uri)


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
    assert not uploader.last_error, "an error of yesterday is no reason today"


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
    assert time.monotonic() - started < 40


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


def test_a_server_that_is_asked_too_much_is_asked_once(s3, folder):
    """An answer of 503 or 429 on the wire opens the breaker at the first request: no client repeats it unasked."""
    store, proxy = s3
    for status in (503, 429):
        proxy.faults, proxy.seen[:] = [status], []
        uploader = Uploader(store.uri, store.options)
        assert uploader.push(folder).left == 3
        assert uploader.breaker.state == "open"
        assert len(proxy.seen) == 1
        assert uploader.push(folder).left == 3
        assert len(proxy.seen) == 1


@pytest.mark.slow
def test_one_probe_asks_whether_the_server_is_back(s3, folder):
    """When its time has come, an open breaker lets one request through, and its success lets all the others."""
    store, proxy = s3
    clock = [0.0]
    uploader = Uploader(store.uri, store.options, Breaker(lambda: clock[0], lambda: 0.5))
    proxy.faults = [503, 503]
    uploader.push(folder)
    clock[0] += 100
    uploader.push(folder)
    assert (len(proxy.puts()), uploader.breaker.state) == (2, "open")
    clock[0] += 100
    assert uploader.push(folder).segments == 3
    assert (len(proxy.puts()), uploader.breaker.state) == (5, "closed")


@pytest.mark.parametrize("fault", ["reset", "swallow", "late", 500, 403, 404])
@pytest.mark.slow
def test_whatever_goes_wrong_on_the_wire_is_sent_again(s3, folder, fault):
    """A cut connection, a PUT answered and not stored, one stored and denied: in the end each segment is there."""
    store, proxy = s3
    proxy.faults = [fault, None, fault, None, fault]
    uploader = Uploader(store.uri, store.options, breaker=eager())
    done = uploader.push(folder, deadline=time.monotonic() + 60)
    assert done.segments == 3
    assert (
        uploader.retries == 3 or fault == "reset"
    )  # a connection that was kept alive is opened anew by aiohttp itself
    assert sorted(store.contents().values()) == [bytes([number]) * 1000 for number in range(3)]


def test_no_credential_is_in_what_is_logged(s3, folder, caplog):
    """Errors of a store are told without keys, signatures and tokens, whoever quotes them."""
    store, proxy = s3
    proxy.faults = [403]
    uploader = Uploader(store.uri, store.options)
    uploader.push(folder)
    assert uploader.last_error
    quoted = [
        f"cannot reach http://x/y?X-Amz-Signature=abcdef&X-Amz-Credential=me%2F1 with {SECRET}",
        "GET https://a.blob.core.windows.net/c/b?sv=2024&sig=aBc%2Bd%3D&se=9 failed",
        "DefaultEndpointsProtocol=https;AccountKey=aGVsbG8gd29ybGQ=;EndpointSuffix=x",
        "sftp://me:hunter2@host/spool",
    ]
    for text in quoted:
        proxy.faults = []
        told = uploader._error_line(OSError(text))
        assert "[redacted]" in told
        for secret in (SECRET, "abcdef", "me%2F1", "aBc", "aGVsbG8", "hunter2"):
            assert secret not in told
    assert SECRET not in caplog.text


SSE_C = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize(
    ("storage", "headers"),
    [
        ({"aws_server_side_encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {
                "aws_server_side_encryption": "aws:kms",
                "aws_sse_kms_key_id": "arn:aws:kms:eu-west-1:1:key/2",
                "aws_sse_bucket_key_enabled": "true",
                "aws_storage_class": "STANDARD_IA",
                "aws_acl": "bucket-owner-full-control",
            },
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:eu-west-1:1:key/2",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
                "x-amz-storage-class": "STANDARD_IA",
                "x-amz-acl": "bucket-owner-full-control",
            },
        ),
        (
            {"aws_server_side_encryption": "sse-c", "aws_sse_customer_key_base64": SSE_C},
            {
                "x-amz-server-side-encryption-customer-algorithm": "AES256",
                "x-amz-server-side-encryption-customer-key": SSE_C,
                "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(
                    hashlib.md5(bytes(range(32)), usedforsecurity=False).digest()
                ).decode(),
            },
        ),
    ],
    ids=["sse-s3", "sse-kms", "sse-c"],
)
def test_encryption_by_the_store_is_asked_for_with_each_put(s3, folder, storage, headers):
    """The options of ``[storage]`` are headers of every PUT on the wire, and not sent where S3 forbids them."""
    store, proxy = s3
    store = Store(store.uri, {**store.storage, **storage})
    uploader = Uploader(store.uri, store.options)
    assert uploader.push(folder).segments == 3, uploader.last_error
    assert len(proxy.puts()) == 3
    for put in proxy.puts():
        asked = {name: value for name, value in put.headers.items() if name in headers}
        assert asked == headers
    looked = [one for one in proxy.seen if one.method == "HEAD"]
    assert looked
    assert not any("x-amz-server-side-encryption" in one.headers for one in looked)


@pytest.mark.slow
def test_a_run_takes_its_storage_options_from_the_configuration(place, s3, tmp_path, monkeypatch):
    """One section ``[storage]`` names the bucket for recording too: a run finds endpoint, keys and encryption there."""
    store, proxy = s3
    lines = [f'{name} = "{value}"' for name, value in store.storage.items()]
    config = tmp_path / "ranklake.toml"
    config.write_text("\n".join(["[storage]", *lines, 'aws_server_side_encryption = "AES256"', ""]))
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    run = place.start(spool=store.uri)
    with run.step(0):
        pass
    run.close(30)
    assert any("/steps/" in path for path in store.contents())
    assert {put.headers.get("x-amz-server-side-encryption") for put in proxy.puts()} == {"AES256"}
    assert SECRET not in "".join(path.read_text("latin1") for path in place.local.rglob("*") if path.is_file())
