"""The report of published figures: what it says, and what it must not let pass."""

from dataclasses import replace
from pathlib import Path

import published_report
import pytest
from click.testing import CliRunner
from published_figures import Figure, figures


def some(data, *groups):
    return [figure for figure in figures(data) if figure.group in groups]


def test_what_is_right_passes(published, capsys):
    """Rows that are wrong as published stand there as such, and match nothing; all others are within."""
    data = published("mlperf")
    assert published_report.report(some(data, "MFU, BigScience", "MLPerf LoRA"))
    printed = capsys.readouterr().out
    assert printed.count("| inconsistent as published: ") == 3
    assert "MLPerf LoRA | minutes, scaled | 28.1628 | 28.162" in printed
    assert "| MLPerf LoRA | 3 | 3 | 0 | 0 | 0 | 0 |" in printed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"published": 28.1630}, "| OUT OF TOLERANCE"),
        ({"key": "no_such_number"}, "| NOT COMPUTED: KeyError"),
        ({"inconsistent": "a slip"}, "| OUT OF TOLERANCE: matches, and is wrong as published"),
    ],
)
def test_what_is_wrong_fails(published, capsys, change, said):
    """A wrong published value, a figure that is not given, and a match that must not be: each fails the report."""
    figure = next(one for one in some(published("mlperf"), "MLPerf LoRA") if one.key == "result_min")
    assert not published_report.report([replace(figure, **change)])
    assert said in capsys.readouterr().out


def test_what_is_known_passes(capsys):
    """A figure that the software is known not to give stands there with the reason, without a number."""
    known = Figure(group="g", name="n", source="s", published=1.5, unknown="nobody asked")
    assert published_report.report([known])
    assert "g | n | 1.5 | - | exact | not computed: nobody asked" in capsys.readouterr().out


def test_without_the_data(monkeypatch):
    """Where the data is absent one line says so, and that is no failure."""
    monkeypatch.setattr(published_report, "DATA", Path("/no/such/data"))
    done = CliRunner().invoke(published_report.main, [])
    assert done.exit_code == 0
    assert done.output.splitlines() == ["the published data is not there: /no/such/data; set RANKLAKE_PUBLISHED_DATA"]
