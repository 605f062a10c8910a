"""What NCCL says: its log, Inspector's JSON, RAS's reports, in the forms that NCCL's own sources write."""

import json

import pytest
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

LOG = """\
NCCL version 2.27.3+cuda12.9
n-0:980:1265 [0] NCCL INFO Using network IB
n-0:980:1265 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 4 nranks 8 cudaDev 0 nvmlDev 0 busId 18000 commId 0x5a - Init COMPLETE
n-0:980:1265 [0] NCCL INFO Init timings - ncclCommInitRank: rank 4 nranks 8 total 1.08 (kernels 0.51, bootstrap 0.22, rest 0.35)
n-0:980:1300 [0] NCCL INFO ncclCommSplit comm 0x66 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x6b - Init COMPLETE
the trainer's own line
[2026-06-11 11:44:19] n-0:980:1265 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<44206> with status=12 opcode=1 len=0 vendor err 129 (Send)
n-0:980:1265 [0] NCCL INFO token=hf_abcdefghijklmnopqrstuvwxyz
"""  # noqa: E501 - NCCL's lines


def test_a_log(lake, spool, tmp_path):
    """Lines are rows of the rank that the largest communicator names; initialization is a span with its parts."""
    (tmp_path / "nccl.n-0.980").write_text(LOG)
    imported(lake, spool, "nccl", tmp_path / "nccl.n-0.980", run="r")
    rows = ask(lake, "SELECT ts, rank, message, severity_text, source_file, fields FROM logs ORDER BY slot")
    assert [row["rank"] for row in rows] == [0, 4, 4, 4, 4, 4, 4]
    assert {row["ts"].isoformat() for row in rows} == {"2026-06-11T11:44:19+00:00"}
    warning = rows[5]
    assert (warning["severity_text"], warning["source_file"]) == ("WARNING", "transport/net_ib.cc")
    facts = {"subject": "network", "peer": "10.0.0.9", "status": 12, "vendor_error": 129, "device": 0}
    assert json.loads(warning["fields"]) == facts
    assert "hf_abc" not in rows[6]["message"]
    (span,) = ask(lake, "SELECT rank, name, duration_ns, group_size, attributes FROM spans")
    assert (span["rank"], span["name"], span["duration_ns"], span["group_size"]) == (4, "nccl_init", 1_080_000_000, 8)
    assert json.loads(span["attributes"])["bootstrap_s"] == 0.22
    (run,) = ask(lake, "SELECT world_size, nccl_version, cuda_version FROM runs")
    assert run == {"world_size": 8, "nccl_version": "2.27.3", "cuda_version": "12.9"}
    assert ask(lake, "SELECT rank, host FROM ranks") == [{"rank": 4, "host": "n-0"}]


def test_a_log_among_the_jobs_output(lake, spool, tmp_path):
    """Labels of srun give ranks where no line of NCCL does; a log without any time has the file's."""
    (tmp_path / "slurm.out").write_text("0: epoch 1\n0: n:1:1 [0] NCCL INFO one\n3: n:2:1 [1] NCCL INFO two\n")
    imported(lake, spool, "nccl", tmp_path / "slurm.out", run="r")
    assert [row["rank"] for row in ask(lake, "SELECT rank FROM logs ORDER BY rank")] == [0, 3]
    assert "last change" in json.loads(ask(lake, "SELECT labels FROM runs")[0]["labels"])["times"]


def test_a_file_without_nccl_is_refused(spool, tmp_path):
    """In one line, with what to do."""
    (tmp_path / "log").write_text("hello\nworld\n")
    with pytest.raises(SourceError, match=r"the file has no line of NCCL.*NCCL_DEBUG=INFO"):
        import_files("nccl", [str(tmp_path / "log")], str(spool))


def operation(form="coll", rank=2, ranks=8, name="AllReduce", comm="0x7f8c", trace=None, **metadata):
    """Return a line as the Inspector writes it."""
    figures = {
        form: name, f"{form}_sn": 1407, f"{form}_msg_size_bytes": 17179869184, f"{form}_exec_time_us": 61974,
        f"{form}_timing_source": "kernel_gpu", f"{form}_algobw_gbs": 277.210914, f"{form}_busbw_gbs": 485.119099,
    }  # fmt: skip
    if trace:
        figures["event_trace_ts"] = trace
    return json.dumps({
        "header": {"id": comm, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                     "dump_timestamp_us": 1748030377748202, "hostname": "n-0", "pid": 1639453} | metadata,
        f"{form}_perf": figures,
    })  # fmt: skip


