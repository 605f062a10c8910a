"""Derived tables are computed anew by a migration; rows whose inputs are gone come along by its steps."""

import shutil
from datetime import timedelta

import pytest
import yaml
from bringing import adds_up, bring
from governed import under
from killing import Killer
from overlays import written
from segments import DAY, put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations import applying, composing
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.registry import contract_at
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.rules import migration_faults
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups import tasks
from ranklake.lake.rollups.anew import FromInputs
from ranklake.lake.rollups.inputs import InputTables
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import swap_plan
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

TABLE = """table: step_daily
version: 1
kind: derived
owner: rl-team
steward: rl-team
summary: "One row per run and day."
grain: [run, date]
partition: [date]
sort: [run]
retention: derived
rollup:
  inputs:
    - {table: steps}
columns:
  - {id: 20, name: run, type: string, class: operational, required: true, doc: "Name of the run."}
  - {id: 21, name: date, type: date, class: operational, required: true, doc: "UTC date."}
  - {id: 22, name: wait, type: float32, unit: s, class: operational, doc: "Mean step time."}
  - {id: 23, name: steps, type: int64, unit: none, class: operational, doc: "How many."}
"""
QUERY = """SELECT run, $date AS date, CAST(avg(step_time_s) AS REAL) AS wait, count(*) AS steps
FROM steps WHERE date = $date GROUP BY run
"""
LATER = TABLE.replace("version: 1", "version: 2").replace(
    'name: wait, type: float32, unit: s, class: operational, doc: "Mean step time."',
    'name: wait_ms, type: float32, unit: ms, class: operational, doc: "Mean step time."',
)
LATER_QUERY = QUERY.replace(
    "CAST(avg(step_time_s) AS REAL) AS wait", "CAST(1000 * avg(step_time_s) AS REAL) AS wait_ms"
)
FIRST, SECOND = DAY.date(), DAY.date() + timedelta(days=1)


@pytest.fixture
def own(tmp_path):
    """Return a folder of contracts."""
    return written(tmp_path / "own", {"step_daily.yaml": TABLE, "rollups/step_daily.sql": QUERY})


@pytest.fixture
def known(lake, spool, own):
    """Return a lake with two dates that were rolled up, and a migration of the rollup drafted."""
    for segment in range(2):
        put_segment(
            spool, step_rows(20, segment=segment, start=DAY + timedelta(days=segment)), rows_before=20 * segment
        )
    first = under(lake, own)
    bring(first, spool)
    run_rollups(first, ["step_daily"])
    written(own, {"step_daily.yaml": LATER, "rollups/step_daily.sql": LATER_QUERY})
    assert run(["migrate", "new", "step_daily", "in_ms", "--lake", lake.uri, "--contracts", str(own)]) == 0
    path = own / "migrations" / "10001_in_ms.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    facts["steps"][0]["factor"] = 2  # another than the query's, so that the two ways can be told apart
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    return under(Lake.open(lake.uri), own)


def apply(lake):
    """Apply what is due, with the rollups of this release."""
    return applying.apply(lake, InProcess(), "Ada", computing=FromInputs())


def daily(lake):
    """Return the table's rows by date."""
    known = lake.contract("step_daily")
    return {row["date"]: row for row in read(lake.tables, known).to_pylist()}


@pytest.fixture
def first_gone(monkeypatch):
    """Have retention say that it took the first date of ``steps``."""
    found = {("steps", f"date={FIRST}")}
    monkeypatch.setattr(InputTables, "retired", property(lambda _: found))


def means(lake):
    """Return the mean step time of each date, as its steps have it."""
    rows = query(lake, "SELECT date, avg(step_time_s) AS s FROM steps GROUP BY date").to_pylist()
    return {row["date"]: row["s"] for row in rows}


