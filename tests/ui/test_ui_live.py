"""What `ranklake ui` shows of runs that record on this machine: each step, and only whoever may see all."""

import json
import threading
import urllib.request
from types import SimpleNamespace

import pytest
from live_child import Child
from recorded_runs import lake_of_runs
from ui_client import asking, ui_server

from ranklake.capture.sealing.keys import SealingKeys
from ranklake.ui import live as live_module
from ranklake.ui.live import LiveRuns

pytestmark = [pytest.mark.slow, pytest.mark.leaky("a client keeps its event loop")]


@pytest.fixture
def places(tmp_path):
    """Give a spool and a local spool."""
    return SimpleNamespace(spool=tmp_path / "spool", local=tmp_path / "local")


def events_of(answer):
    """Yield name and data of each server-sent event."""
    name = ""
    for line in answer:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def test_each_step_comes_by_itself(tmp_path, places):
    """A real process records, another serves: steps in order, then the end; a second listener gets the same."""
    lake, child = lake_of_runs(tmp_path), Child(places)
    child.record(0)
    with ui_server(lake, environment={"RANKLAKE_LOCAL_SPOOL": str(places.local)}) as url:
        with urllib.request.urlopen(f"{url}events?run=live", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            seen = events_of(answer)
            for number in range(3):
                if number:
                    child.record(number)
                assert next(facts for name, facts in seen if name == "run" and facts["step"] == number)
            with urllib.request.urlopen(f"{url}events", timeout=60) as other:
                assert next(events_of(other))[1]["step"] == 2
            child.close()
            assert next(facts for name, facts in seen if name == "none" or facts["state"] in {"ended", "sent"})
        with urllib.request.urlopen(f"{url}live/", timeout=60) as answer:
            assert b"live.js" in answer.read().replace(b"live-", b"live.js")


def test_a_run_is_followed_by_its_whole_name_alone(places, monkeypatch):
    """The beginning of a name is another run's page; nobody, odd names, no spool: nothing."""
    monkeypatch.setattr(live_module, "EVERY_S", 0.0)
    live = LiveRuns(places.local, SealingKeys())
    assert live.look("live") is None
    assert live.page().facts() == {"runs": []}
    child = Child(places)
    child.record(0)
    assert json.loads(live.look("live"))["step"] == 0
    assert json.loads(live.look(""))["run"] == "live"
    assert live.page().facts() == {"runs": ["live"]}
    for name in ("liv", "nobody", "../x", "--help", "\x00", "a" * 10_000):
        assert live.look(name) is None
    child.close()
    live.close()


def test_files_are_let_go_of_and_few_runs_are_followed(places, monkeypatch):
    """Fifty who follow cost one look a time; what nobody follows is closed; beyond the bound a run is not followed."""
    child = Child(places)
    child.record(0)
    live = LiveRuns(places.local, SealingKeys())
    monkeypatch.setattr(live_module, "EVERY_S", 600.0)
    first = live.look("live")
    child.record(1)
    listeners = [threading.Thread(target=live.look, args=("live",)) for _ in range(50)]
    for one in listeners:
        one.start()
    for one in listeners:
        one.join()
    assert live.look("live") == first
    for bound, value in (("EVERY_S", 0.0), ("IDLE_S", 0.0), ("MOST_RUNS", 0)):
        monkeypatch.setattr(live_module, bound, value)
    threading.Event().wait(0.01)
    assert live.look("live") is None
    assert live._watched == {}
    child.close()


def test_hostile_names_are_text_on_the_live_page(tmp_path, places):
    """What an address says reaches no page: the script reads it, and writes text."""
    with asking(lake_of_runs(tmp_path), local=places.local) as client:
        answer = client.get("/live/?run=<script>alert(1)</script>")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
