"""Ask: SQL from a page by the path of `ranklake sql`: same rows and errors, a role's view, bound in time and memory."""

import io
import re
import socket
import time
from contextlib import suppress
from urllib.parse import urlencode, urlsplit

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
from hidden_run import PLANTED, READER, TABLES, lake_with_a_hidden_run
from hostile_lake import HOSTILE, MARKER
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append
from serving import wait_for
from ui_client import asking, context_of, ui_process

from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.query.usage import logged_queries
from ranklake.ui.ask import ASK_HOME, ASK_ROWS, ASK_WORDS
from ranklake.ui.query_process import MOST_ROWS
from ranklake.ui.viewers import Viewer

pytestmark = pytest.mark.leaky("a client keeps its event loop, a server its processes until it ends")
PAGE, ROWS = f"/{ASK_HOME}", f"/{ASK_ROWS}"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"}
ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
READS_OR_WRITES = (
    "COPY runs TO '/tmp/views-out.csv'",
    "EXPLAIN ANALYZE COPY runs TO '/tmp/views-out.csv'",
    "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '/etc/passwd'",
    "CREATE TABLE e AS SELECT 1",
    "CREATE VIEW e AS SELECT 1",
    "DROP TABLE runs",
    "INSERT INTO runs SELECT * FROM runs",
    "DELETE FROM runs",
    "SET datafusion.execution.batch_size = 1",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM 'file:///etc/hosts.csv'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT read_text('/etc/passwd')",
    "SELECT 1; SELECT 2",
    "",
    "-- nothing",
)  # fmt: skip


class AsRole:
    """Viewers who are all one, by name."""

    def __init__(self, role, name="eve"):
        self.viewer = Viewer(role, name)

    def viewer_of(self, _request):
        """Return who looks."""
        return self.viewer


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def client(lake):
    """Give a client of a server whose queries end soon."""
    context = context_of(lake, **{"ui.query_s": 20.0, "ui.query_memory_bytes": 2**30})
    with asking(lake, context=context) as found:
        yield found


def token_of(client, **asked):
    """Return the token of the page."""
    return re.search('data-token="([0-9a-f]+)"', client.get(PAGE, **asked).text)[1]


def ask(client, sql, form="json", token=None, headers=None):
    """Send a statement."""
    sent = {"token": token_of(client, headers=headers) if token is None else token, "sql": sql, "form": form}
    return client.post(ROWS, content=urlencode(sent), headers={**FORM, **(headers or {})})


def test_rows_are_those_of_the_command_line(lake, client):
    """Of every kind of value; as CSV and Parquet, too."""
    sql = "SELECT run, status, ts, steps, last_loss FROM run_summary ORDER BY run;"
    answer = ask(client, sql)
    assert answer.status_code == 200, answer.text
    facts = answer.json()
    expected = query(lake, sql.rstrip(";"))
    assert [column["name"] for column in facts["columns"]] == expected.column_names
    assert [column["kind"] for column in facts["columns"]] == ["text", "text", "time", "number", "number"]
    assert [row[0] for row in facts["rows"]] == expected["run"].to_pylist()
    assert [row[4] for row in facts["rows"]] == expected["last_loss"].to_pylist()
    assert (facts["cut"], facts["messages"]) == (False, [])
    assert ask(client, sql, "csv").text.splitlines()[1].startswith("alpha-1,")
    assert pq.read_table(io.BytesIO(ask(client, sql, "parquet").content))["run"].to_pylist() == [
        row[0] for row in facts["rows"]
    ]


def test_what_a_browser_would_change_comes_as_text(client):
    """NaN is not NULL, a number beyond 2^53 keeps its digits, two columns of one name are two, controls are escapes."""
    sql = (
        "SELECT 'NaN'::double AS f, 9007199254740993 AS big, NULL AS n, a.run, b.run, chr(8238) AS turned, "
        "make_array(1, 2) AS many, repeat('x', 5000) AS long FROM run_summary a JOIN run_summary b ON a.run < b.run "
        "WHERE a.run = 'alpha-1' ORDER BY b.run LIMIT 1"
    )
    facts = ask(client, sql).json()
    row = facts["rows"][0]
    assert row[:4] == ["nan", "9007199254740993", None, "alpha-1"]
    assert row[4] == "alpha-2"
    assert (row[5], row[6]) == ("\\u202e", "[1, 2]")
    assert row[7].endswith("… (5,000 characters)")
    assert ask(client, sql, "csv").text.splitlines()[1].split(",")[3:5] == ["alpha-1", "alpha-2"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM stepz", "unknown table 'stepz'; did you mean 'steps'?"),
        ("SELECT los FROM steps", "unknown column 'los'; did you mean 'loss'?"),
        ("SELECT summ(loss) FROM steps", "unknown function 'summ'"),
        ("SELECT run FROM runs WHERE", "syntax error"),
        ("SELECT $x", "no value is given for $x; write the value into the statement"),
    ],
)
def test_an_error_is_one_line_with_the_nearest_name(client, sql, said):
    """As the command line says it."""
    answer = ask(client, sql)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert said in answer.text
    assert answer.text.count("\n") == 1


