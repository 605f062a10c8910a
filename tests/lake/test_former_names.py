"""Former names of columns: they answer until their day, in the unit that they had, to whoever sees the column."""

from contextlib import closing
from datetime import timedelta

import pytest
import yaml
from bringing import bring
from changed_contracts import ChangedContracts
from click.testing import CliRunner
from deltalake import DeltaTable
from governed import under
from hypothesis import given, settings
from hypothesis import strategies as st
from overlays import written
from rollup_inputs import NOON, append
from segments import DAY, put_segment, step_rows
from today import TODAY

import ranklake.lake
from ranklake.commands.sql import sql
from ranklake.insight.ask import ask, used_former_names
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.migrations import applying, registry
from ranklake.lake.migrations.former import follow_step as moved_on
from ranklake.lake.migrations.former import former_names
from ranklake.lake.migrations.steps.columns import Drop
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.roles import Role
from ranklake.lake.rollups.own import faults
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.masking.masks import Mask

OPERATIONAL = frozenset({"operational"})
EVERY = frozenset({"operational", "pseudonymous", "personal", "secret"})


def called(facts, old, new, **more):
    """Give a column another name, wherever the document has it."""
    next(one for one in facts["columns"] if one["name"] == old).update(name=new, **more)
    for check in facts.get("checks", []):
        check["columns"] = [new if name == old else name for name in check.get("columns", [])]


def change(facts):
    """Rename a column, and have another in milliseconds."""
    called(facts, "tokens", "tokens_seen")
    called(facts, "step_time_s", "step_time_ms", unit="ms")


def until(path, day):
    """Let the former names of a migration answer until a day."""
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    for step in facts["steps"]:
        step["until"] = day
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")


@pytest.fixture
def moved(lake, spool, changed):
    """Return a lake of two days whose steps were migrated; former names answer until tomorrow."""
    for segment in range(2):
        rows = step_rows(20, segment=segment, start=DAY + timedelta(days=segment))
        put_segment(spool, rows, rows_before=20 * segment)
    bring(lake, spool)
    until(changed.migrate("steps", change, factor=1000), TODAY + timedelta(days=1))
    applying.apply(lake, InProcess(), "Ada")
    return lake


SAME = [
    "SELECT tokens, step_time_s FROM steps ORDER BY incarnation, segment, slot",
    "SELECT s.tokens AS t FROM steps s JOIN steps o USING (incarnation, segment, slot) WHERE o.step_time_s > 0.9",
    "SELECT sum(tokens) AS n FROM (SELECT * FROM steps) WHERE step_time_s BETWEEN 0.5 AND 2",
    "WITH a AS (SELECT rank, step_time_s FROM steps) SELECT rank, avg(step_time_s) AS m FROM a GROUP BY rank",
    "SELECT step FROM steps o WHERE tokens = (SELECT max(i.tokens) FROM steps i WHERE i.rank = o.rank) ORDER BY step",
    "SELECT tokens, count(*) AS n FROM steps GROUP BY tokens HAVING sum(step_time_s) > 1 ORDER BY tokens",
    'SELECT max(step_time_s) OVER (PARTITION BY tokens) AS m, "tokens" FROM steps ORDER BY 1, step LIMIT 7',
    "SELECT tokens FROM steps UNION ALL SELECT tokens FROM steps",
]


@pytest.mark.slow
def test_a_query_of_before_gives_what_it_gave(lake, spool, changed):
    """Whatever a query does with columns, under their former names it gives what it gave before the migration."""
    put_segment(spool, step_rows(40))
    bring(lake, spool)
    before = [ask(lake, text).rows.to_pydict() for text in SAME]
    changed.migrate("steps", change, factor=1000)
    applying.apply(lake, InProcess(), "Ada")
    for text, told in zip(SAME, before, strict=True):
        found = ask(lake, text).rows.to_pydict()
        assert list(found) == list(told), text
        for name, values in told.items():
            assert found[name] == pytest.approx(values, rel=1e-6), text


