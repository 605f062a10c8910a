"""Loading contracts and metrics, packaged and from an overlay."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ranklake.file_formats import SafeLoader
from ranklake.lake.contracts import (
    ContractError,
    UnknownColumnError,
    UnknownMetricError,
    UnknownTableError,
    contract,
    load,
    load_contracts,
    load_metrics,
    metric,
    table_names,
)

FACTS = {
    "runs", "steps", "scalars", "distributions", "spans", "gpu_samples", "host_samples", "events", "logs", "artifacts",
    "datasets", "jobs", "pools", "inferences",
}  # fmt: skip
DERIVED = {"gpu_hourly", "cluster_hourly", "cost", "incidents", "drift"}
SYSTEM = {
    "ingest_plans", "segments", "rejects", "quality_results", "lineage", "audit", "migrations", "retention_plans",
    "catalog_tables", "catalog_columns", "catalog_metrics",
}  # fmt: skip

OWN = """\
table: reviews
version: 1
kind: fact
owner: me
steward: me
summary: "My own table."
grain: [incarnation, segment, slot]
envelope: true
partition: [date]
sort: [ts]
retention: raw
columns:
  - {id: 20, name: stars, type: int32, unit: none, class: operational, doc: "Stars that were given."}
checks:
  - {id: reviews_unique, kind: unique, columns: [incarnation, segment, slot]}
"""


@pytest.fixture
def overlay(tmp_path):
    """Return a writer of overlay files, and the folder they go to."""

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_every_table_of_the_design_has_a_contract():
    """Facts, derived and system tables are all there, each of its kind, and found in sorted order."""
    contracts = load_contracts()
    for kind, names in (("fact", FACTS), ("derived", DERIVED), ("system", SYSTEM)):
        assert {name for name in names if contracts[name].kind == kind} == names
    assert list(contracts) == sorted(contracts)
    assert tuple(contracts) == table_names()


@pytest.mark.parametrize("name", sorted(FACTS))
def test_facts_begin_with_the_envelope(name):
    """Captured tables begin with the same eight columns, and segments hold all of them but date."""
    one = contract(name)
    assert one.names[:8] == ("run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "date")
    assert all(column.required for column in one.columns[:8])
    assert "date" not in {column.name for column in one.segment_columns}


@pytest.mark.slow
def test_loading_all_is_quick():
    """Reading and checking all packaged contracts and the registry costs under three times what bare PyYAML takes."""

    def load_all():
        for cached in (load._all, load._load_contract, load._envelope, load._registry):
            cached.cache_clear()
        load_contracts()
        load_metrics()

    def parse_all():
        for path in load.ROOM.rglob("*.yaml"):
            yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)

    def cpu_s(work):
        start = time.process_time()
        work()
        return time.process_time() - start

    ours, bare = zip(*((cpu_s(load_all), cpu_s(parse_all)) for _ in range(5)), strict=True)
    assert min(ours) < 3 * min(bare)


def test_importing_and_loading_needs_no_heavy_library():
    """Contracts load in a fresh interpreter without pyarrow, jsonschema, deltalake or pandas being imported."""
    code = (
        "import sys; from ranklake.lake.contracts import contract, load_metrics; contract('steps'); load_metrics();"
        "heavy = {'pyarrow', 'jsonschema', 'deltalake', 'pandas', 'numpy', 'click'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_table_is_read_without_the_others(overlay):
    """A broken file beside a table does not keep the table from loading; loading all names the broken one."""
    overlay("broken.yaml", "table: [")
    folder = overlay("reviews.yaml", OWN)
    assert contract("reviews", folder).column("stars").type == "int32"
    assert contract("steps", folder) == contract("steps")
    with pytest.raises(ContractError, match=r"broken\.yaml:"):
        load_contracts(folder)


def test_unknown_names_say_which_is_near():
    """Misspelt tables, columns and metrics are answered with the nearest name, in one line."""
    with pytest.raises(UnknownTableError, match="did you mean 'steps'") as table:
        contract("stpes")
    assert table.value.name == "stpes"
    with pytest.raises(UnknownColumnError, match="did you mean 'grad_norm'"):
        contract("steps").column("gradnorm")
    with pytest.raises(UnknownMetricError, match="did you mean 'train/loss'"):
        metric("train/los")
    assert "\n" not in str(table.value)


@pytest.mark.parametrize("name", ["../steps", "metrics", "_envelope", "schema", ""])
def test_names_that_are_no_tables_are_unknown(name):
    """Paths and the names of other files in the folder are no tables."""
    with pytest.raises(UnknownTableError):
        contract(name)


def test_core_metrics_are_registered():
    """The metrics that the spine records have units and homes."""
    assert metric("train/loss").stored_in == "steps.loss"
    assert metric("model/flops_per_step").unit == "FLOP"
    assert metric("device/peak_flops_measured").unit == "FLOP/s"
    assert metric("eval/loss").stored_in == "scalars.value"


def test_an_overlay_extends_a_packaged_table(overlay):
    """An overlay adds columns and checks, replaces checks by id, changes docs, owner and retention."""
    folder = overlay(
        "steps.yaml",
        """\
