"""Who wrote a segment: prefixes, teams, signatures; and that what nobody vouches for takes no genuine one's place."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from bringing import under
from ciphered import ONE, THREE, TWO, encrypt_segment, source_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packing import pack_up
from segments import DAY, put_segment, segment_name, step_rows
from signed import footer_of, sign_segment

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.writers import (
    FORGED,
    NOT_ENCRYPTED,
    NOT_SIGNED,
    OTHERS_INCARNATION,
    OTHERS_RUN,
    UNKNOWN_SIGNER,
    WRONG_RUN,
    Prefix,
    Writers,
)
from ranklake.lake.tables.read import read
from ranklake.segments.envelope import MissingKeyError, is_signed_by
from ranklake.segments.segment import SegmentName


@pytest.fixture
def writers(tmp_path):
    """Give team a (runs a-*, key ONE, with TWO to come) and team b (runs b-*, key THREE), who must sign."""
    ours = Prefix("team-a", "a", ("a-*",), require_signed=True, keys=source_of(tmp_path / "a", TWO, ONE))
    theirs = Prefix("team-b", "b", ("b-*",), require_signed=True, keys=source_of(tmp_path / "b", THREE))
    return Writers((ours, theirs))


def genuine(spool, number, key=ONE, prefix="team-a", run="a-1", **more):
    """Put a signed segment of ten steps."""
    rows = step_rows(10, segment=number, run=run, **more)
    return sign_segment(put_segment(spool / prefix, rows), key)


def bring(lake, spool, writers=None):
    source = Spool(str(spool), None, under(writers)) if writers is not None else Spool(str(spool))
    return ingest(lake, source, InProcess())


def reasons(lake):
    return Counter(read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].drop_null().to_pylist())


def stored(lake):
    return Counter(read(lake.tables, contract("steps"), ["segment"])["segment"].to_pylist())


def adds_up(lake, spool, writers):
    listing = Spool(str(spool), None, under(writers)).listing()
    assert [fault for item in balance(lake, listing) for fault in item.faults] == []


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_signed_comes_in(lake, spool, writers, packed):
    """Segments of each prefix come in, alone or packed, signed with any of its keys; who signed stands beside them."""
    paths = [genuine(spool, 0), genuine(spool, 1, TWO)]
    if packed:
        pack_up(spool / "team-a", paths)
    genuine(spool, 0, THREE, "team-b", "b-1", incarnation=8)
    done = bring(lake, spool, writers)
    assert (done.rows_stored, done.unreadable, done.refused) == (30, 0, {})
    assert stored(lake) == {0: 20, 1: 10}
    signers = read(lake.tables, contract("segments"), ["signed_by"])["signed_by"].to_pylist()
    assert Counter(signers) == {ONE.id: 1, TWO.id: 1, THREE.id: 1}
    adds_up(lake, spool, writers)
    assert bring(lake, spool, writers).plans == []


def moved(path, spool, old, new):
    """Put a file where another name says."""
    target = Path(str(path).replace(old, new))
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)


def swapped(path, spool):
    """Give a segment the footer of another one of its stream, as if it held its rows."""
    other = genuine(spool, 7)
    raw = path.read_bytes()
    theirs, ours = footer_of(other.read_bytes()), footer_of(raw)
    other.unlink()
    forged = raw.replace(ours.to_json(), replace(ours, mac=theirs.mac).to_json())
    path.unlink()
    path.with_name(segment_name(forged, ours)).write_bytes(forged)


def edited(path, spool):
    """Tell other facts in a genuine footer."""
    del spool
    raw = path.read_bytes()
    forged = raw.replace(b'"world_size":1', b'"world_size":9')
    assert forged != raw
    path.unlink()
    path.with_name(segment_name(forged, footer_of(forged))).write_bytes(forged)


FORGERIES = {
    "not signed": (lambda spool: put_segment(spool / "team-a", step_rows(10, run="a-1")), NOT_SIGNED),
    "a key of another team": (lambda spool: genuine(spool, 0, THREE), UNKNOWN_SIGNER),
    "a foreign key by its name": (
        lambda spool: sign_segment(put_segment(spool / "team-a", step_rows(10, run="a-1")), THREE, signer=ONE.id),
        FORGED,
    ),
    "a swapped footer": (lambda spool: swapped(genuine(spool, 0), spool), FORGED),
    "an edited footer": (lambda spool: edited(genuine(spool, 0), spool), FORGED),
    "another team's run": (lambda spool: genuine(spool, 0, THREE, "team-b", "a-1"), WRONG_RUN),
    "a run that nobody has": (lambda spool: genuine(spool, 0, ONE, "team-a", "x"), WRONG_RUN),
    "beside the prefixes": (lambda spool: genuine(spool, 0, ONE, "", "a-1"), OTHERS_RUN),
    "renamed to another segment": (
        lambda spool: moved(genuine(spool, 0), spool, "~000000~", "~000003~"),
        "name, footer and contents disagree",
    ),
    "moved to another table": (
        lambda spool: moved(genuine(spool, 0), spool, "/steps/", "/spans/"),
        "name, footer and contents disagree",
    ),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forgery_is_refused_and_told(lake, spool, writers, how):
    """Each is set aside with its reason, counted, and takes nothing from the genuine one that comes after."""
    forge, reason = FORGERIES[how]
    forge(spool)
    done = bring(lake, spool, writers)
    assert (done.rows_stored, done.unreadable) == (0, 1)
    assert reasons(lake) == {reason: 1}
    assert bool(done.refused) is reason.startswith("refused: ")
    assert len(list(Path(lake.path("quarantine")).iterdir())) == 1
    adds_up(lake, spool, writers)
    genuine(spool, 0, TWO)
    assert bring(lake, spool, writers).rows_stored == 10
    assert stored(lake) == {0: 10}
    adds_up(lake, spool, writers)


@pytest.mark.parametrize(
    ("ours", "astray"),
    [("team-a", "team-b"), ("/a-1~", "/a-9~"), ("~a0~", "~a1~"), ("~r00000~", "~r00001~"), ("~000000~", "~000003~")],
    ids=["prefix", "run", "attempt", "rank", "segment"],
)
def test_a_copy_in_the_wrong_place_does_not_hide_the_genuine_one(lake, spool, writers, ours, astray):
    """The very bytes of a segment, where or as they may not be, are refused so and come in where they belong."""
    path = genuine(spool, 0)
    copy = Path(str(path).replace(ours, astray))
    assert copy != path
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    aside = path.rename(path.with_suffix(".tmp"))
    assert bring(lake, spool, writers).unreadable == 1
    aside.rename(path)
    assert bring(lake, spool, writers).rows_stored == 10
    assert bring(lake, spool, writers).plans == []
    adds_up(lake, spool, writers)
    adds_up(lake, spool, writers)


def test_a_forged_next_segment_takes_no_slots(lake, spool, writers):
    """Whether it comes before the genuine one, with it, or alone: the genuine rows are stored, and nothing else."""
    genuine(spool, 0)
    bring(lake, spool, writers)
    forged = step_rows(10, segment=1, run="a-1", seed=99)
    put_segment(spool / "team-a", forged)
    assert bring(lake, spool, writers).rows_stored == 0
    genuine(spool, 1)
    put_segment(spool / "team-a", forged.slice(0, 9))
    put_segment(spool / "team-a", step_rows(5, segment=2, run="a-1", seed=99))
    assert bring(lake, spool, writers).rows_stored == 10
    assert stored(lake) == {0: 10, 1: 10}
    assert read(lake.tables, contract("segments"), ["rows_duplicate"])["rows_duplicate"].to_pylist() == [0] * 5
    adds_up(lake, spool, writers)


def test_unsigned_rows_of_a_signed_stream_are_refused(lake, spool, tmp_path):
    """Where signing is not required but keys are known, what one process signed once it must sign ever after."""
    writers = Writers((Prefix("team-a", keys=source_of(tmp_path / "a", ONE)),))
    genuine(spool, 0)
    put_segment(spool / "team-a", step_rows(10, run="other", incarnation=9))
    assert bring(lake, spool, writers).rows_stored == 20
    put_segment(spool / "team-a", step_rows(10, segment=1, run="a-1"))
    put_segment(spool / "team-a", step_rows(10, segment=1, run="other", incarnation=9))
    done = bring(lake, spool, writers)
    assert (done.rows_stored, done.refused) == (10, {"not signed": 1})
    adds_up(lake, spool, writers)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_clear_forgery_does_not_beat_an_encrypted_stream(spool, tmp_path, at_once):
    """Without any rule, clear rows under the number of a process that encrypts are refused, in whichever order."""
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(tmp_path / "keys", ONE)))
    encrypt_segment(put_segment(spool, step_rows(10)), ONE)
    if not at_once:
        bring(lake, spool)
    put_segment(spool, step_rows(10, segment=1, seed=5))
    bring(lake, spool)
    encrypt_segment(put_segment(spool, step_rows(10, segment=1)), ONE)
    bring(lake, spool)
    assert stored(lake) == {0: 10, 1: 10}
    assert reasons(lake) == {NOT_ENCRYPTED: 1}
    adds_up(lake, spool, Writers())


def test_a_process_number_is_one_streams(lake, spool):
    """Another run that names the number of a process is refused, in any table, whatever it claims there."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(10, segment=5, run="b-1"))
    assert bring(lake, spool).rows_stored == 0
    assert reasons(lake) == {OTHERS_INCARNATION: 1}
    put_segment(spool, step_rows(10, segment=5))
    assert bring(lake, spool).rows_stored == 10
    adds_up(lake, spool, Writers())


