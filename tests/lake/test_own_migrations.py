"""Tables of an overlay get other columns by migrations of their own: drafted, applied, verified, undone."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from bringing import adds_up, bring
from governed import under
from overlays import written
from own_table import TABLE, rows
from segments import put_segment

from ranklake.cli import run
from ranklake.insight.ask import ask, used_former_names
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.migrations import applying
from ranklake.lake.migrations.drift import drift
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.registry import load_own
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.table_schema import UnmigratedTableError

LATER = (
    TABLE.replace("version: 1", "version: 2")
    .replace("name: reward", "name: score")
    .replace("name: wait_ms, type: float64, unit: ms", "name: wait_s, type: float64, unit: s")
)


@pytest.fixture
def own(tmp_path):
    """Return a folder of contracts."""
    return written(tmp_path / "own", {"rollouts.yaml": TABLE})


@pytest.fixture
def known(lake, spool, own):
    """Return a lake with rows of the folder's table, and a segment of an older writer that waits."""
    put_segment(spool, rows(own, 5), table="rollouts")
    assert bring(under(lake, own), spool).rows_stored == 5
    put_segment(spool, rows(own, 3, segment=1), table="rollouts", rows_before=5)
    return lake


def drafted(lake, own, text=LATER, name="in_seconds"):
    """Write a later version of the table, and have its migration drafted; return what was said, and the code."""
    written(own, {"rollouts.yaml": text})
    return run(["migrate", "new", "rollouts", name, "--lake", lake.uri, "--contracts", str(own)])


@pytest.mark.slow
def test_an_own_table_is_migrated_and_goes_back(known, spool, own, capfd):
    """Renamed and converted: rows of before and after, former names, verify, changes, undo, and applied again."""
    written(own, {"rollouts.yaml": LATER})
    with pytest.raises(ContractError, match="draft its migration: ranklake migrate new rollouts"):
        bring(under(known, own), spool)
    assert drafted(known, own) == 0
    path = own / "migrations" / "10001_in_seconds.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert facts["steps"][0]["rename"] == "reward"
    assert facts["steps"][1]["factor"] == 0.001
    place = ["--lake", known.uri, "--contracts", str(own)]
    capfd.readouterr()
    assert run(["migrate", "plan", "rollouts", "--json", *place]) == 0
    (told,) = json.loads(capfd.readouterr().out)
    assert (told["migration"], told["rows"]) == ("10001_in_seconds", 5)
    lake = under(Lake.open(known.uri), own)
    with pytest.raises(UnmigratedTableError, match="ranklake migrate apply"):
        bring(lake, spool)
    assert drift(lake) == [], "a table that waits has not drifted"
    (done,) = applying.apply(lake, InProcess(), "Ada")
    assert (done.table, done.version, done.rows) == ("rollouts", 2, 5)
    assert bring(lake, spool).rows_stored == 3
    put_segment(spool, rows(own, 2, segment=2), table="rollouts", rows_before=8)
    assert bring(lake, spool).rows_stored == 2
    text = "SELECT count(*) n, sum(score) s, min(wait_s) low, max(wait_s) high FROM rollouts"
    assert query(lake, text).to_pylist() == [{"n": 10, "s": 5.0, "low": 0.25, "high": 0.25}]
    old = ask(lake, "SELECT sum(reward) s, max(wait_ms) w FROM rollouts")
    assert old.rows.to_pylist() == [{"s": 5.0, "w": 250.0}]
    until = (datetime.now(UTC) + timedelta(days=365)).date()
    assert {f"answers until {until}" in one.message for one in used_former_names(old)} == {True}
    assert verify(lake, "rollouts").faults == []
    assert run(["catalog", "changes", *place]) == 0
    assert "table rollouts: 10001_in_seconds, version 1 to 2" in capfd.readouterr().out
    adds_up(lake, spool)
    bare = Lake.open(known.uri)  # without the folder
    assert query(bare, "SELECT max(wait_s) w FROM rollouts").to_pylist() == [{"w": 0.25}]
    assert drift(bare) == []

    assert applying.undo(lake, InProcess(), "Ada", "rollouts").version == 1
    (again,) = due(under(Lake.open(known.uri), own))
    assert again.migration.label == "10001_in_seconds"
    written(own, {"rollouts.yaml": TABLE})
    path.unlink()
    (own / "snapshots" / "rollouts.v1.json").unlink()
    back = under(Lake.open(known.uri), own)
    assert list(due(back)) == []
    assert query(back, "SELECT sum(reward) s, max(wait_ms) w FROM rollouts").to_pylist() == [{"s": 5.0, "w": 250.0}]
    put_segment(spool, rows(own, 2, segment=3), table="rollouts", rows_before=10)
    assert bring(back, spool).rows_stored == 2
    adds_up(back, spool)


