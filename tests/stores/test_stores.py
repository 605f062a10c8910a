"""The contract of a store over real HTTP, where `make test` has no time: Azure's and Google's protocols, and moto.

Azurite is Microsoft's own emulator; moto and gcp-storage-emulator imitate S3 and Google's storage. None of them is the
service itself: they show that our requests are understood, and what options become of them.
"""

import base64
import os
import sys
import time
from pathlib import Path

import fsspec
import pytest
from lake_suite import LakeSuite
from store_suite import StoreSuite, stream_folder
from stores import Proxy, Store, free_port, moto_server, s3_storage, serving

from ranklake.capture.recording.upload import Uploader
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError, UnsafeStoreError

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore:Sending a large body"),  # aiohttp's advice to Azure's client
]
BIN = Path(sys.executable).parent
AZURITE = Path(__file__).parents[2] / ".stores" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = base64.b64encode(bytes(64)).decode()


@pytest.fixture(scope="module")
def azure_url(tmp_path_factory):
    """Give the URL of an Azurite with one container."""
    folder, port = tmp_path_factory.mktemp("azure"), free_port()
    command = [str(AZURITE), "--blobPort", str(port), "--location", str(folder), "--skipApiVersionCheck", "--silent"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURITE_ACCOUNTS", f"{ACCOUNT}:{ACCOUNT_KEY}")
        with serving([*command, "--disableTelemetry"], port, folder / "log") as url:
            fs = fsspec.filesystem("az", skip_instance_cache=True, **azure(url).options)
            fs.mkdir("bucket")
            yield url


def azure(url, **more):
    """Return a store in Azurite."""
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={url}/{ACCOUNT};"
    return Store("az://bucket/spool", more, {"connection_string": text})


@pytest.fixture(scope="module")
def google_url(tmp_path_factory):
    """Give the URL of an imitation of Google's storage with one bucket."""
    folder, port = tmp_path_factory.mktemp("google"), free_port()
    command = [str(BIN / "gcp-storage-emulator"), "start", f"--port={port}", "--in-memory", "--default-bucket=bucket"]
    with pytest.MonkeyPatch.context() as patch, serving(command, port, folder / "log") as url:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else gcsfs asks by gRPC, for minutes
        yield url


def google(url, **more):
    """Return a store there."""
    return Store("gs://bucket/spool", {"google_endpoint_url": url, "google_service_account": "anon", **more})


@pytest.fixture(scope="module")
def moto_url(tmp_path_factory):
    """Give the URL of a moto server with one bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


class Fresh(StoreSuite):
    """The suite, each test in a place of its own."""

    @pytest.fixture
    def store(self, whole, tmp_path):
        """Give an empty place in the store."""
        return Store(f"{whole.uri}/{tmp_path.name}", whole.storage, whole.more)


class TestAzure(Fresh):
    """Azure's protocol."""

    @pytest.fixture
    def whole(self, azure_url):
        """Give the store."""
        return azure(azure_url)


class TestAzureLake(LakeSuite):
    """A whole lake over Azure's protocol, named by storage options alone."""

    @pytest.fixture
    def place(self, azure_url, tmp_path):
        """Give an empty place there."""
        named = {"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": ACCOUNT_KEY}
        return Store(f"az://bucket/{tmp_path.name}", {**named, "azure_storage_endpoint": f"{azure_url}/{ACCOUNT}"})


def test_a_careless_imitation_of_google_is_refused(google_url, tmp_path):
    """The emulator overwrites whatever `ifGenerationMatch` says: no lake there, and nothing left."""
    place = google(google_url).below(tmp_path.name)
    with pytest.raises(UnsafeStoreError):
        Lake.create(place.uri, place.storage)
    assert place.contents() == {}


@pytest.mark.parametrize(
    ("uri", "storage"),
    [
        ("az://bucket/lake", {"azure_storage_account_name": "nobody"}),
        ("az://bucket/lake", {}),
        ("gs://bucket/lake", {}),
    ],
)
def test_missing_credentials_are_told_at_once(uri, storage, monkeypatch, tmp_path):
    """Nothing is retried for what no retry can mend."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    started = time.monotonic()
    with pytest.raises(LakeUnreachableError, match="give or check credentials"):
        Lake.open(uri, storage)
    assert time.monotonic() - started < 30


class TestGoogle(Fresh):
    """Google's protocol."""

    @pytest.fixture
    def whole(self, google_url):
        """Give the store."""
        return google(google_url)


class TestMoto(Fresh):
    """S3's protocol as moto speaks it."""

    @pytest.fixture
    def whole(self, moto_url):
        """Give the store."""
        return Store("s3://bucket/spool", s3_storage(moto_url))


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ({"aws_server_side_encryption": "AES256"}, {"ServerSideEncryption": "AES256"}),
        (
            {
                "aws_server_side_encryption": "aws:kms",
                "aws_sse_kms_key_id": "arn:aws:kms:us-east-1:123456789012:key/one",
                "aws_sse_bucket_key_enabled": "true",
                "aws_storage_class": "STANDARD_IA",
            },
            {
                "ServerSideEncryption": "aws:kms",
                "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/one",
                "BucketKeyEnabled": True,
                "StorageClass": "STANDARD_IA",
            },
        ),
    ],
)
def test_the_object_is_encrypted_as_asked(moto_url, tmp_path, storage, said):
    """HEAD of a segment that was sent says how the store encrypted it, and with which key."""
    store = Store(f"s3://bucket/{tmp_path.name}", s3_storage(moto_url, **storage))
    uploader = Uploader(store.uri, store.options)
    assert uploader.push(stream_folder(tmp_path)).segments == 3, uploader.last_error
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **store.options)
    for path in store.contents():
        head = fs.call_s3("head_object", Bucket="bucket", Key=f"{tmp_path.name}/{path}")
        assert {name: head.get(name) for name in said} == said


def test_azure_is_told_the_encryption_scope(azure_url, tmp_path):
    """The option is a header of each PUT of a segment."""
    with Proxy(azure_url) as proxy:
        store = azure(proxy.url, azure_encryption_scope="tests")
        Uploader(f"{store.uri}/{tmp_path.name}", store.options).push(stream_folder(tmp_path))
    puts = [one for one in proxy.puts() if "/segments/" in one.path]
    assert puts
    assert {one.headers.get("x-ms-encryption-scope") for one in puts} == {"tests"}


def test_google_is_told_the_key(google_url, tmp_path):
    """The option is in the query of each upload."""
    name = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    with Proxy(google_url) as proxy:
        store = google(proxy.url, google_kms_key_name=name)
        Uploader(f"{store.uri}/{tmp_path.name}", store.options).push(stream_folder(tmp_path))
    puts = [one for one in proxy.puts() if "/upload/" in one.path]
    assert puts
    assert all("kmsKeyName=projects" in one.path for one in puts)
