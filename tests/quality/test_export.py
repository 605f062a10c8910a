"""Export as a project that Great Expectations opens, with pages that load nothing."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from governed import under
from segments import step_rows

from ranklake.commands.quality import quality
from ranklake.lake.store.lake_config import QualitySection
from ranklake.quality.check import run_checks
from ranklake.quality.export.project import ExportError, export_project, local

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
CHECKS = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, doc: "DOC"}
"""
OPENS = """
import json, sys
import great_expectations as gx
from datetime import date
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ContractsSection
from ranklake.quality.export.rows import partition_rows

folder, lake, overlay = sys.argv[1:]
context = gx.get_context(mode="file", project_root_dir=folder)
lake = Lake.open(lake).configured(contracts=ContractsSection(overlay))
keys = context.validation_results_store.list_keys()
stored = [context.validation_results_store.get(key) for key in keys]
rows = partition_rows(lake, "steps", date(2026, 3, 1))
found = context.checkpoints.get("steps").run(batch_parameters={"dataframe": rows})
(result,) = found.run_results.values()
print(json.dumps({
    "suites": sorted(one.name for one in context.suites.all()),
    "definitions": sorted(one.name for one in context.validation_definitions.all()),
    "verdicts": {one.expectation_config.meta["check_id"]: one.success for one in result.results},
    "stored": {
        one.expectation_config.meta["check_id"]: one.expectation_config.meta["status"]
        for whole in stored if whole.suite_name == "steps" for one in whole.results
    },
}))
"""


class Loads(HTMLParser):
    """Collects what a page would load or run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        """Look at a tag."""
        given = dict(attributes)
        remote = [value for name in ("src", "srcset", "data", "poster") if (value := given.get(name) or "")]
        if tag == "link":
            remote.append(given.get("href") or "")
        self.found += [f"{tag} {value}" for value in remote if value.startswith(("http:", "https:", "//"))]
        self.found += [f"{tag} {name}" for name in given if name.startswith("on")]
        self.found += [tag] if tag in {"script", "iframe", "object", "embed"} else []


def tree(folder):
    """Return all files below a folder by their path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checked(site, tmp_path):
    """Give a lake whose rows were checked, one check of which fails, and whose words hold markup."""
    site.bring(step_rows(60))
    suites = tmp_path / "suites"
    suites.mkdir()
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "step", "max_value": 9}, "meta": {}}
    markup = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": MARKUP}, "meta": {}}
    suite = {"name": f"own {MARKUP}", "meta": {"table": "steps"}, "expectations": [between, {"type": MARKUP}, markup]}
    (suites / "own.json").write_text(json.dumps(suite))
    overlay = site.overlay(steps=CHECKS.replace("DOC", MARKUP))
    lake = under(site.lake, overlay).configured(quality=QualitySection(str(suites)))
    run_checks(lake)
    return lake, overlay


@pytest.mark.slow
def test_great_expectations_opens_it_and_agrees(checked, tmp_path):
    """Suites, definitions, checkpoints and results are there; a checkpoint gives the verdicts of the check."""
    lake, overlay = checked
    out = tmp_path / "gx"
    done = export_project(lake, out)
    assert done.suites == 1
    command = [sys.executable, "-c", OPENS, str(out), lake.uri, str(overlay)]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()[-1])
    assert (told["suites"], told["definitions"]) == (["steps"], ["steps"])
    assert told["stored"]["loss_small"] == "failed"
    assert told["stored"]["volume:rows"] in {"passed", "skipped"}  # a watch: in results only
    assert "volume:rows" not in told["verdicts"]
    for id_, success in told["verdicts"].items():
        assert success == (told["stored"][id_] in {"passed", "skipped"}), id_
    assert {told["verdicts"][id_] for id_ in told["verdicts"] if id_.startswith("suite:")} == {False}


@pytest.mark.slow
def test_pages_load_nothing_and_names_are_text(checked, tmp_path):
    """No script, style sheet, font or image of another host; markup is text; the same lake gives the same files."""
    lake, _ = checked
    out = tmp_path / "gx"
    done = export_project(lake, out)
    site = out / "gx/uncommitted/data_docs/local_site"
    pages = sorted(site.rglob("*.html"))
    assert {page.name for page in pages} >= {"index.html", "steps.html", "steps-2026-03-01.html"}
    assert done.index == str(site / "index.html")
    for page in pages:
        text = page.read_text()
        loads = Loads()
        loads.feed(text)
        assert loads.found == [], page.name
        assert "url('http" not in text
        assert "Content-Security-Policy" in text
    assert any("onerror=alert(1)" in page.read_text() for page in pages)  # as text
    before = tree(out)
    export_project(lake, out)
    assert {name for name, raw in tree(out).items() if before.get(name) != raw and not name.endswith(".html")} == set()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".gx-")] == []


def test_a_folder_with_something_else_is_left_alone(site, tmp_path):
    """Only an export is replaced."""
    site.bring(step_rows(3))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match="not an export"):
        export_project(site.lake, tmp_path / "mine")
    assert tree(tmp_path / "mine") == {"thesis.txt": b"mine"}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<SCRIPT>fetch('//x')</SCRIPT >",
        '<link rel="stylesheet" href="https://cdn.example/x.css">',
        "<img alt=a src=//cdn.example/x.png>",
        "<style>@import 'https://x/y.css'; a { background: url( \"https://x/y.png\" ) }</style>",
        '<button onclick="go()">go</button>',
        "<img src=x onerror=go()>",
    ],
)
def test_what_would_load_is_gone(text):
    """Whatever its spelling."""
    page = local(f"<html><head><title>a</title></head><body>{text}</body></html>")
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    assert "//x" not in page.replace("http-equiv", "")
    assert "cdn.example" not in page


@pytest.mark.slow
def test_the_command_says_what_it_wrote(checked, tmp_path, monkeypatch):
    """Text for people, JSON for machines."""
    lake, _ = checked
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    done = CliRunner().invoke(quality, ["export", "--out", str(tmp_path / "gx"), "--table", "steps", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert (told["suites"], told["results"]) == (1, 1)
