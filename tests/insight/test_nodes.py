"""Nodes of ranks: told by number wherever a rank is slow or dead, with the name of the host at the prompt alone."""

from dataclasses import replace

import pytest
from page_read import compared
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.insight.overview.oncall import of_failed, of_ranks, of_stragglers
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import gather, nodes, place_text
from ranklake.insight.runs.report import runs_state
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.ingest.status.liveness import RankState
from ranklake.lake.query.roles import Role
from ranklake.views.html.run_pages import section
from ranklake.views.html.shell import render
from ranklake.views.run import run_lines
from ranklake.views.run_causes import NOTHING_SAVED, failure_cause

HOSTS = ("pc-lovelace", "pc-lovelace", "pc-bob", "pc-bob", None)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake whose failed run is on two hosts, and one rank's host is not known; rank 3 started twice."""
    made = lake_of_runs(tmp_path_factory.mktemp("nodes"))
    append(made, "ranks", [
        {"run": "alpha-1", "rank": rank, "incarnation": 50 + rank, "ts": NOON, "host": host, "local_rank": rank % 2,
         "pid": 100 + rank, "device_name": "H100"}
        for rank, host in enumerate(HOSTS)
    ] + [{"run": "alpha-1", "rank": 3, "incarnation": 90, "ts": NOON, "host": "pc-bob", "local_rank": 1}])  # fmt: skip
    append(made, "events", [
        {"run": "alpha-1", "incarnation": 52, "rank": 2, "severity": "error", "event": "abandoned", "ts": NOON}
    ])  # fmt: skip
    return made


def test_nodes_are_numbered_by_their_lowest_rank(lake):
    """A row a rank, however often it started; an unknown host is no node; of no run nothing is asked."""
    rows = nodes(asking(lake), ["alpha-1"]).rows
    assert [(row["rank"], row["node"], row["node_count"], row["rank_count"]) for row in rows] == [
        (0, 0, 2, 2), (1, 0, 2, 2), (2, 1, 2, 2), (3, 1, 2, 2), (4, None, 2, 1),
    ]  # fmt: skip
    assert [row["node"] for row in nodes(asking(lake), ["alpha-1"], {3}).rows] == [1]
    assert nodes(asking(lake), ["alpha-1"], set()).rows == ()
    assert nodes(asking(lake), []).rows == ()


def test_where_ranks_are_is_said_in_a_few_words(lake):
    """One rank, several on one node, on some, on the only one, and nobody knows where."""
    rows = nodes(asking(lake), ["alpha-1"]).rows
    assert place_text(rows[2:3]) == "on node 1 of 0 to 1, local rank 0"
    assert place_text(rows[2:4]) == "all on node 1 of 0 to 1"
    assert place_text(rows) == "on 2 of 2 nodes: 0, 1"
    assert place_text(rows[4:]) == ""
    assert place_text([{**rows[0], "node_count": 1}]) == "on the run's only node, local rank 0"
    many = [{**rows[0], "rank": rank, "node": rank, "node_count": 64} for rank in range(12)]
    assert place_text(many) == "on 12 of 64 nodes: 0, 1, 2, 3, 4, 5, 6, 7, …"


@pytest.mark.slow
def test_the_page_names_the_node_and_the_prompt_the_host(lake, capsys):
    """In the sentence on what ended the run, and as a table; the whole site has no name of a host."""
    assert failure_cause(gather(asking(lake), "alpha-1")).summary.startswith(
        "Rank 2 died without a word, on node 1 of 0 to 1, local rank 0; "
    )
    (page,) = (one for one in section(runs_state(lake)).pages if one.title == "alpha-1")
    text = render(page).decode()
    assert compared(lake, text) > 40
    assert 'id="nodes-table"' in text
    assert "<code>ranklake show alpha-1</code> names the host" in text
    assert NOTHING_SAVED in text.partition('class="tiles ')[0]
    assert NOTHING_SAVED in text.partition('class="tiles ')[2]
    assert "pc-bob" not in text
    assert command(["show", "alpha-1", "--lake", lake.uri]) == 0
    told = capsys.readouterr().out
    assert "where       rank 2: on node 1 of 0 to 1, local rank 0, host pc-bob, process 102" in told
    assert f"wall time; {NOTHING_SAVED}" in told


@pytest.mark.slow
def test_a_role_has_hosts_as_it_sees_them(lake):
    """By name; a role that does not see hosts, or ranks and steps, is told so, with all else as before."""
    narrow = Role("n", frozenset({"operational"}), frozenset(load_contracts()))
    whole = Role("w", frozenset({"operational", "pseudonymous"}), frozenset(load_contracts()))
    blind = Role("b", frozenset({"operational"}), frozenset(load_contracts()) - {"ranks", "steps"})

    def page(role):
        pages = section(runs_state(lake, "alpha-1", role)).pages
        return next(render(one).decode() for one in pages if one.title == "alpha-1")

    assert "pc-bob" in page(whole)
    for role in (narrow, blind):
        text = page(role)
        assert "pc-bob" not in text
        assert "Rank 2 died without a word; " in text
        assert f"role {role.name} does not see it" in text


def test_on_call_says_where_and_that_it_was_on_purpose(lake):
    """Dead, silent and slow ranks alike; the figures of a slow one say of what they are."""
    where = nodes(asking(lake), ["alpha-1"]).rows
    silent = [RankState("alpha-1", 0, rank, "silent") for rank in (2, 3)]
    (need,) = of_ranks(silent, [], where)
    assert need.detail == "ranks 2, 3: has not been heard of lately, all on node 1 of 0 to 1"
    failed = {"run": "alpha-1", "attempt": 0, "status": "failed", "steps": 1, "first_step": 0, "last_step": 0,
              "end_ts": NOON, "checkpoints": 0, "injected": None}  # fmt: skip
    (need,) = of_failed([failed], [RankState("alpha-1", 0, 2, "abandoned")], where)
    assert "rank 2: its process died without an exit record, on node 1 of 0 to 1, local rank 0; it saved" in need.detail
    slow = {"run": "alpha-1", "attempt": 0, "rank": 2, "excess_ratio": 1.198, "excess_s": 0.5704, "cause": "compute",
            "injected": "slow rank 2"}  # fmt: skip
    (need,) = of_stragglers([slow], where)
    assert need.detail == (
        "rank 2: its own work takes 119.8 % longer than that of its peers, 0.57 s more a step, through compute; "
        "on node 1 of 0 to 1, local rank 0; on purpose: slow rank 2"
    )
    (need,) = of_stragglers([slow, {**slow, "rank": 3, "excess_ratio": 0.5, "injected": None}], where)
    assert need.detail.startswith("ranks 2, 3: of rank 2, the worst, the own work takes 119.8 % longer")
    (need,) = of_stragglers([{**slow, "excess_s": None, "cause": None, "injected": None}])
    assert need.detail == "rank 2: its own work takes 119.8 % longer than that of its peers"


def test_a_run_that_saved_something_is_not_told_off(lake):
    """Nor one that goes on, or whose checkpoints nobody counted."""
    facts = gather(asking(lake), "alpha-1")
    for changed in ({"checkpoints": 1}, {"checkpoints": None}, {"status": "running"}):
        summary = replace(facts.summary, rows=({**facts.summary.first_row, **changed},))
        assert NOTHING_SAVED not in "".join(run_lines(replace(facts, summary=summary), None))
