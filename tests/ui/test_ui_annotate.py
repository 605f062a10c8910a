"""Annotate: rows with history by forms of a viewer's own pages, within the role's rights; read-only by default."""

import re
from urllib.parse import urlencode

import httpx
import pytest
from hidden_run import READER, lake_with_a_hidden_run
from hostile_lake import HOSTILE, MARKER
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append
from ui_client import asking, ui_server

from ranklake.cli import run
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.ui.annotate import ANNOTATE_HOME, Annotator
from ranklake.ui.viewers import Viewer

pytestmark = pytest.mark.leaky("a client keeps its event loop")
PAGE = f"/{ANNOTATE_HOME}"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"}


class AsRole:
    """Viewers who are all one, by name."""

    def __init__(self, role, name="eve"):
        self.viewer = Viewer(role, name)

    def viewer_of(self, _request):
        """Return who looks."""
        return self.viewer


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("annotated"))


@pytest.fixture
def taken():
    """Give what an annotator sent."""
    return []


@pytest.fixture
def annotator(taken):
    """Give an annotator that keeps what it sends."""
    return Annotator(lambda name, rows: taken.append((name, list(rows))))


def token_of(client, name="alpha-1"):
    """Return the token of the forms of a run's page."""
    return re.search('name="token" value="([0-9a-f]+)"', client.get(PAGE, params={"run": name}).text)[1]


def say(client, action, value="", name="alpha-1", token=None, **headers):
    """Send a form."""
    form = {"token": token_of(client) if token is None else token, "run": name, "action": action, "value": value}
    return client.post(PAGE, content=urlencode(form), headers={**FORM, **headers})


def test_each_action_is_a_row_as_on_the_command_line(lake, annotator, taken):
    """Name, tag, note, group, archive and their taking back; the author is who is logged in."""
    role = Role(
        "all", frozenset({"operational", "personal", "pseudonymous"}), frozenset({"annotations", "run_summary"})
    )
    with asking(lake, viewers=AsRole(role), annotator=annotator) as client:
        for action, value in (
            *(("name", "baseline"), ("tag", "keep"), ("tag", "night = owl"), ("untag", "keep"), ("note", "a note")),
            *(("group", "g1"), ("group", ""), ("archive", ""), ("restore", "")),
        ):
            answer = say(client, action, value)
            assert (answer.status_code, answer.headers["location"]) == (303, "index.html?run=alpha-1")
        text = client.get(PAGE, params={"run": "alpha-1"}).text
    rows = [row for _, (row,) in taken]
    assert {name for name, _ in taken} == {"alpha-1"}
    assert {(row["source"], row["author"]) for row in rows} == {("person", "eve")}
    told = [(row["kind"], row.get("key"), row.get("value") or row.get("text"), row.get("removed")) for row in rows]
    assert told == [
        *(("name", None, "baseline", None), ("tag", "keep", None, None), ("tag", "night", "owl", None)),
        *(("tag", "keep", None, True), ("note", None, "a note", None), ("tag", "group", "g1", None)),
        *(("tag", "group", None, True), ("tag", "archived", None, None), ("tag", "archived", None, True)),
    ]
    assert "In the spool" in text
    assert "night=owl" in text


def test_by_default_nothing_is_taken(lake):
    """No page, no link, no form, whatever is sent."""
    with asking(lake) as client:
        assert client.get(PAGE, params={"run": "alpha-1"}).status_code == 404
        assert client.post(PAGE, content="run=alpha-1", headers=FORM).status_code == 405
        assert "annotate" not in client.get("/runs/").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_another_site_cannot_send_a_form(lake, annotator, taken, headers, status):
    """Even with a good token."""
    with asking(lake, annotator=annotator) as client:
        assert say(client, "tag", "keep", **headers).status_code == status
        assert client.post("/explore/", content="x=1", headers=FORM).status_code == 405
        assert taken == []
        own = {"Sec-Fetch-Site": "same-origin", "Origin": "null"}  # as a browser has it under no-referrer
        assert say(client, "tag", "keep", **own).status_code == 303


