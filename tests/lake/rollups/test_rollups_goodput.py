"""The rollup `goodput`: wall time taken apart without a nanosecond left over."""

import itertools
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context, rows

from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.thresholds import QUIET_DAYS

KINDS = ("init", "productive", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
SECOND = 10**9


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def steps_at(starts, seconds=1.0, *, first=0, attempt=0, rank=0, **facts):
    """Return a row of `steps` for each start (seconds after noon)."""
    return [
        {"attempt": attempt, "rank": rank, "step": first + n, "ts": at(start), "step_time_s": seconds, **facts}
        for n, start in enumerate(starts)
    ]


def event(name, seconds, attempt=0, took=None, **facts):
    duration = None if took is None else round(took * SECOND)
    return {"event": name, "ts": at(seconds), "attempt": attempt, "duration_ns": duration, **facts}


def goodput_of(*, starts=None, days=(DAY,), **tables):
    """Compute step_rollup from steps, then goodput."""
    ctx = context(**tables)
    replace_table(ctx, "step_rollup", computed(ctx, "step_rollup", days))
    replace_table(ctx, "goodput_daily", computed(ctx, "goodput_daily", runs=starts))
    found = computed(ctx, "goodput", runs=starts).sort_by([("run", "ascending"), ("attempt", "ascending")]).to_pylist()
    for row in found:
        assert sum(row[f"{kind}_ns"] for kind in KINDS) == row["wall_ns"]
        assert all(row[f"{kind}_ns"] >= 0 for kind in KINDS)
    return found


def seconds_of(row):
    """Return the kinds that are not 0, in seconds."""
    return {kind: row[f"{kind}_ns"] / SECOND for kind in KINDS if row[f"{kind}_ns"]}


def test_a_plain_run():
    """Start at 0, steps from 5 to 15 with a gap of 2 s, end at 16: init 5, productive 10, unattributed 3."""
    (row,) = goodput_of(
        steps=steps_at([5, 6, 7, 8, 9, 12, 13, 14, 15, 16]),
        events=[event("run_start", 0), event("run_end", 18)],
    )
    assert seconds_of(row) == {"init": 5, "productive": 10, "unattributed": 3}
    assert (row["wall_ns"], row["goodput_ratio"]) == (18 * SECOND, 10 / 18)
    assert (row["ts"], row["end_ts"]) == (at(0), at(18))


def test_checkpoints_and_evaluations_within_steps_are_taken_out_of_them():
    """What the step's own columns say is no productive time."""
    (row,) = goodput_of(steps=steps_at([0, 10], 10.0, checkpoint_time_s=2.0, evaluation_time_s=3.0))
    assert seconds_of(row) == {"productive": 10, "checkpoint": 4, "evaluation": 6}


def test_checkpoints_and_evaluations_between_steps_come_from_events_and_spans():
    """An event ends at its time, a span begins at it; told twice they count once; in a step its own column holds."""
    (row,) = goodput_of(
        steps=steps_at([0, 10, 20]),
        events=[event("checkpoint", 5, took=3), event("checkpoint", 10.9, took=0.5), event("evaluation", 30, took=4)],
        spans=[
            {"ts": at(2), "name": "save", "kind": "checkpoint", "duration_ns": 3 * SECOND, "span_id": 1},
            {"ts": at(12), "name": "save", "kind": "checkpoint", "duration_ns": 2 * SECOND, "span_id": 2, "rank": 1},
        ],
    )
    assert seconds_of(row) == {"productive": 3, "checkpoint": 3, "evaluation": 4, "unattributed": 20}


def test_a_checkpoint_within_a_step_counts_once():
    """Its event and its span end some microseconds after the step; another one between steps counts beside it."""
    steps = steps_at([0, 1, 2, 10])
    steps[2]["checkpoint_time_s"] = 0.5
    late = [event("checkpoint", 3.000034, took=0.5, step=2), event("checkpoint", 6, took=1, step=2)]
    spans = [
        {"name": "save", "kind": "checkpoint", "step": 2, "ts": at(2.500037), "duration_ns": SECOND // 2, "span_id": 1}
    ]
    (row,) = goodput_of(steps=steps, events=late, spans=spans)
    assert row["checkpoint_ns"] == 1_500_000_000


def test_a_restart_costs_its_downtime_its_start_and_the_steps_done_again():
    """Attempt 0 ends at 10; attempt 1 starts at 25 and goes back from step 9 to 6 at 30: 4 s lost, restart 20 s."""
    first, second = goodput_of(
        steps=[*steps_at(range(10)), *steps_at(range(30, 40), first=6, attempt=1)],
        events=[event("run_start", 0), event("run_start", 25, attempt=1), event("run_end", 41, attempt=1)],
    )
    assert seconds_of(first) == {"productive": 6, "lost_work": 4}
    assert (first["steps"], first["steps_lost"]) == (10, 4)
    assert seconds_of(second) == {"restart": 20, "productive": 10, "unattributed": 1}
    assert second["ts"] == first["end_ts"]
    assert first["wall_ns"] + second["wall_ns"] == 41 * SECOND


def test_work_is_lost_once_however_often_it_is_done_again():
    """Steps that two later attempts repeat are lost in the earlier ones and productive in the last."""
    found = goodput_of(
        steps=[
            *steps_at(range(10)),
            *steps_at(range(20, 23), first=5, attempt=1),
            *steps_at(range(30, 40), first=5, attempt=2),
        ]
    )
    assert [row["steps_lost"] for row in found] == [5, 3, 0]
    assert [seconds_of(row).get("productive") for row in found] == [5, None, 10]


def test_a_slow_first_step_is_part_of_the_start():
    """Compilation makes the first step long: what is beyond a usual step is init, of a restart restart."""
    facts = [
        *steps_at([0], 101.0),
        *steps_at(range(101, 120), first=1),
        *steps_at([130], 61.0, first=20, attempt=1),
        *steps_at(range(191, 200), first=21, attempt=1),
    ]
    first, second = goodput_of(steps=facts)
    assert seconds_of(first) == {"init": 100, "productive": 20}
    assert seconds_of(second) == {"restart": 70, "productive": 10}


def test_hangs_and_long_silences_are_stalls():
    """A step of 10 minutes and a gap of 5 minutes are stalls; a gap of 30 s is unattributed."""
    facts = [*steps_at(range(10)), *steps_at([10], 601.0, first=10), *steps_at([611, 642, 942], first=11)]
    (row,) = goodput_of(steps=facts, events=[event("run_start", 0), event("run_end", 943)])
    assert seconds_of(row) == {"productive": 14, "stall": 600 + 299, "unattributed": 30}


def test_an_attempt_without_steps_was_all_start():
    """A run that died while starting has init alone; its restart without steps is all restart."""
    first, second = goodput_of(events=[event("run_start", 0), event("failure", 9), event("run_start", 20, attempt=1)])
    assert seconds_of(first) == {"init": 9}
    assert seconds_of(second) == {"restart": 11}
    assert (first["goodput_ratio"], second["goodput_ratio"]) == (0, 0)


def test_a_run_of_one_moment_has_no_ratio():
    """Without any length there is no ratio: NULL, not 0."""
    (row,) = goodput_of(events=[event("run_start", 0)])
    assert (row["wall_ns"], row["goodput_ratio"]) == (0, None)


def test_what_is_found_later_does_not_lengthen_the_run():
    """An `abandoned` event is written when the remains are found, hours later; the run ended when it was last seen."""
    (row,) = goodput_of(steps=steps_at(range(10)), events=[event("abandoned", 7200)])
    assert row["wall_ns"] == 10 * SECOND


def test_steps_that_rank_0_did_not_record_are_taken_from_the_others():
    """Where rank 0's rows are lost the other ranks' step stands in, and overlapping steps count once."""
    facts = steps_at(range(10), rank=1) + steps_at([0, 1, 2])
    (row,) = goodput_of(steps=facts)
    assert (row["steps"], seconds_of(row)) == (10, {"productive": 10})


def test_clocks_that_disagree_do_not_turn_time_around():
    """Attempt 1 says that it began before attempt 0, on a host whose clock is late: no account is negative."""
    first, second = goodput_of(
        steps=[*steps_at(range(10, 20)), *steps_at(range(5, 30), first=10, attempt=1)],
        events=[event("run_start", 10), event("run_start", 4, attempt=1)],
    )
    assert (first["ts"], first["wall_ns"]) == (at(10), 0)
    assert (second["ts"], second["wall_ns"]) == (at(10), 20 * SECOND)
    assert seconds_of(second) == {"productive": 20}
    first, second = goodput_of(events=[event("run_start", 10), event("run_start", 4, attempt=1)])
    assert (first["wall_ns"], second["wall_ns"], second["ts"]) == (0, 0, at(10))


def test_runs_do_not_mix():
    """Each run has its own account, on its own date."""
    found = goodput_of(
        steps=[{**row, "run": run} for run in ("a", "b") for row in steps_at(range(5 if run == "a" else 7))],
        starts={"a": DAY, "b": DAY - timedelta(days=1)},
    )
    assert [(row["run"], row["date"], row["steps"]) for row in found] == [
        ("a", DAY, 5),
        ("b", DAY - timedelta(days=1), 7),
    ]


def us(moment):
    """Return microseconds since noon."""
    return round((moment - NOON).total_seconds() * 1e6)


def extent(row):
    """Return begin and end of a step, an event (which ends at its time) or a span, in microseconds."""
    took = round(row["step_time_s"] * 1e6) if "step_time_s" in row else (row["duration_ns"] or 0) // 1000
    return (us(row["ts"]) - took, us(row["ts"])) if "event" in row else (us(row["ts"]), us(row["ts"]) + took)


def own_times(facts, events, spans):
    """Return {attempt: (begin, end)} of what each attempt recorded; attempts begin in order."""
    extents = {
        n: [extent(row) for row in [*facts, *events, *spans] if row["attempt"] == n]
        for n in sorted({row["attempt"] for row in [*facts, *events, *spans]})
    }
    begins = dict(
        zip(extents, itertools.accumulate((min(low for low, _ in one) for one in extents.values()), max), strict=True)
    )
    return {n: (begins[n], max(high for _, high in one)) for n, one in extents.items()}


def windows(facts, events, spans):
    """Return {attempt: (start, end)}: each account begins where the last one ended."""
    times, found, previous = own_times(facts, events, spans), {}, None
    for n, (begin, last) in times.items():
        following = min((other_begin for other, (other_begin, _) in times.items() if other > n), default=None)
        end = max(begin, last if following is None else min(last, following))
        found[n] = (begin if previous is None else previous, end)
        previous = end
    return found


def oracle(facts, events, spans):
    """Return {attempt: (wall, kinds)}, in microseconds, by asking of every piece between two cuts what covers it."""
    accounts = {}
    for n, (start, end) in windows(facts, events, spans).items():
        mine = [row for row in facts if row["attempt"] == n]
        again = min((row["step"] for row in facts if row["attempt"] > n), default=float("inf"))
        layers = [("lost_work", *extent(row)) for row in mine if row["step"] >= again]
        layers += [("productive", *extent(row)) for row in mine if row["step"] < again]
        saves = [row for row in events if row["attempt"] == n and row["event"] == "checkpoint"]
        layers += [("checkpoint", *extent(row)) for row in saves]
        layers += [("evaluation", *extent(row)) for row in spans if row["attempt"] == n]
        first = min((us(row["ts"]) for row in mine), default=end)
        layers.append(("restart" if accounts else "init", start, first))
        cuts = sorted({start, end, *(min(max(edge, start), end) for layer in layers for edge in layer[1:])})
        kinds = dict.fromkeys(KINDS, 0)
        for low, high in itertools.pairwise(cuts):
            kinds[next((kind for kind, *of in layers if of[0] <= low and high <= of[1]), "unattributed")] += high - low
        accounts[n] = (end - start, kinds)
    return accounts


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_timeline_adds_up_and_agrees_with_the_oracle(data):
    """Random attempts, overlapping steps, events, spans: exact sums and the oracle's times (below the stall limits)."""
    tick = st.integers(0, 40_000).map(lambda number: number / 1000)
    facts, events, spans = [], [], []
    for attempt in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, 5))
        shift = 4 * attempt  # so that clocks may disagree about which attempt began first
        for n in range(data.draw(st.integers(0, 6))):
            start = shift + data.draw(tick) / 4
            facts.append({"attempt": attempt, "step": first + n, "ts": at(start), "step_time_s": 0.5})
        events.append(
            {"attempt": attempt, "event": "run_start", "ts": at(shift + data.draw(tick) / 8), "duration_ns": None}
        )
        for _ in range(data.draw(st.integers(0, 2))):
            took = data.draw(st.integers(0, 3_000)) * 10**6
            events.append(
                {"attempt": attempt, "event": "checkpoint", "ts": at(shift + data.draw(tick) / 4), "duration_ns": took}
            )
        for n in range(data.draw(st.integers(0, 2))):
            span = {"name": "eval", "kind": "evaluation", "duration_ns": data.draw(st.integers(0, 3_000)) * 10**6}
            spans.append({"attempt": attempt, "ts": at(shift + data.draw(tick) / 4), "span_id": n, **span})
    found = goodput_of(steps=facts, events=events, spans=spans)
    expected = oracle(facts, events, spans)
    assert {row["attempt"] for row in found} == set(expected)
    for row in found:
        wall, kinds = expected[row["attempt"]]
        assert row["wall_ns"] == wall * 1000
        assert {kind: row[f"{kind}_ns"] for kind in KINDS} == {kind: value * 1000 for kind, value in kinds.items()}
    assert all(a["end_ts"] == b["ts"] for a, b in itertools.pairwise(found))


