"""The table ``backups``, the stages that fill it, and who says that a backup is overdue or failed."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from governed import Site
from retaining import POLICIES, bring_days

from ranklake.cli import run
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.flows.pages import page
from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.document import packaged_objectives
from ranklake.insight.slo.evaluation import evaluate
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.store import Store
from ranklake.lake.tables.read import read
from ranklake.pipeline.backups import BackupsError, backup_once, refuse_failed_backups
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import BACKUP, DRILL
from ranklake.retention.backup.place import numbers_of
from ranklake.retention.report.facts import governance


@pytest.fixture
def place(tmp_path):
    """Give the folder of its backups."""
    return tmp_path / "backups"


@pytest.fixture
def site(tmp_path, place, monkeypatch):
    """Give a lake with steps, and a configuration that names where it is backed up to."""
    site = Site(tmp_path)
    bring_days(site, (3, 2))
    configure(tmp_path, site, [place])
    monkeypatch.chdir(tmp_path)
    return site


def configure(folder, site, places):
    """Write the configuration."""
    texts = json.dumps([str(place) for place in places])
    (folder / "ranklake.toml").write_text(f'[lake]\nuri = "{site.lake.uri}"\n[backup]\nto = {texts}\n')


def context_of(site):
    """Return the context of the configuration."""
    return Context.of(load_config(site.folder / "ranklake.toml"))


def rows(site):
    """Return the table, in order."""
    return sorted(read(site.lake.tables, contract("backups")).to_pylist(), key=lambda row: row["ts"])


def age(place, hours):
    """Make a place's newest manifest so many hours older, by the store's clock."""
    path = max((place / "backups").glob("*.json"))
    then = datetime.now(UTC).timestamp() - hours * 3600
    os.utime(path, (then, then))


def lose(place):
    """Make a place one that cannot be used, as if its region was away."""
    (place / "ranklake-backup.json").write_text("{}")


def test_a_backup_and_a_drill_are_rows_with_rpo_and_rto(site, place):
    """What the table holds is what the commands found; the first backup has no age to tell."""
    assert run(["backup"]) == 0
    assert run(["backup"]) == 0
    assert run(["drill", str(place)]) == 0
    first, second, drilled = rows(site)
    assert [row["kind"] for row in rows(site)] == ["backup", "backup", "drill"]
    assert {row["outcome"] for row in rows(site)} == {"ok"}
    assert (first["rpo_s"], first["rto_s"], first["backup"]) == (None, None, 1)
    assert second["rpo_s"] == pytest.approx((second["ts"] - first["as_of_ts"]).total_seconds())
    assert first["copied_bytes"] > second["copied_bytes"] > 0
    assert (drilled["backup"], drilled["as_of_ts"], drilled["copied_bytes"]) == (2, second["as_of_ts"], None)
    measured = json.loads(next((place / "drills").glob("*.json")).read_text())
    assert (drilled["rpo_s"], drilled["rto_s"]) == (measured["rpo_s"], measured["rto_s"])
    assert drilled["rows"] == measured["rows"]


def test_while_a_region_is_away_the_age_grows_and_the_other_place_is_served(site, place, tmp_path):
    """A failure is a row with its reason; the SLO, the page of governance and the flow's outcome tell it."""
    other = tmp_path / "other"
    configure(tmp_path, site, [place, other])
    assert run(["backup"]) == 0
    lose(place)
    age(other, 30)
    age(place, 30)
    done = backup_once(context_of(site))
    assert [item["place"] for item in done["places"]] == [str(other)]
    assert [(item["place"], item["reason"]) for item in done["failed"]] == [
        (str(place), "ranklake-backup.json cannot be read")
    ]
    with pytest.raises(BackupsError, match=r"cannot be read"):
        refuse_failed_backups(done)
    failure = next(row for row in rows(site) if row["outcome"] == "failed")
    first = rows(site)[0]
    assert failure["rpo_s"] == pytest.approx((failure["ts"] - first["as_of_ts"]).total_seconds())
    assert (failure["reason"], failure["backup"]) == ("ranklake-backup.json cannot be read", None)
    titles = [need.title for need in governance(site.lake, POLICIES, datetime.now(UTC).date()).needs]
    assert titles[0] == f"The last backup failed: {place}"
    assert f"The last backup failed: {other}" not in titles


