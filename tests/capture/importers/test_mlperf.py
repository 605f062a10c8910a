"""MLPerf logs: every marked line is an event, and the intervals add up to the millisecond."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported
from published_lakes import documented

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.mlperf import platform_of
from ranklake.capture.importers.mlperf_lines import entries
from ranklake.capture.importers.source import Line, SourceError
from ranklake.lake.rollups.runner import run_rollups

BEGIN = 1_727_896_395_000


def line(key, at_ms, value=None, kind="POINT_IN_TIME", **metadata):
    entry = {"time_ms": BEGIN + at_ms, "event_type": kind, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(entry)}"


WHOLE = [
    "some other output",
    line("init_start", 0),
    line("submission_benchmark", 5, "gpt3"),
    line("seed", 6, 42),
    line("init_start", 7),
    line("run_start", 2_500),
    line("block_start", 2_600),
    line("tracked_stats", 3_600, {"train_step_timing in s": 0.9}),
    line("tracked_stats", 4_600, {"train_step_timing in s": 1.0, "throughput": 7.5}),
    line("block_stop", 4_700),
    line("eval_start", 4_700),
    line("eval_accuracy", 5_700, 2.75),
    line("eval_stop", 5_701),
    line("run_stop", 5_800, status="success"),
]


def test_goodput_is_exact(lake, spool, tmp_path):
    """Start, training, evaluation and the rest are what the log says, and add up to its wall time."""
    file = tmp_path / "result_0.txt"
    file.write_text("\n".join(WHOLE))
    done = imported(lake, spool, "mlperf", file, run="r")
    assert done.rows == {"events": 13, "runs": 1, "scalars": 2, "spans": 4, "steps": 2}
    run_rollups(lake, ["goodput"])
    wanted = "SELECT wall_ns, init_ns, productive_ns, evaluation_ns, stall_ns, unattributed_ns FROM goodput"
    ms = [value // 10**6 for value in ask(lake, wanted)[0].values()]
    assert ms == [5_800, 2_500, 2_100, 1_001, 0, 199]
    assert ask(lake, "SELECT job, world_size, seed FROM runs") == [{"job": "gpt3", "world_size": 2, "seed": 42}]
    assert ask(lake, "SELECT DISTINCT rank FROM events WHERE event = 'init_start' ORDER BY rank") == [
        {"rank": 0}, {"rank": 1},
    ]  # fmt: skip


ODD = {
    # train 1 to 5 s and 6 to 9, whose first end is missing; evaluation between
    "0 init_start|1 run_start|1 block_start|5 eval_start|6 eval_stop|6 block_start|9 block_stop|9 run_stop":
        [9, 1, 7, 1, 0],
    # an evaluation without an end goes to the next block
    "0 init_start|1 run_start|1 block_start|5 block_stop|5 eval_start|6 block_start|8 block_stop|9 run_stop":
        [9, 1, 6, 1, 1],
    # ranks print at once: ends before begins, and two on a line
    "1 run_start|0 init_start|5 block_stop|1 block_start|7 run_stop|6 eval_stop + 5 eval_start": [7, 1, 4, 1, 1],
    # each rank tells its own: the run's are those of rank 0
    "0: 0 init_start|0: 1 run_start|1: 1 run_start|0: 1 block_start|1: 2 block_start|0: 5 block_stop|1: 6 block_stop|"
    "0: 7 run_stop": [7, 1, 4, 0, 2],
    # a block without a begin began with the run
    "0 init_start|1 run_start|5 block_stop|5 block_start|8 block_stop|9 run_stop": [9, 1, 7, 0, 1],
    # an evaluation goes on while the next epoch trains
    "0 init_start|1 run_start|1 epoch_start|4 epoch_stop|4 eval_start|5 epoch_start|6 eval_stop|9 epoch_stop|"
    "9 run_stop": [9, 1, 6, 2, 0],
    # epochs begin before the evaluation of the last one is over
    "0 init_start|1 run_start|1 epoch_start 1|4 eval_start 1|5 epoch_start 2|6 eval_stop 1|6 epoch_stop 1|"
    "8 eval_start 2|8 epoch_start 3|9 eval_stop 2|9 epoch_stop 2|11 run_stop": [11, 1, 7, 3, 0],
    # blocks begin before the last one ends, as printed
    "0 init_start|1 run_start|1 block_start 1|3 block_start 4|3 block_stop 1|5 block_start 7|5 block_stop 4|"
    "8 block_stop 7|8 run_stop": [8, 1, 7, 0, 0],
    # the same without names
    "0 init_start|1 run_start|1 block_start|3 block_start|3 block_stop|5 block_start|5 block_stop|"
    "7 block_stop|9 run_stop": [9, 1, 6, 0, 2],
    # a block begins once, and ends whenever an evaluation did
    "0 init_start|1 run_start|2 block_start 0|4 eval_start|5 eval_stop|5 block_stop 7|9 eval_start|10 eval_stop|"
    "10 run_stop|10 block_stop 9": [10, 1, 6, 2, 1],
    # one block, and epochs which go on behind it
    "0 init_start|1 run_start|1 block_start|1 epoch_start 1|3 epoch_stop 1|3 eval_start|4 eval_stop|4 block_stop|"
    "4 epoch_start 2|7 epoch_stop 2|7 eval_start|8 eval_stop|9 run_stop": [9, 1, 5, 2, 1],
    # epochs that were told when all was over
    "0 init_start|1 run_start|60 eval_start|65 eval_stop|160 eval_start|165 eval_stop|165 epoch_start 1|"
    "165 epoch_start 2|165 epoch_stop 1|165 epoch_stop 2|166 run_stop": [166, 1, None, 10, 155],
    # data is brought to the nodes first: no stall
    "0 init_start|1 run_start|1 staging_start|99 staging_stop|99 epoch_start 1|109 epoch_stop 1|109 run_stop":
        [109, 1, 10, 0, 98],
    # a trainer that queues evaluations with their blocks
    "0 init_start|1 run_start|1 block_start 1|1 eval_start 2|5 block_start 2|5 eval_start 3|6 eval_stop 2|"
    "6 block_stop 1|9 block_stop 2|9 eval_stop 3|9 run_stop": [9, 1, 8, None, 0],
    # nobody knows when these evaluations began
    "0 init_start|1 run_start|1 block_start|4 block_stop|5 eval_stop|5 block_start|8 block_stop|9 run_stop":
        [9, 1, 6, None, 2],
    "0 init_start|1 run_start|1 block_start|4 block_stop|4 eval_accuracy|4 block_start|9 run_stop": [9, 1, 8, None, 0],
}  # fmt: skip


_NAMES = {"block": ["first_epoch_num"], "epoch": ["epoch_num"], "eval_": ["epoch_num"]}


def printed(one):
    label, found, entries = one.rpartition(": ")
    edges = [entry.split() for entry in entries.split(" + ")]
    told = (line(key, int(at) * 1_000, **dict.fromkeys(_NAMES[key[:5]], *of) if of else {}) for at, key, *of in edges)
    return (f"\x1b[1m{label}:\x1b[0m " if found else "") + "".join(told)


def test_begins_and_ends_are_matched(lake, spool, tmp_path):
    """By time and by rank, whatever is missing and in whatever order it was printed."""
    for number, text in enumerate(ODD):
        (tmp_path / f"log{number:02d}").write_text("\n".join(printed(one) for one in text.split("|")))
    assert imported(lake, spool, "mlperf", tmp_path / "log*", run="r").refused == {}
    run_rollups(lake, ["goodput"])
    wanted = "SELECT wall_ns, init_ns, productive_ns, evaluation_ns, unattributed_ns FROM goodput ORDER BY run"
    told = [[ns if ns is None else ns // 10**9 for ns in row.values()] for row in ask(lake, wanted)]
    assert told == list(ODD.values())


def test_evaluations_that_overlap(lake, spool, tmp_path):
    """They are matched by the epoch that they name; a block that ends behind the run is counted once."""
    edges = [("init_start", 0), ("run_start", 1), ("block_start", 1), ("block_stop", 3), ("eval_start", 3, 1)]
    edges += [("block_start", 3), ("block_stop", 4), ("eval_start", 4, 2), ("eval_stop", 6, 1), ("eval_stop", 8, 2)]
    edges += [("block_start", 9), ("run_stop", 11), ("block_stop", 12)]
    text = [line(key, at * 1000, **({"epoch_num": of[0]} if of else {})) for key, at, *of in edges]
    (tmp_path / "log").write_text("\n".join(text))
    imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    run_rollups(lake, ["goodput"])
    (told,) = ask(lake, "SELECT wall_ns, init_ns, productive_ns, evaluation_ns FROM goodput")
    assert [ns // 10**9 for ns in told.values()] == [11, 1, 4, 5]


def stats(at_ms, value, **metadata):
    return line("tracked_stats", at_ms, value, **metadata)


def nemo(*between, batch=4):
    """Return a log as newer ones are, whose block is from 10 s to 100 s and whose evaluation to 110 s."""
    head = [line("cache_clear", -500, value=True)] * 2 + [line("init_start", at) for at in range(16)]
    head += [line("submission_platform", 20, "2xNVIDIA HGX H100"), line("global_batch_size", 21, batch)]
    head += [line("max_sequence_length", 22, 8), line("run_start", 10_000), line("block_start", 10_000)]
    tail = [
        line("block_stop", 100_000),
        line("eval_start", 100_000),
        line("eval_accuracy", 109_000, 5.5, samples_count=8),
    ]
    return [*head, *between, *tail, line("eval_stop", 110_000), line("run_stop", 110_000, status="success")]


@pytest.mark.slow
def test_what_is_told_goes_before_what_is_inferred(lake, spool, tmp_path):
    """Steps whose lengths reach into the start and the evaluation move neither; a block's mean is no step of it."""
    steps = [stats(at * 1_000 + 100, {"train_step_time": 30.4, "reduced_train_loss": at / 8}, step=number * 4)
             for number, at in enumerate((40, 70, 100), 1)]  # fmt: skip
    mean = stats(100_200, {"throughput": 1.0, "train_step_time": 30.3, "max_memory_usage": 58.8}, step=12)
    (tmp_path / "log").write_text("\n".join(nemo(*steps, mean)))
    imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    run_rollups(lake, ["run_summary"])
    wanted = "init_ns, productive_ns, evaluation_ns, stall_ns, unattributed_ns"
    (account,) = ask(lake, f"SELECT {wanted} FROM goodput")
    assert [ns // 10**6 for ns in account.values()] == [10_000, 90_000, 10_000, 0, 0]
    (run,) = ask(lake, "SELECT steps, tokens, status, time_to_train_ns / 1e9 t FROM run_goodput")
    assert list(run.values()) == [3, 3 * 4 * 8, "finished", 100.0]
    assert [row["loss"] for row in ask(lake, "SELECT loss FROM steps ORDER BY step")] == [5.0, 8.75, 12.5]
    (facts,) = ask(lake, "SELECT node_count n, device_name d, device_type t, world_size w, config FROM runs")
    assert list(facts.values())[:4] == [2, "HGX H100", "cuda", 16]
    assert set(json.loads(facts["config"])) == {"global_batch_size", "max_sequence_length"}
    means = ask(
        lake, "SELECT metric, value FROM scalars WHERE metric IN ('mlperf/train_step_time', 'mlperf/eval_accuracy')"
    )
    assert sorted(row["value"] for row in means) == [5.5, 30.3]


def test_lines_for_several_steps(lake, spool, tmp_path):
    """A line may stand for many steps, told by steps or samples from 0 or 1; one that stalled stands for no more."""
    ends = [42_000, 74_000, 99_000]
    counts = [{"step": 32.0 * n - 1, "samples_count": 128.0 * n} for n in (1, 2, 3)]
    lines = [stats(at, {"train_step_time": 1.0}, **count) for at, count in zip(ends, counts, strict=True)]
    mean = stats(100_000, {"train_step_time": 0.9}, samples_count=384)
    (tmp_path / "log").write_text("\n".join(nemo(*lines, mean)))
    imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    told = "count(*) n, min(step) a, max(step) b, sum(samples) s, sum(tokens) t, max(interval_end_step) i, max(ranks) r"
    assert list(ask(lake, f"SELECT {told} FROM steps")[0].values()) == [96, 0, 95, 384, 3_072, 95, 16]


@pytest.mark.slow
def test_logs_without_steps(lake, spool, tmp_path):
    """Unknown is how many steps there were where none is told, and how long evaluations were that only end; and why."""
    means = stats(100_000, {"throughput": 1.0, "train_step_time": 2.0}, step=12)
    ends = [one for one in nemo(stats(40_000, {"train_step_time": 30.0}, step=4)) if "eval_start" not in one]
    (tmp_path / "log1").write_text("\n".join(nemo(means)))
    (tmp_path / "log2").write_text("\n".join(one for one in ends if "block_stop" not in one))
    imported(lake, spool, "mlperf", tmp_path / "log*", run="r")
    run_rollups(lake, ["run_summary"])
    told = ask(lake, "SELECT steps, steps_lost, evaluation_ns e, stall_ns s, unavailable FROM run_goodput ORDER BY run")
    assert (told[0]["steps"], told[0]["steps_lost"], told[0]["e"]) == (None, None, 10 * 10**9)
    assert (told[1]["steps"], told[1]["e"], told[1]["s"]) == (1, None, 0)
    assert "steps" in json.loads(told[0]["unavailable"])
    assert "evaluation_ns" in json.loads(told[1]["unavailable"])
    assert [row["n"] for row in ask(lake, "SELECT steps n FROM run_summary ORDER BY run")] == [None, 1]


def test_how_a_run_ended(lake, spool, tmp_path):
    """A run that was aborted failed; one whose log breaks off is imported."""
    whole = nemo()
    (tmp_path / "log1").write_text("\n".join([*whole[:-1], line("run_stop", 110_000, status="aborted")]))
    (tmp_path / "log2").write_text("\n".join(whole[:-1]))
    imported(lake, spool, "mlperf", tmp_path / "log*", run="r")
    run_rollups(lake, ["goodput"])
    assert [row["status"] for row in ask(lake, "SELECT status FROM goodput ORDER BY run")] == ["failed", "imported"]


def test_the_score_of_a_set_of_runs(lake, spool, tmp_path):
    """The best and the worst run are left out; one that was aborted is the worst, and with two there is no score."""
    ends = {"a": [(20, "success"), (30, "success"), (40, "success"), (5, "aborted")]}
    ends["b"] = [(20, "success"), (30, "success"), (40, "aborted"), (5, "aborted")]
    for job, runs in ends.items():
        for number, (minutes, status) in enumerate(runs):
            lines = [line("init_start", 0), line("submission_benchmark", 1, job), line("run_start", 1_000)]
            lines.append(line("run_stop", 1_000 + minutes * 60_000, status=status))
            (tmp_path / f"{job}{number}").write_text("\n".join(lines))
    imported(lake, spool, "mlperf", tmp_path / "[ab]?", run="r")
    run_rollups(lake, ["run_goodput"])
    assert ask(lake, documented("cookbook.md", "What is the MLPerf score of a set of runs?")) == [
        {"job": "a", "runs": 4, "score_min": 35.0}, {"job": "b", "runs": 4, "score_min": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("64xNVIDIA DGX H100", (64, "DGX H100")),
        ("128xNVIDIA GB200", (None, "GB200")),
        ("1xMI300X", (None, "MI300X")),
        ("2xXE9680Lx8B200-SXM-180GB", (2, "B200 SXM")),
        ("1xXE7745x4H200-NVL-141GB", (1, "H200 NVL")),
        ("GX2560M7_H100_SXM_80GBx4", (None, "H100 SXM")),
        ("8xA100_80GB-baseline", (None, None)),
        ("H100", (None, None)),
        ("1xG593-SD1", (1, None)),
        ("8xSUBMISSION_PLATFORM_PLACEHOLDER", (8, None)),
        ("tpu-v5p", (None, None)),
    ],
)
def test_platforms(name, said):
    """A platform's name tells nodes and device where it does; an H100 of no form is not said to be one of two."""
    assert platform_of(name) == said


def test_how_many_devices(lake, spool, tmp_path):
    """One `init_start` a node does not tell the devices, nor is an error message the name of one."""
    dgx, told = "2xNVIDIA DGX A100", []
    for number, (inits, nodes, model, *said) in enumerate([
        (2, dgx, "No devices were found", None, 2, "DGX A100"), (16, dgx, "N/A", 16, 2, "DGX A100"),
        (3, dgx, "NVIDIA A100", None, 2, "NVIDIA A100"), (2, "Phantom", "", None, None, None),
    ]):  # fmt: skip
        lines = [line("cache_clear", 0, value=True)] * 2 + [line("init_start", 1)] * inits
        lines += [line("submission_platform", 2, nodes), f':::SYSJSON {{"accelerator_model_name": "{model}"}}']
        (tmp_path / f"log{number}").write_text("\n".join([*lines, line("run_start", 9), line("run_stop", 10)]))
        told.append(said)
    imported(lake, spool, "mlperf", tmp_path / "log?", run="r")
    found = ask(lake, "SELECT device_count, node_count, device_name FROM runs ORDER BY run")
    assert [list(row.values()) for row in found] == told


def test_several_runs_in_a_log(lake, spool, tmp_path):
    """A log that goes on with another run is two runs, each from its own beginning to its own end."""
    again = [one.replace(str(BEGIN)[:9], str(BEGIN + 100_000)[:9]) for one in WHOLE]
    (tmp_path / "log").write_text("\n".join([*WHOLE, line("cache_clear", 50_000), *again]))
    done = imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    assert (done.runs, done.rows["steps"], done.rows["runs"]) == (["r", "r-2"], 4, 2)
    run_rollups(lake, ["goodput"])
    found = ask(lake, "SELECT run, init_ns, productive_ns, evaluation_ns FROM goodput ORDER BY run")
    assert [row["productive_ns"] for row in found] == [2_100_000_000] * 2
    assert found[0]["init_ns"] == 2_500_000_000


def test_files_of_one_name(spool, tmp_path):
    """Logs that differ never share a run because their files have the same name."""
    for name, at in (("a", 0), ("b", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result_0.txt").write_text(line("init_start", at))
    done = import_files("mlperf", [str(tmp_path / "*" / "result_0.txt")], str(spool), run="q")
    assert len(done.runs) == 2
    assert done.runs == ["q-a-result_0", "q-b-result_0"]


def test_labels_say_the_rank(lake, spool, tmp_path):
    """What the launcher put in front of a line is the rank that wrote it."""
    file = tmp_path / "log"
    file.write_text("\n".join(["7: " + line("init_start", 0), "3: " + line("seed", 1, 1), line("run_start", 5)]))
    imported(lake, spool, "mlperf", file)
    assert ask(lake, "SELECT event, rank FROM events ORDER BY ts") == [
        {"event": "init_start", "rank": 7}, {"event": "seed", "rank": 3}, {"event": "run_start", "rank": 0},
    ]  # fmt: skip


def test_another_format_is_named(spool, tmp_path):
    """A file of another kind is refused, and what it looks like is said."""
    file = tmp_path / "log"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="the file does not begin like mlperf; it looks like table"):
        import_files("mlperf", [str(file)], str(spool))


def test_many_ranks(lake, spool, tmp_path):
    """Rows of a thousand ranks are one segment of their table, and each is stored under its own rank."""
    file = tmp_path / "log"
    file.write_text("\n".join(line("init_start", at) for at in range(1_000)))
    done = imported(lake, spool, "mlperf", file)
    assert (done.rows["events"], done.objects) == (1_000, 1)
    assert done.segments <= 2 * len(done.rows)
    told = "count(*) n, count(DISTINCT rank) r, min(rank) a, max(rank) b"
    assert ask(lake, f"SELECT {told} FROM events WHERE event = 'init_start'") == [
        {"n": 1_000, "r": 1_000, "a": 0, "b": 999}
    ]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WHOLE), st.integers(0, 200)), max_size=20), st.randoms())
