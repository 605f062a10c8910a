"""Erasure of a person: nothing is left in any byte, nobody else's rows change, and the certificate says so."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from io import StringIO
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from erased import logs, reach, signed_erasure, spool_of
from governed import any_rows, die_before
from hypothesis import given, settings
from hypothesis import strategies as st
from own_words import words_of_no_row
from segments import put_segment, step_rows
from ssh_keys import needs_ssh_keygen
from subjects import ADA, EMAIL, GRACE, GRACE_MAIL, GRACES, VALUES, others, plant

from ranklake.cli import run
from ranklake.insight.saved_views import load_views
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.replay.selection import ReplayError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import Plan, RefusedPlanError, last_finished
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables import parquet
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.parquet import append_files
from ranklake.retention.erasure import apply as erasure_apply
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.certificate import Certificate, verify_alone, verify_with_lake
from ranklake.retention.erasure.contents import rows_holding
from ranklake.retention.erasure.needles import WORDS, NeedleError, make_needles
from ranklake.retention.erasure.places import NotIngestedError
from ranklake.retention.erasure.plan import NothingToEraseError, make_plan, propose
from ranklake.retention.erasure.search import ARCHIVES, BACK, KEPT, search
from ranklake.retention.erasure.subject import OtherSubjectError, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.kept import kept_plans
from ranklake.retention.proposals.proposals import SameOperatorError, VoidProposalError
from ranklake.retention.sweep import sweep

RUN = "ada.lovelace-exp1"


def agreed(site, values=VALUES, folders=(), run=None):
    """Propose and approve; return the subject and the erasure."""
    subject = subject_of(site.lake, values, run)
    made = make_plan(reach(site, folders), subject)
    propose(site.lake, made, "Petra Proposer")
    approve(site.lake, made.name, "Ada Approver", "as asked")
    return subject, made


def erase(site, subject, made, folders=()):
    """Apply."""
    return apply(reach(site, folders), made.name, subject, "Otto Operator")


def bodies(site):
    """Return what the log says."""
    return sorted(row["message"] for row in site.rows("logs"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_person_is_erased_from_every_kind_of_place(site, request):
    """Found in more than fourteen kinds of places before, in no byte afterwards; other rows are as they were."""
    beside = plant(site)
    request.addfinalizer(beside["database"].close)
    folders = [beside["pages"], beside["prefect"]]
    before = search(site.lake, spool_of(site), VALUES, folders)
    assert len({one.place.split("/")[-1] for one in before.traces}) >= 20
    places = {one.place for one in before.traces}
    assert {
        "copies for role reader",
        ARCHIVES,
        BACK,
        "rows of downsampled",
        "rows of alerts",
        "state of alerts",
        "saved views",
    } <= places
    assert {KEPT.format("logs"), KEPT.format("spans"), "rows of logs"} <= places
    assert {row["run"] for row in site.rows("logs")} & set(GRACES) == {"returned"}
    rows = others(site)
    site.balances()
    subject, made = agreed(site, folders=folders)
    done = erase(site, subject, made, folders)
    assert done.certificate.is_clean
    assert search(site.lake, spool_of(site), VALUES, folders).traces == ()
    for path in site.folder.rglob("*"):
        assert ADA not in str(path)
        assert not path.is_file() or ADA.encode() not in path.read_bytes()
    assert others(site) == rows
    assert beside["database"].execute("SELECT count(*) FROM log WHERE message LIKE '%grace%'").fetchone() == (50,)
    assert GRACE in (beside["pages"] / "run.html").read_text()
    assert f"of {GRACE}" in load_views(site.lake.store).current("")
    cold = [pq.ParquetFile(path).read() for path in (site.folder / "archive").rglob("*.parquet")]
    assert {run for one in cold for run in one["run"].to_pylist()} == {f"{GRACE}-exp1"}
    assert {row["run"] for row in site.rows("downsampled")} == {f"{GRACE}-exp1"}
    site.balances()
    assert removal_faults(site.lake) == []
    assert verify_alone(Certificate.parse(done.certificate.raw, "x"), done.certificate.name) == []
    assert verify_with_lake(done.certificate, site.lake) == []
    ingest(site.lake, spool_of(site), InProcess())
    (in_grace,) = kept_plans(site.lake.tables)
    cancel(site.lake, in_grace.proposal.name, "Carla Canceller")
    assert {row["run"] for row in site.rows("spans")} == {f"{GRACE}-exp1"}
    lines = Counter(row["message"] for row in site.rows("logs") if row["run"] in GRACES)
    mails = {f"{name}: mail {who}": times for name in GRACES[:2] for who, times in (("nobody", 2), (GRACE_MAIL, 1))}
    assert lines == mails
    assert search(site.lake, spool_of(site), VALUES, folders).traces == ()


def test_rows_go_and_their_neighbours_stay(site):
    """A line that names the person goes; others of the same file stay, the books add up, and one may not do it all."""
    logs(site, f"hello {EMAIL}", "hello", f"see /home/{ADA}/x", "nada.lovelace2", "xada@analytical.example")
    subject = subject_of(site.lake, VALUES)
    made = make_plan(reach(site), subject)
    propose(site.lake, made, "Petra Proposer")
    with pytest.raises(SameOperatorError):
        approve(site.lake, made.name, "petra proposer")
    approve(site.lake, made.name, "Ada Approver")
    done = erase(site, subject, made)
    assert done.certificate.is_clean
    assert bodies(site) == ["hello", "nada.lovelace2", "xada@analytical.example"]
    assert site.balances()["logs"].retired == 2
    assert removal_faults(site.lake) == []
    assert not list(site.spool.glob("segments/*/*/*.parquet"))
    assert all(ADA not in json.dumps(one.plain()) for one in ERASURES.register(site.lake).values())
    again = erase(site, subject, made)
    assert not again.is_fresh
    assert bodies(site) == ["hello", "nada.lovelace2", "xada@analytical.example"]
    with pytest.raises(NothingToEraseError):
        make_plan(reach(site), subject)


def test_words_that_another_program_left_in_dictionaries_go(site, monkeypatch):
    """A live file without rows of a person, but with words of theirs in its dictionary, is written anew."""
    monkeypatch.setattr(parquet, "trim_dictionary", lambda column: column.unify_dictionaries())
    rows = [
        any_rows("logs", 4, start=datetime(2026, 3, day, tzinfo=UTC), message=lines * 2)
        for day, lines in ((1, [f"mail {EMAIL}", "both"]), (2, ["fine", "both"]))
    ]
    both = pa.concat_tables(rows)
    at = both.schema.get_field_index("slot")
    site.bring(both.set_column(at, both.schema.field(at), pa.array(range(8), pa.int32())), "logs")
    monkeypatch.undo()
    assert EMAIL in str(words_of_no_row(site.folder))
    subject, made = agreed(site, (EMAIL,))
    done = erase(site, subject, made)
    assert done.certificate.is_clean
    assert words_of_no_row(site.folder / "lake") == {}
    assert bodies(site) == ["both"] * 4 + ["fine"] * 2
    assert removal_faults(site.lake) == []


def test_a_person_is_the_same_in_letters_of_any_case(site):
    """Planned in small letters, applied in capitals: rows that have the name as people write it go, and no others."""
    logs(site, "by Zoë Ångström", "by Zoë Ånderson")
    logs(site, f"by {normalize('NFD', 'ZOË Ångström')}", "bye", incarnation=51)
    subject, made = agreed(site, ["zoë ångström"])
    assert sum(item.rows for item in made.of("rows") if item.table == "logs") == 2
    same = subject_of(site.lake, ["ZOË ÅNGSTRÖM"])
    assert same.sha256 == subject.sha256
    assert erase(site, same, made).certificate.is_clean
    assert bodies(site) == ["by Zoë Ånderson", "bye"]


def test_what_a_killed_process_left_in_scratch_goes(site, tmp_path, monkeypatch):
    """An erasure clears what dead processes of its machine left, and says so; it cannot know whose it was."""
    place = tmp_path / "tmp"
    left = place / "ranklake-keys-0"
    left.mkdir(parents=True)
    (left / "spilled").write_text(EMAIL)
    left.with_suffix(".lock").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    done = erase(site, subject, made)
    assert {one.place: one.files for one in done.places}[erasure_apply.SCRATCH] == 1
    assert list(place.iterdir()) == []


def test_a_run_is_erased_and_runs_of_longer_names_stay(site):
    """Rows of the run go, whatever they say; what others say of it stays, and so do runs whose names begin with its."""
    for number, name in enumerate(("exp-1", "exp-1.b", "exp-12")):
        site.bring(step_rows(4, run=name, incarnation=60 + number))
    logs(site, "resumed from exp-1 today", run="other")
    subject, made = agreed(site, (), run="exp-1")
    done = erase(site, subject, made)
    assert done.certificate.is_clean
    assert {row["run"] for row in site.rows("steps")} == {"exp-1.b", "exp-12"}
    assert bodies(site) == ["resumed from exp-1 today"]
    assert {row["run"] for row in site.rows("segments")} == {subject.pseudonym, "exp-1.b", "exp-12", "other"}
    site.balances()


def test_nothing_brings_erased_rows_back(site):
    """Sent again, cut anew, replayed: nothing is stored; a sweep takes what was sent again out of the spool."""
    rows = step_rows(20, run=RUN, incarnation=60)
    sent = [put_segment(site.spool, rows)]
    ingest(site.lake, spool_of(site), InProcess())
    sent.append(logs(site, f"hello {EMAIL}", "hello"))
    raw = {path: path.read_bytes() for path in sent}
    subject, made = agreed(site)
    erase(site, subject, made)
    assert not any(path.exists() for path in sent)
    for path, data in raw.items():
        path.write_bytes(data)
    put_segment(site.spool, rows.slice(0, 7))
    put_segment(site.spool, rows.slice(3))
    put_segment(site.spool, any_rows("logs", 1, run="shared", incarnation=50, message=[f"hello {EMAIL}"]), "logs")
    ingest(site.lake, spool_of(site), InProcess())
    assert site.rows("steps") == []
    assert bodies(site) == ["hello"]
    site.balances()
    lake = search(site.lake, None, VALUES)
    assert [one for one in lake.traces if not one.place.startswith(("plans", "log of"))] == []
    for table in ("steps", "logs"):
        with pytest.raises(ReplayError):
            replay(site.lake, spool_of(site), InProcess(), table, (date(2026, 3, 1),) * 2)
    assert sweep(site.lake, spool_of(site), "Otto").segments >= 5
    assert search(site.lake, spool_of(site), VALUES).traces == ()


def test_a_legal_hold_wins(site):
    """Nothing of a subject goes of whose rows a hold is about one: not applied either when it came later."""
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    hold = set_hold(site.lake, ["run=shared"], "a claim", date(2999, 1, 1), "Lee Legal")
    with pytest.raises(HeldError, match=hold.name):
        erase(site, subject, made)
    with pytest.raises(HeldError):
        make_plan(reach(site), subject)
    assert len(bodies(site)) == 2
    assert make_plan(reach(site), subject, today=date(2999, 1, 1)).name == made.name


def test_what_was_approved_is_what_goes(site):
    """Other values, further rows, segments that wait: nothing is changed, and each is said in a line."""
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    with pytest.raises(OtherSubjectError):
        apply(reach(site), made.name, subject_of(site.lake, [ADA]), "Otto Operator")
    late = any_rows("logs", 1, run="shared", incarnation=51, message=[f"again {EMAIL}"])
    put_segment(site.spool, late, "logs")
    with pytest.raises(NotIngestedError):
        erase(site, subject, made)
    ingest(site.lake, spool_of(site), InProcess())
    with pytest.raises(VoidProposalError, match="2 rows of this subject"):
        erase(site, subject, made)
    assert len(bodies(site)) == 3
    subject, made = agreed(site)
    assert erase(site, subject, made).certificate.is_clean


@pytest.mark.parametrize("values", [[], ["ada"], ["12345"]])
def test_values_that_would_take_others_are_refused(site, values):
    """None, or one so short that it would be found everywhere: then it is told how to erase such an account."""
    with pytest.raises(NeedleError, match="ranklake erase plan --run RUN" if values else "no value"):
        subject_of(site.lake, values)


@pytest.mark.parametrize("table", ["logs", "segments", "erasures", "ingest_plans"])
@pytest.mark.slow
def test_whoever_dies_on_the_way_is_followed(site, monkeypatch, table):
    """Killed before any of the commits, the next call finishes: the same rows are gone, once, and nothing is left."""
    logs(site, f"hello {EMAIL}", "hello", run=RUN)
    site.bring(step_rows(3, run="other", incarnation=61))
    subject, made = agreed(site)
    with monkeypatch.context() as patch:
        die_before(patch, table)
        with pytest.raises(SystemExit):
            erase(site, subject, made)
    done = erase(site, subject, made)
    assert done.certificate.is_clean
    assert len(site.rows("steps")) == 3
    assert bodies(site) == []
    site.balances()
    assert removal_faults(site.lake) == []


def test_a_found_plan_that_takes_other_rows_is_refused(site, monkeypatch):
    """By keys of rows: what somebody with the bucket's keys wrote takes what was approved, or nothing."""
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    known = site.lake.contract("logs")
    named = [row for row in site.rows("logs") if EMAIL in row["message"]]

    def other(lake, _subject, _one, number):
        return append_files(lake.store, known, pa.Table.from_pylist(named, schema=arrow_schema(known)), number)

    with monkeypatch.context() as patch:
        patch.setattr(erasure_apply, "rewrite_partition", other)
        die_before(patch, "logs")
        with pytest.raises(SystemExit):
            erase(site, subject, made)
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        drive(site.lake, lambda _: None, InProcess())
    assert len(bodies(site)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [["logs", "scalars", "segments", "raw"], ["logs"], ["scalars"], ["raw"]])