def test_every_place_is_tried_whatever_comes_of_those_before(site, place, tmp_path, capsys):
    """Out of reach, or no place at all: the others are served and listed, and each that failed is a line."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_text("x")
    configure(tmp_path, site, ["s4://nob/x", other, place])
    assert run(["backup"]) == 2
    assert numbers_of(Store.at(str(place))) == [1]
    captured = capsys.readouterr()
    assert captured.out.startswith("backup 1: ")
    first, second = captured.err.splitlines()
    assert first.startswith("ranklake: s4://nob/x: no place for backups: no store is reached by s4:")
    assert second.startswith(f"ranklake: {other}: the place is not empty, and holds no backups")
    assert run(["backup", "--list", "--json"]) == 2
    captured = capsys.readouterr()
    assert [item["uri"] for item in json.loads(captured.out)] == [str(place)]
    assert [line.split(": ")[1] for line in captured.err.splitlines()] == ["s4://nob/x", str(other)]
    assert sorted((row["place"], row["outcome"]) for row in rows(site)) == [
        (str(place), "ok"),
        (str(other), "failed"),
        ("s4://nob/x", "failed"),
    ]


def test_a_mistyped_uri_leaves_no_row(site, tmp_path):
    """A place that is not configured, and that no backup ever reached, is nobody's place of backups."""
    (tmp_path / "file").write_text("x")
    assert run(["backup", "file"]) == 2
    assert rows(site) == []
    assert run(["backup", "elsewhere"]) == 0
    lose(tmp_path / "elsewhere")
    assert run(["backup", "elsewhere"]) == 2
    assert [row["outcome"] for row in rows(site)] == ["ok", "failed"]


def test_the_stage_backs_up_when_it_is_due_alone(site, place):
    """Scheduled each hour, it copies nothing before ``every_h`` has passed; a drill of each place follows a backup."""
    context = context_of(site)
    assert [item["backup"] for item in BACKUP.work(context)["places"]] == [1]
    age(place, 23)
    assert backup_once(context) == {"places": [], "failed": []}
    age(place, 24)
    assert [item["backup"] for item in backup_once(context)["places"]] == [2]
    assert numbers_of(Store.at(str(place))) == [1, 2]
    done = DRILL.outcome(DRILL.work(context))
    (measured,) = done["places"]
    assert headline("drill", done) == ["1 place done"]
    assert "rto_s" in page("drill", done)
    assert measured["backup"] == 2
    assert measured["rto_s"] > 0
    assert [item["outcome"] for item in rows(site)] == ["ok", "ok", "ok"]


def test_objectives_are_judged_by_what_was_tried(site, place):
    """Backups that found an old one, and drills that failed, use up the budget."""
    assert run(["backup"]) == 0
    assert run(["backup"]) == 0
    assert run(["drill", str(place)]) == 0
    path = next(file for file in (place / "objects").rglob("*") if file.stat().st_size > 5000)
    path.write_bytes(path.read_bytes()[::-1])
    assert run(["drill", str(place)]) == 2
    assert [row["outcome"] for row in rows(site)] == ["ok", "ok", "ok", "failed"]
    assert "differ from their digest" in rows(site)[-1]["reason"]
    ask, now = asking(site.lake), datetime.now(UTC)
    (aged,) = evaluate(ask, packaged_objectives()["backup-age"], now)
    assert (aged.subject, aged.good_count, aged.total_count) == (str(place), 1, 1)
    (drilled,) = evaluate(ask, packaged_objectives()["restore-drills"], now)
    assert (drilled.good_count, drilled.total_count, drilled.status) == (1, 2, "missed")


def test_doctor_says_what_is_overdue_lost_or_never_tried(site, place, tmp_path, capsys):
    """Nothing configured, no backup yet, never drilled, sound, overdue, another lake's, out of reach."""

    def look():
        run(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return [(item["state"], item["what"]) for item in found if item["check"] == "backup"]

    configure(tmp_path, site, [])
    ((state, text),) = look()
    assert (state, text) == ("skipped", "nothing is backed up: name a place as to under [backup]")
    configure(tmp_path, site, [place])
    assert look() == [("failed", f"{place}: no backups are there")]
    assert run(["backup"]) == 0
    capsys.readouterr()
    assert [state for state, _ in look()] == ["ok", "warning"]
    assert run(["drill", str(place)]) == 0
    capsys.readouterr()
    assert [state for state, _ in look()] == ["ok", "ok"]
    age(place, 49)
    assert look()[0] == ("warning", f"overdue: {place}: the newest backup is 49.0 h old")
    age(place, 47)
    assert look()[0] == ("ok", f"{place}: the newest backup is 47.0 h old")
    (place / "ranklake-backup.json").write_text('{"format": 1, "lake": "another"}')
    assert look() == [("failed", f"{place}: the backups are of another lake")]


def test_a_lake_that_may_only_be_read_is_backed_up_all_the_same(site, place, monkeypatch, caplog):
    """The row that cannot be written is named in the log, and the backup is there."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("ranklake.retention.backup.history.append_own", refuse)
    assert run(["backup"]) == 0
    assert numbers_of(Store.at(str(place))) == [1]
    assert "no row in the table backups: PermissionError" in caplog.text


def test_a_drill_without_the_lake_is_kept_beside_the_backups(site, place, tmp_path):
    """Where the lake is lost, or another one is configured, nothing is written but beside the backups."""
    assert run(["backup"]) == 0
    Path(site.lake.uri).rename(tmp_path / "away")
    assert run(["drill", str(place)]) == 0
    assert not Path(site.lake.uri).exists()
    assert len(list((place / "drills").glob("*.json"))) == 1
