"""The node agent: elected, it packs and uploads what the ranks seal, adopts what they left, and says how it does."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from recorded import check_books, gaps, rows, segments

from ranklake.capture.node.agent import Agent
from ranklake.capture.node.agent_metrics import COUNTERS, GAUGES, AgentMetrics, GapCount, prometheus
from ranklake.capture.node.endpoint import Answer, Endpoint, PortInUseError
from ranklake.capture.recording import uploading
from ranklake.capture.recording.upload import PACK_BYTES, WaitingSegment, packs_of
from ranklake.capture.spool import frames
from ranklake.capture.spool.leader import Leadership, leader
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import SealedFile, ready_files, sealed_files, streams
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake

SLOWER = 4
"""So many times as long as at rest a machine may take that others keep busy."""
KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run="dead", spool=sys.argv[1], local_dir=sys.argv[2])
for number in range(20):
    with run.step(number): pass
os.kill(os.getpid(), signal.SIGKILL)
"""


# Runs a script once for each line, in a fork that has imported what it needs; to start Python costs most of each.
FORKING = """
import json, os, sys
from ranklake import capture
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        sys.argv = json.loads(line)
        exec(sys.orig_argv[-1])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) * -1, flush=True)
"""

RANK = """
import sys
from ranklake import capture
spool, local, rank = sys.argv[1:]
run = capture.start(job="j", run="live", rank=int(rank), world_size=3, spool=spool, local_dir=local, seal_every_s=0.05)
for number in range(20):
    with run.step(number): pass
    run.log({"a": 1.0, "b": 2.0}, step=number)
print("recorded", flush=True)
sys.stdin.readline()
run.close()
print("closed", flush=True)
sys.stdin.readline()
"""

# As sitecustomize.py, in the agent and in what it starts: a store that takes PUTs and never answers.
HANGING = """
import sys, threading
from ranklake.capture.recording import upload
def hang(target, raw):
    print("hanging", file=sys.stderr, flush=True)
    threading.Event().wait()
upload._put_local = hang
"""


def until(true, patience_s=120):
    """Wait until something holds."""
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)


@contextmanager
def ranks(place, count):
    """Run ranks that have recorded twenty steps each and sealed them; they go on when they are sent a line."""
    command = [sys.executable, "-c", RANK, str(place / "spool"), str(place / "local")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(count)]
    try:
        for process in processes:
            assert process.stdout.readline() == "recorded\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextmanager
def leading(root, spool=""):
    """Be the agent of a local spool for the block."""
    root.mkdir(exist_ok=True)
    lead = Leadership.take(root, spool)
    assert lead is not None
    try:
        yield
    finally:
        lead.release()


def alone(spool):
    """Return the segments that were sent one by one."""
    return list(spool.glob("segments/*/*/*.parquet"))


def packed(spool):
    """Return the packs of a spool."""
    return list(spool.glob("segments/*/packs/*.zip"))


def check_lake(place):
    """Take the spool into a lake, and assert that the books add up; return how many rows of each table are there."""
    lake = Lake.create(str(place / "lake"))
    spool = Spool(str(place / "spool"))
    done = ingest(lake, spool, InProcess())
    assert done.unreadable == done.rows_rejected == 0
    found = balance(lake, spool.listing())
    assert [fault for item in found for fault in item.faults] == []
    return {item.table: item.stored for item in found}