def test_a_found_plan_that_leaves_something_out_is_refused(site, monkeypatch, left_out):
    """Whoever writes that it takes nothing, or less, does not make it applied; put back, it is finished."""
    logs(site, f"hello {EMAIL}", "hello")
    site.bring(any_rows("scalars", 2, run=RUN, incarnation=51, metric=["loss"] * 2, value=[1.0, 2.0]), "scalars")
    wrong = put_segment(site.spool, step_rows(5, run=RUN, incarnation=52))
    wrong.write_bytes(wrong.read_bytes()[:-40])
    ingest(site.lake, spool_of(site), InProcess())
    subject, made = agreed(site)
    with monkeypatch.context() as patch:
        die_before(patch, "logs")
        with pytest.raises(SystemExit):
            erase(site, subject, made)
    number = last_finished(site.lake.tables) + 1
    path = Path(site.lake.path(Plan(number, "", 0).name))
    began = path.read_bytes()
    plan = Plan.from_json(began, str(path))
    facts = {**plan.body, "facts": {**plan.body["facts"]}}
    assert facts["facts"]["quarantined"]
    for side in ("remove", "account", "kept"):
        facts[side] = {table: told for table, told in facts[side].items() if table not in left_out}
    facts["add"] = [row for row in facts["add"] if row["table"] not in left_out]
    if "raw" in left_out:
        facts["facts"]["quarantined"] = {}
    path.write_bytes(replace(plan, body=facts).to_json())
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        drive(site.lake, lambda _: None, InProcess())
    assert len(bodies(site)) == 2
    path.write_bytes(began)
    assert erase(site, subject, made).certificate.is_clean
    assert bodies(site) == ["hello"]


