"""Racks and switches: files of three forms, and hosts behind one switch that are hit together as one incident."""

import json
import random
from functools import partial

import numpy as np
import pytest
from incident_rows import finding, on_node
from rollup_inputs import DAY, NOON, context
from sync_runs import synchronous, table_of

from ranklake.cli import run as command
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.evaluate import evaluate_days, evaluate_runs
from ranklake.lake.rollups.registry import select_rollups
from ranklake.lake.rollups.topology import TopologyError, read_topology
from ranklake.lake.store.lake_config import LakeConfig, TopologySection

SLURM = """# four nodes each
SwitchName=s1 Nodes=n[0-3] LinkSpeed=400
switchname=s2 nodes=n[4-7]
SwitchName=core Switches=s[1-2]
"""


@pytest.fixture
def incidents(tmp_path):
    """Give a caller that computes incidents of findings, with eight nodes behind two switches."""
    slurm = tmp_path / "topology.conf"
    slurm.write_text(SLURM)

    def compute(run=(), node=(), ranks=(), file=slurm, **tables):
        config = LakeConfig(topology=TopologySection(str(file)))
        ctx = context(run_findings=list(run), node_findings=list(node), ranks=list(ranks), **tables)
        (rollup,) = (one for one in select_rollups(["incidents"], config) if one.name == "incidents")
        rows = evaluate_days(ctx, rollup, DAY, DAY).to_pylist()
        return sorted(rows, key=lambda row: (row["start_ts"], row["incident_id"]))

    return compute


def ranks_on(hosts, run="r1"):
    """Return rows of ranks, one on each host."""
    return [{"run": run, "rank": rank, "host": host, "ts": NOON} for rank, host in enumerate(hosts)]


def test_hosts_behind_one_switch_that_are_slow_are_one_incident(incidents):
    """Four of eight: it names the switch, and its cause comes first. Another host's fault stays another incident."""
    slow = [on_node("link_slow", n, 60, host=f"n{n}", message=f"link of node {n} is slow") for n in range(4)]
    shuffled = random.Random(1).sample(slow, 4)
    one, other = incidents(node=[*shuffled, on_node("iowait", 5, 60, host="n5", message="waits")])
    assert one["title"] == "link of node 0 is slow; all 4 hosts behind switch s1 (and 3 more findings)"
    assert (one["switch"], one["host"], one["findings"], one["cause"]) == ("s1", "n0", 4, "shared-place")
    assert json.loads(one["causes"])[1] == "network"
    assert (other["title"], other["switch"], other["cause"]) == ("waits; switch s2", "s2", "storage")
    assert other["incident_id"] == incidents(node=[on_node("iowait", 5, 60, host="n5")])[0]["incident_id"]


@pytest.mark.parametrize(
    "hit", [range(8), [0, 4], [0], [0, 1, 4, 5]], ids=["the whole cluster", "one of each", "one", "half of each"]
)
def test_what_hits_others_as_much_is_no_switch_s(incidents, hit):
    """Each host has its own incident."""
    rows = incidents(node=[on_node("iowait", 0, 60, host=f"n{n}") for n in hit])
    assert len(rows) == len(hit)
    assert not [row for row in rows if "shared-place" in row["causes"]]


def test_an_hour_later_is_another_incident(incidents):
    """Hosts of a switch are one incident where they are hit at once."""
    assert len(incidents(node=[on_node("link_slow", 90 * n, 5, host=f"n{n}") for n in range(4)])) == 4


def test_a_run_s_incident_says_where_its_ranks_are(incidents):
    """One slow rank: its node, and what this is behind. All of a switch's: the switch, and that others are well."""
    ranks = ranks_on([f"n{n}" for n in range(8)])
    (one,) = incidents(run=[finding("straggler", 0, 60, rank=6, message="Rank 6 is slow")], ranks=ranks)
    assert one["title"] == "Rank 6 is slow; node 6, switch s2"
    assert (one["host"], one["switch"], one["cause"]) == ("n6", "s2", "straggler")
    slow = [finding("straggler", 0, 60, rank=n, message=f"Rank {n} is slow", finding_id=f"{n:016}") for n in range(4)]
    (several,) = incidents(run=slow, ranks=ranks)
    assert several["title"] == "Rank 0 is slow; all 4 hosts behind switch s1 (and 3 more findings)"
    assert several["cause"] == "shared-place"
    (alone,) = incidents(run=slow, ranks=ranks_on([f"n{n}" for n in range(4)]))
    assert alone["cause"] == "straggler", "all of the run is behind it: there are no others"


