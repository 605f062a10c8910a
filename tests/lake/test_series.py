"""Life of metrics, and series: continuous and in one unit across rename, unit change, split and retirement."""

import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from bringing import bring
from governed import under
from hypothesis import given, settings
from hypothesis import strategies as st
from overlays import written
from segments import DAY, put_segment, step_rows

from ranklake.cli import run
from ranklake.insight.lineage.columns import origins
from ranklake.insight.lineage.walk import walk
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.curves import compared_metrics, curves, plot_metrics, shared_metrics
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations import applying
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.engine import engine
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life import register
from ranklake.lake.rollups.life.register import link_to, lives, move
from ranklake.lake.rollups.life.select import select
from ranklake.lake.rollups.life.series import continuous, series, views
from ranklake.lake.rollups.life.state import Life, Link, MetricLifeError, Transition, fold
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.catalog import Catalog
from ranklake.lake.store.lake import Lake

METRICS = """version: 1
metrics:
""" + "".join(
    f'  - {{name: {name}, unit: "{unit}", kind: gauge, owner: team, sampling: step, status: {status}, doc: "-"}}\n'
    for name, unit, status in [
        ("own/wait_ms", "ms", "active"),
        ("own/wait", "s", "active"),
        ("own/read", "s", "active"),
        ("own/decode", "s", "active"),
        ("own/score", "1", "active"),
        ("own/quality", "1", "active"),
        ("own/asked", "1", "requested"),
    ]
)


@pytest.fixture
def own(lake, tmp_path):
    """Return a lake with metrics of its own."""
    return under(lake, written(tmp_path / "own", {"metrics.yaml": METRICS}))


