"""Overlays that are odd, wrong, two, gone, or elsewhere."""

import json
import subprocess
import sys
from datetime import date

import pytest
from bringing import bring
from changed_contracts import ChangedContracts
from governed import any_rows, under
from overlays import documented, written
from segments import put_segment, step_rows

from ranklake.errors import RanklakeError
from ranklake.insight.ask import ask, used_former_names
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.own import OwnRollupError, faults
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.tables import delta_table

TABLE = """\
table: things
version: 1
kind: fact
owner: me
steward: me
summary: "Things."
grain: [incarnation, segment, slot]
envelope: true
partition: [date]
sort: [ts]
retention: raw
columns:
  - {id: 20, name: size, type: int64, unit: "1", class: operational, doc: "How large."}
  - {id: 21, name: who, type: string, class: personal, mask: hash, doc: "Whose."}
"""
DERIVED = """\
table: sums
version: 1
kind: derived
owner: me
steward: me
summary: "Sums."
grain: [date]
partition: [date]
sort: [date]
retention: derived
rollup:
  inputs: [{table: things}]
columns:
  - {id: 20, name: date, type: date, class: operational, required: true, doc: "UTC date."}
  - {id: 21, name: size, type: int64, unit: "1", class: operational, doc: "Of all."}
"""
SQL = "SELECT $date AS date, CAST(sum(size) AS BIGINT) AS size FROM things WHERE date = $date GROUP BY 1"
EXTENSION = "extends: {table}\ncolumns:\n  - {{id: {id}, name: {name}, type: float32, class: operational, doc: x}}"
GOOD = {"things.yaml": TABLE, "sums.yaml": DERIVED, "rollups/sums.sql": SQL}

# what is written over the good one, the file and line that must be named, what must be said
BROKEN = {
    "a table of ours": ({"steps.yaml": TABLE.replace("things", "steps")}, "steps.yaml:1", "is a packaged table; write"),
    "a column of ours": (
        {"steps.yaml": EXTENSION.format(table="steps", id=10000, name="loss")},
        "steps.yaml:3",
        "column name 'loss' is taken",
    ),
    "an id of ours": (
        {"steps.yaml": EXTENSION.format(table="steps", id=30, name="my")},
        "steps.yaml:3",
        "id 30 is for packaged columns",
    ),
    "a metric of ours": (
        {
            "metrics.yaml": "version: 1\nmetrics:\n  - {name: train/loss, unit: '1', kind: gauge, owner: me, "
            "sampling: step, doc: x}\n"
        },
        "metrics.yaml:3",
        "metric 'train/loss' is packaged",
    ),
    "columns of a table that we write": (
        {"mfu.yaml": EXTENSION.format(table="mfu", id=10000, name="my")},
        "mfu.yaml:2",
        "only ranklake writes its rows",
    ),
    "an extension of nothing": ({"stesp.yaml": "extends: stesp\n"}, "stesp.yaml:1", "did you mean 'steps'?"),
    "a reserved table": ({"rows.yaml": TABLE.replace("things", "rows")}, "rows.yaml:1", "'rows' is reserved"),
    "a reserved column": ({"things.yaml": TABLE.replace("name: size", "name: s")}, "things.yaml:13", "'s' is reserved"),
    "a name that is not ASCII": (
        {"things.yaml": TABLE.replace("name: who", "name: größe")},
        "things.yaml:14",
        "not match",
    ),
    "a nested type": ({"things.yaml": TABLE.replace("type: string", "type: struct")}, "things.yaml:14", "cannot be"),
    "a classified column without a mask": (
        {"things.yaml": TABLE.replace(", mask: hash", "")},
        "things.yaml:14",
        "is personal and has no mask",
    ),
    "a fact without an envelope": (
        {
            "things.yaml": TABLE.replace("envelope: true\n", "")
            .replace("grain: [incarnation, segment, slot]", "grain: [size]")
            .replace("sort: [ts]", "sort: [size]")
            .replace("partition: [date]", "partition: [size]")
        },
        "things.yaml",
        "not partitioned by date",
    ),
    "a system table": ({"things.yaml": TABLE.replace("kind: fact", "kind: system")}, "things.yaml:3", "only ranklake"),
    "a query of no table": ({"rollups/sum.sql": SQL}, "rollups/sum.sql", "did you mean 'sums'?"),
    "a table without its query": (
        {"sums.yaml": DERIVED.replace("sums", "suma"), "rollups/sums.sql": None},
        "sums.yaml",
        "",
    ),
    "an input of no table": (
        {"sums.yaml": DERIVED.replace("table: things", "table: thigns")},
        "sums.yaml:12",
        "no table 'thigns'; did you mean 'things'?",
    ),
    "a cycle": ({"sums.yaml": DERIVED.replace("table: things", "table: sums")}, "sums.yaml:12", "sums reads sums"),
    "a reach of the other scope": (
        {"sums.yaml": DERIVED.replace("{table: things}", "{table: things, reach: run}")},
        "sums.yaml:12",
        "does not go with scope 'partition'",
    ),
    "a classified column that is none": (
        {"sums.yaml": DERIVED.replace("{table: things}", "{table: things, classified: [size]}")},
        "sums.yaml:12",
        "is operational",
    ),
    "a wrong ending": ({"more.yml": "x"}, "more.yml", "rename it to more.yaml"),
}


