"""A run's page says what ended it, what changed before it, and, to a role that sees messages, its log lines."""

from dataclasses import replace
from datetime import timedelta

import pytest
from page_read import Read
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append

from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import gather
from ranklake.insight.runs.report import MOST_CHARACTERS, MOST_LINES, runs_state
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.roles import Role
from ranklake.masking.masks import Mask
from ranklake.views.html.run_pages import section
from ranklake.views.html.run_tables import failed_ends_table
from ranklake.views.html.shell import render
from ranklake.views.run import run_lines
from ranklake.views.run_causes import failure_cause

AT = NOON + timedelta(seconds=50)
TABLES = frozenset(load_contracts())


def lines():
    """Yield log lines of a run: an old error, many of information, a long one with an address and markup in it."""
    whose = {"run": "alpha-1", "incarnation": 10}
    yield {**whose, "rank": 1, "ts": NOON, "severity_text": "ERROR", "severity_number": 17, "message": "first of all",
           "slot": 900}  # fmt: skip
    for number in range(MOST_LINES + 10):
        said = "<b>mail lovelace@example.org " + "x" * 2 * MOST_CHARACTERS if number == MOST_LINES else f"line {number}"
        yield {**whose, "ts": NOON + timedelta(seconds=number), "severity_text": "INFO", "severity_number": 9,
               "message": said, "slot": number}  # fmt: skip


def endings():
    """Yield ends of runs: one whose launcher ended the rest, one that was preempted, one asked to end much later."""
    told = (
        ("alpha-2", 1, "abandoned", 0.0, "{}"), ("alpha-2", 0, "preemption", 0.2, '{"signal":"SIGTERM"}'),
        ("alpha-2", 0, "failure", 0.4, '{"exception":"RuntimeError"}'),
        ("alpha-3", 1, "failure", 0.0, '{"thread":"loader","exception":"OSError"}'),
        ("alpha-3", 0, "preemption", 9.0, '{"signal":"SIGTERM"}'), ("alpha-3", 1, "preemption", 9.1, "{}"),
        ("beta", 0, "failure", 0.0, "{}"), ("beta", 1, "preemption", 61.0, "{}"),
    )  # fmt: skip
    for slot, (run, rank, event, after_s, attributes) in enumerate(told):
        yield {"run": run, "incarnation": 20 + rank, "rank": rank, "event": event, "severity": "error", "slot": slot,
               "ts": NOON + timedelta(hours=1, seconds=after_s), "attributes": attributes}  # fmt: skip


