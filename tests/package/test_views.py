"""Views: tables and JSON are drawn in one place, and facts are not."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ranklake.printable import printable, printable_name
from ranklake.views.json_output import json_text
from ranklake.views.table import TextColumn, numbers, table_lines

ROOT = Path(__file__).resolve().parents[2]


def test_columns_line_up():
    """Texts stand left, numbers right; a column grows with its cells, and no line ends in spaces."""
    columns = [TextColumn("name", 6), *numbers(["rows"], 6), TextColumn("what")]
    assert table_lines(columns, [("a", "1", ""), ("longer than that", "1,000,000", "x")]) == [
        "name                   rows  what",
        "a                         1",
        "longer than that  1,000,000  x",
    ]
    assert table_lines(columns[:2], [("a", "1"), ("b",)], gap=" | ", rule="-+-") == [
        "name   |   rows",
        "-------+-------",
        "a      |      1",
        "b",
    ]
    assert table_lines(columns[:1], [("a",)], has_head=False) == ["a"]


@dataclass(frozen=True)
class Inner:
    """A fact in a fact."""

    when: datetime


@dataclass(frozen=True)
class Outer:
    """A fact."""

    of: tuple[Inner, ...]


def test_facts_become_json():
    """Dataclasses are objects of their fields wherever they stand; a time is text."""
    facts = Outer((Inner(datetime(2026, 3, 1, tzinfo=UTC)),))
    assert json.loads(json_text({"outer": facts})) == {"outer": {"of": [{"when": "2026-03-01 00:00:00+00:00"}]}}


def test_names_are_stricter_than_text():
    """What is not to be seen is shown in names; in text it is what a script may need, such as a joiner."""
    assert (printable("a\u200db\x1b"), printable_name("a\u200db\x1b")) == ("a\u200db\\x1b", "a\\u200db\\x1b")


def test_commands_line_up_nothing_by_themselves():
    """Commands and the demo leave columns and JSON to the views."""
    for folder in ("commands", "demo"):
        for path in (ROOT / "src/ranklake" / folder).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not [word for word in ("json.dumps(", ".ljust(", ".rjust(") if word in text], path
