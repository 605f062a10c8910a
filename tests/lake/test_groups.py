"""Least sizes of groups: each combination of what may tell who somebody is stands for so many people."""

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from inspect import signature
from itertools import combinations

import pytest
import yaml
from deltalake import DeltaTable
from rollup_inputs import NOON, append

from ranklake.insight.ask import ask
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Groups, Role, RoleError
from ranklake.lake.query.sql import QueryError, answer, query
from ranklake.lake.store.lake import Lake
from ranklake.retention.roles.views import view
from ranklake.retention.shares.copies import definition
from ranklake.retention.shares.register import shares
from ranklake.retention.shares.sharing import keep, share

BY = ("team", "cluster", "world_size")
SHOWN = 'team, "cluster", world_size'


def role(least=3, of="user"):
    """Return a role that sees runs in groups alone."""
    return Role("r", frozenset({"operational"}), frozenset({"runs"}), groups={"runs": Groups(BY, least, of)})


def some_rows(chance, count):
    """Return runs of few people in few teams, of both of which some are not known."""
    return [
        {
            "ts": NOON + timedelta(minutes=n),
            "run": f"r{chance.randrange(10**9)}",
            "slot": chance.randrange(10**9),
            "user": chance.choice(["ada", "bo", "cy", "di", "eve", None]),
            "team": chance.choice(["t", "u", None]),
            "cluster": chance.choice(["c", "d"]),
            "world_size": chance.choice([1, 8, 512]),
        }
        for n in range(count)
    ]


def size(rows, of):
    """Return how many people, or rows, there are."""
    return len({row[of] for row in rows} - {None}) if of else len(rows)


def expected(rows, least, of):
    """Return (what is shown, who it is) of each row, in plain Python: the rule, step by step."""
    left, found = rows, []
    for kept in range(len(BY), -1, -1):
        groups = defaultdict(list)
        for row in left:
            groups[tuple(row[name] for name in BY[:kept])].append(row)
        left = []
        for key, mine in groups.items():
            if size(mine, of) >= least:
                found += [((*key, *[None] * (len(BY) - kept)), row) for row in mine]
            else:
                left += mine
    return found


def bag(rows):
    """Return rows in an order that goes by nothing else."""
    return sorted(map(repr, rows))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_smaller_group_is_seen_whatever_is_asked(tmp_path, seed):
    """The answer is the oracle's, and no choice by the columns of groups meets fewer than the least."""
    chance = random.Random(seed)
    rows = some_rows(chance, chance.choice([0, 2, 9, 40, 90]))
    lake = Lake.create(str(tmp_path / "lake"))
    for part in (rows[::2], rows[1::2]):
        if part:
            append(lake, "runs", part)
    for least, of in ((2, "user"), (3, "user"), (4, ""), (5, "user")):
        who = {row["run"]: row for row in rows}
        mine = expected(rows, least, of)
        answer = query(lake, f"SELECT run, {SHOWN} FROM runs", role=role(least, of)).to_pylist()
        assert bag((*one.values(),) for one in answer) == bag((row["run"], *shown) for shown, row in mine)
        for chosen in (one for n in (1, 2, 3) for one in combinations(BY, n)):
            for values in {tuple(row[name] for name in chosen) for row in answer}:
                said = [
                    f'"{name}" IS NULL' if value is None else f'"{name}" = {value!r}'
                    for name, value in zip(chosen, values, strict=True)
                ]
                text = f"SELECT run FROM runs WHERE {' AND '.join(said)}"
                met = query(lake, text, role=role(least, of)).to_pylist()
                assert size([who[row["run"]] for row in met], of) >= least
                others = {row["run"] for row in answer} - {row["run"] for row in met}
                assert not others or size([who[run] for run in others], of) >= least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_smaller_group_is_in_a_share(tmp_path, seed):
    """However rows came, after each of many refreshes every group of the table is large enough."""
    chance = random.Random(100 + seed)
    lake = Lake.create(str(tmp_path / "lake"))
    kept, rows = 0, []
    for _ in range(5):
        some = some_rows(chance, chance.choice([1, 5, 30, 60]))
        rows += some
        append(lake, "runs", some)
        share(lake, role(), str(tmp_path / "out"), "ada", InProcess())
        table = DeltaTable(f"{tmp_path}/out/r/tables/runs").to_pyarrow_dataset().to_table().to_pylist()
        who = {row["run"]: row for row in rows}
        groups = defaultdict(set)
        for row in table:
            groups[tuple(row[name] for name in BY)].add(who[row["run"]]["user"])
            kept += 1
            assert all(row[name] in {None, who[row["run"]][name]} for name in BY)
        assert all(len(some - {None}) >= 3 for some in groups.values())
    assert kept
    again = share(lake, role(), str(tmp_path / "again"), "ada", InProcess())
    assert again.is_changed
    assert {path.name for path in (tmp_path / "again").rglob("_delta_log")} == {"_delta_log"}


def test_the_order_of_rows_tells_of_nobody(tmp_path):
    """Rows of one person do not stand together, and the column by which people are counted is not there."""
    lake = Lake.create(str(tmp_path / "lake"))
    people = ["ada", "bo", "cy"]
    rows = [{"ts": NOON, "run": f"r{n}", "slot": n, "user": people[n % 3], "team": "t"} for n in range(9)]
    append(lake, "runs", rows)
    assert query(lake, "SELECT run FROM runs", role=role()).column("run").to_pylist() == [f"r{n}" for n in range(9)]
    for text in ('SELECT "user" FROM runs', "SELECT ranklake_person FROM runs", "SELECT ranklake_size FROM runs"):
        with pytest.raises(QueryError):
            query(lake, text, role=role())


