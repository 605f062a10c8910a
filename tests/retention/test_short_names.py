"""Accounts of less than six characters: erased where they are all that a column holds, and nowhere else."""

import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archiving import archived, policies_in
from governed import any_rows
from keyed import CLEAR, config_of, erased, users
from subjects import ADA, GRACE

from ranklake.cli import run
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.retention.erasure.needles import WORDS, NeedleError, make_needles
from ranklake.retention.erasure.subject import ColumnError, subject_of
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.subjects.store import KeyStore


@pytest.mark.slow
def test_a_short_account_is_erased_where_it_is_all_of_a_column(site, tmp_path):
    """Rows, rollups, rejects, archives, segments, statistics; a longer name, and words of logs, stay as they are."""
    users(site, "bob", "bobby", GRACE)
    users(site, " BOB ", first=4)
    lines = ["bob was here", "bob"]
    site.bring(any_rows("logs", 2, run="exp-2", incarnation=90, message=lines), "logs")
    bad = any_rows("runs", 1, run="exp-9", incarnation=91, user=["bob"])
    at = bad.schema.get_field_index("attempt")
    site.bring(bad.set_column(at, bad.schema.field(at), pa.array([-1], pa.int32())), "runs")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/runs.json").write_text(json.dumps([{"user": "bob"}, {"user": "bobby"}]))
    run_rollups(site.lake, ["attempt_facts"])
    cold = "cold: {where: {table: runs, run: exp-4}, archive: {after_days: 1, to: TO}, reason: rarely read}"
    archived(site, policies_in(tmp_path, cold), date(2026, 3, 10))
    done = erased(site, "bob", columns=["user"], folders=[tmp_path / "pages"])
    found = done.certificate.facts
    assert done.certificate.is_clean
    assert found["search"]["matched"].startswith("shorter values, as all that a column user holds")
    (whose,) = [one["about"] for one in found["items"] if one["place"] == "subject"]
    assert whose.startswith("person: shorter values")
    assert sorted(row["user"] for row in site.rows("runs")) == ["bobby", GRACE]
    assert {row["user"] for row in site.rows("attempt_facts")} <= {"bobby", GRACE}
    assert [row["message"] for row in site.rows("logs")] == lines
    assert site.rows("rejects") == []
    assert [one["user"] for one in json.loads((tmp_path / "pages/runs.json").read_text())][1] == "bobby"
    for path in tmp_path.rglob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        whole = rows["user"].to_pylist() if "user" in rows.column_names else []
        assert "bob" not in {str(one).strip().lower() for one in whole}, path
    for path in (one for one in tmp_path.rglob("*.json") if one.is_file()):
        assert '"user":"bob"' not in path.read_text().replace("\\", "").replace(" ", ""), path
    site.balances()


@pytest.mark.slow
def test_the_key_of_a_short_account_is_forgotten_by_name(sealing, tmp_path, monkeypatch, capsys):
    """By the commands, which name the columns in each step; the certificate is about nobody else."""
    users(sealing, "al", GRACE)
    monkeypatch.setenv("RANKLAKE_CONFIG", config_of(sealing, tmp_path))
    monkeypatch.setenv("RANKLAKE_SPOOL", str(sealing.spool))
    own = ["al", "--column", "user"]
    assert run(["erase", "plan", "al", "--by", "Petra"]) != 0
    assert "--column user" in capsys.readouterr().err
    assert run(["erase", "plan", *own, "--by", "Petra"]) == 0
    (name,) = ERASURES.register(sealing.lake)
    assert run(["erase", "approve", name, "--by", "Anna"]) == 0
    assert run(["erase", "apply", name, *own, "--by", "Otto"]) == 0
    assert query(sealing.lake, CLEAR)["who"].to_pylist() == [None, GRACE]
    assert KeyStore(sealing.lake).find("al") is None
    assert run(["erase", "certificate", "show", name, "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert run(["erase", "certificate", "verify", str(path), *own]) == 0
    assert run(["erase", "certificate", "verify", str(path), "bo", "--column", "user"]) == 1


@pytest.mark.slow
def test_the_commands_look_into_what_others_sealed(sealing, tmp_path, monkeypatch):
    """As the functions do: a command line of Grace's that names Ada goes."""
    line = any_rows("runs", 1, run="exp-5", incarnation=5, user=[GRACE], command_line=[f"train --for {ADA}"])
    sealing.bring(line, "runs")
    users(sealing, ADA, first=7)
    monkeypatch.setenv("RANKLAKE_CONFIG", config_of(sealing, tmp_path))
    monkeypatch.setenv("RANKLAKE_SPOOL", str(sealing.spool))
    assert run(["erase", "plan", ADA, "--by", "Petra"]) == 0
    (name,) = ERASURES.register(sealing.lake)
    assert run(["erase", "approve", name, "--by", "Anna"]) == 0
    assert run(["erase", "apply", name, ADA, "--by", "Otto"]) == 0
    assert query(sealing.lake, CLEAR).to_pylist() == [{"run": "exp-7", "who": None, "line": None}]


@pytest.mark.parametrize(("column", "why"), [("usr", "user"), ("message", "tells of people"), ("attempt", "people")])
def test_columns_that_do_not_tell_of_people_everywhere_are_refused(site, column, why):
    """Misspelt ones, such as are called alike in a table about machines, and numbers."""
    with pytest.raises(ColumnError, match=why):
        subject_of(site.lake, ["bob"], columns=[column])


def test_without_a_column_a_short_value_is_refused(site):
    """With the remedy; the columns are part of whom an erasure is about."""
    with pytest.raises(NeedleError, match="--column user"):
        subject_of(site.lake, ["bob"])
    one, two = (subject_of(site.lake, ["bob"], columns=some) for some in (["user"], ["user", "author"]))
    assert one.sha256 != two.sha256
    assert subject_of(site.lake, [ADA], columns=["user"]).sha256 == subject_of(site.lake, [ADA]).sha256


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        ('{"user": "bob"}', 1),
        ('{"user":" BOB "}', 1),
        ('{"stats":"{\\"maxValues\\":{\\"user\\":\\"bob\\"}}"}', 1),
        ('{"user": "bobby", "x": "bob"}', 0),
        ('{"superuser": "bob"}', 0),
        ("user bob", 0),
    ],
)
def test_what_counts_in_json(raw, count):
    """The value of a key that is called like the column, escaped or not; no part of a longer one."""
    needles = make_needles(["bob"], word_letters=WORDS, columns=["user"])
    assert needles.count(raw.encode()) == count
    assert needles.count(needles.replace(raw, "x").encode()) == 0
