"""The agent's page: what watch shows, on loopback, to whoever has its address, while somebody looks."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from live_child import Child

from ranklake import live_page
from ranklake.capture.node.endpoint import Endpoint
from ranklake.live_page import NOTHING_YET, Follower, LivePage


def get(url):
    """Return what an address answers."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.headers, answer.read()


def looked(url, run="", after=-1):
    """Return the number and the facts of a look."""
    told = json.loads(get(f"{url}live?run={run}&after={after}")[1])
    return told["count"], told["facts"]


def summarize(page, run):
    """Return the facts of a page's look, once there are some: a process takes its time to begin."""
    while (facts := json.loads(page._look({"run": [run]}))["facts"]).get("error") == NOTHING_YET:
        pass
    return facts


@pytest.fixture
def page(place):
    """Give a page of a local spool and its address."""
    with contextlib.closing(LivePage(place.local)) as made, Endpoint(0, made.answer) as endpoint:
        yield made, made.url(endpoint.port)


def test_only_who_has_the_token_is_answered(page):
    """Without it, with another, or for another file: not found. With it: the page, its own scripts, and no others."""
    made, url = page
    root = url.rsplit("/", 2)[0]
    headers, body = get(url)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"connect-src 'self'" in body
    assert b'<tbody id="ranks">' in body
    for name in ("shell.css", "shell.js", "live.js"):
        assert get(url + name)[1]
    for other in (f"{root}/", f"{root}/x/", f"{root}/x/live", f"{url}../", f"{url}heat.js", f"{url}live/x", "//"):
        with pytest.raises((urllib.error.HTTPError, ValueError), match=r"404|unknown url"):
            get(other)
    assert made.answer("relative") is None
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{root}/%00é".encode("ascii", "backslashreplace").decode())


@pytest.mark.slow
def test_each_step_is_told_without_the_rank_doing_anything(page, place):
    """A look that began after a step ended has it; the next look is waited for; the run's end is told."""
    _, url = page
    child = Child(place)
    count, seen = -1, []
    for number in range(3):
        ended = child.record(number)
        while True:
            count, facts = looked(url, after=count)
            if facts.get("time_ns", 0) > ended:
                break
        seen.append(facts["step"])
    assert seen == [0, 1, 2]
    assert facts["state"] == "runs"
    child.close()
    while facts["state"] not in {"ended", "sent"}:
        count, facts = looked(url, after=count)


@pytest.mark.slow
def test_who_asks_no_more_ends_what_follows_and_too_many_runs_are_refused(place, monkeypatch):
    """The process that decodes lives while it is asked; no run and odd names are said; a fifth run is refused."""
    monkeypatch.setattr(live_page, "IDLE_S", 0.5)
    child = Child(place)
    child.record(0)
    with contextlib.closing(LivePage(place.local)) as made:
        assert summarize(made, "li")["run"] == "live"
        followed = made._followers["li"]
        deadline = time.monotonic() + 60
        while followed.ended_at == float("inf") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert followed._process.poll() is not None
        assert "no run 'nobody'" in summarize(made, "nobody")["error"]
        assert summarize(made, "--help")["error"]
        assert json.loads(made._look({"run": ["../x"]})) == {"error": "no name of a run"}
        monkeypatch.setattr(live_page, "IDLE_S", 600)
        monkeypatch.setattr(live_page, "MOST_RUNS", 1)
        made._followers = {"l": Follower(place.local, "l")}
        assert "followed already" in json.loads(made._look({"run": ["liv"]}))["error"]
    child.close()


@pytest.mark.slow
def test_the_agent_tells_the_address_and_serves_it(place, tmp_path):
    """`agent --page-port` says where its page is, and answers there until it ends."""
    child = Child(place)
    child.record(0)
    with Endpoint(0, {}.get) as free:
        port = free.port
    arguments = ["agent", "--page-port", str(port), "--no-sample", "--json", "--local-dir", str(place.local)]
    with subprocess.Popen([sys.executable, "-m", "ranklake", *arguments], stdout=subprocess.PIPE, text=True) as process:
        url = json.loads(process.stdout.readline())["page"]
        while "run" not in (facts := looked(url)[1]):
            assert facts["error"] == NOTHING_YET
        assert facts["run"] == "live"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    child.close()
