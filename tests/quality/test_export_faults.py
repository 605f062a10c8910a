"""Exports of what Great Expectations refuses, and of a folder that something else happens to."""

import json

import pytest
from segments import step_rows

from ranklake.lake.store.lake_config import QualitySection
from ranklake.quality.check import run_checks
from ranklake.quality.export.project import MARK, ExportError, _build, _swap, export_project

UUID = "12345678-1234-4234-8234-123456789abc"


@pytest.mark.slow
def test_one_that_is_refused_is_left_out_and_what_users_wrote_is_kept(site, tmp_path):
    """It is counted and named in the suite's notes; a UUID in a set of values stays."""
    site.bring(step_rows(5))
    folder = tmp_path / "suites"
    folder.mkdir()
    raw = [
        {"type": "expect_column_values_to_be_between", "kwargs": {"min_value": 0}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "run", "value_set": [UUID]}},
    ]
    (folder / "mine.json").write_text(json.dumps({"name": "steps.mine", "expectations": raw}))
    lake = site.lake.configured(quality=QualitySection(str(folder)))
    run_checks(lake)
    done = export_project(lake, tmp_path / "gx-project", ["steps"])
    text = (tmp_path / "gx-project" / "gx" / "expectations" / "steps.json").read_text()
    written = json.loads(text)
    assert len(written["expectations"]) == done.expectations
    (note,) = [one for one in written["meta"]["notes"]["content"] if one.startswith("not expressed")]
    names = note.rpartition("results: ")[2].split(", ")
    assert len(names) == done.unexpressed
    assert "suite:steps.mine:expect_column_values_to_be_between" in names
    assert text.count(UUID) >= 1
    pages = (tmp_path / "gx-project" / "gx" / "uncommitted" / "data_docs" / "local_site").rglob("steps-*.html")
    assert any("suite:steps.mine:expect_column_values_to_be_between" in page.read_text() for page in pages)


def folder_of(path, **files):
    """Make a folder with files of these texts."""
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_a_folder_that_became_something_else_is_left_alone(tmp_path):
    """Whatever came while the project was built stays."""
    building, out = folder_of(tmp_path / "building"), folder_of(tmp_path / "out", thesis="mine")
    with pytest.raises(ExportError, match="not an export"):
        _swap(building, out)
    assert [path.name for path in out.iterdir()] == ["thesis"]


def test_an_earlier_export_comes_back_where_the_new_one_cannot_come(tmp_path):
    """The second rename fails; the folder is as it was."""
    out = folder_of(tmp_path / "out", **{MARK: "{}"})
    with pytest.raises(FileNotFoundError):
        _swap(tmp_path / "nowhere", out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == [MARK]


def test_a_build_that_takes_too_long_is_an_error(tmp_path):
    """It says how long it was given."""
    with pytest.raises(ExportError, match=r"took more than 0\.01 s"):
        _build(folder_of(tmp_path / "building"), [], tmp_path / "out", limit_s=0.01)
