"""Requested signals: filed into the user's own registry, which else stays as it is, to the byte."""

import threading
from pathlib import Path

import pytest

from ranklake.cli import run
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.contracts.model import Metric
from ranklake.lake.contracts.requests import file_request

OWN = """# Our own signals.
version: 1
metrics:
  # measured at the rack
  - {name: pdu/power, unit: W, kind: gauge, owner: power, sampling: interval, doc: "Power of a rack."}
  - name: pdu/phases   # a block
    unit: "1"
    kind: gauge
    owner: power
    sampling: run
    doc: "Phases: three."

# the end
"""


def request(overlay, name="queue/depth", **options):
    """Ask as a user does; return the exit code and what was said."""
    given = {"unit": "{request}", "why": 'Depth of the queue: "why # not".', "owner": "serving"} | options
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    return run(["request-signal", name, "--contracts", str(overlay), *words])


@pytest.fixture
def overlay(tmp_path):
    """Give an overlay with two metrics of the user's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "metrics.yaml").write_text(OWN)
    return folder


def test_a_request_is_filed_and_shown(overlay, capsys):
    """It stands behind the last entry; every other byte is as it was; the catalog shows it as requested."""
    assert request(overlay) == 0
    after = (overlay / "metrics.yaml").read_text()
    begin, end = OWN.split('"Phases: three."\n')
    assert after.startswith(begin)
    assert after.endswith(end)
    found = load_metrics(overlay)["queue/depth"]
    assert found == Metric(
        "queue/depth",
        "{request}",
        "gauge",
        "serving",
        "interval",
        'Depth of the queue: "why # not".',
        status="requested",
    )
    capsys.readouterr()
    assert run(["catalog", "queue/depth", "--contracts", str(overlay)]) == 0
    assert "requested" in capsys.readouterr().out
    assert sorted(path.name for path in overlay.iterdir()) == ["metrics.yaml"]


def test_a_credential_in_its_words_is_not_filed(overlay):
    """The registry's words become rows of the catalog, which all may read; asked again, it is the same request."""
    for _ in range(2):
        assert request(overlay, why="as https://me:hunter2@host/x?token=hunter2 shows", owner="a token=hunter2") == 0
    assert "hunter2" not in (overlay / "metrics.yaml").read_text()
    assert load_metrics(overlay)["queue/depth"].doc == "as https://[redacted]@host/x?token=[redacted] shows"


def test_asked_again_nothing_changes(overlay, capsys):
    """In the same words it is there already; in others it is refused with the place to edit."""
    assert request(overlay) == 0
    before = (overlay / "metrics.yaml").stat().st_mtime_ns
    assert request(overlay) == 0
    assert "was requested already" in capsys.readouterr().out
    assert request(overlay, owner="others") == 2
    assert "requested already, in '{request}' by serving" in capsys.readouterr().err
    assert (overlay / "metrics.yaml").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("train/loss", {}, "train/loss is a metric already, in '1', owned by training-platform; record it"),
        ("pdu/power", {}, "pdu/power is a metric already"),
        ("queue/depth", {"unit": "percent"}, "unit 'percent' is not SI"),
        ("queue/depth", {"kind": "ratio"}, "a ratio is of the kind ratio"),
        ("queue depth", {}, "queue depth"),
        ("queue/depth", {"why": " "}, "doc"),
    ],
)
def test_what_is_refused(overlay, capsys, name, options, said):
    """One line says what and how to mend it; the file is as it was."""
    assert request(overlay, name, **options) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert (overlay / "metrics.yaml").read_text() == OWN
    assert sorted(path.name for path in overlay.iterdir()) == ["metrics.yaml"]


def test_a_similar_name_is_shown(overlay, capsys):
    """It may be a slip, so it is filed and told."""
    assert request(overlay, "train/losses", unit="1") == 0
    assert "train/loss has a similar name" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["version: 1\nmetrics: []\n", "metrics: [] # none\nversion: 3\n", None])
def test_an_empty_registry_or_none(tmp_path, text):
    """The first entry makes the list, and the folder and file if need be."""
    folder = tmp_path / "new"
    if text is not None:
        folder.mkdir()
        (folder / "metrics.yaml").write_text(text)
    assert request(folder) == 0
    assert load_metrics(folder)["queue/depth"].status == "requested"


@pytest.mark.parametrize(
    "text", ["metrics: [{name: a}]\nversion: 1\n", "version: [\n", "version: 1\n", "- a\n", "\ttab"]
)
def test_a_file_that_cannot_be_added_to(tmp_path, capsys, text):
    """It is refused in a line, and left as it is."""
    (tmp_path / "metrics.yaml").write_text(text)
    assert request(tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert (tmp_path / "metrics.yaml").read_text() == text


def test_two_at_once(overlay):
    """Requests filed at the same time are all there."""
    wanted = [Metric(f"queue/depth{n}", "1", "gauge", "o", "run", "Why.", status="requested") for n in range(12)]
    threads = [threading.Thread(target=file_request, args=(overlay, one)) for one in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in wanted} <= set(load_metrics(overlay))


def test_without_an_overlay(tmp_path, monkeypatch, capsys):
    """Where no folder is configured, the line says how to name one."""
    monkeypatch.chdir(tmp_path)
    assert run(["request-signal", "a/b", "--unit", "1", "--why", "w", "--owner", "o"]) == 2
    assert "write overlay under [contracts]" in capsys.readouterr().err
    Path("ranklake.toml").write_text('[contracts]\noverlay = "own"\n')
    assert run(["request-signal", "a/b", "--unit", "1", "--why", "w", "--owner", "o"]) == 0
    assert "own/metrics.yaml" in capsys.readouterr().out
