"""The query log: who used which columns, written beside queries and never in their way."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from rollup_inputs import NOON, append
from today import TODAY

from ranklake.cli import cli
from ranklake.commands.sql import sql
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query import usage
from ranklake.lake.query.usage import (
    FOLDER,
    ConsumerError,
    LoggedQuery,
    consumer_named,
    logged_queries,
    logged_uses,
    note,
    tidy,
)
from ranklake.lake.store.lake_config import LakeConfig, QuerySection

SECRET = "hunter2"


@pytest.fixture
def queried(lake, monkeypatch):
    """Return a lake with a run, and the environment of whoever asks it."""
    append(lake, "runs", [{"ts": NOON, "run": SECRET, "job": "gpt", "user": "ada", "world_size": 1}])
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    return lake


def run(*args):
    """Run `ranklake sql`; raise what it raises."""
    done = CliRunner().invoke(sql, [*args, "--format", "csv"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done


def entries(lake):
    """Return the bytes of all files of the log."""
    return [path.read_bytes() for path in Path(lake.store.root, FOLDER).rglob("*") if path.is_file()]


def asked(consumer="c", day=TODAY, columns=(("steps", ("loss",)),), number=0, former=None):
    """Return a line of a day."""
    at = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1e6
    return LoggedQuery(consumer, None, dict(columns), former or {}, f"{int(at) + number:020}-{number:032x}")


def test_a_query_is_noted_without_its_values(queried):
    """The log says who used which columns as which role, and has neither text nor value of query or answer."""
    run(f"SELECT world_size + 41 AS mine FROM runs WHERE run = '{SECRET}'", "--consumer", "dash/board")
    run("SELECT count(*) AS n FROM runs", "--param", f"x={SECRET}")
    found = sorted(logged_queries(queried.store, TODAY), key=lambda one: one.id)
    assert [one.columns for one in found] == [{"runs": ("run", "world_size")}, {"runs": ()}]
    assert [one.consumer for one in found] == ["dash/board", consumer_named("")]
    assert [one.role for one in found] == [None, None]
    said = "".join(str({**json.loads(raw), "id": ""}) for raw in entries(queried))  # an id may have any digits
    assert not [word for word in (SECRET, "41", "mine", "SELECT", "gpt") if word in said]


def test_a_value_that_looks_like_a_plan_is_no_column(queried):
    """Whatever lines a text has that a query compares with, the log has columns only."""
    run("SELECT count(*) FROM public.runs WHERE run = $v", "--param", "v=x\n TableScan: runs projection=[pw1, a b]")
    (found,) = logged_queries(queried.store, TODAY)
    assert found.columns == {"runs": ("run",)}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT 'a\n  TableScan: runs projection=[job]' AS a, run FROM runs", {"runs": ("run",)}),
        ("SELECT job FROM runs LIMIT 0", {"runs": ("job",)}),
        ("SELECT job FROM runs WHERE run = 'a' AND false", {"runs": ("job",)}),
        ("EXPLAIN SELECT job FROM runs", {"runs": ("job",)}),
        ("EXPLAIN ANALYZE SELECT job FROM runs", {"runs": ("job",)}),
        ("SELECT job FROM (SELECT job, run FROM runs) q", {"runs": ("job",)}),
        ("SELECT job FROM runs WHERE run IN (SELECT run FROM steps)", {"runs": ("job", "run"), "steps": ("run",)}),
        (
            "SELECT (SELECT max(loss) FROM steps s WHERE s.run = r.run) FROM runs r",
            {"runs": ("run",), "steps": ("loss", "run")},
        ),
        (
            "WITH RECURSIVE runs AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM runs WHERE n < 3) "  # noqa: ISC004
            "SELECT n, max(loss) FROM runs JOIN steps ON step = n GROUP BY 1",
            {"steps": ("loss", "step")},
        ),
    ],
)
def test_columns_are_those_of_the_plan(queried, text, columns):
    """What a query names is noted, whether or not it gives rows, and nothing that only looks like a plan."""
    run(text)
    (found,) = logged_queries(queried.store, TODAY)
    assert found.columns == columns


def test_people_who_share_a_lake_share_its_log(lake):
    """Whatever the first one's umask, folder and file of a day are for all who may write to the lake."""
    Path(lake.store.root).chmod(0o2770)
    before = os.umask(0o077)
    try:
        assert note(lake.store, asked()) == ""
    finally:
        os.umask(before)
    day = Path(lake.store.root, FOLDER, str(TODAY))
    assert [stat.S_IMODE(one.stat().st_mode) for one in (day.parent, day)] == [0o2770, 0o2770]
    assert [stat.S_IMODE(one.stat().st_mode) for one in day.iterdir()] == [0o660]