def test_only_the_token_of_whoever_asks_is_good(lake, annotator, taken):
    """Not none, not another's, not that of the server before; a body without end is cut off."""
    with asking(lake, annotator=annotator) as client:
        other = token_of(client)
        assert say(client, "tag", "keep", token="").status_code == 403
        assert say(client, "tag", "keep", token="ä").status_code == 403
        assert say(client, "tag", "x" * 100_000).status_code == 400
        assert say(client, "drop", "keep").status_code == 400
        assert say(client, "note", " \n ").status_code == 400
        assert say(client, "tag", "keep", name="nobody").status_code == 404
    with asking(lake, viewers=AsRole(None, "mallory"), annotator=annotator) as client:
        assert say(client, "tag", "keep", token=other).status_code == 403
    with asking(lake, annotator=Annotator(lambda *_: None)) as client:
        assert say(client, "tag", "keep", token=other).status_code == 403
    assert taken == []


def test_a_role_writes_of_what_it_sees_alone(lake, annotator, taken):
    """Not of a run that is hidden, which is not there; nothing where it does not see annotations or their values."""
    seen = Role("reader", frozenset(READER["classes"]), frozenset({"run_summary", "annotations"}), runs=READER["runs"])
    with asking(lake, viewers=AsRole(seen), annotator=annotator) as client:
        assert say(client, "tag", "keep").status_code == 303
        hidden = say(client, "tag", "keep", name="beta")
        assert (hidden.status_code, "beta" in hidden.text) == (404, False)
        assert client.get(PAGE, params={"run": "beta"}).status_code == 404
    for tables, classes in (({"run_summary"}, {"operational"}), ({"run_summary", "annotations"}, set())):
        blind = Role("blind", frozenset(classes), frozenset(tables))
        with asking(lake, viewers=AsRole(blind), annotator=annotator) as client:
            assert client.get(PAGE, params={"run": "alpha-1"}).status_code in {403, 404}
    assert len(taken) == 1


def test_hostile_annotations_stay_text(tmp_path, annotator):
    """In the forms, in what is on its way, and in the history."""
    lake = lake_with_a_hidden_run(tmp_path)
    append(lake, "annotations", [
        {"run": "alpha-1", "incarnation": 10, "slot": slot, "ts": NOON, "kind": kind, "key": HOSTILE, "value": HOSTILE,
         "text": HOSTILE, "author": HOSTILE, "source": HOSTILE}
        for slot, kind in enumerate(("tag", "name", "note", "summary"))
    ])  # fmt: skip
    with asking(lake, annotator=annotator) as client:
        say(client, "tag", f"<script>{MARKER}(7)</script>")
        text = client.get(PAGE, params={"run": "alpha-1"}).text
    assert MARKER in text
    for forbidden in (f"<script>{MARKER}", f"<img src=x onerror={MARKER}", "\x1b", "\u202e", "\x00"):
        assert forbidden not in text


def test_an_archived_run_is_offered_to_who_searches_for_it(tmp_path):
    """Explore leaves it out, but for its tag."""
    lake = lake_with_a_hidden_run(tmp_path)
    append(lake, "annotations", [
        {"run": "alpha-3", "incarnation": 12, "ts": NOON, "kind": "tag", "key": "archived"}
    ])  # fmt: skip
    with asking(lake) as client:
        assert 'value="alpha-3"' not in client.get("/explore/").text
        assert 'value="alpha-3"' in client.get("/explore/?find=archived%3D").text


@pytest.mark.slow
def test_what_a_page_takes_is_in_the_lake_after_the_next_ingest(tmp_path, monkeypatch):
    """By `ranklake ui --write` on a lake and a spool as they are configured."""
    lake = lake_of_runs(tmp_path)  # no plan of a lake made by hand has touched its annotations
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    monkeypatch.setenv("RANKLAKE_SPOOL", str(tmp_path / "spool"))
    spool = {"RANKLAKE_SPOOL": str(tmp_path / "spool")}
    with ui_server(lake, "--write", environment=spool) as url, httpx.Client(base_url=url) as client:
        form = {"token": token_of(client), "run": "alpha-1", "action": "tag", "value": "keep"}
        answer = client.post(PAGE, content=urlencode(form), headers={"Content-Type": FORM["Content-Type"]})
        assert answer.status_code == 303
    run(["ingest"])
    rows = query(Lake.open(lake.uri), "SELECT key FROM annotations WHERE run = 'alpha-1' AND kind = 'tag'").to_pylist()
    assert {"key": "keep"} in rows