def test_broken_lines_are_counted(tmp_path_factory, pieces, chance):
    """Lines cut anywhere, in any order: each marked one is an event or in quarantine."""
    place = tmp_path_factory.mktemp("log")
    lines = [text[:cut] if cut < len(text) else text for text, cut in pieces] + [line("seed", 1, 1)]
    chance.shuffle(lines)
    (place / "log").write_text("\n".join(lines))
    done = import_files("mlperf", [str(place / "log")], str(place / "spool"))
    marked = sum(":::MLLOG" in text for text in lines)
    assert done.rows["events"] + sum(done.refused.values()) == marked


def test_lines_of_version_05(lake, spool, tmp_path):
    """`:::MLPv0.5.0` lines are read like later ones, once though trainers wrote them twice, and known as MLPerf's."""
    lines = [
        "NCF_RAW_:::MLPv0.5.0 ncf 1579665500.000000000 (main.py:90) run_clear_caches",
        ":::MLPv0.5.0 ncf 1579665501.250000000 (main.py:100) run_start",
        ":::MLPv0.5.0 ncf 1579665502.000000000 (main.py:110) opt_learning_rate: 0.0005",
        ":::MLPv0.5.0 ncf 1579665503.000000000 (main.py:120) train_epoch: 0",
        "I0122 mlperf_log.py:136] NCF_RAW_:::MLPv0.5.0 ncf 1579665503.000000000 (main.py:120) train_epoch: 0",
        ":::MLPv0.5.0 ncf 1579665510.000000000 (main.py:130) eval_start: 0",
        ':::MLPv0.5.0 ncf 1579665511.000000000 (main.py:131) eval_accuracy: {"epoch": 0, "value": 0.6356}',
        ":::MLPv0.5.0 ncf 1579665512.000000000 (main.py:132) eval_stop: 0",
        ':::MLPv0.5.0 ncf 1579665514.874648094 (main.py:187) run_stop: {"success": true}',
    ]
    (tmp_path / "ncf.log").write_text("\n".join(lines) + "\n")
    done = imported(lake, spool, "mlperf", tmp_path / "ncf.log", run="ncf")
    assert (done.rows["events"], done.refused) == (8, {})
    assert ask(lake, "SELECT metric, value FROM scalars") == [{"metric": "mlperf/eval_accuracy", "value": 0.6356}]
    spans = {row["name"]: row["d"] for row in ask(lake, "SELECT name, duration_ns d FROM spans")}
    assert spans["run"] == 13_625 * 10**6
    assert spans["evaluation"] == 2 * 10**9
    assert ask(lake, "SELECT job FROM runs") == [{"job": "ncf"}]
    run_rollups(lake, ["run_goodput"])
    (told,) = ask(lake, "SELECT init_ns, time_to_train_ns / 1e6 t, unavailable FROM run_goodput")
    assert (told["init_ns"], told["t"]) == (None, 13_625)
    assert "do not say when it began" in json.loads(told["unavailable"])["init_ns"]
    with pytest.raises(SourceError, match="it looks like mlperf"):
        import_files("sacct", [str(tmp_path / "ncf.log")], str(spool))


