"""`ranklake ui`: every address of the report, as the lake is now, and nothing of it for who must not see it."""

import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hidden_run import PLANTED, READER, TABLES, lake_with_a_hidden_run
from hostile_lake import MARKER, hostile_lake
from rollup_inputs import NOON, append
from ui_client import addresses, asking, context_of

from ranklake.insight.runs.report import runs_state
from ranklake.lake.query.roles import Role
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.ui import pages as pages_module
from ranklake.ui.explore import FORMS
from ranklake.ui.guard import host_name
from ranklake.ui.pages import Pages, navigation
from ranklake.views.html import run_pages
from ranklake.views.html.shell import Served, render

pytestmark = pytest.mark.leaky("a client keeps its event loop")
HIDDEN = run_pages.href("beta")
SEEN = run_pages.href("alpha-1")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("served"))


@pytest.fixture
def at_once(monkeypatch):
    """Have the server look at the tables' versions whenever somebody asks."""
    monkeypatch.setattr(pages_module, "FRESH_S", 0.0)


def summary_of(run, begun):
    """Return the row of a run that did nothing."""
    counts = dict.fromkeys(("non_finite_steps", "checkpoints", "wall_ns", "stragglers", "rank_steps"), 0)
    return {"run": run, "ts": begun, "end_ts": begun, "status": "finished", **counts}


def main_of(text):
    """Return what a page shows between header and footer."""
    main = text.partition("<main")[2].partition("</main>")[0]
    of_server = '<p class="hint" id="views".*?</p>\n|<p class="hint" id="newer".*?</section>\n'
    return re.sub(of_server, "", main, flags=re.DOTALL)


@pytest.mark.slow
def test_every_address_is_there_and_says_what_the_report_says(lake):
    """Each section, each of its pages, each asset; a run's page and a section's are the report's, word for word."""
    with asking(lake) as client:
        known = addresses(client)
    assert {path: answer.status_code for path, answer in known.items() if answer.status_code != 200} == {}
    assert {name for name, _, _ in navigation(None)} == set(SECTIONS)
    assert set(SECTIONS) <= {path.split("/")[0] for path in known}
    assert {SEEN, HIDDEN, "assets/site.js", "quality/table-steps.html"} <= set(known)
    run = next(page for page in run_pages.section(runs_state(lake, has_roles=False)).pages if page.path == SEEN)
    assert main_of(known[SEEN].text) == main_of(render(run).decode())
    state = SECTIONS["serving"].make(context_of(lake), lake, "")
    assert main_of(known["serving/index.html"].text) == main_of(render(state.pages[0]).decode())
    titles = {name: section.make(context_of(lake), lake, "").title for name, section in SECTIONS.items()}
    assert {name: title for name, title, _ in navigation(None)} == titles


@pytest.mark.slow
def test_what_a_role_does_not_see_is_at_no_address(lake, tmp_path):
    """Of all addresses that there are for who sees all, too: not in pages, titles, errors, headers nor the search."""
    with asking(lake) as client:
        everything = addresses(client)
    role = Role("reader", frozenset(READER["classes"]), frozenset(TABLES), runs=READER["runs"])
    everything |= dict.fromkeys(("live/", "live/index.html", "events?run=beta", "events"))
    with asking(lake, role) as client:
        answers = addresses(client)
        answers |= {path: client.get(f"/{path}") for path in everything if path not in answers}
    text = {path: f"{answer.headers} {answer.text}".lower() for path, answer in answers.items()}
    assert {path: word for path in text for word in PLANTED if word in text[path].replace(path, "")} == {}
    assert answers[HIDDEN].status_code == 404
    assert answers[SEEN].status_code == 200
    assert "own/metric" in text[SEEN]
    assert "at version" not in "".join(text.values())
    assert {answers[path].status_code for path in ("live/", "live/index.html", "events?run=beta", "events")} == {404}
    assert any(word in everything[HIDDEN].text for word in PLANTED)  # or there was nothing to see


def test_a_role_that_sees_nothing_has_no_page(lake):
    """The home page is empty, sections are not there; no traceback."""
    with asking(lake, Role("none", frozenset(), frozenset())) as client:
        assert "card" not in main_of(client.get("/").text).replace('class="cards"', "")
        assert client.get("/runs/").status_code == 404
        assert client.get("/quality/").status_code == 404
        assert client.get(f"/{SEEN}").status_code == 404


