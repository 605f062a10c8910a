"""Plans that somebody wrote who may write the bucket: refused in one line, nothing is done, and the lake goes on."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from governed import Site, any_rows
from retaining import agree, bring_days, carry_out, days_ago, plan
from segments import put_segment, step_rows
from signed import sign_segment

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import DamagedPlanError, Plan, RefusedPlanError, last_finished, row_files, seal_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.files import OutsideError, delete
from ranklake.lake.store.lake_config import PlansSection, SpoolSection
from ranklake.lake.store.writers import Prefix
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.retention_plans import head_row, with_time
from ranklake.segments.envelope import Key

ACTION = {"writer": "w", "add": [], "remove": {}, "purge": False, "kept": {}, "account": {}, "facts": {}}
SHA = "0" * 64


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give a lake with live rows of today, one applied retention, one approved plan, and files outside it."""
    site = Site(tmp_path_factory.mktemp("forged"))
    bring_days(site, [0, 0, 200])
    site.bring(any_rows("logs", 3, start=days_ago(0), incarnation=9), "logs")
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    site.bring(step_rows(10, incarnation=11, start=days_ago(150)))
    site.approved = plan(site)
    agree(site, site.approved.name)
    site.victim = site.folder / "victim.parquet"
    site.victim.write_bytes(b"not yours")
    return site


def live(site, table="steps"):
    return files(delta_table(site.lake.store, table)).select(["path", "size_bytes", "num_records", "date"])


def gone(path="date=2026-03-01/a.parquet", rows=10, day="2026-03-01"):
    return {"path": path, "size_bytes": 1, "num_records": rows, "date": day}


def new(path="date=2026-03-01/b.parquet", rows=10, table="steps", day="2026-03-01", stats=None):
    told = json.dumps({"numRecords": rows if stats is None else stats})
    return {"table": table, "path": path, "partition": day, "rows": rows, "size_bytes": 1, "stats": told}


def body(kind="retention", **facts):
    """Return a plan's body that is well but for what is given; its account is what its files come to."""
    whole = {**ACTION, **facts}
    if "account" not in facts:
        whole["account"] = {
            table: sum(row["rows"] for row in whole["add"] if row["table"] == table)
            - sum(row["num_records"] for row in rows)
            for table, rows in whole["remove"].items()
        }
    return kind, whole


def retention(**facts):
    register = new("date=2026-03-01/r.parquet", 1, "retention_plans")
    return body("retention", **{"add": [register], "facts": {"retention_plan": "rp-" + "0" * 16}, **facts})


def segment(**facts):
    whole = {"path": "/x/segments/a", "others": [], "table": "steps", "bytes": 1, "rows": 1, "sha256": SHA}
    segments = [{**whole, "seen": "", **facts}]
    return "ingest", {"spool": "/x", "writer": "w", "versions": {}, "left": 0, "segments": segments}


REGISTERED = new("date=2026-03-01/r.parquet", 1, "erasures")


def erased(add=(REGISTERED,), remove=None, quarantined=None):
    """Return an erasure that writes down that it was applied."""
    facts = {"erasure": "er-" + "0" * 16, "quarantined": quarantined or {}}
    return body("erasure", add=list(add), remove=remove or {}, facts=facts)


