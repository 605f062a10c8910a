"""Columns that an overlay adds to a table of ours get other names, types and units by migrations of their own."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
import yaml
from bringing import adds_up, bring
from deltalake import DeltaTable
from governed import under
from overlays import written
from segments import DAY, put_segment

from ranklake.cli import run
from ranklake.insight.ask import ask, used_former_names
from ranklake.insight.catalog.catalog import pages
from ranklake.lake.contracts import freeze
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations import applying
from ranklake.lake.migrations.drift import drift
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.registry import load_own
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.as_of import AsOf
from ranklake.lake.query.sql import query
from ranklake.lake.store.catalog import Catalog
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.table_schema import UnmigratedTableError

ADDED = """extends: steps
columns:
  - {id: 10000, name: kl, type: float32, unit: "1", class: operational, doc: "Divergence."}
  - {id: 10001, name: wait_ms, type: float64, unit: ms, class: operational, doc: "Wait."}
  - {id: 10002, name: note, type: string, class: operational, doc: "Words."}
  - {id: 10003, name: answers, type: int32, unit: "{answer}", class: operational, doc: "How many."}
"""
LATER = (
    ADDED.replace("extends: steps", "extends: steps\nversion: 2")
    .replace("name: kl,", "name: kl_ref,")
    .replace("name: wait_ms, type: float64, unit: ms", "name: wait_s, type: float64, unit: s")
    .replace("name: answers, type: int32", "name: answers, type: int64")
    .replace('  - {id: 10002, name: note, type: string, class: operational, doc: "Words."}\n', "")
    + '  - {id: 10004, name: judge, type: string, class: operational, default: model, doc: "Who judged."}\n'
    'retired:\n  - {id: 10002, name: note, type: string, retired_in: 2, reason: "nobody reads it"}\n'
)
"""Renamed, converted, retyped, dropped, added with a default."""
WITHOUT_DROPS = LATER[: LATER.index("retired:")] + next(
    line for line in ADDED.splitlines(keepends=True) if "10002" in line
)
RENAMED = ADDED.replace("extends: steps", "extends: steps\nversion: 2").replace("name: kl,", "name: kl_ref,")
VALUES = {
    "kl": 0.5,
    "kl_ref": 0.5,
    "wait_ms": 250.0,
    "wait_s": 0.25,
    "note": "good",
    "answers": 3,
    "judge": "ada",
    "loss": 2.0,
    "step_time_s": 1.0,
}


def bring_rows(spool, own, count, segment=0, first=0, incarnation=7):
    """Seal rows of ``steps`` as a writer under the folder has them."""
    of = contract("steps", own)
    schema = arrow_schema(of, segment=True)
    found = [
        dict.fromkeys(schema.names)
        | {"run": "r1", "attempt": 0, "rank": 0, "incarnation": incarnation, "segment": segment, "slot": slot}
        | {"ts": DAY, "step": first + slot}
        | {name: value for name, value in VALUES.items() if name in schema.names}
        for slot in range(count)
    ]
    rows = pa.Table.from_pylist(found, schema=schema)
    put_segment(spool, rows, rows_before=first, added_version=of.added_version)


@pytest.fixture
def own(tmp_path):
    """Return a folder of contracts."""
    return written(tmp_path / "own", {"steps.yaml": ADDED})


@pytest.fixture
def known(lake, spool, own):
    """Return a lake with rows under the folder's columns, and a segment of an older writer that waits."""
    bring_rows(spool, own, 5)
    assert bring(under(lake, own), spool).rows_stored == 5
    bring_rows(spool, own, 3, 1, 5)
    return lake


def drafted(lake, own, text=LATER, name="in_seconds"):
    """Write a later version of the columns, and have its migration drafted; return the code."""
    written(own, {"steps.yaml": text})
    return run(["migrate", "new", "steps", name, "--lake", lake.uri, "--contracts", str(own)])