def test_answers_tell_a_browser_to_keep_within_the_site(lake):
    """Pages, assets, refusals: no script but the site's, no frame, no guess at types; only reading, only this host."""
    with asking(lake) as client:
        answers = [client.get(path) for path in ("/serving/", "/nothing", "/assets/site.js", "/assets/nothing.js")]
        answers.append(client.post("/serving/"))
        answers.append(client.get("/serving/", headers={"Host": "evil.example"}))
        evil = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        answers.append(client.get("/assets/site.js", headers=evil))
        assert client.get("/serving/", headers={**evil, "Sec-Fetch-Mode": "navigate"}).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 404, 200, 404, 405, 421, 403]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.1:8412", "127.0.0.1"), ("[::1]:1", "::1"), ("Evil.example", "evil.example"), ("", "")]
)
def test_a_host_is_known_by_its_name(host, name):
    """With or without a port, as an address of either kind."""
    assert host_name(host) == name


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/..%2f..%2fetc/passwd", "/runs/../../ranklake.json", "/assets/../ranklake.json"),
        *("/assets/..%2fshell.py", "/assets/%2e%2e/templates/run.html", "/ranklake.json", "/tables/steps/"),
        *("/runs/run-' OR 1=1 --.html", "/runs/run-%00.html", "/runs/run-beta.html", "/quality/table-steps"),
    ],
)
def test_no_path_leads_elsewhere(lake, path):
    """Neither to a file of the lake, nor of the package, nor of the machine."""
    with asking(lake) as client:
        answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert '"format"' not in answer.text


@pytest.mark.slow
def test_hostile_text_stays_text_at_every_address(tmp_path):
    """Names of runs, labels, messages with markup, escapes and directions: no page has an element or script of it."""
    lake = hostile_lake(tmp_path)
    append(lake, "run_summary", [summary_of(f"<img src=x onerror={MARKER}(9)>", NOON)])
    with asking(lake) as client:
        known = addresses(client)
    assert any(MARKER in answer.text for answer in known.values())
    forms = (f"<script>{MARKER}", f"onerror={MARKER}(9)>", f"<img src=x onerror={MARKER}", "\x1b", "\u202e", "\x00")
    for path, answer in known.items():
        assert answer.status_code == 200, path
        if path.removeprefix("explore/") in FORMS and path != "explore/points.json":  # to be saved, names and all
            assert answer.headers["content-disposition"].startswith("attachment")
            continue
        for forbidden in forms:
            assert forbidden not in answer.text, f"{path}: {forbidden!r}"


def test_a_page_is_made_again_only_when_a_table_changed(tmp_path, at_once, monkeypatch):
    """Fifty who look at once cost one making; a commit of any process shows at the next look."""
    lake = lake_with_a_hidden_run(tmp_path)
    made, real = [], pages_module.run_questions
    monkeypatch.setattr(pages_module, "run_questions", lambda *args, **given: made.append(1) or real(*args, **given))
    with asking(lake) as client:
        with ThreadPoolExecutor(50) as viewers:
            texts = set(viewers.map(lambda _: client.get(f"/{SEEN}").text, range(50)))
        assert len(texts) == len(made) == 1
        tag = {"kind": "tag", "key": "night", "value": "owl"}
        append(lake, "annotations", [{"run": "alpha-1", "incarnation": 10, "ts": datetime.now(UTC), **tag}])
        assert "night" in client.get(f"/{SEEN}").text
        assert client.get(f"/{SEEN}").status_code == 200
    assert len(made) == 2


