"""The catalog: generated pages that must be up to date, and the command that shows a table or metric."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from changed_contracts import ChangedContracts
from click.testing import CliRunner

from ranklake.commands.catalog import catalog
from ranklake.insight.catalog.__main__ import main
from ranklake.insight.catalog.catalog import UnknownNameError, find, pages, stale, write
from ranklake.lake.contracts import Contract, ContractError, Metric, load, load_contracts, load_metrics
from ranklake.lake.rollups.life.register import move
from ranklake.lake.rollups.life.state import Link

DOCS = Path(__file__).parents[2] / "docs" / "catalog"
WANTED = pages(load_contracts(), load_metrics())


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """Run each test in an empty folder, so that no configuration of the caller's is read."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("RANKLAKE_CONFIG", raising=False)


def shown(*arguments):
    """Run the command and return its output."""
    return CliRunner().invoke(catalog, arguments, catch_exceptions=False).output


def test_the_committed_pages_are_up_to_date():
    """docs/catalog is what the contracts generate; after a change run `python -m ranklake.insight.catalog --write`."""
    assert stale(WANTED, DOCS) == []


def test_pages_name_everything():
    """Each table has a page with all its columns, docs and checks; the index and the metrics page name all."""
    for name, one in load_contracts().items():
        assert f"[{name}]({name}.md)" in WANTED["README.md"]
        page = WANTED[f"{name}.md"]
        assert all(f"| `{column.name}` |" in page and column.doc in page for column in one.columns)
        assert all(f"| `{check.id}` |" in page for check in one.all_checks())
    assert all(f"| `{name}` |" in WANTED["metrics.md"] for name in load_metrics())


