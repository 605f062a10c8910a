"""Files that rot: what rewrites, merges or rolls up finds them, a scrub finds all, a replay brings the rows back."""

import io
import json
import os
import random
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from governed import Site
from segments import DAY, put_segment, step_rows

from ranklake.cli import cli, run
from ranklake.flows.settings import FlowSettings
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance import compaction
from ranklake.lake.ingest.maintenance.run import scrub, upkeep
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.recompute import recompute
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import DamagedFileError, DataFile, damaged_files, digest_of, files
from ranklake.lake.tables.parquet import FileMismatchError, append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.pipeline.calls import DamageError, refuse_damage, rollup_once, upkeep_once
from ranklake.pipeline.stages import pipeline_once

FLIPS = int(os.environ.get("RANKLAKE_FLIPS", "16"))
REPLAYED = int(os.environ.get("RANKLAKE_FLIPS", "10"))
"""Flips that a replay follows: it takes longer than finding them."""
FILES = 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Give a folder with a lake of a few small files of one date, and its spool."""
    made = Site(tmp_path_factory.mktemp("sound"))
    for segment in range(FILES):
        put_segment(made.spool, step_rows(200, segment=segment), rows_before=200 * segment)
        ingest(made.lake, Spool(str(made.spool)), InProcess(), merge=False)
    return made.folder


@pytest.fixture
def site(sound, tmp_path):
    """Give a copy of it to damage."""
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    return Site(tmp_path)


def data_files(site, table="steps"):
    return sorted(Path(site.lake.path("tables", table)).glob("date=*/*.parquet"))


def flip(path, bit):
    """Turn one bit of a file as a disk would: its size and its times stay what they were."""
    told = path.stat()
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def flip_middle(path):
    flip(path, 4 * path.stat().st_size)


def live(site, table="steps"):
    return files(delta_table(site.lake.store, table))


def live_paths(site, table):
    return [Path(site.lake.path("tables", table, path)) for path in live(site, table)["path"].to_pylist()]


def rows_of(site, table="steps"):
    target = contract(table)
    return read(site.lake.tables, target).sort_by([(name, "ascending") for name in target.grain]).combine_chunks()


def named(site):
    return ("--lake", site.lake.uri)


def call(*args):
    """Run the command line; return exit code, what it says, and what it complains of."""
    done = CliRunner().invoke(cli, list(args), standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value or 0, done.stdout, done.stderr


def test_what_does_not_read_back_as_written_is_told_in_one_line(site, monkeypatch):
    """A new file whose end comes back torn is in no commit, and the error names it: no traceback of pyarrow's."""
    rows = rows_of(site)
    genuine = site.lake.fs.open
    monkeypatch.setattr(site.lake.fs, "open", lambda path, mode: io.BytesIO(genuine(path, mode).read()[:-7]))
    with pytest.raises(FileMismatchError, match=r"^\S+\.parquet: a data file does not read back as written; check"):
        append_files(site.lake.store, contract("steps"), rows, 9)


def test_a_name_tells_the_digest(site):
    """A data file carries the SHA-256 of its bytes in its name: in the log, in a checkpoint, after a merge."""
    delta_table(site.lake.store, "steps").create_checkpoint()
    upkeep(site.lake, InProcess())
    (path,) = live(site)["path"].to_pylist()
    assert digest_of(path) is not None
    done = scrub(site.lake, InProcess())
    assert done.damaged == []
    assert done.files > FILES


def test_every_flipped_bit_is_found(site):
    """Wherever one bit turns in a data file: merge, rollup, rewriting, SQL with --verify and a scrub each name it."""
    chance = random.Random(13)
    target, number = contract("steps"), 99
    (task,) = compaction.merges_due(site.lake, ["steps"], number, thorough=True, today=DAY.date() + timedelta(9))
    paths = data_files(site)
    for _ in range(FLIPS):
        path = chance.choice(paths)
        bit = chance.randrange(8 * path.stat().st_size)
        flip(path, bit)
        lake = Lake.open(site.lake.uri)
        (bad,) = compaction.merge(task).damaged
        assert path.name in bad.path
        with pytest.raises(DamagedFileError, match=path.name):
            recompute(lake, "step_rollup", [DAY.date()])
        with pytest.raises(DamagedFileError, match=path.name):
            list(
                action_plan.remove_rows(
                    lake.tables, target, number, live(site), lambda rows: pc.equal(rows["slot"], -1)
                )
            )
        with pytest.raises(DamagedFileError, match=path.name):
            query(lake, "SELECT sum(loss) FROM steps", verify=True)
        assert scrub(lake, InProcess()).damaged == [bad]
        flip(path, bit)
    assert scrub(Lake.open(site.lake.uri), InProcess()).damaged == []


