"""What the doctor says of receivers of alerts: whether any are named, whether URLs are there, who was not told."""

from datetime import UTC, datetime, timedelta

import pytest
from incident_rows import incident_row
from receivers import answer, serve
from rollup_inputs import append

from ranklake.config import load_config
from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.services import alerts
from ranklake.pipeline.alerts.stage import alerts_once

RULES = """
version: 1
rules: {died: {source: incidents, owner: o, summary: s}}
receivers: {first: {url: "env:FIRST_URL"}, second: {url: "file:/no/such/file"}}
heartbeat: {url: "env:BEAT_URL"}
routes: [{receivers: [first]}]
"""


@pytest.fixture
def config(lake, tmp_path, monkeypatch):
    """Give what reads the configuration of a lake, with a section on alerts."""
    monkeypatch.chdir(tmp_path)

    def read(section=""):
        (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n{section}\n')
        return load_config()

    return read


def findings(config):
    return [(each.state, each.what) for each in alerts(Patient(config))]


def test_a_site_where_nobody_is_told_is_told_so(config):
    assert findings(config()) == [("skipped", "nobody is told of alerts: name a receiver as notify under [alerts]")]


def test_each_url_that_is_missing_is_a_line(config, tmp_path, monkeypatch):
    (tmp_path / "alerts.yaml").write_text(RULES)
    monkeypatch.setenv("FIRST_URL", "json://127.0.0.1:1/token-nobody-sees")
    monkeypatch.setenv("BEAT_URL", " ")
    assert findings(config('[alerts]\nfile = "alerts.yaml"')) == [
        ("failed", "receiver second: /no/such/file: the URL cannot be read (No such file or directory)"),
        ("failed", "receiver heartbeat: $BEAT_URL: the URL is empty"),
    ]


def test_alerts_that_nobody_was_told_of_are_counted_until_somebody_is(config, lake, monkeypatch):
    start = datetime.now(UTC) - timedelta(minutes=10)
    times = {"start_ts": start, "last_ts": start, "detected_ts": start, "date": start.date()}
    append(lake, "incidents", [incident_row("h", kind="hang", lasts=None, **times)])
    settings = config('[alerts]\nnotify = "env:FIRST_URL"')
    url = "1 URL can be read; 'ranklake alerts send RECEIVER' tries one"
    for status, lines in (
        (404, ["1 alert that nobody was told of, such as run-hangs: receivers are lost"]),
        (200, []),
    ):
        with serve(answer(status)) as server:
            monkeypatch.setenv("FIRST_URL", f"json://127.0.0.1:{server.port}/")
            alerts_once(Context.of(settings))
        assert [words for _, words in findings(settings)] == [url, *lines]


def test_a_state_that_cannot_be_read_is_named(config, lake, monkeypatch):
    """It is what a round would go on after."""
    settings = config('[alerts]\nnotify = "env:FIRST_URL"')
    monkeypatch.setenv("FIRST_URL", "json://127.0.0.1:1/")
    assert lake.store.put_if_absent("alerts/9999999999.json", b'{"alerts":{}}')
    _, (state, what) = findings(settings)
    assert (state, "alerts/9999999999.json cannot be read" in what) == ("warning", True)
