"""`ranklake doctor`: planted faults are found, each with its remedy; of a sound system it has nothing to say."""

import contextlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from rollup_inputs import append
from segments import DAY, put_bytes, put_segment, step_rows
from stores import Proxy, free_port, moto_server, s3_server, s3_storage

from ranklake.cli import run
from ranklake.config import Config
from ranklake.context import Context
from ranklake.doctor import versions
from ranklake.doctor.examination import PROBES
from ranklake.flows.pages import page
from ranklake.flows.serving.home import Home
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import Plan, commit_rows, ledger_row
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.pipeline.alerts import stage as alerts_stage
from ranklake.pipeline.calls import UnsoundError
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import DOCTOR
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.policies.policies import load_policies
from ranklake.segments.segment import SegmentFooter
from ranklake.segments.storage_options import fsspec_options

ROOT = Path(__file__).resolve().parents[2]
RECORDER = """
import os, signal, sys
from ranklake import capture
run = capture.start(run="died")
with run.step(0):
    pass
run.step(1).__enter__()
print("recorded", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Let nothing of this machine be looked at but what a test plants: no variables, no folder of its own."""
    for name in list(os.environ):
        if name.startswith(("RANKLAKE_", "PREFECT_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """Give the URL of a real server of S3's protocol that honours conditional writes."""
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def place(tmp_path):
    """Give a spool with a segment, and a lake that has it."""
    put_segment(tmp_path / "spool", step_rows(10))
    lake = Lake.create(str(tmp_path / "lake"))
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    return tmp_path


def written(folder, **sections):
    """Write ranklake.toml: keys by section, text or numbers."""
    lines = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    (folder / "ranklake.toml").write_text("\n".join(lines) + "\n")


@pytest.fixture
def examined(capsys):
    """Give what the doctor finds, by check, and hold the exit code against it."""

    def look(*options):
        code = run(["doctor", "--json", *options])
        out, error = capsys.readouterr()
        assert not error
        facts = json.loads(out)
        found = {}
        for one in facts["findings"]:
            found.setdefault(one["check"], []).append(one)
        wrong = [one for one in facts["findings"] if one["state"] in {"warning", "failed"}]
        assert (code, facts["sound"]) == (1 if wrong else 0, not wrong)
        assert all(one["remedy"] for one in wrong)
        return found

    return look


def held(found, check, state, what, remedy):
    """Assert that a check found a thing, and says the remedy."""
    states = [one for one in found[check] if one["state"] == state]
    assert states, found[check]
    assert any(what in one["what"] and remedy in one["remedy"] for one in states), states


def wrong(found):
    """Return the checks that have something to say."""
    return {check for check, lines in found.items() if any(one["state"] in {"warning", "failed"} for one in lines)}


def test_a_sound_system_is_told_as_one(place, examined):
    """All is ok on a lake that was fed just now; what is not configured is skipped, and the exit code is 0."""
    written(place, lake={"uri": str(place / "lake")}, spool={"uri": str(place / "spool")})
    began = time.monotonic()
    found = examined()
    assert not wrong(found), [found[check] for check in wrong(found)]
    skipped = {check for check, lines in found.items() if any(one["state"] == "skipped" for one in lines)}
    elsewhere = {"clock", "local-spool", "dask", "prefect", "roles", "prices", "anchors", "keys"}
    elsewhere |= {"masking", "placement", "subject-keys", "prefect-runs", "approvals", "checks", "artifacts", "backup"}
    elsewhere |= {"alerts"}
    assert skipped <= elsewhere, "all else is ok"
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("probe", [*PROBES, *alerts_stage.PROBES], ids=lambda probe: f"{probe.check} {probe.place}")
def test_each_probe_is_there(probe):
    """They are imported by name when they run, and a module that is not there reads as one that is not installed."""
    assert callable(pkgutil.resolve_name(f"ranklake.doctor.{probe.place}"))


def test_nothing_is_left_behind(place, examined):
    """The doctor changes nothing: not in the lake, nor in the spool, nor where ranks record."""
    (place / "local").mkdir()
    written(place, lake={"uri": str(place / "lake")}, spool={"uri": str(place / "spool")})

    def state():
        return {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}

    before = state()
    examined()
    assert state() == before


def test_it_works_with_nothing_at_all(examined, capsys):
    """Without lake, spool and file it says that they are not configured, and that nothing is wrong."""
    found = examined()
    assert not wrong(found)
    held(found, "store", "skipped", "no lake configured", "RANKLAKE_LAKE")
    held(found, "spool", "skipped", "no spool configured", "RANKLAKE_SPOOL")
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "nothing wrong on this machine; no lake was looked at; not checked, and why in each line: secret-" in out
    assert "Traceback" not in out


LIGHT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dask", "datafusion", "deltalake", "distributed", "great_expectations", "prefect"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from ranklake.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", [["doctor"], ["config", "show"], ["config", "check"]])
def test_it_works_where_only_capture_is_installed(tmp_path, command):
    """On a training node there is no pipeline: what needs it is skipped, and the rest is looked at."""
    told = [sys.executable, "-c", LIGHT, *command]
    environment = {**os.environ, "RANKLAKE_NATIVE": "0"}  # an older build of it is told, on stderr
    done = subprocess.run(told, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert command != ["doctor"] or "disk                ok" in done.stdout


def test_each_line_is_explained():
    """The page for operators has a line for each check of the table."""
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    assert not [probe.check for probe in PROBES if f"| `{probe.check}` |" not in page]


def test_what_was_tested_is_what_the_project_pins():
    """Bounds come from the metadata, tested versions from the list that the tests install; each fits the other."""
    assert versions.tested_versions()["deltalake"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for name in ("pyarrow", "deltalake", "datafusion", "dask", "distributed", "prefect", "fastapi", "torch"):
        assert f"{name}=={versions.tested_versions()[name]}\n" in pinned
        assert versions.required_versions()[name].has(versions.tested_versions()[name]), name
    assert not versions.required_versions()["datafusion"].has("56.0")
    assert versions.release_numbers("2.13.0+cpu") == (2, 13, 0)


# --- planted faults -------------------------------------------------------------------------------------------------


def distribution(folder, name, version):
    """Write down in a folder that a distribution is installed, as pip would."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.mark.parametrize(
    ("name", "version", "check", "state", "remedy"),
    [
        ("fastapi", "0.160.0", "prefect-version", "failed", "'fastapi>=0.139,<0.151'"),
        ("datafusion", "56.1.0", "delta-engine", "failed", "'deltalake>=1.6.6,<1.7' 'datafusion>=55,<56'"),
        ("pyarrow", "99.0.0", "pyarrow", "warning", "pip install 'pyarrow=="),
        ("torch", "2.4.0", "torch", "warning", "pip install 'torch>=2.13'"),
    ],
)
def test_fault_a_version_that_was_not_tested(tmp_path, monkeypatch, examined, name, version, check, state, remedy):
    """A version out of bounds, or newer than what was tested, is named with the pip command that mends it."""
    monkeypatch.syspath_prepend(str(distribution(tmp_path / "site", name, version)))
    found = examined()
    held(found, check, state, f"{name} {version}", remedy)
    assert wrong(found) == {check}


def test_fault_a_misspelt_key(tmp_path, examined):
    """A configuration that cannot be read is one line; what needs it is not looked at, versions are."""
    written(tmp_path, lake={"url": "s3://x"})
    found = examined()
    held(found, "configuration", "failed", "ranklake.toml:2", "did you mean 'uri'?")
    held(found, "store", "skipped", "see configuration", "")
    assert found["pyarrow"][0]["state"] == "ok"


def test_fault_no_client_for_the_store(tmp_path, examined, monkeypatch):
    """A URI whose client is not installed names the extra to install."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    written(tmp_path, lake={"uri": "gs://bucket/lake"}, spool={"uri": str(tmp_path)})
    held(examined("--limit-s", "5"), "store", "failed", "gs:// needs gcsfs", "pip install 'ranklake[gcs]'")


def test_fault_nobody_at_the_endpoint(tmp_path, examined):
    """A store that is not there is a line about the network; what lies behind it is not looked at."""
    url = f"http://127.0.0.1:{free_port()}"
    written(tmp_path, lake={"uri": "s3://bucket/lake"}, storage=s3_storage(url))
    found = examined()
    held(found, "store", "failed", "cannot be reached", "check the URI, the network")
    held(found, "lake", "skipped", "see store", "")


@pytest.mark.slow
def test_fault_wrong_credentials(tmp_path, examined):
    """A store that checks signatures refuses a wrong key; the line holds no part of it."""
    with s3_server(tmp_path / "rclone") as url:
        storage = s3_storage(url, aws_secret_access_key="wr0ng-secret-of-ours")
        written(tmp_path, lake={"uri": "s3://bucket/lake"}, storage=storage)
        found = examined()
    held(found, "store", "failed", "cannot be reached", "rights")
    assert "wr0ng" not in json.dumps(found)


@pytest.mark.slow
def test_fault_a_store_that_ignores_conditions(s3, tmp_path, examined):
    """A proxy that drops If-None-Match is found on a lake and on an empty place, and no object is left behind."""
    Lake.create("s3://bucket/held", s3_storage(s3))
    with Proxy(s3) as proxy:
        proxy.dropped = "if-none-match"
        for name in ("held", "empty"):
            written(tmp_path, lake={"uri": f"s3://bucket/{name}"}, storage=s3_storage(proxy.url))
            found = examined()
            held(found, "conditional-writes", "failed", "overwrites what it was asked", "If-None-Match")
    fs = client(s3)
    assert fs.find("bucket/held") == ["bucket/held/ranklake.json"]
    assert fs.find("bucket/empty") == []


def client(url):
    """Return a client of a server of S3."""
    import fsspec

    return fsspec.filesystem("s3", skip_instance_cache=True, **fsspec_options("s3://b", s3_storage(url)))


def test_a_store_that_honours_them_is_ok(s3, tmp_path, examined):
    """The real server is sound, with and without a lake; its clock agrees; nothing is left behind."""
    Lake.create("s3://bucket/good", s3_storage(s3))
    for name, there in (("good", ["bucket/good/ranklake.json"]), ("none", [])):
        written(tmp_path, lake={"uri": f"s3://bucket/{name}"}, storage=s3_storage(s3))
        found = examined()
        assert found["conditional-writes"][0]["what"] == "honoured"
        assert any("agrees with" in one["what"] for one in found["clock"])
        assert client(s3).find(f"bucket/{name}") == there


@pytest.mark.slow
def test_fault_a_store_that_can_only_be_read(s3, tmp_path, examined):
    """Where each write is forbidden the line says which right is missing."""
    Lake.create("s3://bucket/read", s3_storage(s3))
    with Proxy(s3) as proxy:
        proxy.rule = lambda seen: 403 if seen.method == "PUT" else None
        written(tmp_path, lake={"uri": "s3://bucket/read"}, storage=s3_storage(proxy.url))
        found = examined()
    held(found, "conditional-writes", "warning", "s3://bucket/read", "right to write")
    assert found["lake"][0]["state"] == "ok"


def test_fault_no_such_bucket(s3, tmp_path, examined):
    """A bucket that nobody made is told as that."""
    written(tmp_path, lake={"uri": "s3://nobodys/lake"}, storage=s3_storage(s3))
    held(examined(), "conditional-writes", "failed", "no such bucket", "make the bucket")


class _Wrong(BaseHTTPRequestHandler):
    """A service whose clock is ten minutes ahead, and that knows nobody."""

    def do_HEAD(self):
        self.send_response_only(403)
        self.send_header("Date", self.date_time_string(time.time() + 600))
        self.end_headers()

    do_GET = do_PUT = do_HEAD  # noqa: N815 - likewise

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def serving(handler):
    """Serve HTTP for the block; give the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_fault_a_wrong_clock(tmp_path, examined):
    """A clock ten minutes behind the store's is a failure that names the service to mend."""
    with serving(_Wrong) as url:
        written(tmp_path, lake={"uri": "s3://bucket/lake"}, storage=s3_storage(url))
        held(examined(), "clock", "failed", "s behind it", "chrony or ntpd")


@pytest.mark.leaky("a client that waits for a store that never answers: it ends with the process")
def test_fault_a_store_that_hangs(tmp_path, examined):
    """A store that takes connections and never answers costs the time limit, not more; the rest is looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        written(tmp_path, lake={"uri": "s3://bucket/lake"}, storage=s3_storage(url))
        began = time.monotonic()
        found = examined("--limit-s", "1")
        assert time.monotonic() - began < 20
    held(found, "store", "failed", "no answer within 1 s", "network")
    assert found["disk"][0]["state"] == "ok"


def test_fault_too_little_disk(tmp_path, examined):
    """Less room than one process may take while the store is away is a warning."""
    written(tmp_path, capture={"disk_budget_bytes": 1 << 60})
    held(examined(), "disk", "warning", "free", "disk_budget_bytes")


def test_fault_the_lakes_disk_is_nearly_full(place, examined):
    """Less than the configured share free is a warning that names the place; no folder, no disk."""
    written(place, lake={"uri": str(place / "lake")}, health={"disk_free_ratio": 0.9999})
    held(examined(), "room", "warning", f"the disk of the lake {place}/lake is nearly full", "make room")
    written(place, lake={"uri": "s3://bucket/lake"}, storage=s3_storage("http://127.0.0.1:9"))
    held(examined("--limit-s", "1"), "room", "skipped", "neither lake nor spool", "")


def test_fault_no_room_can_be_reserved(tmp_path, examined):
    """A limit on file sizes is found by the same call by which capture makes its files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        found = examined()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    held(found, "preallocation", "failed", "cannot be reserved (File too large)", "ulimit -f")


def test_fault_the_local_spool_is_a_file(tmp_path, examined):
    """A local spool that cannot be one names the variable to set."""
    (tmp_path / "local").write_text("")
    held(examined(), "local-spool", "failed", "is not a folder", "RANKLAKE_LOCAL_SPOOL")


def test_fault_a_process_died_and_its_segments_wait(tmp_path, examined):
    """What a killed rank left, and a segment older than the agent's patience, are named with the command to run."""
    killed = subprocess.run([sys.executable, "-c", RECORDER], capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "recorded\n"), killed.stderr
    held(examined(), "local-spool", "warning", "processes that died, not sealed: died rank 0", "ranklake agent --once")
    (folder,) = (tmp_path / "local" / "died" / "a0").iterdir()
    waits = folder / f"steps-000007~2026-03-01~12~{'0' * 64}.sealed"
    waits.write_bytes(b"PAR1")
    old = time.time() - 5000
    os.utime(waits, (old, old))
    held(examined(), "local-spool", "warning", "12 rows in 1 segment wait to be sent", "ranklake agent --once")


def test_fault_a_place_that_is_a_file(tmp_path, examined):
    """A lake and a spool at, or below, a file are a line each that names the file; what needs the lake is skipped."""
    (tmp_path / "file").write_text("")
    written(tmp_path, lake={"uri": str(tmp_path / "file")}, spool={"uri": str(tmp_path / "file" / "spool")})
    found = examined()
    held(found, "store", "failed", f"{tmp_path}/file is a file, not a folder", "fix the URI")
    held(found, "spool", "failed", f"{tmp_path}/file is a file, not a folder", "fix the URI")
    assert wrong(found) <= {"settings", "store", "spool", "ingest"}


@pytest.mark.parametrize("options", [("--overdue-hours", "nan"), ("--overdue-hours", "1e300"), ("--limit-s", "nan")])
def test_limits_that_are_none_are_refused(capsys, options):
    """What no time can be compared with is bad usage, not a fault of the lake."""
    assert run(["doctor", *options]) == 2
    assert f"Invalid value for '{options[0]}'" in capsys.readouterr().err


def test_fault_a_plan_that_nobody_finishes(place, examined):
    """A plan that a dead driver left is named with its kind and age; a fresh one is somebody's work."""
    put_segment(place / "spool", step_rows(5, segment=1), rows_before=10)
    lake = Lake.open(str(place / "lake"))
    plan = ingest_plan.compose(lake, Spool(str(place / "spool")), 2).plan
    lake.put_if_absent(plan.name, plan.to_json())
    options = ("--lake", str(place / "lake"), "--spool", str(place / "spool"))
    assert "somebody is at it" in examined(*options)["plans"][0]["what"]
    found = examined(*options, "--overdue-hours", "0.0000001")
    held(found, "plans", "warning", "plan 2 (ingest), written", "'ranklake ingest' finishes it")


def test_fault_a_plan_without_the_seal_that_is_required(place, examined):
    """With require_signed_plans an unsealed plan is refused, and the line says what to do about it."""
    put_segment(place / "spool", step_rows(5, segment=1), rows_before=10)
    lake = Lake.open(str(place / "lake"))
    plan = ingest_plan.compose(lake, Spool(str(place / "spool")), 2).plan
    lake.put_if_absent(plan.name, plan.to_json())
    keys = place / "keys"
    keys.write_text("11" * 32)
    keys.chmod(0o600)
    written(
        place,
        lake={"uri": str(place / "lake")},
        spool={"uri": str(place / "spool")},
        plans={"key": f"file:{keys}", "require_signed_plans": True},
    )
    held(examined(), "plans", "failed", "the plan has no seal, and one is required", "find out who put the file there")


def test_fault_a_forged_plan(place, examined):
    """A plan file that no ranklake wrote is refused, and named."""
    (place / "lake" / "plans" / "0000000002.json").write_text('{"format": 1}')
    held(examined("--lake", str(place / "lake")), "plans", "failed", "0000000002.json", "restore the file")


def test_fault_the_audit_trail_is_cut(place, examined):
    """A trail whose table went is broken: its head lies beside it."""
    lake = Lake.open(str(place / "lake"))
    record(lake, "somebody", "test.act", "thing", "because", {})
    assert examined("--lake", lake.uri)["audit-trail"][0]["what"] == "whole: 1 row"
    shutil.rmtree(place / "lake" / "tables" / "audit")
    held(examined("--lake", lake.uri), "audit-trail", "failed", "vouches for 1 rows", "audit resume")


def test_fault_a_table_without_its_log(place, examined, capsys):
    """A table whose log went, or is empty, is told before it is begun anew; what asks the ledger does not guess."""
    log = place / "lake" / "tables" / "steps" / "_delta_log"
    log.rename(place / "aside")
    found = examined("--lake", str(place / "lake"))
    held(found, "table-logs", "failed", "table steps has lost its log", "steps/_delta_log from a backup")
    assert {one["state"] for one in found["plans"]} == {"skipped"}
    capsys.readouterr()
    assert run(["status", "--lake", str(place / "lake")]) == 1
    assert "table steps has lost its log: restore it" in capsys.readouterr().err
    log.mkdir()
    assert "table-logs" in wrong(examined("--lake", str(place / "lake")))
    log.rmdir()
    (place / "aside").rename(log)
    assert "with their logs" in examined("--lake", str(place / "lake"))["table-logs"][0]["what"]


def test_fault_the_ledger_is_lost(place, examined, capsys):
    """It is none of the tables that `status` balances: nothing adds up without it, and nobody may call that empty."""
    shutil.rmtree(place / "lake" / "tables" / "ingest_plans")
    for path in (place / "lake" / "tables").rglob("*.*"):
        os.utime(path, (time.time() - 900,) * 2)
    held(examined("--lake", str(place / "lake")), "table-logs", "failed", "ingest_plans has lost its log", "backup")
    capsys.readouterr()
    assert run(["status", "--lake", str(place / "lake"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["lost_tables"] == ["ingest_plans"]


def test_fault_what_is_no_plan_lies_among_them(place, examined):
    """A file of another name, or of a number that no plan can have yet, is named; the next plan is not touched."""
    plans = place / "lake" / "plans"
    (plans / "notes\x1b.txt").write_text("?")
    (plans / "0000000009.json").write_text("{}")
    found = examined("--lake", str(place / "lake"))
    held(found, "plans", "warning", "plans/0000000009.json and 1 more: no plan of this lake, whose next is 2", "remove")
    (plans / "0000000009.json").unlink()
    said = examined("--lake", str(place / "lake"))["plans"][0]["what"]
    assert "notes" in said
    assert "\x1b" not in said


@pytest.mark.slow
def test_fault_a_witness_that_takes_nothing(s3, tmp_path, examined):
    """A witness that nobody may write to fails before the next row of the audit log would; the look changes nothing."""
    with Proxy(s3) as proxy:
        options = s3_storage(proxy.url)
        lake = Lake.create("s3://bucket/seen", options).configured(audit=AuditSection("s3://bucket/witness"))
        record(lake, "somebody", "test.act", "thing", "because", {})
        written(tmp_path, lake={"uri": lake.uri}, audit={"witness": "s3://bucket/witness"}, storage=options)
        assert examined()["audit-trail"][0]["what"] == "whole: 1 row"
        proxy.rule = lambda seen: 403 if seen.method == "PUT" and "/witness/" in seen.path else None
        held(examined(), "audit-trail", "failed", "s3://bucket/witness takes no heads", "right to add files there")


def test_fault_rows_went_without_a_plan(place, examined):
    """A ledger that counts rows down for a merge is a removal that nobody approved."""
    lake = Lake.open(str(place / "lake"))
    plan = Plan(2, "compaction", 1_700_000_000_000_000, {"writer": "somebody"})
    assert commit_rows(lake.tables, "ingest_plans", [ledger_row(plan, {"steps": -5})], 2)
    held(examined("--lake", lake.uri), "removals", "failed", "plan 2 (compaction) removed 5 rows", "audit show")


def test_fault_what_rounds_came_to(place, examined, capsys):
    """A failed check, an altered artifact, a segment that cannot be read and a run that lost most rows are told."""
    lake, spool = Lake.open(str(place / "lake")), place / "spool"
    result = {"check_run": "c", "table": "steps", "partition_date": DAY.date(), "suite": "s", "files_sha256": "f"}
    facts = {"expectation": "e", "on_fail": "keep", "ts": DAY, "date": DAY.date(), "rows_failed": 3}
    append(lake, "quality_results", [
        {**result, **facts, "check_id": f"c{severity}{status}", "severity": severity, "status": status}
        for severity, status in (("error", "failed"), ("warning", "failed"), ("info", "errored"))
    ])  # fmt: skip
    made = {"action": "created", "kind": "model", "name": "m.pt", "uri": "/m.pt", "sha256": "ab", "ts": DAY}
    append(lake, "artifacts", [made])
    details = {"run": "r1", "name": "m.pt", "recorded_sha256": "ab", "verified": False, "verdict": "it is gone"}
    record(lake, "ann", "artifact.verify", "/m.pt", None, details)
    put_segment(spool, step_rows(21, incarnation=8), incarnation=8, gaps={"spool full": 79, "after close": 500})
    put_bytes(spool, b"", SegmentFooter("steps", 1, "r1", 0, 0, 1, 9, 0, rows=5))
    ingest(lake, Spool(str(spool)), InProcess())
    written(place, lake={"uri": str(place / "lake")}, spool={"uri": str(spool)})
    found = examined()
    held(found, "checks", "failed", "1 check fail: steps 2026-03-01 cerrorfailed", "ranklake check")
    held(found, "checks", "failed", "1 check could not be computed: steps 2026-03-01 cinfoerrored", "ranklake check")
    held(found, "artifacts", "failed", "1 artifact not as recorded: m.pt of r1 (it is gone)", "backup")
    held(found, "rows", "failed", "steps: 1 segment in quarantine could not be read", "disown")
    held(found, "lost-rows", "warning", "run r1: 72% of its rows of steps were not recorded (spool full)", "its node")
    assert run(["status"]) == 1
    error = capsys.readouterr().err
    assert all(f"\n{check}: " in f"\n{error}" for check in ("checks", "artifacts", "lost-rows")), error


def test_fault_a_lake_that_is_gone(place, examined):
    """Where the spool holds segments a place without a lake is no fresh one."""
    written(place, lake={"uri": str(place / "other")}, spool={"uri": str(place / "spool")})
    held(examined(), "lake", "failed", "holds no lake, and the spool holds segments", "from a backup")


def test_fault_a_store_without_tls(tmp_path, examined, monkeypatch):
    """An endpoint of another machine is told; that of this one is named."""
    storage = {"aws_endpoint_url": "http://127.0.0.1:9", "azure_storage_endpoint": "http://store.corp"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "HTTP://minio:9000")
    written(tmp_path, lake={"uri": str(tmp_path / "lake")}, storage=storage)
    found = examined()
    held(found, "store", "ok", "http://127.0.0.1:9: unencrypted, on this machine alone", "")
    held(found, "store", "failed", "[storage] azure_storage_endpoint http://store.corp", "allow_http = true")
    held(found, "store", "failed", "$AWS_ENDPOINT_URL HTTP://minio:9000", "https://")
    written(tmp_path, lake={"uri": str(tmp_path / "lake"), "allow_http": True}, storage=storage)
    assert not wrong(examined()) & {"store"}


def test_fault_nothing_protects_a_lake(place, examined):
    """A folder that every user can read, without a mask: who sees what is said; rights, a mask or a word end it."""
    options = ("--lake", str(place / "lake"))
    above = [
        folder for folder in (place / "lake").parents if folder.stat().st_uid == os.getuid() and folder != Path("/")
    ]
    before = {folder: folder.stat().st_mode for folder in above}
    found = examined(*options)  # below a folder of pytest's that is closed to others
    held(found, "protection", "ok", "no other user of this machine can read it", "")
    try:
        for folder in above:
            folder.chmod(before[folder] | 0o005)
        (place / "lake").chmod(0o755)
        found = examined(*options)
        held(
            found,
            "protection",
            "warning",
            f"whoever may read the folder {place}/lake sees everything",
            "chmod -R o-rwx",
        )
        written(place, lake={"uri": str(place / "lake"), "allow_unprotected": True})
        held(examined(), "protection", "ok", "allowed by [lake] allow_unprotected", "")
        (place / "masks.yaml").write_text("at_capture: {masked: [personal]}\n")
        written(place, lake={"uri": str(place / "lake")}, masking={"policy": str(place / "masks.yaml")})
        held(examined(), "protection", "ok", "columns with data of persons masked at capture", "")
        (place / "lake").chmod(0o750)
        written(place, lake={"uri": str(place / "lake")})
        held(examined(), "protection", "ok", "no other user", "")
    finally:
        for folder, mode in before.items():
            folder.chmod(mode)


def test_a_lake_in_a_bucket_is_read_by_whoever_may_read_the_bucket(s3, tmp_path, examined):
    """No right on a folder keeps anybody out there."""
    Lake.create("s3://bucket/open", s3_storage(s3))
    written(tmp_path, lake={"uri": "s3://bucket/open"}, storage=s3_storage(s3))
    held(examined(), "protection", "warning", "whoever may read the bucket s3://bucket/open sees everything", "shares")


def test_fault_nobody_approves_what_waits(place, examined, capsys):
    """A plan that waits is named with since when and how it goes on; after 72 hours, or as set, it is a fault."""
    put_segment(place / "spool", step_rows(3, incarnation=9, start=datetime(2020, 1, 1, tzinfo=UTC)))
    lake = Lake.open(str(place / "lake"))
    ingest(lake, Spool(str(place / "spool")), InProcess())
    options = ("--lake", lake.uri)
    held(examined(*options), "proposals", "ok", "none waits", "")
    plan = make_plan(lake, lake.contracts(), load_policies(lake.contracts()), datetime.now(UTC).date(), "somebody")
    (line,) = examined(*options)["proposals"]
    assert line["state"] == "ok"
    assert f"{plan.name} waits for a person, since 20" in line["what"]
    assert f"ranklake retain approve {plan.name}" in line["what"]
    written(place, lake={"uri": lake.uri}, health={"proposal_h": 0})
    held(examined(), "proposals", "warning", plan.name, f"ranklake retain approve {plan.name}")
    run(["status"])
    assert "proposals: retention plan" in capsys.readouterr().err


def test_the_stage_fails_for_what_it_finds_and_names_it(place):
    """The deployment `doctor` ends Failed for a fault, and its page has what to do."""
    context = Context.of(Config(), {"lake.uri": str(place / "lake"), "spool.uri": str(place / "spool")})
    done = DOCTOR.work(context)
    assert sum(done["counts"].values()) > 40
    assert DOCTOR.outcome({**done, "findings": []}) == {**done, "findings": []}
    shutil.rmtree(place / "lake" / "tables" / "steps" / "_delta_log")
    done = DOCTOR.work(context)
    with pytest.raises(UnsoundError, match="table-logs: ") as raised:
        DOCTOR.outcome(done)
    assert raised.value.exit_code == 1
    assert "from a backup" in page("doctor", done)
    assert headline("doctor", done)[0].startswith(f"{len(done['findings'])} finding")
    assert page("doctor", {"counts": {"ok": 3}, "findings": []}).endswith("Nothing is wrong.")


def test_fault_stages_that_do_not_run(place, examined):
    """Segments that wait, rows that nobody checked or rolled up, files that no upkeep removed: each is overdue."""
    put_segment(place / "spool", step_rows(5, segment=1), rows_before=10)
    lake = Lake.open(str(place / "lake"))
    options = ("--lake", lake.uri, "--spool", str(place / "spool"))
    assert not wrong(examined(*options)) & {"ingest", "check", "rollup", "catalog", "upkeep"}
    (left,) = append_files(lake.store, contract("segments"), read(lake.tables, contract("segments")), 1)
    old = time.time() - 30 * 86_400
    os.utime(lake.path("tables", "segments", left.path), (old, old))
    found = examined(*options, "--overdue-hours", "0.0000001")
    held(found, "ingest", "warning", "overdue: 1 segment in the spool", "ranklake pipeline")
    held(found, "check", "warning", "overdue: rows of 1 ingest to be checked", "ranklake pipeline")
    held(found, "rollup", "warning", "overdue: rows of 1 ingest to be rolled up", "ranklake pipeline")
    held(found, "catalog", "warning", "overdue: rows of 1 ingest to be in the catalog", "ranklake pipeline")
    held(found, "upkeep", "warning", "should have gone", "'ranklake upkeep' once a day")


@pytest.mark.parametrize(
    ("section", "key", "name", "text", "said"),
    [
        (
            "retention",
            "policies",
            "p.yaml",
            "version: 1\nrules: {}\n",
            ("retention-policies", "no policy for", "add"),
        ),
        ("sql", "roles", "r.yaml", "roles: {a: {classes: [opperational]}}", ("roles", "opperational", "'operational'")),
        (
            "sql",
            "roles",
            "r.yaml",
            "roles: {a: {classes: [], masked: [pseudonymous], tables: [runs]}}",
            ("roles", "sees runs.user by a keyed hash, and there is no key", "name a keyring"),
        ),
        ("cost", "prices", "prices.csv", "device,price\n", ("prices", "prices.csv", "")),
        ("contracts", "overlay", "own/steps.yaml", "table: stesp\n", ("contracts", "steps.yaml", "")),
        ("contracts", "overlay", "own/deep/steps.yaml", "", ("contracts", "holds no contract", "that folder")),
        ("contracts", "overlay", "nowhere", None, ("contracts", "is not a folder", "make the folder")),
    ],
)
def test_fault_a_rule_that_cannot_be_used(tmp_path, examined, section, key, name, text, said):
    """Policies, roles, prices and contracts of one's own are held against their schemas before a stage needs them."""
    if text is not None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    written(tmp_path, **{section: {key: str(tmp_path / name.split("/")[0])}})
    check, what, remedy = said
    held(examined(), check, "warning" if "holds no" in what else "failed", what, remedy)


SCHEDULER = """
import asyncio, sys
sys.path[:0] = sys.argv[1:]
import distributed
async def main():
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        async with distributed.Worker(scheduler.address, nthreads=1, host="127.0.0.1", dashboard=False):
            print(scheduler.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory):
    """Give the addresses of two schedulers in processes of their own: one as here, one with an older version."""
    older = distribution(tmp_path_factory.mktemp("older"), "distributed", "2025.1.0")
    command = [sys.executable, "-c", SCHEDULER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(command, **pipes) as same,
        subprocess.Popen([*command, str(older)], **pipes) as other,
    ):
        try:
            yield same.stdout.readline().strip(), other.stdout.readline().strip()
        finally:
            for one in (same, other):
                one.kill()


def test_fault_a_cluster_of_another_version(schedulers, examined):
    """A scheduler that runs another version of distributed is named; one that runs ours is ok."""
    same, other = schedulers
    assert "1 worker, with the versions that are here" in examined("--dask", same)["dask"][0]["what"]
    held(examined("--dask", other), "dask", "failed", "the scheduler has distributed 2025.1.0", "the same versions")


@pytest.mark.slow
def test_fault_no_scheduler_at_the_address(examined):
    """A port where no scheduler listens is told within seconds."""
    address = f"tcp://127.0.0.1:{free_port()}"
    held(examined("--dask", address), "dask", "failed", "no Dask scheduler answers", "start the scheduler")


class _Prefect(BaseHTTPRequestHandler):
    """A Prefect server of a version, as far as it is asked."""

    version = "3.1.0"

    def do_GET(self):
        said = {"/api/health": True, "/api/admin/version": self.version}.get(self.path)
        raw = json.dumps(said).encode()
        self.send_response(404 if said is None else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        """Say nothing."""


def test_fault_a_prefect_server_that_is_old_or_gone(tmp_path, examined, monkeypatch):
    """An older server, a wrong path and a port where nobody listens are three lines; the same version is ok."""
    with serving(_Prefect) as url:
        monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
        held(examined(), "prefect", "failed", "is Prefect 3.1.0, older", "upgrade the server")
        monkeypatch.setattr(_Prefect, "version", metadata.version("prefect"))
        assert examined()["prefect"][0]["state"] == "ok"
        monkeypatch.delenv("PREFECT_API_URL")
        assert "ranklake up" in examined()["prefect"][0]["what"]
        home = Home.take(tmp_path / ".ranklake", url)
        assert examined()["prefect"][0]["what"].startswith(f"{url}/api: Prefect"), "that of ranklake up is found"
        home.release()
        monkeypatch.setenv("PREFECT_API_URL", url)
        held(examined(), "prefect", "failed", "HTTP 404", "it ends in /api")
    held(examined(), "prefect", "failed", "no Prefect server answers", "start it, or fix PREFECT_API_URL")


def test_fault_settings_that_cannot_work(tmp_path, examined):
    """A reference that gives nothing, a file that is not there and keys that contradict each other are a line each."""
    written(
        tmp_path,
        capture={"encryption_key": "env:NOT_SET_ANYWHERE"},
        sql={"roles": "nowhere.yaml"},
        plans={"require_signed_plans": True},
    )
    found = examined()
    held(found, "settings", "failed", "$NOT_SET_ANYWHERE: the variable that should hold", "env:NAME")
    held(found, "settings", "failed", "ranklake.toml:4: sql.roles: there is no role file nowhere.yaml", "fix the path")
    held(found, "settings", "failed", "ranklake.toml:6: plans.require_signed_plans", "name the keys")
    assert found["disk"][0]["state"] == "ok", "the rest is looked at"


@pytest.mark.slow
def test_fault_secrets_that_everybody_can_read(tmp_path, examined):
    """A key file for everybody, a configuration with a secret in clear, a role file that others write: each is told."""
    keys, roles = tmp_path / "keys", tmp_path / "roles.yaml"
    keys.write_text("11" * 32)
    keys.chmod(0o644)
    roles.write_text("roles: {}")
    roles.chmod(0o666)
    written(tmp_path, plans={"key": f"file:{keys}"}, sql={"roles": str(roles)}, storage={"aws_secret_access_key": "x"})
    (tmp_path / "ranklake.toml").chmod(0o644)
    found = examined()
    held(found, "secret-files", "failed", f"{keys} can be read by everybody (-rw-r--r--)", f"chmod 600 {keys}")
    held(found, "secret-files", "failed", "ranklake.toml can be read by everybody", "chmod 600")
    held(found, "secret-files", "failed", f"{roles} can be written by everybody", f"chmod o-w {roles}")
    wrap, signers = tmp_path / "wrap", tmp_path / "allowed_signers"
    wrap.write_text("11" * 32)
    wrap.chmod(0o644)
    signers.write_text("")
    signers.chmod(0o666)
    written(tmp_path, subjects={"wrap": f"file:{wrap}"}, approvals={"allowed_signers": str(signers)})
    found = examined()
    held(found, "secret-files", "failed", f"{wrap} can be read by everybody (-rw-r--r--)", f"chmod 600 {wrap}")
    held(found, "secret-files", "failed", f"{signers} can be written by everybody", f"chmod o-w {signers}")
    spaced = tmp_path / "my keys; all"
    spaced.write_text("11" * 32)
    spaced.chmod(0o644)
    written(tmp_path, plans={"key": f"file:{spaced}"})
    held(examined(), "secret-files", "failed", "can be read by everybody", f"chmod 600 '{spaced}'")
    for one in (keys, spaced, tmp_path / "ranklake.toml", roles):
        one.chmod(0o600)
    assert examined()["secret-files"][0]["state"] == "ok"