def test_a_replay_follows_the_flips(tmp_path):
    """A bit turns in each file of a fact and in some of its rollup: a scrub names them, replays bring all rows back."""
    chance, days = random.Random(17), min(40, REPLAYED - 2)
    site = Site(tmp_path)
    for day in range(days):
        put_segment(site.spool, step_rows(50, segment=day, start=DAY + timedelta(day)), rows_before=50 * day)
    ingest(site.lake, Spool(str(site.spool)), InProcess(), merge=False)
    dates = {"steps": days, "step_rollup": 2}  # in this order: a rollup is not computed from damaged facts
    recompute(site.lake, "step_rollup", [(DAY + timedelta(day)).date() for day in range(dates["step_rollup"])])
    before = {table: rows_of(site, table) for table in dates}
    flipped = 0
    while flipped < REPLAYED:
        paths = [path for table in dates for path in live_paths(site, table)]
        for path in paths:
            flip(path, chance.randrange(8 * path.stat().st_size))
        found = scrub(Lake.open(site.lake.uri), InProcess()).damaged
        assert sorted(Path(one.path).name for one in found) == sorted(path.name for path in paths)
        for table, count in dates.items():
            span = ("--from", f"{DAY:%Y-%m-%d}", "--to", f"{DAY + timedelta(count - 1):%Y-%m-%d}")
            assert call("replay", *named(site), "--spool", str(site.spool), "--table", table, *span)[0] == 0
        assert scrub(Lake.open(site.lake.uri), InProcess()).damaged == []
        assert {table: rows_of(site, table) for table in dates} == before
        flipped += len(paths)
    site.balances()


@pytest.mark.slow
def test_damage_is_named_left_out_and_mended_by_replay(site):
    """Nothing is merged or rolled up from a damaged file; a replay of its date brings all rows back, as they were."""
    before, bad = rows_of(site), data_files(site)[1]
    flip_middle(bad)
    code, out, err = call("upkeep", *named(site))
    assert (code, f"{bad.name}: its bytes differ from the digest in its name" in err) == (1, True), err
    assert "ranklake replay --table steps --from 2026-03-01 --to 2026-03-01" in err
    assert "3 small files merged into 1" in out.replace(f"{FILES - 1} small", "3 small")
    assert bad.parent.name + "/" + bad.name in live(site)["path"].to_pylist()
    code, _, err = call("rollup", *named(site))
    assert (code, bad.name in err) == (1, True)
    assert delta_table(site.lake.store, "step_rollup") is None
    day = ("--from", "2026-03-01", "--to", "2026-03-01")
    assert call("replay", *named(site), "--spool", str(site.spool), "--table", "steps", *day)[0] == 0
    assert rows_of(site).equals(before)
    assert call("rollup", *named(site))[::2] == (0, "")
    assert call("upkeep", *named(site), "--scrub")[::2] == (0, "")
    site.balances()
    (stored,) = query(site.lake, "SELECT count(*) n FROM step_rollup")["n"].to_pylist()
    assert stored == 200 * FILES


def test_other_dates_are_rolled_up_and_the_damaged_one_stays_due(site):
    """Damage on one date keeps nothing back but what reads that date, which stays due."""
    site.bring(step_rows(50, segment=9, start=DAY + timedelta(days=5)), rows_before=200 * FILES)
    flip_middle(next(path for path in data_files(site) if "03-01" in path.parent.name))
    done = {result.name: result for result in run_rollups(Lake.open(site.lake.uri), ["step_rollup"])}
    assert done["step_rollup"].partitions == ("2026-03-06",)
    assert [one.partition for one in done["step_rollup"].damaged] == ["2026-03-01"]
    again = {result.name: result for result in run_rollups(Lake.open(site.lake.uri), ["step_rollup"])}
    assert [one.partition for one in again["step_rollup"].damaged] == ["2026-03-01"]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["step_rollup", "run_summary"])
