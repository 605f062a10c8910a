"""What is said of runs, from the prompt and the script to the lake: found by it, shown with it, and no sign of life."""

import json

import pytest
from recorded_runs import lake_of_runs

from ranklake import capture
from ranklake.capture.annotate import annotate
from ranklake.capture.provenance.annotations import annotation
from ranklake.cli import run as command
from ranklake.insight.runs.annotations import annotations_of_each
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import RunConditions, find, find_run
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.liveness import liveness
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.segments.segment import readable_name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Give a lake of four runs and a spool with what was said of two of them, ingested."""
    folder = tmp_path_factory.mktemp("said")
    lake, spool = lake_of_runs(folder), folder / "spool"

    def say(run, *said):
        annotate(run, [annotation(*one, source="person") for one in said], str(spool), {})

    say(
        "alpha-1",
        ("name", None, "Große Änderung"),
        ("tag", "baseline"),
        ("tag", "stage", "one"),
        ("note", None, "why?"),
    )
    say("alpha-1", ("tag", "stage", "two"), ("summary", "best", 1.25))
    say("alpha-2", ("tag", "stage", "one"), ("tag", "baseline"))
    annotate("alpha-2", [annotation("tag", "baseline", removed=True, source="person")], str(spool), {})
    ingest(lake, Spool(str(spool)), InProcess())
    return lake, spool


def test_the_last_that_was_said_counts(site):
    """A tag that was given again has its new value, one that was taken back is gone, and all rows are still there."""
    lake, _ = site
    said, told = annotations_of_each(asking(lake), ["alpha-1", "alpha-2", "beta"])
    assert (said["alpha-1"].name, said["alpha-1"].tags) == ("Große Änderung", {"baseline": None, "stage": "two"})
    assert said["alpha-1"].summary == {"best": 1.25}
    assert (said["alpha-2"].name, said["alpha-2"].tags) == (readable_name("alpha-2"), {"stage": "one"})
    assert said["beta"].name == readable_name("beta")
    assert query(lake, "SELECT count(*) n FROM annotations").to_pylist() == [{"n": 9}]
    assert query(lake, told.sql).num_rows == len(told.rows)


def test_runs_are_found_by_tag_and_by_name_for_people(site):
    """By tags, with and without value; by the given name and by the one of the id; of two that begin so, told."""
    lake, _ = site
    ask = asking(lake)

    def found(**wanted):
        return sorted(row["run"] for row in find(ask, RunConditions(**wanted)).rows)

    assert found(tags={"stage": ""}) == ["alpha-1", "alpha-2"]
    assert found(tags={"stage": "two", "baseline": ""}) == ["alpha-1"]
    assert found(tags={"stage": "three"}) == []
    assert found(run="Große") == ["alpha-1"]
    assert found(run=readable_name("beta")) == ["beta"]
    assert find_run(ask, "Große Ä") == "alpha-1"
    assert find_run(ask, readable_name("alpha-3")) == "alpha-3"


def test_the_prompt_tags_shows_and_finds(site, capsys, monkeypatch, tmp_path):
    """`tag` looks a run up, writes rows; after an ingest `show` and `runs` have them; without a word it says so."""
    lake, spool = site
    places = ["--lake", lake.uri, "--spool", str(spool)]
    assert (
        command(
            [
                "tag",
                "beta",
                "odd=\x1b[2J",
                "--note",
                "look\nhere",
                "--summary",
                "n=3",
                "--summary",
                f"l={'q' * 5000}",
                *places,
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == "4 rows about beta written to the spool; run 'ranklake ingest' to store them\n"
    assert command(["ingest", *places]) == 0
    capsys.readouterr()
    assert command(["show", "beta", "--lake", lake.uri]) == 0
    shown = capsys.readouterr().out
    assert "tags        odd=\\x1b[2J" in shown
    assert "look here" in shown
    assert "summary     n 3" in shown
    assert f"summary     l {'q' * 200}…\n" in shown
    assert command(["runs", "--tag", "odd", "--json", "--lake", lake.uri]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["said"]["tags"] == {"odd": "\x1b[2J"}
    assert command(["tag", "beta", "--remove", "odt", "--remove", "odd", *places]) == 0
    assert capsys.readouterr().err == "beta has no tag odt in the lake; did you mean 'odd'?\n"
    for arguments, said in [
        (["beta"], "no tag, name, note or summary value"),
        (["beta", "--summary", "n"], "a summary value is missing"),
        (["beta", "="], "the name of a tag is empty"),
        (["gamma", "x"], "no run 'gamma'"),
    ]:
        assert command(["tag", *arguments, *places]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKLAKE_LAKE", raising=False)
    assert command(["tag", "no such/run", "x", "--spool", str(spool)]) == 2
    assert "is not a run's name" in capsys.readouterr().err


def test_an_archived_run_is_in_no_list(site, capsys):
    """It is left out by `runs`, with and without conditions, and is found by its tag and shown by its name."""
    lake, spool = site
    annotate("alpha-3", [annotation("tag", "archived", source="person")], str(spool), {})
    ingest(lake, Spool(str(spool)), InProcess())
    for options, is_listed in (([], False), (["--tag", "archived"], True), (["alpha"], False)):
        assert command(["runs", *options, "--json", "--lake", lake.uri]) == 0
        runs = [row["run"] for row in json.loads(capsys.readouterr().out)["runs"]]
        assert ("alpha-3" in runs) == is_listed
        assert ("alpha-1" in runs) != is_listed
    assert command(["show", "alpha-3", "--lake", lake.uri]) == 0


def test_a_role_that_may_not_see_them_gets_the_reason(site, capsys, tmp_path, monkeypatch):
    """`runs` and `show` as a role without the table: the names of ids, and the reason; nothing is raised."""
    lake, _ = site
    (tmp_path / "roles.yaml").write_text("roles:\n  few: {classes: [operational], tables: [run_summary]}\n")
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    monkeypatch.chdir(tmp_path)
    assert command(["runs", "--role", "few", "--lake", lake.uri]) == 0
    assert readable_name("alpha-1") in capsys.readouterr().out
    assert command(["show", "alpha-1", "--role", "few", "--lake", lake.uri]) == 0
    assert "tags        unknown: role few does not see it" in capsys.readouterr().out


@pytest.mark.slow
def test_a_tag_is_no_sign_of_life_and_the_books_add_up(tmp_path, monkeypatch):
    """A run that somebody tags is heard of no later than before, in the spool and in the lake; every row is stored."""
    monkeypatch.delenv("RANKLAKE_LAKE", raising=False)
    spool = str(tmp_path / "spool")
    with capture.start(run="r", spool=spool, local_dir=tmp_path / "local") as run, run.step(0):
        pass
    lake = lake_of_runs(tmp_path)
    ingest(lake, Spool(spool), InProcess())
    before = {state.run: state.heard for state in liveness(lake)}
    annotate("r", [annotation("tag", "late", source="person")], spool, {})
    assert {state.run: state.heard for state in liveness(lake, Spool(spool).listing())} == before
    ingest(lake, Spool(spool), InProcess())
    assert {state.run: state.heard for state in liveness(lake)} == before
    (books,) = (one for one in balance(lake, Spool(spool).listing()) if one.table == "annotations")
    assert (books.adds_up, books.recorded, books.stored) == (True, 1, 1)