def test_what_went_by_other_ways_makes_an_erasure_void(site):
    """Its rows are gone, and others of the date are there: whether they are its own nobody could tell from the plan."""
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    known = site.lake.contract("logs")
    rest = pa.Table.from_pylist([row for row in site.rows("logs") if row["message"] == "hello"], arrow_schema(known))
    replace_partitions(site.lake.tables, known, rest, rest["date"].unique().to_pylist())
    with pytest.raises(VoidProposalError, match="has no rows of this subject any more"):
        erase(site, subject, made)


def test_a_certificate_that_was_altered_does_not_hold(site):
    """Whatever is changed in it, or in what it stands on, is told."""
    logs(site, f"hello {EMAIL}", "hello")
    subject, made = agreed(site)
    found = erase(site, subject, made).certificate
    assert verify_alone(found, found.name) == []
    for change in (
        lambda facts: facts["items"].pop(),
        lambda facts: facts["search"].update(found=[{"place": "x"}]),
        lambda facts: facts.update(steps=[]),
        lambda facts: facts.update(erasure="er-0000000000000000"),
        lambda facts: facts.pop("search"),
        lambda facts: facts["steps"][1].update(actor="Otto Operator"),
    ):
        facts = json.loads(found.raw)
        change(facts)
        assert verify_alone(Certificate(facts), found.name)
    facts = json.loads(found.raw)
    facts["versions"]["python"] = "2.7"
    assert verify_alone(Certificate(facts), found.name) == ["its bytes do not have the digest of its name"]
    assert verify_with_lake(Certificate(facts), site.lake) == ["the audit log does not know it"]