def test_a_switch_s_incident_is_a_run_s_only_if_the_run_has_all_its_hosts(incidents):
    """Else one of several runs would hide what hits them all."""
    down = [on_node("link_slow", n, 60, host=f"n{n}") for n in range(4)]
    own = [finding("stall", 0, 60, host=f"n{n}", finding_id=f"{n:016}") for n in range(4)]
    assert [row["run"] for row in incidents(run=own, node=down)] == ["r1"]
    assert {row["run"] for row in incidents(run=own[:1], node=down)} == {"r1", None}


def stragglers_of(compute):
    """Return what is found in a run whose steps take so long, by step and rank."""
    ctx = context(steps=table_of([synchronous("r1", compute)]))
    for name in ("rank_health", "run_findings"):
        (rollup,) = (one for one in select_rollups([name]) if one.name == name)
        is_of_runs = rollup.scope == "run"
        rows = evaluate_runs(ctx, rollup, {"r1": DAY}) if is_of_runs else evaluate_days(ctx, rollup, DAY, DAY)
        replace_table(ctx, name, rows)
    return ctx.sql("SELECT * FROM run_findings").to_arrow_table().to_pylist()


def test_slow_ranks_of_a_switch_are_found_in_steps_of_a_run(incidents):
    """From the times of steps to the incident: four of eight ranks take half as long again."""
    compute = 0.1 * np.random.default_rng(3).lognormal(0, 0.03, (600, 8))
    compute[:, :4] *= 1.5
    found = stragglers_of(compute)
    assert sorted(row["rank"] for row in found if row["detector"] == "straggler") == [0, 1, 2, 3]
    (one,) = incidents(run=found, ranks=ranks_on([f"n{n}" for n in range(8)]))
    assert "all 4 hosts behind switch s1" in one["title"]


RAILED = "- {nodes: 'n[0-3]', switch: s1, rails: 'a[0-3]'}\n- {nodes: 'n[4-7]', switch: s2, rails: 'a[0-3]'}\n"


@pytest.fixture
def railed(incidents, tmp_path):
    """Have the file say of eight nodes of four GPUs, behind two switches, that they are on four rails."""
    (tmp_path / "rails.yaml").write_text(RAILED)
    return partial(incidents, file=tmp_path / "rails.yaml", ranks=gpus_on(8, 4))


def gpus_on(nodes, gpus, run="r1"):
    """Return rows of ranks, one on each GPU."""
    where = [(f"n{node}", gpu) for node in range(nodes) for gpu in range(gpus)]
    return [
        {"run": run, "rank": rank, "host": host, "local_rank": gpu, "ts": NOON}
        for rank, (host, gpu) in enumerate(where)
    ]


def slow(ranks):
    return [
        finding("straggler", 0, 60, rank=rank, message=f"Rank {rank} is slow", finding_id=f"{rank:016}")
        for rank in ranks
    ]


def test_slow_ranks_of_one_rail_are_said_to_be_the_rail(railed):
    """A fault over all hosts: no host's and no switch's; its GPUs are named by what they share."""
    (one,) = railed(run=slow(range(3, 32, 4)))
    assert one["title"] == "Rank 3 is slow; all 8 GPUs on rail a3 (and 7 more findings)"
    assert (one["rail"], one["cause"]) == ("a3", "shared-place")
    (most,) = railed(run=slow(range(3, 28, 4)))
    assert most["title"] == "Rank 3 is slow; 7 of the 8 GPUs on rail a3 (and 6 more findings)"


@pytest.mark.parametrize(
    ("hit", "where"),
    [
        ([3], "node 0, switch s1, rail a3"),
        ([3, 19], "node 0, switch s1, rail a3"),
        (range(32), "node 0, switch s1"),
        (range(16), "all 4 hosts behind switch s1"),
        (range(4), "node 0, switch s1"),
        ([3, 7, 11, 15], "all 4 hosts behind switch s1"),
        ([n for n in range(32) if n % 4], "node 0, switch s1"),
    ],
    ids=["one rank", "two of eight", "all", "a switch's", "a host's", "one switch's part of a rail", "three of four"],
)
def test_what_is_no_rail_s_is_not_said_to_be(railed, hit, where):
    """One rank of a rail is a rank; where others are hit as much it is not the rail."""
    (one,) = railed(run=slow(hit))
    assert one["title"].partition("; ")[2].partition(" (and")[0] == where