def loaded(folder):
    """Load all that an overlay has."""
    load_contracts(folder)
    load_metrics(folder)


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.slow
def test_a_wrong_overlay_is_refused_with_file_and_line(tmp_path, case):
    """One line names file and line, what is wrong, and the mend."""
    files, where, said = BROKEN[case]
    files = {name: text for name, text in (GOOD | files).items() if text is not None}
    folder = written(tmp_path, files)
    with pytest.raises(ContractError) as refused:
        loaded(folder)
    message, *others = map(str, (refused.value, *refused.value.others))  # by line
    assert message.startswith(f"{tmp_path}/{where}")
    assert any(said in each and each.startswith(f"{tmp_path}/{where}") for each in (message, *others))
    assert "\n" not in message


QUERIES = {
    "writes": ("DROP TABLE things", "only queries are answered here"),
    "copies": ("COPY things TO '/tmp/stolen.csv'", "only queries are answered here"),
    "two statements": (f"{SQL}; SELECT 1", ""),
    "reads a hidden column": ("SELECT $date AS date, who FROM things", "unknown column 'who'"),
    "reads another table": ("SELECT $date AS date, count(*) AS size FROM runs", "unknown table 'runs'"),
    "reads a file": ("SELECT * FROM '/etc/passwd'", ""),
    "no column of the contract": ("SELECT $date AS date, 1 AS sizes", "unknown column 'sizes'"),
    "text for a number": ("SELECT $date AS date, 'x' AS size", "does not fit"),
    "a syntax error": ("SELEC 1", "syntax error"),
    "a parameter that nobody gives": ("SELECT $date AS date, $most AS size", "no value is given for $most"),
    "another date": ("SELECT DATE '2020-01-01' AS date, 1 AS size", "another date than was asked for"),
}


@pytest.mark.parametrize("case", QUERIES)
def test_a_wrong_query_is_told_with_its_file(tmp_path, case):
    """Tried on empty tables, it is refused by `config check` and `doctor` before any row is there."""
    text, said = QUERIES[case]
    (fault,) = faults(load_contracts(written(tmp_path, GOOD | {"rollups/sums.sql": text})))
    assert isinstance(fault, OwnRollupError)
    assert str(fault).startswith(f"{tmp_path}/rollups/sums.sql")
    assert said in str(fault)


def thing_rows(folder, count, **columns):
    """Return rows of the own table, as a segment holds them."""
    return any_rows("things", count, overlay=folder, size=list(range(count)), who=["ann"] * count, **columns)


def adds_up(lake, spool):
    """Return the balance by table, having checked it."""
    found = balance(lake, Spool(str(spool)).listing())
    assert [fault for item in found for fault in item.faults] == []
    return {item.table: item for item in found}