extends: steps
owner: our-team
retention: logs
columns:
  - {id: 10000, name: reward, type: float32, unit: "1", class: operational, doc: "Mean reward of the step."}
packaged_columns:
  - name: loss
    doc: "Cross entropy."
    checks: [{id: loss_range, kind: between, min: 0, max: 20, on_fail: record}]
  - name: step
    checks: [{id: step_from_zero, kind: between, min: 1, on_fail: quarantine}]
checks:
  - {id: some_rows, kind: row_count, min: 1}
""",
    )
    mine, packaged = contract("steps", folder), contract("steps")
    assert mine.names == (*packaged.names, "reward")
    assert (mine.owner, mine.retention, mine.version) == ("our-team", "logs", packaged.version)
    assert mine.column("loss").doc == "Cross entropy."
    assert [check.id for check in mine.column("loss").checks] == ["loss_range"]
    assert [check.min for check in mine.column("step").checks] == [1]
    assert {check.id for check in mine.checks} == {check.id for check in packaged.checks} | {"some_rows"}
    assert mine.column("loss").type == packaged.column("loss").type


REFUSED = {
    "a packaged column's type": ("packaged_columns:\n  - {name: loss, type: float64}", 3, "unknown key 'type'"),
    "a packaged id": ('columns:\n  - {id: 99, name: x, type: string, class: operational, doc: "X."}', 3, "10000"),
    "a required column": (
        'columns:\n  - {id: 10000, name: x, type: string, class: operational, required: true, doc: "X."}',
        3,
        "required",
    ),
    "a taken name": (
        'columns:\n  - {id: 10000, name: loss, type: string, class: operational, doc: "X."}',
        3,
        "'loss' is taken",
    ),
    "an unknown column": ("packaged_columns:\n  - {name: los}", 3, "did you mean 'loss'"),
    "a check of an unknown column": (
        "checks:\n  - {id: x, kind: unique,\n     columns: [step,\n       stepp]}",
        5,
        "did you mean 'step'",
    ),
    "a new grain": ("grain: [step]", 2, "unknown key 'grain'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_overlay_cannot_change_what_packaged_columns_mean(overlay, case):
    """What stored data depends on is refused with the line it stands on."""
    text, line, what = REFUSED[case]
    folder = overlay("steps.yaml", f"extends: steps\n{text}\n")
    with pytest.raises(ContractError) as refused:
        contract("steps", folder)
    assert str(refused.value).startswith(f"{folder / 'steps.yaml'}:{line}: ")
    assert what in str(refused.value)


def test_an_overlay_cannot_replace_a_packaged_table(overlay):
    """A whole contract under a packaged name is refused and told how to extend instead."""
    folder = overlay("steps.yaml", OWN.replace("reviews", "steps"))
    with pytest.raises(ContractError, match="extends: steps"):
        contract("steps", folder)


def test_extending_what_is_not_packaged_is_refused(overlay):
    """A misspelt base is answered with the nearest packaged table."""
    folder = overlay("stepz.yaml", "extends: stepz\n")
    with pytest.raises(ContractError, match="did you mean 'steps'"):
        contract("stepz", folder)


def test_files_that_would_be_passed_over_are_refused(overlay):
    """A contract under .yml would be ignored without a word; it is an error instead."""
    folder = overlay("reviews.yml", OWN)
    with pytest.raises(ContractError, match=r"rename it to reviews\.yaml"):
        load_contracts(folder)


def test_an_overlay_adds_metrics(overlay):
    """Own metrics stand beside the packaged ones; a packaged name cannot be taken."""
    own = "version: 1\nmetrics:\n  - {name: NAME, unit: W, kind: gauge, owner: me, sampling: interval, doc: Mine.}\n"
    folder = overlay("metrics.yaml", own.replace("NAME", "pdu/power"))
    assert metric("pdu/power", folder).unit == "W"
    assert metric("train/loss", folder) == metric("train/loss")
    folder = overlay("metrics.yaml", own.replace("NAME", "train/loss"))
    with pytest.raises(ContractError, match="packaged"):
        load_metrics(folder)


def test_a_missing_overlay_is_said():
    """A configured folder that is not there is an error, never an empty overlay."""
    with pytest.raises(ContractError, match="no such folder"):
        load_contracts(Path("/no/such/folder"))
