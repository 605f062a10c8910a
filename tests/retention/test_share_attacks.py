"""Attacks on shares: whatever is looked at in a share, or asked of its server, is the same whatever is hidden.

As in `test_role_attacks`, all is asked of the shares of two lakes that differ in what the role must not see alone. Both
went through the same life: hidden files came and were merged, a run was taken out of the role's sight, rows were
retired. The reader holds the prefix with all its bytes, or a profile of the server.
"""

import base64
import json
import re
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from rollup_inputs import NOON, append
from starlette.testclient import TestClient

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.masking.masks import Mask
from ranklake.retention.shares.server.app import sharing_app
from ranklake.retention.shares.server.links import FILE, PROFILE, seal_token
from ranklake.retention.shares.sharing import share, withdraw
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring

pytestmark = [pytest.mark.slow, pytest.mark.leaky("engines keep threads and connections")]
HIDDEN = ("mallory", "trudi", "closed", "cathode", "caesium", "leaver", "retired")
TABLES = ("annotations", "cluster_hourly", "jobs", "runs", "steps")
KEYS = Keyring((Key(bytes(range(32))),))


def column(table, name, said):
    """Return what a role has of one column's mask."""
    return (table, contract(table).column(name).id), Mask.parse(said, "")


ROLE = Role(
    "reader",
    frozenset({"operational"}),
    frozenset(TABLES),
    {
        "runs": "run LIKE 'open%' AND \"user\" <> 'trudi--'",
        "steps": "run IN (SELECT run FROM runs WHERE run LIKE 'open%' AND team = 't')",
        "cluster_hourly": "cluster = 'c'",
        "jobs": "\"user\" NOT IN ('mallory', 'trudi--')",
        "annotations": "run LIKE 'open%'",
    },
    masked=frozenset({"pseudonymous"}),
    column_masks=dict(
        [
            column("runs", "world_size", "bucket:10"),
            column("runs", "cluster", "keep:1"),
            column("runs", "submitted_ts", "truncate:month"),
            column("runs", "labels", "redact"),
            column("steps", "tokens", "nullify"),
            column("cluster_hourly", "gpu_utilization_counts", "bucket:10"),
        ]
    ),
)


def hidden_steps(word, count, first):
    """Return steps of runs that the role does not see."""
    return [
        {"ts": NOON, "run": f"closed-{word}", "step": first + n, "step_time_s": 9.0, "incarnation": 8, "segment": first}
        for n in range(count)
    ]