def test_a_lake_without_the_overlay_waits_for_it(lake, spool, tmp_path):
    """Segments of an unknown table, or with unknown columns, stay in the spool; with the overlay all come in, once."""
    folder = documented(tmp_path / "own")
    put_segment(spool, any_rows("rollouts", 3, overlay=folder, reward=[0.0, 0.5, 1.0]), table="rollouts")
    put_segment(
        spool, any_rows("steps", 2, overlay=folder, incarnation=8, step=[0, 1], step_time_s=[1.0, 1.0], kl=[0.5, 0.25])
    )
    put_segment(spool, step_rows(2, incarnation=9))
    assert bring(lake, spool).rows_stored == 2
    books = adds_up(lake, spool)
    assert (books["rollouts"].in_flight, books["steps"].in_flight) == (3, 2)
    known = under(lake, folder)
    assert bring(known, spool).rows_stored == 5
    assert bring(known, spool).plans == []
    adds_up(known, spool)
    assert query(Lake.open(lake.uri), "SELECT sum(kl) AS kl FROM steps").to_pylist() == [{"kl": 0.75}]


def test_a_table_outlives_its_overlay(lake, spool, tmp_path):
    """Without the folder its rows are queried, and new ones stored, by what the lake keeps."""
    folder = written(tmp_path / "own", GOOD)
    put_segment(spool, thing_rows(folder, 4), table="things")
    assert bring(under(lake, folder), spool).rows_stored == 4
    run_rollups(under(lake, folder), ["sums"])
    put_segment(spool, thing_rows(folder, 2, segment=[1, 1]), table="things", rows_before=4)
    bare = Lake.open(lake.uri)
    assert bring(bare, spool).rows_stored == 2
    run_rollups(bare, ["sums"])
    assert query(bare, "SELECT size FROM sums").to_pylist() == [{"size": 7}]
    assert bare.contract("things").column("who").mask == "hash"
    adds_up(bare, spool)
    assert sorted(path.name for path in (tmp_path / "lake" / "contracts").iterdir()) == ["0000000001.json"]


@pytest.mark.slow
def test_two_overlays_add_up_unless_they_contradict(lake, spool, tmp_path):
    """Another folder adds its tables; one that gives an id another type, or an older copy, is refused before a plan."""
    one, two = (
        written(tmp_path / "one", GOOD),
        written(tmp_path / "two", {"others.yaml": TABLE.replace("things", "others")}),
    )
    assert under(lake, one).catalog.keep() == 1
    assert under(lake, two).catalog.keep() == 2
    assert under(lake, one).catalog.keep() == 2
    assert {"things", "others", "sums"} <= set(Lake.open(lake.uri).contracts())
    for text, said in (
        (TABLE.replace("type: int64", "type: string").replace(', unit: "1"', ""), "type int64 became string"),
        (TABLE[: TABLE.index("  - {id: 21")], "removed without a tombstone"),
        (TABLE + '  - {id: 22, name: more, type: bool, class: operational, doc: "x"}\n', "raise version to 2"),
    ):
        written(two, {"things.yaml": text})
        with pytest.raises(ContractError, match=said) as refused:
            bring(under(lake, two), spool)
        assert str(refused.value).startswith(f"{two}/things.yaml")
        assert "who" in under(lake, two).contract("things").names
    newer = (
        TABLE.replace("version: 1", "version: 2")
        + '  - {id: 22, name: more, type: bool, class: operational, doc: "x"}\n'
    )
    written(two, {"things.yaml": newer})
    assert under(lake, two).catalog.keep() == 3
    with pytest.raises(ContractError, match="bring the newer file here"):
        under(lake, one).catalog.keep()


def test_a_column_that_is_added_later_shows_in_the_table(lake, spool, tmp_path):
    """Rows from before have NULL there; rows that came with it have their value."""
    put_segment(spool, step_rows(2, incarnation=5))
    bring(lake, spool)
    folder = documented(tmp_path / "own")
    rows = any_rows("steps", 2, overlay=folder, incarnation=8, step=[7, 8], step_time_s=[1.0, 1.0], kl=[0.5, 0.25])
    put_segment(spool, rows)
    bring(under(lake, folder), spool)
    assert query(lake, "SELECT count(*) AS n, count(kl) AS kl FROM steps").to_pylist() == [{"n": 4, "kl": 2}]