BY_THEMSELVES = {
    "dots to a file outside": retention(remove={"steps": [gone("date=2026-03-01/../../../../victim.parquet")]}),
    "dots alone": retention(remove={"steps": [gone("../../ranklake.json")]}),
    "an absolute path": retention(remove={"steps": [gone("/etc/passwd")]}),
    "escaped dots": retention(remove={"steps": [gone("date=2026-03-01/%2e%2e/%2e%2e/x.parquet")]}),
    "a URI": retention(remove={"steps": [gone("file:///etc/passwd")]}),
    "another partition's file": retention(remove={"steps": [gone("date=2026-03-02/a.parquet")]}),
    "the log itself": retention(remove={"steps": [gone("_delta_log/00000000000000000000.json")]}),
    "a folder for a table": retention(remove={"../steps": [gone()]}),
    "dots in what is kept": retention(remove={"steps": [gone()]}, kept={"steps": ["../x.parquet"]}, purge=True),
    "dots in what is added": body("compaction", add=[new("date=2026-03-01/../x.parquet")]),
    "an added file of another date": body("compaction", add=[new(day="2026-03-02")]),
    "statistics that count otherwise": body("compaction", add=[new(stats=9)], remove={"steps": [gone()]}),
    "rows below zero": body("compaction", add=[new(rows=-1)], remove={"steps": [gone(rows=-1)]}),
    "a file twice": body("compaction", add=[new(rows=20)], remove={"steps": [gone(), gone()]}),
    "a file that replaces itself": body(
        "compaction", add=[new("date=2026-03-01/a.parquet")], remove={"steps": [gone()]}
    ),
    "an account that lies": body("retention", remove={"steps": [gone()]}, account={"steps": 0}),
    "a merge that loses rows": body("compaction", add=[new(rows=9)], remove={"steps": [gone()]}),
    "a merge that brings rows": body("compaction", add=[new(rows=11)], remove={"steps": [gone()]}),
    "a merge over dates": body(
        "compaction",
        add=[new("date=2026-03-02/b.parquet", day="2026-03-02")],
        remove={"steps": [gone()]},
    ),
    "a merge that deletes": body("compaction", add=[new()], remove={"steps": [gone()]}, purge=True),
    "a replay that loses rows": body("replay", add=[new(rows=9)], remove={"steps": [gone()]}),
    "a replay of two tables": body("replay", add=[new(table="logs")], remove={"steps": [gone(rows=0)]}),
    "a replay that deletes": body("replay", add=[new()], remove={"steps": [gone()]}, purge=True),
    "a quarantine without rejects": body("quarantine", remove={"steps": [gone()]}),
    "a quarantine of half": body("quarantine", add=[new(rows=5, table="rejects")], remove={"steps": [gone()]}),
    "a quarantine of the quarantine": body("quarantine", add=[new(table="rejects")], remove={"rejects": [gone()]}),
    "a quarantine that brings": body(
        "quarantine", add=[new(table="rejects"), new(table="logs")], remove={"steps": [gone()]}
    ),
    "a quarantine that deletes": body("quarantine", add=[new(table="rejects")], remove={"steps": [gone()]}, purge=True),
    "an erasure of no name": body("erasure", add=[REGISTERED], remove={"steps": [gone()]}),
    "an erasure of the books": erased(remove={"audit": [gone()]}),
    "an erasure of segments": erased(remove={"segments": [gone()]}),
    "an erasure that brings rows": erased(add=[REGISTERED, new(rows=11)], remove={"steps": [gone()]}),
    "an erasure that says nothing": erased(add=[], remove={"steps": [gone()]}),
    "an erasure of other raw bytes than digests": erased(quarantined={"quarantine/steps": {"2026-03-01": ["../x"]}}),
    "a retention that brings rows": retention(
        add=[new("date=2026-03-01/r.parquet", 1, "retention_plans"), new(rows=10)], remove={"steps": [gone()]}
    ),
    "a retention that brings rows to another date": retention(
        add=[
            new("date=2026-03-01/r.parquet", 1, "retention_plans"),
            new("date=2026-03-02/b.parquet", 1, day="2026-03-02"),
        ],
        remove={"steps": [gone()]},
    ),
    "a renumbering that loses rows": body("renumber", remove={"steps": [gone()]}),
    "a renumbering over dates": body(
        "renumber", add=[new("date=2026-03-02/b.parquet", day="2026-03-02")], remove={"steps": [gone()]}
    ),
    "a renumbering that deletes": body("renumber", add=[new()], remove={"steps": [gone()]}, purge=True),
    "a retention without a name": retention(remove={"steps": [gone()]}, facts={}),
    "a retention that brings": retention(add=[new(), new()], remove={"steps": [gone()]}),
    "a segment outside the spool": segment(path="/x/segments/../../etc/passwd"),
    "a segment that is a system's file": segment(path="/etc/passwd"),
    "another copy outside": segment(others=["/etc/passwd"]),
    "an earlier copy outside": segment(earlier=[{"path": "/etc/passwd", "sha256": SHA, "signed": False}]),
    "an earlier copy that is none": segment(earlier=[7]),
    "a folder for a segment's table": segment(table="../steps"),
    "a folder for a digest": segment(sha256="../../../victim"),
    "a segment of another root": segment(path="/y/segments/a"),
}
"""What a plan may not say, whatever is in the lake."""