def shared_lake(folder, secret):
    """Return a share; ``secret`` (0 or 1) chooses all that the role must not see, and nothing else."""
    word = ("mallory", "trudi--")[secret]
    (folder / "key").write_text(base64.b64encode(bytes(32)).decode())
    lake = Lake.create(str(folder / "lake")).configured(masking=MaskingSection(f"file:{folder / 'key'}"))

    def refreshed():
        share(lake, ROLE, str(folder / "out"), "ada", InProcess())

    shown = {"user": "ada", "host": "node-1", "team": "t", "world_size": (13, 17)[secret]}
    shown |= {"cluster": ("cathode", "caesium")[secret], "submitted_ts": NOON + timedelta(days=3 * secret)}
    shown |= {"labels": f'{{"owner": "{word}@example.org"}}', "git_patch": f"+ {word}", "command_line": word}
    hidden = {"run": f"closed-{word}", "user": word, "host": word, "team": "t"}
    append(lake, "runs", [{"ts": NOON, "run": "open", **shown}, {"ts": NOON, "run": "open-leaver", **shown, "slot": 7}])
    append(lake, "runs", [{"ts": NOON, **hidden, "slot": 20 + n} for n in range(3 + 4 * secret)])
    seen = [{"ts": NOON, "run": "open", "step": n, "step_time_s": 1.0, "tokens": 7 + secret} for n in range(10)]
    append(lake, "steps", seen + hidden_steps(word, 5 + 9 * secret, 1000))
    refreshed()
    append(lake, "steps", [{"ts": NOON, "run": "open", "step": 50, "step_time_s": 1.0, "segment": 4}])
    lists = [("c", [11 + secret, 25]), (word, [secret])]
    hour = {"ts": NOON, "hour": NOON, "end_ts": NOON, "scope": "user", "scope_name": "ada", "user": "ada"}
    append(lake, "cluster_hourly", [{**hour, "cluster": name, "gpu_utilization_counts": one} for name, one in lists])
    jobs = [{"job_id": f"j{n}", "state": "RUNNING", "user": f"u{n % 3}", "comment": word} for n in range(9)]
    jobs += [{"job_id": f"h{n}", "state": "RUNNING", "user": word} for n in range(2 + secret)]
    append(lake, "jobs", [{"ts": NOON, "run": f"r{n}", **one} for n, one in enumerate(jobs)])
    refreshed()
    for n in range(2 + 14 * secret):  # files of which the role sees nothing, many or few, also of days of their own
        append(lake, "steps", hidden_steps(word, 3, 2000 + n))
        append(lake, "steps", [{**one, "ts": NOON + timedelta(days=2 + n)} for one in hidden_steps(word, 1, 3000 + n)])
        refreshed()
    # 50 + secret is what the role saw until the run left its team, and nobody may see afterwards
    append(
        lake,
        "steps",
        [{"ts": NOON, "run": "open-leaver", "step": 900 + 7 * secret, "step_time_s": 1.0, "incarnation": 9}],
    )
    refreshed()
    _leave(lake)
    refreshed()
    # what retention removed: a day of its own
    append(lake, "runs", [{"ts": NOON + timedelta(days=1), "run": f"open-retired-{word}", "slot": 40, "user": "x"}])
    refreshed()
    handle = delta_table(lake.store, "runs")
    swap(handle, number_of(handle) + 1, remove=files(handle, [(NOON + timedelta(days=1)).date()]))
    withdraw(lake.store, {"runs"})
    refreshed()
    return lake


def _leave(lake):
    """Take the run that left out of the runs, as a plan that rewrites their file does."""
    handle = delta_table(lake.store, "runs")
    rows = DeltaTable(handle.table_uri).to_pyarrow_dataset().to_table().to_pylist()
    kept = [one for one in rows if one["run"] != "open-leaver"]
    swap(handle, number_of(handle) + 1, remove=files(handle))
    append(lake, "runs", kept)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Give of each of the two lakes the folder, the share's place, and a client of its server."""
    made = []
    for secret in (0, 1):
        folder = tmp_path_factory.mktemp(f"attacked-{secret}")
        app = sharing_app(shared_lake(folder, secret).store, KEYS, lambda *_: "")
        made.append((folder, folder / "out" / "reader", TestClient(app, raise_server_exceptions=False)))
    yield made
    for *_, client in made:
        client.close()


def frame(place, table):
    """Return a table of a share by its own log."""
    return DeltaTable(f"{place}/tables/{table}").to_pyarrow_dataset().to_table()


def logs(place):
    """Yield (table, name, actions) of all commits of the logs."""
    for path in sorted(place.glob("tables/*/_delta_log/*.json")):
        yield path.parts[-3], path.name, [json.loads(line) for line in path.read_text().splitlines()]


def in_order(said):
    """Return JSON text with the keys in order, also of the JSON in its texts: what the writer leaves to chance."""

    def ordered(value):
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [ordered(one) for one in value]
        return in_order(value) if isinstance(value, str) and value[:1] == "{" else value

    try:
        return json.dumps(ordered(json.loads(said)))
    except ValueError:
        return said


def data(place):
    """Return the data files that lie there, live or not."""
    return sorted(place.glob("tables/*/date=*/*.parquet"))