@pytest.mark.slow
def test_a_pipeline_may_run_before_the_folder_is_restored(known, spool, own):
    """What runs between an undo and the restored folder is refused, and changes nothing of what the lake knows."""
    assert drafted(known, own) == 0
    lake = under(Lake.open(known.uri), own)
    applying.apply(lake, InProcess(), "Ada")
    applying.undo(lake, InProcess(), "Ada", "rollouts")
    newer = put_segment(spool, rows(own, 2, segment=3), table="rollouts", rows_before=5)
    with pytest.raises(UnmigratedTableError, match="ranklake migrate apply"):
        bring(under(Lake.open(known.uri), own), spool)
    newer.unlink()
    written(own, {"rollouts.yaml": TABLE})
    (own / "migrations" / "10001_in_seconds.yaml").unlink()
    (own / "snapshots" / "rollouts.v1.json").unlink()
    back = under(Lake.open(known.uri), own)
    assert list(due(back)) == []
    assert back.catalog.refusal() is None
    assert query(back, "SELECT max(wait_ms) w FROM rollouts").to_pylist() == [{"w": 250.0}]
    bring(back, spool)


def test_queries_follow_own_tables(known, own):
    """`migrate queries --lake` knows an operator's tables by what the lake keeps."""
    assert drafted(known, own) == 0
    applying.apply(under(Lake.open(known.uri), own), InProcess(), "Ada")
    file = written(own.parent, {"q.sql": "SELECT reward, max(wait_ms) AS w FROM rollouts GROUP BY reward\n"}) / "q.sql"
    assert run(["migrate", "queries", str(file), "--lake", known.uri, "--write"]) == 0
    text = "SELECT score AS reward, max((wait_s * 1000)) AS w FROM rollouts GROUP BY score\n"
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_a_drop_of_an_own_column_is_approved(known, spool, own, capfd):
    """Values go by two people, as those of our tables; the undo has them again."""
    text = TABLE[: TABLE.index("  - {id: 22")].replace("version: 1", "version: 2")
    text += 'retired:\n  - {id: 22, name: note, type: string, retired_in: 2, reason: "nobody reads it"}\n'
    assert drafted(known, own, text, "no_notes") == 0
    place = ["--lake", known.uri, "--contracts", str(own)]
    capfd.readouterr()
    run(["migrate", "plan", "--json", *place])
    (told,) = json.loads(capfd.readouterr().out)
    assert told["drops"] == ["note"]
    assert run(["migrate", "apply", "--by", "Otto", *place]) == 2
    assert run(["migrate", "approve", told["proposal"], "--by", "Ada", *place]) == 0
    assert run(["migrate", "apply", "--by", "Otto", *place]) == 0
    lake = under(Lake.open(known.uri), own)
    assert bring(lake, spool).rows_stored == 3
    assert "note" not in query(lake, "SELECT * FROM rollouts").column_names
    adds_up(lake, spool)
    assert run(["migrate", "undo", "rollouts", "--by", "Otto", *place]) == 0
    bare = Lake.open(known.uri)
    assert query(bare, "SELECT count(note) n FROM rollouts").to_pylist() == [{"n": 5}]


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda facts: facts.update(number=10002), "10001_in_seconds.yaml|migration 10001 is missing"),
        (lambda facts: facts.update(table="steps"), "the lake was written under the other"),
        (lambda facts: facts["steps"].pop(), "steps do not lead to version 2"),
        (lambda facts: facts["steps"][1].update(factor=0), "factor of 0"),
        (lambda facts: facts["digests"].update(to="0"), "not the contract that the migration was written for"),
    ],
)
@pytest.mark.slow
def test_a_migration_that_is_wrong_is_named_with_its_file(known, own, edit, what, capfd):
    """One line, and nothing is changed."""
    assert drafted(known, own) == 0
    path = own / "migrations" / "10001_in_seconds.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(facts)
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    config = own.parent / "ranklake.toml"
    config.write_text(f'[lake]\nuri = "{known.uri}"\n[contracts]\noverlay = "{own}"\n', encoding="utf-8")
    if "written for" not in what and "other" not in what:  # what the folder alone tells
        assert run(["config", "check", str(config)]) == 1
        assert "10001_in_seconds.yaml" in "".join(capfd.readouterr())
    with pytest.raises((MigrationError, ContractError), match=what):
        applying.apply(under(Lake.open(known.uri), own), InProcess(), "Ada")
    assert query(Lake.open(known.uri), "SELECT max(wait_ms) w FROM rollouts").to_pylist() == [{"w": 250.0}]


def test_there_is_nothing_to_draft(known, own, capfd):
    """Without another version, and for a version too many, one line says what to write."""
    place = ["--lake", known.uri, "--contracts", str(own)]
    assert run(["migrate", "new", "rollouts", "x", *place]) == 2
    assert "write version: 2 into rollouts.yaml" in capfd.readouterr().err
    assert drafted(known, own, LATER.replace("version: 2", "version: 3")) == 2
    assert load_own(under(Lake.open(known.uri), own).catalog.overlay) == ()