def test_what_must_be_encrypted_and_is_not_is_refused(spool, tmp_path):
    """By the name alone, and a signed one is refused likewise; with an envelope it comes in, its signature held."""
    keys = source_of(tmp_path / "keys", TWO)
    rule = Prefix("team-a", require_signed=True, require_encryption=True, keys=source_of(tmp_path / "a", ONE))
    writers = Writers((rule,))
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=keys))
    genuine(spool, 0)
    assert bring(lake, spool, writers).refused == {"not encrypted": 1}
    encrypt_segment(put_segment(spool / "team-a", step_rows(10, segment=1, incarnation=9)), TWO)
    assert bring(lake, spool, writers).refused == {"not signed": 1}
    adds_up(lake, spool, writers)


def test_segments_wait_where_their_keys_cannot_be_had(lake, spool, tmp_path, writers):
    """A team's keys that are gone hold up that team alone, and nothing of it is refused."""
    genuine(spool, 0)
    genuine(spool, 0, THREE, "team-b", "b-1", incarnation=8)
    (tmp_path / "a").unlink()
    done = bring(lake, spool, writers)
    assert (done.rows_stored, done.unreadable) == (10, 0)
    ((what, count),) = done.waiting.items()
    assert (count, "team-a" in what) == (1, True)
    source_of(tmp_path / "a", ONE)
    assert bring(lake, spool, writers).rows_stored == 10
    adds_up(lake, spool, writers)