def asked_of_engine(query):
    """Return an attack in DuckDB's SQL over the bytes, with all that it can do to files."""

    def attack(place):
        engine = duckdb.connect()
        try:
            return sorted(map(repr, engine.sql(query.replace("{tables}", f"{place}/tables")).fetchall()))
        except duckdb.Error as error:
            return str(error)
        finally:
            engine.close()

    return attack


def dictionaries(place):
    """Return every value in the dictionary pages of text columns, used or not."""
    found = set()
    for path in data(place):
        names = [one.name for one in pq.read_schema(path) if pa.types.is_string(one.type)]
        table = pq.read_table(path, read_dictionary=names, partitioning=None)
        for name in names:
            for chunk in table[name].chunks:
                found |= {(name, one) for one in chunk.dictionary.to_pylist()}
    return sorted(map(repr, found))


def footers(place):
    """Return footers of all data files, but for names and sizes in bytes of what is compressed."""
    return [pq.read_metadata(path).to_dict() for path in sorted(data(place), key=lambda one: one.read_bytes())]


def checkpoints(place):
    """Return what the checkpoints of all logs hold of files, live or removed."""
    found = []
    for path in sorted(place.glob("tables/*/_delta_log/*.checkpoint.parquet")):
        for row in pq.read_table(path).to_pylist():
            add, gone = row.get("add") or {}, row.get("remove") or {}
            found.append((path.parts[-3], path.name, add.get("partitionValues"), add.get("stats"), bool(gone)))
    return found


def versions(place):
    """Return rows of every version of every table that a reader can still go back to."""
    found = []
    for table in TABLES:
        newest = DeltaTable(f"{place}/tables/{table}").version()
        for version in range(newest + 1):
            try:
                rows = DeltaTable(f"{place}/tables/{table}", version=version).to_pyarrow_dataset().to_table()
                found.append((table, version, sorted(map(repr, rows.to_pylist()))))
            except Exception as error:  # noqa: BLE001 - whatever the reader says of a version that is gone
                found.append((table, version, type(error).__name__))
    return found


