"""Views: tables and JSON are drawn in one place, and facts are not."""

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from click.testing import CliRunner

from ranklake.capture.node.agent_metrics import PassResult
from ranklake.cli import SECTIONS, SUMMARIES, cli
from ranklake.commands.agent import pass_line
from ranklake.insight.diagnosis.critical_path import CriticalPath
from ranklake.insight.diagnosis.what_if import Slowdowns, StepTimes, Worker
from ranklake.printable import printable, printable_name
from ranklake.views.json_output import json_text
from ranklake.views.slowdowns import show_slowdowns
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import money_text

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
    assert json.loads(json_text({"outer": facts})) == {"outer": {"of": [{"when": "2026-03-01T00:00:00Z"}]}}


def test_names_are_stricter_than_text():
    """What is not to be seen is shown in names; in text it is what a script may need, such as a joiner."""
    assert (printable("a\u200db\x1b"), printable_name("a\u200db\x1b")) == ("a\u200db\\x1b", "a\\u200db\\x1b")


def test_commands_line_up_nothing_by_themselves():
    """Commands and the demo leave columns and JSON to the views."""
    for folder in ("commands", "demo"):
        for path in (ROOT / "src/ranklake" / folder).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            drawn = ("json.dumps(", ".ljust(", ".rjust(", "import textwrap", "from rich")
            assert not [word for word in drawn if word in text], path


def test_facts_know_nothing_of_how_they_are_shown():
    """What gathers facts imports no view, so that pages and programs may have them, too."""
    gathered = ["lake_state.py", "catalog_facts.py", "artifacts.py", "demo/facts.py"]
    for path in (ROOT / "src/ranklake" / name for name in gathered):
        assert "from ranklake.views" not in path.read_text(encoding="utf-8"), path


def test_slowdowns(capsys):
    """Parts of a run stand slowest first, workers as numbers, or as shades where they are many; names forge no line."""
    workers = [Worker(dp, dp, 0, 1.0 + dp / 10) for dp in range(3)]
    facts = Slowdowns(
        run="r\x1b[2J", attempt=0, s=1.25, by_kind={"forward": 1.2, "optimizer": 1.0}, by_stage={0: 1.25},
        by_dp_rank={2: 1.2, 1: 1.1, 0: 1.0}, by_worker=workers, m_w=None, m_s=None, worst_ranks=[2],
        per_step={4: 1.0, 5: 1.5}, step_time_s=StepTimes(1.5, 1.25, 0.001), notes=["clocks differ [a]"],
        critical_path=CriticalPath({"forward": 1.0, "optimizer": 0.0}, {0: 1.0}, {2: 0.5, 0: 0.5}, []),
    )  # fmt: skip
    show_slowdowns(facts)
    assert capsys.readouterr().out.splitlines() == [
        "run r\\x1b[2J, attempt 0: 2 steps, 3 data-parallel ranks, 1 stage",
        "note: clocks differ [a]",
        "S    1.2500  a step takes 1.25 s without launch delays, 1 ms ideal; recorded were 1.5 s",
        "M_W  unknown  of the slowdown goes if rank 2 alone is ideal",
        "path rank 2 holds 50.0 % of the steps' critical path; by kind of operation forward 100.0 %",
        "operations, slowest first  slowdown",
        "forward                      1.2000",
        "optimizer                    1.0000",
        "data-parallel rank, slowest first  slowdown",
        "2                                    1.2000",
        "1                                    1.1000",
        "0                                    1.0000",
        "step, slowest first  slowdown",
        "5                      1.5000",
        "4                      1.0000",
        "operations  of the critical path",
        "forward                  100.0 %",
        "optimizer                  0.0 %",
        "rank  of the critical path",
        "2                   50.0 %",
        "0                   50.0 %",
        "workers dp 0 dp 1 dp 2",
        "stage 0 1.00 1.10 1.20",
    ]
    many = [Worker(dp, dp, 0, 1.0 + dp / 10) for dp in range(13)]
    show_slowdowns(replace(facts, by_worker=many, by_dp_rank=dict.fromkeys(range(13), 1.0)))
    assert "stage 0  ▒▓▓▓████████" in capsys.readouterr().out.splitlines()


def test_a_look_of_the_agent():
    """A look of the agent is one line, without what there was none of."""
    assert pass_line(PassResult(segments=3, rows=1200)) == "0 streams adopted, 3 segments uploaded, 1,200 rows"
    told = pass_line(PassResult(packs=1, left=2, alive=3, foreign=4, others=5))
    assert told.endswith(
        ", in 1 pack; 2 segments waiting for the spool; 3 streams still written; "
        "4 streams meant for another spool; 5 streams of other users"
    )


def test_money_is_told_to_the_cent():
    """Less than half a cent is not nothing, and not seven digits either; from ten thousand on cents are noise."""
    amounts = (0.0, 0.0002171, -0.0002, 0.0104, 12.345, -3.5, 9_999.5, 12_345.6, None)
    shown = ["0.00", "< 0.01", "> -0.01", "0.01", "12.35", "-3.50", "9,999.50", "12,346", "unknown"]
    assert [money_text(amount) for amount in amounts] == shown


def test_the_help_lists_each_command_once():
    """No command is missing under the headings, and none stands there that is no command."""
    listed = [name for names in SECTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(SUMMARIES)
    help_text = CliRunner().invoke(cli, ["--help"]).output
    assert [len(re.findall(rf"^  {name} ", help_text, re.MULTILINE)) for name in SUMMARIES] == [1] * len(SUMMARIES)