@pytest.fixture(scope="module")
def killed():
    """Return a function that runs `KILLED` between a spool and a local spool, in a fork of one process of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKING, KILLED], **pipes) as process:

        def run(spool, local):
            process.stdin.write(json.dumps(["", str(spool), str(local)]) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == signal.SIGKILL

        yield run
        process.stdin.close()


@pytest.fixture
def node(tmp_path, killed):
    """Give a folder with a local spool that a killed process left, meant for the spool beside it."""
    killed(tmp_path / "spool", tmp_path / "local")
    return tmp_path


def agent(node, *options):
    """Return the command line of an agent."""
    command = [sys.executable, "-m", "ranklake", "agent", "--local-dir", str(node / "local")]
    return [*command, "--spool", str(node / "spool"), *options]


def test_once_adopts_uploads_and_tells(node):
    """One look stores all rows; a second one finds nothing."""
    done = subprocess.run(agent(node, "--once", "--json"), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["streams"], told["left"], told["troubles"]) == (1, 0, [])
    assert [row["step"] for row in rows(node / "spool", "steps")] == list(range(20))
    check_books(node / "spool")
    again = subprocess.run(agent(node, "--once"), capture_output=True, text=True, check=True)
    assert again.stdout == "0 streams adopted, 0 segments uploaded, 0 rows\n"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_goes_on_until_it_is_told_to_stop(node, how):
    """It looks again and again, and ends cleanly, within five seconds, on SIGTERM and Ctrl-C."""
    with subprocess.Popen(agent(node, "--interval-s", "0.1"), stdout=subprocess.PIPE, text=True) as process:
        assert "1 stream adopted" in process.stdout.readline()
        command = [sys.executable, "-c", KILLED, str(node / "spool"), str(node / "local")]
        subprocess.run(command, check=False)
        assert "1 stream adopted" in process.stdout.readline()
        started = time.monotonic()
        process.send_signal(how)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - started < 5 * SLOWER
    assert len(rows(node / "spool", "steps")) == 40


def test_a_stream_that_cannot_be_finished_is_an_exit_of_one(node):
    """What is wrong is told in one line on stderr."""
    (stream,) = (node / "local").glob("*/a*/r*")
    (stream / "meta.frames").unlink()
    (stream / "meta.frames").mkdir()
    done = subprocess.run(agent(node, "--once"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "meta.frames" in done.stderr
    assert "Traceback" not in done.stderr


# ── packing ──


@pytest.mark.slow
def test_ranks_only_seal_and_the_agent_sends_them_in_one_pack(tmp_path):
    """While an agent lives, ranks upload nothing; it packs what they seal, and the lake has each row once."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    with leading(local, str(spool)), ranks(tmp_path, 3) as processes:
        node_agent = Agent(local, str(spool))
        until(lambda: all({"scalars", "steps"} <= {file.table for file in sealed_files(f)} for f in streams(local)))
        done = node_agent.look(pack_now=True)
        assert (done.alive, done.streams, done.packs, done.left, done.troubles) == (3, 0, 1, 0, ())
        assert done.segments == len(segments(spool))
        assert {segment.name.rank for segment in segments(spool)} == {0, 1, 2}
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "closed\n"
        assert alone(spool) == []
        done = node_agent.look()
        assert (done.alive, done.streams, done.packs, done.left, done.troubles) == (0, 3, 1, 0, ())
    assert alone(spool) == []
    assert len(packed(spool)) == 2
    assert sorted(path.name for path in local.iterdir()) == [".claims", "agent.json"]
    check_books(spool)
    stored = check_lake(tmp_path)
    assert (stored["steps"], stored["scalars"]) == (60, 120)


def test_segments_wait_to_be_packed_with_others(tmp_path):
    """What living processes seal is sent when the oldest has waited long enough, and what the dead left at once."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    with leading(local, str(spool)), ranks(tmp_path, 1) as (process,):
        patient = Agent(local, str(spool), pack_every_s=3600)
        until(lambda: patient.look().packs == 0 and patient.figures.queue_segments >= 2)
        figures = patient.figures
        assert (figures.streams, figures.packs) == (1, 0)
        assert figures.queue_segments >= 2
        assert figures.queue_bytes > 0
        assert figures.lag_s >= 0
        assert Agent(local, str(spool), pack_every_s=0).look().packs == 1
        process.kill()
        process.wait()
        assert patient.look().packs == 1
        assert (patient.figures.queue_segments, patient.figures.lag_s) == (0, 0)
        assert patient.figures.sent_segments > 0


def test_a_process_takes_note_of_what_the_agent_sent(place):
    """The agent leaves a name behind, the process deletes it; a folder that vanishes then costs nothing of that."""
    with leading(place.local, str(place.spool)):
        run = place.start(seal_every_s=0.05)
        run.log({"a": 1.0, "b": 2.0})
        stream = run.recording.recorder.stream
        until(lambda: any(file.table == "scalars" for file in ready_files(stream.folder)))
        assert Agent(place.local, str(place.spool)).look(pack_now=True).left == 0
        run.log({"a": 3.0, "b": 4.0})  # sealing wakes the uploader
        until(lambda: not list(stream.folder.glob("*.acked")))
        until(lambda: set(stream.waiting) == {file.path.name for file in sealed_files(stream.folder)})
        until(lambda: any(file.table == "scalars" for file in ready_files(stream.folder)))
        shutil.rmtree(stream.folder)
        until(lambda: run.recording.recorder.stream is not stream)
        run.close()
        assert Agent(place.local, str(place.spool)).look().streams == 1
    assert len(rows(place.spool, "scalars")) == 2
    assert sum(gaps(place.spool)["scalars"].values()) == 2


@pytest.mark.parametrize("end", ["dies", "dawdles", "serves another spool"])
def test_processes_upload_themselves_when_the_agent_does_not(place, end, monkeypatch):
    """An agent that dies, or leaves segments lying, or is there for another spool, keeps nothing from the spool."""
    monkeypatch.setattr(uploading, "AGENT_EVERY_S", 0.05)
    place.local.mkdir()
    lead = Leadership.take(place.local, "s3://elsewhere" if end == "serves another spool" else "")
    try:
        run = place.start(seal_every_s=0.05, agent_patience_s=0.5 if end == "dawdles" else 300)
        run.log({"a": 1.0, "b": 2.0})
        if end == "dies":
            until(lambda: run.recording.recorder.stream.waiting)
            assert alone(place.spool) == []
            lead.release()
        until(lambda: len(rows(place.spool, "scalars")) == 2)
    finally:
        lead.release()
    assert packed(place.spool) == []


def test_a_flush_does_not_wait_for_the_agent(place):
    """Whoever asks for rows to be in the spool now has them sent by the process itself; the agent finds them gone."""
    with leading(place.local):
        run = place.start()
        run.log({"a": 1.0, "b": 2.0})
        assert run.flush()
        assert len(rows(place.spool, "scalars")) == 2
        assert Agent(place.local).look(pack_now=True).segments == 0


@pytest.mark.slow
def test_one_damaged_stream_blocks_no_other(tmp_path):
    """A stream that cannot be read is told of at every look, and the others are sent, the living and the dead."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(spool), str(local)], check=False)
    hurt, sound = streams(local)
    (hurt / META_FILE).unlink()
    (hurt / META_FILE).mkdir()
    with leading(local), ranks(tmp_path, 1):
        (alive,) = set(streams(local)) - {hurt, sound}
        until(lambda: sum(file.rows for file in ready_files(alive) if file.table == "steps") == 20)
        for looks in range(2):
            done = Agent(local).look(pack_now=True)
            assert len(done.troubles) == 1
            assert str(hurt) in done.troubles[0]
            assert done.streams == 1 - looks
    assert len(rows(spool, "steps")) == 40