def test_two_versions_do_not_tell_who_came(tmp_path):
    """A role that sees groups asks of now alone."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [{"ts": NOON, "run": "r"}])
    with pytest.raises(QueryError, match="two versions of a table tell who came between them"):
        query(lake, "SELECT * FROM runs", as_of=["runs=1"], role=role())


def test_what_came_back_does_not_tell_who_is_in_it(tmp_path):
    """A role that sees groups asks of the tables alone, whichever of them has rows back, by command as well."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [{"ts": NOON, "run": "r"}])
    for text in ("SELECT * FROM runs", "SELECT 1"):
        with pytest.raises(QueryError, match=r"--rehydrated: .* tells who is among that; leave it out"):
            ask(lake, text, role=role(), rehydrated=True)
    assert ask(lake, "SELECT * FROM runs", rehydrated=True).rows.num_rows == 1


def test_no_other_option_changes_which_rows_a_role_sees():
    """Whoever adds an option to queries looks at groups: with it and without must not tell of single people."""
    options = {name for name, one in signature(answer).parameters.items() if one.kind is one.KEYWORD_ONLY}
    alike = {"role", "verify", "views", "former", "former_tables", "opened"}
    assert options - alike == {"as_of", "rehydrated"}


def test_other_groups_make_copies_anew():
    """A share is made anew where its least size changes; who explains a role is told of it."""
    runs = contract("runs")
    assert definition(role(3), runs, ()) != definition(role(4), runs, ())
    assert definition(role(3, ""), runs, ()) != definition(role(3), runs, ())
    assert view(role(), runs).rows == ("each team, cluster, world_size shared by 3 values of user or more",)


GOOD = {"by": ["team"], "least": 3, "of": "user"}
BAD = [
    ({"runs": 3}, "groups.runs must be a mapping"),
    ({"steps": GOOD}, "does not see steps"),
    ({"runz": GOOD}, "unknown table 'runz'.*did you mean 'runs'"),
    ({"runs": {**GOOD, "least": 1}}, "least must be at least 2"),
    ({"runs": {**GOOD, "least": True}}, "least must be a whole number"),
    ({"runs": {**GOOD, "by": []}}, "must be a list of 1 to 6"),
    ({"runs": {**GOOD, "by": ["team", "team"]}}, "must be a list of 1 to 6"),
    ({"runs": {**GOOD, "by": ["taem"]}}, "unknown column 'taem'.*did you mean 'team'"),
    ({"runs": {**GOOD, "by": ["git_patch"]}}, "the role does not see git_patch"),
    ({"runs": {**GOOD, "by": ["date"]}}, "tells rows of runs apart"),
    ({"runs": {**GOOD, "of": "usr"}}, "unknown column 'usr'"),
    ({"runs": {**GOOD, "at_least": 3}}, "unknown key 'at_least'"),
]


def write(path, body):
    """Write a file of one role and return it."""
    path.write_text(yaml.safe_dump({"roles": {"r": body}}))
    return path


@pytest.mark.parametrize(("groups", "message"), BAD)
def test_what_is_no_group_is_one_line(tmp_path, groups, message):
    """Groups that name what is not there, that are too small, or that mix rows up are refused with the role's file."""
    body = {"classes": ["operational"], "tables": ["runs"], "groups": groups}
    with pytest.raises(RoleError, match=message) as caught:
        load_role(write(tmp_path / "roles.yaml", body), "r", load_contracts())
    assert "\n" not in str(caught.value)


def test_who_is_seen_beside_the_groups_is_refused(tmp_path):
    """A pseudonym beside the groups would tell people apart: it goes into them, or is hidden."""
    body = {"classes": ["operational"], "tables": ["runs"], "masked": ["pseudonymous"], "groups": {"runs": GOOD}}
    with pytest.raises(RoleError, match="is seen beside the groups, and tells people apart"):
        load_role(write(tmp_path / "roles.yaml", body), "r", load_contracts())
    found = load_role(write(tmp_path / "roles.yaml", {**body, "masked": []}), "r", load_contracts())
    assert found.groups == {"runs": Groups(("team",), 3, "user")}


def test_a_role_ends_with_its_day(tmp_path):
    """A role whose time is over is refused in a line that says so, for queries and shares; its shares go."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [{"ts": NOON, "run": "r"}])
    today = datetime.now(UTC).date()
    body = {"classes": ["operational"], "tables": ["runs"], "until": today + timedelta(days=1)}
    good = load_role(write(tmp_path / "roles.yaml", body), "r", load_contracts())
    assert query(lake, "SELECT run FROM runs", role=good).num_rows == 1
    share(lake, good, str(tmp_path / "out"), "ada", InProcess())
    over = replace(good, until=date(2026, 1, 31))
    for step in (
        lambda: query(lake, "SELECT run FROM runs", role=over),
        lambda: share(lake, over, str(tmp_path / "out"), "ada", InProcess()),
    ):
        with pytest.raises(RoleError, match="role r ended with 2026-01-31"):
            step()
    done = keep(lake, {"r": over}, "ada", InProcess(), [("r", str(tmp_path / "out"))])
    assert [one.why for one in done.dropped] == ["role r ended with 2026-01-31"]
    assert not shares(lake.store)
    with pytest.raises(RoleError, match="until must be a day"):
        load_role(write(tmp_path / "roles.yaml", {**body, "until": "soon"}), "r", load_contracts())
