"""Attacks on a role's views: whatever is asked, the answer is the same whatever is hidden.

Each statement is asked of two lakes that differ in what the role must not see alone: hidden rows, their number and
sizes, hidden columns, and masked values that look the same under their masks. What comes back, rows or error, must not
tell the two apart.
"""

import base64
import re
from datetime import timedelta
from pathlib import Path

import pytest
from rollup_inputs import NOON, append

from ranklake.errors import RanklakeError
from ranklake.insight.ask import ask
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.masking.masks import Mask

_CHANCE = re.compile(r"did you mean .*|metadata: \{[^}]*\}")
"""What DataFusion chooses or sorts by chance: which function is nearest, the order of a column's facts."""


def column(table, name, said):
    """Return what a role has of one column's mask."""
    return (table, contract(table).column(name).id), Mask.parse(said, "")


ROLE = Role(
    "r",
    frozenset({"operational"}),
    frozenset({"runs", "steps", "scalars", "cluster_hourly", "jobs"}),
    {
        "runs": "run = 'open'",
        "steps": "run = 'open'",
        "scalars": "run = 'open'",
        "cluster_hourly": "cluster = 'c'",
        "jobs": "",
    },
    masked=frozenset({"pseudonymous"}),
    column_masks=dict(
        [
            column("runs", "world_size", "bucket:10"),
            column("runs", "param_count", "bucket:1000"),
            column("runs", "cluster", "keep:1"),
            column("runs", "submitted_ts", "truncate:month"),
            column("runs", "labels", "redact"),
            column("jobs", "comment", "keep:1"),
            column("jobs", "priority", "bucket:100"),
            column("jobs", "end_ts", "truncate:day"),
            column("steps", "tokens", "nullify"),
            column("cluster_hourly", "gpu_utilization_counts", "bucket:10"),
        ]
    ),
)