def test_a_file_that_nobody_may_touch_holds_up_no_other(lake, monkeypatch):
    """What cannot be read is passed over, what cannot be deleted stays, and the rest goes on."""
    old = TODAY - timedelta(days=400)
    for day in (old, TODAY):
        for number in range(3):
            note(lake.store, asked(day=day, number=number))
    kind = type(lake.fs)

    def refuse(real, what):
        def inner(self, path, *args, **more):
            if f"{1:032x}.json" in str(path):
                raise PermissionError(13, what)
            return real(self, path, *args, **more)

        return inner

    monkeypatch.setattr(kind, "cat_file", refuse(kind.cat_file, "read"))
    monkeypatch.setattr(kind, "rm_file", refuse(kind.rm_file, "delete"))
    assert len(list(logged_queries(lake.store, TODAY))) == 2
    assert tidy(lake.store, 180)[0] == 2
    assert len(list(logged_queries(lake.store, TODAY))) == 2
    monkeypatch.undo()
    assert len(list(logged_queries(lake.store, TODAY))) == 3
    assert len(list(logged_queries(lake.store, old))) == 4


def test_a_line_of_no_year_is_passed_over():
    """A time beyond all years is none that anybody wrote."""
    line = asked().line()
    assert LoggedQuery.read(line) is not None
    assert LoggedQuery.read(line.replace(asked().id[:20], "9" * 20)) is None


def test_who_asks_is_configured(queried, monkeypatch):
    """The option goes before the environment; what is no name is refused before anything is asked."""
    monkeypatch.setenv("RANKLAKE_QUERY_CONSUMER", "nightly")
    run("SELECT job FROM runs")
    run("SELECT job FROM runs", "--consumer", "by-hand")
    assert sorted(one.consumer for one in logged_queries(queried.store, TODAY)) == ["by-hand", "nightly"]
    with pytest.raises(ConsumerError, match="not the name of a consumer"):
        run("SELECT job FROM runs", "--consumer", "a\nb")
    assert len(entries(queried)) == 2


def test_the_log_can_be_switched_off(queried, tmp_path, monkeypatch):
    """`[query] log = false`: nothing is written."""
    file = tmp_path / "quiet.toml"
    file.write_text("[query]\nlog = false\n")
    monkeypatch.setenv("RANKLAKE_CONFIG", str(file))
    assert run("SELECT job FROM runs").stderr == ""
    assert not Path(queried.store.root, FOLDER).exists()


def test_a_lake_that_cannot_be_written_answers(queried):
    """Where the log cannot be written, the rows are the same, and one line on stderr says so."""
    Path(queried.store.root, FOLDER).write_bytes(b"in the way")
    done = run("SELECT job FROM runs")
    assert done.stdout == "job\ngpt\n"
    (line,) = done.stderr.splitlines()
    assert "query log" in line
    assert "log = false" in line


def test_a_store_that_hangs_holds_nobody_up(lake, monkeypatch):
    """A write that does not end is left behind; nothing sleeps here but the store."""
    folder = Path(lake.store.root, FOLDER, str(TODAY))
    folder.mkdir(parents=True)
    one = asked()
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    pipe = folder / f"{one.id}.json.{uuid.UUID(int=0).hex}.tmp"
    os.mkfifo(pipe)  # opening it to write waits for a reader
    assert "no answer" in note(lake.store, one, limit_s=0.05)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pipe.open("rb"):  # lets the thread go on
        pass


CHILD = """
import sys
from ranklake.lake.store.lake import Lake
from ranklake.lake.query.usage import note
from ranklake.lake.query.usage import LoggedQuery
lake = Lake.open(sys.argv[1])
print("ready", flush=True)
while True:
    assert note(lake.store, LoggedQuery("child", None, {"steps": tuple(f"column_{n}" for n in range(500))}, {})) == ""
    print(".", end="", flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_lines(lake):
    """Killed at any moment, a writer leaves lines that are whole, and at most a stray file that nobody reads."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, lake.uri], stdout=subprocess.PIPE)
    assert child.stdout.read(len(b"ready\n") + 20).endswith(b".")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    day = min(Path(lake.store.root, FOLDER).iterdir())  # midnight may come between two of its lines
    (day / "half.json").write_text('{"id": "1')
    found = list(logged_queries(lake.store, TODAY))
    assert len(found) >= 20
    assert {len(one.columns["steps"]) for one in found} == {500}


