"""Which columns the columns of rollups are computed from, by their SQL, and what uses a column."""

import json
from contextlib import chdir

import pytest
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.insight.lineage.columns import COLUMNS, COUNTED, TABLES, back, forward, origins
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.usage import LoggedQuery, note
from ranklake.lake.rollups.declaration import SqlBody
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.register import add_share

CONTRACTS = load_contracts()
ROLLUPS_BY_NAME = {each.name: each for each in ROLLUPS}
WITH_SQL = [each.name for each in ROLLUPS if isinstance(each.transform, SqlBody)]
COUNTED_COLUMNS = {
    *("run_facts.date", "step_rollup.date", "step_rollup.ranks", "rank_health.date", "rank_health.ranks"),
    *("rank_health.steps", "mfu.date", "mfu.n_convention", "step_mfu.date", "run_epochs.date", "goodput_daily.steps"),
    *("run_goodput.attempts", "run_goodput.restarts", "run_summary.stragglers", "gpu_hourly.sample_count"),
    *("gpu_hourly.date", "host_hourly.sample_count", "host_hourly.link_count", "host_hourly.date", "job_facts.date"),
    *("gpu_minutes.sample_count", "gpu_minutes.date", "host_minutes.sample_count", "host_minutes.date"),
    *("cluster_hourly.scope", "cost.told_by", "cost.date", "inference_hourly.date", "inference_hourly.rows"),
}
"""Columns that read no column, by their SQL: the date that is computed, counts of rows, and literals."""
ROLES = """
roles:
  narrow:
    classes: [operational]
    masked: [pseudonymous]
    tables: [step_rollup, steps]
  of_r2:
    classes: [operational]
    tables: [step_rollup, steps]
    runs: "run = 'r2'"
"""


@pytest.mark.parametrize("name", WITH_SQL)
def test_each_column_of_packaged_sql_resolves(name):
    """To columns of contract tables that the rollup declares, or of its lookups; else it is a count or a literal."""
    rollup = ROLLUPS_BY_NAME[name]
    places = {(table, column) for table in rollup.tables for column in CONTRACTS[table].names}
    places |= {(table, column) for table, make in rollup.lookups.items() for column in make().column_names}
    found = origins(rollup, CONTRACTS)
    assert set(found) == set(CONTRACTS[name].names)
    for column, origin in found.items():
        assert set(origin.sources) <= places, column
        assert origin.level == (COUNTED if f"{name}.{column}" in COUNTED_COLUMNS else COLUMNS), column


def test_rollups_of_python_are_known_by_their_tables():
    """Four have no SQL that gives their rows: their columns name the declared inputs."""
    others = [each for each in ROLLUPS if each.name not in WITH_SQL]
    assert [each.name for each in others] == ["drift", "run_findings", "node_findings", "incidents"]
    for rollup in others:
        found = origins(rollup, CONTRACTS)
        assert {each.level for each in found.values()} == {TABLES}
        assert {table for each in found.values() for table, _ in each.sources} == set(rollup.tables)


def test_mfu_comes_from_tokens_step_times_and_peaks():
    """By hand from mfu.sql: FLOPs from tokens or from what ranks said, device time from step times, a peak."""
    mfu = origins(ROLLUPS_BY_NAME["mfu"], CONTRACTS)
    assert mfu["step_time_ns"].sources == (("steps", "step_time_s"),)
    assert mfu["tokens"].sources == (("steps", "tokens"),)
    assert mfu["device_name"].sources == (("attempt_facts", "device_name"),)
    expected = {("steps", "tokens"), ("steps", "step_time_s"), ("steps", "ranks"), ("peaks", "flops_per_s")}
    assert expected < set(mfu["mfu_ratio"].sources)
    assert ("steps", "loss") not in mfu["mfu_ratio"].sources
    way = {(each.table, each.column): each for each in back("mfu", "mfu_ratio", ROLLUPS_BY_NAME, CONTRACTS)}
    assert {("scalars", "value"), ("runs", "device_count"), ("steps", "tokens")} <= set(way)


def test_masked_columns_are_flagged():
    """The class and the mask of each column on the way are its contract's."""
    way = {each.column: each for each in back("cluster_hourly", "scope_name", ROLLUPS_BY_NAME, CONTRACTS)}
    masked = [each for each in way.values() if each.mask]
    assert all(each.mask == CONTRACTS[each.table].column(each.column).mask for each in masked)
    (user,) = back("runs", "user", ROLLUPS_BY_NAME, CONTRACTS)
    assert (user.class_, user.mask) == ("pseudonymous", "hash")


