"""Masks at capture: classified values that no byte of the spools holds, and what joins all the same."""

import base64
import json
import logging
import os
import random
import re
import string
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from overlays import written
from recorded import read_segment

from ranklake.capture.common.settings import CaptureSettings, read_settings
from ranklake.capture.importers.imports import import_files
from ranklake.capture.lanes.masks import row_masks
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.cli import run as cli_run
from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.capture_masks import load_capture_masks
from ranklake.lake.contracts.load import load_contracts
from ranklake.masking.columns import mask_values
from ranklake.masking.masks import KINDS, UNITS, Mask, MaskError, Pseudonyms
from ranklake.masking.values import change_of
from ranklake.segments.keys import Keyring

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
POLICY = """
at_capture:
  masked: [pseudonymous]
  masks: {personal: redact, runs.git_patch: nullify, logs.message: "keep:1"}
"""


REVIEWS = """\
table: reviews
version: 1
kind: fact
owner: me
steward: me
summary: "What people think."
grain: [run, reviewer]
envelope: true
partition: [date]
sort: [ts]
retention: raw
columns:
  - {id: 20, name: reviewer, type: string, class: pseudonymous, mask: hash, required: true, doc: x}
  - {id: 21, name: words, type: string, class: personal, mask: redact, required: true, doc: x}
  - {id: 22, name: age, type: int32, unit: "1", class: personal, mask: nullify, doc: x}
"""
STEPS = """\
extends: steps
columns:
  - {id: 10000, name: mood, type: float32, unit: "1", class: personal, mask: nullify, doc: x}
"""


@pytest.fixture
def own(tmp_path):
    """Write an overlay with classified columns, and give its folder."""
    return written(tmp_path / "own", {"reviews.yaml": REVIEWS, "steps.yaml": STEPS})


@pytest.fixture
def masking(tmp_path):
    """Write a policy and a keyring, and give the settings that name them."""

    def write(policy=POLICY, *keys):
        (tmp_path / "masking.yaml").write_text(policy)
        (tmp_path / "keys").write_text("\n".join(keys or [OLD]))
        return {"masking_policy": str(tmp_path / "masking.yaml"), "masking_key": f"file:{tmp_path}/keys"}

    return write


def rows(place, table):
    found = []
    for path in sorted((place.spool / "segments").glob(f"*/{table}/*.parquet")):
        found += read_segment(path.read_bytes())[1].to_pylist()
    return found