@pytest.mark.slow
def test_added_columns_are_migrated_and_go_back(known, spool, own, capfd):
    """Every kind of change at once: rows of before and after, former names, verify, changes, undo."""
    written(own, {"steps.yaml": LATER})
    with pytest.raises(ContractError, match="draft its migration: ranklake migrate new steps"):
        bring(under(known, own), spool)
    assert drafted(known, own) == 0
    path = own / "migrations" / "10001_in_seconds.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [next(iter(step)) for step in facts["steps"]] == ["drop", "rename", "convert", "retype", "add"]
    assert facts["steps"][2]["factor"] == 0.001
    place = ["--lake", known.uri, "--contracts", str(own)]
    capfd.readouterr()
    assert run(["migrate", "plan", "steps", "--json", *place]) == 0
    (told,) = json.loads(capfd.readouterr().out)
    assert (told["migration"], told["rows"], told["drops"]) == ("10001_in_seconds", 5, ["note"])
    lake = under(Lake.open(known.uri), own)
    with pytest.raises(UnmigratedTableError, match="steps with columns of yours has contract version 1, and 2 is due"):
        bring(lake, spool)
    assert drift(lake) == [], "a table that waits has not drifted"
    assert query(lake, "SELECT max(wait_ms) w, max(kl) k FROM steps").to_pylist() == [{"w": 250.0, "k": 0.5}]
    before = DeltaTable(lake.store.table_uri("steps")).version()
    migrated(known, spool, own, told["proposal"], before, place)
    run(["catalog", "changes", *place])
    assert "table steps: 10001_in_seconds, added columns, version 1 to 2" in capfd.readouterr().out

    assert run(["migrate", "undo", "steps", "--by", "Otto", *place]) == 0
    (again,) = due(under(Lake.open(known.uri), own))
    assert again.migration.label == "10001_in_seconds"
    written(own, {"steps.yaml": ADDED})
    path.unlink()
    (own / "snapshots" / "steps.v1.json").unlink()
    back = under(Lake.open(known.uri), own)
    assert list(due(back)) == []
    found = query(back, "SELECT sum(kl) k, max(wait_ms) w, count(note) n, sum(answers) a FROM steps")
    assert found.to_pylist() == [{"k": 5.0, "w": 250.0, "n": 5, "a": 30}]
    bring_rows(spool, own, 2, 3, 10)
    assert bring(back, spool).rows_stored == 2
    adds_up(back, spool)
    assert drift(back) == []


def migrated(known, spool, own, proposal, before, place):
    """Apply what is due with its approval, and look at all that should be so then."""
    assert run(["migrate", "apply", "--by", "Otto", *place]) == 2, "a drop wants an approval"
    assert run(["migrate", "approve", proposal, "--by", "Ada", *place]) == 0
    assert run(["migrate", "apply", "--by", "Otto", *place]) == 0
    lake = under(Lake.open(known.uri), own)
    assert bring(lake, spool).rows_stored == 3
    bring_rows(spool, own, 2, 2, 8)
    assert bring(lake, spool).rows_stored == 2
    text = "SELECT count(*) n, sum(kl_ref) k, min(wait_s) low, max(wait_s) high, sum(answers) a, sum(loss) l FROM steps"
    assert query(lake, text).to_pylist() == [{"n": 10, "k": 5.0, "low": 0.25, "high": 0.25, "a": 30, "l": 20.0}]
    judges = query(lake, "SELECT judge, count(*) n FROM steps GROUP BY judge ORDER BY n").to_pylist()
    assert judges == [{"judge": "ada", "n": 2}, {"judge": "model", "n": 8}]
    old = ask(lake, "SELECT sum(kl) k, max(wait_ms) w FROM steps")
    assert old.rows.to_pylist() == [{"k": 5.0, "w": 250.0}]
    assert len({one.message for one in used_former_names(old)}) == 2
    past = query(lake, "SELECT max(wait_ms) w, max(note) n FROM steps", as_of=AsOf(version=before))
    assert past.to_pylist() == [{"w": 250.0, "n": "good"}]
    assert verify(lake, "steps").faults == []
    assert drift(lake) == []
    assert "| 2 of added columns | `kl`" in pages({"steps": lake.contract("steps")}, {})["steps.md"]
    fields = [one.name for one in DeltaTable(lake.store.table_uri("steps")).schema().fields]
    assert fields[: len(contract("steps").names)] == list(contract("steps").names), "ours stay first"
    adds_up(lake, spool)
    bare = Lake.open(known.uri)  # without the folder
    assert query(bare, "SELECT max(wait_s) w FROM steps").to_pylist() == [{"w": 0.25}]
    assert drift(bare) == []