def test_dates_are_computed_from_their_inputs(known):
    """Values are those of the query, whatever the steps say; the next round of rollups leaves them as they are."""
    (done,) = apply(known)
    assert (done.table, done.version) == ("step_daily", 2)
    found = {day: row["wait_ms"] for day, row in daily(known).items()}
    assert found == pytest.approx({day: 1000 * mean for day, mean in means(known).items()}, rel=1e-6)
    facts = read_plan(known.store, last_finished(known.tables)).body["facts"]
    assert (len(facts["computed"]), facts["pairs"]) == (2, [])
    proof = verify(known, "step_daily", FromInputs())
    assert (proof.computed, proof.gone, proof.faults) == (2, 0, [])
    results = {one.name: one for one in run_rollups(known, ["step_daily"])}
    assert (results["step_daily"].computed, results["step_daily"].partitions) == (2, ())


def test_dates_whose_inputs_are_gone_are_rewritten(known, first_gone):
    """What retention took cannot be computed: its rows come along by the steps; the others are computed."""
    apply(known)
    found = {day: row["wait_ms"] for day, row in daily(known).items()}
    mean = means(known)
    assert found == pytest.approx({FIRST: 2 * mean[FIRST], SECOND: 1000 * mean[SECOND]}, rel=1e-6)
    facts = read_plan(known.store, last_finished(known.tables)).body["facts"]
    assert (len(facts["computed"]), len(facts["pairs"])) == (1, 1)
    proof = verify(known, "step_daily", FromInputs())
    assert (proof.files, proof.rows, proof.computed, proof.faults) == (1, 1, 1, [])


def test_verify_finds_a_date_that_comes_out_otherwise(known, monkeypatch):
    """Computed once more by another query, a date does not come out as it stands."""
    apply(known)
    evaluated = tasks.evaluate_day
    monkeypatch.setattr(tasks, "evaluate_day", lambda *args: evaluated(*args).slice(0, 0))
    assert verify(known, "step_daily", FromInputs()).faults == [
        f"{day} has other rows than its inputs give" for day in (FIRST, SECOND)
    ]


@pytest.mark.parametrize("is_rolled_up", [False, True])
@pytest.mark.slow
def test_what_was_computed_goes_back(known, lake, spool, own, is_rolled_up):
    """Undone at once, rows are those of before; where rollups wrote since, they come back by the steps."""
    before = read(Lake.open(lake.uri).tables, contract_of(known, 1)).to_pylist()
    apply(known)
    if is_rolled_up:
        put_segment(spool, step_rows(5, segment=2, start=DAY + timedelta(hours=1)), rows_before=40)
        bring(known, spool)
        run_rollups(known, ["step_daily"])
    assert applying.undo(known, InProcess(), "Ada", "step_daily").version == 1
    written(own, {"step_daily.yaml": TABLE, "rollups/step_daily.sql": QUERY})
    for name in ("migrations", "snapshots"):
        shutil.rmtree(own / name)
    earlier = under(Lake.open(lake.uri), own)
    back = daily(earlier)
    same = {row["date"]: row["wait"] for row in before}
    assert back[SECOND]["wait"] == pytest.approx(same[SECOND], rel=1e-6)
    assert back[FIRST]["steps"] == (25 if is_rolled_up else 20)
    if not is_rolled_up:
        assert list(back.values()) == before
    run_rollups(earlier, ["step_daily"])
    assert {day: row["wait"] for day, row in daily(earlier).items()} == pytest.approx(means(earlier), rel=1e-6)


def contract_of(lake, version):
    """Return the table's contract of a version."""
    return contract_at("step_daily", version, lake.catalog.overlay)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forth", "back"])
def test_whoever_dies_anywhere_the_next_goes_on(known, monkeypatch, way):
    """Killed before or after whatever is written, dates end as they do undisturbed; readers see one version."""
    if way == "back":
        apply(known)
    work = (
        (lambda: apply(known)) if way == "forth" else (lambda: applying.undo(known, InProcess(), "Ada", "step_daily"))
    )
    with monkeypatch.context() as patch:
        killer = Killer(patch, (tasks, "append_files"))
        while not killer.survives(work):
            with killer.spared():
                found = query(known, "SELECT * FROM step_daily")
                assert ("wait" in found.column_names) != ("wait_ms" in found.column_names)
                assert found.num_rows == 2
    assert killer.last > 7
    name, factor = ("wait_ms", 1000) if way == "forth" else ("wait", 1)
    found = query(known, f"SELECT date, {name} AS v FROM step_daily").to_pylist()
    expected = {day: factor * mean for day, mean in means(known).items()}
    assert {row["date"]: row["v"] for row in found} == pytest.approx(expected, rel=1e-6)
    states = read(known.tables, contract("migrations"), ["status", "plan"]).sort_by("plan")["status"].to_pylist()
    assert states == ["applied", "reverted"][: 1 if way == "forth" else 2]