def every_byte(*folders):
    return b"\n".join(path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_byte_of_what_is_masked_is_written(place, masking, monkeypatch):
    """Neither into an open file of the local spool, nor into what is sealed and sent."""
    monkeypatch.setenv("LOGNAME", "planted-ada")
    monkeypatch.setattr("socket.gethostname", lambda: "planted-host")
    run = place.start(**masking(), samplers="on", sample_every_s=0.1)
    handler = run.log_handler()
    logger = logging.getLogger("mine")
    logger.addHandler(handler)
    logger.error("planted-message of a person")
    logger.removeHandler(handler)
    run.event("thing", message="mail planted-eve@example.org")
    with run.step(1):
        run.log(loss=1.0)
    run.flush()
    open_files = every_byte(place.local)
    run.close()
    everything = open_files + every_byte(place.local, place.spool)
    assert b"planted" not in everything
    (told,) = rows(place, "runs")
    hashed = Pseudonyms(Keyring.parse(OLD, "here"))
    assert told["user"] == hashed("planted-ada")
    assert {row["host"] for row in rows(place, "host_samples")} == {hashed("planted-host")}
    assert told["host"] == hashed(os.uname().nodename)  # those of two tables join
    assert {row["message"][:2] for row in rows(place, "logs")} == {"p*"}
    assert rows(place, "steps")[0]["loss"] == 1.0


def test_pseudonyms_join_those_of_roles_and_go_on_when_the_key_is_rotated(place, masking):
    """What capture hashed under the old key becomes what a role makes of the name under both."""
    asked = masking()
    run = place.start(**asked)
    run.close()
    user = rows(place, "runs")[0]["user"]
    old, both = (Pseudonyms(Keyring.parse(text, "here")) for text in (OLD, f"{NEW}\n{OLD}"))
    assert user == old(os.environ.get("LOGNAME") or __import__("getpass").getuser())
    again = place.start(**masking(POLICY, NEW, OLD), run="later")
    again.close()
    later = next(row["user"] for row in rows(place, "runs") if row["run"] == "later")
    assert later != user
    assert both(user) == later
    shown = mask_values(pa.array([user, later]), Mask("hash"), both)
    assert shown.to_pylist() == [later, later]


def test_without_its_key_a_column_is_null_and_says_why(place, masking, warnings_told):
    """Training goes on; nothing is in clear; a warning names the column once, and the row why it has none."""
    asked = masking() | {"masking_key": "file:/nowhere"}
    run = place.start(**asked)
    run.close()
    (told,) = rows(place, "runs")
    assert told.get("user") is None
    assert json.loads(told["unavailable"])["user"] == "there was no key to mask it with"
    assert sum("masking" in one.message or "hashed" in one.message for one in warnings_told.records) == 1


def test_a_policy_that_cannot_be_read_leaves_no_classified_value(place, masking, monkeypatch, warnings_told):
    """A misspelt policy must not mean that names are written in clear; a row that needs one is a gap."""
    monkeypatch.setenv("LOGNAME", "planted-ada")
    run = place.start(**masking("at_capture: {mask: [personal]}"))
    run.note("planted words")
    run.close()
    (told,) = rows(place, "runs")
    assert told.get("user") is told.get("command_line") is None
    assert len(rows(place, "annotations")) == 1
    assert b"planted" not in every_byte(place.local, place.spool)
    assert any("unknown key 'mask'" in one.message for one in warnings_told.records)


def test_rows_of_own_tables(place, masking, own):
    """They are masked like others; a row whose required value has no masked form is a gap, and nothing is in clear."""
    policy = "at_capture: {masks: {reviews.words: hash, reviews.age: bucket:10}}"
    run = place.start(**masking(policy), contracts_overlay=str(own))
    run.record("reviews", reviewer="eve", words="planted words", age=37)
    run.close()
    (told,) = rows(place, "reviews")
    assert (told["age"], told["words"][:2]) == (30, "p-")
    without = masking(policy) | {"masking_key": "env:NOWHERE"}
    run = place.start(**without, contracts_overlay=str(own), run="without")
    run.record("reviews", reviewer="eve", words="planted words", age=37)
    run.close()
    assert run.gaps()["reviews"] == {"not masked": 1}
    assert b"planted" not in every_byte(place.local, place.spool)


def test_where_nothing_is_configured_no_row_passes_a_mask(place):
    """It costs one comparison a row of frames, and nothing on the path of steps and values."""
    run = place.start()
    assert all(lane._mask is None for lane in run.recording.recorder.records.values())
    assert run.recording.recorder.masks.pseudonyms is None


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        ("at_capture: {masks: {reviews.reviewer: hash}}", "reviews.reviewer tells rows apart"),
        ("at_capture: {masked: [pseudonymous]}", "reviews.reviewer tells rows apart"),
        ("at_capture: {masks: {steps.mood: bucket:2}}", "steps.mood is written in slots"),
        ("at_capture: {masks: {reviews.words: nullify}}", "reviews.words is required"),
        ("at_capture: {masks: {runs.user: bucket:2}}", "bucket:2 does not fit runs.user"),
        ("at_capture: {masks: {runs.usr: hash}}", "did you mean 'user'?"),
        ("at_capture: {masks: {run_facts.run: hash}}", "unknown recorded table"),
        ("at_capture: {masks: {runs.ts: truncate:day}}", "runs.ts tells rows apart"),
        ("at_capture: {masks: {runs.user: hash}, seen: [runs.user]}", "both seen and masked"),
        ("at_capture: {masks: {1: hash}}", "at_capture.masks[1] must be text, not a number"),
        ("at_capture: {since: tomorrow}", "at_capture.since must be a day such as 2027-06-30, not 'tomorrow'"),
        ("at_capture: {since: 2027-02-30}", "not '2027-02-30'"),
        ("masks: {}", "masking.yaml:1: unknown key 'masks' in the file; known: at_capture"),
        ("", "masking.yaml:1: the file must be a mapping, not empty"),
        ("at_capture: [", "masking.yaml:2: not usable YAML"),
        ("at_capture:\n  masked: [personal]\n  masked: []", "masking.yaml:3: not usable YAML (key 'masked' appears"),
    ],
)
def test_policies_that_cannot_be_held_to(tmp_path, own, policy, what):
    """Each is refused in one line that names the column and the mend."""
    contracts = load_contracts(own)
    (tmp_path / "masking.yaml").write_text(policy)
    with pytest.raises(MaskError) as refused:
        load_capture_masks(tmp_path / "masking.yaml", contracts)
    assert what in str(refused.value)