@settings(max_examples=300, deadline=None)
@given(st.text("ab .-_@\\n%0", max_size=6), st.text("ab .-_@\\n%0", max_size=6))
def test_a_value_counts_as_a_word_in_texts_and_bytes_alike(before, behind):
    """What stands beside a value tells, in the same way, whether a row goes and whether the search finds it."""
    needles = make_needles(["ada.lovelace"], word_letters=WORDS)
    text = f"{before}ada.lovelace{behind}"
    counts = needles.count(text.encode()) > 0
    (mark,) = rows_holding(pa.table({"t": [text]}), needles).to_pylist()
    assert mark == counts
    is_alone = not (before[-1:].isalnum() or behind[:1].isalnum())
    assert counts or not is_alone
    plain = not {"\\", "%"} & set(before)
    assert not plain or counts == is_alone == (needles.count(f" {text}".encode("utf-16-le")) > 0)


def test_the_guide_is_true(site, tmp_path, capsys, monkeypatch):
    """Each command of the guide does what it says, in its order; no output has a value."""
    logs(site, f"hello {EMAIL}", "hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    monkeypatch.setenv("RANKLAKE_SPOOL", str(site.spool))
    monkeypatch.setenv("RANKLAKE_REPORT", str(tmp_path / "pages"))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "runs.html").write_text(f"<p>{EMAIL}</p><p>grace</p>")
    page = Path(__file__).parents[2] / "docs/erasure.md"
    commands = re.findall(r"^    ranklake (erase .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 6
    said = ""
    for command in commands:
        (name,) = ERASURES.register(site.lake) or [""]
        file = next((str(path) for path in tmp_path.glob("evidence/*.json")), "")
        assert run(shlex.split(command.replace("er-…", name).replace("evidence/….json", file))) == 0, command
        said += "".join(capsys.readouterr())
    assert EMAIL not in said
    assert "no data is left" in said
    assert said.count("the certificate is valid") == 2
    assert (tmp_path / "pages" / "runs.html").read_text().endswith("</p><p>grace</p>")


def test_the_commands_refuse_in_a_line(site, tmp_path, capsys):
    """The author who approves, other values, a certificate of somebody else, nothing left to erase."""
    logs(site, f"hello {EMAIL}", "hello")
    where = ["--lake", site.lake.uri, "--spool", str(site.spool)]
    assert run(["erase", "plan", *VALUES, "--by", "Petra", *where]) == 0
    (name,) = ERASURES.register(site.lake)
    assert run(["erase", "approve", name, "--by", "Petra", *where[:2]]) == 2
    assert run(["erase", "apply", name, *VALUES, "--by", "Otto", *where]) == 2
    assert run(["erase", "approve", name, "--by", "Anna", *where[:2]]) == 0
    assert run(["erase", "apply", name, ADA, "--by", "Otto", *where]) == 2
    assert run(["erase", "certificate", "show", name, *where[:2]]) == 2
    assert run(["erase", "apply", name, *VALUES, "--by", "Otto", *where]) == 0
    assert run(["erase", "list", *where[:2]]) == 0
    capsys.readouterr()
    assert run(["erase", "certificate", "show", name, "--out", str(tmp_path / "out"), *where[:2]]) == 0
    file = capsys.readouterr().out.strip()
    assert run(["erase", "certificate", "verify", file, "someone.else"]) == 1
    assert run(["erase", "plan", *VALUES, *where]) == 1
    said = capsys.readouterr()
    assert "its subject is another one" in said.out
    assert EMAIL not in said.out + said.err


@pytest.mark.parametrize(
    ("words", "given"),
    [(VALUES, "\n".join(VALUES)), (["--run", "shared"], ""), (["al", "--column", "user"], "al")],
)
def test_what_an_approval_prints_is_what_applies_it(site, words, given, monkeypatch, capsys):
    """The next command, as it stands there but for names: of a person, a run, and a short account."""
    site.bring(any_rows("runs", 1, run="r9", incarnation=5, user=["al"]), "runs")
    logs(site, f"hello {EMAIL}", f"{ADA} was here")
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    monkeypatch.setenv("RANKLAKE_SPOOL", str(site.spool))
    assert run(["erase", "plan", *words, "--by", "Petra"]) == 0
    (name,) = ERASURES.register(site.lake)
    capsys.readouterr()
    assert run(["erase", "approve", name, "--by", "Anna"]) == 0
    (command,) = re.findall(r"'ranklake (erase apply [^']*)'", capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", StringIO(given))
    assert run(shlex.split(command.replace("NAME", "Otto").replace("RUN", "shared"))) == 0
    assert "no data is left" in capsys.readouterr().out


CHILD = """
import sys
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake import Lake
from ranklake.retention.erasure.apply import apply
from ranklake.retention.erasure.subject import Reach
from ranklake.retention.erasure.subject import subject_of
uri, spool, name, *values = sys.argv[1:]
lake = Lake.open(uri)
print("ready", flush=True)
apply(Reach(lake, Spool(spool)), name, subject_of(lake, values), "Otto Operator")
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_converges(site):
    """SIGKILL at random moments of the application: the next call has all erased, once, and proves it."""
    kills = int(os.environ.get("RANKLAKE_KILLS", "3"))
    random.seed(19)
    survived = 0
    for turn in range(kills):
        lines = [f"hello {EMAIL}", f"turn {turn}"]
        logs(site, *lines, run=f"{ADA}-{turn}" if turn % 2 else "shared", incarnation=70 + turn)
        subject, made = agreed(site)
        words = [sys.executable, "-c", CHILD, site.lake.uri, str(site.spool), made.name, *VALUES]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(random.uniform(0, 1.2))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        survived += bool(ERASURES.register(site.lake)[made.name].applied)
        done = erase(site, subject, made)
        assert done.certificate.is_clean
        assert EMAIL not in "".join(bodies(site))
        site.balances()
        assert removal_faults(site.lake) == []
    assert len(bodies(site)) == (kills + 1) // 2
    print(f"{kills} kills, {survived} after the plan was finished")


@needs_ssh_keygen
def test_a_signed_certificate_verifies_without_the_lake(site, tmp_path, capsys):
    """Whoever has the allowed signers verifies who proposed, approved and applied; a key that is not there is none."""
    keys, found = signed_erasure(site, tmp_path)
    file = tmp_path / f"{found.name}.json"
    file.write_bytes(found.raw)
    assert run(["erase", "certificate", "verify", str(file), "--allowed-signers", str(keys.file)]) == 0
    assert "verified: the certificate by itself, signatures" in capsys.readouterr().out
    keys.allow("pia", "otto")
    assert run(["erase", "certificate", "verify", str(file), "--allowed-signers", str(keys.file)]) == 1
    assert "(erasure.approve)" in capsys.readouterr().out


def test_a_command_that_waits_for_values_says_so(site, monkeypatch, capsys):
    """At a terminal; from a pipe, and on standard output, it says nothing of it."""
    where = ["--lake", site.lake.uri, "--spool", str(site.spool)]
    site.spool.mkdir()
    for at_terminal in (True, False):
        stdin = StringIO("nobody@example.org\n")
        stdin.isatty = lambda found=at_terminal: found
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["erase", "find", "-", *where]) == 0
        said = capsys.readouterr()
        assert ("one a line, and end with Ctrl-D" in said.err) is at_terminal
        assert "Ctrl-D" not in said.out