def test_a_store_that_fails_leaves_all_where_it_is(tmp_path):
    """What cannot be sent stays sealed, is counted as left, and goes when the store is back, once."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    subprocess.run([sys.executable, "-c", KILLED, str(spool), str(local)], check=False)
    spool.write_text("in the way")
    node_agent = Agent(local)
    done = node_agent.look()
    assert (done.packs, done.segments, done.streams) == (0, 0, 1)
    assert done.left == node_agent.figures.queue_segments > 0
    assert node_agent.figures.retries == 1
    spool.unlink()
    until(lambda: node_agent.look().left == 0)
    assert [row["step"] for row in rows(spool, "steps")] == list(range(20))
    check_books(spool)


def test_a_probe_is_one_segment(tmp_path, monkeypatch):
    """With the breaker open one segment is tried by itself: what was tried can no longer be given up for newer rows."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    subprocess.run([sys.executable, "-c", KILLED, str(spool), str(local)], check=False)
    spool.write_text("in the way")
    node_agent = Agent(local)
    breaker = node_agent._uploader(str(spool)).breaker
    monkeypatch.setattr(breaker, "_open", True)
    done = node_agent.look()
    assert done.left > 1
    (folder,) = streams(local)
    assert sum(file.is_tried(file.path) for file in sealed_files(folder)) == 1
    spool.unlink()
    monkeypatch.setattr(breaker, "_not_before", 0.0)
    after = node_agent.look()
    assert (after.left, after.packs) == (0, 2)  # the probe by itself, then the rest
    assert [row["step"] for row in rows(spool, "steps")] == list(range(20))
    check_books(spool)


