"""What an overlay adds to recording: rows of own tables, and numbers in the rows of steps."""

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from overlays import documented, written
from recorded import read_segment

from ranklake import capture
from ranklake.capture.recover import recover

EVERY = """\
table: every
version: 1
kind: fact
owner: me
steward: me
summary: "A column of each type."
grain: [incarnation, segment, slot]
envelope: true
partition: [date]
sort: [ts]
retention: raw
columns:
  - {id: 20, name: words, type: string, class: operational, doc: x}
  - {id: 21, name: facts, type: string, format: json, class: operational, doc: x}
  - {id: 22, name: yes, type: bool, class: operational, doc: x}
  - {id: 23, name: small, type: int32, unit: "1", class: operational, doc: x}
  - {id: 24, name: large, type: int64, unit: "1", class: operational, doc: x}
  - {id: 25, name: real, type: float64, unit: "1", class: operational, doc: x}
  - {id: 26, name: money, type: decimal, unit: "1", class: operational, doc: x}
  - {id: 27, name: at, type: timestamp, class: operational, doc: x}
  - {id: 28, name: day, type: date, class: operational, doc: x}
  - {id: 29, name: counts, type: int64_list, class: operational, doc: x}
"""
STEPS = """\
extends: steps
columns:
  - {id: 10000, name: kl, type: float32, unit: "1", class: operational, doc: x}
  - {id: 10001, name: hits, type: int64, unit: "{hit}", class: operational, doc: x}
  - {id: 10002, name: warm, type: bool, class: operational, doc: x}
  - {id: 10003, name: note, type: string, class: operational, doc: x}
"""


def rows(place, table):
    """Return a table's rows in the spool, without the envelope."""
    found = []
    for path in sorted((place.spool / "segments").glob(f"*/{table}/*.parquet")):
        found += read_segment(path.read_bytes())[1].to_pylist()
    return found