def merged(site, number, **facts):
    """Return the body of a merge of two live files of today, with what is forged about it."""
    some = live(site).filter(pc.equal(live(site)["date"], pa.scalar(days_ago(0).date(), pa.date32()))).slice(0, 2)
    rows = read(site.lake.tables, contract("steps"), partitions=[days_ago(0).date()])
    (file,) = append_files(site.lake.store, contract("steps"), rows.slice(0, facts.pop("rows", 20)), number)
    made = action_plan.compose(number, "compaction", add=[file], remove={"steps": some}, data_change=False)
    return made.kind, made.body


def hidden_loss(site, number):
    """Say of a file of 5 rows that it has 20."""
    kind, facts = merged(site, number, rows=5)
    add = [{**row, "rows": 20, "stats": json.dumps({"numRecords": 20})} for row in facts["add"]]
    return kind, {**facts, "add": add, "account": {"steps": 0}}


def lower_removed(site, number):
    """Say of the files that go that they have 5 rows together."""
    kind, facts = merged(site, number, rows=5)
    ((table, rows),) = facts["remove"].items()
    return kind, {
        **facts,
        "remove": {table: [{**rows[0], "num_records": 5}, {**rows[1], "num_records": 0}]},
        "account": {table: 0},
    }


def nowhere(site, number):
    """Name a file that nobody wrote."""
    kind, facts = merged(site, number)
    (file,) = facts["add"]
    Path(site.lake.path("tables/steps", file["path"])).unlink()
    return kind, facts


def retired(site, number, *, name=None, some=None, entry=None):
    """Return a retention of live rows under a name."""
    name = name or site.approved.name
    some = live(site) if some is None else some
    (row,) = row_files(
        site.lake.store,
        "retention_plans",
        with_time([entry or head_row(replace(site.approved, name=name), "application", "x", number)]),
        number,
    )
    facts = {"retention_plan": name}
    made = action_plan.compose(
        number, "retention", add=[row], remove={"steps": some}, live={"steps": live(site)}, purge=True, facts=facts
    )
    return made.kind, made.body


def approved_files(site):
    every = live(site)
    return every.filter(pc.equal(every["date"], pa.scalar(site.approved.items[0].partition_date, pa.date32())))


def erasure(site, number):
    facts = {"erasure": "er-" + "0" * 16}
    rows = [{"erasure": facts["erasure"], "row_kind": "application", "actor": "x", "plan": number}]
    own = row_files(
        site.lake.store, "erasures", [{**row, "ts": days_ago(0), "date": days_ago(0).date()} for row in rows], number
    )
    gone = {"steps": live(site)}
    made = action_plan.compose(number, "erasure", add=own, remove=gone, live=gone, purge=True, facts=facts)
    return made.kind, made.body


def other_files(site, number):
    """Drop files that the log does not know."""
    kind, facts = retired(site, number, some=approved_files(site))
    rows = [{**row, "path": row["path"].replace("/p", "/q")} for row in facts["remove"]["steps"]]
    return kind, {**facts, "remove": {"steps": rows}}


