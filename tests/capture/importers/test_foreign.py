"""Files of other formats: named for what they are, with what to do, and no hindrance to the files beside them."""

import json

import pytest
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.cli import run

MLPERF = ':::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n'
SCALARS = (
    "table: scalars\ntime: {column: step, format: epoch_s}\ncolumns: {metric: {value: l}, step: step, value: loss}\n"
)
MICRO = "[2026-01-01 00:00:00,1] [INFO] [x] [Rank 0] rank=0 time (ms) | forward_microstep: 4.4 | step_microstep: 0.1\n"


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("4_1|4|a|COMPLETED|0:0|2026-01-01T00:00:00\n", "output of sacct without its header", "without --noheader"),
        ("*****\nsdiag output at Wed Apr 12 11:04:01 2026\n", "output of sdiag", "sacct --parsable2"),
        ("  JOBID PARTITION NAME USER ST TIME NODES\n  1 gpu a b R 1:00 1\n", "output of squeue", "sacct --parsable2"),
        ("15,RUNNING\n16,PENDING\n", "output of squeue", "sacct --parsable2"),
        ("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n", "output of sinfo", "sacct --parsable2"),
        ("node1,idle\nnode2,down*\n", "output of sinfo", "sacct --parsable2"),
        (MICRO, "DeepSpeed's breakdown of micro-steps", "it has no step numbers"),
        ('{\n  "a": [\n  1]\n}\n', "a JSON document", "jq -c"),
    ],
)
@pytest.mark.parametrize("asked", ["sacct", "kineto", "megatron"])
def test_what_a_file_is(tmp_path, text, name, hint, asked):
    """A refusal names the file's own format and a way to import what is in it, whichever format was asked for."""
    (tmp_path / "x").write_text(text)
    with pytest.raises(SourceError) as refused:
        import_files(asked, [str(tmp_path / "x")], str(tmp_path / "spool"))
    told = str(refused.value)
    assert told.startswith(f"x: {name}")
    assert f"import {asked} does not read" in told
    assert hint in told
    assert "\n" not in told


def test_a_foreign_file_in_a_glob(tmp_path, capsys):
    """The files beside it are imported; it is named with its reason, and the command exits 1."""
    (tmp_path / "a.log").write_text(MLPERF)
    (tmp_path / "b.log").write_text("node1,idle\n")
    (tmp_path / "c.log").write_text("words\n")
    assert run(["import", "megatron", f"{tmp_path}/[bc].log", "--spool", str(tmp_path / "spool")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["import", "mlperf", f"{tmp_path}/*.log", "--spool", str(tmp_path / "spool")]) == 1
    said = capsys.readouterr().out
    assert "mlperf: 3 files into a-" in said
    assert "nothing of b.log was converted: b.log: output of sinfo" in said
    assert "nothing of c.log was converted" in said


def test_a_table_without_the_mappings_columns_in_a_glob(lake, spool, tmp_path):
    """So is a table of other columns."""
    (tmp_path / "a.csv").write_text("step,loss\n1,2.5\n")
    (tmp_path / "b.csv").write_text("epoch,accuracy\n1,2.5\n")
    (tmp_path / "m.yaml").write_text(SCALARS)
    done = imported(lake, spool, "table", tmp_path / "*.csv", mapping=str(tmp_path / "m.yaml"))
    assert done.rows["scalars"] == 1
    assert list(done.nothing) == ["b.csv"]
    assert "no column 'step' in b.csv" in done.nothing["b.csv"]


def test_the_history_of_a_trainer_state(lake, spool, tmp_path):
    """Entries of log_history are rows; those of evaluations have no loss of training and are left out."""
    history = [{"step": 10, "loss": 2.5}, {"step": 10, "eval_loss": 3.0}, {"step": 20, "loss": float("nan")}]
    for number, indent in enumerate((None, 2)):
        (tmp_path / f"{number}.json").write_text(json.dumps({"epoch": 1.0, "log_history": history}, indent=indent))
    (tmp_path / "m.yaml").write_text(SCALARS)
    done = imported(lake, spool, "table", tmp_path / "*.json", mapping=str(tmp_path / "m.yaml"))
    assert (done.rows["scalars"], done.left_out, done.refused) == (4, 2, {})
    rows = ask(lake, "SELECT step, value, value_flag FROM scalars ORDER BY run, step")
    assert [tuple(row.values()) for row in rows] == [(10, 2.5, None), (20, None, "nan")] * 2


def test_a_document_that_is_no_table(tmp_path):
    """One JSON document is refused once, not line by line."""
    (tmp_path / "m.yaml").write_text(SCALARS)
    named = {"a": {"b": 1}, "my rows": [{"step": 1}]}
    for content, hint in ((named, "jq -c '.[\"my rows\"][]' FILE"), ({"a": {}}, "one object per line")):
        (tmp_path / "x.json").write_text(json.dumps(content, indent=2))
        with pytest.raises(SourceError, match="is one JSON document, not one object per line") as refused:
            import_files("table", [str(tmp_path / "x.json")], str(tmp_path / "spool"), mapping=str(tmp_path / "m.yaml"))
        assert hint in str(refused.value)


def test_a_damaged_first_line_is_one_reject(tmp_path):
    """Lines behind it are read."""
    (tmp_path / "m.yaml").write_text(SCALARS)
    (tmp_path / "x.jsonl").write_text('{"step": 1,\n{"step": 2, "loss": 1}\n{"step": 3, "loss": 1}\n')
    done = import_files("table", [str(tmp_path / "x.jsonl")], str(tmp_path / "spool"), mapping=str(tmp_path / "m.yaml"))
    assert (done.rows["scalars"], done.refused) == (2, {"not a JSON object": 1})