def test_two_rails_of_eight_are_found(incidents, tmp_path):
    """Both are named, and each finding is counted."""
    (tmp_path / "rails.csv").write_text("node,rails\n" + "".join(f"n{node},8\n" for node in range(4)))
    hit = [rank for rank in range(32) if rank % 8 in {2, 5}]
    (one,) = incidents(run=slow(hit), ranks=gpus_on(4, 8), file=tmp_path / "rails.csv")
    assert one["title"] == "Rank 2 is slow; all 4 GPUs on rail 2 and all 4 GPUs on rail 5 (and 7 more findings)"
    assert one["rail"] == "2"


def test_a_rank_whose_gpu_is_not_known_is_on_no_rail(railed):
    """As where a launcher says no local rank; or the host has more ranks than rails."""
    ranks = [{**row, "local_rank": None if row["rank"] == 3 else 4} for row in gpus_on(8, 4)]
    (one,) = railed(run=slow([3, 19]), ranks=ranks)
    assert one["title"] == "Rank 3 is slow; node 0, switch s1 (and 1 more finding)"
    assert one["rail"] is None


def test_a_slow_rail_is_found_in_steps_of_a_run(railed):
    """From the times of steps to the incident: one of four GPUs of each host takes half as long again."""
    compute = 0.1 * np.random.default_rng(3).lognormal(0, 0.03, (600, 32))
    compute[:, 2::4] *= 1.5
    (one,) = railed(run=stragglers_of(compute))
    assert "all 8 GPUs on rail a2" in one["title"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topology.conf", SLURM),
        ("nodes.csv", "node,switch\n" + "".join(f"n{n},s{1 + n // 4}\n" for n in range(8))),
        ("labels.csv", "node,label,value\n" + "".join(
            f"n{n},topology.kubernetes.io/zone,a\nn{n},example.com/leaf,s{1 + n // 4}\n" for n in range(8))),
        ("nodes.yaml", "- {nodes: 'n[0-3]', switch: s1}\n- {nodes: 'n[4-5],n6,n7', switch: s2}\n"),
    ],
)  # fmt: skip
def test_files_of_each_form_say_the_same(tmp_path, name, text):
    """Slurm's own, CSV by node or by label, YAML."""
    (tmp_path / name).write_text(text)
    places = read_topology(str(tmp_path / name))
    assert places == {f"n{n}": {"switch": f"s{1 + n // 4}"} for n in range(8)}


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.csv", "node,rak\nn1,r1\n", "a.csv:1: unknown column 'rak'; did you mean 'rack'?"),
        ("a.csv", "host\nn1\n", "a.csv:1: unknown column 'host'"),
        ("a.csv", "node,rack\nn1,r1\nn1,r2\n", "a.csv:3: node 'n1' is at rack 'r2', and at 'r1' above"),
        ("a.csv", "node,rails\nn1,x[\n", "a.csv:2: 'x[' is no number of rails, nor a list of them such as leaf[1-8]"),
        ("a.csv", "node,rails\nn1,999999999\n", "a.csv:2: '999999999' is no number of rails"),
        ("a.yaml", "- {nodes: n1, rails: 'x[0-9999]'}\n", "a.yaml:1: 'x[0-9999]' is no number of rails"),
        ("a.csv", "node,rails\nn1,8\nn1,4\n", "a.csv:3: node 'n1' is at rails '4', and at '8' above"),
        ("a.conf", "SwitchName=s1 Nodes=n[1-\n", "a.conf:1: 'n[1-' is no list of nodes"),
        ("a.conf", "SwitchName=s1 Nodes=n[1-999999999]\n", "a.conf:1: 'n[1-999999999]' is no range of nodes"),
        ("a.yaml", "- {nodes: n1, swich: s1}\n", "a.yaml:1: unknown key 'swich' in [0]; did you mean 'switch'?"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, text, error):
    """And how to mend it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(TopologyError) as raised:
        read_topology(str(tmp_path / name))
    assert str(raised.value).startswith(str(tmp_path / error))


def test_config_check_reads_the_file(tmp_path, capsys, monkeypatch):
    """Before a rollup needs it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("node,rak\n")
    (tmp_path / "ranklake.toml").write_text('[topology]\nfile = "t.csv"\n')
    assert command(["config", "check"]) != 0
    assert "unknown column 'rak'" in "".join(capsys.readouterr())
