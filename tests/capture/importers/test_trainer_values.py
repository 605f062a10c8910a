"""What trainers leave beside models: Lightning's CSV, Ultralytics' results, the state of Hugging Face's Trainer."""

import json
import os

import pytest
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

CHANGED_S = 1_700_000_000


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (CHANGED_S, CHANGED_S))


def scalars(lake):
    columns = "run, metric, step, value, value_flag, CAST(ts AS BIGINT) / 1000000 AS at"
    rows = ask(lake, f"SELECT {columns} FROM scalars ORDER BY run, metric, step")
    return [(row["run"], row["metric"], row["step"], row["value"] if row["value_flag"] is None else row["value_flag"],
             row["at"] - CHANGED_S) for row in rows]  # fmt: skip


def test_trainer_log(lake, spool, tmp_path):
    """LLaMA-Factory: values under the Trainer's names, at the time that the line's training had taken; days, too."""
    lines = [
        {"current_steps": 1, "total_steps": 9, "loss": 0.5, "lr": 1e-05, "epoch": 0.25, "percentage": 11.1,
         "elapsed_time": "0:01:03", "remaining_time": "3 days, 17:51:32"},
        {"current_steps": 2, "total_steps": 9, "eval_loss": 0.75, "epoch": 0.5, "elapsed_time": "1 day, 0:01:03"},
        {"percentage": 50.0},
    ]  # fmt: skip
    write(tmp_path / "saves" / "a" / "trainer_log.jsonl", "\n".join([*map(json.dumps, lines), "", '{"current_st']))
    done = imported(lake, spool, "trainer_log", tmp_path / "saves")
    assert (done.runs, done.refused) == (["a"], {"a line without current_steps": 2})
    assert scalars(lake) == [
        ("a", "eval/loss", 2, 0.75, 0), ("a", "train/epoch", 1, 0.25, -86_400), ("a", "train/epoch", 2, 0.5, 0),
        ("a", "train/learning_rate", 1, 1e-05, -86_400), ("a", "train/loss", 1, 0.5, -86_400),
    ]  # fmt: skip
    assert ask(lake, "SELECT config FROM runs") == [{"config": '{"total_steps":9}'}]


def test_dvclive(lake, spool, tmp_path):
    """A table a metric, named by its path, of new and old releases; what no table has is the summary; settings."""
    root = tmp_path / "exp" / "dvclive"
    write(root / "plots" / "metrics" / "lr" / "pg0.tsv", "step\tpg0\n0\t0.0\n1\t9.5e-07\n")
    write(root / "plots" / "metrics" / "loss.tsv", "timestamp\tstep\tloss\n1700000000000\t3\tnan\n1\tx\t1\n")
    write(root / "metrics.json", '{"lr": {"pg0": 9.5e-07}, "loss": 1, "test": {"acc": 0.5, "on": true}, "step": 3}')
    write(root / "params.yaml", "lr: 0.1\n")
    write(tmp_path / "other" / "metrics.json", '{"acc": 1}')
    done = imported(lake, spool, "dvclive", tmp_path)
    assert (done.runs, done.refused) == (["exp-dvclive"], {"step is not an integer": 1})
    assert list(done.nothing) == ["metrics.json"]
    assert scalars(lake) == [
        ("exp-dvclive", "loss", 3, "nan", 0), ("exp-dvclive", "lr/pg0", 0, 0.0, 0),
        ("exp-dvclive", "lr/pg0", 1, 9.5e-07, 0),
    ]  # fmt: skip
    assert ask(lake, "SELECT key, number FROM annotations") == [{"key": "test/acc", "number": 0.5}]
    assert ask(lake, "SELECT config FROM runs") == [{"config": '{"lr":0.1}'}]


def test_a_merge_that_was_not_resolved(spool, tmp_path):
    """Marks of a conflict in a results.csv, as one was found in public, are refused by line, and rows come."""
    text = "epoch,loss\n<<<<<<< HEAD\n1,2.5\n=======\n1,2.25\n>>>>>>> 1a2b\n\n"
    write(tmp_path / "train" / "results.csv", text)
    done = import_files("ultralytics", [str(tmp_path)], str(spool))
    assert (done.rows["scalars"], done.refused) == (2, {"epoch is not an integer": 3})