def test_damaged_rollups_are_found_and_computed_anew(site, table):
    """A rollup's own file that rotted is found by what reads it and by a scrub, and a replay computes it anew."""
    run_rollups(site.lake, [table])
    before = rows_of(site, table)
    (path,) = data_files(site, table)
    flip_middle(path)
    code, out, err = call("upkeep", "--scrub", "--dry-run", "--json", *named(site))
    assert (code, json.loads(out)["scrubbed"]["damaged"][0]["table"]) == (1, table)
    assert path.name in err
    day = path.parent.name.removeprefix("date=")
    command = ("replay", "--table", table, "--from", day, "--to", day, "--spool", str(site.spool))
    assert call(*command, *named(site))[0] == 0
    assert rows_of(site, table).equals(before)
    assert scrub(Lake.open(site.lake.uri), InProcess()).damaged == []


def test_a_damaged_input_fails_the_replay_of_a_rollup(site):
    """A rollup is not computed anew from damaged facts either: the command fails and names the file."""
    run_rollups(site.lake, ["step_rollup"])
    path = data_files(site)[0]
    flip_middle(path)
    with pytest.raises(DamagedFileError, match=path.name):
        recompute(Lake.open(site.lake.uri), "step_rollup", [DAY.date()])


def test_sql_verifies_where_it_is_asked_to(site, capsys):
    """`ranklake sql --verify` exits 1 and names the file; files that the query does not need are not read."""
    path = data_files(site)[0]
    flip_middle(path)
    ask = ["sql", "SELECT count(*) FROM steps WHERE run = 'r1'", "--verify", *named(site)]
    assert run(ask) == 1
    assert path.name in capsys.readouterr().err
    assert run([*ask[:1], "SELECT count(*) FROM steps WHERE date = '2026-02-01'", *ask[2:]]) == 0


def test_the_pipelines_own_looks_see_damaged_pages(site):
    """Tables that the pipeline works by are held against their pages' checksums at every look."""
    (path,) = data_files(site, "segments")[:1]
    flip(path, 8 * 100)
    with pytest.raises(DamagedFileError, match=r"restore the file from a backup"):
        read(site.lake.tables, contract("segments"))


def test_files_of_older_versions_are_told_by_their_pages(site):
    """A file without a digest in its name is looked at page by page."""
    handle = delta_table(site.lake.store, "steps")
    number = number_of(handle) + 1
    (new,) = append_files(site.lake.store, contract("steps"), rows_of(site), number)
    old = DataFile(**{**{name: getattr(new, name) for name in new.__slots__}, "path": new.path[:-73] + ".parquet"})
    assert digest_of(old.path) is None
    os.rename(*(site.lake.path("tables", "steps", one.path) for one in (new, old)))  # noqa: PTH104 - both are text
    swap(handle, number, add=[old], remove=files(handle))
    path = Path(site.lake.path("tables", "steps", old.path))
    flip_middle(path)
    (found,) = damaged_files(Lake.open(site.lake.uri).tables, "steps", live(site))
    assert found.why in {"a page differs from its checksum", "no sound Parquet"}


def test_a_right_that_lacks_is_no_damage(site, monkeypatch):
    """What the disk or the store refuses, and want of memory, are told as what they are."""
    for error in (PermissionError(13, "denied"), pa.ArrowMemoryError("no room")):

        def refuse(*_, error=error):
            raise error

        monkeypatch.setattr("ranklake.lake.tables.live_files._examine", refuse)
        with pytest.raises(type(error)):
            damaged_files(Lake.open(site.lake.uri).tables, "steps", live(site))


def test_what_a_schedule_calls_fails_for_damage(site):
    """A flow does all that it can and then fails, naming the file, where the command exits 1."""
    path = data_files(site)[0]
    flip_middle(path)
    context = FlowSettings(site.lake.uri, str(site.spool)).context()
    for done in (
        rollup_once(context),
        upkeep_once(context),
        upkeep_once(context, with_scrub=True),
        pipeline_once(context),
    ):
        with pytest.raises(DamageError, match=path.name) as caught:
            refuse_damage(done)
        assert caught.value.done is done
        assert [one.table for one in caught.value.damage] == ["steps"]
    assert len(live(site)) == 2, "the damaged one, and what became of the others"