def unknown_table(site, number):
    made = action_plan.compose(number, "compaction")
    return made.kind, {**made.body, "remove": {"stepz": []}, "account": {"stepz": 0}}


def disowning(kind):
    """Return what forges a plan of a kind that disowns a stream for which nobody answers."""

    def forge(site, number):
        stream = {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 11, "segment": None}
        row = {"plan": number, "table": None, **stream, "rows": 0, "actor": "x", "reason": "x"}
        add = row_files(site.lake.store, "disowned", [{**row, "ts": days_ago(0), "date": days_ago(0).date()}], number)
        remove = {"disowned": live(site).slice(0, 0)} if kind == "replay" else {}
        made = action_plan.compose(number, kind, add=add, remove=remove)
        return made.kind, made.body

    return forge


AGAINST_THE_LAKE = {
    "a merge whose file has fewer rows": (hidden_loss, "what is not true"),
    "a merge of files with other rows": (lower_removed, "one with other rows"),
    "a file that is not there": (nowhere, "not there"),
    "a retention of an unknown name": (lambda site, n: retired(site, n, name="rp-" + "1" * 16), "without approval"),
    "a retention of live rows": (retired, "was begun"),
    "a retention that nobody began": (lambda site, n: retired(site, n, some=approved_files(site)), "was begun"),
    "a retention of other files": (other_files, "knows no such file"),
    "an erasure that nobody approved": (erasure, "would erase rows without approval"),
    "a quarantine that disowns": (disowning("quarantine"), "nobody answers for"),
    "a replay that disowns": (disowning("replay"), "nobody answers for"),
    "a table of nobody": (unknown_table, "not known"),
}
"""What a plan says of the lake that is not so, and what is said of it."""


def tree(site):
    """Return every file of the lake with its bytes, but for plans."""
    lake = site.folder / "lake"
    return {path: path.read_bytes() for path in lake.rglob("*") if path.is_file() and path.parent.name != "plans"}


def refused(site, kind, facts, match):
    """Put a plan where the next is looked for; assert that it is refused and nothing was done; remove it."""
    number = last_finished(site.lake.tables) + 1
    forged = Path(site.lake.path(Plan(number, kind, 0).name))
    before = tree(site)
    forged.write_bytes(Plan(number, kind, 0, facts).to_json())
    try:
        with pytest.raises(RefusedPlanError, match=match) as caught:
            drive(site.lake, lambda _: None, InProcess())
    finally:
        forged.unlink()
    assert forged.name in str(caught.value)
    assert "remove" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(site) == before
    assert site.victim.read_bytes() == b"not yours"


@pytest.mark.parametrize("attack", BY_THEMSELVES)
def test_a_plan_that_no_ranklake_writes_is_refused(place, attack):
    """By what it says alone: a path, a count, a kind that does what it is not for."""
    refused(place, *BY_THEMSELVES[attack], "nobody may carry out|not in its spool")


@pytest.mark.parametrize("attack", AGAINST_THE_LAKE)
def test_a_plan_that_is_not_true_is_refused(place, attack):
    """By the log, the footers and the audit log."""
    forge, said = AGAINST_THE_LAKE[attack]
    refused(place, *forge(place, last_finished(place.lake.tables) + 1), said)


def test_the_lake_goes_on_when_the_file_is_gone(place, capfd):
    """Every command that drives plans says the same line; once the file is removed, they work as before."""
    number = last_finished(place.lake.tables) + 1
    forged = Path(place.lake.path(Plan(number, "", 0).name))
    kind, facts = BY_THEMSELVES["an absolute path"]
    forged.write_bytes(Plan(number, kind, 0, facts).to_json())
    place_args = ["--lake", place.lake.uri]
    for words in (["upkeep"], ["ingest", "--spool", str(place.spool)], ["retain", "plan"]):
        assert run([*words, *place_args]) == 2
        out, err = capfd.readouterr()
        assert (out, err.count("\n"), forged.name in err) == ("", 1, True)
    assert run(["status", *place_args]) == 1
    assert forged.name in capfd.readouterr().err
    assert json.loads((run(["status", "--json", *place_args]), capfd.readouterr().out)[1])["refused_plan"]
    forged.unlink()
    put_segment(place.spool, step_rows(10, incarnation=77))
    assert run(["ingest", "--spool", str(place.spool), *place_args]) == 0
    assert run(["status", "--spool", str(place.spool), *place_args]) == 0


