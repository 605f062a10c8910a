"""The failure library: each signature has a sample that matches and a line close to it that does not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ranklake.lake.query.sql import query
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.lake.rollups.failures import SHARED, causes_of, library
from ranklake.lake.store.lake import Lake

SUPPORT = Path(__file__).resolve().parents[2] / "support"
LINES = yaml.safe_load((SUPPORT / "failure_lines.yaml").read_text(encoding="utf-8"))
WITH_LOGS = [signature for signature in library().values() if signature.logs]
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


@pytest.mark.parametrize("name", LINES)
def test_lines_of_logs_are_known_for_what_they_are(name):
    """Each points to its cause before anything else."""
    assert {line: causes_of({}, [], [line])[:1] for line in LINES[name]} == {line: [name] for line in LINES[name]}


@pytest.mark.parametrize("signature", WITH_LOGS, ids=[signature.name for signature in WITH_LOGS])
def test_each_pattern_is_needed(signature):
    """Without any one of its patterns a signature misses a line of its own."""
    lines = (signature.sample, *LINES.get(signature.name, ()))
    for pattern in signature.logs:
        rest = replace(signature, logs=tuple(other for other in signature.logs if other != pattern))
        assert not all(map(rest.matches, lines)), pattern
    assert all(map(signature.matches, lines))


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