def lake_of(folder, secret):
    """Return a lake; ``secret`` (0 or 1) chooses all that the role must not see, and nothing else."""
    lake = Lake.create(str(folder / "lake"))
    word = ("mallory", "trudi--")[secret]
    shown = {
        "job": "gpt",
        "user": "ada",
        "host": "node-1",
        "world_size": (13, 17)[secret],
        "param_count": 5_000 + secret,
    }
    shown |= {"cluster": ("cathode", "caesium")[secret], "submitted_ts": NOON + timedelta(days=3 * secret)}
    shown |= {"labels": f'{{"owner": "{word}@example.org"}}', "git_patch": f"+ {word}", "command_line": word}
    hidden = {"run": f"closed-{word}", "job": word, "user": word, "host": word, "world_size": 1}
    numbers = {"param_count": 2**63 - 1 - secret}
    runs = [{"run": "open", **shown}, *[{**hidden, **numbers}] * (3 + 4 * secret)]
    append(lake, "runs", [{"ts": NOON, **one, "slot": place} for place, one in enumerate(runs)])
    steps = [{"ts": NOON, "run": "open", "step": n, "step_time_s": 1.0, "tokens": 7 + secret} for n in range(10)]
    steps += [
        {"ts": NOON, "run": f"closed-{word}", "step": 1000 + n, "step_time_s": 9.0 + secret, "incarnation": 8}
        for n in range(5 + 9 * secret)
    ]
    append(lake, "steps", steps)
    values = [("open", "train/loss", 1.0), (f"closed-{word}", f"train/{word}", 2.0 + secret)]
    append(lake, "scalars", [{"ts": NOON, "run": run, "metric": name, "value": value} for run, name, value in values])
    append(lake, "events", [{"ts": NOON, "run": "open", "event": "failure", "message": word}])
    jobs = [
        {"job_id": f"j{n}", "state": "RUNNING", "comment": f"c{n * (3 + secret) % 10}{secret}", "user": f"u{n % 3}"}
        | {"priority": 100 * (n % 4) + 13 * secret + n, "end_ts": NOON + timedelta(minutes=n * (1 + secret))}
        for n in range(40)
    ]
    append(lake, "jobs", [{"ts": NOON, "run": f"r{n}", **one} for n, one in enumerate(jobs)])
    hour = {"ts": NOON, "hour": NOON, "end_ts": NOON, "scope": "user", "scope_name": "ada", "user": "ada"}
    lists = [("c", [11 + secret, 25]), (word, [secret])]
    append(lake, "cluster_hourly", [{**hour, "cluster": name, "gpu_utilization_counts": one} for name, one in lists])
    return lake


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """Give the two lakes, with the same key."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "key").write_text(base64.b64encode(bytes(32)).decode())
    masking = MaskingSection(f"file:{folder / 'key'}")
    made = [lake_of(folder / str(secret), secret) for secret in (0, 1) if (folder / str(secret)).mkdir() is None]
    return [one.configured(masking=masking) for one in made]


ATTACKS = """
SELECT * FROM runs
SELECT count(*), min(run), max(run), min(param_count), max(world_size), sum(world_size) FROM runs
SELECT (SELECT max("user") FROM runs) AS u, (SELECT count(*) FROM steps) AS n
SELECT run FROM runs WHERE "user" = (SELECT max("user") FROM runs WHERE "user" > 'a')
SELECT count(*) FROM runs WHERE 1 / (CASE WHEN run LIKE 'closed%' THEN 0 ELSE 1 END) = 1
SELECT count(*) FROM steps WHERE 1 / (step - 1000) < 1
SELECT 1 / (world_size - 13) FROM runs
SELECT 1 / (param_count - 5001) FROM runs
SELECT CASE WHEN "user" LIKE 'mal%' THEN 1 / 0 ELSE 1 END FROM runs
SELECT CASE WHEN cluster LIKE 'cat%' THEN 1 / 0 ELSE 1 END FROM runs
SELECT CAST(run AS INT) FROM runs
SELECT CAST(labels AS INT) FROM runs
SELECT CAST("user" AS TIMESTAMP) FROM runs
SELECT CAST(cluster AS DATE) FROM runs
SELECT arrow_cast(submitted_ts, 'Int8') FROM runs
SELECT count(*) FROM runs WHERE CAST(job AS INT) = 1
SELECT regexp_count(labels, '(mallory|trudi)') FROM runs
SELECT count(*) FROM runs WHERE regexp_like("user", '[')
SELECT param_count * param_count * 9223372036854775807 FROM runs
SELECT sum(param_count), sum(CAST(param_count AS DECIMAL(38, 0))) FROM runs
SELECT count(*) FROM runs WHERE param_count > 9223372036854775000
SELECT submitted_ts FROM runs WHERE submitted_ts < TIMESTAMP '2026-03-02T00:00:00Z'
SELECT date_part('day', submitted_ts) FROM runs
SELECT cluster FROM runs WHERE cluster > 'cb' OR cluster = 'cathode'
SELECT sum(tokens), count(tokens) FROM steps WHERE tokens = 7 OR tokens IS NULL
SELECT step FROM steps WHERE tokens > 7
COPY runs TO '/tmp/ranklake-attack.csv'
COPY (SELECT * FROM runs) TO '/tmp/ranklake-attack.parquet' STORED AS PARQUET
CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION '{lake}/tables/runs'
CREATE TABLE x AS SELECT * FROM runs
CREATE VIEW x AS SELECT * FROM runs
CREATE FUNCTION f(TEXT) RETURNS TEXT RETURN $1
DROP TABLE runs
INSERT INTO runs (run) VALUES ('x')
DELETE FROM runs
UPDATE runs SET run = 'x'
SELECT * FROM '{lake}/tables/runs'
SELECT * FROM '{file}'
SELECT * FROM "{file}"
SELECT * FROM read_parquet('{file}')
SELECT * FROM parquet_metadata('{file}')
SELECT * FROM metadata_cache()
SELECT * FROM statistics_cache()
SELECT * FROM list_files_cache()
SELECT * FROM delta_scan('{lake}/tables/runs')
SET datafusion.catalog.information_schema = true
SET datafusion.explain.show_statistics = true
RESET datafusion.execution.batch_size
SHOW ALL
SHOW datafusion.execution.batch_size
SHOW TABLES
SHOW COLUMNS FROM runs
SHOW CREATE TABLE runs
SHOW FUNCTIONS
DESCRIBE runs
DESCRIBE SELECT * FROM runs
EXPLAIN SELECT * FROM runs
EXPLAIN ANALYZE SELECT * FROM runs WHERE "user" > 'a'
EXPLAIN VERBOSE SELECT * FROM runs
EXPLAIN FORMAT TREE SELECT * FROM steps WHERE step > 1000
PREPARE p AS SELECT * FROM runs
EXECUTE p
START TRANSACTION
SELECT * FROM information_schema.tables
SELECT * FROM information_schema.views
SELECT * FROM information_schema.columns WHERE table_name IN ('runs', 'steps')
SELECT * FROM information_schema.schemata
SELECT count(*) FROM information_schema.routines WHERE routine_name LIKE '%mask%'
SELECT * FROM information_schema.parameters WHERE specific_name LIKE '%mask%'
SELECT * FROM events
SELECT * FROM audit
SELECT message FROM runs, events
SELECT git_patch FROM runs
SELECT r.command_line FROM runs r
SELECT * EXCLUDE (run) FROM runs
SELECT runs FROM runs
SELECT input_file_name() FROM runs
SELECT masked("user") FROM runs
SELECT "masked"('ada') FROM runs
SELECT arrow_typeof("user"), arrow_typeof(runs.world_size) FROM runs
SELECT arrow_metadata("user") FROM runs
SELECT sha256("user"), md5("user"), digest("user", 'sha512') FROM runs
SELECT unnest(gpu_utilization_counts) FROM cluster_hourly
SELECT gpu_utilization_counts[1], array_sum(gpu_utilization_counts) FROM cluster_hourly
SELECT gpu_utilization_counts FROM cluster_hourly WHERE array_has(gpu_utilization_counts, 11)
SELECT 1 / (gpu_utilization_counts[1] - 11) FROM cluster_hourly
SELECT array_agg("user"), array_agg(cluster), array_agg(run) FROM runs
SELECT named_struct('u', "user", 'l', labels) AS s FROM runs
SELECT named_struct('u', labels)['u'] FROM runs
SELECT map(['k'], [labels]) AS m FROM runs
SELECT struct(runs.*) FROM runs
SELECT row_number() OVER (ORDER BY run), lag(run) OVER (ORDER BY run DESC) FROM runs
SELECT step, sum(step_time_s) OVER (ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM steps
SELECT approx_distinct(run), approx_median(step_time_s), stddev(step) FROM steps
SELECT run FROM runs UNION ALL SELECT run FROM steps
SELECT run FROM steps EXCEPT SELECT 'open'
SELECT s.run FROM steps s FULL JOIN runs r ON s.run = r.run WHERE r.run IS NULL
SELECT count(*) FROM runs a CROSS JOIN steps b
SELECT count(*) FROM runs a WHERE NOT EXISTS (SELECT 1 FROM steps b WHERE b.run = a.run)
SELECT run, (SELECT count(*) FROM steps s WHERE s.run > r.run) FROM runs r
WITH runs AS (SELECT * FROM runs) SELECT * FROM runs
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i, run FROM n CROSS JOIN runs
SELECT run, count(*) FROM steps GROUP BY GROUPING SETS ((run), ())
SELECT run FROM runs, LATERAL (SELECT max(step) AS m FROM steps WHERE steps.run <> runs.run) AS x WHERE m IS NOT NULL
SELECT * FROM public.runs
SELECT * FROM datafusion.public.runs
SELECT * FROM runs /* steps events audit */ -- run = 'closed'
SELECT count(*) FROM runs WHERE true OR run = 'closed') OR (true
SELECT * FROM runs LIMIT 9223372036854775807 OFFSET 1
SELECT run FROM runs ORDER BY 1 / (world_size - 17)
SELECT metric, value FROM series WHERE metric = 'train/loss'
SELECT * FROM series WHERE metric = 'train/mallory'
SELECT count(*) FROM scalars WHERE metric > 'train/loss'
SELECT $1
SELECT date, count(*) FROM runs GROUP BY date
VALUES (1); SELECT * FROM runs
SELECT min(priority), max(priority), count(DISTINCT priority), min(end_ts), max(comment) FROM jobs
SELECT count(*) FROM jobs WHERE priority BETWEEN 101 AND 199 OR priority IN (0, 13, 14)
SELECT priority FROM jobs ORDER BY priority DESC LIMIT 3
SELECT job_id FROM jobs WHERE comment LIKE 'c0%' OR comment = 'c11'
SELECT count(*) FROM jobs a JOIN jobs b ON a.comment = b.comment AND a.end_ts = b.end_ts
SELECT count(*) FROM jobs a JOIN jobs b ON a.priority = b.priority WHERE b.priority > 250
SELECT priority, count(*) FROM jobs WHERE end_ts > TIMESTAMP '2026-03-01T12:30:00Z' GROUP BY priority
SELECT count(*) FROM jobs WHERE 1 / (priority - 113) < 2
SELECT comment FROM jobs INTERSECT SELECT concat('c', CAST(column1 AS TEXT)) FROM (VALUES (11), (20))
SELECT "user", priority, rank() OVER (PARTITION BY "user" ORDER BY priority, job_id) FROM jobs
""".strip().splitlines()


def outcome(lake, text, **how):
    """Return what a statement gives the role: rows, in no order, or the error."""
    file = str(next(Path(lake.uri).glob("tables/runs/date=*/*.parquet")))
    try:
        found = ask(lake, text.replace("{lake}", lake.uri).replace("{file}", file), role=ROLE, **how).rows
    except RanklakeError as error:
        said = str(error).replace(file, "FILE").replace(lake.uri, "LAKE")
        assert "\n" not in said
        return _CHANCE.sub("", said)
    return str(found.schema), sorted(map(repr, found.to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("text", ATTACKS)
def test_what_is_hidden_changes_no_answer(lakes, text):
    """Neither rows nor errors depend on what the role must not see, and no hidden word is in them."""
    one, other = (outcome(lake, text) for lake in lakes)
    assert one == other
    for word in ("mallory", "trudi", "closed-", "cathode", "caesium"):
        assert word in text or word not in str(one)


@pytest.mark.parametrize(
    "how", [{"as_of": ["runs=1"]}, {"as_of": NOON + timedelta(days=3650)}, {"verify": True}, {"limit": 1}]
)
def test_nor_does_the_way_of_asking(lakes, how):
    """Old versions, times, verification of files and limits go through the same views."""
    assert not list(Path("/tmp").glob("ranklake-attack*"))
    for text in ('SELECT run, "user", world_size, cluster FROM runs', "SELECT run FROM runs WHERE world_size = 13"):
        assert outcome(lakes[0], text, **how) == outcome(lakes[1], text, **how)


def test_the_lakes_differ_for_who_may_see(lakes):
    """The test would find a leak: without a role nearly every answer differs."""
    for text in (
        "SELECT * FROM runs",
        "SELECT count(*) FROM steps",
        "SELECT unnest(gpu_utilization_counts) FROM cluster_hourly",
    ):
        one, other = (ask(lake, text).rows.to_pylist() for lake in lakes)
        assert one != other