def test_values_of_every_type(place, tmp_path):
    """They are in the segment as they were given; what is not given is NULL."""
    run = place.start(contracts_overlay=str(written(tmp_path / "own", {"every.yaml": EVERY})))
    when = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    given = {
        "words": "a", "facts": {"b": [1]}, "yes": True, "small": 3, "large": 1 << 40, "real": 0.5,
        "money": Decimal("1.25"), "at": when, "day": date(2026, 3, 1), "counts": [1, 2],
    }  # fmt: skip
    run.record("every", given)
    run.record("every", small=4)
    run.record("every", {"counts": []})
    run.close()
    first, second, third = rows(place, "every")
    assert {name: first[name] for name in given} == given | {"facts": '{"b":[1]}'}
    assert (second["small"], second["words"], third["counts"]) == (4, None, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("small", 1 << 31), ("small", 0.5), ("large", "many"), ("real", float("nan")), ("yes", 2),
        ("at", datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone on purpose
        ("day", "2026-03-01"), ("counts", 3), ("money", "much"), ("real", object()),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_a_gap(place, tmp_path, name, value):
    """The row is counted, and the next one recorded."""
    run = place.start(contracts_overlay=str(written(tmp_path / "own", {"every.yaml": EVERY})))
    run.record("every", {name: value})
    run.record("every", small=1)
    assert run.gaps() == {"every": {"bad value": 1}}
    run.close()
    assert [row["small"] for row in rows(place, "every")] == [1]


@pytest.mark.slow
def test_own_numbers_are_in_the_steps_row(place, tmp_path, warnings_told):
    """Floats, whole numbers and booleans, however they are logged; NaN is NULL and said; text is told at the start."""
    run = place.start(contracts_overlay=str(written(tmp_path / "own", {"steps.yaml": STEPS})))
    with run.step(0, loss=1.0, kl=0.5, hits=3, warm=True):
        pass
    with run.step(1):
        run.log(kl=float("nan"), hits=0.5, lr=0.1)
        run.log({"warm": False, "eval/loss": 2.0})
    with run.step(2):
        run.log(kl=1.0)
        run.log(kl=2.0)
    run.log(kl=3.0)
    with pytest.raises(RuntimeError), run.step(3, kl=4.0):
        raise RuntimeError("no step")
    run.close()
    found = rows(place, "steps")
    assert [(row["kl"], row["hits"], row["warm"]) for row in found] == [
        (0.5, 3, True),
        (None, None, False),
        (2.0, None, None),
    ]
    assert [row.get("non_finite") for row in found] == [None, "kl:nan", None]
    values = Counter((row["metric"], row["value"]) for row in rows(place, "scalars"))
    assert values == {("eval/loss", 2.0): 1, ("kl", 1.0): 1, ("kl", 3.0): 1, ("kl", 4.0): 1}
    assert run.gaps()["scalars"] == {"bad value": 1}
    assert "column 'note' of steps is string: run.step takes numbers" in warnings_told.text


def test_more_numbers_than_a_slot_holds_become_metrics(place, tmp_path, warnings_told):
    """The first 32 are columns; the others are recorded all the same, and that is told."""
    column = "  - {{id: {id}, name: n{at}, type: float64, unit: '1', class: operational, doc: x}}\n"
    text = "extends: steps\ncolumns:\n" + "".join(column.format(id=10000 + at, at=at) for at in range(40))
    run = place.start(contracts_overlay=str(written(tmp_path / "own", {"steps.yaml": text})))
    with run.step(0, **{f"n{at}": at for at in range(40)}):
        pass
    run.close()
    (row,) = rows(place, "steps")
    assert [row.get(f"n{at}") for at in (0, 31, 32)] == [0.0, 31.0, None]
    assert {one["metric"] for one in rows(place, "scalars")} == {f"n{at}" for at in range(32, 40)}
    assert "beyond the 32" in warnings_told.text


def test_a_renamed_column_is_named_to_whoever_logs_its_former_name(place, tmp_path, warnings_told):
    """Through several migrations, of steps and of own tables; the values of steps become a metric, as any others."""
    renames = {"0001_a": ("steps", 1, "kl0", "kl_ref"), "0002_b": ("steps", 2, "kl_ref", "kl")}
    renames["0003_c"] = ("every", 1, "number", "small")
    migrations = {
        f"migrations/{name}.yaml": f"{{table: {table}, from: {at}, steps: [{{rename: {old}, to: {new}}}]}}"
        for name, (table, at, old, new) in renames.items()
    }
    own = written(tmp_path / "own", {"steps.yaml": STEPS, "every.yaml": EVERY, **migrations})
    run = place.start(contracts_overlay=str(own))
    with run.step(0, kl0=1.0, kl=0.5):
        run.record("every", number=1, small=2)
    run.close()
    assert "column 'kl0' of steps is called 'kl' now: log it by that name" in warnings_told.text
    assert "table 'every' has no column 'number'; its name is 'small' now" in warnings_told.text
    assert rows(place, "steps")[0]["kl"] == 0.5
    assert {row["metric"]: row["value"] for row in rows(place, "scalars")}["kl0"] == 1.0


@pytest.mark.parametrize("wrong", ["missing folder", "no contract", "a name of ours"])
def test_training_is_not_hurt_by_a_wrong_overlay(place, tmp_path, warnings_told, wrong):
    """It is told once, and all that is ours is recorded; rows of own tables are gaps."""
    text = {"no contract": "table: [", "a name of ours": EVERY.replace("every", "steps")}.get(wrong)
    folder = tmp_path / "own"
    if text is not None:
        written(folder, {"steps.yaml": text})
    run = place.start(contracts_overlay=str(folder))
    with run.step(0, loss=1.0, kl=2.0):
        pass
    for _ in range(3):
        run.record("every", small=1)
    run.close()
    assert [row["loss"] for row in rows(place, "steps")] == [1.0]
    assert run.gaps()["events"] == {"no contract has the table": 3}
    assert warnings_told.text.count("are not recorded here") == 1
    assert warnings_told.text.count("no contract has the table") == 1


def test_without_an_overlay_nothing_is_different(place):
    """Slots are those of ever, and `run.record` is counted; so is what a run is given that was never started."""
    run = place.start()
    assert run.recording.recorder.slots["steps"].layout.lane == "steps"
    run.record("rollouts", reward=1.0)
    run.record()
    run.record(None, 3)
    run.close()
    assert run.gaps()["events"] == {"no contract has the table": 3}
    capture.start(enabled=False).record("rollouts", reward=1.0)


def test_a_dead_process_is_recovered_where_nobody_has_the_folder(place, tmp_path):
    """Contracts are in the stream: SIGKILL in the middle, the folder gone, and each row and number is there."""
    folder = documented(tmp_path / "own")
    script = f"""
import os, signal
from ranklake import capture
places = {{"spool": {str(place.spool)!r}, "local_dir": {str(place.local)!r}, "contracts_overlay": {str(folder)!r}}}
run = capture.start(run="run", **places)
for n in range(3):
    with run.step(n, kl=0.5 * n):
        run.record("rollouts", reward=0.25 * n, annotator="ann")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], env=dict(os.environ), check=False).returncode == -9
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    recover(place.local, str(place.spool))
    assert [row["kl"] for row in rows(place, "steps")] == [0.0, 0.5, 1.0]
    assert [(row["step"], row["reward"]) for row in rows(place, "rollouts")] == [(0, 0.0), (1, 0.25), (2, 0.5)]


@pytest.mark.parametrize("writes", ["mmap", "records"])
@pytest.mark.parametrize("shards", ["never", "always"])
def test_however_rows_are_written(place, tmp_path, writes, shards):
    """Own numbers are there in mapped files and in those written by record, with a file for each thread and without."""
    folder = written(tmp_path / "own", {"steps.yaml": STEPS})
    run = place.start(contracts_overlay=str(folder), spool_writes=writes, shards=shards)
    with run.step(0, kl=0.5):
        pass
    run.close()
    assert [row["kl"] for row in rows(place, "steps")] == [0.5]