def test_lightning(lake, spool, tmp_path):
    """Each version is a run; a cell left empty is no value; hyperparameters are its config, without credentials."""
    root = tmp_path / "lightning_logs"
    write(root / "version_0" / "metrics.csv", "epoch,step,train_loss,val_loss\n0,9,2.5,\n0,9,,nan\n1,x,1.5,\n1,19,w,\n")
    write(root / "version_0" / "hparams.yaml", "lr: 0.001\napi_key: sk-live-0123456789abcdef\n")
    write(root / "version_1" / "metrics.csv", "step,train_loss\n9,0.5\n")
    (root / "version_0" / "round").symlink_to(root)
    done = imported(lake, spool, "lightning", root)
    assert (done.runs, done.refused) == (
        ["version_0", "version_1"], {"step is not an integer": 1, "a cell is not a number": 1},
    )  # fmt: skip
    assert done.first_refused[0] == "version_0:4: step is not an integer"
    assert scalars(lake) == [
        ("version_0", "epoch", 9, 0.0, 0), ("version_0", "epoch", 9, 0.0, 0), ("version_0", "epoch", 19, 1.0, 0),
        ("version_0", "train_loss", 9, 2.5, 0), ("version_0", "val_loss", 9, "nan", 0),
        ("version_1", "train_loss", 9, 0.5, 0),
    ]  # fmt: skip
    (first, second) = ask(lake, "SELECT config, labels FROM runs ORDER BY run")
    assert (json.loads(first["config"]), second["config"]) == ({"lr": 0.001, "api_key": "[redacted]"}, None)
    assert json.loads(first["labels"])["times"] == "the file's last change; values had none"
    again = imported(lake, spool, "lightning", root)
    assert (again.again, again.segments) == (2, 0)


def test_ultralytics(lake, spool, tmp_path):
    """Epochs are steps; seconds count back from the file's last change; the header of YOLOv5 has blanks."""
    write(tmp_path / "runs" / "a" / "results.csv",
          "epoch,time,train/box_loss,metrics/mAP50(B)\n1,10.5,1.25,0.5\n2,20.5,inf,0.75\n")  # fmt: skip
    write(tmp_path / "runs" / "a" / "args.yaml", "model: yolo11n.pt\nepochs: 2\n")
    write(tmp_path / "runs" / "b" / "results.csv", "               epoch,      train/box_loss\n      0,    0.5\n")
    write(tmp_path / "runs" / "b" / "opt.yaml", "epochs: 1\n")
    done = imported(lake, spool, "ultralytics", tmp_path / "runs")
    assert done.runs == ["a", "b"]
    assert scalars(lake) == [
        ("a", "metrics/mAP50(B)", 1, 0.5, -10), ("a", "metrics/mAP50(B)", 2, 0.75, 0),
        ("a", "train/box_loss", 1, 1.25, -10), ("a", "train/box_loss", 2, "+inf", 0),
        ("b", "train/box_loss", 0, 0.5, 0),
    ]  # fmt: skip
    assert [json.loads(row["config"])["epochs"] for row in ask(lake, "SELECT config FROM runs ORDER BY run")] == [2, 1]


