"""What others did to a table is found, by column id; what ranklake does, or an operator's overlay has, never is."""

import json
from datetime import timedelta

import pyarrow as pa
import pytest
from bringing import bring
from deltalake import DeltaTable, Field, write_deltalake
from governed import under
from overlays import written
from segments import DAY, put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.migrations import applying
from ranklake.lake.migrations.drift import drift, foreign
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.table_schema import fields_of
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.check import run_checks

OWN = """extends: steps
columns:
  - {id: 10001, name: kl, type: float64, unit: "1", class: operational, doc: "Divergence."}
"""


def table(lake):
    """Return ``steps`` as another tool opens it."""
    return DeltaTable(lake.store.table_uri("steps"))


def commit_by_hand(lake, fields, properties, *more):
    """Give ``steps`` other fields and properties, as a tool does that writes its log itself."""
    handle = delta_table(lake.store, "steps")
    now = handle.metadata()
    metadata = {
        "id": str(now.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": now.partition_columns,
        "configuration": {**now.configuration, **properties},
    }
    lines = [{"commitInfo": {"timestamp": 0, "operation": "ADD COLUMN"}}, {"metaData": metadata}, *more]
    name = f"tables/steps/_delta_log/{handle.version() + 1:020}.json"
    assert lake.put_if_absent(name, "\n".join(map(json.dumps, lines)).encode())


def said(lake, **options):
    """Return what is found of ``steps``, each with its severity."""
    return [(one.severity, one.message) for one in drift(lake, ["steps"], **options)]


def filled(lake, spool):
    """Bring some rows."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)


@pytest.mark.slow
def test_nothing_that_ranklake_does_is_drift(lake, spool, changed, tmp_path):
    """Ingest, checks, rollups, upkeep, an added column, a migration and its undo, and an overlay's column."""
    for segment in range(2):
        put_segment(spool, step_rows(5, segment=segment, start=DAY + timedelta(days=segment)), rows_before=5 * segment)
        bring(lake, spool)
        run_checks(lake)
        run_rollups(lake)
    own = written(tmp_path / "own", {"steps.yaml": OWN})
    known = under(lake, own)
    known.catalog.keep()
    put_segment(spool, step_rows(5, segment=2), rows_before=10)
    bring(known, spool)
    assert drift(known) == []

    def change(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens").update(name="seen")
        facts["checks"] = [one for one in facts["checks"] if "tokens" not in one.get("columns", [])]

    changed.migrate("steps", change)
    assert drift(known) == []  # a migration that is due is no drift
    applying.apply(known, InProcess(), "Ada")
    upkeep(known, InProcess(), grace=timedelta(0))
    assert drift(known) == []
    applying.undo(known, InProcess(), "Ada", "steps")
    assert drift(known) == []
    changed.earlier()
    assert drift(Lake.open(lake.uri)) == []


def test_rows_and_columns_of_another_tool(lake, spool):
    """An append with a column of its own is a foreign commit and a foreign column, and named as such."""
    filled(lake, spool)
    assert said(lake) == []
    rows = table(lake).to_pyarrow_dataset().to_table().slice(0, 1)
    write_deltalake(table(lake), rows.append_column("mine", pa.array([1])), mode="append", schema_mode="merge")
    version = delta_table(lake.store, "steps").version()
    assert said(lake) == [
        ("warning", "column mine is no contract's: another tool added it"),
        ("error", f"version {version} (WRITE) is not a commit of ranklake"),
    ]
    put_segment(spool, step_rows(5, segment=1), rows_before=5)
    assert [what for _, what in said(lake, commits=1)][1:] == [f"version {version} (WRITE) is not a commit of ranklake"]


@pytest.mark.parametrize(
    "line",
    [
        '{"txn": 7}',
        '{"txn": [{"appId": "lake"}]}',
        '{"commitInfo": "WRITE"}',
        '{"commitInfo": {"operation": {"WRITE": 1}}}',
        '{"commitInfo": {"operation": "SET TBLPROPERTIES", "operationParameters": [1]}}',
        '{"commitInfo": {"operation": "SET TBLPROPERTIES", "operationParameters": {"properties": "' + "[" * 9 + '"}}}',
        '{"txn": {"appId"',
        '{"commitInfo": ' + "[" * 200_000,
    ],
)
def test_a_commit_that_says_nonsense_of_itself_is_foreign(line):
    """Whatever its lines hold, it is named, and what else is in it is looked at."""
    assert foreign(7, line.replace(": ", ":").encode()).operation in {"unknown", "SET TBLPROPERTIES"}
    own = line.replace(": ", ":") + '\n{"txn":{"appId":"lake","version":3}}'
    assert foreign(7, own.encode()) is None


def test_a_column_that_only_looks_like_the_contracts(lake, spool):
    """It is held by its id: another name, type, unit or class under it, or no id any more, and one id for two."""
    filled(lake, spool)
    handle = delta_table(lake.store, "steps")
    fields = fields_of(handle.schema())
    by_name = {one["name"]: one for one in fields}
    by_name["tokens"]["name"] = "examples"
    by_name["loss"]["type"] = "double"
    by_name["step_time_s"]["metadata"]["unit"] = "ms"
    by_name["lr"]["metadata"]["class"] = "personal"
    by_name["grad_norm"]["metadata"] = {}
    by_name["memory_reserved_bytes"]["metadata"]["id"] = by_name["loss"]["metadata"]["id"]
    commit_by_hand(lake, fields, {})
    found = {what: severity for severity, what in said(lake, commits=0)}
    assert set(found.values()) == {"error"}
    for what in (
        "column tokens: its name is examples, and the contract says tokens",
        "column loss: its type is double, and the contract says float",
        "column step_time_s: its unit is ms, and the contract says s",
        "column lr: its class is personal, and the contract says operational",
        "column grad_norm lost what ranklake says of it",
    ):
        assert what in found
    assert any("have one id" in what for what in found)
    (commits,) = [one for one in said(lake) if "(ADD COLUMN) is not a commit" in one[1]]
    assert commits[0] == "warning"  # no file came or went


def test_properties_and_features_of_others(lake, spool):
    """A property that nobody set, one that was changed, statistics of personal data, and a feature readers may lack."""
    filled(lake, spool)
    table(lake).alter.set_table_properties(
        {"delta.appendOnly": "false", "delta.logRetentionDuration": "interval 1 days"}
    )
    table(lake).alter.set_table_properties({"delta.targetFileSize": "1048576"})  # an operator's own choice
    table(lake).alter.add_columns([Field("b", "integer")])
    handle = delta_table(lake.store, "steps")
    fields = fields_of(handle.schema())
    next(one for one in fields if one["name"] == "b")["metadata"] = {"id": "1001"}
    properties = {"delta.dataSkippingStatsColumns": "run,loss"}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}}
    protocol["protocol"]["writerFeatures"] = ["columnMapping", "appendOnly"]
    commit_by_hand(lake, fields, properties, protocol)
    found = [what for _, what in said(lake, commits=0)]
    assert found == [
        "column b (id 1001) is in no contract here",
        "property delta.appendOnly is false, and ranklake sets none",
        "property delta.logRetentionDuration is interval 1 days, and ranklake sets interval 30 days",
        "the table asks for more of Delta: reader 3, writer 7 (columnMapping, appendOnly)",
    ]