@pytest.mark.slow
def test_a_later_release_with_the_same_names_is_refused_before_anything_is_written(lake, spool, tmp_path, monkeypatch):
    """A column and a table of ours that a lake has as an operator's: file and line, with the folder and without it."""
    folder = documented(tmp_path / "own")
    put_segment(spool, any_rows("rollouts", 3, overlay=folder, reward=[0.0, 0.5, 1.0]), table="rollouts")
    bring(under(lake, folder), spool)
    version = delta_table(lake.store, "rollouts").version()
    put_segment(spool, step_rows(2, incarnation=9))
    for change, said in (
        (
            lambda later: later.add("steps", id=901, name="kl", type="float32", unit="1"),
            "steps.yaml:3: .*'kl'",
        ),
        (lambda later: later.new("rollouts", "scalars"), "rollouts.yaml:1: 'rollouts' is a packaged table"),
    ):
        with monkeypatch.context() as patch:
            later = ChangedContracts(tmp_path / f"later-{len(said)}" / "contracts", patch)
            change(later)
            for one in (Lake.open(lake.uri), under(Lake.open(lake.uri), folder)):
                with pytest.raises(ContractError, match=said):
                    bring(one, spool)
            later.earlier()
    assert delta_table(lake.store, "rollouts").version() == version
    assert bring(under(Lake.open(lake.uri), folder), spool).rows_stored == 2, "the release of before goes on"


@pytest.mark.slow
def test_an_own_table_gets_another_name(lake, spool, tmp_path):
    """`called` under a new version renames it in queries; what asks by the old name goes on, and is told."""
    folder = written(tmp_path / "own", GOOD)
    put_segment(spool, thing_rows(folder, 4), table="things")
    assert bring(under(lake, folder), spool).rows_stored == 4
    text = TABLE.replace("version: 1", "version: 2").replace("table: things\n", "table: things\ncalled: widgets\n")
    written(folder, {"things.yaml": text})
    put_segment(spool, thing_rows(folder, 2, segment=[1, 1]), table="things", rows_before=4)
    known = under(lake, folder)
    assert bring(known, spool).rows_stored == 2
    run_rollups(known, ["sums"])
    assert query(known, "SELECT size FROM sums").to_pylist() == [{"size": 7}]
    for name, said in (("widgets", []), ("things", ["table things is called widgets"])):
        found = ask(known, f"SELECT count(*) AS n FROM {name}")
        assert (found.rows["n"].to_pylist(), [one.former.explanation for one in used_former_names(found)]) == (
            [6],
            said,
        )
    adds_up(known, spool)


def test_odd_names_and_many_columns_go_all_the_way(lake, spool, tmp_path):
    """Words that SQL reserves, digits, and 300 columns of every type."""
    types = ("string", "bool", "int32", "int64", "float32", "float64", "decimal", "timestamp", "date", "int64_list")
    columns = "".join(
        f'  - {{id: {30 + at}, name: c{at}, type: {types[at % len(types)]}, class: operational, doc: "x"}}\n'
        for at in range(300)
    )
    text = TABLE.replace("things", "group2").replace("name: size", "name: order") + columns
    folder = written(tmp_path / "own", {"group2.yaml": text, "select.yaml": TABLE.replace("things", "select")})
    put_segment(spool, any_rows("group2", 3, overlay=folder, order=[1, 2, 3], c1=[True, None, False]), table="group2")
    put_segment(spool, any_rows("select", 2, overlay=folder, incarnation=9, size=[1, 2]), table="select")
    assert bring(under(lake, folder), spool).rows_stored == 5
    found = query(lake, 'SELECT "order", c1, c299 FROM group2 WHERE "order" > 1 ORDER BY "order" DESC')
    assert found.to_pylist() == [{"order": 3, "c1": False, "c299": None}, {"order": 2, "c1": None, "c299": None}]
    assert query(lake, 'SELECT count(*) AS n FROM "select"').to_pylist() == [{"n": 2}]
    adds_up(lake, spool)


def test_a_query_that_fails_holds_up_no_other(lake, spool, tmp_path):
    """All other rollups are computed; then the failing one is told."""
    files = GOOD | {
        "bad.yaml": DERIVED.replace("sums", "bad"),
        "rollups/bad.sql": SQL.replace("sum(size)", "sum(1 / (size - size))"),
    }
    folder = written(tmp_path / "own", files)
    put_segment(spool, thing_rows(folder, 4), table="things")
    bring(under(lake, folder), spool)
    with pytest.raises(OwnRollupError, match=r"rollups/bad\.sql"):
        run_rollups(under(lake, folder), ["bad", "sums"])
    assert query(lake, "SELECT size FROM sums").to_pylist() == [{"size": 6}]


