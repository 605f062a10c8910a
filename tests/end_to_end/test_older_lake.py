"""A lake and a spool that an older ranklake wrote: read, continued and governed by this one."""

import json
import tarfile
from pathlib import Path

import pytest

from ranklake.cli import run

ARCHIVE = Path(__file__).with_name("data") / "lake_of_2026_11.tar.xz"
"""Written by commit 38268d8, before the lake's modules moved into folders: two runs ingested, checked and rolled up, a
damaged segment in quarantine, a retention plan that somebody approved, and segments that wait, some of them in a pack.
Beside them `expected.json`: queries, and what that ranklake answered."""


@pytest.fixture
def place(tmp_path):
    """Unpack the lake and the spool."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "ranklake"


@pytest.fixture
def ask(place, capfd):
    """Run a command on the lake; return what it prints as JSON."""

    def command(*words):
        assert run([*words, "--lake", str(place / "lake")]) == 0
        return json.loads(capfd.readouterr().out)

    return command


def test_an_older_lake_answers_as_it_did(place, ask):
    """Queries over its tables give the digits that they gave, and the books add up."""
    expected = json.loads((place / "expected.json").read_text())
    for name, query in expected["queries"].items():
        assert ask("sql", query, "--format", "json") == expected["answers"][name], name
    tables = ask("status", "--spool", str(place / "spool"), "--json")["tables"]
    assert {one["table"]: (one["stored"], one["in_flight"]) for one in tables if one["table"] == "steps"} == {
        "steps": (130, 122)
    }


@pytest.mark.slow
def test_an_older_lake_goes_on(place, ask, capfd):
    """What waits is ingested once, the approved retention is applied, rollups and checks go on, the trail is whole."""
    spool, lake = str(place / "spool"), str(place / "lake")
    plan = json.loads((place / "expected.json").read_text())["retention_plan"]
    for words in (
        ["retain", "apply", plan, "--by", "Otto"],
        ["ingest", "--spool", spool],
        ["check"],
        ["rollup"],
        ["upkeep"],
        ["audit", "verify"],
        ["status", "--spool", spool],
    ):
        assert run([*words, "--lake", lake]) == 0, words
    capfd.readouterr()
    counted = ask("sql", "SELECT run, count(*) AS n FROM steps GROUP BY run ORDER BY run", "--format", "json")
    assert counted == [{"run": "packed", "n": 22}, {"run": "recent", "n": 200}]
    rolled = ask("sql", "SELECT run, sum(ranks) AS n FROM step_rollup GROUP BY run ORDER BY run", "--format", "json")
    assert {row["run"]: row["n"] for row in rolled}.items() >= {"packed": 22, "recent": 200}.items()