def test_a_wildcard_gives_new_names_alone(moved):
    """`SELECT *` gives no former name, also where a condition uses one; who names it gets it once."""
    today = ask(moved, "SELECT * FROM steps").rows
    found = ask(moved, "SELECT * FROM steps WHERE tokens > 3")
    assert found.rows.column_names == today.column_names
    assert [one.former.name for one in used_former_names(found)] == ["tokens"]
    twice = ask(moved, "SELECT a.*, b.* FROM steps a JOIN (SELECT tokens, slot FROM steps) b ON a.slot = b.slot").rows
    assert twice.column_names == [*today.column_names, "tokens", "slot"]
    assert ask(moved, "SELECT * FROM (SELECT tokens FROM steps)").rows.column_names == ["tokens"]


def test_a_name_that_a_query_makes_is_no_former_one(moved):
    """Former names are added where a query fails without them, so they change no meaning."""
    found = ask(moved, "SELECT tokens_seen AS tokens, step_time_ms / 2 AS step_time_s FROM steps ORDER BY step_time_s")
    assert list(used_former_names(found)) == []
    assert list(used_former_names(ask(moved, "SELECT 'tokens' AS word, count(*) AS n FROM steps"))) == []
    hint = ask(moved, "SELECT tokens AS t FROM steps").sketch
    assert {table: list(names) for table, names in hint.asked.items()} == {"steps": ["tokens"]}
    assert hint.columns == {"steps": ("tokens_seen",)}


def test_time_travel_reads_by_the_names_of_then(moved):
    """Before the migration, the former name is the column's own; version by version of one query."""
    version = delta_table(moved.store, "steps").version()
    of_then = (DeltaTable(moved.store.table_uri("steps"), version=at) for at in range(version, 0, -1))
    before = next(table.version() for table in of_then if "step_time_s" in table.schema().to_arrow().names)
    then = ask(moved, "SELECT sum(step_time_s) AS s FROM steps", as_of=before)
    now = ask(moved, "SELECT sum(step_time_s) AS s FROM steps", as_of=version)
    assert then.rows["s"].to_pylist() == pytest.approx(now.rows["s"].to_pylist(), rel=1e-6)
    assert (list(used_former_names(then)), [one.former.factor for one in used_former_names(now)]) == ([], [1000])


@pytest.mark.parametrize("store", ["local", "elsewhere"])
def test_files_are_chosen_through_a_former_name(moved, store, monkeypatch):
    """A date, and ranges of a renamed column, spare files; a converted one reads them all."""
    if store == "elsewhere":
        monkeypatch.setattr(Store, "is_local", property(lambda _: False))
    assert files(delta_table(moved.store, "steps")).num_rows == 2

    def plan(text):
        rows = ask(moved, f"EXPLAIN {text}").rows.to_pylist()
        return next(row["plan"] for row in rows if row["plan_type"] == "Delta log").split(",")[0]

    day = f"SELECT sum(step_time_s) FROM steps WHERE date = '{DAY.date()}' AND tokens > 0"
    assert plan(day) == "steps: 1 of 2 files"
    assert plan("SELECT step_time_s FROM steps WHERE tokens > 1000000") == "steps: 0 of 2 files"
    assert plan("SELECT tokens_seen FROM steps WHERE step_time_s > 1000000") == "steps: 2 of 2 files"


@pytest.mark.slow
def test_after_its_day_the_error_says_what_to_write(lake, spool, changed):
    """Over is over: the error has the new name, the migration, the day and the factor."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)
    until(changed.migrate("steps", change, factor=1000), TODAY - timedelta(days=1))
    applying.apply(lake, InProcess(), "Ada")
    with pytest.raises(QueryError) as failed:
        ask(lake, "SELECT tokens FROM steps")
    for word in ("'tokens'", "tokens_seen", "_steps_2", str(TODAY - timedelta(days=1))):
        assert word in str(failed.value)
    with pytest.raises(QueryError, match=r"times 1000\); .*write step_time_ms in ms"):
        ask(lake, "SELECT avg(step_time_s) FROM steps")
    assert ask(lake, "SELECT avg(step_time_ms) AS m FROM steps").rows.num_rows == 1


def test_a_dropped_column_says_so(lake, spool, changed):
    """A name whose values are gone is not answered; the error says by which migration."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)

    def drop(facts):
        gone = next(one for one in facts["columns"] if one["name"] == "loss")
        facts["columns"].remove(gone)
        tomb = {"id": gone["id"], "name": "loss", "type": gone["type"], "retired_in": 2, "reason": "-"}
        facts["retired"] = [tomb]
        facts["checks"] = [one for one in facts.get("checks", []) if "loss" not in one.get("columns", [])]

    changed.migrate("steps", drop)
    one = former_names(contract("steps"))["loss"]
    assert (one.now, one.answers(TODAY)) == ("", False)