def test_pages_tell_what_became_of_columns(tmp_path, monkeypatch):
    """Each step of a table's migrations is a line of its page, of the command, and of its JSON, oldest first."""
    contracts = ChangedContracts(tmp_path / "contracts", monkeypatch)

    def change(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens").update(name="tokens_seen")

    label = contracts.migrate("steps", change).stem
    page = pages(load_contracts(), load_metrics())["steps.md"]
    assert f"| 2 | `tokens`, `tokens_seen` | rename tokens to tokens_seen | `{label}` |" in page
    assert f"since version 2: rename tokens to tokens_seen ({label})" in shown("steps")
    assert json.loads(shown("steps", "--json"))["history"] == [
        {
            "version": 2,
            "is_of_added": False,
            "columns": ["tokens", "tokens_seen"],
            "what": "rename tokens to tokens_seen",
            "migration": label,
        }
    ]
    contracts.earlier()
    assert "## History" not in WANTED["steps.md"]


def test_writing_and_checking(tmp_path):
    """--write makes the folder right and --check notices what is edited, missing or left over, with exit 1."""
    folder = str(tmp_path / "pages")
    run = CliRunner().invoke
    assert run(main, ["--check", "--folder", folder]).exit_code == 1
    assert run(main, ["--write", "--folder", folder]).exit_code == 0
    assert run(main, ["--check", "--folder", folder]).exit_code == 0
    (tmp_path / "pages" / "steps.md").write_text("edited")
    (tmp_path / "pages" / "metrics.md").unlink()
    (tmp_path / "pages" / "gone.md").write_text("left over")
    checked = run(main, ["--check", "--folder", folder])
    assert checked.exit_code == 1
    assert [line.rsplit("/", 1)[1] for line in checked.output.splitlines()] == ["gone.md", "metrics.md", "steps.md"]
    assert write(WANTED, tmp_path / "pages") == ["gone.md", "metrics.md", "steps.md"]
    assert stale(WANTED, tmp_path / "pages") == []


def test_one_of_write_and_check():
    """Neither, or both, is bad usage."""
    assert CliRunner().invoke(main, []).exit_code == 2
    assert CliRunner().invoke(main, ["--write", "--check"]).exit_code == 2


def test_the_list_names_every_table():
    """Without a name: all tables by kind with their summaries, and how many metrics there are."""
    output = shown()
    for name in load_contracts():
        assert f"\n  {name} " in output
    assert f"{len(load_contracts())} tables, {len(load_metrics())} metrics" in output
    assert max(map(len, output.splitlines())) <= 100


def test_a_table_is_shown_with_its_columns():
    """A table: every column with type, unit, class and doc, and its checks."""
    output = shown("runs")
    assert "one row per run, attempt, incarnation" in output
    assert any(line.split() == ["user", "string", "pseudonymous", "(hash)"] for line in output.splitlines())
    assert any(line.split()[:4] == ["world_size", "int32", "{rank}", "operational"] for line in output.splitlines())
    assert "    Account that started the run." in output
    assert "check world_size_positive (error, record): world_size outside 1 to …" in output


def test_a_metric_is_shown():
    """A metric: its doc, unit, kind, home and owner."""
    output = shown("train/loss")
    assert output.startswith("train/loss: Training loss")
    assert "stored in      steps.loss" in output


def test_a_table_says_what_it_is_for_and_what_makes_it():
    """The decision that it serves, its steward, the rollup and its inputs; the SQL is in the JSON."""
    output = shown("mfu")
    assert "decision it serves: Which runs to tune" in output
    assert "steward telemetry-stewards" in output
    assert "made by the rollup mfu of steps, attempt_facts, rank_facts" in output
    facts = json.loads(shown("mfu", "--json"))
    assert facts["decision"].startswith("Which runs to tune")
    assert "AS mfu_ratio" in facts["sql"]
    assert (json.loads(shown("steps", "--json"))["producer"], json.loads(shown("incidents", "--json"))["sql"]) == (
        "ranks, agents and imports",
        None,
    )


def test_no_packaged_table_or_metric_lacks_what_it_is_for():
    """A decision and a steward of each table, a purpose of its own and a decision of each metric, as sentences."""
    contracts, metrics = load_contracts().values(), load_metrics().values()
    assert [each.table for each in contracts if not (each.decision and each.steward)] == []
    assert [each.name for each in metrics if not (each.purpose and each.decision)] == []
    purposes = [each.purpose for each in metrics]
    sentences = [*(each.decision for each in contracts), *(each.decision for each in metrics), *purposes]
    assert [text for text in sentences if not (text[0].isupper() and text.endswith("."))] == []
    assert len(set(purposes)) == len(purposes)
    assert [name for name in ("agent/lag", "train/lr") if "steward        " not in shown(name)] == []


def test_a_metric_says_what_it_is_for_and_how_it_is_asked():
    """Purpose, decision, steward of its table, what records it, and the SQL of a run's values."""
    output = shown("train/loss")
    assert "purpose        Whether a model learns." in output
    assert "decision       Go on," in output
    assert "steward        " in output
    assert "made by        ranks, agents and imports" in output
    assert "SELECT ts, loss FROM steps WHERE run = 'RUN'" in output
    sql = "SELECT step, value FROM series WHERE metric = 'train/epoch' AND run = 'RUN'"
    assert json.loads(shown("train/epoch", "--json"))["sql"] == sql


def test_a_deprecated_metric_says_so(lake):
    """By the lake's audit log: what is deprecated or retired is told with its days and what takes its place."""
    link = Link("train/perplexity", 2.0)
    move(lake, "train/accuracy", "deprecated", "ada", "a better one", links=[link], until=date(2999, 1, 1))
    output = shown("train/accuracy", "--lake", lake.uri)
    assert "status         deprecated; recorded until 2999-01-01" in output
    assert "replaced by    train/perplexity" in output
    assert json.loads(shown("train/accuracy", "--lake", lake.uri, "--json"))["life"]["status"] == "deprecated"


def test_json_is_for_machines():
    """--json gives the list, a table and a metric as objects, with all there is to know."""
    listed = json.loads(shown("--json"))
    assert [one["table"] for one in listed["tables"]] == list(load_contracts())
    assert listed["metrics"] == list(load_metrics())
    table = json.loads(shown("steps", "--json"))
    assert [column["name"] for column in table["columns"]] == list(load_contracts()["steps"].names)
    assert table["columns"][0]["class"] == "operational"
    assert json.loads(shown("train/lr", "--json"))["stored_in"] == "steps.lr"


@pytest.mark.parametrize(
    ("name", "near"), [("stpes", "steps"), ("train/los", "train/loss"), ("gpu_sample", "gpu_samples")]
)
def test_an_unknown_name_is_told_the_nearest(name, near):
    """Neither a table nor a metric: an error for exit 2 with the nearest of both."""
    with pytest.raises(UnknownNameError) as unknown:
        shown(name)
    assert str(unknown.value) == f"unknown table or metric {name!r}; did you mean {near!r}?"
    assert unknown.value.exit_code == 2


@pytest.mark.slow
def test_the_whole_command_line_says_it_in_one_line():
    """`ranklake catalog` of an unknown name ends with exit 2 and a single line on stderr, no traceback."""
    command = [sys.executable, "-m", "ranklake", "catalog", "stpes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ranklake: unknown table or metric 'stpes'; did you mean 'steps'?\n"


def test_own_contracts_are_shown(tmp_path):
    """--contracts lays a folder over the packaged contracts; a configured one is used without the option."""
    overlay = tmp_path / "own"
    overlay.mkdir()
    (overlay / "metrics.yaml").write_text(
        "version: 1\nmetrics:\n  - {name: pdu/power, unit: W, kind: gauge, owner: me, sampling: interval,"
        " status: requested, doc: Mine.}\n"
    )
    assert "status         requested" in shown("pdu/power", "--contracts", str(overlay))
    Path("ranklake.toml").write_text(f'[contracts]\noverlay = "{overlay}"\n')
    assert shown("pdu/power").startswith("pdu/power: Mine.")


def test_a_broken_overlay_is_told_with_its_line(tmp_path):
    """A mistake in an own contract reaches the caller as file, line and mend."""
    (tmp_path / "steps.yaml").write_text("extends: steps\nownr: me\n")
    load._load_contract.cache_clear()
    with pytest.raises(ContractError, match=r"steps\.yaml:2: unknown key 'ownr' in the file; did you mean 'owner'\?"):
        shown("steps", "--contracts", str(tmp_path))


def test_find_returns_what_it_is():
    """Tables and metrics are found by the same call."""
    assert isinstance(find("steps"), Contract)
    assert isinstance(find("train/loss"), Metric)