def test_a_plan_of_another_spool_is_refused(site):
    """Whoever brings in one spool does not read another because a plan in the lake says so."""
    put_segment(site.folder / "other", step_rows(10, incarnation=8))
    theirs = ingest_plan.compose(site.lake, Spool(str(site.folder / "other")), 1).plan
    site.lake.put_if_absent(theirs.name, theirs.to_json())
    own = site.lake.configured(spools=(str(site.spool),))
    with pytest.raises(RefusedPlanError, match="another spool"):
        drive(own, lambda _: None, InProcess())
    drive(own.configured(spools=(*own.config.spools, f"file://{site.folder}/other")), lambda _: None, InProcess())
    assert len(site.rows("steps")) == 10


@pytest.mark.parametrize("forged", [False, True])
def test_a_plan_that_asks_for_no_signature_is_refused(site, forged):
    """Where a prefix of the spool requires signatures, a plan that a stranger wrote cannot leave them out."""
    lake = site.lake.configured(spool=SpoolSection(prefixes=(Prefix(require_signed=True, keys=keyring(site, ONE)),)))
    sign_segment(put_segment(site.spool, step_rows(10)), Key(bytes.fromhex(ONE)))
    made = ingest_plan.compose(site.lake, Spool(str(site.spool), config=lake.config), 1).plan
    if forged:
        rows = [{**row, "rule": -1} for row in made.body["segments"]]
        made = replace(made, body={**made.body, "rules": [], "segments": rows})
    site.lake.put_if_absent(made.name, made.to_json())
    if forged:
        with pytest.raises(RefusedPlanError, match="asks for no signature"):
            drive(lake, lambda _: None, InProcess())
    else:
        drive(lake, lambda _: None, InProcess())
    assert len(site.rows("steps")) == (0 if forged else 10)


def test_every_command_asks_for_the_signatures_that_are_configured(site, monkeypatch, capsys):
    """A forged plan of ingest is refused by whichever command finds it, such as upkeep, not by ingest alone."""
    put_segment(site.spool, step_rows(10))
    forged = ingest_plan.compose(site.lake, Spool(str(site.spool)), 1).plan
    site.lake.put_if_absent(forged.name, forged.to_json())
    config = site.folder / "ranklake.toml"
    config.write_text(f'[[spool.prefixes]]\nrequire_signed = true\nkeys = "{keyring(site, ONE)}"\n')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    assert run(["upkeep", "--lake", site.lake.uri]) == 2
    assert "asks for no signature" in capsys.readouterr().err
    assert site.rows("steps") == []


@pytest.mark.parametrize("how", ["link to a file", "link to a folder", "dots", "outside"])
def test_nothing_is_deleted_by_way_of_a_link(site, how):
    """A link in a table's folder, or a path with dots, leads nowhere."""
    victim = site.folder / "victims" / "a.parquet"
    victim.parent.mkdir()
    victim.write_bytes(b"not yours")
    root = site.folder / "lake/tables/steps"
    root.mkdir(parents=True)
    if how == "link to a file":
        (root / "a.parquet").symlink_to(victim)
        path = f"{root}/a.parquet"
    elif how == "link to a folder":
        (root / "date=2026-03-01").symlink_to(victim.parent)
        path = f"{root}/date=2026-03-01/a.parquet"
    else:
        path = f"{root}/../../../victims/a.parquet" if how == "dots" else str(victim)
    with pytest.raises(OutsideError, match=r"not a file of the lake|leads out"):
        delete(site.lake.store, path)
    assert victim.read_bytes() == b"not yours"