def test_nothing_is_written_and_no_file_is_read(client):
    """Statements that change, set, copy, or name a file are refused in one line; tables are as they were."""
    answers = {sql: ask(client, sql) for sql in READS_OR_WRITES}
    assert {sql: answer.status_code for sql, answer in answers.items() if answer.status_code != 400} == {}
    assert [sql for sql, answer in answers.items() if "root:" in answer.text or "localhost" in answer.text] == []
    assert ask(client, "SELECT count(*) FROM runs").json()["rows"][0][0] > 0


@pytest.mark.slow
def test_a_query_that_never_ends_is_ended_and_the_next_is_answered(lake):
    """By its time; one that grows, by its memory; one that breaks its process, too. The server goes on meanwhile."""
    context = context_of(lake, **{"ui.query_s": 8.0, "ui.query_memory_bytes": 700 * 2**20})
    with asking(lake, context=context) as client:
        assert ask(client, "SELECT 1 AS one").json()["rows"] == [[1]]
        assert "the query took more than 8 s" in ask(client, ENDLESS).text
        large = ask(
            client, "SELECT sum(length(a)) FROM (SELECT repeat('x', 1000000) AS a FROM generate_series(1, 2000))"
        )
        assert large.status_code in {200, 400}
        grown = ask(client, "SELECT repeat(repeat('x', 1000000), 1500) AS a")
        assert "GiB of memory" in grown.text or "ended its process" in grown.text or "took more than" in grown.text
        nested = ask(client, "SELECT " + "(" * 20_000 + "1" + ")" * 20_000)
        assert nested.status_code == 400
        assert ask(client, "SELECT 1 AS one").json()["rows"] == [[1]]


def test_long_answers_are_cut_and_said_to_be(client):
    """On the page after so many rows; a file is refused beyond its own."""
    facts = ask(client, "SELECT * FROM generate_series(1, 10000000)").json()
    assert (len(facts["rows"]), facts["cut"]) == (MOST_ROWS, True)
    exact = ask(client, f"SELECT * FROM generate_series(1, {MOST_ROWS})").json()
    assert (len(exact["rows"]), exact["cut"]) == (MOST_ROWS, False)
    refused = ask(client, "SELECT * FROM generate_series(1, 10000000)", "parquet")
    assert (refused.status_code, "larger than 1,000,000 rows" in refused.text) == (400, True)
    assert ask(client, f"SELECT '{'x' * 300_000}'").status_code == 400
    assert ask(client, "SELECT 1", "exe").status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_another_site_cannot_ask(client, headers, status):
    """Even with a good token; nor can anybody without one, or by an address."""
    assert ask(client, "SELECT 1", token=token_of(client), headers=headers).status_code == status
    assert ask(client, "SELECT 1", token="").status_code == 403
    assert ask(client, "SELECT 1", token="ä").status_code == 403
    assert client.get(ROWS, params={"sql": "SELECT 1"}).status_code == 404


@pytest.mark.slow
def test_a_role_asks_of_what_it_sees_alone(lake):
    """Rows, columns, errors, plans and completions have no word of what is hidden."""
    role = Role("reader", frozenset(READER["classes"]), frozenset(TABLES) - {"gpu_hourly"}, runs=READER["runs"])
    with asking(lake, viewers=AsRole(role)) as client:
        token = token_of(client)
        answers = [ask(client, f"SELECT * FROM {table}", token=token) for table in TABLES]
        answers += [
            ask(client, sql, form, token)
            for sql in (
                *("SHOW TABLES", "SELECT * FROM information_schema.columns", "EXPLAIN SELECT * FROM steps"),
                *("DESCRIBE gpu_hourly", "SELECT CAST(run AS int) FROM runs", "SELECT * FROM gpu_hourly"),
            )
            for form in ("json", "csv")
        ]
        answers += [
            client.get(f"/{ASK_WORDS}", params={"before": before})
            for before in ("SELECT * FROM steps WHERE run = '", "SELECT * FROM ", "SELECT ho", "SELECT * FROM gpu")
        ]
    assert sum(answer.status_code == 200 for answer in answers) > len(TABLES) // 2
    text = "".join(f"{answer.headers} {answer.text}" for answer in answers).lower()
    assert [word for word in PLANTED if word in text] == []
    assert "alpha-1" in text


