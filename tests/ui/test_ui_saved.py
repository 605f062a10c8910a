"""Saved views: names for addresses, each with its history, of one role each; nothing without --write."""

import html
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest
from hidden_run import READER, TABLES
from hostile_lake import HOSTILE, MARKER
from ui_client import asking

from ranklake.insight import saved_views
from ranklake.insight.saved_views import FOLDER, SavedChange, load_views, save_view
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.ui.annotate import Annotator
from ranklake.ui.saved import SAVED_HOME
from ranklake.ui.viewers import Viewer

pytestmark = pytest.mark.leaky("a client keeps its event loop")
PAGE = f"/{SAVED_HOME}"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"}
VIEW = "run=alpha-1&metric=loss&x=step"


class AsRole:
    """Viewers who are all one, by name."""

    def __init__(self, role, name="eve@example.com"):
        self.viewer = Viewer(role, name)

    def viewer_of(self, _request):
        """Return who looks."""
        return self.viewer


@pytest.fixture
def lake(tmp_path):
    """Give a lake without a run: views name what they like."""
    return Lake.create(str(tmp_path / "lake"))


def taking(lake, role=None, **given):
    """Give a client of a server that takes what viewers write."""
    viewers = None if role is None else AsRole(role, **given)
    return asking(lake, viewers=viewers, annotator=Annotator(lambda *_: None))


def token_of(client):
    """Return the token in the forms of the page of a view."""
    return re.search('name="token" value="([0-9a-f]+)"', client.get(f"{PAGE}?{VIEW}").text)[1]


def say(client, action, name, token=None, headers=None, **more):
    """Send a form."""
    form = {"token": token_of(client) if token is None else token, "action": action, "name": name, **more}
    return client.post(PAGE, content=urlencode(form), headers={**FORM, **(headers or {})})


def listed(client):
    """Return names and addresses of the list of views."""
    table = client.get(PAGE).text.partition('<table id="saved"')[2].partition("</table>")[0]
    rows = re.findall('<th scope="row"><a href="([^"]*)">([^<]*)</a>', table)
    return {html.unescape(name): html.unescape(href) for href, name in rows}


def test_a_view_is_saved_opened_renamed_deleted_and_brought_back(lake):
    """Its address opens the same view; nothing of its history is lost."""
    with taking(lake) as client:
        assert say(client, "save", "losses", query=VIEW).status_code == 303
        assert (
            say(client, "save", "by SQL", of="ask", query=urlencode({"sql": "SELECT 1", "chart": "bar"})).status_code
            == 303
        )
        assert listed(client) == {
            "by SQL": "../ask/index.html?sql=SELECT+1&chart=bar",
            "losses": f"../explore/index.html?{VIEW}",
        }
        opened = client.get(f"/saved/{listed(client)['losses']}").text
        assert 'value="alpha-1" checked' in opened
        assert "SELECT 1</textarea>" in client.get(f"/saved/{listed(client)['by SQL']}").text
        say(client, "save", "losses", query=f"{VIEW}&log=on")
        assert listed(client)["losses"].endswith("log=on")
        say(client, "rename", "losses", other="nights")
        assert set(listed(client)) == {"by SQL", "nights"}
        taken = say(client, "rename", "nights", other="by SQL")
        assert (taken.status_code, "there is a view called" in taken.text) == (400, True)
        say(client, "delete", "nights")
        assert set(listed(client)) == {"by SQL"}
        assert say(client, "delete", "nights").status_code == 400
        history = client.get(PAGE).text.partition('<table id="history"')[2]
        assert [word in history for word in ("nights deleted", "losses renamed to", "log=on")] == [True] * 3
        say(client, "save", "losses", query=VIEW)
        assert listed(client)["losses"] == f"../explore/index.html?{VIEW}"
    assert len(load_views(lake.store).history("")) == 7


def test_by_default_nothing_is_taken(lake):
    """Views that were saved are shown; no form, no link, whatever is sent."""
    with taking(lake) as client:
        say(client, "save", "losses", query=VIEW)
    with asking(lake) as client:
        text = client.get(f"{PAGE}?{VIEW}").text
        assert "losses" in text
        assert "<form" not in text
        assert client.post(PAGE, content="name=x", headers=FORM).status_code == 405
        assert "Save the view" not in client.get("/explore/").text


def test_a_role_has_names_of_its_own(lake):
    """Another's names, addresses and history are nowhere; nobody renames or deletes what another role saved."""
    with taking(lake) as client:
        say(client, "save", "canary", query="run=beta")
    roles = [
        Role(name, frozenset(READER["classes"]), frozenset(TABLES), runs=READER["runs"]) for name in ("reader", "other")
    ]
    with taking(lake, roles[0]) as client:
        assert "canary" not in client.get(PAGE).text
        assert "beta" not in client.get(PAGE).text
        assert say(client, "delete", "canary").status_code == 400
        assert say(client, "rename", "canary", other="mine").status_code == 400
        assert say(client, "save", "canary", query=VIEW).status_code == 303
        assert "eve@example.com" not in client.get(PAGE).text  # names of people are not for this role
    with taking(lake, roles[1]) as client:
        assert listed(client) == {}
    with taking(lake) as client:
        assert listed(client) == {"canary": "../explore/index.html?run=beta"}


