"""Sampling: which values are kept, what they weigh, and that the books still add up."""

import contextlib
import math
import os
import subprocess
import sys
from collections import Counter

import pytest
from bringing import adds_up, bring
from hypothesis import given
from hypothesis import strategies as st
from recorded import check_books, gaps, rows

from ranklake.capture.common.ratios import is_sampled, parse_rules, ratio_of, seed_of, threshold_of
from ranklake.capture.metrics.sampling import FEWEST_STEPS, MOST_HELD
from ranklake.cli import run as cli
from ranklake.lake.store.lake import Lake
from ranklake.segments.segment import SAMPLED_OUT


def scalars(place, metric):
    """Return (step, value, flag, weight) of a metric's rows."""
    return [
        (r["step"], r["value"], r["value_flag"], r["weight"])
        for r in rows(place.spool, "scalars")
        if r["metric"] == metric
    ]


def take_steps(run, numbers, log, *, slow=()):
    """Take steps whose ends are dated back, so that those in `slow` last a minute and the others a second.

    Beside these a machine that is busy with something else adds nothing that counts.
    """
    for number in numbers:
        with run.step(number) as step:
            log(number)
            step.start -= 60 * 10**9 if number in slow else 10**9 - 10**8 * (number % 2)


def test_rules_are_read_and_the_first_that_fits_holds():
    """Patterns are tried in their order; what fits none is kept whole."""
    rules = parse_rules(" eval/loss=1, eval/*=0.1 ,debug/*=0.01,")
    assert ratio_of(rules, "eval/loss") == 1.0
    assert ratio_of(rules, "eval/other") == 0.1
    assert ratio_of(rules, "debug/a/b") == 0.01
    assert ratio_of(rules, "train/loss") == 1.0


