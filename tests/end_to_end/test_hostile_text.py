"""Hostile text in every text column of every table stays text: on pages, on terminals, in artifacts of flows."""

import contextlib
import io
import re
from html.parser import HTMLParser

import pytest
from hostile_lake import HOSTILE, MARKER, RUNS, hostile_lake

from ranklake.cli import run
from ranklake.flows.pages import table as markdown_table
from ranklake.lake.contracts.load import load_contracts

pytestmark = pytest.mark.leaky("commands keep scratch files for as long as their process, here the tests'")
SPACES = {"\n", "\u00a0", "\u202f"}
VIEWS = [
    ["runs"], ["runs", "--sort", "loss"], ["runs", "--json"],
    *(["show", name] for name in RUNS), ["show", RUNS[0], "--json"],
    ["compare", *RUNS], ["plot", RUNS[0], "loss"], ["media", RUNS[0]],
    ["check"], ["check", "--incidents"], ["quality", "held"], ["slo"], ["alerts", "list", "--history"],
    ["catalog"], ["catalog", "use"], ["catalog", "runs"], ["metric", "show"],
    ["retain", "list"], ["retain", "holds"], ["retain", "plan"], ["retain", "cost"], ["retain", "simulate"],
    ["erase", "list"], ["grants", "list"], ["approvals", "show"],
    ["status"], ["doctor"], ["rollup"], ["migrate", "plan"],
    *(["sql", f"SELECT * FROM {table}"] for table in sorted(load_contracts())),
]  # fmt: skip


class Elements(HTMLParser):
    """Elements of a page with their attributes, and what scripts hold that a browser would run."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.code, self._is_code = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):  # noqa: D102 - HTMLParser's
        self.elements.append((tag, dict(attributes)))
        self._is_code = tag == "script" and dict(attributes).get("type") != "application/json"

    def handle_endtag(self, tag):  # noqa: D102
        self._is_code = False

    def handle_data(self, data):  # noqa: D102
        self.code += data if self._is_code else ""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake whose every text column has hostile text in some rows."""
    return hostile_lake(tmp_path_factory.mktemp("hostile"))


def shown(*command):
    """Return what a command prints on both streams, and its exit code."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run(command)
    return printed.getvalue(), code


@pytest.mark.slow
def test_no_view_lets_a_terminal_be_moved(lake, tmp_path, monkeypatch):
    """Each view ends with a code of its own; its text has no control characters, and forges no line."""
    monkeypatch.chdir(tmp_path)
    hostile = 0
    for command in VIEWS:
        text, code = shown(*command, "--lake", lake.uri)
        assert code in {0, 1}, (command, text)
        assert not {one for one in text if not one.isprintable()} - SPACES, command
        assert not re.search(rf"^\W*{MARKER} forged", text, re.MULTILINE), command
        hostile += MARKER in text
    assert hostile > len(VIEWS) / 2


@pytest.mark.slow
def test_nothing_becomes_markup_on_any_page(lake, tmp_path, monkeypatch):
    """No page has an element, a handler, a script or an address that is not ranklake's own."""
    monkeypatch.chdir(tmp_path)
    text, code = shown("report", "--lake", lake.uri, "--out", str(tmp_path / "site"))
    assert code == 0, text
    pages = sorted((tmp_path / "site").rglob("*.html"))
    hostile = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        read = Elements(text)
        assert MARKER not in read.code, page
        for tag, attributes in read.elements:
            assert tag not in {"iframe", "object", "embed", "form", "base", "style"}, page
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (page, attributes)
            for name in ("src", "href"):
                address = attributes.get(name) or ""
                assert not re.match(r"(?!data:image/png;|data:,)[a-z][a-z0-9+.-]*:|//", address), (page, address)
        assert not {one for one in text if not one.isprintable()} - SPACES, page
        hostile += MARKER in text
    assert hostile > 10


def test_nothing_becomes_markdown_in_an_artifact(lake):
    """A cell of an artifact's table is one cell: no link, no picture, no further row or column."""
    (head, rule, row) = markdown_table(("a", "b"), [("x", HOSTILE)]).split("\n")
    assert [len(re.split(r"(?<!\\)\|", line)) for line in (head, rule, row)] == [4, 4, 4]
    assert not re.search(r"(?<!\\)[\[<`]", row)
