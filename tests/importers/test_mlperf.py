"""MLPerf logs: every marked line is an event, and the intervals add up to the millisecond."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
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
    run_rollups(lake)
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
}  # fmt: skip


def printed(one):
    label, found, entries = one.rpartition(": ")
    pairs = [entry.split() for entry in entries.split(" + ")]
    return (f"\x1b[1m{label}:\x1b[0m " if found else "") + "".join(line(key, int(at) * 1_000) for at, key in pairs)


def test_begins_and_ends_are_matched(lake, spool, tmp_path):
    """By time and by rank, whatever is missing and in whatever order it was printed."""
    for number, text in enumerate(ODD):
        (tmp_path / f"log{number}").write_text("\n".join(printed(one) for one in text.split("|")))
    assert imported(lake, spool, "mlperf", tmp_path / "log*", run="r").refused == {}
    run_rollups(lake, ["goodput"])
    wanted = "SELECT wall_ns, init_ns, productive_ns, evaluation_ns, unattributed_ns FROM goodput ORDER BY run"
    assert [[ns // 10**9 for ns in row.values()] for row in ask(lake, wanted)] == list(ODD.values())


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
    assert all(name.startswith("q-result_0-") for name in done.runs)


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
    with pytest.raises(SourceError, match="nothing of mlperf at its beginning; it looks like table"):
        import_files("mlperf", [str(file)], str(spool))


def test_many_ranks(spool, tmp_path):
    """Each rank is a stream of its own; a thousand of them are one object in the spool."""
    file = tmp_path / "log"
    file.write_text("\n".join(line("init_start", at) for at in range(1_000)))
    done = import_files("mlperf", [str(file)], str(spool))
    assert (done.rows["events"], done.segments, done.objects) == (1_000, 1_002, 1)


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
