"""Suites in an object store: read as those of a folder, fetched once, and no code of them run unasked."""

import json
import os
from pathlib import Path

import fsspec
import pytest
from segments import step_rows

from ranklake.lake.store.lake_config import QualitySection
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.quality.check import run_checks
from ranklake.quality.suites import asking, folder
from ranklake.quality.suites.folder import SuitesError, read_folder

URI = "memory://bucket/suites"
CODE = "from great_expectations.core import ExpectationSuite\nopen({here!r}, 'w').write('ran')\n"


def suite(name, column="run"):
    """Return a suite as Great Expectations writes it, in bytes."""
    one = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": column}}
    return json.dumps({"name": name, "expectations": [one]}).encode()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Give a way to put files there, which counts those that are fetched; the cache is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fs = fsspec.filesystem("memory")
    fs.rm("/bucket", recursive=True) if fs.exists("/bucket") else None
    fetched = []
    plain = type(fs).cat_file

    def cat_file(self, path, **options):
        fetched.append(path.rpartition("/")[2])
        return plain(self, path, **options)

    monkeypatch.setattr(type(fs), "cat_file", cat_file)

    def put(name, body):
        fs.pipe_file(f"/bucket/suites/{name}", body)

    put.fs, put.fetched, put.cache = fs, fetched, tmp_path / "cache" / "ranklake" / "suites"
    yield put
    monkeypatch.undo()
    fs.rm("/bucket", recursive=True)


def names():
    """Return the names of the suites that are read."""
    return [one.name for one in read_folder(URI).suites]


def test_a_check_takes_suites_from_a_store(site, store, monkeypatch):
    """Their expectations are results as those of a folder."""
    monkeypatch.setattr(asking.SuiteProcess, "judge", None)
    site.bring(step_rows(10))
    store("deep/mine.json", suite("steps.mine"))
    report = run_checks(site.lake.configured(quality=QualitySection(URI)), ["steps"])
    assert "suite:steps.mine:expect_column_values_to_not_be_null:run" in {one.check_id for one in report.results}


def test_what_did_not_change_is_fetched_once(store):
    """A file is fetched again if its mark changed; what is new comes, and what is gone goes."""
    store("a.json", suite("steps.a"))
    store("b.json", suite("steps.b"))
    store("notes.txt", b"no suite")
    assert names() == ["steps.a", "steps.b"]
    assert names() == ["steps.a", "steps.b"]
    assert store.fetched == ["a.json", "b.json"]
    store("b.json", suite("steps.c"))
    store("d.json", suite("steps.d"))
    assert names() == ["steps.a", "steps.c", "steps.d"]
    assert store.fetched[2:] == ["b.json", "d.json"]
    store.fs.rm("/bucket/suites/a.json")
    assert names() == ["steps.c", "steps.d"]
    assert len(store.fetched) == 4


def test_a_copy_that_somebody_changed_is_not_believed(store):
    """Whatever is altered, added, or broken in the cache is fetched anew."""
    store("a.json", suite("steps.a"))
    names()
    (copy,) = [path for path in store.cache.iterdir() if path.is_dir()]
    (copy / "a.json").write_bytes(suite("steps.evil"))
    (copy / "more.py").write_text("raise SystemExit")
    assert names() == ["steps.a"]
    assert store.fetched == ["a.json", "a.json"]
    assert [path.name for path in copy.iterdir()] == ["a.json"]
    for index in store.cache.glob("*.json"):
        index.write_text('{"copy": "../../..", "files": {"a.json": 3}}')
    assert names() == ["steps.a"]
    assert (store.cache.stat().st_mode & 0o777) == 0o700


def test_code_of_a_store_is_run_only_by_its_digest(site, store, tmp_path):
    """Without the digest of all Python files it is errored and tells it; with it they run until one changes."""
    ran = tmp_path / "ran"
    site.bring(step_rows(10))
    store("mine.json", suite("steps.mine"))
    store("own.py", CODE.format(here=str(ran)).encode())

    def problems(code):
        found = read_folder(URI, {}, code)
        return len(found.python), [one.problem for one in found.suites if one.problem]

    count, (problem,) = problems("")
    assert (count, "without the configured digest" in problem) == (0, True)
    digest = problem.rpartition(" ")[2]
    lake = site.lake.configured(quality=QualitySection(URI))
    told = [one for one in run_checks(lake).results if one.check_id == "suite:python"]
    assert [(one.status, one.message) for one in told] == [("errored", problem)]
    assert problems(digest) == (1, [])
    store("own.py", b"import os  # another")
    count, (problem,) = problems(digest)
    assert (count, "another than" in problem) == (0, True)
    assert not ran.exists()


