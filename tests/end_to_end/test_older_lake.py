"""A lake and a spool that an older ranklake wrote: read, continued and governed by this one."""

import json
import tarfile
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.registry import contract_at

ARCHIVE = Path(__file__).with_name("data") / "lake_of_2026_11.tar.xz"
"""Written by commit 38268d8, before the lake's modules moved into folders: two runs ingested, checked and rolled up, a
damaged segment in quarantine, a retention plan that somebody approved, and segments that wait, some of them in a pack.
Beside them `expected.json`: queries, and what that ranklake answered."""

BEFORE_0005 = ARCHIVE.with_name("lake_before_0005.tar.xz")
"""Written by commit 8f16c4a, under the contracts that migrations from 0005 on begin at: a run of two ranks with a
checkpoint and a scheduler's accounting, rolled up, and a spool where another run and another day's accounting wait.
Beside them `expected.json`, as in the other."""


def unpacked(archive, folder):
    """Unpack a lake and a spool."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / "ranklake"


@pytest.fixture
def place(request, tmp_path):
    """Unpack the lake and the spool; the older ones, unless a test asks for others."""
    return unpacked(getattr(request, "param", ARCHIVE), tmp_path)


@pytest.fixture
def ask(place, capfd):
    """Run a command on the lake; return what it prints as JSON."""

    def command(*words, code=0):
        assert run([*words, "--lake", str(place / "lake")]) == code
        return json.loads(capfd.readouterr().out)

    return command


def test_an_older_lake_answers_as_it_did(place, ask):
    """Queries over its tables give the digits that they gave, and the books add up."""
    expected = json.loads((place / "expected.json").read_text())
    for name, query in expected["queries"].items():
        assert ask("sql", query, "--format", "json") == expected["answers"][name], name
    tables = ask("status", "--spool", str(place / "spool"), "--json", code=1)["tables"]  # for the damaged segment
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
        is_told = words[0] in {"ingest", "status"}  # of segments that cannot be read
        assert run([*words, "--lake", lake]) == is_told, words
    capfd.readouterr()
    counted = ask("sql", "SELECT run, count(*) AS n FROM steps GROUP BY run ORDER BY run", "--format", "json")
    assert counted == [{"run": "packed", "n": 22}, {"run": "recent", "n": 200}]
    rolled = ask("sql", "SELECT run, sum(ranks) AS n FROM step_rollup GROUP BY run ORDER BY run", "--format", "json")
    assert {row["run"]: row["n"] for row in rolled}.items() >= {"packed": 22, "recent": 200}.items()


def versions(lake):
    """Return the contract version of each table, as its Delta log has it."""
    tables = (lake / "tables").iterdir()
    found = {one.name: DeltaTable(one).metadata().configuration["ranklake.contractVersion"] for one in tables}
    return {table: int(version) for table, version in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("place", [BEFORE_0005], indirect=True)
def test_a_lake_of_before_migrates_and_goes_back(place, ask):
    """All migrations since: old columns answer as they did, new ones are NULL; undone, versions are as before."""
    expected, before = json.loads((place / "expected.json").read_text()), versions(place / "lake")
    done = ask("migrate", "apply", "--by", "ann", "--json")
    changed = {one["table"] for one in done}
    after = versions(place / "lake")
    assert {table: after[table] for table in changed} == {table: contract(table).version for table in changed}
    for name, query in expected["queries"].items():
        assert ask("sql", query, "--format", "json") == expected["answers"][name], name
    for table in sorted(changed):
        new = {column.name for column in contract(table).columns} - {
            column.name for column in contract_at(table, before[table]).columns
        }
        if not new or contract(table).kind == "derived":  # some lost a requirement alone, some were computed anew
            continue
        (counted,) = ask(
            "sql", f"SELECT {', '.join(f'count({one}) {one}' for one in new)} FROM {table}", "--format", "json"
        )
        assert counted == dict.fromkeys(new, 0)
    for one in reversed(done):
        ask("migrate", "undo", one["table"], "--by", "ann", "--json")
    assert versions(place / "lake").items() >= before.items()


@pytest.mark.slow
@pytest.mark.parametrize("place", [BEFORE_0005], indirect=True)
def test_a_spool_of_before_is_taken_in(place, ask, capfd):
    """What waits was written by the contracts of before: it is stored once, under those of today."""
    lake, spool = str(place / "lake"), str(place / "spool")
    for words in (["ingest", "--spool", spool], ["check"], ["rollup"], ["upkeep"], ["status", "--spool", spool]):
        assert run([*words, "--lake", lake]) == 0, words
    capfd.readouterr()
    named = 'SELECT scope, pool, team, "user", job_id FROM cluster_hourly'
    named += " WHERE hour = '2024-05-03T10:00:00' ORDER BY scope, \"user\", job_id"
    assert [tuple(row.values()) for row in ask("sql", named, "--format", "json")] == [
        ("cluster", None, None, None, None),
        *[("job", None, None, None, job) for job in ("100", "101")],
        ("pool", "gpu", None, None, None),
        ("team", None, "team", None, None),
        *[("user", None, None, user, None) for user in ("ann", "bob")],
    ]
    pools = "SELECT DISTINCT pool FROM cluster_hourly WHERE hour < '2024-05-02' AND scope = 'pool'"
    assert ask("sql", pools, "--format", "json") == [{"pool": "gpu"}]  # computed anew: its query changed
    stored = ask("sql", "SELECT * FROM runs ORDER BY run", "--format", "json")
    assert [(row["run"], row["cluster"], row["region"], row["deployment_environment"]) for row in stored] == [
        *[("acct1", None, None, None), ("acct2", None, None, None)],
        *[("stored", "c1", None, None), ("waits", "c1", None, None)],
    ]
    kept = "SELECT run, name, action, step, bytes, tag, expected_sha256, exception_type FROM artifacts ORDER BY run, ts"
    assert [tuple(row.values()) for row in ask("sql", kept, "--format", "json")] == [
        ("stored", "stored.pt", "created", 2, 600, None, None, None),
        ("stored", "stored.pt", "tagged", None, None, "best", None, None),
        ("waits", "waits.pt", "created", 2, 500, None, None, None),
        ("waits", "waits.pt", "tagged", None, None, "best", None, None),
    ]
    assert (
        versions(place / "lake").items()
        >= {table: contract(table).version for table in ("runs", "artifacts", "cluster_hourly")}.items()
    )