def test_a_plan_is_not_carried_out_without_its_keys(lake, spool, writers):
    """A driver that finds a plan which asks for signatures stops with one line where it cannot check them."""
    genuine(spool, 0)

    class Dies(InProcess):
        """Workers that are gone when they are needed."""

        def run(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(lake, Spool(str(spool), None, under(writers)), Dies())
    with pytest.raises(MissingKeyError, match="the plan needs the key"):
        bring(lake, spool)
    assert bring(lake, spool, writers).rows_stored == 10


def test_after_the_keys_were_mended_a_file_that_is_written_again_comes_in(lake, spool, tmp_path, writers):
    """What was refused for an operator's mistake is looked at again once the file is newer than its refusal."""
    path = genuine(spool, 0)
    source_of(tmp_path / "a", TWO)
    assert bring(lake, spool, writers).refused
    source_of(tmp_path / "a", TWO, ONE)
    assert bring(lake, spool, writers).plans == []
    path.touch()
    assert bring(lake, spool, writers).rows_stored == 10
    adds_up(lake, spool, writers)


def test_two_prefixes_share_no_key(tmp_path):
    """A key of two prefixes would let what is signed for one pass for the other."""
    sources = [source_of(tmp_path / name, *keys) for name, keys in (("a", [ONE, TWO]), ("b", [TWO]))]
    shared = Writers((Prefix("a", keys=sources[0]), Prefix("b", keys=sources[1])))
    with pytest.raises(MissingKeyError, match="share the key"):
        shared.rules()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_bit_is_noticed(tmp_path_factory, data):
    """Whichever bit of a signed file is flipped, and under whichever other name, the signature does not hold."""
    path = genuine(tmp_path_factory.mktemp("bits"), 0)
    raw, name = bytearray(path.read_bytes()), SegmentName.parse(path.name)
    mac = footer_of(bytes(raw)).mac
    assert is_signed_by(ONE, bytes(raw), mac, name.bond("steps"))
    assert not is_signed_by(TWO, bytes(raw), mac, name.bond("steps"))
    for other in (replace(name, run="a-2"), replace(name, segment=1), replace(name, rows=9), replace(name, rank=1)):
        assert not is_signed_by(ONE, bytes(raw), mac, other.bond("steps"))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_signed_by(ONE, bytes(raw), mac, name.bond("steps"))


CONFIGURATION = """
[spool]
uri = "{spool}"
[[spool.prefixes]]
prefix = "team-a"
team = "a"
runs = ["a-*"]
require_signed = true
keys = "{keys}"
"""


def test_the_commands_say_what_was_refused(spool, tmp_path, monkeypatch, capsys):
    """`ranklake ingest` and `status` tell of each reason; the books add up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ranklake.context.on_demand", lambda *_: nullcontext(InProcess()))
    text = CONFIGURATION.format(spool=spool, keys=source_of(tmp_path / "a", ONE))
    (tmp_path / "ranklake.toml").write_text(text)
    genuine(spool, 0)
    put_segment(spool / "team-a", step_rows(10, segment=1, run="a-1"))
    assert run(["ingest", "--lake", "lake"]) == 0
    assert "1 of them refused: not signed" in capsys.readouterr().err
    assert run(["status", "--lake", "lake"]) == 0
    assert "1 segments refused: not signed" in capsys.readouterr().err
    assert run(["status", "--lake", "lake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == {"not signed": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefix = 'a/'", "prefix must be a folder below the spool"),
        ("prefix = '../b'", "prefix must be a folder below the spool"),
        ("prefix = 'a/segments'", "prefix must be a folder below the spool"),
        ("require_signed = true", "has require_signed and no keys"),
        ("require_signed = 'yes'", "require_signed must be true or false, not text"),
        ("runs = 'a-*'", "runs must be a list, not text"),
        ("runs = [1]", "runs[0] must be text, not a number"),
        ("key = 'file:x'", "unknown key 'key' in [spool.prefixes]; did you mean 'keys'?"),
    ],
)
def test_a_wrong_rule_is_refused(tmp_path, monkeypatch, capsys, text, said):
    """A misspelt rule is a configuration error in one line, never a rule that does not hold."""
    (tmp_path / "ranklake.toml").write_text(f"[[spool.prefixes]]\n{text}\n")
    monkeypatch.chdir(tmp_path)
    assert run(["status", "--lake", "lake"]) != 0
    assert said in capsys.readouterr().err


def test_segments_of_prefixes_are_replayed_and_leave_the_spool(lake, spool, writers):
    """What came by a prefix is found again for a replay, and goes from the spool when its days are over."""
    genuine(spool, 0)
    genuine(spool, 0, THREE, "team-b", "b-1", incarnation=8)
    bring(lake, spool, writers)
    before = read(lake.tables, contract("steps")).sort_by([("incarnation", "ascending"), ("slot", "ascending")])
    source = Spool(str(spool), None, under(writers))
    done = replay(lake, source, InProcess(), "steps", (DAY.date(), DAY.date()))
    assert (done.segments, done.rows) == (2, 20)
    after = read(lake.tables, contract("steps")).sort_by([("incarnation", "ascending"), ("slot", "ascending")])
    assert after.equals(before)
    assert ingest(lake, source, InProcess(), keep_days=-1).purged == 2
    assert source.listing() == []
    adds_up(lake, spool, writers)


PAGE = Path(__file__).resolve().parents[2] / "docs/signing.md"


@pytest.mark.slow
def test_the_pages_example_does_what_it_says(tmp_path, monkeypatch, capsys):
    """Its configuration and its commands, in order: one run is stored, the other is refused, and the books add up."""
    fences = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (configuration,) = [text for language, text in fences if language == "toml"]
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "lake"\n[dask]\nworkers = 1\n{configuration}')
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RANKLAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script, _, asked = "".join(text for language, text in fences if language == "bash").partition("ranklake ingest\n")
    environment = os.environ | {"RANKLAKE_LOCAL_SPOOL": "local"}
    subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, timeout=120, check=True)
    monkeypatch.setattr("ranklake.context.on_demand", lambda *_: nullcontext(InProcess()))
    for command in ("ranklake ingest", *asked.splitlines()):
        assert run(shlex.split(command)[1:]) == 0
    said = capsys.readouterr()
    assert "refused: not signed" in said.err
    told = [re.split(r"\s+\| ", line)[:3] for line in said.out.splitlines() if line.startswith("a-")]
    assert told == [["a-1", "true", "NULL"], ["a-2", "false", NOT_SIGNED]]