@pytest.mark.slow
def test_a_row_condition_of_a_store_is_no_code(site, store, tmp_path):
    """A text that could read files, or columns that it does not name, is refused; its like on columns is judged."""
    site.bring(step_rows(10))
    secret = tmp_path / "secret"
    secret.write_text("CANARY")
    code = f"@pd.read_csv('{secret}').columns.astype('int64') > 0"
    passed = {"type": "pass_through", "pass_through_filter": code}
    conditions = [code, passed, {"type": "or", "conditions": [passed, passed]}, "`step`.isin([1, 2])"]
    told = {"column": "step", "max_value": 5, "condition_parser": "pandas"}
    asked = [
        {"type": "expect_column_values_to_be_between", "kwargs": {**told, "row_condition": condition}}
        for condition in conditions
    ]
    store("mine.json", json.dumps({"name": "steps.mine", "expectations": asked}).encode())
    lake = site.lake.configured(quality=QualitySection(URI))
    found = [one for one in run_checks(lake, ["steps"]).results if one.check_id.startswith("suite:")]
    assert [one.status for one in found] == ["errored", "errored", "errored", "passed"]
    assert all("which could be code" in one.message for one in found[:3])
    assert "CANARY" not in str(found)


def test_a_folder_may_be_held_to_a_digest_too(tmp_path):
    """Python files of a folder are run as they are, or only as the configured ones."""
    (tmp_path / "own.py").write_text("import os")
    free = read_folder(str(tmp_path))
    assert len(free.python) == 1
    assert read_folder(str(tmp_path), {}, free.code).python == free.python
    assert not read_folder(str(tmp_path), {}, "0" * 64).python


def test_places_that_are_no_store_of_suites(store, monkeypatch):
    """An empty place is told as a folder that is not there; one with too many files, and one that fails, by name."""
    with pytest.raises(SuitesError, match="no such folder of suites"):
        names()
    store("a.json", suite("steps.a"))
    names()
    monkeypatch.setattr(folder, "MOST_FILES", 0)
    with pytest.raises(folder.TooManyFilesError, match="more than 0 files"):
        names()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(store.cache.parents[1]))

    def gone(self, path, **options):
        del self, options
        raise TimeoutError(path)

    monkeypatch.setattr(type(store.fs), "find", gone)
    with pytest.raises(LakeUnreachableError):  # the copy of before is not taken for what is there
        names()


def test_names_that_lead_elsewhere_are_passed_over(store, monkeypatch):
    """What a store calls its files is no path outside the copy."""
    plain = type(store.fs).find

    def find(self, path, **options):
        found = plain(self, path, **options)
        return {**found, f"{path}/../../x.json": {"size": 1}, f"{path}/.hidden/y.json": {"size": 1}}

    store("a.json", suite("steps.a"))
    monkeypatch.setattr(type(store.fs), "find", find)
    assert names() == ["steps.a"]
    every = [path.name for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")]
    assert "x.json" not in every


def test_names_that_no_folder_holds_are_read(store, monkeypatch):
    """A file beside a "folder" of its name, one with a long name, and one with an empty part are suites, too."""
    store("a.json", b"")
    places = ("a.json", "a.json/b.json", f"{'x' * 300}.json", "d//e.json", "d/e.json")
    found = {f"/bucket/suites/{place}": {"size": 9, "created": "now"} for place in places}
    monkeypatch.setattr(type(store.fs), "find", lambda *_, **__: found)
    monkeypatch.setattr(type(store.fs), "size", lambda *_: 9)
    monkeypatch.setattr(
        type(store.fs), "cat_file", lambda _, place, **__: suite(f"steps.{places.index(place[15:].lstrip('/'))}")
    )
    for _ in range(2):
        assert sorted(names()) == [f"steps.{number}" for number in range(5)]


def test_old_copies_go(store):
    """Of many changes the last copies stay."""
    for number in range(12):
        store("a.json", suite(f"steps.n{number}"))
        assert names() == [f"steps.n{number}"]
    assert len([path for path in store.cache.iterdir() if path.is_dir()]) == folder.KEPT