LOOKS = {
    "rows of all tables": lambda place: [frame(place, name).to_pylist() for name in TABLES],
    "columns of all tables": lambda place: [
        (one.name, str(one.type), one.nullable, sorted((one.metadata or {}).items()))
        for name in TABLES
        for one in frame(place, name).schema
    ],
    "names of columns as the log has them": lambda place: [
        in_order(DeltaTable(f"{place}/tables/{name}").schema().to_json()) for name in TABLES
    ],
    "metadata of tables": lambda place: [
        (one.name, one.description, sorted(one.configuration.items()), one.partition_columns)
        for one in (DeltaTable(f"{place}/tables/{name}").metadata() for name in TABLES)
    ],
    "numbers of versions": lambda place: [DeltaTable(f"{place}/tables/{name}").version() for name in TABLES],
    "names of all files, but for what is drawn by lot": lambda place: sorted(
        re.sub(r"-[0-9a-f]{32}-", "-", str(path.relative_to(place))) for path in place.rglob("*") if path.is_file()
    ),
    "sizes of data files": lambda place: sorted(path.stat().st_size for path in data(place)),
    "bytes of data files": lambda place: sorted(path.read_bytes() for path in data(place)),
    "footers of data files": footers,
    "dictionary pages": dictionaries,
    "dates of partitions": lambda place: sorted(str(one.relative_to(place)) for one in place.glob("tables/*/date=*")),
    "folders, empty ones too": lambda place: sorted(
        str(path.relative_to(place)) for path in place.rglob("*") if path.is_dir()
    ),
    "kinds of actions in logs": lambda place: [
        (table, name, [list(one) for one in some]) for table, name, some in logs(place)
    ],
    "statistics in logs": lambda place: [
        one["add"]["stats"] for *_, some in logs(place) for one in some if "add" in one
    ],
    "partition values in logs": lambda place: [
        (one.get("add") or one.get("remove"))["partitionValues"]
        for *_, some in logs(place)
        for one in some
        if "add" in one or "remove" in one
    ],
    "sizes in logs": lambda place: [
        (one.get("add") or one.get("remove")).get("size")
        for *_, some in logs(place)
        for one in some
        if "add" in one or "remove" in one
    ],
    "numbers of transactions": lambda place: [
        one["txn"]["version"] for *_, some in logs(place) for one in some if "txn" in one
    ],
    "what commits say of themselves": lambda place: [
        re.sub(
            r'\\*"(timestamp|id|createdTime|execution_time_ms)\\*": [^,}]*', "", in_order(json.dumps(one["commitInfo"]))
        )
        for *_, some in logs(place)
        for one in some
        if "commitInfo" in one
    ],
    "tombstones": lambda place: [
        (table, name, one["remove"]["dataChange"])
        for table, name, some in logs(place)
        for one in some
        if "remove" in one
    ],
    "checkpoints": checkpoints,
    "older versions": versions,
    "numbers of rows by add actions": lambda place: [
        sorted(files(DeltaTable(f"{place}/tables/{name}"))["num_records"].to_pylist()) for name in TABLES
    ],
    "extremes by add actions": lambda place: [
        sorted(
            map(
                repr,
                files(DeltaTable(f"{place}/tables/{name}"))
                .drop_columns(["path"])
                .drop_columns(
                    [
                        one
                        for one in files(DeltaTable(f"{place}/tables/{name}")).column_names
                        if one == "modification_time"
                    ]
                )
                .to_pylist(),
            )
        )
        for name in TABLES
    ],
    "files that no log names": lambda place: sorted(
        path.name
        for table in TABLES
        for path in place.glob(f"tables/{table}/date=*/*.parquet")
        if str(path.relative_to(place / "tables" / table))
        not in files(DeltaTable(f"{place}/tables/{table}"))["path"].to_pylist()
    ),
    "the marker, but for whose it is": lambda place: {
        **json.loads((place / "ranklake-share.json").read_text()),
        "lake": "",
    },
    "order of rows": lambda place: [frame(place, name).column(0).to_pylist() for name in TABLES],
    "list columns": lambda place: frame(place, "cluster_hourly")["gpu_utilization_counts"].to_pylist(),
    "hidden words in any byte": lambda place: [
        word for word in HIDDEN for path in place.rglob("*") if path.is_file() and word.encode() in path.read_bytes()
    ],
    "hidden words in any name": lambda place: [
        word for word in HIDDEN for path in place.rglob("*") if word in str(path)
    ],
    "the lake's files from the share": lambda place: sorted(
        path.is_symlink() for path in place.rglob("*") if path.is_symlink()
    ),
    "polars, filter by statistics": lambda place: (
        pl.scan_delta(f"{place}/tables/steps").filter(pl.col("step") >= 800).collect().height
    ),
    "polars, count alone": lambda place: pl.scan_delta(f"{place}/tables/steps").select(pl.len()).collect().item(),
    "polars, all files by pattern": lambda place: pl.read_parquet(f"{place}/tables/steps/date=*/*.parquet").height,
}
LOOKS |= {
    query: asked_of_engine(query)
    for query in """
SELECT run, count(*), min(step), max(step) FROM read_parquet('{tables}/steps/date=*/*.parquet') GROUP BY run
SELECT stats_min, stats_max, stats_null_count, num_values FROM parquet_metadata('{tables}/*/date=*/*.parquet')
SELECT num_rows, created_by FROM parquet_file_metadata('{tables}/*/date=*/*.parquet')
SELECT decode(key), decode(value) FROM parquet_kv_metadata('{tables}/*/date=*/*.parquet')
SELECT name, type, logical_type FROM parquet_schema('{tables}/*/date=*/*.parquet')
SELECT bloom_filter_excludes FROM parquet_bloom_probe('{tables}/steps/date=*/*.parquet', 'run', 'closed-mallory')
SELECT count(*) FROM read_json('{tables}/*/_delta_log/*.json', ignore_errors = true) WHERE add IS NOT NULL
SELECT count(*) FROM read_text('{tables}/*/_delta_log/*.json') WHERE content LIKE '%closed%'
SELECT count(*) FROM read_text('{tables}/*/_delta_log/*.json') WHERE content LIKE '%leaver%'
SELECT count(*) FROM read_text('{tables}/*/_delta_log/*.json') WHERE content LIKE '%retired%'
SELECT count(*) FROM read_blob('{tables}/*/date=*/*.parquet') WHERE contains(content::VARCHAR, 'mallory')
SELECT filename[-150:-140] FROM read_parquet('{tables}/steps/date=*/*.parquet', filename = true)
SELECT "user", count(*) FROM read_parquet('{tables}/jobs/date=*/*.parquet') GROUP BY 1
SELECT run, world_size, cluster, submitted_ts, labels FROM read_parquet('{tables}/runs/date=*/*.parquet')
SELECT git_patch FROM read_parquet('{tables}/runs/date=*/*.parquet')
SELECT command_line FROM read_parquet('{tables}/runs/date=*/*.parquet')
SELECT sum(tokens), count(tokens) FROM read_parquet('{tables}/steps/date=*/*.parquet')
SELECT unnest(gpu_utilization_counts) FROM read_parquet('{tables}/cluster_hourly/date=*/*.parquet')
SELECT struct_pack(a := "user", b := labels) FROM read_parquet('{tables}/runs/date=*/*.parquet')
SELECT count(*) FROM read_parquet('{tables}/steps/date=*/*.parquet') WHERE run > 'open' OR run < 'open'
SELECT file_row_number, run FROM read_parquet('{tables}/steps/date=*/*.parquet', file_row_number = true)
SELECT count(*) FROM read_parquet('{tables}/../../../lake/tables/none/*.parquet')
""".strip().splitlines()
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_is_hidden_changes_nothing_in_the_prefix(attacked, name):
    """No byte, name, size, number or answer of an engine tells the two lakes apart, nor holds a hidden word."""
    one, other = (re.sub(re.escape(str(folder)), "FOLDER", repr(LOOKS[name](place))) for folder, place, _ in attacked)
    assert one == other
    asked = name if name.startswith("SELECT") else ""
    for word in HIDDEN:
        assert word in asked or word not in one


def token(purpose=PROFILE, **facts):
    """Return a token of the reader."""
    until = datetime.now(UTC) + timedelta(hours=1)
    return seal_token(KEYS, purpose, {"role": "reader", "to": "eve", "until": until.isoformat(), **facts})


TABLE = "/shares/reader/schemas/tables/tables/steps"
HINTS = [
    {"limitHint": 0},
    {"limitHint": 1},
    {"limitHint": 10**30},
    {"limitHint": -1},
    {"limitHint": "1"},
    {"limitHint": 1.5},
    {"limitHint": True},
    {"predicateHints": ["run = 'closed-mallory'"]},
    {"predicateHints": ["step >= 1000", "1 / (step - 1000) < 1"]},
    {"predicateHints": "x'; DROP TABLE steps"},
    {"jsonPredicateHints": '{"op": "equal", "children": [{"op": "column", "name": "run", "valueType": "string"}]}'},
    {"jsonPredicateHints": "{"},
    {"version": 0},
    {"version": -1},
    {"timestamp": "2026-03-01T00:00:00Z"},
    {"startingVersion": 0},
    {"endingVersion": 1},
    {"includeHistoricalMetadata": True},
    {"includeRefreshToken": True, "refreshToken": "x"},
    {"maxFiles": 1, "pageToken": "../../x"},
    {"limitHint": None, "version": None},
    {},
]
ASKS = [("POST", f"{TABLE}/query", json.dumps(one)) for one in HINTS]
ASKS += [("POST", f"{TABLE}/query", one) for one in ("[", "[" * 100_000, "1", '"x"', "\udcff", " " * 2_000_000, "")]
ASKS += [
    ("GET", path, "")
    for path in (
        "/shares",
        "/shares?maxResults=1&pageToken=x",
        "/shares/reader",
        "/shares/reader/schemas",
        "/shares/reader/all-tables",
        "/shares/reader/schemas/tables/tables",
        f"{TABLE}/metadata",
        f"{TABLE}/version",
        f"{TABLE}/version?startingTimestamp=2020-01-01T00:00:00Z",
        f"{TABLE}/changes?startingVersion=0&endingVersion=9",
        f"{TABLE}/query",
        "/shares/READER/all-tables",
        "/shares/reader%00/all-tables",
        "/shares/../lake/all-tables",
        "/shares/reader/schemas/tables/tables/..%2f..%2f..%2flake%2ftables%2fsteps/metadata",
        "/shares/reader/schemas/tables/tables/steps%2f..%2fruns/metadata",
        "/shares/reader/schemas/tables/tables/logs/metadata",
        "/shares/reader/schemas/tables/tables/_delta_log/metadata",
        "/shares/reader/schemas/tables/tables/STEPS/metadata",
        "/shares/reader/schemas/tables/tables/steps'/metadata",
        "/files/x",
        "/files/..%2f..%2flake",
        "/docs",
        "/openapi.json",
        "/",
    )
]
ASKS += [(method, f"{TABLE}/metadata", "") for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")]


@pytest.mark.parametrize(("method", "path", "body"), ASKS, ids=[f"{one[0]} {one[1]} {one[2][:50]!a}" for one in ASKS])
def test_what_is_hidden_changes_nothing_of_what_the_server_says(attacked, method, path, body):
    """Hints, versions, ways out and odd bodies give the same whatever is hidden; nothing fails in the server."""
    said = []
    for folder, _, client in attacked:
        headers = {"Authorization": f"Bearer {token()}"}
        content = body.encode("utf-8", "surrogateescape") if body else None
        answer = client.request(method, f"/delta-sharing{path}", headers=headers, content=content)
        assert answer.status_code < 500
        text = "\n".join(in_order(line) if line[:1] == "{" else line for line in answer.text.splitlines())
        text = re.sub(
            r"files/[^\"]*|[0-9a-f]{32}-|\"expirationTimestamp\": \d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            "",
            text,
        )
        said.append((answer.status_code, text.replace(str(folder), ""), answer.headers.get("delta-table-version")))
    assert said[0] == said[1]
    for word in HIDDEN:
        assert word not in said[0][1]


STEERED = {
    "a file of the lake": {"table": "../../../lake/tables/steps", "path": "x"},
    "a file of another role": {"role": "other"},
    "a way out in the path": {"path": "../../../../lake/ranklake.json"},
    "the log": {"path": "_delta_log/00000000000000000000.json"},
    "an absolute path": {"path": "/etc/hostname"},
    "no path": {"path": None},
    "a path that is no text": {"path": ["x"]},
    "the marker": {"table": "..", "path": "ranklake-share.json"},
}


@pytest.mark.parametrize("name", STEERED)
def test_no_address_leads_elsewhere(attacked, name):
    """Not even a seal of the server's own key opens what is no live data file of the role's share."""
    _, place, client = attacked[0]
    path = str(data(place)[0].relative_to(place / "tables" / data(place)[0].parts[-3]))
    facts = {"table": data(place)[0].parts[-3], "path": path}
    assert client.get(f"/delta-sharing/files/{token(FILE, **facts)}").status_code == 200
    answer = client.get(f"/delta-sharing/files/{token(FILE, **{**facts, **STEERED[name]})}")
    assert answer.status_code in {401, 404}


def test_the_lakes_differ_for_who_may_see(attacked):
    """The tests would find a leak: of the lakes themselves nearly all that is looked at differs."""
    one, other = (repr(frame(folder / "lake", "steps").to_pylist()) for folder, *_ in attacked)
    assert one != other
    assert "closed-mallory" in one
    assert len(LOOKS) + len(ASKS) + len(STEERED) >= 60