def test_the_command_tells_once_and_keeps_its_output_clean(moved, monkeypatch):
    """Stdout has the rows alone, stderr a line for each former name, however many rows there are."""
    monkeypatch.setenv("RANKLAKE_LAKE", moved.uri)
    text = "SELECT tokens, tokens + 1 AS more FROM steps WHERE step_time_s > 0"
    done = CliRunner().invoke(sql, [text, "--format", "csv"], standalone_mode=False)
    assert done.exception is None
    assert len(done.stdout.splitlines()) == 41
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert f"steps.step_time_s, which answers until {TODAY + timedelta(days=1)}" in lines[0]
    assert "called tokens_seen since migration 00" in lines[1]
    quiet = CliRunner().invoke(sql, ["SELECT count(*) AS n FROM steps", "--format", "csv"], standalone_mode=False)
    assert quiet.stderr == ""


def test_python_warns(moved):
    """`ranklake.lake.sql` answers former names, too, and warns."""
    with pytest.warns(FutureWarning, match=r"steps\.tokens, which answers until"):
        assert ranklake.lake.sql("SELECT tokens FROM steps", moved).num_rows == 40


def divided(facts):
    """Have tokens as thousands and the rest; loss and lr as one text."""
    for name in ("tokens", "loss", "lr"):
        gone = next(one for one in facts["columns"] if one["name"] == name)
        facts["columns"].remove(gone)
        tomb = {"id": gone["id"], "name": name, "type": gone["type"], "retired_in": facts["version"] + 1, "reason": "-"}
        facts.setdefault("retired", []).append(tomb)
        facts["checks"] = [one for one in facts["checks"] if name not in one.get("columns", ())]
    for id_, name, type_ in ((901, "thousands", "int64"), (902, "rest", "int64"), (903, "both", "string")):
        unit = {} if type_ == "string" else {"unit": "1"}
        facts["columns"].append({"id": id_, "name": name, "type": type_, "class": "operational", "doc": "-", **unit})


DIVIDE = [
    {
        "split": "tokens",
        "into": {"thousands": "tokens / 1000", "rest": "tokens % 1000"},
        "back": "thousands * 1000 + rest",
    },
    {
        "merge": ["loss", "lr"],
        "into": "both",
        "by": "coalesce(CAST(loss AS VARCHAR), '-') || '/' || coalesce(CAST(lr AS VARCHAR), '-')",
        "back": {
            name: f"CAST(nullif(split_part(both, '/', {place}), '-') AS REAL)"
            for place, name in enumerate(("loss", "lr"), 1)
        },
    },
]
OF_DIVIDED = [
    "SELECT tokens, loss, lr FROM steps ORDER BY incarnation, segment, slot",
    "SELECT s.tokens AS t FROM steps s JOIN steps o USING (incarnation, segment, slot) WHERE o.loss > 3 ORDER BY 1",
    "SELECT sum(tokens) AS n, count(lr) AS m FROM (SELECT * FROM steps) WHERE loss BETWEEN 2 AND 4",
    "SELECT tokens, max(loss) AS worst FROM steps GROUP BY tokens HAVING max(loss) > 1",
]