LATE = NOON.replace(hour=23, minute=59, second=50)
"""Ten seconds before midnight, so that timelines go over it."""
MIDNIGHT_US = us(NOON.replace(hour=0) + timedelta(days=1))
DAY_US = 86_400 * 10**6


def parts(facts, events, spans, epochs):
    """Return {(attempt, date, epoch): {kind: µs}}: every microsecond stretch between two cuts, asked what covers it."""
    found = defaultdict(lambda: dict.fromkeys(KINDS, 0))
    first_attempt = min(row["attempt"] for row in events)
    seen = [row for row in events if row["event"] != "abandoned"]
    attempt_begins = {n: begin for n, (begin, _) in own_times(facts, seen, spans).items()}
    for n, (start, end) in windows(facts, seen, spans).items():
        mine = [row for row in facts if row["attempt"] == n]
        again = min((row["step"] for row in facts if row["attempt"] > n), default=float("inf"))
        first = min((us(row["ts"]) for row in mine), default=end)
        layers = [("lost_work" if row["step"] >= again else "productive", *extent(row)) for row in mine]
        layers.sort()  # lost work goes before productive
        layers += [
            ("checkpoint", *extent(row)) for row in events if (row["attempt"], row["event"]) == (n, "checkpoint")
        ]
        layers += [("evaluation", *extent(row)) for row in spans if row["attempt"] == n]
        layers.append(("init" if n == first_attempt else "restart", start, first))
        begins = {step_begin(mine, row): row["value"] for row in epochs if row["attempt"] == n}
        cuts = {start, end, attempt_begins[n], *begins, *(edge for layer in layers for edge in layer[1:])}
        stretches = []  # [kind, low, high], neighbours that nothing covers made one
        for low, high in itertools.pairwise(sorted(cut for cut in cuts if start <= cut <= end)):
            kind = next((kind for kind, *of in layers if of[0] <= low and high <= of[1]), "unattributed")
            if kind == "unattributed" and stretches and stretches[-1][0] == kind:
                stretches[-1][2] = high
            else:
                stretches.append([kind, low, high])
        for kind, low, high in stretches:
            told = "stall" if kind == "unattributed" and high - low > 60 * 10**6 else kind
            edges = sorted({low, high, *(cut for cut in begins if low < cut < high)})
            for begin, until in itertools.pairwise(with_midnights(edges)):
                epoch = max(((at, value) for at, value in begins.items() if at <= begin), default=(None, None))[1]
                found[n, at(begin / 10**6).date(), epoch][told] += until - begin
    return {key: kinds for key, kinds in found.items() if any(kinds.values())}