def test_a_rollup_of_before_that_is_faster_is_not_undone(known, lake, own, tmp_path, monkeypatch):
    """A plan whose table was written meanwhile is passed over, and made again of what is there then."""
    first = delta_table(lake.store, "step_daily")
    commit, tries = composing.change_contract, []

    def late(*args, **options):
        tries.append(1)
        return commit(*args, **options)

    composed = composing.Work.compose

    def compose(work, number, more=None):
        plan = composed(work, number, more)
        if not tries and plan is not None:
            tries.append(0)
            old = files(first)
            again = old.slice(0, 1)
            handle = delta_table(lake.store, "step_daily")
            rows = read(lake.tables, contract_of(known, 1)).slice(0, 1)
            new = append_files(lake.store, contract_of(known, 1), rows, 99)
            swap_plan(handle, 0, add=new, remove=again, metadata={}, data_change=True)
        return plan

    monkeypatch.setattr(composing.Work, "compose", compose)
    monkeypatch.setattr(composing, "change_contract", late)
    (done,) = apply(known)
    assert tries == [0, 1]
    assert done.version == 2
    found = {day: row["wait_ms"] for day, row in daily(known).items()}
    assert found == pytest.approx({day: 1000 * mean for day, mean in means(known).items()}, rel=1e-6)


def test_a_plan_that_computes_dates_of_a_fact_is_refused():
    """Only derived tables are computed: of others a plan that says so would let rows go."""
    body = {
        "add": [],
        "remove": {
            "steps": [{"path": f"date={FIRST}/a.parquet", "date": str(FIRST), "num_records": 1, "size_bytes": 1}]
        },
        "account": {"steps": -1},
        "kept": {},
        "purge": False,
        "facts": {"pairs": [], "computed": [{"out": [f"date={FIRST}/a.parquet"], "in": [], "of": "x"}]},
    }
    assert "a date was computed, and files of others come or go with it" in list(migration_faults(body))
    for wrong in ([1], {"out": 1}, [{"out": [], "in": [1], "of": ""}]):
        found = list(migration_faults({**body, "facts": {"pairs": [], "computed": wrong}}))
        assert found == ["computed is not files that go, files that come, and a digest"]


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.slow
def test_runs_are_computed_as_wholes(lake, spool, changed, monkeypatch, is_gone):
    """Dates of a table of whole runs are computed if all runs on them can be; else they are rewritten."""
    for number, run_name in enumerate(("r1", "r2")):
        put_segment(spool, step_rows(20, run=run_name, incarnation=7 + number, start=DAY + timedelta(days=2 * number)))
    bring(lake, spool)
    run_rollups(lake, ["attempt_facts"])
    held = read(lake.tables, contract("attempt_facts"))
    assert held.num_rows == 2

    def widen(facts):
        next(one for one in facts["columns"] if one["name"] == "world_size").update(type="int64")

    changed.migrate("attempt_facts", widen)
    if is_gone:
        monkeypatch.setattr(InputTables, "retired", property(lambda _: {("step_rollup", f"date={FIRST}")}))
    apply(lake)
    facts = read_plan(lake.store, last_finished(lake.tables)).body["facts"]
    assert (len(facts["computed"]), len(facts["pairs"])) == ((2, 0) if not is_gone else (1, 1))
    found = read(lake.tables, contract("attempt_facts"))
    assert found.drop_columns(["world_size"]).equals(held.drop_columns(["world_size"]))
    assert verify(lake, "attempt_facts", FromInputs()).computed == len(facts["computed"])
    adds_up(lake, spool)