def test_words_are_those_of_the_shell(client):
    """Tables after FROM, columns of the named tables, runs and metrics in quotes, functions."""

    def words(before, after=""):
        return [word for word, _ in client.get(f"/{ASK_WORDS}", params={"before": before, "after": after}).json()]

    assert "steps" in words("SELECT * FROM st")
    assert "loss" in words("SELECT lo", " FROM steps")
    assert "alpha-1" in words("SELECT * FROM steps WHERE run = 'al")
    assert "json_text" in words("SELECT json_")
    assert client.get(f"/{ASK_WORDS}", params={"before": "SELECT * FROM st"}).json()[0][1] == 2
    assert words("SELECT *\n  FROM   st") == words("SELECT * FROM st")
    assert words("") == []
    began = time.process_time()
    for hostile in (" " * 4_000, "IN (" + " " * 4_000, "'" * 4_000, "a" * 4_000, "FROM a AS " * 400):
        words(hostile, hostile)
    assert time.process_time() - began < 5


def test_a_query_is_noted_by_the_name_of_who_asked(tmp_path):
    """In the query log, with the role, and nothing of its text."""
    lake = lake_of_runs(tmp_path)
    role = Role("reader", frozenset(READER["classes"]), frozenset(TABLES))
    with asking(lake, viewers=AsRole(role, "eve@example.com")) as client:
        assert ask(client, "SELECT loss FROM steps WHERE run = 'no-such-run'").status_code == 200
    asked = [(one.consumer, one.role, one.columns) for one in logged_queries(lake.store, NOON.date())]
    assert ("eve@example.com", "reader", {"steps": ("loss", "run")}) in [
        (who, name, {table: tuple(sorted(names)) for table, names in columns.items()}) for who, name, columns in asked
    ]


def test_hostile_text_stays_text(tmp_path):
    """A statement in an address, a column's name, a value: in the page and in what it asks for."""
    lake = lake_of_runs(tmp_path)
    append(lake, "annotations", [{"run": "alpha-1", "ts": NOON, "kind": "tag", "key": HOSTILE}])
    with asking(lake) as client:
        page = client.get(PAGE, params={"sql": f"</textarea>{HOSTILE}", "x": HOSTILE, "chart": "line"}).text
        answer = ask(client, f'SELECT key AS "<img src=x onerror={MARKER}(5)>" FROM annotations')
        failed = ask(client, f'SELECT * FROM "<script>{MARKER}(6)</script>"')
        assert client.get(PAGE, params={"chart": HOSTILE}).status_code == 400
    for forbidden in (
        f"<script>{MARKER}",
        f"<img src=x onerror={MARKER}",
        "</textarea></script>",
        "\x1b",
        "\u202e",
        "\x00",
    ):
        assert forbidden not in page
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "\\u001b" not in answer.text
    assert failed.headers["content-type"].startswith("text/plain")


@pytest.mark.slow
def test_who_goes_away_takes_the_query_along(lake):
    """A connection that closes ends the process of its query; Ctrl-C ends all of them."""
    with ui_process(lake) as (process, url):
        server, host = psutil.Process(process.pid), urlsplit(url)
        with httpx.Client(base_url=url, timeout=60) as client:
            token = token_of(client)
            assert ask(client, "SELECT 1 AS one", token=token).status_code == 200
        first = {child.pid for child in server.children()}
        body = urlencode({"token": token, "sql": ENDLESS})
        with socket.create_connection((host.hostname, host.port)) as connection:
            lines = (f"POST {ROWS} HTTP/1.1", f"Host: {host.netloc}", f"Content-Length: {len(body)}",
                     f"Content-Type: {FORM['Content-Type']}", "", body)  # fmt: skip
            connection.sendall("\r\n".join(lines).encode())
            busy = psutil.Process(next(iter(first)))
            begun_s = busy.cpu_times().user
            wait_for("the query", lambda: busy.cpu_times().user > begun_s + 0.1)
        wait_for("its end", lambda: not first & {child.pid for child in server.children()})
        with httpx.Client(base_url=url, timeout=60) as client:
            assert ask(client, "SELECT 2 AS two").json()["rows"] == [[2]]
        left = server.children()
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.wait(10)
    assert not [child for child in left if child.is_running()]
