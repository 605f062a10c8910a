"""Small lies and slips: what cannot be, in logs, options and markers, is told in one line, never by a traceback."""

import json
import shutil
from pathlib import Path

import pytest
from governed import Site
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import DamagedLogError
from ranklake.lake.tables.tables import delta_table

LONG = "9" * 400
COMMANDS = [["status"], ["sql", "SELECT count(*) FROM steps"], ["rollup"], ["check"], ["upkeep"], ["catalog", "sizes"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a lake with a few rows."""
    site = Site(tmp_path_factory.mktemp("made"))
    site.bring(step_rows(50))
    return Path(site.lake.uri)


@pytest.fixture(scope="module")
def outside(made):
    """Put a sound data file beside the lake, under a name that a log entry could lead to."""
    (file,) = (made / "tables" / "steps").glob("date=*/*.parquet")
    return shutil.copy(file, made.parent / "outside.parquet")


def lied_to(made, place, change):
    """Copy the lake and change what its log says of the file of steps."""
    lake = shutil.copytree(made, place / "lake")
    log = lake / "tables" / "steps" / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            change(action["add"], stats)
            action["add"]["stats"] = json.dumps(stats)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(lake)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda add, stats: stats.update(numRecords=-50), "the num_records of a file cannot be"),
        (lambda add, stats: stats.update(numRecords=2**63 - 1), "the num_records of a file cannot be"),
        (lambda add, stats: add.update(size=-5), "the size_bytes of a file cannot be"),
        (lambda add, stats: add.update(partitionValues={}), "table steps cannot be opened"),
        (lambda add, stats: add.update(partitionValues={"date": "x"}), "table steps cannot be opened"),
    ],
)
def test_a_log_that_says_what_cannot_be(made, tmp_path, capsys, change, why):
    """Counts below zero or beyond reason, and partitions without a date, are a damaged log for every command."""
    lake = lied_to(made, tmp_path, change)
    for command in COMMANDS:
        assert run([*command, "--lake", lake]) == 2, command
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("number", [2**63 - 1, -5])
def test_a_log_that_counts_beyond_reason(made, tmp_path, number):
    """A transaction number that leaves none for the next commit is a damaged log, told by who would commit."""
    lake = Lake.open(str(shutil.copytree(made, tmp_path / "lake")))
    log = Path(lake.path("tables", "steps", "_delta_log", f"{1:020}.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("txn", {}).update(version=number)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    with pytest.raises(DamagedLogError, match="the number of its last transaction cannot be"):
        number_of(delta_table(lake.store, "steps"))


@pytest.mark.parametrize(
    "path",
    [
        "../../../outside.parquet",
        "{day}/../../../../outside.parquet",
        "{outside}",
        "file://{outside}",
        "https://example.org/{name}",
        "{day}/..%2f..%2f..%2f../outside.parquet",
        "{day}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/outside.parquet",
        "{day}/../{day}/{name}",
        "date=2020-01-01/{name}",
        "{name}",
        "_delta_log/00000000000000000000.json",
        "{day}/a\nb.parquet",
        "",
    ],
)
def test_a_log_that_leads_out_of_its_table(made, outside, tmp_path, capsys, path):
    """A data file that does not lie in its date's folder is a damaged log for every command: nothing of it is read."""
    (there,) = (made / "tables" / "steps").glob("date=*/*.parquet")
    lake = tmp_path / "lake"
    shutil.copy(outside, tmp_path / "outside.parquet")
    forged = path.format(outside=tmp_path / "outside.parquet", day=there.parent.name, name=there.name)
    lied_to(made, tmp_path, lambda add, _: add.update(path=forged))
    for command in COMMANDS:
        assert run([*command, "--lake", str(lake)]) == 2, command
        told = capsys.readouterr().err.strip()
        assert "the path of a file leads out of its partition" in told
        assert "\n" not in told


def test_names_of_older_lakes_are_read_on(made, tmp_path, capsys):
    """Data files of names without a digest, or of other writers' names, are read as long as they lie in their dates."""
    for name in ("p0000000001-{hex}.parquet", "part-00000-{hex}-c000.snappy.parquet"):
        lake = tmp_path / name / "lake"
        new = f"{{day}}/{name.format(hex=32 * 'a')}"
        (there,) = (made / "tables" / "steps").glob("date=*/*.parquet")
        new = new.format(day=there.parent.name)
        lied_to(made, tmp_path / name, lambda add, _, new=new: add.update(path=new))
        steps = lake / "tables" / "steps"
        (steps / there.parent.name / there.name).rename(steps / new)
        assert run(["sql", "SELECT count(*) n FROM steps", "--format", "csv", "--lake", str(lake)]) == 0
        assert capsys.readouterr().out.split() == ["n", "50"]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (["--param", f"x={LONG}"], "larger than 64 bits hold"),
        (["--param", f"x:int={LONG}"], "larger than 64 bits hold"),
        (["--param", f"x:int={'9' * 5000}"], "larger than 64 bits hold"),
        (["--param", f"x:float={LONG}"], "larger than 64 bits hold"),
        (["--param", "x:timestamp=0001-01-01T00:00:00+14:00"], "larger than 64 bits hold"),
        (["--param", "x=1", "--as-of", "0001-01-01T00:00:00+14:00"], "before or after all times"),
        (["--param", "x=1", "--as-of", "9999-12-31T23:59:59-14:00"], "before or after all times"),
    ],
)
def test_values_beyond_what_can_be_held(made, capsys, option, why):
    """A value that no 64 bits hold is told, and never made into another."""
    assert run(["sql", "SELECT $x FROM steps", "--lake", str(made), *option]) == 2
    assert why in capsys.readouterr().err


def test_the_first_of_all_days_is_before_the_table(made, capsys):
    """Before its first commit a table is empty, however long before."""
    for moment in ("0001-01-01", "0001-01-01T00:00:00Z"):
        assert (
            run(["sql", "SELECT count(*) n FROM steps", "--as-of", moment, "--lake", str(made), "--format", "csv"]) == 0
        )
        assert capsys.readouterr().out.split() == ["n", "0"]


def test_files_that_nest_without_end(made, tmp_path, capsys):
    """A marker, a plan or a hint of brackets alone is damaged, or passed over where it is only a hint."""
    deep = "[" * 200_000
    lake = shutil.copytree(made, tmp_path / "lake")
    for hint in [*lake.glob("rounds/*.json"), lake / "tables" / "steps" / "_delta_log" / "_last_checkpoint"]:
        hint.write_text(deep)
    assert run(["upkeep", "--lake", str(lake)]) == 0
    (lake / "plans" / f"{2:010d}.json").write_text(deep)
    assert run(["upkeep", "--lake", str(lake)]) == 2
    (lake / "ranklake.json").write_text(deep)
    assert run(["status", "--lake", str(lake)]) == 2
    assert "ranklake.json is damaged" in capsys.readouterr().err


def test_a_page_of_html_in_place_of_a_data_file(made, tmp_path, capsys):
    """What a proxy put in place of a file is named by what reads it."""
    lake = shutil.copytree(made, tmp_path / "lake")
    (path,) = (lake / "tables" / "steps").glob("date=*/*.parquet")
    path.write_bytes(b"<html>Sign in</html>".ljust(path.stat().st_size))
    for command in (["catalog", "sizes", "steps"], ["catalog", "refresh"], ["rollup"], ["upkeep", "--scrub"]):
        assert run([*command, "--lake", str(lake)]) == 1, command
        assert path.name in capsys.readouterr().err
    assert run(["sql", "SELECT sum(loss) FROM steps", "--lake", str(lake)]) == 2