def test_trainer_state(lake, spool, tmp_path):
    """Of checkpoints the last counts, once a run; names are Trainer's own; the best metric is of the summary."""
    history = [{"epoch": 0.5, "loss": 2.5, "step": 10}, {"eval_loss": 1.5, "step": 10}, {"loss": 1.0}, 7,
               {"total_flos": 10**400, "step": 20}, {"loss": "words", "step": 20}]  # fmt: skip
    state = {"best_metric": 1.5, "global_step": 20, "max_steps": 20, "log_history": history}
    for step, count in ((5, 1), (20, 6), (3, 0)):
        write(tmp_path / "out" / "sft" / f"checkpoint-{step}" / "trainer_state.json",
              json.dumps(state | {"log_history": history[:count]}, indent=2))  # fmt: skip
    write(tmp_path / "out" / "dpo" / "trainer_state.json", json.dumps({"log_history": [{"loss": 0.5, "step": 1}]}))
    write(tmp_path / "out" / "bad" / "trainer_state.json", '{\n"log_history": [\n')
    done = imported(lake, spool, "trainer_state", tmp_path / "out")
    assert (done.runs, done.refused) == (["dpo", "sft"], {"an entry of log_history without a step": 2})
    assert done.nothing == {"trainer_state.json:3": "trainer_state.json:3: not JSON; copy it again"}
    assert scalars(lake) == [
        ("dpo", "train/loss", 1, 0.5, 0), ("sft", "eval/loss", 10, 1.5, 0),
        ("sft", "train/epoch", 10, 0.5, 0), ("sft", "train/loss", 10, 2.5, 0),
    ]  # fmt: skip
    assert ask(lake, "SELECT key, number FROM annotations ORDER BY key") == [
        {"key": "best_metric", "number": 1.5}, {"key": "global_step", "number": 20.0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("metrics.csv", "a,b\n1,2\n", "metrics.csv:1: no column step"),
        ("metrics.csv", "step\n", "metrics.csv: has no values"),
        ("metrics.csv", "step,a\n1," + "9" * 200_000, "metrics.csv:2: not CSV"),
        ("other.csv", "", "no metrics.csv is in the folder"),
    ],
)
def test_what_is_none(spool, tmp_path, name, text, words):
    """One line says the file and what was missed."""
    write(tmp_path / "logs" / name, text)
    with pytest.raises(SourceError, match=words) as error:
        import_files("lightning", [str(tmp_path / "logs")], str(spool))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Step","a - loss","a - loss__MIN","a - loss__MAX"\n1,2,2,2\n', "chart of wandb.*tracker_export"),
        ('"Name","State","Notes","User","Tags","lr"\n"a","finished","","ann","",1\n', "table of runs.*tracker_export"),
        ('{"_step": 0, "_timestamp": 1700000000, "loss": 1}\n', "looks like tracker_export"),
        (",_step,loss,_runtime,_timestamp\n0,0,1,1,1700000000\n", "looks like tracker_export"),
        ('{"current_steps": 1, "total_steps": 9, "loss": 0.5}\n', "looks like trainer_log"),
    ],
)
def test_files_of_trackers_are_named(spool, tmp_path, text, words):
    """A file that another importer reads, or that wandb's page exports, is named with what to do."""
    (tmp_path / "x").write_text(text)
    with pytest.raises(SourceError, match=words):
        import_files("torchtitan", [str(tmp_path / "x")], str(spool))


def test_refusals_name_these_formats(spool, tmp_path):
    """Whatever they are taken for, the refusal says what they look like."""
    for name, text in (
        ("lightning", "epoch,step,loss\n0,1,2\n"),
        ("ultralytics", "epoch,time,train/box_loss\n1,2,3\n"),
    ):
        write(tmp_path / "x.csv", text)
        with pytest.raises(SourceError, match=f"it looks like {name}: ranklake import {name} x.csv"):
            import_files("sacct", [str(tmp_path / "x.csv")], str(spool))


def test_a_folder_of_other_formats_is_named(spool, tmp_path):
    """A folder that has nothing of a format says which it has."""
    write(tmp_path / "a" / "v0" / "metrics.csv", "step,loss\n0,1\n")
    write(tmp_path / "b" / "r" / "trainer_state.json", '{"log_history": [{"loss": 1.0, "step": 1}]}')
    write(tmp_path / "b" / "r" / "results.csv", "epoch,train/box_loss\n0,1\n")
    for asked in ("wandb", "tensorboard", "mlflow", "ultralytics"):
        with pytest.raises(
            SourceError, match=f"no file of format {asked}; it holds lightning: ranklake import lightning /"
        ):
            import_files(asked, [str(tmp_path / "a")], str(spool))
    with pytest.raises(SourceError, match="it holds trainer_state and ultralytics: "):
        import_files("lightning", [str(tmp_path / "b")], str(spool))