def with_midnights(edges):
    """Return times with the midnights between them; of a gap of more than 31 whole days its first and last."""
    found = edges[:1]
    for low, high in itertools.pairwise(edges):
        first = MIDNIGHT_US + (low - MIDNIGHT_US) // DAY_US * DAY_US + DAY_US
        midnights = list(range(first, high, DAY_US))
        found += (midnights if len(midnights) <= QUIET_DAYS + 1 else [midnights[0], midnights[-1]]) + [high]
    return found


def step_begin(mine, row):
    """Return when the step began that an epoch was first told with."""
    return next(us(fact["ts"]) for fact in mine if fact["step"] == row["step"])


def drawn(data):
    """Draw rows of steps, events, spans and epochs of up to three attempts: in any order, since clocks go back."""
    facts, events, spans, epochs = [], [], [], []

    def moment(low, high):
        return LATE + timedelta(milliseconds=data.draw(st.integers(low, high)))

    for attempt in range(data.draw(st.integers(1, 3))):
        # attempts overlap, lie apart, or months apart
        shift = data.draw(st.sampled_from([0, 4_000, 90_000, 40 * DAY_US // 1000])) * attempt
        first, ranks = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 3))
        events.append({"attempt": attempt, "event": "run_start", "ts": moment(shift, shift + 500), "duration_ns": None})
        for n in range(data.draw(st.integers(0, 6))):
            ts = moment(shift, shift + data.draw(st.sampled_from([15_000, 200_000])))  # in any order: clocks go back
            facts += [
                {"attempt": attempt, "rank": rank, "step": first + n, "ts": ts, "step_time_s": 0.5}
                for rank in range(ranks)
            ]
            if n % 2 == 0 and data.draw(st.booleans()):
                epochs.append({"attempt": attempt, "step": first + n, "ts": ts, "value": (first + n) // 2})
        for name in ("checkpoint", "evaluation"):
            took = data.draw(st.integers(0, 3_000)) * 10**6
            ts = moment(shift, shift + 15_000)
            if name == "checkpoint":
                events.append({"attempt": attempt, "event": name, "ts": ts, "duration_ns": took})
            else:
                spans.append(
                    {"attempt": attempt, "name": name, "kind": name, "ts": ts, "span_id": 1, "duration_ns": took}
                )
        if data.draw(st.booleans()):  # it was killed, and is found hours later
            late = LATE + timedelta(hours=5)
            events.append({"attempt": attempt, "event": "abandoned", "ts": late, "duration_ns": None})
    epochs = list({(row["attempt"], row["ts"]): row for row in epochs}.values())
    return facts, events, spans, epochs


def account(facts, events, spans, epochs):
    """Compute goodput_daily; return {(attempt, date, epoch): {kind: µs}}, its rows, and the session."""
    days = sorted({row["ts"].date() for row in [*facts, *epochs]}) or [DAY]
    scalars = [{**row, "metric": "train/epoch"} for row in epochs]
    ctx = context(steps=facts, events=events, spans=spans, scalars=scalars)
    replace_table(ctx, "step_rollup", computed(ctx, "step_rollup", days))
    replace_table(ctx, "run_epochs", computed(ctx, "run_epochs", days))
    daily = computed(ctx, "goodput_daily")
    found = defaultdict(lambda: dict.fromkeys(KINDS, 0))
    for row in daily.to_pylist():
        for kind in KINDS if row["wall_ns"] else ():
            found[row["attempt"], row["date"], row["epoch"]][kind] += row[f"{kind}_ns"] // 1000
    return found, daily, ctx


def test_steps_in_a_row_are_swept_as_one_and_accounted_for_one_by_one():
    """Gaps at midnight, at an epoch, of a stall and with other work; clocks set back; work redone; steps of no time."""
    late = us(LATE) / 10**6

    def steps(starts, seconds=0.5, **facts):
        return steps_at([late + start for start in starts], seconds, **facts)

    kept = [*(0.6 * n for n in range(20)), 10.2, *range(13, 17)]  # midnight is in a gap, from 9.9 to 10.2 s
    facts = [
        *steps(kept),
        *steps([18], 5.0, first=27),
        *steps([19, 20, 24, 25.5, 27, 28], first=28),  # lost; two end before the one that is kept, two are in attempt 1
        *steps([12.5, 12.6], 0.0, first=25),
        *steps([*range(30, 40), 99.5, 160.001, *range(161, 170), 165.2, 165.9], first=28, attempt=1),
    ]
    epochs = [{"attempt": n, "step": step, "ts": at(late), "value": value}
              for n, step, value in ((0, 0, 0), (0, 7, 1), (1, 31, 2))]  # fmt: skip
    events = [event("run_start", late - 3), event("run_start", late + 26.5, attempt=1)]
    events += [event("checkpoint", late + end, took=took) for end, took in ((3.55, 0.02), (5.75, 1.3), (11.8, 0.5))]
    spans = [{"ts": at(late + 36.6), "kind": "evaluation", "name": "e", "duration_ns": 2 * SECOND, "attempt": 1}]
    found, daily, _ = account(facts, events, [{**row, "span_id": 1} for row in spans], epochs)
    assert found == parts(facts, events, spans, epochs)
    table = daily.to_pylist()
    assert sum(row["stall_ns"] for row in table) == 60_001_000_000  # the gap of 60 s is none
    assert {(row["attempt"], row["date"].day, row["epoch"]): (row["steps"], row["steps_lost"])
            for row in table if row["steps"]} == {
        (0, 1, 0): (7, 0), (0, 1, 1): (10, 0), (0, 2, 1): (17, 6), (1, 2, None): (3, 0), (1, 2, 2): (20, 0),
    }  # fmt: skip


@pytest.mark.slow
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_days_and_epochs_agree_with_the_oracle_and_add_up(data):
    """Killed attempts, clocks set back, gaps, midnights, epochs, older checkpoints, other sizes; sums over days."""
    facts, events, spans, epochs = drawn(data)
    found, daily, ctx = account(facts, events, spans, epochs)
    replace_table(ctx, "goodput_daily", daily)
    lead = [row for row in facts if row["rank"] == 0]
    assert found == parts(lead, events, spans, epochs)
    attempts = computed(ctx, "goodput").to_pylist()
    for row in attempts:
        mine = [one for one in daily.to_pylist() if one["attempt"] == row["attempt"]]
        for name in ("wall_ns", "steps", "steps_lost", "downtime_ns", *(f"{kind}_ns" for kind in KINDS)):
            assert row[name] == sum(one[name] for one in mine), name
        assert sum(row[f"{kind}_ns"] for kind in KINDS) == row["wall_ns"]
        assert row["steps"] == len([fact for fact in lead if fact["attempt"] == row["attempt"]])
    replace_table(ctx, "goodput", computed(ctx, "goodput"))
    (run,) = computed(ctx, "run_goodput").to_pylist()
    assert run["wall_ns"] == sum(row["wall_ns"] for row in attempts)
    if run["wall_ns"]:
        weighted = sum(Fraction(row["goodput_ratio"]) * row["wall_ns"] for row in attempts if row["wall_ns"])
        assert run["goodput_ratio"] == pytest.approx(float(weighted / run["wall_ns"]), rel=1e-12)


def daily_of(*events):
    """Compute goodput_daily of a run that tells events alone."""
    return computed(context(events=list(events)), "goodput_daily").sort_by("ts").to_pylist()


@pytest.mark.parametrize(("days", "rows_expected"), [(QUIET_DAYS + 1, QUIET_DAYS + 2), (QUIET_DAYS + 2, 3), (900, 3)])
def test_quiet_days_are_one_row(days, rows_expected):
    """A run that was seen twice: up to a month of quiet days has a row each, more of them one, on the first of them."""
    found = daily_of(event("run_start", 0), event("run_end", days * 86_400))
    assert len(found) == rows_expected
    assert sum(row["wall_ns"] for row in found) == days * 86_400 * SECOND
    assert all(row["wall_ns"] == sum(row[f"{kind}_ns"] for kind in KINDS) for row in found)
    assert all(one["end_ts"] == other["ts"] for one, other in itertools.pairwise(found))
    assert all(row["date"] == row["ts"].date() for row in found)
    if rows_expected == 3:
        assert found[1]["date"] == DAY + timedelta(days=1)
        assert found[1]["end_ts"] == NOON.replace(hour=0) + timedelta(days=days)


def test_a_clock_of_1970_makes_three_rows():
    """One rank that starts in 1970, all others today: 20,000 days of start are one row between two."""
    epoch = {"event": "rank_start", "rank": 5, "ts": datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)}
    found = daily_of(epoch, event("run_start", 0), event("run_end", 60))
    assert [str(row["date"]) for row in found] == ["1970-01-01", "1970-01-02", "2026-03-01"]
    assert sum(row["wall_ns"] for row in found) == us(at(60)) * 1000 - us(epoch["ts"]) * 1000
    assert {kind for row in found for kind in seconds_of(row)} == {"init"}


@pytest.mark.parametrize("threads", [1, 4])
def test_parallelism_does_not_matter(threads):
    """The account is the same however many threads compute it."""
    facts = [{**row, "run": f"r{n}"} for n in range(20) for row in steps_at(range(n + 1))]
    ctx = context(threads=threads, steps=rows("steps", facts))
    replace_table(ctx, "step_rollup", computed(ctx, "step_rollup"))
    runs = {f"r{n}": DAY for n in range(20)}
    replace_table(ctx, "goodput_daily", computed(ctx, "goodput_daily", runs=runs))
    found = computed(ctx, "goodput", runs=runs).to_pylist()
    assert {row["run"]: row["productive_ns"] for row in found} == {f"r{n}": (n + 1) * SECOND for n in range(20)}