def test_all_that_is_wrong_with_a_policy_is_told_at_once(tmp_path):
    """Each fault has its line; what a key is called comes first, for what it holds cannot be judged before."""
    file = tmp_path / "masking.yaml"
    file.write_text("at_capture:\n  mask: [personal]\n  masked: [persnal]\n  masks:\n    runs.user: 3\n")
    assert lines_of(file) == [
        "2: unknown key 'mask' in at_capture; did you mean 'masks'?",
        "3: at_capture.masked[0] cannot be 'persnal'; did you mean 'personal'?",
        "5: at_capture.masks.runs.user must be text or empty, not a number",
    ]
    file.write_text("at_capture:\n  seen:\n  - rums.host\n  masks:\n    runs.usr: hash\n    runs.host: hsh\n")
    assert [line.partition(";")[0] for line in lines_of(file)] == [
        "3: unknown recorded table 'rums'",
        "5: unknown column of runs 'usr'",
        "6: unknown mask 'hsh'",
    ]


def lines_of(file):
    """Return what is wrong with a policy, without the name of the file."""
    with pytest.raises(MaskError) as refused:
        load_capture_masks(file, load_contracts())
    return [str(error).removeprefix(f"{file}:") for error in (refused.value, *refused.value.others)]


def test_a_column_that_is_seen_is_left_alone(tmp_path):
    """A class may have exceptions, by name."""
    (tmp_path / "masking.yaml").write_text("at_capture: {masked: [pseudonymous], seen: [gpu_samples.host]}")
    found = load_capture_masks(tmp_path / "masking.yaml", load_contracts())
    assert "gpu_samples" not in found.columns
    assert found.columns["host_samples"]["host"] == Mask("hash")


def test_the_section_of_the_commands_is_what_capture_goes_by(tmp_path):
    """[masking] in ranklake.toml, which commands read strictly; where it is broken, nothing classified is recorded."""
    file = tmp_path / "ranklake.toml"
    file.write_text('[masking]\npolicy = "m.yaml"\nkey = "env:K"\n')
    told = []
    found = read_settings({}, {"RANKLAKE_CONFIG": str(file)}, lambda *said: told.append(said))
    assert (found.masking_policy, found.masking_key, told) == ("m.yaml", "env:K", [])
    file.write_text('[masking]\npolicy = "m.yaml"\nkey = "env:K\n')
    found = read_settings({}, {"RANKLAKE_CONFIG": str(file)}, lambda *said: told.append(said))
    assert row_masks(found, lambda *_: None).masks.columns["runs"]["user"] == Mask("nullify")
    file.write_text('[masking]\npolcy = "m.yaml"\n')
    found = read_settings({}, {"RANKLAKE_CONFIG": str(file)}, lambda *said: told.append(said))
    assert row_masks(found, lambda *_: None).masks.columns["runs"]["user"] == Mask("nullify")


def test_imports_are_masked_before_they_reach_the_spool(tmp_path, masking):
    """Jobs of an accounting file, and the text of lines that did not convert."""
    file = tmp_path / "sacct.txt"
    head = "JobID|JobName|User|State|Submit|Start|End|ExitCode|AllocTRES|NNodes|WorkDir|Comment"
    day = "2026-01-01T00:00:00"
    good = f"7|gpt|planted-ada|COMPLETED|{day}|{day}|{day}|0:0|a=1|1|/home/planted-ada|planted-eve@example.org"
    bad = "8|gpt|planted-bob|COMPLETED|never|never|never|x|y|z|/home/planted-bob|"
    file.write_text(f"{head}\n{good}\n{bad}\n")
    policy = "at_capture: {masked: [pseudonymous, personal]}"
    asked = masking(policy)
    masks = SealedMasks.of(tmp_path / "masking.yaml", asked["masking_key"], None)
    done = import_files("sacct", [str(file)], str(tmp_path / "spool"), masks=masks)
    assert done.rows["jobs"] == 1
    assert b"planted" not in every_byte(tmp_path / "spool")
    clear = import_files("sacct", [str(file)], str(tmp_path / "clear"))
    assert clear.rows == done.rows
    assert b"planted-ada" in every_byte(tmp_path / "clear")