def test_lines_of_version_06(lake, spool, tmp_path):
    """`:::MLL` lines are read like later ones; a label in front of any of them says which rank wrote it."""
    told = [("0.0", "submission_benchmark", "ssd"), ("1560216700.5", "init_start", None)]
    told += [("1560216789.843", "run_start", None), ("1560216790.0", "block_start", None)]
    told += [("1560216890.0", "block_stop", None), ("1560216891.0", "run_stop", None)]
    lines = [f":::MLL {at} {key}: {json.dumps({'value': value, 'metadata': {}})}" for at, key, value in told]
    (tmp_path / "log").write_text("\n".join([*lines, ":::MLL 1560216892.0 run_final: {"]))
    done = imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    assert (done.rows["events"], done.refused) == (5, {"the MLLOG line is incomplete": 1})
    run_rollups(lake, ["goodput"])
    (account,) = ask(lake, "SELECT wall_ns, init_ns, productive_ns FROM goodput")
    assert [ns / 10**6 for ns in account.values()] == [190_500, 89_343, 100_000]
    assert ask(lake, "SELECT job FROM runs") == [{"job": "ssd"}]


@pytest.mark.parametrize(
    ("label", "rank"),
    [("0: ", 0), ("[3] ", 3), ("ray-training  | [4] ", 4), ("[rank7]: ", 7), ("node3: 5: ", 5), ("at 12:30:05 ", -1)],
)
def test_labels(label, rank):
    """Launchers and collectors name the rank in one of many ways."""
    (piece,) = entries(Line(1, label + line("run_start", 1), None))
    assert piece[0] == rank


