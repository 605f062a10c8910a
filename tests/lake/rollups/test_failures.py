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
}  # fmt: skip


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
    (sql,) = QUERY.findall((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8"))
    assert query(lake, sql).num_rows == 0


@pytest.mark.parametrize("detector", DETECTORS, ids=[detector.name for detector in DETECTORS])
def test_each_detector_leads_to_a_page(detector):
    """The runbook that its findings name is one, and so a cause of their incidents."""
    assert detector.runbook in library()
    assert causes_of({detector.name: 1}, []) == [detector.runbook]
