"""What launchers and collectors put in front of lines is no part of a log, and their times are not the trainer's."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from importing import ask, imported

from ranklake.capture.importers.log_lines import log_line, ranks_of

BEGIN = datetime(2025, 10, 30, 20, 34, 10, tzinfo=UTC)
LATE_S = [0.0, 0.9, 0.1, 0.8, 0.0, 0.9]
TITAN = "[titan] {at:%Y-%m-%d %H:%M:%S},{ms:03d} - root - INFO - step: {step}  loss: 2.5  tps: 5"
MEGATRON = " [{at:%Y-%m-%d %H:%M:%S}.{ms:03d}000] iteration {step:8d}/    9 | elapsed time per iteration (ms): 1120.0 |"
UNDATED = " iteration {step:8d}/    9 | elapsed time per iteration (ms): 1120.0 | lm loss: 2.5E+00 |"
PREFIXES = [
    "", "       ", "    [rank3]:", "0: [rank3]:", "[rank3]:", "[default3]:", "rank3: ", "3: ", "    3: ", "0003: ",
    "[3] ", "[3]:",
    "(RayTrainWorker pid=4121, ip=10.0.0.4) ", "\x1b[36m(pid=4121)\x1b[0m ", "worker-1  | ", "trainer_1    | ",
    "[pod/trainer-worker-0/pytorch] ", "[1,3]<stdout>:", "[1,mpirank:3,algo-1]<stderr>:", "10.0.0.4: ",
    "node-3: [rank3]:", "Nov 28 12:00:00 node01 python[123]: ", "trainer/0 [3]:", "{stamp} ", "{stamp} stdout F ",
    "[{stamp}] 3: ", "{stamp} [pod/a-0/b] ", "[{stamp}] [1,3]<stdout>:",
    '{{"log":"{line}\\n","stream":"stdout","time":"{stamp}"}}',
]  # fmt: skip


def written(folder, form):
    """Write a log for each prefix: steps of 1.12 s, whose lines a collector stamped in another zone, unevenly late."""
    files = []
    for number, prefix in enumerate(PREFIXES):
        lines = []
        for step, late in enumerate(LATE_S, 1):
            at = BEGIN + timedelta(seconds=1.12 * step)
            line = form.format(at=at, ms=at.microsecond // 1000, step=step)
            stamp = (at + timedelta(seconds=0.5 + late)).astimezone(timezone(timedelta(hours=2))).isoformat()
            whole = prefix.format(stamp=stamp, line=line)
            lines.append(whole if "{line}" in prefix else whole + line)
        files.append(folder / f"log{number:02d}")
        files[-1].write_text("\n".join(lines) + "\n")
    return files


@pytest.mark.parametrize(("kind", "form", "first"), [("torchtitan", TITAN, 2), ("megatron", MEGATRON, 1)])
def test_the_trainers_own_time_behind_any_prefix(lake, spool, tmp_path, kind, form, first):
    """Steps end when the trainer wrote their lines, whoever labelled and stamped them since."""
    imported(lake, spool, kind, *written(tmp_path, form))
    wanted = "SELECT run, step, ts, step_time_s AS s FROM steps ORDER BY run, step"
    steps = ask(lake, wanted)
    assert len({row["run"] for row in steps}) == len(PREFIXES)
    assert len(steps) == len(PREFIXES) * (7 - first)
    for row in steps:
        assert row["s"] == pytest.approx(1.12, abs=0.002)
        assert abs((row["ts"] - BEGIN).total_seconds() - 1.12 * (row["step"] - 1)) < 0.01


def test_a_collectors_time_where_the_trainer_tells_none(lake, spool, tmp_path):
    """A log without times takes those of its collector, and not those of other lines that have their own."""
    prefixed = [f"2025-10-30T22:34:{11 + step:02d}.5Z {UNDATED.format(step=step)}" for step in (1, 2)]
    other = "2025-10-30T22:34:12.9Z [2025-10-30 15:34:12,9] [INFO] [x] something"
    (tmp_path / "log").write_text("\n".join([prefixed[0], other, prefixed[1]]))
    imported(lake, spool, "megatron", tmp_path / "log", run="r")
    told = ask(lake, "SELECT ts FROM steps ORDER BY step")
    assert [str(row["ts"])[11:23] for row in told] == ["22:34:11.380", "22:34:12.380"]


def test_arguments_keep_their_indent():
    """What tells an argument of Megatron from other text is its two blanks."""
    for prefix in ("0: ", "[default0]:", "svc-1  | ", "2025-10-30T22:34:11Z stdout F ", "(pid=1) "):
        assert log_line(prefix + "  seq_length ........ 8").text == "  seq_length ........ 8", prefix


def test_what_is_no_prefix():
    """Names, clocks and words in front of a colon stay."""
    for text in ("steps: 10 loss: 2.5", "12:30:45 x", "WARNING: x", "[Rank 0] x", "[titan] x", " iteration 1/ 2 |"):
        assert log_line(text).text == text


def test_ranks_of_labels():
    """The innermost number is the rank, unless the launchers of several nodes each number their own."""
    assert ranks_of([("0", "3"), ("0", "5")]) == {("0", "3"): 3, ("0", "5"): 5}
    assert ranks_of([("0", "0"), ("1", "0")]) == {("0", "0"): 0, ("1", "0"): 1}
    assert ranks_of([("(pid=7)",), ("(pid=9)",), ("(pid=7)",)]) == {("(pid=7)",): 0, ("(pid=9)",): 1}
    assert ranks_of([()]) == {(): 0}