def fact(key, value, **time):
    return f":::MLLOG {json.dumps({'key': key, 'value': value, **time})}"


def test_times_in_seconds(lake, spool, tmp_path):
    """Logs that have `time_s` are read to the ms; 0 is no time, and what such lines say is of the run."""
    head = [fact("submission_org", "Anyone", time_s=0.0), fact("global_batch_size", 64, time_s=0.0)]
    timed = [one for one in WHOLE if ":::MLLOG" in one]
    seconds = [
        one.replace('"time_ms": ', '"time_s": ').replace(str(at), f"{at // 1000}.{at % 1000:03d}")
        for one in timed
        for at in [json.loads(one.partition(" ")[2])["time_ms"]]
    ]
    tail = [fact("submission_benchmark", "rough", time_ms=0), fact("submission_platform", "2xDGX H100", time_ms=0)]
    (tmp_path / "log").write_text("\n".join([*head, *seconds, *tail]))
    done = imported(lake, spool, "mlperf", tmp_path / "log", run="r")
    assert (done.rows["events"], done.refused) == (13, {})
    run_rollups(lake, ["goodput"])
    wanted = "SELECT wall_ns, init_ns, productive_ns, evaluation_ns, status FROM goodput"
    assert list(ask(lake, wanted)[0].values()) == [*(ms * 10**6 for ms in (5_800, 2_500, 2_100, 1_001)), "finished"]
    (run,) = ask(lake, "SELECT config, labels, node_count, ts FROM runs")
    assert json.loads(run["config"])["global_batch_size"] == 64
    assert json.loads(run["labels"])["submission_org"] == "Anyone"
    assert (run["node_count"], int(run["ts"].timestamp() * 1000)) == (2, BEGIN)


