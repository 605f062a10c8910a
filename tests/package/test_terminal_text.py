"""Numbers and letters of any size on a terminal: labels fit, columns stay in line, and why a rank is slow is told."""

from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from ranklake.insight.runs.asking import QueriedFacts
from ranklake.printable import duration, ranks_text
from ranklake.views.run_causes import why_slow
from ranklake.views.run_plot import curve_lines
from ranklake.views.table import TextColumn, fitting, table_lines
from ranklake.views.words import hours_text, number_text

NAMES = ["plain", "日本語の仕事", "e\u0301te\u0301", "עברית"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1e300, "1e+300"),
        (-3.2e15, "-3.2e+15"),
        (123_456.7, "123,457"),
        (0.00012345, "0.0001234"),
        (10**13, f"{10**13:,}"),
    ],
)
def test_a_number_is_as_long_as_somebody_reads(value, said):
    """A float of three hundred digits is told by four; a count stays whole."""
    assert number_text(value) == said


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0.0, "0\u00a0h"), (0.09228, "5.5 min"), (0.002, "7.2 s"), (1.0, "1\u00a0h"), (12_345.6, "12,346\u00a0h")],
)
def test_hours_of_a_small_lake_are_told_in_minutes(hours, said):
    """Nobody reads 0.09228 h."""
    assert hours_text(hours) == said


def test_labels_of_a_plot_fit_its_axis():
    """Of the largest and least numbers, too."""
    for values in ([1e300, 2e300], [1e-9, 2e-9], [-1e12, 5.0], [0.0, 1.5]):
        lines = curve_lines(values)
        assert {line.index(one) for line in lines for one in "┤│" if one in line} == {9}
    assert curve_lines([2e-9, 1e-9])[0].startswith("   2e-09 ┤")


def test_letters_of_two_columns_keep_a_table_in_line():
    """What follows a name begins at the same column of the terminal, and no line is wider than that."""
    lines = table_lines([TextColumn("name"), TextColumn("n")], [(name, "|") for name in NAMES])
    assert {cell_len(line.partition("|")[0]) for line in lines[1:]} == {14}
    for width in (8, 9, 13):
        cut = fitting([TextColumn("name")], [(name * 3,) for name in NAMES], width)
        assert all(cell_len(line) <= width for line in cut)


def facts(slow, *ranks):
    """Return what is known of a run whose ranks' phases are given."""
    rows = tuple({"rank": rank, "data": None, "optimizer": 0.01, **phases} for rank, phases in enumerate(ranks))
    summary = QueriedFacts("", ({"straggler_rank": slow},))
    return SimpleNamespace(summary=summary, ranks=QueriedFacts("", rows))


def test_why_a_rank_is_slow_is_the_phase_that_takes_it_longest_beside_the_others():
    """In seconds a step; nothing where nobody is slow, nothing is known, or no phase is longer."""
    usual = {"forward": 0.15, "backward": 0.25}
    told = why_slow(facts(1, usual, {"forward": 0.76, "backward": 0.3}))
    assert told == "Rank 1's forward takes 760 ms a step, the other rank's 150 ms"
    assert why_slow(facts(1, usual, {"forward": 0.76, "backward": 0.3}, usual)).endswith("the others' 150 ms")
    assert why_slow(facts(None, usual, usual)) == ""
    assert why_slow(facts(1, usual, usual)) == ""
    assert why_slow(facts(5, usual)) == ""


def test_ranks_that_are_left_out_of_a_sentence_are_counted():
    """Eight groups are named, three ranks or more in a row by their ends; the count says the rest."""
    assert ranks_text([0, 1, 3, 4, 5]) == "ranks 0, 1, 3 to 5"
    assert ranks_text(range(123)) == "ranks 0 to 122"
    assert ranks_text(range(0, 200, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, … (100)"


def test_a_length_of_time_has_the_unit_that_a_reader_expects():
    """Up to ten minutes seconds, or minutes where samples are a minute apart; then minutes, hours, days."""
    lengths_s = (0.5, 599, 600, 5399, 5400, 172_799, 172_800)
    assert [duration(s) for s in lengths_s] == ["0.5 s", "599 s", "10 min", "90 min", "1.5 h", "48.0 h", "2.0 days"]
    assert [duration(s, in_minutes=True) for s in lengths_s[:3]] == ["1 min", "10 min", "10 min"]
