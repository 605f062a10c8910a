"""The proof of masks: columns whose stored values are not masked are named, wherever they should be."""

import json
import math
from datetime import timedelta

import pyarrow as pa
import pytest
from governed import any_rows
from hypothesis import given
from hypothesis import strategies as st
from people import OLD, PEOPLE, bring_runs
from retaining import CONTRACTS, POLICIES, TODAY, agree, carry_out, days_ago, plan

from ranklake.cli import run
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.flows.pages import findings
from ranklake.lake.contracts.capture_masks import CaptureMasks
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.masking.columns import mask_values, unmasked_values
from ranklake.masking.masks import HASH, Mask, Pseudonyms
from ranklake.pipeline.calls import ChecksFailedError, check_once, refuse_failure
from ranklake.pipeline.findings import with_masks
from ranklake.pipeline.report_sections import compliance_of
from ranklake.retention.plans.mask_proof import prove, spread
from ranklake.retention.shares.sharing import share
from ranklake.segments.keys import Keyring
from ranklake.views.html import governance_pages
from ranklake.views.html.shell import render

RING = Pseudonyms(Keyring.parse(OLD, "here"))


def proofs(site, found=POLICIES, roles=None, capture=None):
    every = prove(
        site.lake, CONTRACTS, found, roles or {}, capture=capture or CaptureMasks(), pseudonyms=RING, as_of=TODAY
    )
    return {(one.place, one.table, one.column): one for one in every}


@pytest.mark.parametrize(
    ("said", "good", "bad"),
    [
        ("hash", [RING("ada"), None], ["p-00000000-00000000000000000000000000000000", "ada"]),
        ("redact", ["mail [redacted]"], ["mail ada@example.org"]),
        ("keep:2", ["ad*-****", "***"], ["ada-lovelace"]),
        ("keep:domain", ["***@example.org"], ["ada@example.org", "ada"]),
        ("nullify", [None], ["ada"]),
    ],
)
def test_the_shape_of_texts(said, good, bad):
    """What a mask leaves has its shape, and what it cannot have left has not."""
    mask = Mask.parse(said, "")
    assert not len(unmasked_values(pa.array(good, pa.string()), mask, RING))
    assert unmasked_values(pa.array([*good, *bad]), mask, RING).to_pylist() == bad


def test_the_shape_of_numbers_and_times():
    """So it is of buckets and beginnings; NaN is left as it is."""
    assert unmasked_values(pa.array([10, 13, None]), Mask("bucket", "10")).to_pylist() == [13]
    assert unmasked_values(pa.array([float("nan"), 0.5, 0.3]), Mask("bucket", "0.5")).to_pylist() == [0.3]
    assert unmasked_values(pa.array([[0, 10], [3]]), Mask("bucket", "10")).to_pylist() == [[3]]
    day = pa.array([0, 1], pa.date32())
    assert len(unmasked_values(day, Mask("truncate", "month"))) == 1


def test_values_at_rest(keyed, policies):
    """They are due, then overdue, then masked; and values that come late in clear are found, register or not."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 5, age=33)
    assert {one.status for one in proofs(site, found).values()} == {"due"}
    bring_runs(site, 5, age=60, incarnation=8)
    named = proofs(site, found)["at rest", "runs", "user"]
    assert (named.status, named.unmasked, named.first) == ("unmasked", 10, days_ago(60).date())
    assert "'ranklake retain plan'" in named.hint
    made = plan(site, TODAY, found)
    agree(site, made.name)
    carry_out(site, made.name, TODAY, found)
    every = proofs(site, found)
    assert {one.status for one in every.values()} <= {"masked", "unseen"}
    assert every["at rest", "runs", "user"].values == 10
    assert not proofs(site)


def test_values_at_capture(keyed):
    """A process that recorded without the policy is found by what it stored, from the policy's day on."""
    site = keyed
    hashed = [RING(f"person-{n}") for n in range(5)]
    site.bring(any_rows("runs", 5, incarnation=7, start=days_ago(3), user=hashed), "runs")
    masks = CaptureMasks({"runs": {"user": Mask("keep", "1")}})
    assert proofs(site, capture=masks)["at capture", "runs", "user"].status == "masked"  # a rule came after
    site.bring(any_rows("runs", 2, incarnation=8, start=days_ago(3), user=["lovelace", "eve"]), "runs")
    masks = CaptureMasks({"runs": {"user": HASH}})
    found = proofs(site, capture=masks)["at capture", "runs", "user"]
    assert (found.status, found.values, found.unmasked) == ("unmasked", 7, 2)
    assert "lovelace" not in json.dumps(found.plain(), default=str)
    assert "2 of 7 distinct values" in found.problem
    later = CaptureMasks(masks.columns, TODAY - timedelta(days=2))
    assert proofs(site, capture=later)["at capture", "runs", "user"].status == "unseen"


