"""Users' suites in a bucket, on S3's protocol as moto speaks it."""

import json

import pytest
from stores import moto_server

from ranklake.quality.suites.folder import SuitesError, read_folder

pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give a server of S3's protocol."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


def test_suites_of_a_bucket_are_read_and_renewed(place, tmp_path, monkeypatch):
    """What the bucket has is read, a changed file anew, code by its digest alone; an empty prefix is no folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fs, root = place.connect()

    def put(name):
        fs.pipe_file(f"{root}/deep/mine.json", json.dumps({"name": name, "expectations": []}).encode())

    put("steps.mine")
    fs.pipe_file(f"{root}/own.py", b"import os")
    first = read_folder(place.uri, place.storage)
    assert [one.name for one in first.suites] == ["steps.mine", "python"]
    digest = first.suites[1].problem.rpartition(" ")[2]
    again = read_folder(f"{place.uri}/", place.storage, digest)
    assert ([one.name for one in again.suites], len(again.python)) == (["steps.mine"], 1)
    put("steps.next")
    assert [one.name for one in read_folder(place.uri, place.storage).suites] == ["steps.next", "python"]
    with pytest.raises(SuitesError):
        read_folder(f"{place.uri}/nothing", place.storage)


def test_odd_names_and_empty_files_of_a_bucket(place, tmp_path, monkeypatch):
    """S3 has no range of an empty object, and no folders that an object's name could clash with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fs, root = place.connect()
    for number, name in enumerate(("a.json", "a.json/b.json", f"{'x' * 300}.json")):
        fs.pipe_file(f"{root}/{name}", json.dumps({"name": f"steps.{number}", "expectations": []}).encode())
    fs.pipe_file(f"{root}/empty.json", b"")
    for _ in range(2):
        found = {one.name: one.problem for one in read_folder(place.uri, place.storage).suites}
        assert found == {"steps.0": "", "steps.1": "", "steps.2": "", "empty": "not a suite: it is no JSON"}