def failed(lake, run):
    """Return what is known of a run, as of one that failed."""
    facts = gather(asking(lake), run)
    return replace(facts, summary=replace(facts.summary, rows=({**facts.summary.first_row, "status": "failed"},)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs, one of which lost a rank, and logged."""
    made = lake_of_runs(tmp_path_factory.mktemp("causes"))
    ended_rank = {"run": "alpha-1", "incarnation": 11, "rank": 1, "severity": "error"}
    append(made, "events", [
        {**ended_rank, "event": "abandoned", "ts": NOON + timedelta(seconds=39), "slot": 1},
        *endings(),
    ])  # fmt: skip
    append(made, "runs", [
        {"run": "alpha-2", "incarnation": 99, "ts": NOON, "launcher": "torchrun"}
    ])  # fmt: skip
    append(made, "logs", list(lines()))
    return made


def pages(lake, role=None):
    """Return pages of runs by title, as text."""
    return {page.title: render(page).decode() for page in section(runs_state(lake, "", role)).pages}


def test_the_rank_that_died_first_is_named(lake):
    """Before all else, with what to look at; of a run that finished nothing."""
    ask = asking(lake)
    found = failure_cause(gather(ask, "alpha-1"))
    assert found.summary == "Rank 1 died without a word after step 29; 1 other rank ended 1 s after it"
    assert "killed, ran out of memory, or lost its node" in found.next_step
    assert failure_cause(gather(ask, "alpha-2")).summary == ""


def test_a_rank_that_the_launcher_ended_is_no_preemption(lake):
    """It is told as a consequence where the order of ends and the launcher carry it; later, or alone, as before."""
    facts = failed(lake, "alpha-2")
    assert [row["ending"] for row in facts.ends.rows] == ["abandoned", "stopped", "failure"]
    assert [row["follows"] for row in facts.ends.rows] == [None, 1, 1]
    said = "Rank 1 died without a word after step 29; the launcher (torchrun) then ended 1 other rank, 200 ms after it"
    assert failure_cause(facts).summary == said
    shown = failed_ends_table(facts)
    assert [shown.columns[1].text(row["ending"]) for row in shown.rows] == [
        "died without a word", "ended by the launcher (torchrun)", "failed",
    ]  # fmt: skip
    nobody = replace(facts, code=replace(facts.code, rows=()))
    assert (
        failure_cause(nobody).summary == "Rank 1 died without a word after step 29; 1 other rank ended 200 ms after it"
    )
    assert "torchrun" not in failed_ends_table(nobody).columns[1].text("stopped")


def test_a_preemption_stays_one(lake):
    """Of all ranks, with a thread's failure before; and of one that was asked to end a minute after another failed."""
    facts = failed(lake, "alpha-3")
    assert [row["ending"] for row in facts.ends.rows] == ["preemption", "preemption"]
    assert failure_cause(facts).summary == "2 ranks, first rank 0, were asked to end (SIGTERM) after step 29"
    late = failed(lake, "beta")
    assert [(row["ending"], row["follows"]) for row in late.ends.rows] == [("failure", None), ("preemption", None)]
    assert failure_cause(late).summary == "Rank 0 failed after step 0; 1 other rank ended 1.0 min after it"


def test_a_fault_that_was_injected_is_no_riddle(lake):
    """Whoever is paged is told that it was done on purpose, before any guess at why."""
    facts = gather(asking(lake), "alpha-1")
    told = replace(facts.summary, rows=({**facts.summary.first_row, "injected": "killed rank 1"},))
    assert failure_cause(replace(facts, summary=told)).next_step == "It was done on purpose: killed rank 1."


@pytest.mark.slow
def test_pages_tell_what_changed_and_no_message(lake):
    """Since the run before of the same job; who may see messages is not known of the whole site's readers."""
    text = pages(lake)
    assert "Since run alpha-1 1 setting changed" in text["alpha-2"]
    rows = text["alpha-3"].partition('id="changed-0-table"')[2].partition("</table>")[0]
    assert [one in rows for one in ("opt.name", "adam", "sgd", "label größe", "not set", "lr")] == [True] * 6
    assert "Changed since" not in text["beta"]  # of another job
    assert "Rank 1 died" in text["alpha-1"].partition('class="tiles ')[0]
    assert "line 3" not in text["alpha-1"]
    assert "messages hold what people wrote" in text["alpha-1"]


@pytest.mark.slow
def test_a_role_sees_log_lines_as_it_may(lake):
    """Redacted, cut, errors first, no more than so many; without the right to messages the reason, and no message."""
    contract = load_contracts()["logs"]
    operational = frozenset({"operational"})
    redacting = Role("r", operational, TABLES, masked=frozenset({"personal"}))
    text = pages(lake, redacting)["alpha-1"]
    rows = text.partition('id="lines-table"')[2].partition("</table>")[0].split("<tr>")[2:]
    assert len(rows) == MOST_LINES
    assert "first of all" in rows[0]
    assert "lovelace@example.org" not in text
    assert "&lt;b&gt;mail" in text
    assert max(map(len, rows)) < 2 * MOST_CHARACTERS + 1000
    assert any(given.get("data-filters") == "lines-table" for _, given in Read(text).elements)
    hidden = pages(lake, Role("h", operational, TABLES))["alpha-1"]
    assert "line 3" not in hidden
    assert "role h does not see it" in hidden
    nothing = Role("n", operational, TABLES, column_masks={("logs", contract.column("message").id): Mask("nullify")})
    assert "role n sees logs.message as nullify" in pages(lake, nothing)["alpha-1"]


@pytest.mark.slow
def test_a_run_that_was_tagged_ten_thousand_times_has_a_page(lake):
    """Some tags and values are told, each cut short, and how many more there are; the page stays small."""
    said = [
        *({"kind": "tag", "key": f"t{number}", "value": "w" * 8000} for number in range(5000)),
        *({"kind": "summary", "key": f"s{number}", "number": 1.5} for number in range(5000)),
    ]
    append(lake, "annotations", [
        {"run": "beta", "incarnation": 400, "slot": slot, "ts": NOON, **one} for slot, one in enumerate(said)
    ])  # fmt: skip
    text = pages(lake)["beta"]
    assert len(text) < 400_000
    assert text.count("and 4,950 more") == 2
    assert ">s0=1.5<" in text
    lines = run_lines(gather(asking(lake), "beta"), None)
    assert sum(map(len, lines)) < 20_000
    assert sum("and 4,950 more" in line for line in lines) == 2