def scalar_rows(values, segment=0, **columns):
    """Return rows of ``scalars``: (metric, step, value) each."""
    schema = arrow_schema(contract("scalars"), segment=True)
    rows = [
        dict.fromkeys(schema.names)
        | {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": segment, "slot": slot}
        | {"ts": DAY + timedelta(seconds=step), "metric": metric, "step": step, "value": value, **columns}
        for slot, (metric, step, value) in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def put(lake, spool, values, **columns):
    """Store rows of ``scalars``."""
    put_segment(spool, scalar_rows(values, **columns), table="scalars")
    bring(lake, spool)


def found(lake, metric, **options):
    """Return step and value of a series."""
    rows = series(lake, metric, **options).rows
    return list(zip(rows["step"].to_pylist(), rows["value"].to_pylist(), strict=True))


def held(lake, metric, expected):
    """Assert that a series has these values, by step."""
    rows = found(lake, metric)
    assert [step for step, _ in rows] == sorted(expected)
    assert [value for _, value in rows] == pytest.approx([expected[step] for step in sorted(expected)])


def test_a_series_goes_on_across_unit_split_and_retirement(own, spool):
    """Milliseconds, then seconds, then two parts: one series in any unit; a part begins where it does."""
    values = [("own/wait_ms", step, 1000.0 + step) for step in range(3)]
    values += [("own/wait", step, 1.0 + step / 1000) for step in range(2, 5)]  # both for one step
    values += [(f"own/{part}", step, (0.5 + step / 2000)) for part in ("read", "decode") for step in range(5, 8)]
    put(own, spool, values)
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    parts = [link_to(own, "own/wait", name) for name in ("own/read", "own/decode")]
    move(own, "own/wait", "deprecated", "Ada", "two things", links=parts)
    expected = {step: 1.0 + step / 1000 for step in range(8)}
    held(own, "own/wait", expected)
    held(own, "own/wait_ms", {step: 1000 * value for step, value in expected.items()})
    held(own, "own/read", {step: 0.5 + step / 2000 for step in range(5, 8)})
    move(own, "own/wait_ms", "retired", "Ada", ends=date(2030, 1, 1))
    held(own, "own/wait_ms", {step: 1000 * value for step, value in expected.items()})
    some = found(own, "own/wait", begin=DAY + timedelta(seconds=2), end=DAY + timedelta(seconds=6))
    assert [step for step, _ in some] == [2, 3, 4, 5]
    assert found(own, "own/wait", run="r2") == []


def test_of_what_two_names_have_of_a_step_the_newer_counts(own, spool):
    """However the step's rows are stored; and several values of one step under one name all stay."""
    put(own, spool, [("own/score", 0, 1.0), ("own/score", 1, 2.0), ("own/quality", 1, 7.0), ("own/quality", 1, 8.0)])
    move(own, "own/score", "deprecated", "Ada", links=[Link("own/quality")])
    for name in ("own/score", "own/quality"):
        assert found(own, name) == [(0, 1.0), (1, 7.0), (1, 8.0)]
    assert series(own, "own/score").rows["source"].to_pylist() == ["own/score", "own/quality", "own/quality"]


def test_a_step_that_lacks_a_part_has_no_value_and_says_so(own, spool):
    """A sum of what is there would be a wrong number; what was recorded as no number says that, too."""
    put(own, spool, [("own/read", 0, 1.0), ("own/read", 1, 1.0), ("own/decode", 1, 2.0)])
    put(own, spool, [("own/wait", 2, None)], segment=1, value_flag="nan")
    move(own, "own/wait", "deprecated", "Ada", links=[Link("own/read"), Link("own/decode")])
    rows = series(own, "own/wait").rows
    assert rows["value"].to_pylist() == [None, 3.0, None]
    assert rows["reason"].to_pylist() == ["not every part once", None, "recorded as nan"]


def test_a_default_stands_where_a_step_has_no_value(own, spool, capfd):
    """Whoever deprecates a metric may say it; the reason tells where it does; taken back, it is gone."""
    put(own, spool, [("own/read", 0, 1.0), ("own/read", 1, 1.0), ("own/decode", 1, 2.0)])
    put(own, spool, [("own/wait", 2, None)], segment=1, value_flag="nan")
    parts = ("--use", "own/read", "--use", "own/decode")
    place = ["--lake", own.uri, "--by", "Ada"]
    assert run(["metric", "deprecate", "own/wait", *parts, "--default", "0.5", *place]) == 0
    assert "0.5 where a step has no value" in capfd.readouterr().out
    assert lives(own)["own/wait"].plain()["default"] == 0.5
    rows = series(own, "own/wait").rows
    assert rows["value"].to_pylist() == [0.5, 3.0, 0.5]
    assert rows["reason"].to_pylist() == ["default: not every part once", None, "default: recorded as nan"]
    assert run(["metric", "deprecate", "own/wait", *parts, "--default", "nan", *place]) == 2
    move(own, "own/wait", "active", "Ada")
    move(own, "own/wait", "deprecated", "Ada", links=[Link("own/read"), Link("own/decode")])
    assert series(own, "own/wait").rows["value"].to_pylist() == [None, 3.0, None]
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")], default=7.0)
    assert series(own, "own/wait_ms").rows["value"].to_pylist() == [None, 3000.0, None], "what it became has no default"


def histogram_rows(values, segment=0):
    """Return rows of ``distributions``: (metric, step, values) each."""
    schema = arrow_schema(contract("distributions"), segment=True)
    rows = [
        dict.fromkeys(schema.names)
        | {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": segment, "slot": slot}
        | {"ts": DAY + timedelta(seconds=step), "metric": metric, "step": step, "scale": 3, "count": len(some)}
        | {"sum": float(sum(some)), "min": min(some), "max": max(some)}
        for slot, (metric, step, some) in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.slow
def test_histograms_are_one_series_too(own, spool, capfd):
    """Across a rename and a unit that turns values round: count, sum, mean, least and greatest are the values' own."""
    old, new = [1000.0, 3000.0, 5000.0], [2.0, 4.0]
    put_segment(
        spool,
        histogram_rows([("own/wait_ms", 0, old), ("own/wait_ms", 1, old), ("own/wait", 1, new)]),
        table="distributions",
    )
    bring(own, spool)
    move(own, "own/wait_ms", "deprecated", "Ada", links=[Link("own/wait", -0.001, 1.0)])

    def told(metric):
        rows = series(own, metric, of_distributions=True).rows.to_pylist()
        return [tuple(row[name] for name in ("step", "count", "sum", "mean", "min", "max", "source")) for row in rows]

    turned = [1.0 - value / 1000 for value in old]
    assert told("own/wait") == [
        (0, 3, pytest.approx(sum(turned)), pytest.approx(-2.0), min(turned), max(turned), "own/wait_ms"),
        (1, 2, 6.0, 3.0, 2.0, 4.0, "own/wait"),
    ]
    back = [(1.0 - value) * 1000 for value in new]
    assert told("own/wait_ms")[1] == (
        1,
        2,
        pytest.approx(sum(back)),
        pytest.approx(-2000.0),
        min(back),
        max(back),
        "own/wait",
    )
    place = ["--lake", own.uri]
    assert run(["series", "own/wait", "--distributions", "--format", "csv", *place]) == 0
    assert capfd.readouterr().out.count("own/wait") >= 2
    assert run(["series", "own/wai", "--distributions", *place]) == 2


@pytest.mark.slow
def test_a_column_is_found_by_its_id(own, spool, changed, monkeypatch):
    """Before, during and after a migration that renames and converts the column of a metric."""
    put_segment(spool, step_rows(5))
    bring(own, spool)
    before = found(own, "train/step_time")
    put(own, spool, [("train/step_time", 9, 2.0)])  # logged by hand
    assert found(own, "train/step_time") == [*before, (9, 2.0)]

    def change(facts):
        column = next(one for one in facts["columns"] if one["name"] == "loss")
        column.update(name="training_loss", unit="{nat}")
        facts["checks"] = [one for one in facts["checks"] if "loss" not in one.get("columns", ())]

    losses = found(own, "train/loss")
    changed.migrate("steps", change, factor=2)
    later = {
        **own.catalog.metrics(),
        "train/loss": replace(own.catalog.metrics()["train/loss"], stored_in="steps.training_loss"),
    }
    monkeypatch.setattr(Catalog, "metrics", lambda _: later)
    fresh = Lake.open(own.uri)
    expected = [(step, pytest.approx(2 * value, rel=1e-6)) for step, value in losses]
    assert found(fresh, "train/loss") == expected
    applying.apply(fresh, InProcess(), "Ada")
    assert found(fresh, "train/loss") == expected


def test_the_view_is_asked_in_sql_and_roles_see_no_more(own, spool, tmp_path):
    """`FROM series` of metrics that the text names; a role that does not see the tables sees no series."""
    put(own, spool, [("own/score", 0, 1.0), ("own/quality", 1, 7.0)])
    move(own, "own/score", "deprecated", "Ada", links=[Link("own/quality", 2.0)])
    text = "SELECT metric, unit, sum(value) AS total FROM series WHERE metric IN ('own/score') GROUP BY metric, unit"
    rows = query(own, text, views=views(own, text))
    assert rows.to_pylist() == [{"metric": "own/score", "unit": "1", "total": 4.5}]
    assert views(own, "SELECT metric AS series FROM scalars") == {}
    with pytest.raises(MetricLifeError, match="series of which metric"):
        views(own, "SELECT * FROM series")
    file = tmp_path / "roles.yaml"
    for where, values in (("step = 0", [1.0]), ("step = 1", [3.5])):
        file.write_text(
            f"roles: {{some: {{classes: [operational], tables: [scalars], where: {{scalars: '{where}'}}}}}}"
        )
        role = load_role(file, "some", own.contracts())
        assert query(own, text, role=role, views=views(own, text))["total"].to_pylist() == values
    file.write_text("roles: {none: {classes: [operational], tables: [steps]}}")
    with pytest.raises(Exception, match="scalars"):
        query(own, text, role=load_role(file, "none", own.contracts()), views=views(own, text))


def test_a_metric_that_nobody_registered_has_a_series_in_sql(own, spool, tmp_path):
    """As `ranklake series` shows it; to a role that does not see its rows it is as one that was never recorded."""
    put(own, spool, [("theirs/o'clock", 0, 1.0), ("own/score", 0, 2.0)])
    text = "SELECT metric, unit, value FROM series WHERE metric = 'theirs/o''clock' AND run = 'r1'"
    rows = query(own, text, views=views(own, text))
    assert rows.to_pylist() == [{"metric": "theirs/o'clock", "unit": "", "value": 1.0}]
    both = "SELECT metric FROM series WHERE metric IN ('own/score', 'theirs/o''clock') ORDER BY metric"
    assert query(own, both, views=views(own, both))["metric"].to_pylist() == ["own/score", "theirs/o'clock"]
    file = tmp_path / "roles.yaml"
    file.write_text(
        "roles: {some: {classes: [operational], tables: [scalars], where: {scalars: 'step = 1'}},"
        " none: {classes: [operational], tables: [steps]}}"
    )
    for name in ("some", "none"):
        with pytest.raises(MetricLifeError, match="series of which metric"):
            views(own, text, role=load_role(file, name, own.contracts()))


@pytest.mark.parametrize(
    ("metric", "to", "options", "what"),
    [
        ("own/skore", "deprecated", {}, "no such metric; did you mean 'own/score'"),
        ("own/score", "retired", {}, "it is active, and deprecated may follow"),
        ("own/score", "sunset", {}, "it is active"),
        ("own/asked", "deprecated", {}, "it is requested, and active may follow"),
        ("own/score", "deprecated", {"links": [Link("nothing")]}, "nothing is known of nothing"),
        ("own/score", "deprecated", {"links": [Link("own/quality", 0.0)]}, "a factor of 0"),
        ("own/score", "deprecated", {"links": [Link("own/quality"), Link("own/quality")]}, "a part is named twice"),
        ("own/score", "deprecated", {"links": [Link("own/score")]}, "a cycle: own/score becomes own/score"),
        ("own/wait_ms", "deprecated", {"links": [Link("own/wait")]}, "own/wait in s, and the factor is 1"),
    ],
)
def test_what_cannot_be_is_refused_and_not_in_the_trail(own, metric, to, options, what):
    """The error says what may follow, and nothing was written."""
    with pytest.raises(MetricLifeError, match=what):
        move(own, metric, to, "Ada", **options)
    assert trail(own.tables) == []


def test_grace_and_sunset_are_waited_for(own):
    """Who deprecated it until a day cannot retire it that day; a row's life is as long as was said."""
    today = datetime.now(UTC).date()
    move(own, "own/score", "deprecated", "Ada", until=today)
    with pytest.raises(MetricLifeError, match="it may be recorded until"):
        move(own, "own/score", "retired", "Ada")
    move(own, "own/score", "deprecated", "Ada", until=today - timedelta(days=1))
    move(own, "own/score", "retired", "Ada", ends=today + timedelta(days=1))
    with pytest.raises(MetricLifeError, match="its rows stay until"):
        move(own, "own/score", "sunset", "Ada")
    with pytest.raises(MetricLifeError, match="it is retired, and sunset may follow"):
        move(own, "own/score", "active", "Ada")


def test_a_longer_cycle_and_the_later_of_two_at_once_come_to_nothing(own, monkeypatch):
    """Two who name each other at the same moment: the audit log has both, and the earlier one counts, for everybody."""
    move(own, "own/wait", "deprecated", "Ada", links=[Link("own/read")])
    move(own, "own/read", "deprecated", "Ada", links=[Link("own/decode")])
    with pytest.raises(
        MetricLifeError, match="a cycle: own/decode becomes own/wait becomes own/read becomes own/decode"
    ):
        move(own, "own/decode", "deprecated", "Ada", links=[Link("own/wait")])
    with monkeypatch.context() as patch:  # as both looked before either wrote
        patch.setattr(register, "refuse_impossible", lambda *_: None)
        with pytest.raises(MetricLifeError, match="another changed it meanwhile"):
            move(own, "own/decode", "deprecated", "Otto", links=[Link("own/wait")])
    assert lives(own)["own/decode"].status == "active"


def test_the_commands(own, spool, capfd, tmp_path):
    """Deprecate, look, retire, changes: each tells what it did; units are converted without being asked."""
    put(own, spool, [("own/wait_ms", 0, 1500.0), ("own/wait", 1, 2.0)])
    place = ["--lake", own.uri, "--contracts", str(tmp_path / "own")]

    def said(*words):
        code = run([*words, *place])
        return code, capfd.readouterr().out

    code, out = said("metric", "deprecate", "own/wait_ms", "--use", "own/wait", "--until", "2026-01-01", "--by", "Ada")
    assert code == 0
    assert "own/wait_ms: deprecated since" in out
    assert "use own/wait (value times 0.001 + 0); may be recorded until 2026-01-01" in out
    assert said("metric", "retire", "own/wait_ms", "--reason", "grace is over")[0] == 0
    assert "own/wait_ms: retired since" in said("metric", "show")[1]
    assert json.loads(said("metric", "show", "own/quality", "--json")[1])[0]["status"] == "active"
    code, out = said("series", "own/wait", "--format", "csv")
    assert [line.split(",")[5:7] for line in out.splitlines()[1:3]] == [["1.5", "own/wait_ms"], ["2.0", "own/wait"]]
    assert "own/wait in s, active" in out
    assert said("series", "own/wait", "--sql")[1].startswith("SELECT")
    text = "SELECT count(*) n FROM series WHERE metric = 'own/wait'"
    assert run(["sql", text, "--format", "csv", "--lake", own.uri]) == 0
    assert capfd.readouterr().out == "n\n2\n"
    changes = json.loads(said("catalog", "changes", "--json")[1])
    assert [(one["kind"], one["name"], one["what"].split(";")[0]) for one in changes] == [
        ("metric", "own/wait_ms", "deprecated"),
        ("metric", "own/wait_ms", "retired"),
    ]
    assert said("catalog", "changes", "--since", "2999-01-01") == (0, "nothing changed\n")
    assert [row["action"] for row in trail(own.tables)] == ["metric.deprecated", "metric.retired"]
    assert said("series", "own/wai")[0] == 2


class Grown:
    """A metric as it was really, and what became of it: the oracle."""

    def __init__(self, name, truth):
        self.name, self.truth, self.recorded, self.parts = name, truth, {}, []

    def value(self, step):
        """Return whether a series has a row of a step, and the value, in the metric's own unit."""
        told = [(part.value(step), factor, offset) for part, factor, offset in self.parts]
        if told and all(value is not None for (_, value), _, _ in told):
            return True, sum((value - offset) / factor for (_, value), factor, offset in told)
        if step in self.recorded:
            return True, self.recorded[step]
        return any(there for (there, _), _, _ in told), None


EMPTY = pa.RecordBatch.from_pylist([], schema=arrow_schema(contract("scalars"), segment=True))
FACTORS = st.sampled_from([1.0, 1000.0, 0.001, -2.0])
OFFSETS = st.sampled_from([0.0, 0.0, 273.15])


@st.composite
def histories(draw):
    """Draw what became of a metric over some epochs, and what was recorded of it; return it, and all of its kind."""
    names = iter(f"m{number}" for number in range(1000))
    steps = draw(st.integers(1, 12))
    root = Grown(next(names), {step: float(draw(st.integers(-50, 50))) for step in range(steps)})
    every, leaves, step = [root], [root], 0
    while step < steps:
        until = draw(st.integers(step + 1, steps))
        for at in range(step, until):
            for leaf in leaves:
                if draw(st.integers(0, 9)):  # now and then a row is lost
                    leaf.recorded[at] = leaf.truth[at]
        step = until
        leaf = draw(st.sampled_from(leaves))
        count = draw(st.sampled_from([0, 1, 1, 2, 3]))
        links = [(draw(FACTORS), draw(OFFSETS)) for _ in range(count)]
        if not count:
            break  # retired: nobody records it any more
        shares = [[draw(st.integers(-9, 9)) for _ in range(steps)] for _ in range(count - 1)]
        for place, (factor, offset) in enumerate(links):
            rest = {at: leaf.truth[at] - sum(share[at] for share in shares) for at in range(steps)}
            mine = rest if place == count - 1 else dict(enumerate(map(float, shares[place])))
            new = Grown(next(names), {at: value * factor + offset for at, value in mine.items()})
            leaf.parts.append((new, factor, offset))
            every.append(new)
        overlap = draw(st.integers(0, 2))
        for at in range(step, min(steps, step + overlap)):  # both are recorded for a while
            leaf.recorded[at] = leaf.truth[at]
        leaves = [one for one in leaves if one is not leaf] + [part for part, _, _ in leaf.parts]
    return root, every, steps


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(histories())
def test_any_history_of_a_metric_is_one_series(tmp_path_factory, history):
    """Renamed, converted, split, again and again, with rows lost and rows twice: what plain Python makes of it."""
    root, every, steps = history
    lake = Lake.create(str(tmp_path_factory.mktemp("empty") / "lake"))
    changes = [
        Transition(one.name, "deprecated", DAY, "1", tuple(Link(part.name, *how) for part, *how in one.parts))
        for one in every
        if one.parts
    ]
    known = fold({one.name: Life(one.name, "active", "1") for one in every}, changes)
    rows = [(one.name, at, value) for one in every for at, value in sorted(one.recorded.items())]
    ctx = engine(1)
    ctx.register_record_batches("scalars", [scalar_rows(rows).to_batches() or [EMPTY]])
    found = ctx.sql(select(lake, known, root.name)).to_arrow_table().sort_by("step")
    expected = {at: value for at in range(steps) for there, value in [root.value(at)] if there}
    assert found["step"].to_pylist() == sorted(expected)
    for at, value, reason in zip(*(found[name].to_pylist() for name in ("step", "value", "reason")), strict=True):
        assert (value is None) == (expected[at] is None) == (reason is not None)
        assert value is None or math.isclose(value, expected[at], rel_tol=1e-9, abs_tol=1e-6)


def curve(lake, run="r1"):
    """Return the curves of a run's page, by metric: step and mean."""
    rows = curves(asking(lake), run, 0, continuous(lake)).metrics.rows
    told = {}
    for row in rows:
        told.setdefault(row["metric"], {})[row["step"]] = row["mean"]
    return told


def test_a_page_shows_one_curve(own, spool):
    """A metric that is renamed, converted and split in the middle of a run goes on as one curve; parts stand beside."""
    assert continuous(own) == "scalars"
    values = [("own/wait_ms", step, 1000.0 + step) for step in range(3)]
    values += [("own/wait", step, 1.0 + step / 1000) for step in range(2, 5)]
    put(own, spool, [*values, ("own/score", 0, 1.0), ("own/score", 5, 2.0)])
    assert curve(own).keys() == {"own/wait_ms", "own/wait", "own/score"}
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    move(own, "own/wait_ms", "retired", "Ada", ends=date(2030, 1, 1))
    found_of = curve(own)
    assert found_of.keys() == {"own/wait", "own/score"}
    assert found_of["own/wait"] == pytest.approx({step: 1.0 + step / 1000 for step in range(5)})
    (old,) = plot_metrics(asking(own), ["r1"], ["own/wait_ms"], {}, scalars=continuous(own, ["own/wait_ms"]))
    assert [step for step, _ in old.points] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [value for _, value in old.points] == pytest.approx([1000.0 + step for step in range(5)])
    put(own, spool, [(f"own/{part}", step, 0.5) for part in ("read", "decode") for step in (5, 6)], segment=1)
    move(own, "own/wait", "deprecated", "Ada", links=[Link("own/read"), Link("own/decode")])
    found_of = curve(own)
    assert found_of["own/wait"] == pytest.approx({**{step: 1.0 + step / 1000 for step in range(5)}, 5: 1.0, 6: 1.0})
    assert found_of["own/read"] == {5: 0.5, 6: 0.5}
    both = plot_metrics(
        asking(own), ["r1"], ["own/wait", "own/wait_ms"], {}, scalars=continuous(own, ["own/wait", "own/wait_ms"])
    )
    assert [len(one.points) for one in both] == [7, 7]
    assert both[1].points[-1] == (6.0, 1000.0)


def test_the_bounds_of_a_metric_turn_with_its_sign(own, spool):
    """Of a mean with its extremes, the least becomes the greatest under a factor below zero."""
    put(own, spool, [("own/score", 0, 2.0), ("own/score", 9, 2.0)], agg_mean=2.0, agg_min=1.0, agg_max=5.0)
    move(own, "own/score", "deprecated", "Ada", links=[Link("own/quality", -1.0, 10.0)])
    rows = curves(asking(own), "r1", 0, continuous(own)).metrics.rows
    assert [(row["mean"], row["low"], row["high"]) for row in rows] == [(8.0, 5.0, 9.0)] * 2


DAILY = """table: wait_daily
version: 1
kind: derived
owner: team
steward: team
summary: "One row per run and day."
grain: [run, date]
partition: [date]
sort: [run]
retention: derived
rollup:
  inputs:
    - {table: scalars}
columns:
  - {id: 20, name: run, type: string, class: operational, required: true, doc: "Name of the run."}
  - {id: 21, name: date, type: date, class: operational, required: true, doc: "UTC date."}
  - {id: 22, name: wait, type: float64, unit: s, class: operational, doc: "Sum."}
  - {id: 23, name: steps, type: int64, unit: none, class: operational, doc: "How many."}
"""
DAILY_SQL = """SELECT s.run, $date AS date, sum(s.value) AS wait, count(*) AS steps FROM scalars AS s
WHERE s.date = $date AND s.metric = 'own/wait' GROUP BY s.run
"""


def test_rollups_read_what_a_metric_was_recorded_as(lake, spool, tmp_path):
    """A rollup that names a metric is due once another took its place, and reads both, once a step, in its unit."""
    folder = written(
        tmp_path / "own", {"metrics.yaml": METRICS, "wait_daily.yaml": DAILY, "rollups/wait_daily.sql": DAILY_SQL}
    )
    own = under(lake, folder)
    values = [("own/wait_ms", step, 1000.0) for step in range(3)] + [("own/wait", step, 1.0) for step in range(2, 5)]
    put(own, spool, [*values, ("own/quality", 0, 7.0), ("own/quality", 1, 7.5), ("train/epoch", 2, 8.0)])

    def told():
        done = {one.name: one for one in run_rollups(own, ["wait_daily", "run_epochs"])}
        rows = query(own, "SELECT wait, steps FROM wait_daily").to_pylist()
        epochs = query(own, "SELECT epoch FROM run_epochs ORDER BY epoch")["epoch"].to_pylist()
        return [done[name].computed for name in ("wait_daily", "run_epochs")], *rows[0].values(), epochs

    assert told() == ([1, 1], 3.0, 3, [8])
    assert told() == ([0, 0], 3.0, 3, [8])
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    assert told() == ([1, 0], 5.0, 5, [8])
    move(own, "train/epoch", "deprecated", "Ada", links=[Link("own/quality", 1.0)])
    assert told() == ([0, 1], 5.0, 5, [7, 8])
    assert told() == ([0, 0], 5.0, 5, [7, 8])


def test_lineage_knows_a_rollup_that_reads_other_names(lake, spool, tmp_path):
    """It is computed by the code that is installed here, and of the columns that its query reads."""
    folder = written(
        tmp_path / "own", {"metrics.yaml": METRICS, "wait_daily.yaml": DAILY, "rollups/wait_daily.sql": DAILY_SQL}
    )
    own = under(lake, folder)
    put(own, spool, [("own/wait_ms", 0, 1000.0), ("own/wait", 1, 1.0)])
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    run_rollups(own, ["wait_daily"])
    result = walk(own, own.contract("wait_daily"), "r1", None, None)
    assert [(each.table, each.state) for each in result.computations] == [("wait_daily", "verified")]
    assert result.notes == ()
    (rollup,) = (one for one in rollups_of(own, ["wait_daily"]) if one.name == "wait_daily")
    wait = origins(rollup, own.contracts())["wait"]
    assert (wait.level, wait.sources) == ("columns", (("scalars", "value"),))


def test_a_rollup_that_names_both_is_left_alone(lake, tmp_path):
    """Its query says itself what is to become of the two."""
    text = DAILY_SQL.replace("= 'own/wait'", "IN ('own/wait', 'own/wait_ms')")
    files = {"metrics.yaml": METRICS, "wait_daily.yaml": DAILY, "rollups/wait_daily.sql": text}
    own = under(lake, written(tmp_path / "own", files))
    before = {one.name: one.sha256 for one in rollups_of(own)}
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    assert {one.name: one.sha256 for one in rollups_of(own)} == before


SPREAD = (
    DAILY.replace("wait_daily", "wait_spread")
    .replace("{table: scalars}", "{table: distributions}")
    .replace(
        """  - {id: 23, name: steps, type: int64, unit: none, class: operational, doc: "How many."}
""",
        """  - {id: 23, name: values, type: int64, unit: none, class: operational, doc: "How many."}
  - {id: 24, name: least, type: float64, unit: s, class: operational, doc: "Least."}
  - {id: 25, name: most, type: float64, unit: s, class: operational, doc: "Greatest."}
  - {id: 26, name: bucketed, type: int64, unit: none, class: operational, doc: "Histograms with buckets."}
""",
    )
)
SPREAD_SQL = """SELECT s.run, $date AS date, sum(s.sum) AS wait, CAST(sum(s.count) AS BIGINT) AS values,
  min(s.min) AS least, max(s.max) AS most, count(s.positive_counts) AS bucketed
FROM distributions AS s WHERE s.date = $date AND s.metric = 'own/wait' GROUP BY s.run
"""


@pytest.mark.slow
def test_rollups_read_distributions_under_all_their_names(lake, spool, tmp_path):
    """Of two runs, one before a metric got another name and unit and one after, both are summed up, in its unit."""
    files = {"metrics.yaml": METRICS, "wait_spread.yaml": SPREAD, "rollups/wait_spread.sql": SPREAD_SQL}
    own = under(lake, written(tmp_path / "own", files))
    told_of = {"r1": ("own/wait_ms", [1000.0, 3000.0]), "r2": ("own/wait", [0.5, 2.0])}
    for run_, (metric, values) in told_of.items():
        rows = histogram_rows([(metric, step, values) for step in range(2)])
        own_facts = {"run": run_, "incarnation": int(run_[1:]), "positive_offset": 0, "positive_counts": [2]}
        said = [{**row, **own_facts} for row in rows.to_pylist()]
        put_segment(spool, pa.Table.from_pylist(said, schema=rows.schema), table="distributions")
    bring(own, spool)

    def told():
        (done,) = run_rollups(own, ["wait_spread"])
        asked = query(own, 'SELECT run, wait, "values", least, most, bucketed FROM wait_spread ORDER BY run')
        return done.computed, [tuple(row.values()) for row in asked.to_pylist()]

    second = ("r2", 5.0, 4, 0.5, 2.0, 2)
    assert told() == (1, [second])
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    assert told() == (1, [("r1", 8.0, 4, 1.0, 3.0, 0), second]), "buckets of another unit are unknown"
    assert told() == (0, [("r1", 8.0, 4, 1.0, 3.0, 0), second])


@pytest.mark.slow
def test_runs_are_compared_by_a_metric_under_all_its_names(own, spool):
    """One run before a metric got another name and unit, one after: one chart has both, in one unit."""
    put(own, spool, [("own/wait_ms", step, 1000.0 + step) for step in range(3)])
    put(own, spool, [("own/wait", step, 2.0) for step in range(3)], run="r2", incarnation=8)
    ask = asking(own)
    assert shared_metrics(ask, ["r1", "r2"], 9, continuous(own)) == []
    move(own, "own/wait_ms", "deprecated", "Ada", links=[link_to(own, "own/wait_ms", "own/wait")])
    assert shared_metrics(ask, ["r1", "r2"], 9, continuous(own)) == ["own/wait"]
    assert shared_metrics(ask, ["r1", "r2"], 0, continuous(own)) == []
    ((before, after),) = compared_metrics(ask, ("r1", "r2"), {"own/wait": "s"}, continuous(own))
    assert [(one.run, one.metric, one.unit) for one in (before, after)] == [
        ("r1", "own/wait", "s"),
        ("r2", "own/wait", "s"),
    ]
    assert [step for step, _ in before.points] == [step for step, _ in after.points] == [0, 1, 2]
    assert [value for _, value in before.points] == pytest.approx([1.0, 1.001, 1.002])
    assert [value for _, value in after.points] == [2.0] * 3