@pytest.mark.slow
def test_columns_that_were_split_and_merged_answer(lake, spool, changed):
    """Former names are computed as `back` says, also where what came of them was renamed and converted since."""
    put_segment(spool, step_rows(40))
    bring(lake, spool)
    before = [ask(lake, text).rows.to_pydict() for text in OF_DIVIDED]
    tomorrow = TODAY + timedelta(days=1)
    until(changed.migrate("steps", divided, DIVIDE), tomorrow)

    def later(facts):
        called(facts, "thousands", "rest_of", unit="k")
        called(facts, "rest", "thousands")

    steps = [
        {"convert": "thousands", "to": "rest_of", "unit": "k", "factor": 10},
        {"rename": "rest", "to": "thousands"},
    ]
    changed.migrate("steps", later, steps)
    applying.apply(lake, InProcess(), "Ada")
    for text, told in zip(OF_DIVIDED, before, strict=True):
        found = ask(lake, text)
        assert list(found.rows.to_pydict()) == list(told), text
        for name, values in told.items():
            given_back = [value if value is None else pytest.approx(value, rel=1e-6) for value in values]
            assert found.rows[name].to_pylist() == given_back, text
    said = {one.former.name: one.message for one in used_former_names(ask(lake, OF_DIVIDED[0]))}
    assert (
        f"steps.tokens, which answers until {tomorrow}: tokens is thousands * 1000 + rest of rest_of" in said["tokens"]
    )
    assert ask(lake, "SELECT * FROM steps").rows.num_rows == 40
    assert "tokens" not in ask(lake, "SELECT * FROM steps WHERE tokens > 0").rows.column_names
    rest = contract("steps").column("rest_of")
    changed.edit("steps", lambda facts: called(facts, "rest_of", "rest_of", **{"class": "personal", "mask": "nullify"}))
    with pytest.raises(QueryError, match="unknown column 'tokens'"):
        ask(lake, "SELECT tokens FROM steps", role=Role("r", OPERATIONAL, frozenset({"steps"})))
    role = Role("m", EVERY, frozenset({"steps"}), column_masks={("steps", rest.id): Mask("nullify", "")})
    assert ask(lake, "SELECT tokens FROM steps", role=role).rows["tokens"].to_pylist() == [None] * 40