def test_many_at_once_lose_nothing_while_it_is_folded(lake):
    """Loggers, and two who fold, side by side: each query counts once in the end."""
    yesterday = TODAY - timedelta(days=1)
    lines = [asked(f"c{number % 3}", day, number=number) for number in range(60) for day in (TODAY, yesterday)]
    done = threading.Event()

    def fold():
        while not done.is_set():
            tidy(lake.store, 180)

    with ThreadPoolExecutor(8) as pool:
        folding = [pool.submit(fold) for _ in range(2)]
        assert set(pool.map(lambda one: note(lake.store, one, 60), lines)) == {""}
        done.set()
        assert [one.result() for one in folding] == [None, None]
    tidy(lake.store, 180)
    assert sorted(one.id for one in logged_queries(lake.store, yesterday)) == sorted(one.id for one in lines)
    assert {one.queries for one in logged_uses(lake.store, yesterday)} == {40}
    assert len(entries(lake)) < 60


def test_days_that_are_over_go(lake, monkeypatch):
    """Upkeep deletes what is older than its days, and says how many files; a dry run deletes nothing."""
    kept = lake.configured(query=QuerySection(keep_days=30))
    monkeypatch.setattr(usage, "datetime", type("Today", (datetime,), {"now": lambda _: NOON}))
    for age in (0, 30, 31, 400):
        for number in range(2):
            note(lake.store, asked(day=NOON.date() - timedelta(days=age), number=number))
    assert upkeep(kept, InProcess(), dry_run=True).purged == {"old query logs": 4}
    assert len(entries(lake)) == 8
    assert upkeep(kept, InProcess()).purged == {"old query logs": 4}
    ages = sorted((NOON - one.at).days for one in logged_queries(lake.store, NOON.date() - timedelta(days=999)))
    assert ages == [0, 0, 30, 30]
    assert LakeConfig().query.keep_days > 90


def test_lines_of_a_later_release_stay(lake):
    """Folding leaves alone what it does not understand, and readers pass it over."""
    for number in range(3):
        note(lake.store, asked(number=number))
    strange = Path(lake.store.root, FOLDER, str(TODAY), "00000000000000000000-later.json")
    strange.write_text(json.dumps({"format": 9}))
    upkeep(lake, InProcess())
    assert strange.exists()
    assert len(list(logged_queries(lake.store, TODAY))) == 3


def test_the_command_shows_former_names_first(lake, monkeypatch):
    """`ranklake catalog use` lists consumers by column, those of former names first; as JSON, too."""
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    note(lake.store, asked("new", columns=[("steps", ("loss", "tokens_seen"))], number=1))
    for number in (2, 3):
        former = {"steps": {"tokens": "tokens_seen"}}
        note(lake.store, asked("old", columns=[("steps", ("tokens_seen",))], number=number, former=former))
    note(lake.store, asked("counter", columns=[("runs", ())], number=4))

    def show(*args):
        done = CliRunner().invoke(cli, ["catalog", "use", *args])
        assert done.exit_code == 0, done.output
        return done.stdout

    rows = json.loads(show("--json"))
    assert [(row["consumer"], row["table"], row["column"], row["now"], row["queries"]) for row in rows] == [
        ("old", "steps", "tokens", "tokens_seen", 2),
        ("counter", "runs", None, None, 1),
        ("new", "steps", "loss", None, 1),
        ("old", "steps", "tokens_seen", None, 2),
        ("new", "steps", "tokens_seen", None, 1),
    ]
    first = show().splitlines()[0]
    assert "steps.tokens" in first
    assert "tokens_seen" in first
    assert len(json.loads(show("steps.loss", "--json"))) == 1
    assert len(json.loads(show("runs", "--json"))) == 1
    tomorrow = str(TODAY + timedelta(days=1))
    assert json.loads(show("--since", tomorrow, "--json")) == []
    assert "no query" in show("gpu_samples")


def test_a_former_name_that_is_used_is_noted():
    """What a former name stood for is part of the line."""
    one = asked(former={"steps": {"tokens": "tokens_seen"}})
    assert LoggedQuery.read(one.line()) == one
    assert LoggedQuery.read('{"id": 3}') is None