@pytest.mark.parametrize(("changes", "status", "made"), [(1, 200, 2), (9, 503, 3), (0, 500, 1)])
def test_a_page_is_made_anew_if_the_lake_changed_meanwhile(tmp_path, monkeypatch, changes, status, made):
    """A file that an erasure deletes while a query reads it is no fault; one of a lake that did not change is."""
    lake = lake_with_a_hidden_run(tmp_path)
    calls, real = [], pages_module.run_questions

    def questions(*args, **given):
        calls.append(1)
        if len(calls) <= changes:
            append(lake, "annotations", [{"run": "beta", "ts": NOON, "kind": "tag", "key": f"t{len(calls)}"}])
        if len(calls) <= changes or not changes:
            raise OSError("canary.parquet not found")
        return real(*args, **given)

    monkeypatch.setattr(pages_module, "run_questions", questions)
    with asking(lake) as client:
        answer = client.get(f"/{SEEN}")
    assert (answer.status_code, len(calls)) == (status, made)
    assert ("canary" in answer.text) == (not changes)
    assert ("load it again" in answer.text) == (status == 503)


def test_a_lake_that_goes_and_comes_back(tmp_path, at_once):
    """While it is gone, nothing that was kept is shown; the server goes on, and serves it when it is back."""
    lake = lake_with_a_hidden_run(tmp_path)
    place = tmp_path / "lake" if (tmp_path / "lake").exists() else None
    assert place is not None
    with asking(lake) as client:
        assert client.get(f"/{SEEN}").status_code == 200
        shutil.move(place, tmp_path / "elsewhere")
        gone = client.get(f"/{SEEN}")
        assert (gone.status_code, "cannot be read now" in gone.text) == (503, True)
        assert "adam" not in gone.text
        shutil.move(tmp_path / "elsewhere", place)
        assert client.get(f"/{SEEN}").status_code == 200


def test_a_bug_in_a_section_is_a_page_that_says_so(lake, monkeypatch):
    """The others are there, and it is tried again."""
    broken = SimpleNamespace(make=lambda *_: 1 / 0, make_for_role=None)
    monkeypatch.setattr(pages_module, "SECTIONS", {**SECTIONS, "slo": broken})
    with asking(lake) as client:
        assert "ZeroDivisionError" in client.get("/slo/").text
        assert client.get("/slo/").status_code == 500
        assert client.get("/serving/").status_code == 200


def test_a_section_is_made_once_for_all_who_ask_at_once(lake, monkeypatch):
    """Two of its pages, asked for together, cost one making."""
    made, both, real = [], threading.Barrier(2), SECTIONS["quality"]

    def make(*args):
        made.append(1)
        with suppress(threading.BrokenBarrierError):
            both.wait(2)
        return real.make(*args)

    mine = SimpleNamespace(make=make, make_for_role=None)
    monkeypatch.setattr(pages_module, "SECTIONS", {**SECTIONS, "quality": mine})
    with asking(lake) as client, ThreadPoolExecutor(2) as viewers:
        answers = viewers.map(client.get, ("/quality/", "/quality/table-steps.html"))
        assert [answer.status_code for answer in answers] == [200, 200]
    assert len(made) == 1


def test_what_is_known_comes_before_what_takes_long(lake, monkeypatch):
    """The headline and the figures of a run are sent while its curves are still asked for."""
    go, real = threading.Event(), run_pages.run_state
    monkeypatch.setattr(run_pages, "run_state", lambda *args, **given: go.wait(60) and real(*args, **given))
    pages = Pages(context_of(lake))
    try:
        draft = pages.draft(SEEN, None, Served(navigation(None)))
        while not draft.parts:
            assert not draft.is_whole, draft.error
            threading.Event().wait(0.01)
        first = b"".join(draft.parts).decode()
        assert "alpha-1" in first
        assert "goodput" in first
        assert 'class="chart"' not in first
        assert not draft.is_whole
    finally:
        go.set()
        pages.close()
    assert draft.error is None
    assert b'class="chart"' in b"".join(draft.parts)


@pytest.mark.slow
def test_every_one_of_ten_thousand_runs_has_a_page(tmp_path):
    """The list shows the latest; the oldest is at its address all the same."""
    lake = lake_with_a_hidden_run(tmp_path)
    append(lake, "run_summary", [summary_of(f"many-{n}", NOON - timedelta(seconds=n)) for n in range(10_000)])
    with asking(lake) as client:
        listed = client.get("/runs/").text
        assert "the latest 500 of 10,004" in listed
        assert client.get(f"/{run_pages.href('many-9999')}").text.count("many-9999") > 1
        assert client.get(f"/{run_pages.href('many-10000')}").status_code == 404