def test_values_in_shares(keyed, tmp_path):
    """Copies are held against the role as it is now: of one that says another mask the copies are named."""
    site = keyed
    bring_runs(site, 5, age=3)
    sees = frozenset({"operational"}), frozenset({"runs"})
    role = Role("reader", *sees, masked=frozenset({"pseudonymous"}))
    share(site.lake, role, str(tmp_path / "out"), "ada", InProcess())
    found = proofs(site, roles={"reader": role})["in the share of reader", "runs", "user"]
    assert (found.status, found.values) == ("masked", 5)
    other = Role("reader", *sees, class_masks={"pseudonymous": Mask("keep", "1")})
    found = proofs(site, roles={"reader": other})["in the share of reader", "runs", "user"]
    assert (found.status, found.unmasked) == ("unmasked", 5)
    assert "ranklake share" in found.hint


def test_the_command_names_the_column_and_fails(keyed, tmp_path, monkeypatch, capsys):
    """`ranklake check` samples by itself; `catalog` says what is masked where."""
    site = keyed
    bring_runs(site, 5, age=3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "masking.yaml").write_text("at_capture: {masks: {runs.user: hash}}")
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.lake.uri}"\n[masking]\npolicy = "masking.yaml"\nkey = "file:{tmp_path}/keys"\n'
    )
    assert run(["check", "runs"]) == 1
    said = capsys.readouterr().out
    assert "masks: runs.user is masked at capture (hash), and 5 of 5 distinct values" in said
    assert "person-" not in said
    assert run(["check", "runs", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["masks"]
    assert (one["column"], one["status"], one["unmasked"]) == ("user", "unmasked", 5)
    assert run(["catalog", "runs"]) == 0
    assert "masked at capture (hash)" in capsys.readouterr().out


@pytest.fixture
def masking(keyed, tmp_path, monkeypatch):
    """Give the context of a lake whose names are masked at capture, and are there in clear."""
    bring_runs(keyed, 5, age=3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "masking.yaml").write_text("at_capture: {masks: {runs.user: hash}}")
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{keyed.lake.uri}"\n[masking]\npolicy = "masking.yaml"\nkey = "file:{tmp_path}/keys"\n'
    )
    return Context.of(load_config())


FOUND = {"check_run": "c", "passed": True, "checks": {"passed": 7}, "unsound": [], "standing": []}


def test_a_flow_s_check_and_the_page_tell_it(masking, tmp_path):
    """A scheduled check fails as the command does, and names column and dates; so does the compliance page."""
    lake = masking.open_lake()
    found = with_masks(masking, lake, ("fact",), FOUND)
    assert (found["passed"], found["checks"]) == (False, {"failed": 1, "passed": 7})
    (row,) = findings(found)
    assert (row["table"], row["check"], row["rows failed"], row["of"]) == ("runs", "user_masked", 5, 5)
    with pytest.raises(ChecksFailedError, match="user_masked"):
        refuse_failure(found)
    assert with_masks(masking, lake, ("derived",), FOUND) == FOUND
    text = render(governance_pages.compliance_section(compliance_of(masking, lake)).pages[0]).decode()
    assert "runs.user holds values in clear" in text
    assert not [one for one in (str(found), text) if "person-" in one]
    (tmp_path / "keys").unlink()
    lost = with_masks(masking, lake, ("fact",), FOUND)
    assert (lost["passed"], lost["checks"]) == (False, {"errored": 1, "passed": 7})
    assert "masks cannot be proven" in lost["unsound"][0]["message"]


@pytest.mark.slow
def test_the_flow_s_check_asks_for_it(masking):
    """What the stage of a schedule calls proves masks, too."""
    found = check_once(masking, kinds=("fact",))
    assert "user_masked" in [one["check_id"] for one in found["unsound"]]


@pytest.mark.parametrize("many", [0, 1, 8, 9, 100])
def test_a_sample_is_of_the_newest_and_of_the_rest(many):
    """No place twice, none that is not there, the newest always."""
    found = list(spread(many))
    assert found == sorted(set(found))
    assert set(found) <= set(range(many))
    assert found[-4:] == list(range(max(0, many - 4), many))
    assert len(found) == min(many, 8)


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
@given(
    st.floats(width=32) | st.integers(-(2**40), 2**40).map(lambda many: many * 0.1),
    st.sampled_from(["0.1", "0.3", "0.001", "0.7", "2.5", "10", "1000000.1"]),
)
def test_a_bucket_begins_with_itself(type_, value, width):
    """Whatever floats make of a width: a masked value stays as it is, is no more than it was, and near it."""
    values, mask = pa.array([value], type_, safe=False), Mask.parse(f"bucket:{width}", "")
    once = mask_values(values, mask)
    assert len(unmasked_values(once, mask)) == 0
    assert mask_values(once, mask).equals(once) or math.isnan(value)
    before, low = values[0].as_py(), once[0].as_py()
    if low is not None and math.isfinite(before):
        assert low <= before
        assert before - low <= float(width) * 1.001 + abs(before) * 2**-22


def test_masks_are_idempotent_by_which_their_shape_is_known():
    """A masked value that is masked again stays as it is: the shape rests on it."""
    texts = pa.array(["ada@example.org", "/home/ada/x", "a-b", "", "10.0.0.7~ada/"])
    for said in ("redact", "keep:2", "keep:1+3", "keep:domain", "hash"):
        mask = Mask.parse(said, "")
        once = mask_values(texts, mask, RING)
        assert mask_values(once, mask, RING).equals(once), said