def test_a_split_column_answers_no_more_after_its_day_or_what_it_came_of(lake, spool, changed):
    """The error says of what to compute it; where a part was dropped since, there is nothing to compute."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    until(changed.migrate("steps", divided, DIVIDE), TODAY - timedelta(days=1))
    applying.apply(lake, InProcess(), "Ada")
    with pytest.raises(QueryError, match=r"answered until .*compute it of thousands, rest"):
        ask(lake, "SELECT tokens FROM steps")
    gone = former_names(contract("steps"))["tokens"]
    assert moved_on(gone, Drop("rest"), "0099_x").now == ""


@pytest.fixture
def hidden(lake, changed):
    """Return a lake whose classified column ``user`` of runs is called ``person`` now."""
    runs = [("open", "ada"), ("closed", "mallory")]
    append(lake, "runs", [{"ts": NOON, "run": run, "job": "gpt", "user": user, "world_size": 1} for run, user in runs])
    path = changed.migrate("runs", lambda facts: (called(facts, "user", "person"), called(facts, "job", "work")))
    until(path, TODAY + timedelta(days=1))
    applying.apply(lake, InProcess(), "Ada")
    return lake


LEAKS = [
    'SELECT "user" FROM runs',
    'SELECT r."user" FROM runs r',
    "SELECT run FROM runs WHERE \"user\" = 'mallory'",
    'SELECT run FROM runs ORDER BY "user"',
    'SELECT job, (SELECT max("user") FROM runs) AS u FROM runs',
    'SELECT a.job FROM runs a JOIN runs b ON a."user" = b."user"',
    'WITH r AS (SELECT * FROM runs) SELECT "user" FROM r',
    'SELECT count(DISTINCT "user") FROM runs',
    "SELECT * FROM runs WHERE job = 'gpt' AND \"user\" IS NOT NULL",
    "SELECT run FROM runs r WHERE EXISTS (SELECT 1 FROM runs o WHERE o.\"user\" > 'm' AND o.run = r.run)",
]


@pytest.mark.parametrize("text", LEAKS)
@pytest.mark.parametrize("by_version", [False, True])
@pytest.mark.slow
def test_a_role_sees_under_a_former_name_what_it_sees_under_the_new(hidden, text, by_version):
    """A column that a role does not see is unknown under each of its names, and so is that it ever was there."""
    role = Role("r", OPERATIONAL, frozenset({"runs"}))
    as_of = [f"runs={delta_table(hidden.store, 'runs').version()}"] if by_version else None
    with pytest.raises(QueryError) as failed:
        ask(hidden, text, role=role, as_of=as_of)
    assert "unknown column" in str(failed.value)
    assert "person" not in str(failed.value)
    assert "mallory" not in str(failed.value)
    cleared = Role("c", EVERY, frozenset({"runs"}))
    assert ask(hidden, text, role=cleared, as_of=as_of).rows.num_rows > 0


@pytest.mark.parametrize("version", [0, 1, None])
@pytest.mark.slow
def test_a_masked_column_is_masked_under_each_of_its_names(hidden, version):
    """A mask is of a column, whatever it was called: under its former name, and in versions of the table before."""
    column = contract("runs").column("person")
    role = Role("r", EVERY, frozenset({"runs"}), column_masks={("runs", column.id): Mask("keep", "1")})
    as_of = None if version is None else [f"runs={version + 1}"]
    found = ask(hidden, 'SELECT run, "user" AS u FROM runs WHERE "user" LIKE \'m%\'', role=role, as_of=as_of).rows
    assert found.to_pylist() == [{"run": "closed", "u": "m******"}]
    leaked = ask(hidden, "SELECT * FROM runs WHERE \"user\" = 'mallory'", role=role, as_of=as_of).rows
    assert leaked.num_rows == 0


def test_an_old_version_is_seen_by_what_its_columns_are_classified_as_today(hidden, changed):
    """A column that was taken for harmless, and is not, is hidden and masked in versions of the table before, too."""
    role = Role("r", OPERATIONAL, frozenset({"runs"}), masked=frozenset({"personal"}))
    assert "work" in ask(hidden, "SELECT * FROM runs", role=role).rows.column_names
    changed.edit("runs", lambda facts: called(facts, "work", "work", **{"class": "personal", "mask": "nullify"}))
    then = ask(hidden, "SELECT job FROM runs", role=role, as_of=["runs=1"]).rows
    assert then["job"].to_pylist() == [None, None]


def test_a_role_sees_its_rows_through_former_names(hidden):
    """Rows that the role does not see do not come through a former name; its condition may use one itself."""
    role = Role("r", OPERATIONAL, frozenset({"runs"}), {"runs": "\"user\" <> 'mallory'"})
    found = ask(hidden, "SELECT job FROM runs", role=role)
    assert found.rows.to_pylist() == [{"job": "gpt"}]
    assert [(one.former.name, one.by_role) for one in used_former_names(found)] == [("job", False), ("user", True)]
    assert not [
        one.message
        for one in used_former_names(found)
        if one.by_role and ("user" in one.message or "person" in one.message)
    ]
    assert found.sketch.columns == {"runs": ("work",)}
    with pytest.raises(QueryError, match="unknown column 'user'"):
        ask(hidden, 'SELECT "user" FROM runs', role=role)
    with pytest.raises(QueryError, match="more than a role may see"):
        ask(hidden, "EXPLAIN SELECT job FROM runs", role=role)


OWN = """\
table: sums
version: 1
kind: derived
owner: me
steward: me
summary: "Sums."
grain: [date]
partition: [date]
sort: [date]
retention: derived
rollup:
  inputs: [{table: TABLE}]
columns:
  - {id: 20, name: date, type: date, class: operational, required: true, doc: "UTC date."}
  - {id: 21, name: size, type: int64, unit: "1", class: operational, doc: "Of all."}