def test_only_the_viewers_own_forms_are_taken(lake):
    """Not another site's, not another viewer's, not one that is too long."""
    with taking(lake) as client:
        token = token_of(client)
        evil = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert say(client, "save", "x", token, evil, query=VIEW).status_code == 403
        assert say(client, "save", "x", "", query=VIEW).status_code == 403
        assert say(client, "save", "x", token, query=f"run={'y' * 100_000}").status_code == 400
        assert say(client, "save", "x", token, query=f"run={'y' * 10_000}").status_code == 400
        assert say(client, "save", "x", token, query="&".join(f"run={n}" for n in range(700))).status_code == 400
        assert say(client, "save", "x", token, query="").status_code == 400
        assert say(client, "drop", "x", token, query=VIEW).status_code == 400
        assert listed(client) == {}
    with taking(lake, Role("reader", frozenset(), frozenset())) as client:
        assert say(client, "save", "x", token, query=VIEW).status_code == 403


@pytest.mark.parametrize("name", [HOSTILE, "", "   ", "x" * 121, "a\nb", "\u202eabc", "a\x00b"])
def test_a_name_that_cannot_be_shown_is_refused(lake, name):
    """In one line, without it."""
    with taking(lake) as client:
        answer = say(client, "save", name, query=VIEW)
        assert (answer.status_code, "a view cannot have this name" in answer.text) == (400, True)


def test_hostile_names_and_addresses_stay_text(lake):
    """Markup in a name, an address of another scheme or page: shown as text, and no link leads out."""
    name, query = (
        f"<script>{MARKER}(1)</script>\"' onx={MARKER}",
        urlencode({"run": HOSTILE, "find": f"javascript:{MARKER}"}),
    )
    with taking(lake) as client:
        assert say(client, "save", name, query=query).status_code == 303
        assert say(client, "save", "out", of="https://evil.example", query=VIEW).status_code == 400
        assert client.get(f"{PAGE}?of=javascript:alert(1)&x=1").status_code == 400
        text = client.get(f"{PAGE}?{query}").text
        assert list(listed(client)) == [name]
        assert client.get(f"/saved/{listed(client)[name]}").status_code in {200, 400, 404}
    hrefs = re.findall('href="([^"]*)"', text)
    assert [href for href in hrefs if not href.startswith(("../", "#", "data:,"))] == []
    for forbidden in (f"<script>{MARKER}", f"<img src=x onerror={MARKER}", "\"' onx", "\x1b", "\u202e", "\x00"):
        assert forbidden not in text


def test_many_who_save_at_once_lose_nothing(lake):
    """Two tabs, eight threads: all are there, in one file; few older files stay."""
    with taking(lake) as client:
        token = token_of(client)
        with ThreadPoolExecutor(8) as many:
            answers = list(
                many.map(lambda n: say(client, "save", f"view {n}", token, query=f"{VIEW}&smooth={n}"), range(16))
            )
        assert {answer.status_code for answer in answers} == {303}
        assert set(listed(client)) == {f"view {n}" for n in range(16)}
    assert len(lake.store.fs.ls(lake.store.path(FOLDER), detail=False)) <= 3


def test_a_save_that_others_overtake_is_made_again(lake, monkeypatch):
    """Others save and delete so much after it has looked that the number it took is free once more."""
    store, at = lake.store, datetime(2026, 3, 1, tzinfo=UTC)
    looks, load = [], saved_views.load_views

    def change(name):
        return SavedChange(role="", name=name, page="explore.html", query=(("x", "step"),), at=at)

    def looked(store):
        views = load(store)
        looks.append(views.number)
        if len(looks) == 1:
            for number in range(6):
                save_view(store, change(f"other {number}"))
        return views

    monkeypatch.setattr(saved_views, "load_views", looked)
    save_view(store, change("mine"))
    assert set(load(store).current("")) == {"mine", *(f"other {number}" for number in range(6))}


def test_a_look_whose_files_go_meanwhile_looks_again(lake, monkeypatch):
    """Others save and delete between the listing and the reading: what is read is the newest, not nothing."""
    store, at, listing = lake.store, datetime(2026, 3, 1, tzinfo=UTC), saved_views.file_numbers
    save_view(store, SavedChange(role="", name="first", page="explore.html", query=(), at=at))
    looks = []

    def listed_before(*asked):
        numbers = listing(*asked)
        looks.append(numbers)
        if len(looks) == 1:
            for number in range(6):
                save_view(store, SavedChange(role="", name=f"{number}", page="explore.html", query=(), at=at))
        return numbers

    monkeypatch.setattr(saved_views, "file_numbers", listed_before)
    assert set(load_views(store).current("")) == {"first", *"012345"}


def test_a_damaged_file_and_a_full_one_lose_no_view(lake, monkeypatch):
    """The file before counts; older changes go before a view does, and beyond that nothing more is taken."""
    with taking(lake) as client:
        for n in range(3):
            say(client, "save", f"view {n}", query=VIEW)
        last = max(lake.store.fs.ls(lake.store.path(FOLDER), detail=False))
        lake.store.fs.pipe_file(last, b"{")
        assert set(listed(client)) == {"view 0", "view 1"}
        monkeypatch.setattr(saved_views, "MOST_BYTES", 1_500)
        for _ in range(20):
            assert say(client, "save", "view 1", query=VIEW).status_code == 303
        assert set(listed(client)) == {"view 0", "view 1"}
        answers = [say(client, "save", f"more {n}", query=VIEW).status_code for n in range(10)]
        assert set(answers) == {303, 400}
        assert {"view 0", "view 1"} <= set(listed(client))