SEGMENT = st.builds(
    lambda table, uri, number, size: WaitingSegment(
        SealedFile(Path(f"{number}"), table, number, "2026-01-02", 1, "0" * 64),
        f"{number}",
        uri,
        size,
        0.0,
        adopted=False,
    ),
    st.sampled_from(["steps", "scalars"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 10**6),
    st.integers(0, PACK_BYTES),
)


@given(st.lists(SEGMENT, max_size=30, unique_by=lambda item: item.remote))
def test_packs_are_few_and_bounded(waiting):
    """Every segment goes into one pack of its spool; no pack is too large, and no two neighbours fit into one."""
    packs = list(packs_of(waiting))
    assert sorted(item.remote for members in packs for item in members) == sorted(item.remote for item in waiting)
    sizes = [sum(item.size_bytes for item in members) for members in packs]
    uris = [{item.uri for item in members} for members in packs]
    assert all(len(found) == 1 for found in uris)
    assert all(size <= PACK_BYTES for size in sizes)
    for index in range(len(packs) - 1):
        fits = sizes[index] + packs[index + 1][0].size_bytes <= PACK_BYTES
        assert uris[index] != uris[index + 1] or not fits


# ── election ──


@pytest.mark.slow
def test_a_second_agent_waits_and_takes_over(node):
    """It says who is the agent, and is the agent as soon as that one is killed."""
    with subprocess.Popen(agent(node, "--interval-s", "0.1"), stdout=subprocess.PIPE, text=True) as first:
        assert "1 stream adopted" in first.stdout.readline()
        once = subprocess.run(agent(node, "--once"), capture_output=True, text=True, check=True)
        assert f"process {first.pid} " in once.stdout
        with subprocess.Popen(agent(node, "--interval-s", "0.1"), stdout=subprocess.PIPE, text=True) as second:
            assert f"has an agent (process {first.pid} " in second.stdout.readline()
            with subprocess.Popen(agent(node), stdout=subprocess.PIPE, text=True) as third:
                assert f"has an agent (process {first.pid} " in third.stdout.readline()
                third.send_signal(signal.SIGTERM)
                assert third.wait(timeout=60) == 0
            first.kill()
            first.wait()
            until(lambda: (found := leader(node / "local")) is not None and found.pid == second.pid)
            subprocess.run([sys.executable, "-c", KILLED, str(node / "spool"), str(node / "local")], check=False)
            until(lambda: len(rows(node / "spool", "steps")) == 40)
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_put_that_hangs_does_not_hold_up_the_end(node, how):
    """Told to stop in the middle of a PUT, the agent ends within five seconds; all that it did not send is there."""
    (node / "sitecustomize.py").write_text(HANGING)
    environment = {**os.environ, "PYTHONPATH": f"{node}:{os.environ.get('PYTHONPATH', '')}"}
    command = agent(node, "--interval-s", "0.1")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr.readline() == "hanging\n"
        started = time.monotonic()
        process.send_signal(how)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - started < 5 * SLOWER
    assert segments(node / "spool") == []
    subprocess.run(agent(node, "--once"), check=True, capture_output=True)
    assert [row["step"] for row in rows(node / "spool", "steps")] == list(range(20))
    check_books(node / "spool")


# ── figures ──


@pytest.mark.slow
def test_the_agent_records_its_figures(node):
    """They are rows of ``scalars`` in a run of its own, under registered names; its books add up with the ranks'."""
    with subprocess.Popen(agent(node, "--interval-s", "0.1"), stdout=subprocess.PIPE, text=True) as process:
        assert "1 stream adopted" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    subprocess.run(agent(node, "--once"), check=True, capture_output=True)
    found = [row for row in rows(node / "spool", "scalars") if row["run"].startswith("ranklake-agent-")]
    assert {row["metric"]: row["kind"] for row in found} == {
        **dict.fromkeys(GAUGES, "gauge"),
        **dict.fromkeys(COUNTERS, "counter"),
    }
    assert check_lake(node)["scalars"] == len(found)
    assert {name for name in load_metrics() if name.startswith("agent/")} == {*GAUGES, *COUNTERS}
    assert all(load_metrics()[row["metric"]].kind == row["kind"] for row in found)


def test_prometheus_reads_the_figures():
    """A parser of theirs finds every family with its type, its help and its value, whatever stands in a label."""
    odd = 'a"b\\c\nd'
    text = prometheus(
        AgentMetrics(queue_segments=3, lag_s=0.1, retries=2, gaps={("steps", odd): 7, ("spans", "full"): 1})
    )
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(family.documentation for family in found.values())
    values = {name: family.samples[0].value for name, family in found.items()}
    assert values["ranklake_agent_queue_segments"] == 3
    assert values["ranklake_agent_lag_seconds"] == 0.1
    assert values["ranklake_agent_retries"] == 2
    assert found["ranklake_agent_retries"].type == "counter"
    assert found["ranklake_agent_lag_seconds"].type == "gauge"
    lost = {(s.labels["table"], s.labels["reason"]): s.value for s in found["ranklake_agent_gap_rows"].samples}
    assert lost == {("steps", odd): 7, ("spans", "full"): 1}


@pytest.mark.slow
@pytest.mark.parametrize(("host", "raw"), [("127.0.0.1", "0100007F"), ("127.0.0.2", "0200007F")])
def test_the_agent_serves_its_figures_on_loopback_or_where_it_was_asked_to(node, host, raw):
    """--metrics-port serves them; other paths are not found, and another address is not listened on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = agent(node, "--interval-s", "0.1", "--metrics-port", str(port))
    command += ["--metrics-host", host] if host != "127.0.0.1" else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "1 stream adopted" in process.stdout.readline()

        def sent():
            with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
            return families["ranklake_agent_sent_segments"].samples[0].value

        until(lambda: sent() >= 1)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{port}/")
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
        assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"{raw}:{port:04X}"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_a_port_that_is_taken_is_an_error_in_one_line(node):
    """It names the address and what to do."""
    nothing = dict[str, Answer]().get
    with Endpoint(0, nothing) as taken, pytest.raises(PortInUseError, match=f"127.0.0.1:{taken.port}: cannot be"):
        Endpoint(taken.port, nothing)


def test_gaps_are_counted_once_as_they_are_written_down(tmp_path):
    """Frames are counted when they are whole, across looks; what is torn or of another kind is left out."""
    count = GapCount()
    meta = tmp_path / META_FILE
    first = frames.pack({"k": "gaps", "n": [["steps", "full", 2], ["spans", "full", 1]]})
    second = frames.pack({"k": "sealed", "t": "steps", "s": 0, "r": 1, "g": {"damaged": 4, "full": 2}, "f": False})
    odd = frames.pack({"k": "gaps", "n": "nonsense"})
    meta.write_bytes(first + second[:9])
    count.look(tmp_path)
    count.look(tmp_path)
    meta.write_bytes(first + second + odd)
    count.look(tmp_path)
    count.look(tmp_path)
    assert dict(count.rows) == {("steps", "full"): 2, ("spans", "full"): 1, ("steps", "damaged"): 4}
    count.forget([])
    assert count.rows.total() == 7


# ── sampling ──


def written(node, table):
    """Return what the agent's open stream holds of a table."""
    files = (node / "local").glob(f"ranklake-agent-*/a0/*/{table}-*.open")
    return [frame for file in files for frame in frames.read(file).frames]


def meta(node):
    """Return what it has defined."""
    return [
        frame
        for file in (node / "local").glob(f"ranklake-agent-*/a0/*/{META_FILE}")
        for frame in frames.read(file).frames
    ]


@pytest.mark.slow
def test_the_agent_samples_its_node(node):
    """The host, what GPUs there are, and a page that it is told of; its rows are stored like any other's."""
    page = Endpoint(0, lambda _: Answer("text/plain", b"# TYPE a_total counter\na_total 5\n"))
    url = f"http://user:{'hunter' + '2'}@127.0.0.1:{page.port}/metrics"
    options = ("--interval-s", "0.1", "--sample-interval-s", "0.1", "--scrape", url, "--scrape", "http://127.0.0.1:1/x")
    with page, subprocess.Popen(agent(node, *options), stdout=subprocess.PIPE, text=True) as process:
        assert "1 stream adopted" in process.stdout.readline()
        until(lambda: len(written(node, "host_samples")) > 4)
        until(lambda: "sampler_unavailable" in {frame["event"] for frame in written(node, "events")})
        until(lambda: "prometheus/a_total" in {frame.get("n") for frame in meta(node)})
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    subprocess.run(agent(node, "--once"), check=True, capture_output=True)
    hosts = [row for row in rows(node / "spool", "host_samples") if row["subject"] == "host"]
    assert len(hosts) > 2
    assert [row["interval_ns"] is None for row in hosts[:2]] == [True, False]
    assert ("prometheus/a_total", 5) in {(row["metric"], row["value"]) for row in rows(node / "spool", "scalars")}
    told = [row["message"] for row in rows(node / "spool", "events") if row["event"] == "sampler_unavailable"]
    assert "http://127.0.0.1:1/x cannot be sampled: Connection refused" in told
    assert all(b"hunter2" not in path.read_bytes() for path in node.rglob("*") if path.is_file())
    check_books(node / "spool")
    assert check_lake(node)["host_samples"] == len(rows(node / "spool", "host_samples"))


@pytest.mark.slow
def test_without_sampling_there_are_its_figures_alone(node):
    """--no-sample."""
    with subprocess.Popen(
        agent(node, "--interval-s", "0.1", "--no-sample"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert "1 stream adopted" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    subprocess.run(agent(node, "--once"), check=True, capture_output=True)
    assert rows(node / "spool", "host_samples") == []
    assert any(row["run"].startswith("ranklake-agent-") for row in rows(node / "spool", "scalars"))
