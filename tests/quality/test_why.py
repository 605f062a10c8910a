"""What failing rows have in common: found where it was planted, and nothing where nothing was."""

import json
import math
from datetime import date

import pyarrow as pa
import pytest
from governed import under
from hypothesis import given
from hypothesis import strategies as st
from planted import put, sound
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.commit import replace_partitions
from ranklake.quality.check import run_checks
from ranklake.quality.report.gather import gather
from ranklake.quality.why import explain as sampling
from ranklake.quality.why.explain import SAMPLES, explain, samples
from ranklake.quality.why.facets import Count, causes
from ranklake.views.html.quality_pages import section
from ranklake.views.html.shell import render

DAY = date(2026, 3, 2)
RUN = "run-0302"
STRICT = """
extends: steps
checks:
  - {id: early, kind: between, columns: [step], max: 9, on_fail: quarantine}
"""


def store(lake, table, rows):
    """Put rows of one date into a table."""
    replace_partitions(lake.tables, contract(table), rows, [DAY])


def ranks(**columns):
    """Return rows of `ranks` for the four ranks of the date's run."""
    schema = arrow_schema(contract("ranks"))
    rows = [
        {
            "run": RUN,
            "attempt": 0,
            "rank": rank,
            "incarnation": rank + 1,
            "segment": 0,
            "slot": 0,
            "ts": sound("runs", DAY)["ts"][0].as_py(),
            "date": DAY,
            **{name: values[rank] for name, values in columns.items()},
        }
        for rank in range(4)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def spoilt(rows, where):
    """Return rows with a number of tokens that none can have, where `where` says so of rank, step and hour."""
    told = zip(rows["rank"].to_pylist(), rows["step"].to_pylist(), strict=True)
    mask = pa.chunked_array([pa.array([where(rank, step) for rank, step in told])])
    return put(rows, "tokens", -5, mask)


def the_one(lake, check_id="tokens_not_negative"):
    """Check the lake, and return the explanation of one check."""
    run_checks(lake)
    (found,) = explain(lake, ["steps"], check_id=check_id)
    return found


def test_a_driver_is_to_blame(site):
    """Of the ranks two have another driver: it explains the failures better than either rank does."""
    store(site.lake, "runs", sound("runs", DAY))
    store(site.lake, "ranks", ranks(driver_version=["550", "535", "550", "535"], host=["n1", "n2", "n1", "n2"]))
    store(site.lake, "steps", spoilt(sound("steps", DAY), lambda rank, step: rank % 2 == 1 and step > 9))
    found = the_one(site.lake)
    assert (found.failed, found.rows) == (100, 240)
    assert (found.best.facet, found.best.value, found.best.table) == ("driver_version", "535", "ranks")
    assert (found.best.rows, found.best.failed, found.best.rest_failed, found.best.lift) == (120, 100, 0, None)
    assert [(one.facet, one.value) for one in found.alike] == [("host", "classified")]
    assert found.samples[0] == {"run": RUN, "attempt": 0, "rank": 1, "step": 10}


def test_a_table_that_names_only_the_run_is_explained(site, capsys):
    """Such as the goodput of runs, which has no attempts and ranks."""
    named = contract("run_goodput")
    sound_values = {
        "string": "x",
        "int32": 1,
        "int64": 1,
        "timestamp": sound("runs", DAY)["ts"][0].as_py(),
        "date": DAY,
    }
    required = {column.name: sound_values.get(column.type) for column in named.columns if column.required}
    rows = [{**required, "run": name, "status": "unheard of"} for name in ("long", "longer")]
    schema = arrow_schema(named)
    rows = [{name: row.get(name) for name in schema.names} for row in rows]
    store(site.lake, "run_goodput", pa.Table.from_pylist(rows, schema=schema))
    run_checks(site.lake, ["run_goodput"])
    assert run(["quality", "why", "run_goodput", "--lake", site.lake.uri]) == 0
    assert "status_known" in capsys.readouterr().out


def test_a_classified_value_is_shown_nowhere(site, capsys):
    """A host that is to blame is told as classified, in the command, too."""
    store(site.lake, "ranks", ranks(host=["ada-laptop", "n2", "n2", "n2"], driver_version=["1", "1", "1", "1"]))
    store(site.lake, "steps", spoilt(sound("steps", DAY), lambda rank, _: rank == 0))
    found = the_one(site.lake)
    assert {(one.facet, one.value) for one in (found.best, *found.alike)} >= {("host", "classified"), ("rank", "0")}
    for words in ([], ["--json"]):
        assert run(["quality", "why", "--lake", site.lake.uri, *words]) == 0
        out = capsys.readouterr().out
        assert "host" in out
        assert "ada-laptop" not in out


@pytest.mark.slow
def test_a_range_of_steps_is_to_blame(site):
    """Rows that fail in all ranks for a while have steps in common, which the check does not judge."""
    store(site.lake, "steps", spoilt(sound("steps", DAY), lambda _, step: 20 <= step < 40))
    found = the_one(site.lake)
    assert (found.best.facet, found.best.value, found.best.rows, found.best.failed) == ("step", "20 to 39", 80, 80)


@pytest.mark.slow
def test_nothing_stands_out_where_failures_are_everywhere(site):
    """Failures that are spread over everything are not pinned on anything."""
    store(site.lake, "steps", spoilt(sound("steps", DAY), lambda rank, step: (rank * 7 + step * 5) % 11 == 0))
    found = the_one(site.lake)
    assert found.best is None
    assert found.nearest.share < 1


@pytest.mark.slow
def test_rows_in_quarantine_count(site):
    """Rows that the check took out are failing rows of their date, and those that stayed are the rest."""
    site.bring(step_rows(40))
    overlaid = under(site.lake, site.overlay(steps=STRICT))
    report = run_checks(overlaid)
    (failed,) = [one for one in report.results if one.check_id == "early"]
    assert failed.quarantined_rows == failed.rows_failed > 0
    (found,) = explain(overlaid, ["steps"], check_id="early")
    assert (found.rows, found.failed) == (40, failed.rows_failed)
    assert found.unknown == "all rows have everything in common"


@pytest.mark.slow
def test_a_watch_says_that_it_judges_no_rows(site):
    """A check of series is told as what it is, with what it observed."""
    store(site.lake, "runs", sound("runs", DAY))
    rows = sound("steps", DAY)
    store(site.lake, "steps", rows.filter(pa.compute.not_equal(rows["rank"], 3)))
    found = the_one(site.lake, "steps_of_all_ranks")
    assert "as a whole" in found.unknown
    assert found.observed


@pytest.mark.slow
def test_nothing_failed(site, capsys):
    """A sound lake has nothing to explain; a wrong name is told with the right one."""
    store(site.lake, "steps", sound("steps", DAY))
    run_checks(site.lake)
    ask = ["quality", "why", "--lake", site.lake.uri]
    assert run([*ask, "steps", "--check", "tokens_not_negative"]) == 0
    assert capsys.readouterr().out == "no check failed here\n"
    assert run([*ask, "stepz", "--json"]) != 0
    assert "did you mean" in capsys.readouterr().err
    assert run([*ask, "--check", "tokens_not_negative", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_nothing_was_checked(site, capsys):
    """A lake, a table or a date that no check has looked at yet is not told as one where none failed."""
    store(site.lake, "steps", sound("steps", DAY))
    ask = ["quality", "why", "--lake", site.lake.uri]
    unchecked = "nothing was checked here yet: run 'ranklake check'\n"
    assert run(ask) == 0
    assert capsys.readouterr().out == unchecked
    run_checks(site.lake, ["steps"])
    for words in (["scalars"], ["--date", "2026-03-03"], ["--check", "no_such"]):
        assert run([*ask, *words]) == 0
        assert capsys.readouterr().out == unchecked
    assert run([*ask, "scalars", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == []
    assert told.err == unchecked


def test_what_could_not_be_computed_did_not_pass(site, capsys):
    """Where a check is errored, the command says so beside that none failed."""
    store(site.lake, "steps", sound("steps", DAY))
    for file in (site.folder / "lake" / "tables" / "steps").rglob("*.parquet"):
        file.unlink()
    run_checks(site.lake, ["steps"])
    assert run(["quality", "why", "--lake", site.lake.uri, "steps"]) == 0
    assert capsys.readouterr().out.startswith("no check failed here; ")


@pytest.mark.slow
def test_pages_have_keys_of_failing_rows(site, monkeypatch):
    """Of each failing check some rows of its last partition, those in quarantine, too, unless that reads too much."""
    overlaid = under(site.lake, site.overlay(steps=STRICT))
    store(site.lake, "steps", sound("steps", DAY))
    site.bring(step_rows(40))
    run_checks(overlaid)
    found = samples(overlaid)
    told = found["steps", "early", "step"]
    assert len(told.rows) == SAMPLES
    assert all(row["step"] > 9 for row in told.rows)
    page = gather(overlaid, found)
    (check,) = [one for table in page.tables for one in table.checks if one.check_id == "early"]
    assert check.sampled == told
    (steps,) = [one for one in section(page).pages if one.title == "steps"]
    html = render(steps).decode()
    assert f"Some rows of {told.day} that fail" in html
    assert f"step <code>{told.rows[0]['step']}</code>" in html
    monkeypatch.setattr(sampling, "MOST_ROWS", 1)
    assert samples(overlaid) == {}  # such rows are left to the command
    assert not [one for one in section(gather(overlaid)).pages if "Some rows of" in render(one).decode()]


rows_of = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", None]), st.booleans()), min_size=2, max_size=60
)


def g_of(members, failed):
    """Return G of rows in a set, by sums over the four cells, as the oracle."""
    total = len(failed)
    cells = {}
    for member, fails in zip(members, failed, strict=True):
        cells[member, fails] = cells.get((member, fails), 0) + 1
    sums_in = {side: sum(n for (m, _), n in cells.items() if m == side) for side in (True, False)}
    sums_out = {side: sum(n for (_, f), n in cells.items() if f == side) for side in (True, False)}
    return 2 * sum(n * math.log(n * total / (sums_in[m] * sums_out[f])) for (m, f), n in cells.items())


@given(rows_of)
def test_the_best_is_the_best(rows):
    """Of all values, and all ranges of an ordered facet, none has a higher score; counts are those of the rows."""
    failed = [fails for _, _, fails in rows]
    counts = {}
    for place, facet in enumerate(("number", "word")):
        by_value = counts.setdefault(facet, {})
        for row in rows:
            before = by_value.get(row[place], Count(0, 0))
            by_value[row[place]] = Count(before.rows + 1, before.failed + row[2])
    for cause in causes(counts, ["number"]):
        place = ("number", "word").index(cause.facet)
        values = list(dict.fromkeys(row[place] for row in rows))
        spans = [(one, one) for one in values]
        if cause.facet == "number":
            spans += [(low, high) for low in values for high in values if low < high]
        scores = {}
        for low, high in spans:
            members = [row[place] == low if low == high else low <= row[place] <= high for row in rows]
            here = sum(f for m, f in zip(members, failed, strict=True) if m)
            rate = here * len(rows) >= sum(failed) * sum(members)
            price = 2 * math.log(len(values)) * (1 if low == high else 2)
            scores[low, high] = (1 if rate else -1) * g_of(members, failed) - price
        assert cause.score == pytest.approx(max(scores.values()), abs=1e-9)
        members = [
            row[place] == cause.low if cause.low == cause.high else cause.low <= row[place] <= cause.high
            for row in rows
        ]
        assert cause.here == Count(sum(members), sum(f for m, f in zip(members, failed, strict=True) if m))