@pytest.mark.slow
def test_of_ten_thousand_values_none_is_in_a_byte_of_spools_lake_or_exports(place, masking, tmp_path, capsys):
    """Neither in open files, nor in what is sealed, sent, ingested or asked for: of values, statistics and names."""
    chance = random.Random(20)
    texts = ["".join(chance.choices(string.ascii_lowercase, k=14)) for _ in range(10_000)]
    asked = masking("at_capture: {masked: [pseudonymous], masks: {personal: redact, jobs.work_dir: nullify}}")
    day = "2026-01-01T00:00:00"
    lines = [
        f"{n}|gpt|{user}|COMPLETED|{day}|{day}|{day}|0:0|a=1|1|/data/{folder}|ask {mail}@example.org"
        for n, (user, folder, mail) in enumerate(zip(texts[:3000], texts[3000:6000], texts[6000:9000], strict=True), 1)
    ]
    head = "JobID|JobName|User|State|Submit|Start|End|ExitCode|AllocTRES|NNodes|WorkDir|Comment"
    (tmp_path / "sacct.txt").write_text("\n".join([head, *lines]))
    run = place.start(**asked)
    for text in texts[9000:]:
        run.event("thing", message=f"mail {text}@example.org")
    run.flush()
    written_bytes = every_byte(place.local)
    run.close()
    masks = SealedMasks.of(tmp_path / "masking.yaml", asked["masking_key"], None)
    done = import_files("sacct", [str(tmp_path / "sacct.txt")], str(place.spool), masks=masks)
    assert (done.rows["jobs"], sum(row["event"] == "thing" for row in rows(place, "events"))) == (3000, 1000)
    out = tmp_path / "out"
    out.mkdir()
    assert cli_run(["ingest", "--lake", str(tmp_path / "lake"), "--spool", str(place.spool)]) == 0
    for table in ("jobs", "events", "runs"):
        for kind in ("csv", "parquet", "json"):
            asks = ["sql", f"SELECT * FROM {table}", "--lake", str(tmp_path / "lake")]
            assert cli_run([*asks, "--output", str(out / f"{table}.{kind}")]) == 0
    seen = bytearray(written_bytes + "".join(capsys.readouterr()).encode())
    for folder in (place.local, place.spool, tmp_path / "lake", out):
        for path in (path for path in folder.rglob("*") if path.is_file()):
            seen += str(path).encode() + path.read_bytes()
            if path.suffix == ".parquet":  # pages are compressed: look at the values, too
                seen += str(pq.read_table(path, partitioning=None).to_pydict()).encode()
                seen += str(pq.read_metadata(path).to_dict()).encode()
    assert not set(re.findall(rb"(?<![a-z])[a-z]{14}(?![a-z])", bytes(seen))) & {text.encode() for text in texts}
    assert len(set(re.findall(rb"p-[0-9a-f]{8}-[0-9a-f]{32}", bytes(seen)))) > 3000


VALUES = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "float64": st.floats(),
    "decimal": st.decimals(-(10**20), 10**20, places=9, allow_nan=False),
    "timestamp": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),  # noqa: DTZ001
    "date": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
}
MASKS = [
    *("nullify", "hash", "redact", "keep:2", "keep:1+3", "keep:domain"),
    *("bucket:10", "bucket:7", "bucket:0.25", "bucket:0.1"),
    *(f"truncate:{unit}" for unit in UNITS),
]
CASES = [(said, type_) for said in MASKS for type_ in VALUES if Mask.parse(said, "").applies_to(type_)]


@pytest.mark.parametrize(("said", "type_"), CASES)
@given(data=st.data())
def test_a_value_is_masked_as_a_column_of_it_is(said, type_, data):
    """Capture and the lake give the same of the same value, whatever it is: what is masked at either place joins."""
    value = data.draw(VALUES[type_])
    mask, ring = Mask.parse(said, ""), Pseudonyms(Keyring.parse(OLD, "here"))
    (expected,) = mask_values(pa.array([value], ARROW_TYPES[type_]), mask, ring).to_pylist()
    written_as = {
        "timestamp": lambda one: (one - datetime(1970, 1, 1, tzinfo=UTC)) // datetime.resolution,
        "date": lambda one: (one - date(1970, 1, 1)).days,
        "decimal": str,
    }.get(type_, lambda one: one)
    found = change_of(mask, type_, ring)(written_as(value))
    if expected is None or found is None:
        assert found is expected
    elif type_ == "decimal":
        assert Decimal(found) == expected
    else:
        assert np.array_equal([found], [written_as(expected)], equal_nan=type_ == "float64")


def test_every_kind_of_mask_is_among_the_cases():
    """A new kind has to be one at capture, too."""
    assert {said.partition(":")[0] for said, _ in CASES} == set(KINDS)


def test_settings_name_no_key():
    """The default masks nothing."""
    assert CaptureSettings().masking_policy == CaptureSettings().masking_key == ""
