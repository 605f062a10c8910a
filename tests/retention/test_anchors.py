"""Anchors: a trail that was made anew, with heads to fit, is found by what a person signed of the true one."""

import json
import shutil

import pytest
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.retention.proposals.examination import AnchorError, anchor, verify_anchors

pytestmark = [needs_ssh_keygen]


class Place:
    """A lake with a witness, and the keys of lovelace, who may sign, and mallory, who may not."""

    def __init__(self, folder):
        self.folder, self.keys = folder, Keys(folder / "keys")
        self.keys.allow("lovelace")
        self.audit = AuditSection(witness=f"file:{folder / 'witness'}")
        self.lake = self.configured(Lake.create(str(folder / "lake")))

    def configured(self, lake):
        """Return a lake with the configuration."""
        return lake.configured(audit=self.audit, approvals=self.keys.section())

    def rows(self, *actors):
        """Write rows of the audit log."""
        for actor in actors:
            record(self.lake, actor, "hold.place", "x", "because")

    def anchor(self, name="lovelace"):
        """Sign the head."""
        return anchor(self.lake, None, str(self.keys.path(name)))

    @property
    def files(self):
        """Return the anchors."""
        return sorted((self.folder / "witness" / "anchors").glob("*.json"))


@pytest.fixture
def place(tmp_path):
    """Give a lake with two rows in its trail."""
    made = Place(tmp_path)
    made.rows("lovelace", "bob")
    return made


def test_an_anchor_holds_while_the_trail_grows(place):
    """What was signed is still so when rows come; each anchor is of its rows, and no name of a person is told."""
    assert place.anchor().rows == 2
    place.rows("eve")
    assert place.anchor().rows == 3
    found = verify_anchors(place.lake)
    assert (found.count, found.verified, found.faults) == (2, True, ())
    assert found.plain()["last"] == {"rows": 3, "at": found.last.at}
    assert "lovelace" not in json.dumps(found.plain())


@pytest.mark.slow
def test_a_trail_made_anew_is_found_though_its_heads_and_the_witness_fit(place):
    """Who may write both places and replaces the audit log leaves a whole one by all heads; the anchor tells."""
    place.anchor()
    shutil.rmtree(place.folder / "lake" / "tables" / "audit")
    shutil.rmtree(place.folder / "lake" / "audit")
    for path in (place.folder / "witness").iterdir():
        if path.name != "anchors":
            shutil.rmtree(path)
    place.lake = place.configured(Lake.open(place.lake.uri))
    place.rows("lovelace", "nobody", "lovelace")
    assert prove(place.lake).whole
    (fault,) = verify_anchors(place.lake).faults
    assert "row 1 of the audit log is not the one that was signed" in fault


def altered(path, change):
    """Change an anchor's body, under its name or under one that fits."""
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def test_what_was_altered_or_put_there_is_found(place, tmp_path):
    """An anchor that was changed, another lake's, and one by a key that may not sign do not hold; nothing is raised."""
    place.anchor()
    (path,) = place.files
    genuine = path.read_bytes()
    for raw in (genuine.replace(b'\\"rows\\": 2', b'\\"rows\\": 1'), b"{", b"[" * 100_000, genuine[:-9], b"\xff"):
        path.write_bytes(raw)
        found = verify_anchors(place.lake)
        assert len(found.faults) == 1
        assert found.last is None
    path.write_bytes(genuine)
    assert not verify_anchors(place.lake).faults
    other = Place(tmp_path / "other")
    other.keys = place.keys
    other.lake = other.configured(other.lake)
    other.rows("lovelace", "bob")
    other.anchor()
    shutil.copy(other.files[0], path.parent)
    assert ["of another lake" in one for one in verify_anchors(place.lake).faults] == [True]


def test_who_may_not_sign_makes_none(place):
    """A key that is not allowed, no witness, no keys and an empty trail are one line, and nothing is written."""
    cases = [
        (lambda: place.anchor("mallory"), "is not in"),
        (lambda: anchor(place.lake.configured(audit=AuditSection()), None, ""), "no second place"),
        (lambda: anchor(Lake.open(place.lake.uri).configured(audit=place.audit), None, ""), "could be verified"),
    ]
    for make, message in cases:
        with pytest.raises(RanklakeError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert not place.files


def test_a_place_out_of_reach_is_one_line(place):
    """A witness that cannot be written is told, and the lake stays as it was."""
    (place.folder / "witness" / "anchors").write_text("a file where the folder should be")
    with pytest.raises(RanklakeError) as caught:
        place.anchor()
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, AnchorError)
    assert prove(place.lake).rows == 2