def test_a_query_sees_classified_columns_that_its_contract_names(lake, spool, tmp_path):
    """What it reads is written down; naming another column computes everything anew."""
    named = DERIVED.replace("{table: things}", "{table: things, classified: [who]}")
    folder = written(tmp_path / "own", GOOD)
    put_segment(spool, thing_rows(folder, 4), table="things")
    bring(under(lake, folder), spool)
    run_rollups(under(lake, folder), ["sums"])
    written(folder, {"sums.yaml": named, "rollups/sums.sql": SQL.replace("sum(size)", "count(DISTINCT who)")})
    (done,) = run_rollups(under(lake, folder), ["sums"])
    assert (done.computed, query(lake, "SELECT size FROM sums").to_pylist()) == (1, [{"size": 1}])


def test_a_damaged_copy_in_the_lake_is_told(lake, tmp_path):
    """It names the file and the mend, and nothing is written under what nobody can read."""
    under(lake, written(tmp_path / "own", GOOD)).catalog.keep()
    (tmp_path / "lake" / "contracts" / "0000000001.json").write_text("{")
    with pytest.raises(ContractError, match="copy of your contracts is damaged; restore it"):
        Lake.open(lake.uri).contracts()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[" * 100_000, "x.yaml:1: not usable YAML .lists and mappings too deep"),
        ("- " * 100_000, "x.yaml:1: not usable YAML .lists and mappings too deep"),
        ("doc: '\ud800'", "copy of your contracts is damaged"),
    ],
)
@pytest.mark.slow
def test_a_hostile_copy_in_the_lake_ends_no_process(lake, text, what):
    """Collections that libyaml would overflow the stack by, and half a character: one line, of each command."""
    packed = json.dumps({"format": 1, "files": {"x.yaml": text}}).encode()
    lake.put_if_absent("contracts/0000000001.json", packed)
    tried = [sys.executable, "-m", "ranklake", "status", "--lake", lake.uri]  # a process of its own: it may end
    found = subprocess.run(tried, capture_output=True, text=True, check=False)
    assert (found.returncode, len(found.stderr.splitlines())) == (2, 1), found.stderr[-300:]
    with pytest.raises(ContractError, match=what):
        Lake.open(lake.uri).contracts()


def test_a_plan_that_was_composed_with_the_folder_is_finished_without(lake, spool, tmp_path):
    """A found plan names the overlay that it was composed under: whoever carries it out stores the same rows."""
    folder = written(tmp_path / "own", GOOD)
    put_segment(spool, thing_rows(folder, 3), table="things")
    known = under(lake, folder)
    plan = ingest_plan.compose(known, Spool(str(spool)), last_finished(known.tables) + 1).plan
    assert plan.body["contracts"] == 1
    assert known.put_if_absent(plan.name, plan.to_json())
    bare = Lake.open(lake.uri)
    assert bring(bare, spool).rows_stored == 3
    adds_up(bare, spool)


def test_an_own_table_is_replayed_merged_and_retained_like_ours(lake, spool, tmp_path):
    """Files of it are merged, a date of it and of its rollup is rebuilt, and a plan of retention names both."""
    folder = written(tmp_path / "own", GOOD)
    known = under(lake, folder)
    for at in range(2):
        put_segment(spool, thing_rows(folder, 2, segment=[at, at]), table="things", rows_before=2 * at)
        bring(known, spool)
    run_rollups(known, ["sums"])
    assert upkeep(known, InProcess()).files_before >= 2
    day = date(2026, 3, 1)
    assert replay(known, Spool(str(spool)), InProcess(), "things", (day, day)).rows == 4
    assert replay(known, Spool(str(spool)), InProcess(), "sums", (day, day)).rows == 1
    adds_up(known, spool)


@pytest.mark.parametrize("number", [-1, "1", 2.0, True, 7])
def test_a_plan_under_contracts_that_there_are_none_of_is_refused(lake, spool, number):
    """A forged number is no traceback, and nothing of the plan is carried out."""
    put_segment(spool, step_rows(2))
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    plan.body["contracts"] = number
    assert lake.put_if_absent(plan.name, plan.to_json())
    with pytest.raises(RanklakeError, match="contracts"):
        bring(lake, spool)