def test_queries_follow_added_columns(known, own):
    """`migrate queries --lake` knows an operator's columns beside ours."""
    assert drafted(known, own, WITHOUT_DROPS) == 0
    old = "SELECT kl, max(wait_ms) AS w, avg(loss) AS l FROM steps WHERE answers > 2 GROUP BY kl\n"
    file = written(own.parent, {"q.sql": old}) / "q.sql"
    applying.apply(under(Lake.open(known.uri), own), InProcess(), "Ada")
    place = ["--lake", known.uri]
    assert run(["migrate", "queries", str(file), *place, "--write"]) == 0
    new = (
        "SELECT kl_ref AS kl, max((wait_s * 1000)) AS w, avg(loss) AS l FROM steps WHERE answers > 2 GROUP BY kl_ref\n"
    )
    assert file.read_text(encoding="utf-8") == new
    assert run(["migrate", "queries", str(file), *place, "--write"]) == 0
    assert file.read_text(encoding="utf-8") == new


RENAME = {"rename": "kl", "to": "kl_ref"}


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"number": 10002}, "migration 10001 is missing"),
        ({"table": "setps"}, r"did you mean 'steps'\?"),
        ({"from": 2, "to": 3}, "version 3 of steps has no snapshot"),
        ({"steps": [RENAME, {"rename": "loss", "to": "kl"}]}, "no column 'loss'"),
        (
            {"steps": [{"rename": "kl", "to": "loss"}, {"rename": "loss", "to": "kl_ref"}]},
            "'loss' is, or was, a column of",
        ),
        ({"steps": [{"rename": "kl", "to": "wait_ms"}, {"rename": "wait_ms", "to": "kl"}]}, "'wait_ms' is taken"),
        ({"steps": [{"drop": "kl"}]}, "steps do not lead to version 2 of steps"),
        ({"steps": [RENAME, {"rename_table": "steps", "to": "strides"}]}, "its contract calls it steps"),
        ({"steps": [{"convert": "kl", "to": "kl_ref", "unit": "1", "factor": 0}]}, "factor of 0"),
        ({"steps": [{"retype": "kl", "to": "int32"}, RENAME]}, "int32"),
    ],
)
def test_a_migration_that_is_wrong_is_named(own, facts, what):
    """One line with the file."""
    snapshot = freeze.freeze(contract("steps", own).added)
    written(own, {"steps.yaml": RENAMED, "snapshots/steps.v1.json": snapshot})
    said = {"number": 10001, "name": "x", "table": "steps", "from": 1, "to": 2, "steps": [RENAME]}
    said |= {"digests": {"from": "0", "to": "0"}} | facts
    written(own, {f"migrations/{said['number']}_x.yaml": yaml.safe_dump(said, sort_keys=False)})
    with pytest.raises(MigrationError, match=what) as raised:
        load_own(Overlay.read(own))
    assert f"{said['number']}_x.yaml" in str(raised.value) or "steps.v3.json" in str(raised.value)