@pytest.mark.parametrize("unit", ["seconds", "ms from a second"])
def test_times_off_by_1000(lake, spool, tmp_path, unit):
    """A log some of whose lines count seconds, or ms from a second, is put right by its other lines."""
    at = {"init_start": 0, "run_start": 300_000, "block_start": 300_000, "block_stop": 500_000, "run_stop": 500_000}
    times = {key: (BEGIN + ms) // 1000 if unit == "seconds" else BEGIN // 1000 + ms for key, ms in at.items()}
    lines = [fact(key, None, time_ms=told) for key, told in times.items()]
    whole = [line("cache_clear", -1_000, value=True), line("seed", 530_000, 3), *lines]
    (tmp_path / "log").write_text("\n".join(whole))
    assert imported(lake, spool, "mlperf", tmp_path / "log", run="r").refused == {}
    run_rollups(lake, ["goodput"])
    (account,) = ask(lake, "SELECT init_ns, productive_ns FROM goodput")
    assert [ns // 10**9 for ns in account.values()] == [300, 200]


def test_times_of_no_unit(lake, spool, tmp_path):
    """Times that nothing puts right are refused at import, with the reason; the run is known as imported."""
    lines = [line("init_start", 0), fact("run_start", None, time_ms=5_000), fact("run_stop", None, time_ms=0)]
    lines += [fact("seed", 1), ':::MLLOG {"time_ms": 1}', ":::MLLOG [1", fact("seed", 1, time_ms="now")]
    (tmp_path / "log").write_text("\n".join(lines))
    assert set(imported(lake, spool, "mlperf", tmp_path / "log", run="r").refused) == {
        "the time is not ms since 1970, as time_ms should be", "the MLLOG line's time is 0",
        "the MLLOG line has no time", "the MLLOG line has no key", "the MLLOG line is incomplete",
        "the time is not a number",
    }  # fmt: skip
    run_rollups(lake, ["goodput"])
    assert ask(lake, "SELECT status FROM goodput") == [{"status": "imported"}]