def test_a_table_that_no_contract_knows(lake, spool):
    """A folder with a log below `tables/` is told; one without is none."""
    filled(lake, spool)
    write_deltalake(lake.store.table_uri("strangers"), pa.table({"a": [1]}))
    lake.fs.makedirs(lake.path("tables", "empty"))
    assert [(one.table, one.severity, one.message) for one in drift(lake)] == [
        ("strangers", "warning", "no contract knows the table")
    ]


@pytest.mark.slow
def test_check_and_doctor_tell_it(lake, spool, capfd, monkeypatch, tmp_path):
    """`check` exits 1 and says who to ask, though every row passes; so does the doctor."""
    monkeypatch.chdir(tmp_path)
    filled(lake, spool)
    assert run(["check", "--lake", lake.uri]) == 0
    table(lake).alter.set_table_properties({"delta.targetFileSize": "1048576"})
    assert run(["check", "--lake", lake.uri]) == 0
    table(lake).delete()
    capfd.readouterr()
    assert run(["check", "steps", "--lake", lake.uri]) == 1
    assert "drift: steps: version 3 (DELETE) is not a commit of ranklake; find out" in capfd.readouterr().out
    assert run(["check", "--lake", lake.uri, "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["passed"], [one["table"] for one in found["drift"]]) == (False, ["steps"])
    assert run(["doctor", "--lake", lake.uri, "--json"]) == 1
    lines = [one for one in json.loads(capfd.readouterr().out)["findings"] if one["check"] == "drift"]
    assert [(one["state"], one["what"]) for one in lines] == [
        ("failed", "steps: version 3 (DELETE) is not a commit of ranklake")
    ]
