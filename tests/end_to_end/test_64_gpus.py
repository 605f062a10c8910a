"""A lake of 64 GPUs: numbers of its run's page lead to their bytes, and a day's backup costs what the day brought."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from lineage_of_pages import follow, followed

from ranklake.bench.generate import generate
from ranklake.bench.job import DEFAULT_START, Job
from ranklake.cli import run
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.retention.backup.backup import backup

pytestmark = [pytest.mark.slow, pytest.mark.leaky("the drawing library keeps its files open")]


def day_of(lake, spool, day):
    """Bring a day's job of 64 GPUs into the lake, with checks and rollups; return its run."""
    job = Job(64, 60.0, start=DEFAULT_START + timedelta(days=day), seed=day)
    made = generate(job, str(spool), workers=1)
    done = ingest(lake, Spool(str(spool)), InProcess())
    assert (done.unreadable, done.rows_rejected) == (0, 0)
    assert run(["check", "--lake", lake.uri]) == 0
    run_rollups(lake)
    return made.run


def files_of(folder):
    """Return the size and time of each file below a folder."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def test_numbers_lead_to_bytes_and_a_day_costs_what_it_brought(tmp_path, capsys):
    """Ten numbers verify, a flipped byte of a pack is named by those that came of it alone; restored, all is equal."""
    spool, folder, uri = tmp_path / "spool", tmp_path / "lake", str(tmp_path / "backups")
    lake = Lake.create(str(folder))
    day_of(lake, spool, 0)
    backup(lake, uri)
    before = files_of(folder)
    name = day_of(lake, spool, 1)
    after = files_of(folder)
    fresh = sum(size for path, (size, at) in after.items() if before.get(path) != (size, at))
    increment = backup(lake, uri)
    with capsys.disabled():
        print(f"\n{increment.copied_bytes + increment.manifest_bytes:,} bytes for {fresh:,} new ones")
    assert increment.copied_bytes + increment.manifest_bytes <= 1.2 * fresh
    shutil.rmtree(folder)
    assert run(["restore", uri, "--to", str(folder)]) == 0
    lake = Lake.open(str(folder))
    assert run(["report", "runs", "--out", str(tmp_path / "site"), "--lake", lake.uri]) == 0
    (page,) = (tmp_path / "site/runs").glob(f"run-{name}-*.html")
    places = ["--lake", lake.uri, "--spool", str(spool)]
    segments = followed(page.read_text(encoding="utf-8"), places, capsys)
    victim = Path(min(set.union(*segments.values())).partition("#")[0])
    raw = bytearray(victim.read_bytes())
    raw[200] ^= 1  # in the first member
    victim.write_bytes(raw)
    statuses = {}
    for command, paths in list(segments.items())[:3]:
        status, result = follow(command, places, capsys)
        is_named = any(victim.name in fault["text"] for fault in result["faults"])
        assert is_named == bool(status), command
        assert not is_named or any(victim.name in path for path in paths)
        statuses[command] = status
    assert 1 in statuses.values()
