"""Live: a run that still records is read from the local spool: all of it, at once, and without a trace there."""

import base64
import json
import signal
import subprocess
import sys

import pytest
from live_child import Child

from ranklake.capture.live.live_run import NoLiveRunError, RunWatch, find_run
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.cli import run as command
from ranklake.commands.watch import live_line, live_lines


@pytest.mark.parametrize("writes", ["mmap", "records"])
def test_each_look_has_every_step_that_ended(place, writes):
    """A step is told at the next look, with its numbers, whether its file is mapped or written."""
    run = place.start(spool_writes=writes)
    with RunWatch(place.local, "run") as watched:
        for number in range(5):
            with run.step(number, tokens=7):
                run.log(loss=float(number))
            facts = watched.look()
            assert (facts.step, facts.loss, facts.ranks[0].steps) == (number, float(number), number + 1)
        assert [step for step, _ in facts.losses] == list(range(5))
        assert facts.tokens_per_s > 0
        assert facts.state == "runs"


def test_what_is_sealed_and_sent_between_two_looks_is_not_missed(place):
    """Steps that were recorded after a look, and sealed and deleted before the next, are told all the same."""
    run = place.start()
    with RunWatch(place.local, "run") as watched:
        for number in range(0, 10, 2):
            with run.step(number):
                pass
            watched.look()
            with run.step(number + 1):
                pass
            run.flush()
        assert watched.look().ranks[0].steps == 10


def test_segments_that_wait_are_read_encrypted_or_not(place, tmp_path):
    """Whoever begins to watch late sees what waits for its upload, if there is the key; else that it cannot be read."""
    key = tmp_path / "keys"
    key.write_text(base64.b64encode(bytes(32)).decode())
    run = place.start(spool="", encryption_key=f"file:{key}")
    for number in range(3):
        with run.step(number):
            pass
    run.flush()
    with RunWatch(place.local, "run", SealingKeys(f"file:{key}")) as watched:
        assert watched.look().ranks[0].steps == 3
    with RunWatch(place.local, "run") as watched:
        facts = watched.look()
        assert (facts.ranks[0].steps, facts.unreadable > 0) == (0, True)
        assert watched.look().unreadable == facts.unreadable


def test_what_a_sealed_footer_has_in_place_of_columns_is_read(place):
    """A segment of one row has all of its values in the footer, and so has a loss that stays the same."""
    run = place.start(spool="")
    for number in range(2):
        with run.step(number):
            run.log(loss=0.5)
        run.event("queue_full", severity="warning", message="cleared")
        run.flush()
    with RunWatch(place.local, "run") as watched:
        facts = watched.look()
    assert facts.losses == ((0, 0.5), (1, 0.5))
    assert [(one.event, one.severity) for one in facts.alerts] == [("queue_full", "warning")] * 2


def test_odd_losses_gaps_and_failures_are_told(place):
    """NaN is named by its step and left out of the curve; lost rows have their reason, warnings their text."""
    run = place.start(spool="")
    for number, loss in enumerate((2.0, float("nan"), 1.0)):
        with run.step(number):
            run.log(loss=loss)
    run.log(loss="many")
    run.event("queue_full", severity="warning", message="\x1b[2Jcleared")
    run.flush()
    with RunWatch(place.local, "run") as watched:
        facts = watched.look()
    assert facts.flagged == ((1, "loss:nan"),)
    assert facts.losses == ((0, 2.0), (2, 1.0))
    assert [(one.table, one.rows) for one in facts.gaps] == [("scalars", 1)]
    assert [(one.event, one.severity) for one in facts.alerts if one.event != "gap"] == [("queue_full", "warning")]
    assert any("step 1: loss:nan" in line for line in live_lines(facts, 80))


@pytest.mark.slow
def test_the_slowest_rank_and_the_end_are_told_of_other_processes(place, capsys):
    """Two ranks, one four times as slow: it stands first. Killed it died; the other ended. Nothing is left behind."""
    children = [Child(place, rank, 2) for rank in (0, 1)]
    with RunWatch(place.local, "live") as watched:
        for child in children:
            child.record(*range(6))
        before = _files(place.local)
        facts = watched.look()
        assert [one.rank for one in facts.ranks] == [1, 0]
        assert facts.ranks[0].slower_ratio > 1
        assert (facts.world_size, facts.state) == (2, "runs")
        assert command(["watch", "--once", "--local-dir", str(place.local)]) == 0
        assert "run live  records" in capsys.readouterr().out
        assert _files(place.local) == before
        children[1].process.send_signal(signal.SIGKILL)
        children[1].process.wait(60)
        assert {one.rank: one.state for one in watched.look().ranks} == {0: "runs", 1: "died"}
        for child in children:
            child.close()
        assert watched.look().state == "died"


def _files(root):
    return {path: path.stat().st_ino for path in root.rglob("*") if path.is_file() and path.suffix != ".spare"}


@pytest.mark.slow
def test_the_command_tells_each_step_at_once_and_ends_with_the_run(place):
    """Each line of --json that was made after a step ended has the step; the command ends when the run does."""
    child = Child(place)
    child.record(0)
    arguments = ["watch", "live", "--json", "--interval-s", "0.1", "--local-dir", str(place.local)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    watching = subprocess.Popen([sys.executable, "-m", "ranklake", *arguments], **pipes)
    for number in range(1, 4):
        ended = child.record(number)
        line = next(told for line in watching.stdout if (told := json.loads(line))["time_ns"] > ended)
        assert line["step"] == number
        assert line["behind_s"] >= 0
    child.close()
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["ranks"][0]["steps"] == 4


@pytest.mark.slow
def test_ctrl_c_ends_it_without_a_word(place):
    """Ctrl-C is how one stops watching: exit code 0, nothing on stderr."""
    child = Child(place)
    child.record(0)
    arguments = ["watch", "--interval-s", "0.1", "--local-dir", str(place.local)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    watching = subprocess.Popen([sys.executable, "-m", "ranklake", *arguments], **pipes)
    assert "step 0" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0
    assert watching.stderr.read() == ""
    for stream in (watching.stdout, watching.stderr):
        stream.close()
    child.close()


@pytest.mark.parametrize("columns", [1, 10, 40, 80, None])
def test_screens_fit_their_terminal(place, columns):
    """No line of the table or the plots is wider than the terminal, also before there is a step."""
    run = place.start()
    with RunWatch(place.local, "run") as watched:
        assert "no step recorded so far" in live_lines(watched.look(), columns)
        for number in range(200):
            with run.step(number):
                run.log(loss=1.0)
        facts = watched.look()
    assert live_line(facts).startswith("run  step 199  loss 1")
    if columns is not None and columns >= 40:
        assert all(len(line) <= columns for line in live_lines(facts, columns)), live_lines(facts, columns)


def test_a_run_that_is_not_here_is_named_with_those_that_are(place, capsys):
    """No run, an unknown one, and a beginning of two names: one line that says what there is."""
    assert command(["watch", "--once", "--local-dir", str(place.local)]) == 2
    assert "no run records here" in capsys.readouterr().err
    for name in ("gpt-large", "gpt-small"):
        with place.start(run=name).step(0):
            pass
    assert command(["watch", "gpt-smal1", "--local-dir", str(place.local)]) == 2
    assert "did you mean 'gpt-small'?" in capsys.readouterr().err
    with pytest.raises(NoLiveRunError, match="gpt-large, gpt-small"):
        find_run(place.local, "gpt")
    assert find_run(place.local, "gpt-l") == "gpt-large"
    assert command(["watch", "gpt-s", "--once", "--json", "--local-dir", str(place.local)]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "gpt-small"