@pytest.mark.parametrize("bad", ["eval/*", "eval/*=2", "eval/*=-0.1", "eval/*=x", "=0.1", "a=nan"])
def test_a_bad_rule_is_refused(bad, place, warnings_told):
    """It is a warning and the default holds, so nothing is sampled."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_rules(bad)
    run = place.start(sampling=bad)
    run.log({"eval/a": 1.0}, step=1)
    run.close()
    assert len(scalars(place, "eval/a")) == 1
    assert "sampling" in warnings_told.text


def test_every_process_chooses_the_same_steps():
    """The choice follows from run, metric and step, not from the process, its hash seed or its rank."""
    code = (
        "from ranklake.capture.common.ratios import *\n"
        "print([n for n in range(-5, 300) if is_sampled(seed_of('run', 'a/b'), n, threshold_of(0.1))])"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    here = [n for n in range(-5, 300) if is_sampled(seed_of("run", "a/b"), n, threshold_of(0.1))]
    assert done.stdout.strip() == str(here)
    pinned = [1, 2, 3, 4, 7, 11, 21, 23, 24, 25, 27, 28, 29, 30, 34, 36]  # another hash would keep other steps
    assert [n for n in range(40) if is_sampled(12345, n, threshold_of(0.25))] == pinned


@given(st.text(max_size=20), st.floats(0.05, 0.95))
def test_the_share_kept_is_the_ratio(name, ratio):
    """Over many steps, within five standard deviations of the binomial."""
    seed, steps = seed_of("run", name.encode("utf-8", "replace").decode()), 2000
    kept = sum(is_sampled(seed, step, threshold_of(ratio)) for step in range(steps))
    assert abs(kept - steps * ratio) <= 5 * math.sqrt(steps * ratio * (1 - ratio))


def test_metrics_choose_independently():
    """The steps that two metrics keep overlap by chance alone."""
    one, two = ({n for n in range(10_000) if is_sampled(seed_of("r", m), n, threshold_of(0.1))} for m in "ab")
    assert 50 < len(one & two) < 150


def test_a_share_is_kept_with_its_weight_and_the_rest_is_counted(place, warnings_told):
    """Stored and sampled out are all that was recorded; no warning is told, for it is what the user wants."""
    run = place.start(sampling="eval/*=0.25")
    handle, other = run.scalar("eval/handle"), run.scalar("other")
    for n in range(400):
        handle.add(float(n), n)
        other.add(1.0, n)
        run.log({"eval/logged": float(n), "plain": 2.0}, step=n)
    run.close()
    for metric in ("eval/handle", "eval/logged"):
        kept = scalars(place, metric)
        assert {step for step, *_ in kept} == {
            n for n in range(400) if is_sampled(seed_of("run", metric), n, threshold_of(0.25))
        }
        assert {weight for *_, weight in kept} == {4.0}
    assert len(scalars(place, "other")) == len(scalars(place, "plain")) == 400
    assert {weight for *_, weight in scalars(place, "plain")} == {None}
    kept = len(scalars(place, "eval/handle")) + len(scalars(place, "eval/logged"))
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 800 - kept}}
    assert run.gaps() == {"scalars": {SAMPLED_OUT: 800 - kept}}
    assert warnings_told.text == ""
    assert [r for r in rows(place.spool, "events") if r["event"] == "gap"] == []
    check_books(place.spool)


def test_what_sampling_leaves_out_is_no_gap_in_the_books(place, tmp_path, capsys):
    """Status has a column of its own for it; only what is lost beside it is a gap."""
    run = place.start()
    kept = run.scalar("eval/kept", keep=0.25)
    for n in range(400):
        kept.add(float(n), n)
    run.log({"": 1.0})
    run.close()
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, place.spool)
    books = adds_up(lake, place.spool)["scalars"]
    stored = len(rows(place.spool, "scalars"))
    assert (books.sampled_out, books.gaps) == (400 - len(scalars(place, "eval/kept")), 1)
    assert books.recorded == stored + books.sampled_out + books.gaps
    assert cli(["status", "--lake", str(tmp_path / "lake"), "--spool", str(place.spool)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert "sampled out" in heading
    (line,) = (line for line in lines if line.startswith("scalars"))
    assert line.split()[1:6] == [f"{n:,}" for n in (books.recorded, stored, 0, books.sampled_out, 1)]


def test_all_ranks_keep_the_same_steps(place):
    """Two ranks of one run store values of the same steps."""
    for rank in (0, 1):
        run = place.start(rank=rank, world_size=2, sampling="a=0.2")
        for n in range(200):
            run.log({"a": 1.0, "b": 1.0}, step=n)
        run.close()
    by_rank = [
        {r["step"] for r in rows(place.spool, "scalars") if r["metric"] == "a" and r["rank"] == k} for k in (0, 1)
    ]
    assert by_rank[0] == by_rank[1]
    assert 10 < len(by_rank[0]) < 80


def test_keep_of_a_handle_wins_over_the_rules(place):
    """`keep=1` keeps all of what the rules would sample; `keep=0` mutes; a bad one is told and left out."""
    run = place.start(sampling="a/*=0.01")
    whole, mute, bad = run.scalar("a/x", keep=1), run.scalar("y", keep=0.0), run.scalar("z", keep="much")
    for n in range(50):
        whole.add(1.0, n)
        mute.add(1.0, n)
        bad.add(1.0, n)
    run.close()
    assert len(scalars(place, "a/x")) == len(scalars(place, "z")) == 50
    assert scalars(place, "y") == []
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 50}}


def test_values_that_are_not_finite_are_always_kept_and_weigh_one(place):
    """NaN and infinities stand for themselves: their number is exact, and finite ones' estimates are not touched."""
    run = place.start()
    handle = run.scalar("a", keep=0.1)
    for n in range(300):
        handle.add(math.nan if n % 10 == 0 else math.inf if n % 10 == 1 else 1.0, n)
    run.close()
    flagged = [row for row in scalars(place, "a") if row[2] is not None]
    assert Counter(flag for _, _, flag, _ in flagged) == {"nan": 30, "+inf": 30}
    assert {weight for *_, weight in flagged} == {1.0}


def test_a_slow_step_keeps_all_its_values_with_weight_one(place):
    """Both the values that the hash refuses and, put right in their slots, those that it chose."""
    run = place.start(sampling="a=0.5", slow_step_ratio=3.0)
    slow = range(FEWEST_STEPS, 120, 5)
    take_steps(run, range(120), lambda n: run.log({"a": float(n)}), slow=slow)
    run.close()
    kept = {step: weight for step, _, _, weight in scalars(place, "a")}
    for n in range(120):
        if n in slow:
            assert kept[n] == 1.0
        else:
            assert (n in kept) == is_sampled(seed_of("run", "a"), n, threshold_of(0.5))
            assert kept.get(n, 2.0) == 2.0
    assert {step: value for step, value, *_ in scalars(place, "a")} == {n: float(n) for n in kept}
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 120 - len(kept)}}
    check_books(place.spool)