def test_inspector(lake, spool, tmp_path):
    """Collectives are spans with bytes, number and bandwidths; the world's rank is that of the largest communicator."""
    trace = {"coll_start_ts": 1748030377600000, "coll_stop_ts": 1748030377600005,
             "kernel_events": [{"channel_id": 0, "kernel_start_ts": 1748030377600181}]}  # fmt: skip
    lines = [operation(), operation(trace=trace), operation(rank=0, ranks=2, comm="0x1"),
             operation("p2p", name="Send"), "{", '{"header": {}}', operation(dump_timestamp_us=-1)]  # fmt: skip
    (tmp_path / "n-0-pid1.log").write_text("\n".join(lines))
    imported(lake, spool, "nccl_inspector", tmp_path / "n-0-pid1.log", run="r")
    whole, traced, split, send = ask(
        lake, "SELECT rank, name, kind, ts, start_ns, duration_ns, bytes, sequence, group_size, process_group,"
        " device_time, attributes FROM spans ORDER BY span_id",
    )  # fmt: skip
    assert (whole["name"], whole["kind"], whole["rank"], whole["duration_ns"]) == (
        "all_reduce",
        "collective",
        2,
        61974000,
    )
    assert (whole["bytes"], whole["sequence"], whole["device_time"]) == (17179869184, 1407, True)
    facts = json.loads(whole["attributes"])
    assert (facts["bus_gbyte_per_s"], facts["time"]) == (485.119099, "when it was written")
    assert whole["bytes"] / whole["duration_ns"] == pytest.approx(facts["algorithm_gbyte_per_s"], rel=1e-6)
    assert (traced["start_ns"], "time" in json.loads(traced["attributes"])) == (1748030377600181000, False)
    assert (split["rank"], split["group_size"], split["process_group"]) == (2, 2, "0x1")
    assert send["name"] == "send"
    reasons = sorted(row["reason"] for row in rejects(lake))
    assert reasons == ["import: dump_timestamp_us: not a count", "import: metadata: not an object", "import: not JSON"]


def member(rank, count=1204, **status):
    """Return a rank that answered."""
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False
              } | status  # fmt: skip
    return {"rank": rank, "host": f"10.0.0.{rank}", "pid": 7, "cuda_dev": 0, "nvml_dev": 0, "status": status,
            "collective_counts": {"Broadcast": 2, "AllReduce": count}}  # fmt: skip


def report(ranks, missing=(), others=()):
    """Return a report of one communicator, and others."""
    whole = {"hash": "0x8f", "secondary_hash": "0x1:0x2", "size": 4, "ranks_count": len(ranks), "ranks": ranks,
             "missing_ranks_count": len(missing), "missing_ranks": list(missing)}  # fmt: skip
    return {"nccl_version": "2.30.3", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-06-11 11:44:19", "communicators_count": 1, "communicators": [whole, *others],
            "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}  # fmt: skip


DEAD = {"rank": 3, "host": "10.0.0.3", "pid": 7, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"unresponsive": True, "considered_dead": True}}  # fmt: skip


def test_ras(lake, spool, tmp_path):
    """Who does not answer or reports an error is an error, who is behind a warning; small groups have world ranks."""
    pair = {"hash": "0x9", "size": 2, "ranks": [{**member(1), "rank": 0}, {**member(2), "rank": 1}]}
    whole = report([member(0), member(1, count=1203), member(2, async_error=6)], [DEAD], [pair, {"hash": 1}])
    (tmp_path / "ras.json").write_text(json.dumps(whole, indent=2))
    imported(lake, spool, "nccl_ras", tmp_path / "ras.json", run="r")
    rows = ask(lake, "SELECT ts, rank, event, severity, attributes FROM events WHERE event = 'nccl_ras' ORDER BY slot")
    assert [(row["rank"], row["severity"]) for row in rows] == [
        (0, "info"), (1, "warning"), (2, "error"), (3, "error"), (1, "info"), (2, "info"),
    ]  # fmt: skip
    behind, failed, dead = (json.loads(row["attributes"]) for row in rows[1:4])
    assert behind["behind"] == {"AllReduce": {"launched": 1203, "most": 1204}}
    assert failed["async_error"] == 6
    assert dead == {"group": "0x8f", "group_size": 4, "missing": True, "unresponsive": True, "considered_dead": True}
    assert [row["reason"] for row in rejects(lake)] == ["import: the communicator needs hash, size and ranks"]
    assert ask(lake, "SELECT world_size, nccl_version FROM runs") == [{"world_size": 4, "nccl_version": "2.30.3"}]


@pytest.mark.parametrize("text", ["{}", "no", "[" * 100_000, '{"communicators": []}', '{"communicators": 1}'])
def test_what_is_no_report_is_refused_in_a_line(spool, tmp_path, text):
    """The text report, too: it says how to save one."""
    (tmp_path / "ras.json").write_text(text)
    with pytest.raises(SourceError, match=r"ncclras --format=json|JSON with nccl_version and communicators") as error:
        import_files("nccl_ras", [str(tmp_path / "ras.json")], str(spool))
    assert "\n" not in str(error.value)
