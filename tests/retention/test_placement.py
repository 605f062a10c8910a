"""What policies demand of the places of tables: met, differing with the remedy, or unknown with the reason."""

import pytest
from retaining import CONTRACTS

from ranklake.config import load_config
from ranklake.doctor import vouching
from ranklake.doctor.examination import Patient
from ranklake.lake.store.posture import EMPTY, Posture
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.report.compliance import compliance
from ranklake.retention.report.placement import StoragePlace, places, verdicts
from ranklake.views.html.governance_pages import compliance_section as section
from ranklake.views.html.shell import render

ARN = "arn:aws:kms:eu-central-1:1:key/k1"
DEMANDS = """
places:
  people: {where: {table: [runs, jobs]}, keys: [KEY], owner: privacy, reason: who they are}
  europe: {where: {kind: logs}, encrypted: true, regions: [eu-central-1, eu-west-1], owner: privacy, reason: law}
"""


@pytest.fixture
def policies(tmp_path):
    """Give what loads the packaged policies with demands, of a key."""

    def of(key="k1"):
        text = (PACKAGED / "defaults.yaml").read_text() + DEMANDS.replace("KEY", f'"{key}"')
        (tmp_path / "policies.yaml").write_text(text)
        return load_policies(CONTRACTS, tmp_path / "policies.yaml")

    return of


def state(demands, what, tables=("runs", "logs"), **facts):
    """Return the state, and what was found, of one thing at a place."""
    found = verdicts(demands, [StoragePlace(Posture("lake", "s3", **facts), frozenset(tables))], CONTRACTS)
    return next((one.state, one.found, one.hint != "") for one in found if one.what == what)


KMS = {"by_default": "aws:kms", "of_object": "aws:kms"}
BOTH = {**KMS, "by_default_key": "k1", "of_object_key": ARN}


@pytest.mark.parametrize(
    ("key", "facts", "expected", "said"),
    [
        ("k1", BOTH, "met", "k1"),
        (ARN, BOTH, "met", "k1"),
        (ARN, {**BOTH, "by_default_key": ARN}, "met", ARN),
        (ARN, {**BOTH, "of_object": EMPTY, "of_object_key": None}, "met", "k1"),
        ("k2", BOTH, "differs", "k1 for new objects"),
        ("k1", {**BOTH, "of_object_key": "arn:aws:kms:eu-central-1:1:key/k2"}, "differs", "for an existing object"),
        ("arn:aws:kms:us-east-1:1:key/k1", {**BOTH, "by_default_key": ARN}, "differs", ARN),
        ("k1", {**KMS, "by_default": "AES256"}, "differs", "the store's own (AES256)"),
        ("k1", {"by_default": "none", "of_object": "none"}, "differs", "none (none)"),
        ("k1", {**BOTH, "by_default_key": "alias/people"}, "unknown", "may be an alias of such a key"),
        ("alias/people", BOTH, "unknown", "may be an alias of such a key"),
        ("k1", {"unknown": "get_bucket_encryption: AccessDenied"}, "unknown", "AccessDenied"),
        ("k1", {**BOTH, "of_object": None, "unknown": "head_object: 403"}, "unknown", "head_object: 403"),
    ],
)
def test_by_which_key(policies, key, facts, expected, said):
    """Both new objects and one that is there go by a key that is named; what the store does not say is never met."""
    found = state(policies(key).demands, "key", **facts)
    assert (found[0], said in found[1], found[2]) == (expected, True, expected != "met")


@pytest.mark.parametrize(
    ("what", "facts", "expected", "said"),
    [
        ("encryption", KMS, "met", "aws:kms"),
        ("encryption", {**KMS, "of_object": "none"}, "differs", "an existing object"),
        ("encryption", {**KMS, "by_default": "none"}, "differs", "new objects"),
        ("encryption", {**KMS, "of_object": None}, "unknown", "the store says nothing"),
        ("region", {"region": "eu-west-1"}, "met", "eu-west-1"),
        ("region", {"region": "us-east-1"}, "differs", "us-east-1"),
        ("region", {"unknown": "get_bucket_location: 403"}, "unknown", "403"),
    ],
)
def test_whether_and_where(policies, what, facts, expected, said):
    """Encryption by whichever key; one of the regions."""
    found = state(policies().demands, what, tables=["logs"], **facts)
    assert (found[0], said in found[1]) == (expected, True)


def test_a_place_is_asked_for_the_tables_that_it_holds(policies):
    """A share of other tables has nothing to meet; what differs comes first."""
    held = [
        StoragePlace(Posture("spool", "s3", region="eu-west-1", **KMS), frozenset({"steps"})),
        StoragePlace(Posture("lake", "s3", region="us-east-1", **KMS), frozenset({"logs", "events", "steps"})),
    ]
    found = verdicts(policies().demands, held, CONTRACTS)
    assert [(one.place, one.what, one.state) for one in found] == [
        ("lake", "region", "differs"),
        ("lake", "encryption", "met"),
    ]
    assert found[0].tables == ("events", "logs")
    assert "region of lake (events, logs) is to be eu-central-1 or eu-west-1, and is us-east-1" in found[0].text


def test_a_local_disk_is_unknown_to_doctor_and_page(site, policies, tmp_path, monkeypatch):
    """Neither says that all is well: encryption and region of a local disk are unknown, with the reason."""
    made = policies()
    found = verdicts(made.demands, places(site.lake.tables, CONTRACTS), CONTRACTS)
    assert {(one.state, "a local disk" in one.found) for one in found} == {("unknown", True)}
    assert len(found) == 4
    text = render(section(compliance(site.lake, made, {}, "", {})).pages[0]).decode()
    assert "europe: region of lake is unknown" in text
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.lake.uri}"\n[retention]\npolicies = "policies.yaml"\n'
    )
    lines = list(vouching.placement(Patient(load_config())))
    assert {(one.state, one.what.startswith("not known: ")) for one in lines} == {("skipped", True)}
    assert all("local disk" in one.what and one.remedy for one in lines)
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{site.lake.uri}"\n')
    assert "no policy demands" in next(vouching.placement(Patient(load_config()))).what