"""
SUM = "SELECT $date AS date, CAST(sum(WHAT) AS BIGINT) AS size FROM TABLE WHERE date = $date GROUP BY 1"


def own(folder, table, what):
    """Write an overlay whose rollup sums something of a table, and return it."""
    files = {"sums.yaml": OWN, "rollups/sums.sql": SUM.replace("WHAT", what)}
    return written(folder, {name: text.replace("TABLE", table) for name, text in files.items()})


def test_an_operators_rollup_goes_on(moved, tmp_path):
    """Its query may use former names, too, and is computed as before."""
    lake = under(moved, own(tmp_path / "own", "steps", "CASE WHEN step_time_s < 900 THEN tokens END"))
    run_rollups(lake, ["sums"])
    assert ask(lake, "SELECT size FROM sums").rows.to_pylist() == [{"size": 20 * 1024}] * 2


def test_an_operators_rollup_sees_no_more_than_before(hidden, tmp_path):
    """A column that its contract does not name is unknown to it under the former name, too."""
    (fault,) = faults(load_contracts(own(tmp_path / "own", "runs", 'length("user")')))
    assert "unknown column 'user'" in str(fault)
    assert "person" not in str(fault)
    assert list(faults(load_contracts(own(tmp_path / "two", "runs", "length(job)")))) == []


def test_a_hidden_column_is_no_former_name_of_another(changed, tmp_path):
    """A name that a column has now, which an operator's rollup does not see, stands for no other column."""

    def swap(facts):
        called(facts, "job", "work")
        called(facts, "user", "job")

    changed.migrate("runs", swap)
    (fault,) = faults(load_contracts(own(tmp_path / "own", "runs", "length(job)")))
    assert "unknown column 'job'" in str(fault)


STEPS = st.lists(st.sampled_from([None, 2.0, 0.001, 1000.0, -4.0]), min_size=1, max_size=5)


@given(STEPS, st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=1, max_size=8), st.integers(0, 4))
@settings(max_examples=15, deadline=None)
@pytest.mark.slow
def test_old_names_give_what_plain_python_gives(tmp_path_factory, factors, values, pick):
    """Over chains of renames and conversions, each former name gives the value that Python computes back."""
    folder = tmp_path_factory.mktemp("chain")
    names = [f"was_{place}" for place in range(len(factors))]
    for place, factor in enumerate(factors):
        to = [*names[1:], "loss"][place]
        one = {"rename": names[place], "to": to}
        if factor is not None:
            one = {"convert": names[place], "to": to, "unit": "s", "factor": factor, "offset": place}
        version = place + 1
        facts = {"number": place + 1, "name": "x", "table": "steps", "from": version, "to": version + 1}
        facts |= {"digests": {"from": "", "to": ""}, "steps": [one]}
        (folder / f"{place + 1:04d}_x.yaml").write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    pick %= len(names)

    def before(value):
        for place in reversed(range(pick, len(factors))):
            if factors[place] is not None and value is not None:
                value = (value - place) / factors[place]
        return value

    stored = [None if value is None else value / 64 for value in values]
    shared = {"run": "r", "ts": NOON, "incarnation": 1, "step": 0, "step_time_s": 1.0}
    with pytest.MonkeyPatch.context() as patch, closing(ChangedContracts(folder / "contracts", patch)) as contracts:
        contracts.edit("steps", lambda facts: facts.update(version=len(factors) + 1))
        patch.setattr(registry, "FOLDER", folder)
        lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
        append(lake, "steps", [{**shared, "slot": slot, "loss": value} for slot, value in enumerate(stored)])
        found = ask(lake, f"SELECT {names[pick]} AS v, loss FROM steps ORDER BY slot").rows
        total = ask(lake, f"SELECT count(x.{names[pick]}) AS n FROM (SELECT * FROM steps) x").rows
    expected = [before(value) for value in found["loss"].to_pylist()]  # float32, as it is stored
    told = found["v"].to_pylist()
    assert [value is None for value in told] == [value is None for value in expected]
    known = [value for value in expected if value is not None]
    assert [value for value in told if value is not None] == pytest.approx(known, rel=1e-5, abs=1e-3)
    assert total["n"].to_pylist() == [sum(value is not None for value in values)]