def test_a_lake_behind_a_link_is_a_lake(tmp_path):
    """Where the lake itself lies behind a link, its own files go as ever."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    site = Site(tmp_path / "link")
    file = Path(site.lake.path("tables/steps/a.parquet"))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"old")
    assert (delete(site.lake.store, str(file)), delete(site.lake.store, str(file))) == (True, False)


def keyring(site, *keys):
    (site.folder / "keys").write_text("\n".join(keys))
    return f"file:{site.folder}/keys"


ONE, TWO = "11" * 32, "22" * 32


def sealing(site, source, *, required=True):
    return site.lake.configured(plans=PlansSection(source, required))


def unfinished(site, lake):
    """Leave a merge unfinished that was written with the trust of a lake; return its file."""
    number = last_finished(lake.tables) + 1
    kind, facts = merged(site, number)
    made = seal_plan(Plan(number, kind, 0, facts), lake.config.plans.key)
    lake.put_if_absent(made.name, made.to_json())
    return Path(lake.path(made.name))


@pytest.fixture
def today(site):
    """Give a lake with two files of one date, to merge."""
    bring_days(site, [0, 0])
    return site


def test_a_plan_without_the_key_is_refused(today):
    """Where a seal is required, a plan by somebody without the key does nothing, however right it is."""
    lake = sealing(today, keyring(today, ONE))
    path = unfinished(today, today.lake)
    with pytest.raises(RefusedPlanError, match="has no seal"):
        drive(lake, lambda _: None, InProcess())
    path.unlink()
    path = unfinished(today, sealing(today, keyring(today, TWO)))
    keyring(today, ONE)
    with pytest.raises(Exception, match="is not available"):
        drive(lake, lambda _: None, InProcess())
    path.unlink()
    path = unfinished(today, lake)
    facts = json.loads(path.read_bytes())
    forged = {name: value for name, value in facts.items() if name not in {"format", "plan", "kind", "created_us"}}
    forged.pop("sha256")
    path.write_bytes(Plan(facts["plan"], facts["kind"], 1, forged).to_json())
    with pytest.raises(RefusedPlanError, match="seal is not that of its key"):
        drive(lake, lambda _: None, InProcess())
    assert len(today.rows("steps")) == 20
    assert live(today).num_rows == 2


def test_a_sealed_plan_is_carried_out_and_keys_rotate(today):
    """Whoever has the key finishes it; one sealed under an older key of the ring is good, too."""
    path = unfinished(today, sealing(today, keyring(today, ONE)))
    assert '"seal"' in path.read_text()
    assert ONE not in path.read_text()
    drive(sealing(today, keyring(today, TWO, ONE)), lambda _: None, InProcess())
    assert live(today).num_rows == 1
    assert len(today.rows("steps")) == 20


def test_plans_of_the_pipeline_are_sealed(site):
    """Ingest, merge and retention write a seal where a key is configured; without one required, all go on."""
    site.lake = sealing(site, keyring(site, ONE))
    bring_days(site, [200, 200, 0])
    merge_small(site.lake, InProcess(), thorough=True)
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    kinds = set()
    for path in sorted(Path(site.lake.path("plans")).iterdir()):
        facts = json.loads(path.read_bytes())
        kinds.add(facts["kind"])
        assert set(facts["seal"]) == {"key", "hmac_sha256"}
    assert kinds == {"ingest", "compaction", "retention"}


def test_a_plan_that_is_no_plan_says_how_to_go_on(site):
    """Bytes that are no JSON, in the place of the next plan: one line with the file and the mend."""
    site.lake.put_if_absent(Plan(1, "", 0).name, os.urandom(64))
    with pytest.raises(DamagedPlanError, match=r"0000000001\.json.*removed"):
        drive(site.lake, lambda _: None, InProcess())