def test_another_contract_than_it_was_written_for(known, own):
    """A migration whose digests are of other columns is refused before anything changes."""
    assert drafted(known, own, RENAMED) == 0
    path = own / "migrations" / "10001_in_seconds.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8")) | {"digests": {"from": "0", "to": "0"}}
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    with pytest.raises(MigrationError, match="not the contract that the migration was written for"):
        applying.apply(under(Lake.open(known.uri), own), InProcess(), "Ada")
    assert query(Lake.open(known.uri), "SELECT max(kl) k FROM steps").to_pylist() == [{"k": 0.5}]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LATER.replace("default: model", "default: 3"), r"steps.yaml:\d+: .*'judge'.*string"),
        (LATER.replace("name: kl_ref", "name: loss"), r"steps.yaml:\d+: .*'loss'"),
        (LATER.replace("id: 10004", "id: 10002"), r"steps.yaml:\d+: .*10002"),
        (LATER.replace("version: 2", "version: 1"), "renamed from 'kl'"),
        (LATER.replace("version: 2", "version: two"), r"steps.yaml:2: .*"),
    ],
)
def test_columns_that_cannot_be_are_refused_at_load(known, own, text, what):
    """A default of another type, names and ids that are taken, a change under the same version."""
    written(own, {"steps.yaml": text})
    with pytest.raises(ContractError, match=what):
        under(Lake.open(known.uri), own).catalog.keep()


@pytest.mark.slow
def test_what_was_migrated_keeps_its_version(known, spool, own):
    """Afterwards an older copy of the folder is told from a newer one, and each change wants a version."""
    assert drafted(known, own, RENAMED) == 0
    assert applying.apply(under(Lake.open(known.uri), own), InProcess(), "Ada")[0].is_of_added
    added = '  - {id: 10009, name: more, type: int32, class: operational, doc: "x"}\n'
    for other, what in ((ADDED, "bring the newer file here"), (RENAMED + added, "raise version to 3")):
        written(own, {"steps.yaml": other})
        with pytest.raises(ContractError, match=what):
            bring(under(Lake.open(known.uri), own), spool)
    assert drafted(known, own, RENAMED.replace("version: 2", "version: 3") + added, "more") == 0
    lake = under(Lake.open(known.uri), own)
    (done,) = applying.apply(lake, InProcess(), "Ada")
    assert (done.version, done.rows) == (3, 0), "metadata alone"
    assert bring(lake, spool).rows_stored == 3
    found = ask(lake, "SELECT sum(kl_ref) k, count(more) m, sum(kl) old FROM steps").rows.to_pylist()
    assert found == [{"k": 4.0, "m": 0, "old": 4.0}]


def test_a_newer_writer_waits(known, spool, own, tmp_path):
    """Rows under a later version of added columns are not read by an earlier one, whatever names they have."""
    later = written(tmp_path / "later", {"steps.yaml": LATER.replace("name: wait_s,", "name: wait_ms,")})
    bring_rows(spool, later, 4, 7, 20, incarnation=8)
    found = bring(under(Lake.open(known.uri), own), spool)
    assert (found.rows_stored, sum(found.held.values())) == (3, 1)


def test_a_name_that_ours_took_is_refused(known, own, monkeypatch):
    """A column that an undo would bring back beside one of ours of that name is refused before anything changes."""
    assert drafted(known, own, RENAMED) == 0
    lake = under(Lake.open(known.uri), own)
    applying.apply(lake, InProcess(), "Ada")
    found = lake.contract("steps")
    ours = replace(found.column("loss"), name="kl", id=900)
    grown = replace(found, columns=(*found.columns, ours))
    monkeypatch.setattr(Catalog, "contract", lambda self, table: grown if table == "steps" else contract(table))
    with pytest.raises(MigrationError, match="'kl' is a column of ours by now"):
        applying.undo(lake, InProcess(), "Ada", "steps")


def test_there_is_nothing_to_draft(known, own, capfd):
    """Without another version, and for a version too many, one line says what to write."""
    place = ["--lake", known.uri, "--contracts", str(own)]
    assert run(["migrate", "new", "steps", "x", *place]) == 2
    assert "write version: 2 into steps.yaml" in capfd.readouterr().err
    assert drafted(known, own, LATER.replace("version: 2", "version: 3")) == 2
    assert load_own(under(Lake.open(known.uri), own).catalog.overlay) == ()