def test_a_failed_step_keeps_all_its_values(place):
    """What was logged before an error is what one looks at first."""
    run = place.start(sampling="a=0.0, b=0.0")
    for n in range(6):
        with contextlib.suppress(ZeroDivisionError), run.step(n):
            run.log({"a": 1.0, "b": 2.0})
            _ = 1 / (4 - n)
    run.close()
    assert scalars(place, "a") == [(4, 1.0, None, 1.0)]
    assert scalars(place, "b") == [(4, 2.0, None, 1.0)]
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 10}}


def test_a_slow_step_in_which_files_were_sealed_stays_without_bias(place):
    """Chosen values are sealed with their weight; then refused ones are kept with weight 0, in no estimate."""
    run = place.start(sampling="a=0.5", slow_step_ratio=3.0)
    handle = run.scalar("a")
    take_steps(run, range(FEWEST_STEPS), lambda n: None)
    with run.step(1000) as step:
        for n in range(64):
            handle.add(1.0, n)
        assert run.flush()
        for n in range(64, 100):
            handle.add(1.0, n)
        step.start -= 60 * 10**9
    run.close()
    kept = {step: weight for step, _, _, weight in scalars(place, "a")}
    assert len(kept) == 100
    chosen_ones = {n for n in range(100) if is_sampled(seed_of("run", "a"), n, threshold_of(0.5))}
    assert kept == {n: 1.0 if n >= 64 else 2.0 if n in chosen_ones else 0.0 for n in range(100)}
    assert gaps(place.spool) == {}


def test_the_estimator_has_no_bias(place):
    """Weighed sums over many metrics, a third of whose steps are slow with large values, come out at the true sum."""
    run = place.start(sampling="m/*=0.2", slow_step_ratio=3.0)
    metrics, steps = 40, 60
    slow = set(range(FEWEST_STEPS, steps, 3))
    names = [f"m/{k}" for k in range(metrics)]
    take_steps(run, range(steps), lambda n: [run.log({name: 50.0 if n in slow else 1.0}) for name in names], slow=slow)
    run.close()
    stored = [r for r in rows(place.spool, "scalars") if r["metric"] in names]
    ordinary, extra = steps - len(slow), len(slow)
    weighed = sum(r["weight"] * r["value"] for r in stored)
    exact = metrics * (ordinary + 50.0 * extra)
    deviation = math.sqrt(metrics * ordinary * (1 / 0.2 - 1))  # slow steps add none: all of theirs are kept
    assert abs(weighed - exact) < 4 * deviation
    assert sum(r["weight"] * r["value"] for r in stored if r["step"] in slow) == metrics * 50.0 * extra


def test_more_than_can_be_held_is_counted_at_once(place):
    """Memory is bounded; what does not fit is sampled out though the step fails."""
    run = place.start(sampling="a=0.0")
    handle = run.scalar("a")
    with contextlib.suppress(ZeroDivisionError), run.step(1):
        for _ in range(MOST_HELD + 25):
            handle.add(1.0)
        _ = 1 / 0
    run.close()
    assert len(scalars(place, "a")) == MOST_HELD
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 25}}


def test_a_step_that_is_open_at_the_close_is_counted(place):
    """What is held when the run ends is sampled out, and counted."""
    run = place.start(sampling="a=0.0")
    run.step(1).__enter__()
    run.log(a=1.0)
    run.close()
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 1}}
    check_books(place.spool)


def test_bad_values_of_sampled_metrics_are_gaps(place):
    """They are counted by their reason, as everywhere."""
    run = place.start(sampling="a=0.5")
    handle = run.scalar("a")
    handle.add("text")
    handle.add(1.0, "seven")
    handle.add()
    run.log({"a": object()})
    run.scalar(["a"]).add(1.0)
    run.close()
    assert gaps(place.spool) == {"scalars": {"bad value": 3, "bad step": 1, "bad name": 1}}


def test_a_forked_child_counts_its_own(place):
    """Values that the parent holds at the fork are the parent's alone."""
    run = place.start(sampling="a=0.0")
    with run.step(1):
        run.log(a=1.0)
        pid = os.fork()
        if pid == 0:
            run.log(a=1.0)
            run.close()
            os._exit(0)
        os.waitpid(pid, 0)
    run.close()
    place.start(sampling="").close()
    assert gaps(place.spool) == {"scalars": {SAMPLED_OUT: 2}}
