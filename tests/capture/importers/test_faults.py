"""Traces of nodes' faults: starts and ends, of nodes and kinds, matched; the published trace gives its own counts."""

import json
from collections import Counter

import pytest
from importing import ask, imported, rejects
from published_data import DATA

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

GPU = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}
FAN = {"Level": "Hardware Failure", "Class": "Fan", "Desc": "Fan fault"}


def edge(kind, node, time, fault=GPU):
    """Return a start or an end, as traces have it."""
    return {"node_id": node, "event_time": time, "event_type": f"fault_{kind}", "fault_type": fault}


def faults(lake, spool, folder, edges):
    """Import a trace; return its events as they are in the lake."""
    (folder / "trace.json").write_text(json.dumps(edges))
    imported(lake, spool, "faults", folder / "trace.json", run="faults")
    rows = ask(
        lake, "SELECT ts, event, rank, severity, duration_ns, attributes FROM events ORDER BY ts, event DESC, rank"
    )
    return [{**row, "attributes": json.loads(row["attributes"])} for row in rows]


def test_a_fault_has_a_start_and_an_end(lake, spool, tmp_path):
    """The start says when it ended, the end how long it lasted; a node is a rank whose host is its name."""
    start, end = faults(lake, spool, tmp_path, [edge("start", "n1", 1.5), edge("end", "n1", 2)])
    assert (start["event"], start["ts"].isoformat(), start["severity"]) == (
        "fault_start",
        "2000-01-02T12:00:00+00:00",
        "error",
    )
    assert start["attributes"] == {
        "level": "Hardware Failure", "class": "GPU", "description": "GPU xid Error",
        "end_ts": "2000-01-03T00:00:00+00:00",
    }  # fmt: skip
    assert (end["event"], end["duration_ns"], end["severity"]) == ("fault_end", 43_200 * 10**9, "info")
    assert ask(lake, "SELECT rank, host FROM ranks") == [{"rank": 0, "host": "n1"}]
    (run,) = ask(lake, "SELECT world_size, labels FROM runs")
    assert (run["world_size"], json.loads(run["labels"])["times"]) == (1, "of an unknown start, taken as 2000-01-01")


def test_equal_faults_of_a_node_end_in_their_order(lake, spool, tmp_path):
    """Two of one kind overlap: the first to start is the first to end; another kind's end is not theirs."""
    edges = [edge("start", "n1", 0), edge("start", "n1", 1), edge("end", "n1", 3), edge("end", "n1", 7)]
    edges += [edge("start", "n1", 2, FAN), edge("start", "n2", 2), edge("end", "n3", 2.5, FAN)]
    found = faults(lake, spool, tmp_path, edges)
    day_ns = 86400 * 10**9
    assert [row["duration_ns"] for row in found if row["event"] == "fault_end"] == [None, 3 * day_ns, 6 * day_ns]
    open_ones = [row["rank"] for row in found if row["event"] == "fault_start" and "end_ts" not in row["attributes"]]
    assert open_ones == [0, 1], "the fan's and the other node's"


def test_times_may_be_moments_and_a_fault_may_last_no_time(lake, spool, tmp_path):
    """A moment of ISO 8601 is taken as it is; a start goes before an end of the same time."""
    time = "2026-03-01T10:00:00Z"
    start, end = faults(lake, spool, tmp_path, [edge("end", "n1", time), edge("start", "n1", time)])
    assert (start["ts"].isoformat(), end["duration_ns"]) == ("2026-03-01T10:00:00+00:00", 0)
    assert "times" not in json.loads(ask(lake, "SELECT labels FROM runs")[0]["labels"])


def test_what_is_no_fault_is_refused_one_by_one(lake, spool, tmp_path):
    """The rest of the trace is imported; quarantine says what is wrong with each."""
    times = [float("nan"), 1e300, None, "soon", [1], True]
    bad = [7, *(edge("start", "n1", time) for time in times), edge("over", "n1", 1)]
    bad += [edge("start", node, 1) for node in ("", ["n"])]
    bad += [edge("start", "n1", 1, kind) for kind in ("GPU", {"Level": "x"})]
    assert len(faults(lake, spool, tmp_path, [*bad, edge("start", "n1", 1)])) == 1
    assert len(rejects(lake)) == len(bad)


@pytest.mark.parametrize("text", ["", "{}", "no", "[" * 100_000, "[]"])
def test_what_is_no_trace_is_refused_in_a_line(spool, tmp_path, text):
    """No traceback, and nothing is written."""
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(SourceError):
        import_files("faults", [str(tmp_path / "t.json")], str(spool), run="r")


@pytest.mark.skipif(not (DATA / "faults").is_dir(), reason="the published trace is not there")
def test_the_published_trace_gives_its_own_counts(lake, spool):
    """584 starts and ends of 231 nodes, none without the other; classes as its statistics count them."""
    imported(lake, spool, "faults", DATA / "faults" / "fault_trace.json", run="hbd")
    (row,) = ask(
        lake,
        "SELECT count(*) FILTER (WHERE event = 'fault_start') AS starts, count(duration_ns) AS ends,"
        " count(DISTINCT rank) AS nodes FROM events",
    )
    assert row == {"starts": 584, "ends": 584, "nodes": 231}
    statistics = json.loads((DATA / "faults" / "fault_statistics.json").read_text())
    published = Counter()
    for level in statistics.values():
        published += Counter({name: of["ClassTotal"] for name, of in level.items() if name != "LevelTotal"})
    found = ask(lake, "SELECT attributes FROM events WHERE event = 'fault_start'")
    assert Counter(json.loads(row["attributes"])["class"] for row in found) == published
