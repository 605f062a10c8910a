"""The failure library: each signature has a sample that matches and a line close to it that does not."""

import re
from pathlib import Path

import pytest

from ranklake.lake.query.sql import query
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.lake.rollups.failures import SHARED, causes_of, library
from ranklake.lake.store.lake import Lake

WITH_LOGS = [signature for signature in library().values() if signature.logs]
REAL = {  # lines as they stand in public issues, names and addresses replaced
    "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.": "collective-timeout",
    "h:19989:20082 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::1%ib0<53249> with "
    "error 4, opcode 32564, len 32564, vendor err 81 (Send)": "network",
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).":
        "shared-memory",
    "slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.": "host-out-of-memory",
    "NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.": "gpu-hardware",
    "NVRM: Xid (PCI:0000:06:00): 31, pid=1, name=python, MMU Fault": "cuda-error",
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.": "divergence",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32": "gradient-spike",
    "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to "
    "(h, 41331).": "rendezvous",
    "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***": "preemption",
    "OSError: [Errno 122] Disk quota exceeded: '/home/x/checkpoint'": "disk-full",
    "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer":
        "checkpoint-corruption",
    "W0110 12:27:06.332000 158 torch/_dynamo/convert_frame.py:1551] [2/8] torch._dynamo hit config.recompile_limit (8)":
        "recompilation",
    "h:9:9 [1] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory":
        "locked-memory",
    "h:1:2 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found": "network-interface",
    "The checkpoint being loaded used a DP world size of 4 but the current world size is 1. Automatic adjustment of ":
        "checkpoint-mismatch",
    "int nccl_net_ofi_create_plugin():208 NCCL WARN NET/OFI Failed to initialize sendrecv protocol":
        "socket-fallback",
    "wandb: WARNING Tried to log to step 20 that is less than the current step 162. Steps must be monotonically "
    "increasing, so this data will be ignored.": "dropped-metrics",
    "Failed to export logs to localhost:4317, error code: StatusCode.UNAVAILABLE": "lost-telemetry",
    "The L-infinity distance between serving and training is 0.0435984 (up to six significant digits), above the "
    "threshold 0.01. The feature value with maximum difference is: Cash": "data-drift",
    "h:1:2 [1] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 192.0.2.3<51161> with status=4 "
    "opcode=32614 len=32614 vendor err 81 (Send) hca mlx5_1": "network",
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: SequenceNumber=18":
        "collective-timeout",
}  # fmt: skip
SOUND = (  # lines of sound runs, near to those
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being over",
    "        HW Slowdown                       : Not Active",
    "            HW Thermal Slowdown           : Not Active",
    "        SW Thermal Slowdown               : Not Active",
    "NCCL WARN NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle",
)


@pytest.mark.parametrize("signature", WITH_LOGS, ids=[signature.name for signature in WITH_LOGS])
def test_each_signature_has_a_sample(signature):
    """Its own sample leads to it, before all others; the line beside it matches no signature."""
    assert causes_of({}, [], [signature.sample])[0] == signature.name
    assert signature.matches(signature.sample)
    assert signature.matches(signature.sample.upper())
    assert not [other.name for other in library().values() if other.matches(signature.other)]


def test_a_signature_without_logs_has_findings():
    """Each can be reached: by a log line, as a detector's runbook, from the on-call page, by a shared switch."""
    of_findings = {detector.runbook for detector in DETECTORS} | {"detector-failed"}
    for signature in library().values():
        assert signature.logs or signature.name in of_findings | {"failed-checks", "unreadable-segments", SHARED}
        assert bool(signature.logs) == bool(signature.sample) == bool(signature.other)


@pytest.mark.parametrize(("line", "name"), REAL.items(), ids=REAL.values())
def test_lines_of_real_logs(line, name):
    """Each is known for what it is, before anything else."""
    assert causes_of({}, [], [line])[0] == name


@pytest.mark.parametrize("line", SOUND)
def test_lines_of_sound_runs_are_no_sign(line):
    """Such as torchrun and nvidia-smi say these of every run."""
    assert causes_of({}, [], [line]) == []


def test_more_signs_come_first():
    """A finding and a log line together outweigh one that is more certain by itself."""
    lines = ["RuntimeError: DataLoader worker (pid(s) 3) exited unexpectedly", "No space left on device"]
    assert causes_of({"data_stall": 3}, [], lines)[:2] == ["data-loading", "disk-full"]
    assert causes_of({}, ["network"], []) == ["network"]
    assert causes_of({"never_heard_of": 1}, [None], ["all is well"]) == []


RUNBOOKS = Path(__file__).resolve().parents[3] / "docs/runbooks"
QUERY = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_each_signature_has_its_page():
    """A page a signature, each with a query, and each in the list of pages."""
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(library())
    contents = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in contents for name in pages)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake without rows."""
    return Lake.create(str(tmp_path_factory.mktemp("runbooks") / "lake"))


@pytest.mark.parametrize("name", list(library()))
def test_queries_of_runbooks_run(lake, name):
    """Tables and columns of each query exist."""
    first, *others = QUERY.findall((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8"))
    assert [query(lake, sql).num_rows for sql in (first, *others)] == [0] * (1 + len(others))


@pytest.mark.parametrize("detector", DETECTORS, ids=[detector.name for detector in DETECTORS])
def test_each_detector_leads_to_a_page(detector):
    """The runbook that its findings name is one, and so a cause of their incidents."""
    assert detector.runbook in library()
    assert causes_of({detector.name: 1}, []) == [detector.runbook]