@pytest.mark.slow
def test_forward_is_back_turned_round():
    """A column is reached forward from each column that it goes back to."""
    reached = forward({("steps", "tokens")}, ROLLUPS_BY_NAME, CONTRACTS)
    for table, column in reached:
        if column:
            way = {(each.table, each.column) for each in back(table, column, ROLLUPS_BY_NAME, CONTRACTS)}
            assert ("steps", "tokens") in way, (table, column)
    assert ("mfu", "mfu_ratio") in reached
    assert ("incidents", "") in reached
    assert ("step_rollup", "mean_loss") not in reached


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give options for a lake with a run, rolled up, and for roles of it."""
    folder = tmp_path_factory.mktemp("lineage")
    (folder / "roles.yaml").write_text(ROLES)
    (folder / "ranklake.toml").write_text(f'[sql]\nroles = "{folder / "roles.yaml"}"\n')
    for name, incarnation in (("r1", 1), ("r2", 2)):
        put_segment(folder / "spool", step_rows(5, run=name, incarnation=incarnation))
    options = ["--lake", str(folder / "lake"), "--spool", str(folder / "spool")]
    assert run(["ingest", *options]) == 0
    assert run(["rollup", "step_rollup", *options[:2]]) == 0
    return folder, options


def lineage_json(capsys, place, *words, status=0):
    """Return what the command prints as JSON, and its messages."""
    folder, options = place
    capsys.readouterr()
    with chdir(folder):
        assert run(["lineage", *words, *options, "--json"]) == status
    captured = capsys.readouterr()
    return json.loads(captured.out) if captured.out else None, captured.err


def test_what_uses_a_column_is_listed(capsys, place):
    """Rollups, checks, metrics, detectors, pages, objectives, shares of roles that see it, and queries of the log."""
    folder, _ = place
    lake = Lake.open(str(folder / "lake"))
    note(lake.store, LoggedQuery("dash/board", None, {"steps": ("loss",)}, {}))
    share = add_share(lake.store, "narrow", str(folder / "shared"))
    uses, _ = lineage_json(capsys, place, "steps.loss", "--forward")
    found = {(use["kind"], use["name"], use["column"]) for use in uses}
    assert {
        ("rollup", "step_rollup.mean_loss", "steps.loss"),
        ("check", "loss_moves", "steps.loss"),
        ("page", "insight/runs/loss.sql", "step_rollup.mean_loss"),
        ("share", share.name, "steps.loss"),
        ("query", "dash/board", "steps.loss"),
    } <= found
    assert {use["kind"] for use in lineage_json(capsys, place, "run_summary.status", "--forward")[0]} >= {"objective"}
    assert not {use["name"] for use in uses if use["kind"] == "rollup"} & {"mfu.mfu_ratio", "step_rollup.tokens"}


RULES = """version: 1
rules:
  by-sql: {source: sql, owner: o, summary: s, sql: SELECT run AS subject FROM step_rollup WHERE mean_loss > 9}
  other-sql: {source: sql, owner: o, summary: s, sql: SELECT run AS subject FROM runs}
  loss-is-nan: {source: incidents, owner: o, summary: s, where: {kind: [hang, non_finite], severity: critical}}
  low-sm: {source: incidents, owner: o, summary: s, where: {kind: low_sm}}
  steps-fail: {source: checks, owner: o, summary: s, where: {table: steps}}
  runs-fail: {source: checks, owner: o, summary: s, where: {table: runs}}
  loss-burns: {source: slo, owner: o, summary: s, where: {slo: loss}}
  others-burn: {source: slo, owner: o, summary: s, where: {slo: saves}}
receivers: {a: {url: "env:A"}}
routes: [{receivers: [a]}]
"""
LOSS = """apiVersion: openslo/v1
kind: SLO
metadata: {name: loss, labels: {owner: o}}
spec:
  indicator:
    spec:
      thresholdMetric:
        metricSource: {spec: {sql: "SELECT ts, run AS subject, mean_loss AS value FROM step_rollup"}}
  timeWindow: [{duration: 4w, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{targetPercent: 95, op: lte, value: 600}]
"""


def test_alerts_and_objectives_are_those_that_are_configured(capsys, place, tmp_path):
    """By their SQL, or since they are on a check, a detector or an objective that uses the column."""
    _, options = place
    (tmp_path / "slos").mkdir()
    (tmp_path / "slos" / "loss.yaml").write_text(LOSS)
    (tmp_path / "alerts.yaml").write_text(RULES)
    (tmp_path / "ranklake.toml").write_text('[alerts]\nfile = "alerts.yaml"\n[slo]\nfiles = "slos"\n')
    uses, _ = lineage_json(capsys, (tmp_path, options), "steps.loss", "--forward")
    assert {use["name"] for use in uses if use["kind"] == "objective"} == {"loss: loss"}
    alerts = {(use["name"], use["column"]) for use in uses if use["kind"] == "alert"}
    assert {name for name, _ in alerts} == {"by-sql", "loss-is-nan", "steps-fail", "loss-burns"}
    assert {("steps-fail", "steps.loss"), ("loss-burns", "step_rollup.mean_loss")} <= alerts
    packaged, _ = lineage_json(capsys, place, "steps.loss", "--forward")
    assert {use["name"] for use in packaged if use["kind"] == "alert"} >= {"run-diverges", "checks-fail"}


def test_a_role_sees_lineage_of_what_it_may_read(capsys, place):
    """Tables and columns that it does not see are not there, nor are rows that its condition leaves out."""
    result, _ = lineage_json(capsys, place, "step_rollup.mean_loss", "--run", "r1", "--role", "narrow")
    assert {each["table"] for each in result["files"]} == {"step_rollup", "steps"}
    assert {source["table"] for each in result["computations"] for source in each["inputs"]} == {"steps"}
    assert {each["table"] for each in result["columns"]} == {"step_rollup", "steps"}
    _, message = lineage_json(capsys, place, "run_summary.mean_loss", "--run", "r1", "--role", "narrow", status=2)
    assert "no table 'run_summary'" in message
    result, message = lineage_json(capsys, place, "steps.loss", "--run", "r1", "--role", "of_r2", status=1)
    assert (result["files"], result["segments"]) == ([], [])
    assert "no rows of run r1" in message
    assert lineage_json(capsys, place, "steps.loss", "--run", "r2", "--role", "of_r2")[0]["files"]
    uses, _ = lineage_json(capsys, place, "steps.loss", "--forward", "--role", "narrow")
    assert {use["column"].partition(".")[0] for use in uses} == {"step_rollup", "steps"}
